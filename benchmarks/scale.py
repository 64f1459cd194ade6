"""Many of everything: 10,000 sessions, 1,000 hooks and 100 extensions, of which an event matches one.

The cost of an event is to grow with those that it matches, and not with those that are there. So each figure is held
against the same with the few. The hooks that do not match listen to another type, the extensions are granted other
projects. Not measured: a thousand hooks that all match, which is a thousand calls an event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eventlog import DeliveryPolicy, Event, HookContext, Runtime, define_hook
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.durable import CAPACITY, SETTLED_WITHIN_S, write_extension
from eventlog.bench.durable import handlers as durable_handlers
from eventlog.bench.measuring import seconds, warm
from eventlog.bench.observe import Counting
from eventlog.bench.workload import TYPE, Appender

EVENTS, DELIVERED = 20_000, 5_000
MANY_SESSIONS, MANY_HOOKS, MANY_EXTENSIONS = 10_000, 1_000, 100
OTHER_TYPE = "artifact.tagged"

FEW_SESSIONS, ONE_HOOK, ONE_EXTENSION = "1,000 sessions", "1 hook", "1 extension"

FIGURES = (
    Figure(FEW_SESSIONS, "events/s", "256 tasks append to them in turn"),
    Figure("10,000 sessions", "events/s", "the same", FEW_SESSIONS),
    Figure(ONE_HOOK, "events/s", "from append until it was called with the last event"),
    Figure("1,000 hooks", "events/s", "the same, 999 of them listen to another type", ONE_HOOK),
    Figure(ONE_EXTENSION, "events/s", "from append until all deliveries are settled"),
    Figure("100 extensions", "events/s", "the same, 99 of them are granted other projects", ONE_EXTENSION),
)


async def measure(run: Run) -> None:
    """One round."""
    for name, sessions in ((FEW_SESSIONS, run.sessions), ("10,000 sessions", run.scaled(MANY_SESSIONS))):
        run.note(name, await _appended(run, sessions))
    for name, hooks in ((ONE_HOOK, 1), ("1,000 hooks", run.scaled(MANY_HOOKS))):
        run.note(name, await _observed(run, hooks))
    for name, extensions in ((ONE_EXTENSION, 1), ("100 extensions", run.scaled(MANY_EXTENSIONS))):
        run.note(name, await _delivered(run, extensions))


async def _appended(run: Run, sessions: int) -> float:
    events = run.scaled(EVENTS)
    async with warm(run, sessions=sessions) as appender:
        return events / await seconds(lambda: appender.many(events))


async def _observed(run: Run, hooks: int) -> float:
    matching, events = Counting(), run.scaled(EVENTS)

    async def other(event: Event[object], context: HookContext) -> None:
        raise AssertionError("nobody appends what it listens to")

    async def append_and_wait() -> None:
        await appender.many(events)
        await matching.reached()

    async with warm(run) as appender:
        runtime = Runtime(appender.log)
        runtime.add_hook("matching", define_hook(events={TYPE: matching}))
        for number in range(hooks - 1):
            runtime.add_hook(f"other_{number}", define_hook(events={OTHER_TYPE: other}))
        async with runtime:
            matching.expect(events)
            return events / await seconds(append_and_wait)


async def _delivered(run: Run, extensions: int) -> float:
    events = run.scaled(DELIVERED)

    async with warm(run, turns=True) as appender, _serving(run, appender, extensions) as runtime:

        async def append_and_wait() -> None:
            await appender.many(events)
            await runtime.settled(SETTLED_WITHIN_S)

        return events / await seconds(append_and_wait)


@asynccontextmanager
async def _serving(run: Run, appender: Appender, extensions: int) -> AsyncIterator[Runtime]:
    policy = DeliveryPolicy(capacity=CAPACITY)
    with run.a_folder() as folder, durable_handlers(lambda event: None):
        async with Runtime(appender.log, policy=policy) as runtime:
            for number in range(extensions):
                project = "default" if number == 0 else f"project_{number}"
                await runtime.extensions.install(write_extension(folder / f"bench-{number}"), [project])
            yield runtime


SCALE = Subject("scale", __doc__, FIGURES, measure)
