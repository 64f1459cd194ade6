"""The log on its owner's side: what is stored, what the next draft builds on, and a draft as one statement.

Owner of the tables `log`, `session`, `event_type`, `era` and `imported`. What moves here moves on the writer's thread;
the loop reads it when it drafts a group.
"""

import sqlite3
import weakref
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from typing import Any, Protocol

from msgspec.structs import replace

from eventlog.clock import Clock
from eventlog.encoding import encode_json
from eventlog.errors import BrokenInvariant
from eventlog.events import TYPE_KEYS, Event, SessionInfo, SessionStarted, decode_json
from eventlog.store.database import transaction
from eventlog.store.drafting import (
    MAX_SESSION_TYPE,
    Append,
    Base,
    Draft,
    KnownKeys,
    checksum,
    forget_draft,
    has_keys,
)
from eventlog.store.heads import Head, Tail

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ROWS_PER_STATEMENT = 128  # each number of rows up to this has a prepared statement of its own


@cache
def insert_statement(rows: int, columns: tuple[str, ...]) -> str:
    """One INSERT of so many rows."""
    row = f"({','.join('?' * len(columns))})"
    return f"INSERT INTO log ({','.join(columns)}) VALUES {','.join([row] * rows)}"


def insert_rows(connection: sqlite3.Connection, columns: tuple[str, ...], values: list[Any]) -> None:
    """Insert rows, value after value; more than one statement's worth only inside the caller's transaction."""
    step = ROWS_PER_STATEMENT * len(columns)
    for start in range(0, len(values), step):
        part = values[start : start + step]
        connection.execute(insert_statement(len(part) // len(columns), columns), part)


class Rider(Protocol):
    """Work that rides in the commit of a group, so that it needs none of its own."""

    def ride(self, connection: sqlite3.Connection, position: int) -> None:
        """Do it, on the thread, behind the rows of the group, the last of which is at `position`.

        When it raises, all is rolled back, and the group is stored without it.
        """

    def landed(self, is_stored: bool) -> None:
        """Hear, on the loop, whether the group is stored; also when there was nothing to store, and so no ride."""


class Events:
    """What is stored, as the owner knows it; writes groups. One instance."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.eras = Eras([])
        self.position = 0  # of the last committed event
        self.types: dict[str, int] = dict(TYPE_KEYS)
        self.last_session_key = 0
        self.heads: weakref.WeakValueDictionary[str, Head] = weakref.WeakValueDictionary()
        self.unabsorbed: dict[int, Head] = {}  # by session key; keeps those heads alive
        self.unabsorbed_rows = 0
        self.last: object = None  # what moved all of the above last
        self.redrafted = 0  # groups that did not follow it
        self.imports = 0  # batches of history: they alone move a session that is not in memory
        self.removals = 0  # prunings and erasures of sessions: what was read before them is kept no more

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self, connection: sqlite3.Connection) -> None:
        """Read back what the owner keeps in memory; also after an error, when only the file knows what is stored."""
        self.position = last_position(connection)
        self.types = dict(TYPE_KEYS)
        self.types.update(connection.execute("SELECT name, type FROM event_type").fetchall())
        (self.last_session_key,) = connection.execute("SELECT coalesce(max(session), 0) FROM session").fetchone()
        self.eras = Eras.load(connection)
        self._load_tail(connection)
        self.last = object()

    def _load_tail(self, connection: sqlite3.Connection) -> None:
        heads = [reference() for reference in self.heads.valuerefs()]
        known = {head.key: head for head in heads if head is not None and head.key is not None}
        # Of a damaged file: beyond its end nothing is absorbed, or what is appended there could not be found.
        connection.execute("UPDATE absorbed SET position = ? WHERE position > ?", (self.position, self.position))
        ids: dict[int, str] = {}
        tails: dict[int, Tail] = {}
        times: dict[int, int] = {}
        for key, session_id, index, position, at_us, first in connection.execute(_UNABSORBED).fetchall():
            tail = tails.setdefault(key, Tail(first, []))
            _take_place(connection, tail, index, position)
            ids[key], times[key] = session_id, at_us
        unabsorbed: dict[int, Head] = {}
        for key, tail in tails.items():  # each is whole when it is shown: the loop reads and follows meanwhile
            head = known.get(key) or Head(ids[key])
            head.key, head.tail, head.updated_at_us = key, tail, times[key]
            head.next_index = tail.first + len(tail.positions)
            unabsorbed[key] = self.heads[ids[key]] = head
        for key, head in known.items():
            if key not in tails:
                head.tail = Tail(0, [])
                head.next_index, head.updated_at_us = absorbed_head(connection, key)
        self.unabsorbed = unabsorbed
        self.unabsorbed_rows = sum(len(tail.positions) for tail in tails.values())

    # -- one group ----------------------------------------------------------------------------------------------

    @property
    def era(self) -> str:
        """The era in which positions are issued now."""
        return self.eras.current

    def draft(self, group: list[Append], base: Base, known: KnownKeys) -> Draft:
        """A group as rows on that base, which it moves on."""
        return Draft(group, base, self, self.clock.now_us(), known)

    def commit(
        self, connection: sqlite3.Connection, group: list[Append], draft: Draft | None, rider: Rider | None = None
    ) -> list[Event[Any]]:
        """Store a group; each append then has its events or its error. What it raises is true of all of them.

        A draft that does not follow what was committed last is made anew, and so is one of events that are stored
        already: `last` is another draft then, and those behind it follow no more.
        """
        known = self._known_keys(connection, group) if has_keys(group) else {}
        if draft is None or draft.follows is not self.last or known:
            self.redrafted += 1
            forget_draft(group)
            draft = self.draft(group, Base(self), known)
        draft.follows = None  # or each draft would keep all before it
        rows = draft.position - self.position
        if len(draft.values) != rows * len(draft.columns):
            raise BrokenInvariant(f"a group of {rows} events has {len(draft.values)} values")
        if rows:
            self._write(connection, draft, rows, rider)
        return self._believe(group, draft)

    def _write(self, connection: sqlite3.Connection, draft: Draft, rows: int, rider: Rider | None) -> None:
        if rider is not None and _write_together(connection, draft, rider):
            return
        if rows <= ROWS_PER_STATEMENT and not draft.started and not draft.new_types:
            # One autocommit statement: the thread waits for the interpreter once, not four times.
            insert_rows(connection, draft.columns, draft.values)
            return
        with transaction(connection, "BEGIN IMMEDIATE"):
            _insert(connection, draft)

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
        self.last = draft  # when all of it is true, because the loop may be drafting on it
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

    def _known_keys(self, connection: sqlite3.Connection, group: list[Append]) -> KnownKeys:
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
        found: KnownKeys = {}
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


def _write_together(connection: sqlite3.Connection, draft: Draft, rider: Rider) -> bool:
    """Whether the group is stored with its rider; if not, because the rider failed, nothing is."""
    ride_failed = False
    try:
        with transaction(connection, "BEGIN IMMEDIATE"):
            _insert(connection, draft)
            ride_failed = True
            rider.ride(connection, draft.position)
            ride_failed = False
    except Exception:
        if not ride_failed:
            raise
        return False
    return True


def _insert(connection: sqlite3.Connection, draft: Draft) -> None:
    for start in draft.started.values():
        insert_session(connection, start.key, start.info, draft.now_us)
    for name, key in draft.new_types.items():
        connection.execute("INSERT INTO event_type (type, name) VALUES (?, ?)", (key, name))
    insert_rows(connection, draft.columns, draft.values)


class Eras:
    """Which era a position belongs to. Eras are only added, behind the others."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self._rows = rows  # (first position, era), oldest first
        self.current = rows[-1][1] if rows else ""
        self._current_first = rows[-1][0] if rows else 0

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> "Eras":
        """Read the eras of a file; a damaged row must not hide events."""
        rows = connection.execute("SELECT first_position, era FROM era ORDER BY first_position, began_at").fetchall()
        return cls([(first, era) for first, era in rows if isinstance(first, int) and isinstance(era, str)])

    @property
    def digest(self) -> bytes:
        """Stands for all of them."""
        return _digest_of(self._rows)

    def go_on_from(self, digest: bytes) -> bool:
        """Whether it stood for the first of them, or for all."""
        return any(_digest_of(self._rows[: count + 1]) == digest for count in range(len(self._rows)))

    def of(self, position: int) -> str:
        """The era in which a position was issued."""
        if position >= self._current_first:
            return self.current
        oldest = self._rows[0][1] if self._rows else ""  # of a damaged table, which must not hide the event
        return next((era for first, era in reversed(self._rows) if first <= position), oldest)


def _digest_of(rows: list[tuple[int, str]]) -> bytes:
    return blake2b(encode_json(rows), digest_size=8).digest()


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
    if "abs" not in changes and hasattr(data, "abs") and "abs" in decode_json(event.raw):
        changes["abs"] = None  # of all of these, only this one can be set to null
    if event.type != "session.updated":
        changes["status"] = _STATUS.get(event.type, "active")
    return replace(info, **changes)


def last_issued(connection: sqlite3.Connection) -> int:
    """The last position that was issued, as SQLite counts them apart from the log: a damaged log may show others."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    return int(row[0]) if row else 0


def last_position(connection: sqlite3.Connection) -> int:
    """The last position that was ever issued, pruned or not."""
    (found,) = connection.execute("SELECT coalesce(max(position), 0) FROM log").fetchone()
    return max(last_issued(connection), int(found))


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
    return bool(checksum(position, session_id, index, at_us, type_, turn_id, key, data) == digest)


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
