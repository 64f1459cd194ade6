"""Observe hooks: from append until the last of one or six hooks was called, one event at a time, and catching up.

The handlers count and await nothing. Not measured: handlers that wait, which hold up their own session only (see
`delay`), plain functions, which are called on threads, and hooks that nobody's events match (see `scale`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from eventlog import Event, HookContext, Runtime, define_hook
from eventlog.bench.limits import append_rate
from eventlog.bench.measuring import beside_bare_inserts, seconds, warm
from eventlog.bench.report import Figure
from eventlog.bench.rounds import Run, Subject
from eventlog.bench.workload import TYPE, Appender
from eventlog.observe import Handler, OnRestart

EVENTS = 50_000

R, H = "R", "H, p50"

FIGURES = (
    Figure(R, "events/s", "sqlite3 alone, executemany in groups of 256, synchronous = FULL"),
    Figure(H, "us", "one bare INSERT on aiosqlite, awaited, FULL: half of them took no longer"),
    Figure("append to 1 hook", "events/s", "256 tasks, until the hook was called with the last", R, at_least=0.6),
    Figure("append to 6 hooks", "events/s", "the same, until all six were", R, at_least=0.5),
    Figure("catching up, 1 hook", "events/s", 'on_restart="resume": what was recorded before, read', R, at_least=1.2),
    Figure("to a handler, p50", "us", "idle: from the call of append until a hook is called", H, at_most=1.3),
    Figure("to a handler, p99", "us", "99 of 100 of them took no longer"),
)


class Counting:
    """A handler that says when it was called often enough."""

    def __init__(self) -> None:
        self._left = 0
        self._reached = asyncio.Event()

    async def __call__(self, event: Event[Any], context: HookContext) -> None:
        self._left -= 1
        if not self._left:
            self._reached.set()

    def expect(self, calls: int) -> None:
        """Begin to count."""
        self._left = calls
        self._reached.clear()

    async def reached(self) -> None:
        """Wait until it was called so often."""
        await self._reached.wait()


@asynccontextmanager
async def observed(
    appender: Appender, handler: Handler, hooks: int = 1, *, on_restart: OnRestart = "skip"
) -> AsyncIterator[None]:
    """A runtime with so many hooks that share a handler."""
    runtime = Runtime(appender.log)
    for number in range(hooks):
        runtime.add_hook(f"hook_{number}", define_hook(events={TYPE: handler}, on_restart=on_restart))
    async with runtime:
        yield


async def measure(run: Run) -> None:
    """One round."""
    events = run.scaled(EVENTS)
    run.note(R, append_rate(run.folder, events, "full"))
    run.note("append to 1 hook", await _rate(run, events, 1))
    run.note("append to 6 hooks", await _rate(run, events, 6))
    run.note("catching up, 1 hook", await _catching_up(run, events))
    await _one_at_a_time(run)


async def _rate(run: Run, events: int, hooks: int) -> float:
    handler = Counting()

    async def append_and_wait() -> None:
        await appender.many(events)
        await handler.reached()

    async with warm(run) as appender, observed(appender, handler, hooks):
        handler.expect(events * hooks)
        return events / await seconds(append_and_wait)


async def _catching_up(run: Run, events: int) -> float:
    """From the start of a runtime whose hook resumes until it was called with all that was recorded meanwhile."""
    handler = Counting()

    async with warm(run) as appender:
        async with observed(appender, handler, on_restart="resume"):
            pass
        await appender.many(events)
        handler.expect(events)
        began_s = perf_counter()
        async with observed(appender, handler, on_restart="resume"):
            await handler.reached()
            return events / (perf_counter() - began_s)


async def _one_at_a_time(run: Run) -> None:
    calls = asyncio.Queue[float]()

    async def handler(event: Event[Any], context: HookContext) -> None:
        calls.put_nowait(perf_counter())

    async def once() -> float:
        began_s = perf_counter()
        await appender.one()
        return await calls.get() - began_s

    async with warm(run) as appender, observed(appender, handler):
        ours_s, bare_s = await beside_bare_inserts(run, once, 10)
    run.note_percentiles("to a handler", ours_s, 1e6)
    run.note_percentiles("H", bare_s, 1e6)


OBSERVE = Subject("observe", __doc__, FIGURES, measure)
