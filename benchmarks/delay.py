"""Whether hooks delay appends: two handlers that take 2 s each take turns in one session all the while.

One task awaits append after append in the other sessions: blocks of 100 in a log with these hooks and in one without a
runtime take turns, so that what slows the machine down slows both. One handler is a coroutine function that waits, the
other a plain function that blocks its thread. In "slow" they are only called in their own session; in "slow, all shown"
they are called for every event of the others too, where they return at once. Not measured: handlers that keep the loop
or the interpreter busy; nothing can be done for appends meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from eventlog import Event, HookContext, NewEvent, Runtime, define_hook
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.measuring import BLOCK, seconds, warm
from eventlog.bench.workload import TYPE, Appender
from eventlog.observe import Handler, PlainContext

SLOW_S = 2.0
SLOW_SESSION = "ses_slow"
OWN_TYPE = "artifact.tagged"

WITHOUT_P50, WITHOUT_P99 = "no hooks, p50", "no hooks, p99"

FIGURES = (
    Figure(WITHOUT_P50, "us", "one awaited append after the other, nobody looks: half of them took no longer"),
    Figure(WITHOUT_P99, "us", "99 of 100 of them took no longer"),
    Figure("slow, p50", "us", "the same beside a session where handlers take 2 s each", WITHOUT_P50),
    Figure("slow, p99", "us", "99 of 100 of them took no longer", WITHOUT_P99, at_most=1.5),
    Figure("slow, all shown, p50", "us", "the same, and both are called for each of these events too", WITHOUT_P50),
    Figure("slow, all shown, p99", "us", "99 of 100 of them took no longer", WITHOUT_P99, at_most=1.5),
)


async def waits(event: Event[Any], ctx: HookContext) -> None:
    """Hold up one session, as a call to another server would."""
    if ctx.session.id == SLOW_SESSION:
        await asyncio.sleep(SLOW_S)


def blocks(event: Event[Any], ctx: PlainContext) -> None:
    """The same on a thread."""
    if ctx.session.id == SLOW_SESSION:
        time.sleep(SLOW_S)


@asynccontextmanager
async def slowed(appender: Appender, types: Sequence[str]) -> AsyncIterator[None]:
    """Both handlers at work, with more to come than is done while this is measured."""
    runtime = Runtime(appender.log)
    handlers: dict[str, Handler] = {"waits": waits, "blocks": blocks}
    for name, handler in handlers.items():
        events = dict.fromkeys(types, handler)
        runtime.add_hook(name, define_hook(events=events))
    await runtime.start()
    try:
        session = await appender.log.start_session(SLOW_SESSION)
        await session.append_many([NewEvent(OWN_TYPE, {"kind": "note", "key": "k"})] * BLOCK)
        yield
    finally:
        await runtime.stop(0)


async def measure(run: Run) -> None:
    """One round."""
    took_s = defaultdict[str, list[float]](list)
    async with AsyncExitStack() as stack:
        logs: dict[str, Appender] = {}
        for name, types in (("no hooks", ()), ("slow", (OWN_TYPE,)), ("slow, all shown", (OWN_TYPE, TYPE))):
            appender = logs[name] = await stack.enter_async_context(warm(run))
            if types:
                await stack.enter_async_context(slowed(appender, types))
        order = list(logs.items())
        for _ in range(run.scaled(40)):
            order.append(order.pop(0))
            for name, appender in order:
                took_s[name] += [await seconds(appender.one) for _ in range(BLOCK)]
    for name, values in took_s.items():
        run.note_percentiles(name, values, 1e6)


DELAY = Subject("delay", __doc__, FIGURES, measure)
