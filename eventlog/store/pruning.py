"""Retention: whole finished sessions go, and the deltas of finished turns, in bounded transactions.

Owner of the tables `removed` and `floor`. A range is written in the very commit that removes its events, and so is the
gap of a hook that had not been shown them. Indexes stay as they were. What is removed has been absorbed by the session
index before, so that nothing of it is in the owner's memory.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from eventlog.events import TYPE_KEYS
from eventlog.store import folded, reminders, unfinished
from eventlog.store.cursors import miss
from eventlog.store.database import in_transaction
from eventlog.store.events import Events
from eventlog.store.gate import gate
from eventlog.store.space import used_bytes

CHUNK_EVENTS = 2_000
"""Removed in one transaction, between which appends go on."""
SCANNED_ROWS = 20_000
"""Looked at in one read."""

_ENDS = frozenset({TYPE_KEYS["turn.completed"], TYPE_KEYS["turn.failed"]})
_DELTAS = {
    TYPE_KEYS["message.appended"]: TYPE_KEYS["message.completed"],
    TYPE_KEYS["reasoning.appended"]: TYPE_KEYS["reasoning.completed"],
}
"""Each with the type of the event in which its text stands."""
_TEXTS = frozenset(_DELTAS.values())


# ------------------------------------------------------------------------------------------------- whole sessions


@dataclass(frozen=True)
class Rules:
    """What goes: each session that ended before a time, and the oldest ones while there is more than is kept."""

    ended_before_us: int | None = None
    keep_events: int | None = None
    keep_bytes: int | None = None


@dataclass(frozen=True)
class Due:
    """Finished sessions, the oldest first: `must` go, `may` go while the file is too large, `owed` have to stay."""

    must: list[int]
    may: list[int]
    owed: int
    events: int
    """In those that must go."""


@dataclass(frozen=True)
class Removed:
    """What one transaction did, and the sessions that are `left` to do. `enough`: the file is small now."""

    left: list[int]
    sessions: int
    events: int
    enough: bool


def sessions_due(connection: sqlite3.Connection, rules: Rules, agents: Sequence[str]) -> Due:
    """Which sessions the rules take; `agents` are served now, and what their hooks have not finished is owed."""
    excess = 0
    if rules.keep_events is not None:
        excess = int(connection.execute("SELECT count(*) FROM log").fetchone()[0]) - rules.keep_events
    must: list[int] = []
    may: list[int] = []
    owed = events = 0
    for key, last, last_at, count in connection.execute(_ENDED).fetchall():
        too_old = rules.ended_before_us is not None and last_at < rules.ended_before_us
        if not too_old and excess <= 0 and rules.keep_bytes is None:
            continue
        if _is_owed(connection, key, last, agents):
            owed += 1
        elif too_old or excess > 0:
            must.append(key)
            excess -= count
            events += count
        else:
            may.append(key)
    return Due(must, may, owed, events)


def remove_sessions(
    connection: sqlite3.Connection, events: Events, keys: Sequence[int], keep_bytes: int | None, agents: Sequence[str]
) -> Removed:
    """Remove the events of these sessions, up to a chunk of them, in one transaction.

    A session that is longer than a chunk loses its beginning. One that is not finished any more, or is owed, stays.
    """
    going = [key for key in keys if key not in events.unabsorbed]  # else it was appended to meanwhile
    removed = in_transaction(connection, _remove, going, keep_bytes, agents, events.clock.now_us())
    events.removals += bool(removed.events)
    return removed


def _remove(
    connection: sqlite3.Connection, keys: list[int], keep_bytes: int | None, agents: Sequence[str], now_us: int
) -> Removed:
    done = gone = 0
    positions: list[int] = []
    enough = False
    with gate(connection, "prune"):
        for key in keys:
            room = CHUNK_EVENTS - len(positions)
            enough = keep_bytes is not None and used_bytes(connection) <= keep_bytes
            if enough or room <= 0:
                break
            beginning = _beginning(connection, key, room, agents)
            there = sorted(position for _, position in beginning if position is not None)
            if beginning:
                miss(connection, there, now_us)
                _take_out(connection, key, beginning[-1][0], there, now_us)
            positions += there
            if len(beginning) == room:
                break  # there may be more of it
            done += 1
            gone += bool(beginning)
        positions.sort()
        _note(connection, positions, now_us)
        if positions:
            connection.execute("UPDATE floor SET position = max(position, ?)", (positions[-1] + 1,))
    return Removed(keys[done:], gone, len(positions), enough)


# A finished session by its last event, if that is absorbed; those that were pruned have no entry in the index.
_ENDED = """
    WITH ended AS (
        SELECT s.session, (SELECT i.position FROM session_index AS i WHERE i.session = s.session
                           ORDER BY i.idx DESC LIMIT 1) AS last
        FROM session AS s WHERE s.status IN ('completed', 'failed')
    )
    SELECT e.session, e.last, l.at, (SELECT count(*) FROM session_index AS i WHERE i.session = e.session)
    FROM ended AS e JOIN log AS l ON l.position = e.last
    WHERE e.last <= (SELECT position FROM absorbed)
    ORDER BY e.last
"""

# What an extension may still be given, dead letters among it; what has not ended in it; what a hook is being shown.
_OWED = """
    SELECT EXISTS (SELECT 1 FROM delivery WHERE session = :session)
        OR EXISTS (SELECT 1 FROM job WHERE session = :session AND status IN ('queued', 'running'))
        OR EXISTS (SELECT 1 FROM reminder WHERE session = :session AND state = 'pending')
        OR EXISTS (SELECT 1 FROM hook AS h JOIN session AS s ON s.session = :session
                   WHERE h.loaded = 1 AND h.cursor < :last AND (s.agent IS NULL OR s.agent = h.agent)
                     AND h.agent IN (SELECT value FROM json_each(:agents)))
"""


def _is_owed(connection: sqlite3.Connection, key: int, last: int, agents: Sequence[str]) -> bool:
    bound = {"session": key, "last": last, "agents": msgspec.json.encode(agents).decode()}
    return bool(connection.execute(_OWED, bound).fetchone()[0])


def _beginning(
    connection: sqlite3.Connection, key: int, limit: int, agents: Sequence[str]
) -> list[tuple[int, int | None]]:
    """(index, position) of a session's first events, if it may still go; the position is None of one that is lost."""
    row = connection.execute(
        "SELECT i.position FROM session AS s JOIN session_index AS i ON i.session = s.session"
        " WHERE s.session = ? AND s.status IN ('completed', 'failed') ORDER BY i.idx DESC LIMIT 1",
        (key,),
    ).fetchone()
    if row is None or _is_owed(connection, key, row[0], agents):
        return []
    return connection.execute(
        "SELECT i.idx, l.position FROM session_index AS i"
        " LEFT JOIN log AS l ON l.position = i.position AND l.session = i.session AND l.idx = i.idx"
        " WHERE i.session = ? ORDER BY i.idx LIMIT ?",
        (key, limit),
    ).fetchall()


def _take_out(connection: sqlite3.Connection, key: int, last_index: int, positions: Sequence[int], now_us: int) -> None:
    """Out of the log, of its index, and of what follows from the events."""
    folded.before_pruning(connection, key, now_us)
    _delete(connection, positions)
    connection.execute("DELETE FROM session_index WHERE session = ? AND idx <= ?", (key, last_index))
    connection.execute("UPDATE session SET first_index = ? WHERE session = ?", (last_index + 1, key))
    reminders.forget(connection, key, "", now_us)  # none is pending
    unfinished.forget(connection, key, "", now_us)


# --------------------------------------------------------------------------------------------------------- deltas


def deltas_upto(connection: sqlite3.Connection, agents: Sequence[str]) -> int:
    """How far deltas may go: what the hooks of agents that are served now have not finished stays."""
    (absorbed,) = connection.execute("SELECT position FROM absorbed").fetchone()
    (cursor,) = connection.execute(
        "SELECT min(cursor) FROM hook WHERE loaded = 1 AND agent IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(agents).decode(),),
    ).fetchone()
    return int(absorbed if cursor is None else min(absorbed, cursor))


class DeltaScan:
    """Finds the deltas whose turn is over and whose text stands in a later event, page after page of the log."""

    def __init__(self) -> None:
        self.position = 0
        self._open: defaultdict[tuple[int, str], dict[int, array[int]]] = defaultdict(dict)
        self._said: defaultdict[tuple[int, str], array[int]] = defaultdict(lambda: array("q"))
        self._found = array("q")

    def look(self, connection: sqlite3.Connection, upto: int) -> bool:
        """Look at the next rows; False when there are none up to a position."""
        rows = connection.execute(_DELTA_ROWS, (self.position, upto, SCANNED_ROWS)).fetchall()
        for position, session, type_, turn_id in rows:
            turn = (session, turn_id)
            if type_ in _DELTAS:
                self._open[turn].setdefault(_DELTAS[type_], array("q")).append(position)
            elif type_ in _TEXTS and turn in self._open:
                self._said[turn] += self._open[turn].pop(type_, array("q"))
            elif type_ in _ENDS and turn in self._said:
                self._found += self._said.pop(turn)
        if rows:
            self.position = rows[-1][0]
        return len(rows) == SCANNED_ROWS

    def chunks(self, *, last: bool) -> Iterator[list[int]]:
        """What was found so far in full chunks, and at the `last` the rest."""
        while len(self._found) >= CHUNK_EVENTS or (last and self._found):
            yield sorted(self._found[:CHUNK_EVENTS])
            del self._found[:CHUNK_EVENTS]


_DELTA_ROWS = f"""
    SELECT position, session, type, turn_id FROM log
    WHERE position > ? AND position <= ? AND turn_id IS NOT NULL
      AND type IN ({",".join(map(str, sorted({*_DELTAS, *_TEXTS, *_ENDS})))})
    ORDER BY position LIMIT ?
"""


def remove_deltas(connection: sqlite3.Connection, positions: Sequence[int], now_us: int) -> int:
    """Remove these events, in the caller's transaction; returns how many of them were there."""
    bound = msgspec.json.encode(positions).decode()
    with gate(connection, "prune"):
        rows = connection.execute(
            "SELECT session, idx, position FROM log WHERE position IN (SELECT value FROM json_each(?))"
            " ORDER BY position",
            (bound,),
        ).fetchall()
        there = [position for _, _, position in rows]
        miss(connection, there, now_us)
        connection.executemany(
            "DELETE FROM session_index WHERE session = ? AND idx = ?", [(session, index) for session, index, _ in rows]
        )
        _delete(connection, there)
        _note(connection, there, now_us)
    return len(there)


# ------------------------------------------------------------------------------------------------- what both do


def _delete(connection: sqlite3.Connection, positions: Sequence[int]) -> None:
    ranges = ranges_of(positions)
    connection.executemany("DELETE FROM log WHERE position BETWEEN ? AND ?", ranges)


def _note(connection: sqlite3.Connection, positions: Sequence[int], now_us: int) -> None:
    """Write down what was removed; ranges that meet become one, or there would be a row for every event."""
    for first, last in ranges_of(positions):
        before = connection.execute(
            "SELECT first, last FROM removed WHERE first < ? ORDER BY first DESC LIMIT 1", (first,)
        ).fetchone()
        behind = connection.execute("SELECT first, last FROM removed WHERE first = ?", (last + 1,)).fetchone()
        if behind is not None:
            connection.execute("DELETE FROM removed WHERE first = ?", (behind[0],))
        upto = last if behind is None else behind[1]
        if before is not None and before[1] == first - 1:
            connection.execute("UPDATE removed SET last = ?, at = ? WHERE first = ?", (upto, now_us, before[0]))
        else:
            connection.execute("INSERT INTO removed VALUES (?, ?, ?)", (first, upto, now_us))


def ranges_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted positions as (first, last) of those that follow each other."""
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1] = (ranges[-1][0], position)
        else:
            ranges.append((position, position))
    return ranges
