"""What a dead owner left unfinished: open turns, their calls without a result, inputs without an answer, running jobs.

Owner of the tables `open_turn` and `open_input`, which a trigger keeps. Only reading, and never the whole log: the
turns are in a table of their own, and of each no more is read than what follows its beginning.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from eventlog.errors import CorruptEvent
from eventlog.events import TYPE_KEYS, Event
from eventlog.store.bounds import Bounds
from eventlog.store.checking import Damaged
from eventlog.store.reading import POSITIONS_PER_STATEMENT, Reading
from eventlog.store.store import Store

MAX_NAMED = 1_000
"""Turns, calls, inputs and jobs that are named one by one; beyond that, each kind is counted."""
MAX_EVENTS_READ = 50_000
"""Events of open turns that are looked through for calls, the newest of each session."""
PROVEN_EVENTS = 1_000
"""The last events of the log, which a crash would have harmed first: their checksums are proven."""

CALL_TYPES = (TYPE_KEYS["actions.requested"], TYPE_KEYS["action.result"])


class OpenTurn(msgspec.Struct, frozen=True):
    """A turn that began and did not end. `index` is that of its first `turn.started`, `position` of its last one."""

    session_id: str
    turn_id: str
    index: int
    position: int


class UnansweredCall(msgspec.Struct, frozen=True):
    """A tool call of an open turn that has no `action.result`: it may have run or not. `index` is of its request."""

    session_id: str
    turn_id: str
    call_id: str
    tool_name: str
    args: Any
    parent_call_id: str | None
    index: int
    position: int


class OpenInput(msgspec.Struct, frozen=True):
    """A question to the user that nobody answered. `index` is that of the `input.requested` that has it."""

    session_id: str
    turn_id: str
    request_id: str
    kind: str
    prompt: str
    call_id: str | None
    options: Any
    index: int
    position: int


class RunningJob(msgspec.Struct, frozen=True):
    """A background job that was started and has no result. `position` is that of its `job.started`."""

    session_id: str
    job_id: str
    name: str | None
    position: int


class Unfinished(msgspec.Struct, frozen=True):
    """All of it; `not_named` counts what is over the limit of its kind, `events_unread` what was not looked through."""

    turns: list[OpenTurn]
    calls: list[UnansweredCall]
    inputs: list[OpenInput]
    jobs: list[RunningJob]
    damaged: list[Damaged]
    deliveries: int
    reminders_due: int
    not_named: int
    events_unread: int


class UnfinishedWork:
    """What was unfinished at a position of one file: in sessions of one agent and of none, or in all for None."""

    def __init__(self, store: Store, agent: str | None, upto: int) -> None:
        self._store = store
        self._agent = agent
        self._upto = upto

    async def survey(self) -> Unfinished:
        """Name all of it; other reads go on meanwhile."""
        return await self._store.read_aside(survey, self._agent, self._upto, self._store.clock.now_us())

    async def turns(self, after: int, limit: int) -> list[OpenTurn]:
        """A page of the turns that are still open, behind a position."""
        return await self._store.read(open_turns, self._agent, self._upto, after, limit)

    async def jobs(self, after: int, limit: int) -> list[RunningJob]:
        """A page of the jobs that still run, behind a position."""
        return await self._store.read(running_jobs, self._agent, self._upto, after, limit)

    async def has(self, item: OpenTurn | RunningJob) -> bool:
        """Whether a turn or a job has not ended meanwhile."""
        return await self._store.read(_has, item)


def survey(connection: sqlite3.Connection, agent: str | None, upto: int, now_us: int) -> Unfinished:
    """What is unfinished up to a position, in sessions of this agent and of none; of every session for None."""
    look = _Look(connection, agent, upto)
    turns, calls, inputs, jobs = look.turns(), look.calls(), look.inputs(), look.jobs()
    look.prove_the_end()
    return Unfinished(
        turns=turns,
        calls=calls,
        inputs=inputs,
        jobs=jobs,
        damaged=sorted(look.damaged.values(), key=lambda each: each.position),
        deliveries=look.count("delivery AS u", "u.state = 'delivering'"),
        reminders_due=look.count("reminder AS u", "u.state = 'pending' AND u.due_at <= :now", now=now_us),
        not_named=look.not_named,
        events_unread=look.events_unread,
    )


def open_turns(connection: sqlite3.Connection, agent: str | None, upto: int, after: int, limit: int) -> list[OpenTurn]:
    """A page of turns that were begun up to a position and did not end, behind another position."""
    rows = connection.execute(
        "SELECT s.id, u.turn_id, u.idx, u.position FROM open_turn AS u JOIN session AS s ON s.session = u.session"
        f" WHERE {_OF_AGENT} AND u.position <= :upto AND u.position > :after ORDER BY u.position LIMIT :limit",
        {"agent": agent, "upto": upto, "after": after, "limit": limit},
    )
    return [OpenTurn(*row) for row in rows]


def running_jobs(
    connection: sqlite3.Connection, agent: str | None, upto: int, after: int, limit: int
) -> list[RunningJob]:
    """A page of jobs that were started up to a position, not by an import, and have no result."""
    rows = connection.execute(
        "SELECT s.id, u.job_id, u.name, u.position FROM job AS u INDEXED BY job_running"
        f" JOIN session AS s ON s.session = u.session WHERE {_OF_AGENT} AND {_RUNNING}"
        " AND u.position <= :upto AND u.position > :after ORDER BY u.position LIMIT :limit",
        {"agent": agent, "upto": upto, "after": after, "limit": limit},
    )
    return [RunningJob(*row) for row in rows]


def _has(connection: sqlite3.Connection, item: OpenTurn | RunningJob) -> bool:
    if isinstance(item, OpenTurn):
        table, id_ = "open_turn WHERE turn_id = :id", item.turn_id
    else:
        table, id_ = "job WHERE status = 'running' AND job_id = :id", item.job_id
    row = connection.execute(
        f"SELECT 1 FROM {table} AND position = :position AND session = (SELECT session FROM session WHERE id = :of)",
        {"id": id_, "position": item.position, "of": item.session_id},
    ).fetchone()
    return row is not None


_OF_AGENT = "(:agent IS NULL OR s.agent IS NULL OR s.agent = :agent)"
_RUNNING = (
    "u.status = 'running' AND NOT EXISTS (SELECT 1 FROM (SELECT last FROM imported WHERE first <= u.position"
    " ORDER BY first DESC LIMIT 1) WHERE last >= u.position)"
)


class _Look:
    """One look at the file, in one snapshot."""

    def __init__(self, connection: sqlite3.Connection, agent: str | None, upto: int) -> None:
        self._connection = connection
        self._reading = Reading(verify=True)
        self._agent = agent
        self._upto = upto
        self.damaged: dict[int, Damaged] = {}  # by position
        self.not_named = 0
        self.events_unread = 0

    def turns(self) -> list[OpenTurn]:
        found = open_turns(self._connection, self._agent, self._upto, 0, MAX_NAMED)
        if len(found) == MAX_NAMED:
            self.not_named += self.count("open_turn AS u", "u.position <= :upto") - MAX_NAMED
        return found

    def jobs(self) -> list[RunningJob]:
        found = running_jobs(self._connection, self._agent, self._upto, 0, MAX_NAMED)
        if len(found) == MAX_NAMED:
            self.not_named += self.count("job AS u", f"{_RUNNING} AND u.position <= :upto") - MAX_NAMED
        return found

    def count(self, of: str, where: str, **values: Any) -> int:
        (count,) = self._connection.execute(
            f"SELECT count(*) FROM {of} JOIN session AS s ON s.session = u.session WHERE {_OF_AGENT} AND {where}",
            {"agent": self._agent, "upto": self._upto, **values},
        ).fetchone()
        return int(count)

    # -- calls --------------------------------------------------------------------------------------------------

    def calls(self) -> list[UnansweredCall]:
        """Requests of open turns without a result: results take away what requests before them brought."""
        open_now = {(turn.session_id, turn.turn_id) for turn in self._all_turns()}
        asked = _Asked()
        for event in self._events(sorted(self._positions())):
            if event.type == "action.result":
                asked.answer(event)
            else:
                asked.note(event, is_open=(event.session_id, event.turn_id) in open_now)
        return self._named(asked.unanswered())

    def _all_turns(self) -> Iterator[OpenTurn]:
        after = 0
        while page := open_turns(self._connection, self._agent, self._upto, after, MAX_NAMED):
            yield from page
            after = page[-1].position

    def _positions(self) -> set[int]:
        """Where requests and results of sessions with an open turn are, from the first such turn of each on."""
        of_agent = f"JOIN session AS s ON s.session = u.session WHERE {_OF_AGENT} AND u.position <= :upto"
        values = {"agent": self._agent, "upto": self._upto}
        firsts = self._connection.execute(
            f"SELECT u.session, min(u.idx) FROM open_turn AS u {of_agent} GROUP BY u.session", values
        ).fetchall()
        found: set[int] = set()
        left = MAX_EVENTS_READ
        for session, first in firsts:
            left -= self._absorbed(session, first, left, found)
        tail = self._connection.execute(
            "SELECT position FROM log WHERE position > (SELECT position FROM absorbed) AND position <= :upto"
            f" AND type IN {CALL_TYPES} AND session IN (SELECT u.session FROM open_turn AS u {of_agent})",
            values,
        )
        found.update(position for (position,) in tail)
        return found

    def _absorbed(self, session: int, first: int, left: int, found: set[int]) -> int:
        """Of one session, what the index has: the last `left` events at most. Returns how many were looked through."""
        (last,) = self._connection.execute(
            "SELECT max(idx) FROM session_index WHERE session = ?", (session,)
        ).fetchone()
        if last is None or last < first:
            return 0
        begin = max(first, int(last) + 1 - left)
        self.events_unread += begin - first
        rows = self._connection.execute(
            "SELECT l.position FROM session_index AS i CROSS JOIN log AS l ON l.position = i.position"
            f" WHERE i.session = ? AND i.idx >= ? AND l.position <= ? AND l.type IN {CALL_TYPES}",
            (session, begin, self._upto),
        )
        found.update(position for (position,) in rows)
        return int(last) + 1 - begin

    # -- inputs -------------------------------------------------------------------------------------------------

    def inputs(self) -> list[OpenInput]:
        rows = self._connection.execute(
            "SELECT u.position, u.request_id FROM open_input AS u JOIN session AS s ON s.session = u.session"
            f" WHERE {_OF_AGENT} AND u.position <= :upto ORDER BY u.position, u.request_id LIMIT :limit",
            {"agent": self._agent, "upto": self._upto, "limit": MAX_NAMED},
        ).fetchall()
        if len(rows) == MAX_NAMED:
            self.not_named += self.count("open_input AS u", "u.position <= :upto") - MAX_NAMED
        wanted = set(rows)
        positions = sorted({position for position, _ in rows})
        return [
            asked
            for event in self._events(positions)
            for asked in _inputs(event)
            if (asked.position, asked.request_id) in wanted
        ]

    # -- events -------------------------------------------------------------------------------------------------

    def prove_the_end(self) -> None:
        bounds = Bounds(after=self._upto - PROVEN_EVENTS, before=self._upto + 1, limit=PROVEN_EVENTS, reverse=True)
        for event in self._reading.log_page(self._connection, bounds):
            self._is_whole(event)

    def _events(self, positions: Sequence[int]) -> Iterator[Event[Any]]:
        """The undamaged ones of these events, a page in memory at a time; the others are noted."""
        for start in range(0, len(positions), POSITIONS_PER_STATEMENT):
            page = positions[start : start + POSITIONS_PER_STATEMENT]
            yield from filter(self._is_whole, self._reading.at_positions(self._connection, page))

    def _is_whole(self, event: Event[Any]) -> bool:
        try:
            _ = event.data
        except CorruptEvent as error:
            self.damaged[error.position] = Damaged(error.session_id, error.index, error.position, error.why)
            return False
        return True

    def _named(self, found: list[Any]) -> list[Any]:
        self.not_named += max(0, len(found) - MAX_NAMED)
        return found[:MAX_NAMED]


class _Asked:
    """Calls by their ids, which belong to a turn: a model counts them anew in each."""

    def __init__(self) -> None:
        self._ever: set[tuple[str, str, str | None]] = set()  # session, call, turn
        self._waiting: defaultdict[tuple[str, str], dict[str | None, UnansweredCall | None]] = defaultdict(dict)

    def note(self, event: Event[Any], *, is_open: bool) -> None:
        """A request. What a turn asked that is over is not named, and can be answered like any other."""
        for call in _calls(event):
            key = (call.session_id, call.call_id)
            self._ever.add((*key, event.turn_id))
            self._waiting[key].pop(event.turn_id, None)  # it is the newest now
            self._waiting[key][event.turn_id] = call if is_open else None

    def answer(self, event: Event[Any]) -> None:
        """A result: of its own turn's call, or where that asked no such call, of the newest one that waits."""
        key = (event.session_id, event.data.call_id)
        waiting = self._waiting.get(key, {})
        if (*key, event.turn_id) in self._ever:
            waiting.pop(event.turn_id, None)
        elif waiting:
            waiting.popitem()

    def unanswered(self) -> list[UnansweredCall]:
        """What is to be named, in the order of the log."""
        named = [call for waiting in self._waiting.values() for call in waiting.values() if call is not None]
        return sorted(named, key=lambda call: call.position)


def _calls(event: Event[Any]) -> Iterator[UnansweredCall]:
    for call in event.data.calls:
        yield UnansweredCall(
            session_id=event.session_id,
            turn_id=event.turn_id or "",
            call_id=call.call_id,
            tool_name=call.tool_name,
            args=call.args,
            parent_call_id=call.parent_call_id,
            index=event.index,
            position=event.position,
        )


def _inputs(event: Event[Any]) -> Iterator[OpenInput]:
    for asked in event.data.requests:
        yield OpenInput(
            session_id=event.session_id,
            turn_id=event.turn_id or "",
            request_id=asked.request_id,
            kind=asked.kind,
            prompt=asked.prompt,
            call_id=asked.call_id,
            options=asked.options,
            index=event.index,
            position=event.position,
        )


# ------------------------------------------------------------------------------------------- what goes with a session


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """A session's open turns and questions: what they were about is gone, so nobody can go on with them."""
    turns = connection.execute("DELETE FROM open_turn WHERE session = ?", (session,)).rowcount
    inputs = connection.execute("DELETE FROM open_input WHERE session = ?", (session,)).rowcount
    return {"openTurns": turns, "openInputs": inputs}
