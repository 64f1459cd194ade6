"""Somebody cancels what shows events, as a server that cancels every task it finds: nothing is shown twice, or lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.limits import ObserveLimits
from eventlog.store.cursors import Cursors
from eventlog.store.hook_lists import hook_errors, hook_gaps, hook_rows
from tests.log_kit import until
from tests.observing import PATIENCE_S, Gate, Trace, append, channel_of, dispatcher_of, hook_of, served, shown

SESSIONS, EVENTS = 10, 60


def tasks_of(dispatcher: Dispatcher) -> list[asyncio.Task[Any]]:
    """Everything that it has underway."""
    feeder = dispatcher._inbox._feeder
    return [*dispatcher._tasks, *([feeder] if feeder is not None else [])]


@pytest.mark.parametrize("seed", range(6))
async def test_r126_whatever_is_cancelled_each_event_is_shown_once(tmp_path: Path, seed: int) -> None:
    """With lanes and an inbox that fall behind all the time, so that any await of the dispatcher may be met."""
    random, trace = Random(seed), Trace()

    async def slow(event: Event[Any], _context: Any) -> None:
        trace.note("slow", event)
        for _ in range(random.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)

    def plain(event: Event[Any], _context: Any) -> None:
        trace.note("plain", event)

    hooks = {
        "first": trace.hook("first", "resume"),
        "slow": hook_of({"*": slow}),
        "plain": hook_of({"*": plain}),
        "last": trace.hook("last"),
    }
    channel = channel_of("api", {"*": trace.handler("channel")})
    limits = ObserveLimits(queue_events=20, lane_events=2, lanes_events=10, page_events=3, cursor_every_s=0.001)
    cancelled = 0
    async with served(tmp_path / "a.db", hooks, (channel,), limits) as (log, dispatcher):
        for number in range(SESSIONS):
            await log.start_session(f"s{number}")
        for _ in range(EVENTS):
            for number in range(SESSIONS):
                await append(log, f"s{number}")
                if random.random() < 0.5:
                    tasks = tasks_of(dispatcher)
                    random.choice(tasks).cancel() if tasks else None
                    cancelled += bool(tasks)
        await shown(dispatcher)
        await until(lambda: not dispatcher._threads._unfinished)
        assert await hook_gaps(log.store) == []
    assert cancelled > 100
    calls = Counter(trace.calls)
    expected = {
        (who, f"s{number}", index)
        for who in ("channel", *hooks)
        for number in range(SESSIONS)
        for index in range(EVENTS + 1)
    }
    assert set(calls) == expected
    assert max(calls.values()) == 1
    for who in ("channel", "first", "slow", "last"):  # nothing stops a plain function: the next event does not wait
        for number in range(SESSIONS):
            assert trace.indexes(who, f"s{number}") == list(range(EVENTS + 1))


async def test_cursors_are_written_on_although_that_was_cancelled(tmp_path: Path) -> None:
    trace, limits = Trace(), ObserveLimits(cursor_every_s=0.001)
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await shown(dispatcher)
        for task in tasks_of(dispatcher):
            task.cancel()
        await append(log, "s1", 5)
        await shown(dispatcher)
        async with asyncio.timeout(PATIENCE_S):
            while (await hook_rows(log.store))[0].cursor < 6:
                await asyncio.sleep(0)


async def test_r157_a_stop_while_errors_are_being_stored_stores_and_counts_each_once(tmp_path: Path) -> None:
    """A stop cancels whoever writes them down; what was being written is written all the same."""
    released, held = threading.Event(), asyncio.Event()
    busy = list[asyncio.Future[bool]]()

    async def fail(event: Event[Any], _context: Any) -> None:
        raise ValueError

    class Watched(Cursors):
        """The writer is busy before the error of the last event is stored, and stays so until the stop is underway."""

        async def advance(self, finished: Any, counted: Any, thrown: Any) -> None:
            if not busy and any(each.position == 6 for each in thrown):
                busy.append(asyncio.ensure_future(log.store.write(lambda _connection: released.wait(20))))
                await asyncio.sleep(0)  # it is on its way to the writer, before what follows
                held.set()
            await super().advance(finished, counted, thrown)

    limits = ObserveLimits(cursor_every_s=0.001)
    async with EventLog(tmp_path / "a.db") as log:
        dispatcher = dispatcher_of(log, {"h": hook_of({"*": fail})}, limits=limits)
        dispatcher._roster._cursors = Watched(log.store, "agent")
        await dispatcher.start()
        await log.start_session("s1")
        await append(log, "s1", 5)
        await held.wait()
        stopping = asyncio.create_task(dispatcher.stop())
        await until(lambda: dispatcher._cut)
        released.set()
        await stopping
        await busy[0]
        assert len(await hook_errors(log.store)) == 6
        assert [(row.calls, row.errors) for row in await hook_rows(log.store)] == [(6, 6)]


async def test_a_call_that_was_cancelled_is_an_error_of_its_hook_and_the_others_are_called(tmp_path: Path) -> None:
    trace, gate = Trace(), Gate()
    hooks = {"waits": hook_of({"*": gate.handler}), "next": trace.hook("next")}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await gate.reached.wait()
        lane = dispatcher._lanes.by_session["s1"]
        assert lane.task is not None
        lane.task.cancel()
        await shown(dispatcher)
        assert [(hook.calls, hook.errors) for hook in dispatcher.hooks] == [(1, 1), (1, 0)]
    assert trace.calls == [("next", "s1", 0)]
