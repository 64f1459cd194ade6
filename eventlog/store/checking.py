"""Prove the file: every event's checksum, contiguous positions and indexes, the session index and the places of each
queue, SQLite's own check."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from eventlog.errors import CorruptEvent, shown
from eventlog.events import Event
from eventlog.store.bounds import Bounds
from eventlog.store.events import last_position
from eventlog.store.reading import UNKNOWN, Reading, damage, places_of
from eventlog.store.unreadable import is_damage

if TYPE_CHECKING:  # the store is what is checked
    from eventlog.store.store import Store

PAGE_EVENTS = 2_000
MAX_NAMED = 1_000  # damaged events named one by one; beyond that they are counted

Progress = Callable[[int, int], None]
Look = Callable[[sqlite3.Connection, "Report"], None]


class Damaged(msgspec.Struct, frozen=True):
    """An event that is not what was appended."""

    session_id: str
    index: int
    position: int
    why: str


class Missing(msgspec.Struct, frozen=True):
    """Positions that are neither there nor known to be pruned."""

    first: int
    last: int


@dataclass
class Report:
    """What a check found. `ok` is true only when nothing was."""

    events: int = 0
    sessions: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    damaged_count: int = 0
    missing: list[Missing] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    head: tuple[int, int] | None = None  # (proven by the head file, found), when the file is shorter

    @property
    def ok(self) -> bool:
        """Whether the whole file holds what it should."""
        return not (self.damaged_count or self.missing or self.faults or self.head)

    def first_fault(self) -> str:
        """One of the faults that were found, in words; empty when there is none."""
        for event in self.damaged:
            return f"event {event.index} of session {shown(event.session_id)}: {event.why}"
        for gap in self.missing:
            return f"positions {gap.first} to {gap.last} are missing"
        return self.faults[0] if self.faults else ""


async def check(store: Store, *, full: bool, progress: Progress | None, page_events: int = PAGE_EVENTS) -> Report:
    """Check page by page, so that appends and other readers go on meanwhile; in one process with small pages."""
    report, state = Report(), _State()
    proven = await store.read(store.proven)  # before the end is looked up: appends go on meanwhile
    end = await store.read(last_position)
    removed = await store.read(_removed_in_all)
    while state.reached < end:
        rows = await store.read(_page, state, report, end, page_events)
        if progress is not None:
            progress(min(state.reached, end), end)
        if not rows:
            break
    await store.read(_account, state, report, end + 1)
    await store.read_aside(_name_by_index, report)
    report.sessions = len(state.next_index)
    looks: dict[str, Callable[[sqlite3.Connection, Report], None]] = {
        "indexes that sessions leave out": partial(_look_at_left_out, state, removed),
        "session index": _look_at_strays,
        "length of the session index": _look_at_entries,
        "end of the session index": _look_at_ends,
        "eras": partial(_look_at_eras, store),
        "queues of extensions": _look_at_queues,
        "JSON beside the log": _look_at_json,
        "database's pages": partial(_look_at_pages, full=full),
    }
    await store.read_aside(_look_beside, looks, report)
    if proven is not None and end < proven:
        report.head = (proven, end)
    return report


class _State:
    def __init__(self) -> None:
        self.position = 0  # of the last event that was seen
        self.reached = 0  # all up to here were looked for
        self.removed = 0  # of the positions so far, those that were pruned, or of whose event nothing is believed
        self.next_index: dict[str, tuple[int, int]] = {}  # of each session, and what `removed` was at its last event
        self.left_out = 0  # indexes that sessions leave out
        self.limit = PAGE_EVENTS  # less, near to what cannot be read
        self.reading = Reading()


def _removed_in_all(connection: sqlite3.Connection) -> int | None:
    """None: it cannot be known, which is said where the ranges themselves are asked for."""
    try:
        return int(connection.execute("SELECT coalesce(sum(last - first + 1), 0) FROM removed").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None


_DIGESTS = (  # each is looked up, as a session's reader does: a page in disorder shows rows that are not found so
    "SELECT l.position, CAST(l.checksum AS BLOB) FROM json_each(?) AS p CROSS JOIN log AS l ON l.position = p.value"
)

Read = tuple[list[Event[Any]], dict[int, bytes]]


def _page(connection: sqlite3.Connection, state: _State, report: Report, end: int, limit: int) -> bool:
    """Check the next events; False when there are none. One that SQLite cannot read hides no other."""
    is_alone, before = state.limit == 1, state.reached
    try:
        behind = Bounds(before, end + 1, None, min(limit, state.limit))
        events, digests = _one(connection, state, before + 1) if is_alone else _some(connection, state, behind)
    except sqlite3.DatabaseError as error:
        _come_nearer(connection, state, report, error)
        return True
    state.limit = min(2 * state.limit, PAGE_EVENTS)
    for event in events:
        if event.position > state.position + 1:
            _account(connection, state, report, event.position)
        state.position = max(state.position, event.position)
        report.events += 1
        _check_event(event, digests.get(event.position), state, report)
        if event.type == "session.started" and event.index == 0 and not event.is_forgotten:
            _check_session(connection, event, report)
    state.reached = max(before + 1, state.position)  # rows of a damaged page may have any position
    return is_alone or bool(events)


def _some(connection: sqlite3.Connection, state: _State, bounds: Bounds) -> Read:
    return _with_digests(connection, state.reading.readable_log_page(connection, bounds))


def _one(connection: sqlite3.Connection, state: _State, position: int) -> Read:
    return _with_digests(connection, state.reading.at_positions(connection, [position]))


def _with_digests(connection: sqlite3.Connection, events: list[Event[Any]]) -> Read:
    # Backwards: to the next one SQLite goes without looking it up.
    positions = msgspec.json.encode([event.position for event in reversed(events)]).decode()
    return events, dict(connection.execute(_DIGESTS, (positions,)).fetchall())


def _come_nearer(connection: sqlite3.Connection, state: _State, report: Report, error: sqlite3.DatabaseError) -> None:
    """Read less at once, and at last pass the one event that cannot be read; raises what is no damage of a page."""
    if not is_damage(error):
        raise error
    if state.limit > 1:
        state.limit = max(1, state.limit // 8)
        return
    state.reached += 1
    _account(connection, state, report, state.reached)
    state.position = state.reached
    state.removed += 1  # its session leaves it out, in any case
    if not _removed_between(connection, report, state.position, state.position + 1):
        _found_damaged(report, Damaged(UNKNOWN, -1, state.position, f"it cannot be read: {error}"))


def _found_damaged(report: Report, damaged: Damaged) -> None:
    report.damaged_count += 1
    if len(report.damaged) < MAX_NAMED:
        report.damaged.append(damaged)


def _name_by_index(connection: sqlite3.Connection, report: Report) -> None:
    """What a damaged row says of its own place may be wrong: the session index knows it, but for the last ones."""
    places = places_of(connection, [each.position for each in report.damaged])
    report.damaged = [
        Damaged(*places.get(each.position, (each.session_id, each.index)), each.position, each.why)
        for each in report.damaged
    ]


def _account(connection: sqlite3.Connection, state: _State, report: Report, upto: int) -> None:
    """Every position between the last one seen and `upto` has to be in a removed range, as of the same snapshot."""
    before = first = state.position + 1
    for low, high in _removed_between(connection, report, first, upto):
        if low > first:
            report.missing.append(Missing(first, low - 1))
        first = max(first, high + 1)
    if first < upto:
        report.missing.append(Missing(first, upto - 1))
    state.removed += max(0, upto - before)  # missing or pruned: the sessions that had them leave them out


_UNREADABLE_RANGES = "the ranges that were pruned cannot be read, so that what they say is gone is missing here"


def _removed_between(connection: sqlite3.Connection, report: Report, first: int, upto: int) -> list[tuple[int, int]]:
    try:
        return connection.execute(
            "SELECT first, last FROM removed WHERE last >= ? AND first < ? ORDER BY first", (first, upto)
        ).fetchall()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        if _UNREADABLE_RANGES not in report.faults:
            report.faults.append(_UNREADABLE_RANGES)
        return []


def _look_at_left_out(state: _State, removed: int | None, connection: sqlite3.Connection, report: Report) -> None:
    """As many indexes as positions are gone, in all."""
    pruned = dict(connection.execute("SELECT id, first_index FROM session WHERE first_index > 0").fetchall())
    left_out = state.left_out + sum(count for id, count in pruned.items() if id not in state.next_index)
    was_still = removed == _removed_in_all(connection)  # else something was pruned while this was checked
    if was_still and not report.missing and not report.damaged_count and left_out != state.removed:
        report.faults.append(f"sessions leave out {left_out} indexes, and {state.removed} events were pruned")


_STARTED = "SELECT agent, project, channel_id, mode, purpose, started_at FROM session WHERE id = ?"


def _check_session(connection: sqlite3.Connection, event: Event[Any], report: Report) -> None:
    """What a session's row says of its start has to be what its first event says, which has a checksum."""
    try:
        row = connection.execute(_STARTED, (event.session_id,)).fetchone()
    except sqlite3.DatabaseError:
        row = None
    try:
        data = event.data
    except CorruptEvent:
        return  # named already
    said = (data.agent, data.project_id, data.channel_id, data.mode, data.purpose, event.at_us)
    if row != said:
        report.faults.append(f"the row of session {event.session_id!r} says another start than its first event")


def _check_event(event: Event[Any], digest: bytes | None, state: _State, report: Report) -> None:
    why = _why_damaged(event, digest)
    if why is not None:
        state.removed += 1  # whichever session it was of leaves it out
    else:
        expected, removed_before = state.next_index.get(event.session_id, (0, 0))
        left_out = event.index - expected
        if not 0 <= left_out <= state.removed - removed_before:
            why = f"its index should be {expected}"
        state.next_index[event.session_id] = (event.index + 1, state.removed)  # which its checksum proves
        state.left_out += left_out
    if why is not None:
        _found_damaged(report, Damaged(event.session_id, event.index, event.position, why))


def _why_damaged(event: Event[Any], digest: bytes | None) -> str | None:
    return "it is not found by its position" if digest is None else damage(event, digest)


def _look_at_queues(connection: sqlite3.Connection, report: Report) -> None:
    """A queue that skipped a place would take fewer deliveries than it may."""
    queues = connection.execute(
        "SELECT e.name, count(*), max(d.place) FROM delivery AS d JOIN extension AS e ON e.extension = d.extension"
        " WHERE d.place > 0 GROUP BY d.extension HAVING count(*) <> max(d.place)"
    ).fetchall()
    for name, count, last in queues:
        report.faults.append(f"the queue of extension {name!r} has {count} places, and the last is number {last}")


def _look_beside(connection: sqlite3.Connection, looks: dict[str, Look], report: Report) -> None:
    """At what is not the log itself; one look that a damaged page ends keeps no other from being taken."""
    for what, look in looks.items():
        try:
            look(connection, report)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            report.faults.append(f"the {what} cannot be proven: {error}")


def _look_at_pages(connection: sqlite3.Connection, report: Report, *, full: bool) -> None:
    pragma = "integrity_check" if full else "quick_check"
    for (line,) in connection.execute(f"PRAGMA {pragma}(20)").fetchall():
        if line != "ok":
            report.faults.append(str(line))


JSON_COLUMNS = (
    ("session", "auth"),
    ("session", "abs"),
    ("extension", "manifest"),
    ("hook", "events"),
    ("kv", "value"),
    ("projection", "events"),
    ("projection", "initial"),
    ("projection", "state"),
    ("snapshot", "state"),
)
"""What has to be JSON beside the log. SQLite's own check leaves CHECK constraints out where it may only read."""


def _look_at_json(connection: sqlite3.Connection, report: Report) -> None:
    for table, column in JSON_COLUMNS:
        is_bad = f"{column} IS NOT NULL AND NOT json_valid({column})"
        (bad,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {is_bad}").fetchone()
        if bad:
            report.faults.append(f"what is in {column} of {table} is not JSON in {bad} rows")


def _look_at_strays(connection: sqlite3.Connection, report: Report) -> None:
    (strays,) = connection.execute(
        "SELECT count(*) FROM session_index AS i LEFT JOIN log AS l ON l.position = i.position"
        " WHERE l.position IS NULL OR l.session <> i.session OR l.idx <> i.idx"
    ).fetchone()
    if strays:
        report.faults.append(f"{strays} entries of the session index point at other events")


def _look_at_entries(connection: sqlite3.Connection, report: Report) -> None:
    (indexed,) = connection.execute(
        "SELECT count(*) FROM session_index WHERE position <= (SELECT position FROM absorbed)"
    ).fetchone()
    (absorbed,) = connection.execute(
        "SELECT count(*) FROM log WHERE position <= (SELECT position FROM absorbed)"
    ).fetchone()
    if indexed != absorbed:
        report.faults.append(f"the session index has {indexed} entries for {absorbed} events")


def _look_at_ends(connection: sqlite3.Connection, report: Report) -> None:
    (beyond,) = connection.execute("SELECT position FROM absorbed").fetchone()
    if beyond > last_position(connection):
        report.faults.append(f"the session index claims events up to position {beyond}, which is behind the end")


def _look_at_eras(store: Store, connection: sqlite3.Connection, report: Report) -> None:
    """They are no part of an event's row, and of its id."""
    (first_era,) = connection.execute("SELECT coalesce(min(first_position), 0) FROM era").fetchone()
    if first_era != 1:
        report.faults.append("no era covers the first positions")
    if not store.eras_are_proven(connection):
        report.faults.append("the eras, which are in the ids of all events, are not those that the head file proves")
