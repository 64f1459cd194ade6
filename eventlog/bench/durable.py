"""Durable hooks: from append until the delivery's ACK is committed, and, idle, until the handler is called.

An extension of its own, whose handler returns at once, is granted the project of all sessions; what is appended is
`turn.completed`. Its queue may hold as many deliveries as are appended, which is more than the contract's 1,000. Not
measured: failures and their retries, plain functions, several extensions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter

from eventlog import DeliveryPolicy, ExtensionContext, HookCallContext, HookEnvelope, Runtime
from eventlog.bench.limits import append_rate
from eventlog.bench.measuring import beside_bare_inserts, seconds, warm
from eventlog.bench.report import Figure, percentile
from eventlog.bench.rounds import Run, Subject
from eventlog.bench.workload import Appender

EVENTS = 20_000
CAPACITY = 1_000_000
MANY_CALLS = 256
SETTLED_WITHIN_S = 120.0

R, H, H_RATE = "R", "H, p50", "H, as a rate"

FIGURES = (
    Figure(R, "events/s", "sqlite3 alone, executemany in groups of 256, synchronous = FULL"),
    Figure(H, "us", "one bare INSERT on aiosqlite, awaited, FULL: half of them took no longer"),
    Figure(H_RATE, "events/s", "so many of them in a second"),
    Figure("256 calls at once", "events/s", "256 tasks, 1,000 sessions, concurrency=256, to the ACK", R, at_least=0.45),
    Figure("16 calls at once", "events/s", "the same with the default, concurrency=16", R),
    Figure("one conversation", "events/s", "append, handler, ACK, and only then the next", H_RATE, at_least=0.45),
    Figure("to a handler, p50", "us", "idle: from the call of append until the handler is called", H, at_most=1.4),
    Figure("to a handler, p99", "us", "99 of 100 of them took no longer"),
)

MANIFEST = {
    "publisher": "eventlog",
    "name": "bench",
    "version": "1.0.0",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "on_turn"}],
}

Called = Callable[[HookEnvelope], None]
_called: list[Called] = []
"""Whom the extension tells: its folder is found by its path, so it cannot be handed a function."""


def activate(context: ExtensionContext) -> None:
    """What the extension's main.py exports."""
    called = _called[-1]

    async def on_turn(event: HookEnvelope, call: HookCallContext) -> None:
        called(event)

    context.subscriptions.append(context.hooks.register("on_turn", on_turn))


@asynccontextmanager
async def delivered(run: Run, appender: Appender, called: Called, concurrency: int = 16) -> AsyncIterator[Runtime]:
    """A runtime with the extension."""
    policy = DeliveryPolicy(capacity=CAPACITY, concurrency=concurrency)
    with run.a_folder() as folder, handlers(called):
        async with Runtime(appender.log, policy=policy) as runtime:
            await runtime.extensions.install(write_extension(folder / "bench"), ["default"])
            yield runtime


@contextmanager
def handlers(called: Called) -> Iterator[None]:
    """Extensions that are activated now tell `called`."""
    _called.append(called)
    try:
        yield
    finally:
        _called.pop()


def write_extension(folder: Path) -> Path:
    """An extension in a new folder, which is called as its folder is."""
    folder.mkdir()
    (folder / "extension.json").write_text(json.dumps({**MANIFEST, "name": folder.name}))
    (folder / "main.py").write_text("from eventlog.bench.durable import activate\n\n__all__ = ['activate']\n")
    return folder


async def measure(run: Run) -> None:
    """One round."""
    events = run.scaled(EVENTS)
    run.note(R, append_rate(run.folder, events, "full"))
    for calls in (MANY_CALLS, 16):
        run.note(f"{calls} calls at once", await _rate(run, events, calls))
    await _one_conversation(run)
    await _one_at_a_time(run)


async def _rate(run: Run, events: int, concurrency: int) -> float:
    """Events a second, from the first append until nothing is owed any more."""
    async with (
        warm(run, turns=True) as appender,
        delivered(run, appender, lambda event: None, concurrency) as runtime,
    ):

        async def append_and_wait() -> None:
            await appender.many(events)
            await runtime.settled(SETTLED_WITHIN_S)

        rate = events / await seconds(append_and_wait)
        assert not await runtime.extensions.deliveries()
        return rate


async def _one_conversation(run: Run) -> None:
    async with (
        warm(run, sessions=1, turns=True) as appender,
        delivered(run, appender, lambda event: None) as runtime,
    ):

        async def once() -> None:
            await appender.one()
            await runtime.settled(SETTLED_WITHIN_S)

        ours_s, bare_s = await beside_bare_inserts(run, lambda: seconds(once), 10)
    run.note("one conversation", 1 / percentile(ours_s, 50))
    run.note(H_RATE, 1 / percentile(bare_s, 50))


async def _one_at_a_time(run: Run) -> None:
    calls = asyncio.Queue[float]()

    async def once() -> float:
        began_s = perf_counter()
        await appender.one()
        took_s = await calls.get() - began_s
        await runtime.settled(SETTLED_WITHIN_S)
        return took_s

    async with (
        warm(run, turns=True) as appender,
        delivered(run, appender, lambda event: calls.put_nowait(perf_counter())) as runtime,
    ):
        ours_s, bare_s = await beside_bare_inserts(run, once, 10)
    run.note_percentiles("to a handler", ours_s, 1e6)
    run.note_percentiles("H", bare_s, 1e6)


DURABLE = Subject("durable", __doc__, FIGURES, measure)
