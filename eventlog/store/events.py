"""The log on its owner's side: indexes and positions are given out here, and a group becomes one statement.

Owner of the tables `log`, `session`, `event_type`, `era` and `imported`. Everything here runs on the writer's thread,
but for `Head`, whose fields the loop may read.
"""

import asyncio
import sqlite3
import weakref
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from eventlog.clock import Clock
from eventlog.encoding import Encoded, encode_json
from eventlog.errors import (
    BrokenInvariant,
    IndexConflict,
    KeyConflict,
    SessionExists,
    SessionNotFound,
)
from eventlog.events import TYPE_KEYS, Event, SessionInfo, SessionStarted, decode_json
from eventlog.store.database import Outcome

FIRST_OWN_TYPE = 1000
MAX_OWN_TYPES = 10_000
EVENT_OVERHEAD_BYTES = 100  # what an event counts for in the queue beside its data
MAX_SESSION_TYPE = 6  # types up to this key move the session's own state
COLUMNS: tuple[str, ...] = ("position", "at", "session", "idx", "type", "turn_id", "data", "checksum", "key")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ROWS_PER_STATEMENT = 128  # each number of rows up to this has a prepared statement of its own


class Tail:
    """The unabsorbed events of one session: positions, gapless from the index `first` on.

    It only grows; when the index has absorbed its beginning, a new one takes its place, so that the loop may read it
    while the writer's thread works.
    """

    __slots__ = ("first", "positions")

    def __init__(self, first: int, positions: list[int]) -> None:
        self.first = first
        self.positions = positions


class Head:
    """One session in the owner's memory: where it stands, and which of its events the index has not absorbed."""

    __slots__ = (
        "__weakref__",
        "id",
        "info",
        "key",
        "next_index",
        "tail",
        "updated_at_us",
        "waiters",
    )

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.key: int | None = None  # the session's integer key; None until its start is committed
        self.next_index = 0
        self.tail = Tail(0, [])
        self.info: SessionInfo | None = None
        self.updated_at_us = 0
        self.waiters: set[asyncio.Future[None]] = set()

    def retire(self) -> None:
        """The file was closed: whoever still holds this must not go on from it."""
        self.key = None

    def tail_copy(self) -> list[tuple[int, int]]:
        """(index, position) of each unabsorbed event; a copy that the writer's thread cannot change."""
        tail = self.tail
        return list(enumerate(tail.positions[:], tail.first))


class Append(msgspec.Struct, eq=False):
    """One call of append: its events before, and what became of them after."""

    head: Head
    items: list[Encoded]
    landed: asyncio.Future[None]
    """Done when it is stored or refused; what came of it is in `events` or in `error`."""
    expected_index: int | None = None
    start: SessionInfo | None = None
    events: list[Event[Any]] = []
    error: BaseException | None = None
    is_settled: bool = False
    size_bytes: int = 0
    """What it counts for in the queue."""

    def has_new_type(self, types: dict[str, int]) -> bool:
        """Whether one of its events has a type that the file does not know."""
        for item in self.items:  # noqa: SIM110  any() makes a generator for each append
            if item.type not in types:
                return True
        return False

    def measure(self) -> int:
        """How many events it has; notes what it counts for in the queue."""
        rows = len(self.items)
        size_bytes = EVENT_OVERHEAD_BYTES * rows
        for item in self.items:
            size_bytes += len(item.raw)
        self.size_bytes = size_bytes
        return rows

    async def settled(self) -> None:
        """Return when it is stored or refused, however often the waiter is cancelled."""
        if not self.is_settled:
            self.landed = Outcome(loop=self.landed.get_loop())
            await self.landed


_BLAKE2B_128 = blake2b(digest_size=16)


def checksum(
    position: int, session_id: str, index: int, at_us: int, type_: str, turn_id: str | None, key: str | None, data: str
) -> bytes:
    """blake2b-128 over everything that makes an event. Ids hold no control character, so a line feed parts them."""
    digest = _BLAKE2B_128.copy()  # cheaper than to set it up again
    digest.update(f"{position}\n{session_id}\n{index}\n{at_us}\n{type_}\n{turn_id or ''}\n{key or ''}\n{data}".encode())
    return digest.digest()


@cache
def insert_statement(rows: int, columns: tuple[str, ...]) -> str:
    """One INSERT of so many rows."""
    row = f"({','.join('?' * len(columns))})"
    return f"INSERT INTO log ({','.join(columns)}) VALUES {','.join([row] * rows)}"


def insert_rows(connection: sqlite3.Connection, values: list[Any]) -> None:
    """Insert rows, value after value; more than one statement's worth only inside the caller's transaction.

    The values are used up.
    """
    columns = COLUMNS
    if not any(values[len(columns) - 1 :: len(columns)]):  # few events have a key, and NULL takes long to bind
        del values[len(columns) - 1 :: len(columns)]
        columns = COLUMNS[:-1]
    step = ROWS_PER_STATEMENT * len(columns)
    for start in range(0, len(values), step):
        part = values[start : start + step]
        connection.execute(insert_statement(len(part) // len(columns), columns), part)


class Start(NamedTuple):
    """A session that a group begins: its integer key, and its info but for the times."""

    key: int
    info: SessionInfo


class Draft:
    """A group while it is formed: nothing of it is believed until its commit succeeded."""

    __slots__ = (
        "known",
        "moves_sessions",
        "new_types",
        "next_indexes",
        "now_us",
        "position",
        "repeats",
        "started",
        "values",
    )

    def __init__(self, position: int, now_us: int, known: dict[tuple[Head, str], Event[Any]]) -> None:
        self.position = position
        self.now_us = now_us
        self.known = known
        self.moves_sessions = False
        self.values: list[Any] = []  # of the rows, one after the other
        self.next_indexes: dict[Head, int] = {}
        self.new_types: dict[str, int] = {}
        self.started: dict[Head, Start] = {}  # heads that get their key when it is committed
        self.repeats: set[Append] = set()  # of what is stored already, or earlier in this group


class Events:
    """Gives out indexes and positions, and writes groups. One instance, on the writer's thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.eras = Eras([])
        self.position = 0  # of the last committed event
        self.types: dict[str, int] = dict(TYPE_KEYS)
        self.last_session_key = 0
        self.heads: weakref.WeakValueDictionary[str, Head] = weakref.WeakValueDictionary()
        self.unabsorbed: dict[int, Head] = {}  # by session key; keeps those heads alive
        self.unabsorbed_rows = 0

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self, connection: sqlite3.Connection) -> None:
        """Read back what the owner keeps in memory; also after an error, when only the file knows what is stored."""
        self.position = last_position(connection)
        self.types = dict(TYPE_KEYS)
        self.types.update(connection.execute("SELECT name, type FROM event_type").fetchall())
        (self.last_session_key,) = connection.execute("SELECT coalesce(max(session), 0) FROM session").fetchone()
        self.eras = Eras.load(connection)
        self._load_tail(connection)

    def _load_tail(self, connection: sqlite3.Connection) -> None:
        heads = [reference() for reference in self.heads.valuerefs()]
        known = {head.key: head for head in heads if head is not None and head.key is not None}
        # Of a damaged file: beyond its end nothing is absorbed, or what is appended there could not be found.
        connection.execute("UPDATE absorbed SET position = ? WHERE position > ?", (self.position, self.position))
        self.unabsorbed = {}
        for key, session_id, index, position, at_us, first in connection.execute(_UNABSORBED).fetchall():
            head = self.unabsorbed.get(key)
            if head is None:
                head = known.get(key) or Head(session_id)
                head.key, head.tail = key, Tail(first, [])
                self.unabsorbed[key] = head
                self.heads[session_id] = head
            _take_place(connection, head.tail, index, position)
            head.next_index, head.updated_at_us = head.tail.first + len(head.tail.positions), at_us
        self.unabsorbed_rows = sum(len(head.tail.positions) for head in self.unabsorbed.values())
        for key, head in known.items():
            if key not in self.unabsorbed:
                head.tail = Tail(0, [])
                head.next_index, head.updated_at_us = absorbed_head(connection, key)

    # -- one group ----------------------------------------------------------------------------------------------

    def commit(self, connection: sqlite3.Connection, group: list[Append]) -> list[Event[Any]]:
        """Store a group; each append then has its events or its error. What it raises is true of all of them."""
        draft = Draft(self.position, self.clock.now_us(), self._known_keys(connection, group))
        self._form(group, draft)
        self._write(connection, draft)
        return self._believe(group, draft)

    def _form(self, group: list[Append], draft: Draft) -> None:
        now_us, era, types = draft.now_us, self.eras.current, self.types
        position, next_indexes, values = draft.position, draft.next_indexes, draft.values
        for append in group:
            head = append.head
            index = next_indexes.get(head)
            if index is None:
                index = head.next_index
            can_be_refused = (
                append.start or append.expected_index is not None or append.items[0].key or head.key is None
            )
            if can_be_refused and not self._accept(append, index, draft):
                continue
            events, session = append.events, head.key or draft.started[head].key
            for item in append.items:
                position += 1
                type_, turn_id, key, raw = item.type, item.turn_id, item.key, item.raw
                type_key = types.get(type_) or self._new_type(type_, draft)
                if type_key <= MAX_SESSION_TYPE:
                    draft.moves_sessions = True
                text = raw.decode()
                digest = checksum(position, head.id, index, now_us, type_, turn_id, key, text)
                # A bytearray is bound at once; for bytes, Python 3.11 looks for an adapter first.
                values += (position, now_us, session, index, type_key, turn_id, text, bytearray(digest), key)
                events.append(Event(type_, index, head.id, turn_id, now_us, position, era, raw, key, item.payload))
                index += 1
            next_indexes[head] = index
            if events[0].key is not None:
                draft.known.update({(head, event.key): event for event in events if event.key is not None})
        draft.position = position

    def _write(self, connection: sqlite3.Connection, draft: Draft) -> None:
        rows = draft.position - self.position
        if not rows:
            return
        if rows <= ROWS_PER_STATEMENT and not draft.started and not draft.new_types:
            # One autocommit statement: the thread waits for the interpreter once, not four times.
            insert_rows(connection, draft.values)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for start in draft.started.values():
                insert_session(connection, start.key, start.info, draft.now_us)
            for name, key in draft.new_types.items():
                connection.execute("INSERT INTO event_type (type, name) VALUES (?, ?)", (key, name))
            insert_rows(connection, draft.values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _believe(self, group: list[Append], draft: Draft) -> list[Event[Any]]:
        self.position = draft.position
        self.types.update(draft.new_types)
        for head, start in draft.started.items():
            began = as_time(draft.now_us)
            head.info = replace(start.info, started_at=began, updated_at=began)
            head.key = self.last_session_key = start.key
        recorded: list[Event[Any]] = []
        repeats = draft.repeats
        for append in group:
            events = append.events
            if not events or (repeats and append in repeats):
                continue
            first = events[0]
            self.note(append.head, first.index, first.position, len(events), draft.now_us)
            if draft.moves_sessions:
                for event in events:
                    if event.type in STATE_TYPES:
                        append.head.info = moved(append.head.info, event)
            recorded += events
        return recorded

    def note(self, head: Head, index: int, position: int, count: int, at_us: int) -> None:
        """Move a head over `count` committed events that begin at an index and a position."""
        if index != head.next_index or head.key is None:
            raise BrokenInvariant(f"session {head.id!r}: index {index} does not follow {head.next_index}")
        positions = head.tail.positions
        if not positions:
            head.tail = Tail(index, positions := [])
            self.unabsorbed[head.key] = head
        if count == 1:
            positions.append(position)
        else:
            positions.extend(range(position, position + count))
        head.next_index = index + count
        head.updated_at_us = at_us
        self.unabsorbed_rows += count

    # -- what can be refused ------------------------------------------------------------------------------------

    def _accept(self, append: Append, index: int, draft: Draft) -> bool:
        head = append.head
        if append.start is not None:
            if head.key is not None:  # an import was quicker
                append.error = SessionExists(head.id)
                return False
            draft.started[head] = Start(self.last_session_key + len(draft.started) + 1, append.start)
        if head.key is None and head not in draft.started:
            append.error = SessionNotFound(head.id)
            return False
        if append.items[0].key is not None:
            hits = [draft.known.get((head, item.key or "")) for item in append.items]
            if any(hit is not None for hit in hits):
                draft.repeats.add(append)
                self._repeat(append, hits)
                return False
        if append.expected_index is not None and append.expected_index != index:
            append.error = IndexConflict(head.id, append.expected_index, index)
            return False
        return True

    def _repeat(self, append: Append, hits: list[Event[Any] | None]) -> None:
        for item, hit in zip(append.items, hits, strict=True):
            if hit is None:
                append.error = KeyConflict(
                    append.head.id, item.key or "", "other keys of the same batch are already stored"
                )
                return
            if (hit.type, hit.turn_id) != (item.type, item.turn_id) or not same_json(hit.raw, item.raw):
                append.error = KeyConflict(
                    append.head.id, item.key or "", "it was stored with another type, turn or data"
                )
                return
        append.events = [hit for hit in hits if hit is not None]

    def _known_keys(self, connection: sqlite3.Connection, group: list[Append]) -> dict[tuple[Head, str], Event[Any]]:
        wanted = {
            (append.head.key, item.key): append.head
            for append in group
            if append.items[0].key is not None and append.head.key is not None
            for item in append.items
        }
        if not wanted:
            return {}
        heads = {head.key: head for head in wanted.values()}
        names = {key: name for name, key in self.types.items()}
        pairs = list(wanted)
        found: dict[tuple[Head, str], Event[Any]] = {}
        for start in range(0, len(pairs), 500):
            chunk = pairs[start : start + 500]
            rows = connection.execute(
                f"WITH wanted (s, k) AS (VALUES {','.join(['(?,?)'] * len(chunk))})"
                " SELECT l.session, l.idx, l.type, l.turn_id, l.at, l.position, CAST(l.data AS BLOB), l.key"
                " FROM wanted CROSS JOIN log AS l INDEXED BY log_by_key"
                " ON l.session = s AND l.key = k AND l.key IS NOT NULL",
                [value for pair in chunk for value in pair],
            )
            for session, index, type_key, turn_id, at_us, position, raw, key in rows:
                head = heads[session]
                found[(head, key)] = Event(
                    names[type_key], index, head.id, turn_id, at_us, position, self.eras.of(position), raw, key
                )
        return found

    def own_types(self) -> int:
        """How many types beside the vocabulary the file knows."""
        return len(self.types) - len(TYPE_KEYS)

    def _new_type(self, name: str, draft: Draft) -> int:
        known = draft.new_types.get(name)
        if known is not None:
            return known
        draft.new_types[name] = FIRST_OWN_TYPE + self.own_types() + len(draft.new_types)
        return draft.new_types[name]


class Eras:
    """Which era a position belongs to."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self._rows = rows  # (first position, era), oldest first
        self.current = rows[-1][1] if rows else ""
        self._current_first = rows[-1][0] if rows else 0

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> "Eras":
        """Read the eras of a file."""
        return cls(
            connection.execute("SELECT first_position, era FROM era ORDER BY first_position, began_at").fetchall()
        )

    def of(self, position: int) -> str:
        """The era in which a position was issued."""
        if position >= self._current_first:
            return self.current
        oldest = self._rows[0][1] if self._rows else ""  # of a damaged table, which must not hide the event
        return next((era for first, era in reversed(self._rows) if first <= position), oldest)


STATE_TYPES = frozenset(name for name, key in TYPE_KEYS.items() if key <= MAX_SESSION_TYPE)
_STATUS = {"session.waiting": "waiting", "session.completed": "completed", "session.failed": "failed"}


def moved(info: SessionInfo | None, event: Event[Any]) -> SessionInfo | None:
    """A session's info after one of its own events; in step with the trigger `log_moves_session`."""
    if info is None:
        return None
    data = event.data
    changes: dict[str, Any] = {
        name: value
        for name in ("title", "sdk_agent_id", "abs", "continuation_token")
        if (value := getattr(data, name, None)) is not None
    }
    if "abs" not in changes and "abs" in decode_json(event.raw):
        changes["abs"] = None  # of all of these, only this one can be set to null
    if event.type != "session.updated":
        changes["status"] = _STATUS.get(event.type, "active")
    return replace(info, **changes)


_canonical = msgspec.json.Encoder(order="sorted").encode


def same_json(one: bytes, other: bytes) -> bool:
    """Whether both hold the same JSON value, in whatever order the keys are. 1, 1.0 and true are three values."""
    if one == other:
        return True
    try:
        return _canonical(decode_json(one)) == _canonical(decode_json(other))
    except Exception:  # damaged bytes are the same as nothing
        return False


def last_position(connection: sqlite3.Connection) -> int:
    """The last position that was ever issued, pruned or not."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    (found,) = connection.execute("SELECT coalesce(max(position), 0) FROM log").fetchone()
    return max(int(row[0]) if row else 0, int(found))


_UNABSORBED = """
    SELECT l.session, s.id, l.idx, l.position, l.at, coalesce(
        (SELECT i.idx + 1 FROM session_index AS i WHERE i.session = l.session AND i.position <= a.position
         ORDER BY i.idx DESC LIMIT 1), s.first_index)
    FROM absorbed AS a CROSS JOIN log AS l ON l.position > a.position JOIN session AS s ON s.session = l.session
    ORDER BY l.position
"""


def _take_place(connection: sqlite3.Connection, tail: Tail, index: int, position: int) -> None:
    """Put the next event of a session into its tail. Its place is the next one, whatever a damaged index says.

    Only when the event is whole is its index believed: then the tail begins there, or events before it are missing,
    whose places are held free, by position 0.
    """
    places, last = tail.positions, tail.positions[-1] if tail.positions else 0
    missing = index - tail.first - len(places)
    if missing and _is_whole(connection, position):
        if not places:
            tail.first = index
        elif 0 < missing < position - last:
            places.extend([0] * missing)
    places.append(position)


def _is_whole(connection: sqlite3.Connection, position: int) -> bool:
    row = connection.execute(
        "SELECT s.id, l.idx, l.at, t.name, l.turn_id, l.key, CAST(l.data AS BLOB), l.checksum FROM log AS l"
        " JOIN session AS s ON s.session = l.session JOIN event_type AS t ON t.type = l.type WHERE l.position = ?",
        (position,),
    ).fetchone()
    if row is None:
        return False
    session_id, index, at_us, type_, turn_id, key, data, digest = row
    text = data.decode(errors="replace")
    return bool(checksum(position, session_id, index, at_us, type_, turn_id, key, text) == digest)


def absorbed_head(connection: sqlite3.Connection, session_key: int) -> tuple[int, int]:
    """(next index, time of the last event) of a session that has no unabsorbed event."""
    row = connection.execute(LAST_IN_INDEX, (session_key,)).fetchone()
    if row is None:
        row = connection.execute(
            "SELECT first_index, started_at FROM session WHERE session = ?", (session_key,)
        ).fetchone()
    return int(row[0]), int(row[1])


# An entry counts even if its event is gone: the index of a lost event must not be given out again.
LAST_IN_INDEX = """
    SELECT i.idx + 1, coalesce(l.at, s.started_at)
    FROM session_index AS i JOIN session AS s ON s.session = i.session LEFT JOIN log AS l ON l.position = i.position
    WHERE i.session = ? ORDER BY i.idx DESC LIMIT 1
"""


def insert_session(connection: sqlite3.Connection, key: int | None, info: SessionInfo, started_at_us: int) -> None:
    """Make a session's row; its first event, in the same transaction, fills in the rest by trigger."""
    auth = None if info.auth is None else encode_json(info.auth).decode()
    connection.execute(
        "INSERT INTO session (session, id, agent, project, channel_id, mode, purpose, auth, started_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (key, info.id, info.agent, info.project, info.channel_id, info.mode, info.purpose, auth, started_at_us),
    )


def info_at_start(session_id: str, started: SessionStarted) -> SessionInfo:
    """A session's info from its first event's data; the commit fills in the times."""
    return SessionInfo(
        id=session_id,
        agent=started.agent,
        project=started.project_id,
        channel_id=started.channel_id,
        mode=started.mode,
        purpose=started.purpose,
        auth=started.auth,
        title=started.title,
        sdk_agent_id=started.sdk_agent_id,
        abs=started.abs,
        continuation_token=started.continuation_token,
        next_index=0,
        status="active",
        started_at=as_time(0),
        updated_at=as_time(0),
    )


def as_time(us: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime."""
    try:
        return EPOCH + timedelta(microseconds=us)
    except OverflowError:  # of a damaged row, which must not hide the others
        return datetime.max.replace(tzinfo=UTC) if us > 0 else datetime.min.replace(tzinfo=UTC)
