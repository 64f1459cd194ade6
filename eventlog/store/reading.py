"""Pages of events and of sessions, read on a reader's connection; each page is one snapshot and is released at once."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from eventlog.events import Corrupt, Event, SessionInfo
from eventlog.store.bounds import Bounds
from eventlog.store.drafting import checksum
from eventlog.store.events import LAST_IN_INDEX, Eras, as_time, last_issued, last_position
from eventlog.store.unreadable import is_damage, past_damage

MAX_NAMES = 100_000
POSITIONS_PER_STATEMENT = 500
UNKNOWN = "unknown"
"""The type, and at worst the session, of an event that cannot be read at all; its index is -1 then."""

_FACTS = "l.type, l.turn_id, l.at, CAST(l.data AS BLOB), l.key, l.checksum"
SELECT = f"SELECT l.position, l.session, l.idx, {_FACTS}, 1 FROM log AS l"
# By the session index, an event has the place that the index gives it; where the log differs, the checksum decides.
SELECT_BY_INDEX = (
    f"SELECT l.position, i.session, i.idx, {_FACTS}, l.session = i.session AND l.idx = i.idx"
    " FROM session_index AS i CROSS JOIN log AS l ON l.position = i.position"
)

Row = tuple[Any, ...]
T = TypeVar("T")
U = TypeVar("U")


class Reading:
    """Reads for one connection; remembers the names behind the integer keys. Lives on the reader's thread."""

    def __init__(self, *, verify: bool = False) -> None:
        self._verify = verify
        self._sessions: dict[int, str] = {}
        self._types: dict[int, str] = {}
        self._eras: Eras | None = None
        self._epoch = -1

    # -- events -------------------------------------------------------------------------------------------------

    def session_page(
        self, connection: sqlite3.Connection, session_key: int, bounds: Bounds, tail: list[tuple[int, int]] | None
    ) -> list[Event[Any]]:
        """A page of one session. `tail` is what the owner knows of its unabsorbed events, None in other processes.

        An event that cannot be read comes as a corrupt one. Raises CursorExpired.
        """
        if bounds.seen_floor is not None:
            bounds.check(session_floor(connection, session_key))

        session_id = self._sessions.get(session_key) or self._session_id(connection, session_key)

        def page(bounds: Bounds) -> list[Event[Any]]:
            return self._session_page(connection, session_key, bounds, tail)

        def one(index: int) -> list[Event[Any]]:
            position = _position_of(connection, session_key, index, tail)
            found = [] if position is None else self._one(connection, position, bounds, None)
            return [msgspec.structs.replace(event, session_id=session_id, index=index) for event in found]

        try:
            return page(bounds)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            last = _last_index(connection, session_key, tail)
            return past_damage(page, one, lambda event: event.index, bounds, last)

    def _session_page(
        self, connection: sqlite3.Connection, session_key: int, bounds: Bounds, tail: list[tuple[int, int]] | None
    ) -> list[Event[Any]]:
        types, type_values = self._type_filter(connection, bounds.types)
        if types is None:
            return []
        parts = (self._indexed, self._unabsorbed)
        rows: list[Row] = []
        for part in reversed(parts) if bounds.reverse else parts:
            left = bounds.limit - len(rows)
            if left <= 0:
                break
            low, high = bounds.low, bounds.high
            if rows and bounds.reverse:
                high = rows[-1][2]
            elif rows:
                low = rows[-1][2]
            rows += part(connection, session_key, low, high, left, bounds.reverse, types, type_values, tail)
        return self._events(connection, rows)

    def _indexed(
        self,
        connection: sqlite3.Connection,
        session_key: int,
        low: int,
        high: int,
        limit: int,
        reverse: bool,
        types: str,
        type_values: list[int],
        _tail: object,
    ) -> list[Row]:
        return _fetch(
            connection,
            f"{SELECT_BY_INDEX} WHERE i.session = ? AND i.idx > ? AND i.idx < ?{types}"
            f" ORDER BY i.idx {_direction(reverse)} LIMIT ?",
            [session_key, low, high, *type_values, limit],
        )

    def _unabsorbed(
        self,
        connection: sqlite3.Connection,
        session_key: int,
        low: int,
        high: int,
        limit: int,
        reverse: bool,
        types: str,
        type_values: list[int],
        tail: list[tuple[int, int]] | None,
    ) -> list[Row]:
        if tail is None:
            return _fetch(
                connection,
                f"{SELECT} WHERE l.position > (SELECT position FROM absorbed) AND l.session = ?"
                f" AND l.idx > ? AND l.idx < ?{types} ORDER BY l.position {_direction(reverse)} LIMIT ?",
                [session_key, low, high, *type_values, limit],
            )
        places = {position: index for index, position in tail if low < index < high}
        positions = list(reversed(places) if reverse else places)
        rows: list[Row] = []
        for start in range(0, len(positions), POSITIONS_PER_STATEMENT):
            if len(rows) >= limit:
                break
            part = positions[start : start + POSITIONS_PER_STATEMENT]
            found = _fetch(
                connection,
                f"{SELECT} WHERE l.position IN ({','.join('?' * len(part))}){types}"
                f" ORDER BY l.position {_direction(reverse)} LIMIT ?",
                [*part, *type_values, limit - len(rows)],
            )
            rows += [_at_place(row, session_key, places[row[0]]) for row in found]
        return rows

    def log_page(self, connection: sqlite3.Connection, bounds: Bounds, project: str | None = None) -> list[Event[Any]]:
        """A page of the whole log, by position. An event that cannot be read comes as a corrupt one.

        Raises CursorExpired.
        """
        if bounds.seen_floor is not None:
            bounds.check(log_floor(connection))
        try:
            return self.readable_log_page(connection, bounds, project)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            events = past_damage(
                lambda bounds: self.readable_log_page(connection, bounds, project),
                lambda position: self._one(connection, position, bounds, project),
                lambda event: event.position,
                bounds,
                last_issued(connection),
            )
            return _in_their_places(connection, events)

    def readable_log_page(
        self, connection: sqlite3.Connection, bounds: Bounds, project: str | None = None
    ) -> list[Event[Any]]:
        """The same, but SQLite's error for what cannot be read."""
        types, values = self._type_filter(connection, bounds.types)
        if types is None:
            return []
        of_project = ""
        parameters: list[Any] = [bounds.low, bounds.high, *values]
        if project is not None:
            of_project = " AND l.session IN (SELECT session FROM session WHERE project = ?)"
            parameters.append(project)
        rows = _fetch(
            connection,
            f"{SELECT} WHERE l.position > ? AND l.position < ?{types}{of_project}"
            f" ORDER BY l.position {_direction(bounds.reverse)} LIMIT ?",
            [*parameters, bounds.limit],
        )
        return self._events(connection, rows)

    def _one(
        self, connection: sqlite3.Connection, position: int, bounds: Bounds, project: str | None
    ) -> list[Event[Any]]:
        """What stands at a position beside damage; what cannot be read may be of any type and any project."""
        try:
            found = self.at_positions(connection, [position])  # which looks at no neighbour, as a page does
            wanted = [event for event in found if bounds.types is None or event.type in bounds.types]
            return [event for event in wanted if project in (None, _project_of(connection, event.session_id))]
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            was_pruned = connection.execute("SELECT 1 FROM removed WHERE ? BETWEEN first AND last", (position,))
            if was_pruned.fetchone() is not None:
                return []
            era = self._current_eras(connection).of(position)
            why = Corrupt(f"it cannot be read: {error}")
            return [Event(UNKNOWN, -1, UNKNOWN, None, 0, position, era, b"", None, why)]

    def at_positions(self, connection: sqlite3.Connection, positions: Sequence[int]) -> list[Event[Any]]:
        """The events at these positions, in order; pruned ones are left out."""
        rows: list[Row] = []
        for start in range(0, len(positions), POSITIONS_PER_STATEMENT):
            part = positions[start : start + POSITIONS_PER_STATEMENT]
            marks = ",".join("?" * len(part))
            rows += _fetch(connection, f"{SELECT} WHERE l.position IN ({marks}) ORDER BY l.position", list(part))
        return self._events(connection, rows)

    # -- names --------------------------------------------------------------------------------------------------

    def _type_filter(
        self, connection: sqlite3.Connection, types: tuple[str, ...] | None
    ) -> tuple[str | None, list[int]]:
        if types is None:
            return "", []
        keys = [
            key
            for name in types
            for (key,) in connection.execute("SELECT type FROM event_type WHERE name = ?", (name,)).fetchall()
        ]
        return (f" AND l.type IN ({','.join('?' * len(keys))})", keys) if keys else (None, [])

    def _events(self, connection: sqlite3.Connection, rows: list[Row]) -> list[Event[Any]]:
        if not rows:
            return []
        eras = self._current_eras(connection)
        sessions, types = self._sessions, self._types
        events: list[Event[Any]] = []
        for position, session, index, type_key, turn_id, at_us, raw, key, digest, in_place in rows:
            name = types.get(type_key) or self._type_name(connection, type_key)
            session_id = sessions.get(session) or self._session_id(connection, session)
            era, data = eras.of(position), raw or b""  # NULL, of a damaged row
            event: Event[Any] = Event(name, index, session_id, turn_id, at_us, position, era, data, key)
            if index.__class__ is not int or at_us.__class__ is not int or _is_no_text(turn_id) or _is_no_text(key):
                event = _as_far_as_it_goes(event)
            elif (self._verify or not in_place) and (why := damage(event, digest)):
                event = msgspec.structs.replace(event, _payload=Corrupt(why))
            events.append(event)
        return events

    def _current_eras(self, connection: sqlite3.Connection) -> Eras:
        (epoch,) = connection.execute("SELECT epoch FROM epoch").fetchone()
        if self._eras is None or epoch != self._epoch:
            self._eras, self._epoch = Eras.load(connection), epoch
        return self._eras

    def _type_name(self, connection: sqlite3.Connection, key: int) -> str:
        row = connection.execute("SELECT name FROM event_type WHERE type = ?", (key,)).fetchone()
        if row is None:
            return f"unknown:{key}"
        self._types[key] = row[0]
        return str(row[0])

    def _session_id(self, connection: sqlite3.Connection, key: int) -> str:
        row = connection.execute("SELECT id FROM session WHERE session = ?", (key,)).fetchone()
        if row is None:
            return f"unknown:{key}"
        if len(self._sessions) >= MAX_NAMES:
            self._sessions.clear()
        self._sessions[key] = row[0]
        return str(row[0])


def _is_no_text(value: object) -> bool:
    return value is not None and value.__class__ is not str


def _as_far_as_it_goes(event: Event[Any]) -> Event[Any]:
    """An event of a row whose columns are not even of their types: of those nothing is believed."""
    return msgspec.structs.replace(
        event,
        index=_typed(event.index, int, -1),
        at_us=_typed(event.at_us, int, 0),
        turn_id=_typed(event.turn_id, str, None),
        key=_typed(event.key, str, None),
        _payload=Corrupt("its row is damaged"),
    )


def _typed(value: object, kind: type[T], other: U) -> T | U:
    return value if isinstance(value, kind) else other


def log_floor(connection: sqlite3.Connection) -> int:
    """The first position from which on no session was pruned."""
    return int(connection.execute("SELECT position FROM floor").fetchone()[0])


def session_floor(connection: sqlite3.Connection, session_key: int) -> int:
    """The first index of a session that was not pruned."""
    row = connection.execute("SELECT first_index FROM session WHERE session = ?", (session_key,)).fetchone()
    return 0 if row is None else int(row[0])


def damage(event: Event[Any], digest: bytes) -> str | None:
    """Why an event is not what was appended, or None when its checksum holds."""
    if isinstance(event._payload, Corrupt):
        return event._payload.why
    expected = checksum(
        event.position, event.session_id, event.index, event.at_us, event.type, event.turn_id, event.key, event.raw
    )
    return None if expected == digest else "its checksum does not match"


def _at_place(row: Row, session: int, index: int) -> Row:
    return row if row[2] == index and row[1] == session else (row[0], session, index, *row[3:-1], 0)


def _position_of(
    connection: sqlite3.Connection, session_key: int, index: int, tail: list[tuple[int, int]] | None
) -> int | None:
    """Where an event of a session is in the log, as its index or its owner knows it."""
    position = dict(tail or []).get(index)
    if position is None:
        row = connection.execute(
            "SELECT position FROM session_index WHERE session = ? AND idx = ?", (session_key, index)
        ).fetchone()
        position = None if row is None else int(row[0])
    return position or None  # 0 stands for one that is missing


def _last_index(connection: sqlite3.Connection, session_key: int, tail: list[tuple[int, int]] | None) -> int:
    (last,) = connection.execute(
        "SELECT coalesce(max(idx), -1) FROM session_index WHERE session = ?", (session_key,)
    ).fetchone()
    return max([int(last), *(index for index, _ in tail or [])])


def _project_of(connection: sqlite3.Connection, session_id: str) -> str | None:
    row = connection.execute("SELECT project FROM session WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else str(row[0])


def _in_their_places(connection: sqlite3.Connection, events: list[Event[Any]]) -> list[Event[Any]]:
    """Give events that cannot be read their session and index, as far as the session index knows them."""
    places = places_of(connection, [event.position for event in events if event.index < 0])
    return [
        msgspec.structs.replace(event, session_id=places[event.position][0], index=places[event.position][1])
        if event.index < 0 and event.position in places
        else event
        for event in events
    ]


def places_of(connection: sqlite3.Connection, positions: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Session id and index of events that may not say so themselves. It goes through the whole session index."""
    if not positions:
        return {}
    try:
        rows = connection.execute(
            "SELECT i.position, s.id, i.idx FROM session_index AS i JOIN session AS s ON s.session = i.session"
            " WHERE i.position IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(positions).decode(),),
        ).fetchall()
    except sqlite3.DatabaseError:  # it is damaged as well
        return {}
    return {position: (session_id, index) for position, session_id, index in rows}


def _direction(reverse: bool) -> str:
    return "DESC" if reverse else "ASC"


def _fetch(connection: sqlite3.Connection, sql: str, parameters: list[Any]) -> list[Row]:
    try:
        return connection.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error).lower():
            raise
        # A damaged turn id or key must not hide the rest of the page.
        connection.text_factory = lambda value: value.decode(errors="replace")
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.text_factory = str


# -- sessions -----------------------------------------------------------------------------------------------------

_SESSIONS = (
    "SELECT s.session, s.id, s.agent, s.project, s.channel_id, s.mode, s.purpose, s.auth, s.title, s.sdk_agent_id,"
    " s.abs, s.continuation_token, s.status, s.started_at, s.first_index FROM session AS s"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A session as the file has it: its key and its info."""

    key: int
    info: SessionInfo


def find_session(connection: sqlite3.Connection, session_id: str, *, absorbed: bool = False) -> Found | None:
    """One session by its id. The owner says `absorbed`: what has an unabsorbed event it has in memory."""
    row = connection.execute(f"{_SESSIONS} WHERE s.id = ?", (session_id,)).fetchone()
    if row is None:
        return None
    return _found(connection, row, {} if absorbed else _tail_ends(connection, row[0]))


def sessions_page(
    connection: sqlite3.Connection,
    after_key: int,
    prefix: str | None,
    purpose: str | None,
    project: str | None,
    limit: int,
) -> list[Found]:
    """A page of sessions in the order in which they were started."""
    where, parameters = ["s.session > ?"], [after_key]
    values: list[Any] = list(parameters)
    if prefix:
        where.append("substr(s.id, 1, ?) = ?")
        values += [len(prefix), prefix]
    for column, value in (("purpose", purpose), ("project", project)):
        if value is not None:
            where.append(f"s.{column} = ?")
            values.append(value)
    rows = connection.execute(
        f"{_SESSIONS} WHERE {' AND '.join(where)} ORDER BY s.session LIMIT ?", [*values, limit]
    ).fetchall()
    ends = _tail_ends(connection, None)
    return [_found(connection, row, ends) for row in rows]


def pruned_sessions(connection: sqlite3.Connection) -> dict[str, int]:
    """The first index that sessions can still have, by id, of those that lost their beginning."""
    return dict(connection.execute("SELECT id, first_index FROM session WHERE first_index > 0").fetchall())


def _tail_ends(connection: sqlite3.Connection, session_key: int | None) -> dict[int, tuple[int, int]]:
    """(next index, time of the last event) by session key, of the part that the index has not absorbed."""
    only = "" if session_key is None else " AND session = ?"
    rows = connection.execute(
        "SELECT session, max(idx) + 1, at FROM log WHERE position > (SELECT position FROM absorbed)"
        f"{only} GROUP BY session",
        () if session_key is None else (session_key,),
    )
    return {session: (next_index, at_us) for session, next_index, at_us in rows}


def _found(connection: sqlite3.Connection, row: Row, ends: dict[int, tuple[int, int]]) -> Found:
    key, started_at, first_index = row[0], row[13], row[14]
    next_index, updated_at = ends.get(key) or _index_end(connection, key) or (first_index, started_at)
    return Found(
        key,
        SessionInfo(
            id=row[1],
            agent=row[2],
            project=row[3],
            channel_id=row[4],
            mode=row[5],
            purpose=row[6],
            auth=_json(row[7]),
            title=row[8],
            sdk_agent_id=row[9],
            abs=_json(row[10]),
            continuation_token=row[11],
            status=row[12],
            next_index=next_index,
            started_at=as_time(started_at),
            updated_at=as_time(updated_at),
        ),
    )


def _index_end(connection: sqlite3.Connection, key: int) -> tuple[int, int] | None:
    row = connection.execute(LAST_IN_INDEX, (key,)).fetchone()
    return (row[0], row[1]) if row else None


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def sessions_with_news(connection: sqlite3.Connection, position: int) -> tuple[int, set[int]]:
    """The last position, and the keys of the sessions that have an event behind the given one."""
    rows = connection.execute("SELECT DISTINCT session FROM log WHERE position > ?", (position,)).fetchall()
    return last_position(connection), {key for (key,) in rows}
