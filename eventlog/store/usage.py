"""What turns used, summed up by session, model and day. Owner of the table `usage`, the rows of one projection.

Costs are added as decimal numbers, exactly, so that a sum is the same whatever the pages were.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from eventlog.events import Event, TurnCompleted
from eventlog.store.bounds import MAX_POSITION
from eventlog.store.events import ROWS_PER_STATEMENT, as_time
from eventlog.store.projections import (
    Definition,
    Page,
    Passed,
    ProjectionRow,
    Step,
    advance,
    drop,
    insert,
    join,
    page_behind,
    readable,
    row_of,
    rows,
    take_place,
)
from eventlog.store.reading import Reading

NAME = "usage"
DEFINITION = Definition(NAME, 1, ("turn.completed",), b"null")

MAX_TOKENS_PER_TURN = 2**40
"""Of one kind. A turn that claims more is passed, so that sums stay within what SQLite can hold."""

PAGE_EVENTS = 500

_NOTHING_FOLDED = ProjectionRow(0, NAME, 1, False, DEFINITION.events, b"null", 0, 0, None)

By: TypeAlias = Literal["session", "agent", "model", "day"]

_EXACT = Context(prec=1_000)  # a sum of floats needs fewer digits, whatever they are


class Usage(msgspec.Struct, frozen=True):
    """What turns used, in one session, by one agent, of one model or on one day (UTC), as `by` of the question said.

    `key` is that session's id, the agent's or the model's name, or a date such as 2026-01-31; None for sessions
    without an agent, and for turns whose model is not known. Each `turn.completed` counts, later versions of a turn
    too, because both were paid. A sum is of the turns that told the number (`measured`, `priced`); it is None, and not
    0, when no turn did.
    """

    key: str | None
    turns: int
    measured: int
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    priced: int
    cost_usd: float | None


@dataclass(slots=True)
class Totals:
    """Sums; each number belongs to the count before it."""

    turns: int = 0
    measured: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoned: int = 0
    reasoning_tokens: int = 0
    priced: int = 0
    cost_usd: Decimal = field(default_factory=Decimal)

    def add(self, other: Totals) -> None:
        """Add other sums to these."""
        self.turns += other.turns
        self.measured += other.measured
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cache_read_tokens += other.cache_read_tokens
        self.cache_write_tokens += other.cache_write_tokens
        self.reasoned += other.reasoned
        self.reasoning_tokens += other.reasoning_tokens
        self.priced += other.priced
        self.cost_usd = _EXACT.add(self.cost_usd, other.cost_usd)

    @property
    def values(self) -> tuple[Any, ...]:
        """As they are stored."""
        return (
            self.turns,
            self.measured,
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.reasoned,
            self.reasoning_tokens,
            self.priced,
            str(self.cost_usd),
        )

    def told(self, key: str | None) -> Usage:
        """As they are told: what no turn told is None."""
        measured = self.measured > 0
        return Usage(
            key=key,
            turns=self.turns,
            measured=self.measured,
            input_tokens=self.input_tokens if measured else None,
            output_tokens=self.output_tokens if measured else None,
            cache_read_tokens=self.cache_read_tokens if measured else None,
            cache_write_tokens=self.cache_write_tokens if measured else None,
            reasoning_tokens=self.reasoning_tokens if self.reasoned else None,
            priced=self.priced,
            cost_usd=float(self.cost_usd) if self.priced else None,
        )


Place: TypeAlias = tuple[str, str, str]
"""Session id, model and day of a row."""


@dataclass(slots=True)
class Tally:
    """What some turns add to the rows."""

    rows: dict[Place, Totals] = field(default_factory=dict)
    passed: list[Passed] = field(default_factory=list)

    def take(self, events: Iterable[Event[Any]]) -> None:
        """Add completed turns; those that cannot be read, or counted, are passed."""
        good, corrupt = readable(events)
        self.passed += corrupt
        for event in good:
            try:
                model, totals = _totals_of(event.data)
                place = (event.session_id, model, as_time(event.at_us).date().isoformat())
            except ValueError as error:
                self.passed.append(Passed(event.position, str(error)))
            else:
                self.rows.setdefault(place, Totals()).add(totals)


def _totals_of(turn: TurnCompleted) -> tuple[str, Totals]:
    totals = Totals(turns=1)
    usage, cost = turn.usage, turn.cost
    if usage is not None:
        counts = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        if max(*counts, usage.reasoning_tokens or 0) > MAX_TOKENS_PER_TURN:
            raise ValueError(f"it claims more than {MAX_TOKENS_PER_TURN} tokens of one kind")
        totals.measured = 1
        totals.input_tokens, totals.output_tokens, totals.cache_read_tokens, totals.cache_write_tokens = counts
        if usage.reasoning_tokens is not None:
            totals.reasoned, totals.reasoning_tokens = 1, usage.reasoning_tokens
    if cost is not None:
        totals.priced, totals.cost_usd = 1, Decimal(repr(cost.total_usd))
    return ("" if cost is None else cost.model), totals


# -- the rows ---------------------------------------------------------------------------------------------------------

_SUMS = (
    "turns, measured, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoned, reasoning_tokens,"
    " priced, cost_usd"
)


def _add(connection: sqlite3.Connection, projection: int, tally: Tally) -> None:
    """Two statements for many rows, because after each one the thread waits for the interpreter."""
    places = list(tally.rows)
    for start in range(0, len(places), ROWS_PER_STATEMENT):
        part = places[start : start + ROWS_PER_STATEMENT]
        wanted = [value for place in part for value in place]
        values: list[Any] = []
        for session, session_id, model, day, *sums in connection.execute(_known(len(part)), (*wanted, projection)):
            totals = tally.rows[session_id, model, day]
            if sums[0] is not None:
                totals.add(_stored(tuple(sums)))
            values += (projection, session, model, day, *totals.values)
        connection.execute(_put(len(part)), values)


@cache
def _known(places: int) -> str:
    """The keys of the sessions of so many places, and the sums that are stored for them."""
    return f"""
        WITH place (session_id, model, day) AS (VALUES {",".join(["(?,?,?)"] * places)})
        SELECT s.session, p.session_id, p.model, p.day, {_SUMS} FROM place AS p
        CROSS JOIN session AS s ON s.id = p.session_id
        LEFT JOIN usage AS u ON u.projection = ? AND u.session = s.session AND u.model = p.model AND u.day = p.day
    """


@cache
def _put(places: int) -> str:
    return (
        f"INSERT OR REPLACE INTO usage (projection, session, model, day, {_SUMS})"
        f" VALUES {','.join(['(?,?,?,?,?,?,?,?,?,?,?,?,?,?)'] * places)}"
    )


def _stored(row: tuple[Any, ...]) -> Totals:
    totals = Totals(*row)
    totals.cost_usd = Decimal(row[-1])
    return totals


_KEYS: dict[By, str] = {"session": "s.id", "agent": "s.agent", "model": "nullif(u.model, '')", "day": "u.day"}


def summed(
    connection: sqlite3.Connection,
    reading: Reading,
    by: By,
    project: str | None = None,
    purpose: str | None = None,
) -> list[Usage]:
    """The sums of everything in the log, by key; what the rows do not have yet is added to them here."""
    groups: dict[str | None, Totals] = {}
    found = connection.execute(
        f"SELECT {_KEYS[by]}, {', '.join(f'u.{name}' for name in _SUMS.split(', '))}"
        " FROM projection AS p JOIN usage AS u ON u.projection = p.projection"
        " JOIN session AS s ON s.session = u.session WHERE p.name = ? AND p.serves = 1"
        " AND (? IS NULL OR s.project = ?) AND (? IS NULL OR s.purpose = ?)",
        (NAME, project, project, purpose, purpose),
    )
    for key, *sums in found.fetchall():
        groups.setdefault(key, Totals()).add(_stored(tuple(sums)))
    for key, totals in _behind(connection, reading, by, project, purpose):
        groups.setdefault(key, Totals()).add(totals)
    return [groups[key].told(key) for key in sorted(groups, key=lambda key: (key is None, key or ""))]


def _behind(
    connection: sqlite3.Connection, reading: Reading, by: By, project: str | None, purpose: str | None
) -> Iterable[tuple[str | None, Totals]]:
    """What the events behind the cursor add: a reader cannot wait for the process that would fold them."""
    serving = next((row for row in rows(connection, NAME) if row.serves), None)
    tally, cursor, is_last = Tally(), 0 if serving is None else serving.cursor, False
    while not is_last:
        row = msgspec.structs.replace(serving or _NOTHING_FOLDED, cursor=cursor)
        page = page_behind(connection, reading, row, PAGE_EVENTS, MAX_POSITION - cursor - 1)
        tally.take(page.events)
        cursor, is_last = page.upto, page.is_last
    for (session_id, model, day), totals in tally.rows.items():
        found = connection.execute(
            "SELECT agent FROM session WHERE id = ? AND (? IS NULL OR project = ?) AND (? IS NULL OR purpose = ?)",
            (session_id, project, project, purpose, purpose),
        ).fetchone()
        if found is not None:
            yield {"session": session_id, "agent": found[0], "model": model or None, "day": day}[by], totals


# -- folding ----------------------------------------------------------------------------------------------------------


def tally_of(page: Page) -> Tally:
    """What a page of completed turns adds."""
    tally = Tally()
    tally.take(page.events)
    return tally


def commit(connection: sqlite3.Connection, page: Page, tally: Tally, now_us: int) -> bool:
    """Add a page's sums and move the cursor, both or neither; False when somebody else was quicker."""
    if not advance(connection, page, Step(page.upto, b"null", tally.passed), now_us):
        return False
    _add(connection, page.row.key, tally)
    return True


def prepare(connection: sqlite3.Connection) -> None:
    """See to it that there is a row to fold into."""
    join(connection, DEFINITION)


def begin_anew(connection: sqlite3.Connection) -> int:
    """A row to fold everything into once more, beside the one that serves; its key."""
    prepare(connection)
    for row in rows(connection, NAME):
        if not row.serves:
            drop(connection, row.key)
    return insert(connection, DEFINITION, serves=False)


def catch_up(connection: sqlite3.Connection, now_us: int) -> None:
    """Fold everything that is behind, inside of the caller's transaction."""
    prepare(connection)
    reading = Reading()
    for row in rows(connection, NAME):
        if row.version == DEFINITION.version:
            _catch_up(connection, reading, row.key, now_us)


def _catch_up(connection: sqlite3.Connection, reading: Reading, key: int, now_us: int) -> None:
    is_last = False
    while not is_last and (row := row_of(connection, key)) is not None:
        page = page_behind(connection, reading, row, PAGE_EVENTS, MAX_POSITION - row.cursor - 1)
        commit(connection, page, tally_of(page), now_us)
        is_last = page.is_last


def finish(connection: sqlite3.Connection, key: int, now_us: int) -> int:
    """Let rows that were folded anew serve, in place of those that do; how many are different.

    The rows of sessions that lost events on purpose are taken over: the log does not have all of their turns any more.
    """
    catch_up(connection, now_us)
    row = row_of(connection, key)
    serving = next((other for other in rows(connection, NAME) if other.serves), None)
    if row is None or serving is None or serving.key == key:
        return 0
    incomplete = "session IN (SELECT session FROM incomplete_session)"
    connection.execute(f"DELETE FROM usage WHERE projection = ? AND {incomplete}", (key,))
    connection.execute(
        f"INSERT INTO usage SELECT ?, session, model, day, {_SUMS} FROM usage WHERE projection = ? AND {incomplete}",
        (key, serving.key),
    )
    same = f"SELECT session, model, day, {_SUMS} FROM usage WHERE projection = ?"
    (different,) = connection.execute(
        f"SELECT count(*) FROM (SELECT DISTINCT session, model, day FROM"
        f" (SELECT * FROM ({same} EXCEPT {same}) UNION ALL SELECT * FROM ({same} EXCEPT {same})))",
        (key, serving.key, serving.key, key),
    ).fetchone()
    take_place(connection, row)
    return int(different)


def forget(connection: sqlite3.Connection, session: int) -> int:
    """Remove the rows of a session; how many."""
    return connection.execute("DELETE FROM usage WHERE session = ?", (session,)).rowcount
