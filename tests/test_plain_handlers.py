"""Handlers that are plain functions: on threads of our own, in their lane's order, and never in the way of others."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from eventlog.clock import SystemClock
from eventlog.errors import NeedsCoroutine
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.observe import PlainContext, define_channel, define_hook
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.threads import PlainThreads
from eventlog.runtime import Runtime
from eventlog.testing import ManualClock
from tests.observing import NOTE, Trace, append, hook_of, served, shown


async def turns(count: int = 20) -> None:
    """Let the loop do what is due, and threads what they are at."""
    for _ in range(count):
        await asyncio.sleep(0.001)


class Blocking:
    """A function that blocks its thread until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.running = 0
        self.released = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, *_: Any) -> str:
        with self._lock:
            self.running += 1
        self.begun.release()
        self.released.wait(30)
        with self._lock:
            self.running -= 1
        return "done"

    async def wait_for(self, count: int) -> None:
        """Return when as many have begun since the last time."""
        for _ in range(count):
            assert await asyncio.to_thread(self.begun.acquire, timeout=10)


async def test_plain_functions_run_on_our_daemon_threads_in_their_lanes_order(tmp_path: Path) -> None:
    trace, threads = Trace(), set[threading.Thread]()

    def plain(event: Event[Any], _context: Any) -> None:
        threads.add(threading.current_thread())
        trace.note("plain", event)

    hooks = {"plain": hook_of({NOTE: plain}), "async": hook_of({NOTE: trace.handler("async")})}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        for n in range(5):
            await log.start_session(f"s{n}")
            await append(log, f"s{n}", 10)
        await shown(dispatcher)
    for n in range(5):
        calls = [(index, who) for who, session_id, index in trace.calls if session_id == f"s{n}"]
        assert calls == [(index, who) for index in range(1, 11) for who in ("plain", "async")]
    assert threads
    assert all(thread.daemon and thread is not threading.main_thread() for thread in threads)


REFUSED_TO_ANY = ["host.kv", "host.files", "host.reminders", "artifacts"]
REFUSED_TO_A_CHANNEL = [*REFUSED_TO_ANY, "channel.state", "channel.set_continuation_token"]


class Looking:
    """A plain function that looks at its context and touches all that it does not get."""

    def __init__(self, refused: list[str]) -> None:
        self.seen: list[Any] = []
        self.refused: list[tuple[str, str]] = []
        self._members = refused

    def __call__(self, event: Event[Any], ctx: PlainContext) -> None:
        assert isinstance(ctx, PlainContext)
        ctx.host.otel.increment("looked")
        token = ctx.channel.continuation_token
        self.seen = [ctx.session.id, ctx.agent.name, ctx.channel.id, token, ctx.state_root, ctx.host.github]
        for member in self._members:
            with pytest.raises(NeedsCoroutine) as raised:
                attrgetter(member)(ctx)
            self.refused.append((raised.value.member, str(raised.value)))


async def test_a_plain_function_gets_what_needs_no_await_and_is_told_to_be_async_for_anything_else(
    tmp_path: Path,
) -> None:
    """R99 to R104, R111 to R113: as a hook's handler, and as a channel's."""
    of_hook, of_channel, github = Looking(REFUSED_TO_ANY), Looking(REFUSED_TO_A_CHANNEL), object()
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log, services={"github": github}) as runtime:
        runtime.add_hook("looks", define_hook(events={"turn.completed": of_hook}))
        runtime.add_channel(define_channel(id="web", events={"turn.completed": of_channel}))
        session = await log.start_session("s1", channel="web", continuation_token="t")
        await session.append("turn.completed", {}, turn_id="t1")
        await runtime.settled()
        assert [hook.errors for hook in runtime.hooks] == [0]
        assert [measured.amount.count for measured in runtime.meter.measurements() if measured.amount] == [2]
    for looking, members in ((of_hook, REFUSED_TO_ANY), (of_channel, REFUSED_TO_A_CHANNEL)):
        assert looking.seen == ["s1", "agent", "web", "t", tmp_path / "state", github]
        assert [member for member, _ in looking.refused] == members
        assert all(f"ctx.{member} " in why and "async def" in why for member, why in looking.refused)


async def test_a_plain_function_that_touches_what_it_does_not_get_is_an_error_of_its_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def keeps(event: Event[Any], ctx: PlainContext) -> None:
        ctx.host.kv.put("last", event.index)  # type: ignore[attr-defined]

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("keeps", define_hook(events={"turn.completed": keeps}))
        await (await log.start_session("s1")).append("turn.completed", {}, turn_id="t1")
        await runtime.settled()
        assert [hook.errors for hook in runtime.hooks] == [1]
    assert 'hook "keeps" handler for turn.completed threw: NeedsCoroutine: ctx.host.kv is not there for' in caplog.text


async def test_a_blocking_function_holds_up_its_session_only(tmp_path: Path) -> None:
    trace, block = Trace(), Blocking()

    def plain(event: Event[Any], _context: Any) -> None:
        if event.session_id == "s1":
            block()
        trace.note("h", event)

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: plain})}) as (log, _):
        await log.start_session("s1")
        await log.start_session("s2")
        await append(log, "s1", 2)
        await block.wait_for(1)
        await append(log, "s2", 2)
        while len(trace.calls) < 2:
            await asyncio.sleep(0.001)
        assert trace.indexes("h", "s2") == [1, 2]
        block.released.set()
    assert trace.indexes("h", "s1") == [1, 2]


async def test_as_many_functions_run_at_once_as_there_are_threads() -> None:
    threads, block = PlainThreads(ManualClock(), 3, 10, 30), Blocking()
    calls = [asyncio.create_task(threads.run(block)) for _ in range(8)]
    await block.wait_for(3)
    await turns()
    assert block.running == 3
    block.released.set()
    assert await asyncio.gather(*calls) == ["done"] * 8
    threads.close()


async def test_a_stuck_thread_is_replaced_up_to_the_ceiling_which_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    threads, block = PlainThreads(clock, 2, 5, 30), Blocking()
    calls = [asyncio.create_task(threads.run(block)) for _ in range(8)]
    await block.wait_for(2)
    clock.advance(29)
    threads.relieve()
    await turns()
    assert block.running == 2
    clock.advance(1)
    threads.relieve()
    await block.wait_for(2)
    assert block.running == 4
    clock.advance(30)
    threads.relieve()
    await block.wait_for(1)
    assert caplog.records == []
    clock.advance(30)
    threads.relieve()
    threads.relieve()
    await turns()
    assert block.running == 5
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == ["all 5 threads for plain functions are stuck: plain handlers wait"]
    block.released.set()
    assert await asyncio.gather(*calls) == ["done"] * 8
    await turns()
    assert (threads._threads, threads._stuck) == (2, 0)
    threads.close()


async def test_idle_threads_end_when_they_are_not_needed_any_more() -> None:
    threads, seen = PlainThreads(ManualClock(), 4, 8, 30), set[threading.Thread]()

    def note() -> None:
        seen.add(threading.current_thread())

    await asyncio.gather(*(threads.run(note) for _ in range(20)))
    threads.close()
    for thread in seen:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


def test_a_function_that_ends_after_its_loop_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on to the next one, or ends, without a complaint."""
    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    threads, block = PlainThreads(SystemClock(), 1, 1, 30), Blocking()

    async def begin() -> None:
        calls.append(asyncio.ensure_future(threads.run(block)))
        await block.wait_for(1)
        threads.close()

    calls: list[Any] = []
    before, loop = set(threading.enumerate()), asyncio.new_event_loop()
    loop.run_until_complete(begin())
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name.startswith("eventlog-plain")]
    calls[0]._log_destroy_pending = False  # asyncio's complaint is not what is looked at
    loop.close()
    block.released.set()
    thread.join(10)
    assert (thread.is_alive(), complaints) == (False, [])


async def test_the_setting_plain_threads_bounds_the_dispatchers_functions(tmp_path: Path) -> None:
    block = Blocking()
    limits = ObserveLimits(plain_threads=2)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: block})}, limits=limits) as (log, _):
        for n in range(5):
            await log.start_session(f"s{n}")
            await append(log, f"s{n}")
        await block.wait_for(2)
        await turns()
        assert block.running == 2
        block.released.set()


async def test_the_dispatcher_replaces_stuck_threads(tmp_path: Path) -> None:
    block, clock = Blocking(), ManualClock()
    limits = ObserveLimits(plain_threads=2, max_plain_threads=3)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: block})}, limits=limits, clock=clock) as (
        log,
        dispatcher,
    ):
        for n in range(5):
            await log.start_session(f"s{n}")
            await append(log, f"s{n}")
        await block.wait_for(2)
        clock.advance(31)
        await block.wait_for(1)
        assert dispatcher.hooks[0].stuck == 5
        block.released.set()
        while not dispatcher.is_settled:
            await asyncio.sleep(0.001)
        assert dispatcher.hooks[0].stuck == 0
        assert Counter(hook.calls for hook in dispatcher.hooks) == {5: 1}


CHECKOUT = Path(__file__).parents[1]

NEVER_RETURNS = """
import asyncio, sys, threading
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.hook import HookDefinition
from eventlog.observe.limits import ObserveLimits

begun = threading.Event()

def block(event, context):
    begun.set()
    threading.Event().wait()

async def main():
    async with EventLog(sys.argv[1]) as log:
        nothing = lambda session, turn_id: None
        limits = ObserveLimits(drain_s=0.05)
        dispatcher = Dispatcher(log, agent="a", hook_context=nothing, channel_context=nothing, limits=limits)
        dispatcher.add_hook("h", HookDefinition({"*": block}))
        await dispatcher.start()
        await log.start_session("s1")
        await asyncio.to_thread(begun.wait)
        await dispatcher.stop()

asyncio.run(main())
"""


def test_the_process_ends_although_a_function_never_returns(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", NEVER_RETURNS, str(tmp_path / "a.db")], check=True, timeout=20, cwd=CHECKOUT)
