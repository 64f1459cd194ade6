"""Projections: what was folded from the log, with the cursor up to which it was, both in one commit.

Owner of the tables `projection`, `projection_error` and `incomplete_session`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from eventlog.errors import CorruptEvent, InvalidName
from eventlog.events import Event, decode_json
from eventlog.store.bounds import MAX_POSITION, Bounds
from eventlog.store.events import last_position
from eventlog.store.reading import Reading

EVERY = "*"
KEPT_ERRORS = 1_000
ERROR_CHARACTERS = 2_000


class Definition(msgspec.Struct, frozen=True):
    """What a file has to know of a projection; `initial` is JSON."""

    name: str
    version: int
    events: tuple[str, ...]
    initial: bytes


class ProjectionRow(msgspec.Struct, frozen=True):
    """One fold of a projection, as far as it is; one that does not serve is being made, beside the one that does."""

    key: int
    name: str
    version: int
    serves: bool
    events: tuple[str, ...]
    state: bytes
    cursor: int
    passed: int
    stuck: str | None


class ProjectionState(msgspec.Struct, frozen=True):
    """What a projection came to by its `cursor`; `lag` is how many positions of the log it is behind.

    `passed` counts events that could not be read. `stuck` says why it does not get beyond its cursor, if so.
    """

    name: str
    version: int
    state: Any
    cursor: int
    lag: int
    passed: int
    stuck: str | None


class ProjectionError(msgspec.Struct, frozen=True):
    """What kept an event from being folded; `number` grows with each."""

    number: int
    name: str
    version: int
    position: int
    message: str
    at_us: int


class Passed(msgspec.Struct, frozen=True):
    """An event that a projection passed, because it cannot be read."""

    position: int
    why: str


class Page(msgspec.Struct, frozen=True):
    """Events behind a projection's cursor, and the position up to which these are all that it wants."""

    row: ProjectionRow
    events: list[Event[Any]]
    upto: int
    is_last: bool


class Step(msgspec.Struct, frozen=True):
    """What a page came to: the new cursor and state, what was passed, and the error at which it stopped."""

    cursor: int
    state: bytes
    passed: Sequence[Passed] = ()
    stuck: Passed | None = None


_ROWS = "SELECT projection, name, version, serves, events, CAST(state AS BLOB), cursor, passed, stuck FROM projection"


def rows(connection: sqlite3.Connection, name: str | None = None) -> list[ProjectionRow]:
    """All folds, or those of one projection, the one that serves first."""
    found = connection.execute(f"{_ROWS} WHERE ? IS NULL OR name = ? ORDER BY name, serves DESC", (name, name))
    return [_row(row) for row in found.fetchall()]


def state_of(connection: sqlite3.Connection, name: str) -> ProjectionState:
    """The state that serves; raises InvalidName when there is none of this name."""
    serving = next((row for row in rows(connection, name) if row.serves), None)
    if serving is None:
        raise InvalidName("projection", name, "no process has folded a projection of this name from this log")
    lag = max(0, last_position(connection) - serving.cursor)
    state = decode_json(serving.state)
    return ProjectionState(name, serving.version, state, serving.cursor, lag, serving.passed, serving.stuck)


def row_of(connection: sqlite3.Connection, key: int) -> ProjectionRow | None:
    """One of them by its key; None when it is gone, because another took its place."""
    row = connection.execute(f"{_ROWS} WHERE projection = ?", (key,)).fetchone()
    return None if row is None else _row(row)


def _row(row: tuple[Any, ...]) -> ProjectionRow:
    key, name, version, serves, events, state, cursor, passed, stuck = row
    types = tuple(msgspec.json.decode(events))
    return ProjectionRow(key, name, version, bool(serves), types, state, cursor, passed, stuck)


# -- which rows there are ---------------------------------------------------------------------------------------------


def join(connection: sqlite3.Connection, definition: Definition) -> None:
    """See to it that there is a row for a definition.

    A projection that is new to the file serves from its first event on. Of another version than the one that serves it
    is made beside it. Raises InvalidName when the version is known with other events or another initial state.
    """
    known = is_served = False
    for row in rows(connection, definition.name):
        is_served = is_served or row.serves
        if row.version == definition.version:
            _check_same(connection, row, definition)
            known = True
        elif not row.serves:  # a version that was given up before it was done
            drop(connection, row.key)
    if not known:
        insert(connection, definition, serves=not is_served)


def keys_of(connection: sqlite3.Connection, name: str, version: int) -> list[int]:
    """The folds of one version, the one that serves first."""
    return [row.key for row in rows(connection, name) if row.version == version]


def _check_same(connection: sqlite3.Connection, row: ProjectionRow, definition: Definition) -> None:
    if _definition(connection, row) != definition:
        why = f"version {row.version} was folded from other events or another initial state; raise its version"
        raise InvalidName("projection", definition.name, why)


def insert(connection: sqlite3.Connection, definition: Definition, *, serves: bool) -> int:
    """A row that has folded nothing so far; its key."""
    initial = definition.initial.decode()
    (key,) = connection.execute(
        "INSERT INTO projection (name, version, serves, events, initial, state) VALUES (?, ?, ?, ?, ?, ?)"
        " RETURNING projection",
        (
            definition.name,
            definition.version,
            serves,
            msgspec.json.encode(definition.events).decode(),
            initial,
            initial,
        ),
    ).fetchone()
    return int(key)


def begin_anew(connection: sqlite3.Connection, name: str) -> None:
    """Fold a projection once more, beside what serves, from the first event on. Raises InvalidName.

    A version that is being made already is what begins again: it is to take the place in any case.
    """
    found = rows(connection, name)
    if not found:
        raise InvalidName("projection", name, "no process has folded a projection of this name from this log")
    definition = _definition(connection, found[-1])
    if not found[-1].serves:
        drop(connection, found[-1].key)
    insert(connection, definition, serves=False)


def _definition(connection: sqlite3.Connection, row: ProjectionRow) -> Definition:
    (initial,) = connection.execute(
        "SELECT CAST(initial AS BLOB) FROM projection WHERE projection = ?", (row.key,)
    ).fetchone()
    return Definition(row.name, row.version, row.events, initial)


def drop(connection: sqlite3.Connection, key: int) -> None:
    """Take a row away, with what the table of usage has of it."""
    connection.execute("DELETE FROM usage WHERE projection = ?", (key,))
    connection.execute("DELETE FROM projection WHERE projection = ?", (key,))


def take_place(connection: sqlite3.Connection, row: ProjectionRow) -> None:
    """Let a row serve, in place of the one that did."""
    for other in rows(connection, row.name):
        if other.serves and other.key != row.key:
            drop(connection, other.key)
    connection.execute("UPDATE projection SET serves = 1 WHERE projection = ?", (row.key,))


# -- folding ----------------------------------------------------------------------------------------------------------


def page(
    connection: sqlite3.Connection, reading: Reading, key: int, limit_events: int, limit_positions: int
) -> Page | None:
    """The next events of a projection, of at most so many positions of the log; None when its row is gone."""
    row = row_of(connection, key)
    return None if row is None else page_behind(connection, reading, row, limit_events, limit_positions)


def page_behind(
    connection: sqlite3.Connection, reading: Reading, row: ProjectionRow, limit_events: int, limit_positions: int
) -> Page:
    """The same behind the cursor of a row that is at hand."""
    head = last_position(connection)
    upto = min(head, row.cursor + limit_positions)
    types = None if EVERY in row.events else row.events
    events: list[Event[Any]] = []
    if upto > row.cursor:
        events = reading.log_page(connection, Bounds(row.cursor, upto + 1, types, limit_events))
    if len(events) == limit_events:
        upto = events[-1].position
    return Page(row, events, max(upto, row.cursor), upto >= head)


def advance(connection: sqlite3.Connection, page: Page, step: Step, now_us: int) -> bool:
    """Write a page's state and cursor, both or neither; False, and nothing, when somebody else was quicker."""
    row = page.row
    done = connection.execute(
        "UPDATE projection SET cursor = ?, state = ?, passed = passed + ?, stuck = ?"
        " WHERE projection = ? AND cursor = ?",
        (
            step.cursor,
            step.state.decode(),
            len(step.passed),
            step.stuck and step.stuck.why[:ERROR_CHARACTERS],
            row.key,
            row.cursor,
        ),
    )
    if done.rowcount != 1:
        return False
    note(connection, row.name, row.version, [*step.passed, *filter(None, [step.stuck])], now_us)
    return True


def take_place_if_done(connection: sqlite3.Connection, page: Page, step: Step) -> None:
    """Let a row serve that has seen everything and is as far as the one that does."""
    if page.row.serves or not page.is_last or step.stuck is not None:
        return
    if all(step.cursor >= other.cursor for other in rows(connection, page.row.name) if other.serves):
        take_place(connection, page.row)


def readable(events: Iterable[Event[Any]]) -> tuple[list[Event[Any]], list[Passed]]:
    """The events whose data can be read, and those that have to be passed; there is nothing in forgotten ones."""
    good: list[Event[Any]] = []
    passed: list[Passed] = []
    for event in events:
        try:
            _ = event.data
        except CorruptEvent as error:
            passed.append(Passed(event.position, str(error)))
        else:
            if not event.is_forgotten:
                good.append(event)
    return good, passed


def note(connection: sqlite3.Connection, name: str, version: int, passed: Iterable[Passed], now_us: int) -> None:
    """Keep a record of events that could not be folded."""
    values = [(name, version, each.position, each.why[:ERROR_CHARACTERS], now_us) for each in passed]
    if not values:
        return
    connection.executemany(
        "INSERT INTO projection_error (name, version, position, message, at) VALUES (?, ?, ?, ?, ?)", values
    )
    connection.execute(
        "DELETE FROM projection_error WHERE error <= (SELECT max(error) FROM projection_error) - ?", (KEPT_ERRORS,)
    )


def errors(connection: sqlite3.Connection, name: str | None = None, limit: int = 1_000) -> list[ProjectionError]:
    """The newest records of what could not be folded, oldest first."""
    found = connection.execute(
        "SELECT error, name, version, position, message, at FROM projection_error"
        " WHERE ? IS NULL OR name = ? ORDER BY error DESC LIMIT ?",
        (name, name, min(limit, MAX_POSITION)),
    ).fetchall()
    return [ProjectionError(*row) for row in reversed(found)]


# -- what pruning and erasing leave -----------------------------------------------------------------------------------


def mark_incomplete(connection: sqlite3.Connection, session: int) -> None:
    """Note that the log has not all events of a session any more: what was folded from it stays as it is."""
    connection.execute("INSERT INTO incomplete_session (session) VALUES (?) ON CONFLICT DO NOTHING", (session,))


def forget_states(connection: sqlite3.Connection, kept: Sequence[str]) -> int:
    """Begin all projections at the first event again, but for those `kept`; how many, the ones in the making too.

    Their rows get new keys, so that a page that was read before finds no row to be written to.
    """
    gone = [row for row in rows(connection) if row.name not in kept and (row.cursor or row.stuck is not None)]
    for row in gone:
        definition = _definition(connection, row)
        drop(connection, row.key)
        insert(connection, definition, serves=row.serves)
        connection.execute("DELETE FROM projection_error WHERE name = ?", (row.name,))
    return len(gone)


def forget_errors(connection: sqlite3.Connection, session: int) -> None:
    """Remove what may quote a session's events, or pruned ones: nobody knows whose these were."""
    connection.execute(
        "DELETE FROM projection_error"
        " WHERE coalesce((SELECT session FROM log WHERE position = projection_error.position), :session) = :session",
        {"session": session},
    )
