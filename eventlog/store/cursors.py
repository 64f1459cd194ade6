"""How far each observe hook is, what it will never be shown, and what its handlers threw.

Owner of the tables `hook`, `hook_gap` and `hook_error`. A hook's cursor moves lazily; what makes it sound is that a
range is written as a gap in the very commit that moves a cursor over it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from eventlog.events import TOMBSTONE, Event
from eventlog.store.bounds import Bounds
from eventlog.store.events import last_position
from eventlog.store.reading import Reading
from eventlog.store.store import Store

KEPT_ERRORS = 10_000
COUNTED_POSITIONS = 200_000
"""A longer gap is not counted event by event: at most as many as it has positions."""
EVERY = "*"

OnRestart: TypeAlias = Literal["skip", "resume"]


@dataclass(frozen=True, slots=True)
class HookToJoin:
    """A hook as its runtime knows it; `events` are the types that it listens to, or `*`."""

    name: str
    on_restart: OnRestart
    source: str
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinedHook:
    """Its row: it is shown what lies behind `start`. `gap` is what the time before left out, if anything."""

    hook: int
    start: int
    calls: int
    errors: int
    gaps: int
    gap: Gap | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Positions `first` to `last` hold at most `at_most` events that a hook will never be shown."""

    first: int
    last: int
    at_most: int


@dataclass(frozen=True, slots=True)
class SessionGap:
    """A gap of one hook in one session."""

    hook: int
    session_id: str
    gap: Gap


@dataclass(frozen=True, slots=True)
class Thrown:
    """An error of a handler."""

    name: str
    position: int
    message: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A hook has finished everything up to a position, or was not owed it."""

    hook: int
    position: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Calls and errors of a hook, all of them: so it does no harm to write them once more."""

    hook: int
    calls: int
    errors: int


class Cursors:
    """The hooks of one agent, on their owner's side."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store = store
        self._agent = agent

    async def join(self, hooks: Sequence[HookToJoin], *, resume: bool, alone: bool) -> tuple[int, list[JoinedHook]]:
        """Bring hooks to the head in one commit, and return that head and their rows.

        What lies behind the cursor of a known hook becomes a gap: up to the head, or, with `resume`, up to what a
        "resume" hook claimed. `alone`: the agent's other hooks are not loaded any more.
        """
        return await self._store.write(_join, self._agent, hooks, resume, alone, self._store.clock.now_us())

    async def claim(self, hooks: Sequence[int], upto: int) -> None:
        """Commit that these hooks may be shown everything up to a position, and nothing of it ever again."""
        await self._store.write(_claim, hooks, upto)

    async def advance(self, finished: Sequence[Finished], counted: Sequence[Counted], thrown: Sequence[Thrown]) -> None:
        """Write down how far hooks are, what was counted and what was thrown since the last time."""
        await self._store.write(_advance, self._agent, finished, counted, thrown)

    async def leave(
        self, finished: Sequence[Finished], seen: int, cut: Sequence[SessionGap], *, for_good: bool = False
    ) -> None:
        """At an orderly stop: what hooks have not finished, and is not in `cut`, up to the last event `seen`.

        It becomes a gap of the "skip" hooks; the others resume there. `for_good`: they are not loaded any more.
        """
        await self._store.write(_leave, self._agent, finished, seen, cut, for_good, self._store.clock.now_us())

    async def page(self, after: int, limit: int) -> list[Event[Any]]:
        """Up to `limit` events behind a position that hooks are shown: imported and forgotten ones are left out.

        Fewer than `limit` says nothing about what follows, none at all says that nothing does.
        """
        return await self._store.read(_page, self._store.reading, after, limit)

    async def recorded_here(self, events: list[Event[Any]]) -> list[Event[Any]]:
        """The events without the imported and the forgotten ones."""
        return await self._store.read(_shown, events) if events else events


# -- joining ---------------------------------------------------------------------------------------------------------


def _join(
    connection: sqlite3.Connection, agent: str, hooks: Sequence[HookToJoin], resume: bool, alone: bool, now_us: int
) -> tuple[int, list[JoinedHook]]:
    head = last_position(connection)
    if alone:
        connection.execute("UPDATE hook SET loaded = 0 WHERE agent = ?", (agent,))
    counts = Counts(connection, agent)
    return head, [_join_one(connection, agent, hook, resume, head, counts, now_us) for hook in hooks]


def _join_one(
    connection: sqlite3.Connection,
    agent: str,
    hook: HookToJoin,
    resume: bool,
    head: int,
    counts: Counts,
    now_us: int,
) -> JoinedHook:
    row = connection.execute(
        "SELECT hook, cursor, claimed, calls, errors, (SELECT count(*) FROM hook_gap AS g WHERE g.hook = h.hook)"
        " FROM hook AS h WHERE agent = ? AND name = ?",
        (agent, hook.name),
    ).fetchone()
    if row is None:
        return _insert(connection, agent, hook, head)
    key, cursor, claimed, calls, errors, gaps = row
    start = head
    if resume and hook.on_restart == "resume" and claimed is not None:
        start = min(claimed, head)  # a log that lost its end issues positions again
    gap = counts.gap(cursor, start, hook.events)
    if gap is not None:
        _insert_gap(connection, key, None, gap, now_us)
    connection.execute(
        "UPDATE hook SET on_restart = ?, source = ?, events = ?, cursor = ?, claimed = ?, loaded = 1 WHERE hook = ?",
        (hook.on_restart, hook.source, _types(hook), start, _claimed(hook, start), key),
    )
    return JoinedHook(key, start, calls, errors, gaps + (gap is not None), gap)


def _insert(connection: sqlite3.Connection, agent: str, hook: HookToJoin, head: int) -> JoinedHook:
    """A new hook begins at the head."""
    (key,) = connection.execute(
        "INSERT INTO hook (agent, name, on_restart, source, events, cursor, claimed) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " RETURNING hook",
        (agent, hook.name, hook.on_restart, hook.source, _types(hook), head, _claimed(hook, head)),
    ).fetchone()
    return JoinedHook(key, head, 0, 0, 0, None)


def _types(hook: HookToJoin) -> str:
    return msgspec.json.encode(hook.events).decode()


def _claimed(hook: HookToJoin, position: int) -> int | None:
    return position if hook.on_restart == "resume" else None


def _insert_gap(connection: sqlite3.Connection, hook: int, session_id: str | None, gap: Gap, now_us: int) -> None:
    connection.execute(
        "INSERT INTO hook_gap (hook, session, first, last, at_most, at)"
        " VALUES (?, (SELECT session FROM session WHERE id = ?), ?, ?, ?, ?)",
        (hook, session_id, gap.first, gap.last, gap.at_most, now_us),
    )


def unload(connection: sqlite3.Connection, agent: str) -> int:
    """Count the hooks of an agent as not loaded any more; how many these are."""
    return connection.execute("UPDATE hook SET loaded = 0 WHERE agent = ? AND loaded = 1", (agent,)).rowcount


def gaps_to_come(connection: sqlite3.Connection) -> int:
    """How many of the hooks that the last runtimes loaded would find a gap if they joined now."""
    head, counts = last_position(connection), dict[str, Counts]()
    rows = connection.execute("SELECT agent, cursor, claimed, events FROM hook WHERE loaded = 1").fetchall()
    found = 0
    for agent, cursor, claimed, events in rows:
        start = head if claimed is None else min(claimed, head)
        of_agent = counts.setdefault(agent, Counts(connection, agent))
        found += of_agent.gap(cursor, start, msgspec.json.decode(events)) is not None
    return found


class Counts:
    """Counts the events of ranges that an agent's hooks would have been shown; each range once, whatever the hooks."""

    def __init__(self, connection: sqlite3.Connection, agent: str) -> None:
        self._connection = connection
        self._agent = agent
        self._known: dict[tuple[int, int], dict[str, Gap]] = {}

    def gap(self, cursor: int, upto: int, events: Iterable[str]) -> Gap | None:
        """The events of these types behind `cursor`, up to `upto`, without imported ones; None if there is none."""
        if cursor >= upto:
            return None
        by_type = self._known.get((cursor, upto))
        if by_type is None:
            by_type = self._known[cursor, upto] = self._count(cursor, upto)
        wanted = set(events)
        found = [gap for type_, gap in by_type.items() if type_ in wanted or EVERY in wanted or type_ == EVERY]
        if not found:
            return None
        first, last = min(gap.first for gap in found), max(gap.last for gap in found)
        return Gap(first, last, sum(gap.at_most for gap in found))

    def _count(self, cursor: int, upto: int) -> dict[str, Gap]:
        ranges = recorded_ranges(self._connection, cursor, upto)
        positions = sum(last - first + 1 for first, last in ranges)
        if positions > COUNTED_POSITIONS:
            return {EVERY: Gap(ranges[0][0], ranges[-1][1], positions)}
        by_type: dict[str, Gap] = {}
        for first, last in ranges:
            for type_, low, high, count in self._types_in(first, last):
                known = by_type.get(type_)
                by_type[type_] = Gap(known.first if known else low, high, count + (known.at_most if known else 0))
        return by_type

    def _types_in(self, first: int, last: int) -> list[tuple[str, int, int, int]]:
        return self._connection.execute(
            "SELECT t.name, min(l.position), max(l.position), count(*) FROM log AS l"
            " JOIN session AS s ON s.session = l.session JOIN event_type AS t ON t.type = l.type"
            " WHERE l.position BETWEEN ? AND ? AND (s.agent IS NULL OR s.agent = ?) AND l.data <> ? GROUP BY l.type",
            (first, last, self._agent, TOMBSTONE.decode()),  # what was forgotten is in a gap of its own
        ).fetchall()


def recorded_ranges(connection: sqlite3.Connection, cursor: int, upto: int) -> list[tuple[int, int]]:
    """What lies behind `cursor`, up to `upto`, without the imported ranges, as (first, last)."""
    ranges: list[tuple[int, int]] = []
    next_first = cursor + 1
    for first, last in _imported(connection, next_first, upto):
        if first > next_first:
            ranges.append((next_first, first - 1))
        next_first = max(next_first, last + 1)
    if next_first <= upto:
        ranges.append((next_first, upto))
    return ranges


def _imported(connection: sqlite3.Connection, first: int, last: int) -> list[tuple[int, int]]:
    return connection.execute(
        "SELECT first, last FROM imported WHERE last >= ? AND first <= ? ORDER BY first", (first, last)
    ).fetchall()


# -- while it runs, and at its end -----------------------------------------------------------------------------------


def _claim(connection: sqlite3.Connection, hooks: Sequence[int], upto: int) -> None:
    connection.executemany(
        "UPDATE hook SET claimed = ? WHERE hook = ? AND claimed < ?", [(upto, hook, upto) for hook in hooks]
    )


def _advance(
    connection: sqlite3.Connection,
    agent: str,
    finished: Sequence[Finished],
    counted: Sequence[Counted],
    thrown: Sequence[Thrown],
) -> None:
    connection.executemany(
        "UPDATE hook SET cursor = min(?, coalesce(claimed, ?)) WHERE hook = ? AND cursor < ?",
        [(each.position, each.position, each.hook, each.position) for each in finished],
    )
    connection.executemany(
        "UPDATE hook SET calls = ?, errors = ? WHERE hook = ?",
        [(each.calls, each.errors, each.hook) for each in counted],
    )
    if thrown:
        connection.executemany(
            "INSERT INTO hook_error (agent, name, position, message, at) SELECT ?, ?, ?, ?, ?"
            " WHERE NOT EXISTS (SELECT 1 FROM log WHERE position = ? AND data = ?)",  # it may quote what was forgotten
            [
                (agent, each.name, each.position, each.message, each.at_us, each.position, TOMBSTONE.decode())
                for each in thrown
            ],
        )
        connection.execute(
            "DELETE FROM hook_error WHERE error <= (SELECT max(error) FROM hook_error) - ?", (KEPT_ERRORS,)
        )


def _leave(
    connection: sqlite3.Connection,
    agent: str,
    finished: Sequence[Finished],
    seen: int,
    cut: Sequence[SessionGap],
    for_good: bool,
    now_us: int,
) -> None:
    for gap_of_session in cut:
        _insert_gap(connection, gap_of_session.hook, gap_of_session.session_id, gap_of_session.gap, now_us)
    counts = Counts(connection, agent)
    for each in finished:
        cursor, events, resumes = connection.execute(
            "SELECT max(cursor, ?), events, claimed IS NOT NULL FROM hook WHERE hook = ?", (each.position, each.hook)
        ).fetchone()
        end = cursor if resumes else max(cursor, seen)
        gap = counts.gap(cursor, end, msgspec.json.decode(events))
        if gap is not None:
            _insert_gap(connection, each.hook, None, gap, now_us)
        connection.execute(
            "UPDATE hook SET cursor = ?, claimed = iif(claimed IS NULL, NULL, ?), loaded = loaded AND ? WHERE hook = ?",
            (end, end, not for_good, each.hook),
        )


def _page(connection: sqlite3.Connection, reading: Reading, after: int, limit: int) -> list[Event[Any]]:
    while True:
        events = reading.log_page(connection, Bounds(after=after, limit=limit))
        shown = _shown(connection, events)
        if shown or not events:
            return shown
        after = events[-1].position


def _shown(connection: sqlite3.Connection, events: list[Event[Any]]) -> list[Event[Any]]:
    if not events:
        return events
    ranges = _imported(connection, events[0].position, events[-1].position)
    return [event for event in events if not (event.is_forgotten or _is_in(event.position, ranges))]


def _is_in(position: int, ranges: list[tuple[int, int]]) -> bool:
    return any(first <= position <= last for first, last in ranges)


# -- what goes from the log ------------------------------------------------------------------------------------------


def miss(connection: sqlite3.Connection, positions: Sequence[int], now_us: int) -> None:
    """Before the events at these positions go: what a hook is not known to have finished of them is a gap of it."""
    if not positions:
        return
    hooks = connection.execute("SELECT hook, agent, cursor, events FROM hook WHERE cursor < ?", (positions[-1],))
    behind = hooks.fetchall()
    if not behind:
        return
    low = min(cursor for _, _, cursor, _ in behind)
    rows = connection.execute(
        "SELECT l.position, t.name, s.agent FROM log AS l JOIN event_type AS t ON t.type = l.type"
        " JOIN session AS s ON s.session = l.session"
        " WHERE l.position IN (SELECT value FROM json_each(?)) ORDER BY l.position",
        (msgspec.json.encode([position for position in positions if position > low]).decode(),),
    ).fetchall()
    imported = _imported(connection, positions[0], positions[-1])
    for hook, agent, cursor, events in behind:
        types = set(msgspec.json.decode(events))
        missed = [
            position
            for position, type_, of_agent in rows
            if position > cursor and of_agent in (None, agent) and (type_ in types or EVERY in types)
            if not _is_in(position, imported)
        ]
        if missed:
            _insert_gap(connection, hook, None, Gap(missed[0], missed[-1], len(missed)), now_us)


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """What handlers threw at a session's events may quote them, and at pruned ones: nobody knows whose these were."""
    done = connection.execute(
        "DELETE FROM hook_error"
        " WHERE coalesce((SELECT session FROM log WHERE position = hook_error.position), :session) = :session",
        {"session": session},
    )
    return {"hookErrors": done.rowcount}
