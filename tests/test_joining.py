"""Hooks that join and lanes that end while something else is underway: a full disk, a page of the log, a closed log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import LogClosed, StorageFull
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.observe.limits import ObserveLimits
from eventlog.store.hook_lists import hook_gaps
from tests.log_kit import busy_writer, until
from tests.observing import NOTE, Gate, Trace, append, dispatcher_of, hook_of, served, shown
from tests.test_cancelled_dispatch import tasks_of
from tests.test_errors_of_the_disk import no_more_room, room


async def gaps_of(log: EventLog, name: str) -> list[tuple[str | None, int, int, int]]:
    return [(gap.session_id, gap.first, gap.last, gap.at_most) for gap in await hook_gaps(log.store, name)]


# ------------------------------------------------------------------------------------------------------------- joining


async def test_hooks_that_found_no_room_to_join_join_at_the_next_start_in_their_order(tmp_path: Path) -> None:
    """Also one that was added while the others failed; nothing is shown to any of them in between."""
    trace = Trace()
    names = [f"{number} {'x' * 100}" for number in range(60)]
    async with EventLog(tmp_path / "a.db") as log:
        dispatcher = dispatcher_of(log, {name: trace.hook(name) for name in names})
        await no_more_room(log, pages=0)
        async with busy_writer(log):
            starting = asyncio.ensure_future(dispatcher.start())
            await until(dispatcher._joining.locked)
            dispatcher.add_hook("late", trace.hook("late"), "tests")
        with pytest.raises(StorageFull):
            await starting
        await until(lambda: not dispatcher._tasks)
        await room(log)
        await log.start_session("s1")
        assert (trace.calls, dispatcher.hooks) == ([], [])
        await dispatcher.start()
        await append(log, "s1")
        await shown(dispatcher)
        await dispatcher.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert trace.calls == [(name, "s1", 1) for name in [*names, "late"]]


async def test_a_hook_joins_although_its_joining_was_cancelled(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"first": trace.hook("first")}) as (log, dispatcher):
        await log.start_session("s1")
        await shown(dispatcher)
        async with busy_writer(log):
            dispatcher.add_hook("late", trace.hook("late"), "tests")
            await until(dispatcher._joining.locked)
            for task in tasks_of(dispatcher):
                task.cancel()
        await shown(dispatcher)
        assert [hook.name for hook in dispatcher.hooks] == ["first", "late"]
        await append(log, "s1")
        await shown(dispatcher)
    assert trace.indexes("first", "s1") == [0, 1]
    assert trace.indexes("late", "s1") == [1]


async def test_a_hook_that_joins_while_a_claim_is_underway_sees_what_comes_after_it(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"first": trace.hook("first", "resume")}) as (log, dispatcher):
        await log.start_session("s1")
        await shown(dispatcher)
        appending = asyncio.ensure_future(append(log, "s1", 3))
        await asyncio.sleep(0)
        async with busy_writer(log):  # between the append and the claim of its events
            await appending
            assert dispatcher._inbox._feeder is not None
            dispatcher.add_hook("late", trace.hook("late"), "tests")
            await until(dispatcher._joining.locked)
        await dispatcher.joined()
        await append(log, "s1", 2)
        await shown(dispatcher)
    assert trace.indexes("first", "s1") == [0, 1, 2, 3, 4, 5]
    assert trace.indexes("late", "s1") == [4, 5]
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log, "first") == await gaps_of(log, "late") == []


async def test_a_hook_that_joins_while_others_are_far_behind_waits_for_no_page_of_theirs(tmp_path: Path) -> None:
    """A page was read and there is no room for the next one: the hook is there before they have caught up."""
    trace = Trace()
    limits = ObserveLimits(queue_events=1, batch_events=1)
    async with served(tmp_path / "a.db", {"first": trace.hook("first")}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await shown(dispatcher)
        last = (await append(log, "s1", 1_000))[-1]
        await until(lambda: dispatcher._inbox._room is not None)
        dispatcher.add_hook("late", trace.hook("late"), "tests")
        await dispatcher.joined()
        assert len(trace.indexes("first", "s1")) < 1_001
        await append(log, "s1", 2)
        await shown(dispatcher)
    assert trace.indexes("first", "s1") == list(range(1_003))
    assert trace.indexes("late", "s1") == [last.index + 1, last.index + 2]


async def test_what_a_late_hook_is_owed_of_a_lane_that_stays_behind_begins_with_its_own_start(tmp_path: Path) -> None:
    """Its gap has at most as many events as there are positions in it, however many the lane has in the log."""
    gate, trace = Gate(), Trace()
    limits = ObserveLimits(lane_events=0, drain_s=0.01, cancel_s=0.01)
    async with served(tmp_path / "a.db", {"waits": hook_of({NOTE: gate.handler})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 11)
        await gate.reached.wait()
        dispatcher.add_hook("late", trace.hook("late"), "tests")
        await dispatcher.joined()
        (event,) = await append(log, "s1")
        await until(lambda: dispatcher._inbox.is_empty)
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log, "late") == [("s1", event.position, event.position, 1)]
    assert trace.calls == []


# ------------------------------------------------------------------------------------------------------ lanes that end


async def test_a_lane_whose_session_was_pruned_ends(tmp_path: Path) -> None:
    """Its hook was removed while a call of it went on: nobody waits for the rest, so the session may go."""
    gate, limits = Gate(), ObserveLimits(lane_events=0, drain_s=0.01, cancel_s=0.01)
    async with served(tmp_path / "a.db", {"gone": hook_of({NOTE: gate.handler})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 5)
        await log.append("s1", "session.completed", {})
        await gate.reached.wait()
        await until(lambda: dispatcher._inbox.is_empty)
        await dispatcher.remove_hooks(["gone"])
        assert (await log.prune(keep_events=0)).sessions == 1
        gate.opened.set()
        await until(lambda: dispatcher.is_settled)


async def test_a_lane_whose_log_was_closed_ends_at_once_and_tries_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it could not read any more is a gap like all that was not shown."""
    gate, trace, seen = Gate(), Trace(), list[int]()

    async def wait(event: Event[Any], _context: Any) -> None:
        seen.append(event.index)
        await gate.wait()

    async with EventLog(tmp_path / "a.db") as log:
        dispatcher = dispatcher_of(log, {"waits": hook_of({NOTE: wait})}, limits=ObserveLimits(lane_events=0))
        await dispatcher.start()
        await log.start_session("s1")
        await append(log, "s1", 5)
        await gate.reached.wait()
        await until(lambda: dispatcher._inbox.is_empty)
        task = dispatcher._lanes.by_session["s1"].task
        assert task is not None
        await log.close()
        gate.opened.set()
        await asyncio.wait([task])
        assert isinstance(task.exception(), LogClosed)
        with pytest.raises(LogClosed):
            await dispatcher.stop()
    assert not [message for message in caplog.messages if "tried again" in message]
    assert seen == [1]
    async with served(tmp_path / "a.db", {"waits": trace.hook("waits")}) as (log, _):
        gaps = await gaps_of(log, "waits")
        assert [(first, last) for _, first, last, _ in gaps] == [(1, 6)]


async def test_a_lane_ends_wherever_it_was_when_its_log_was_closed(tmp_path: Path) -> None:
    """Also in the midst of reading on; nothing is shown twice, and what was not shown is in the gap."""
    for turns in range(16):
        gate, trace = Gate(), Trace()
        path = tmp_path / f"{turns}.db"

        async def wait(event: Event[Any], _context: Any, gate: Gate = gate, trace: Trace = trace) -> None:
            trace.note("waits", event)
            await gate.wait()

        async with EventLog(path) as log:
            limits = ObserveLimits(lane_events=0, page_events=1)
            dispatcher = dispatcher_of(log, {"waits": hook_of({NOTE: wait})}, limits=limits)
            await dispatcher.start()
            await log.start_session("s1")
            await append(log, "s1", 20)
            await gate.reached.wait()
            while not dispatcher._inbox.is_empty:
                await asyncio.sleep(0)
            task = dispatcher._lanes.by_session["s1"].task
            assert task is not None
            gate.opened.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            await log.close()
            await asyncio.wait([task])
            shown_here = trace.indexes("waits", "s1")
            assert isinstance(task.exception(), LogClosed) or len(shown_here) == 20
            with pytest.raises(LogClosed):
                await dispatcher.stop()
        assert shown_here == list(range(1, len(shown_here) + 1))
        async with served(path, {"waits": Trace().hook("waits")}) as (log, _):
            ((_, first, last, _),) = await gaps_of(log, "waits")
            assert (first <= len(shown_here) + 2, last) == (True, 21)


def test_a_call_whose_loop_ended_before_it_did_calls_nobody_else(tmp_path: Path) -> None:
    """Python closes its coroutine then, outside of any loop: that is no error of the handler."""
    gate, trace = Gate(), Trace()

    async def wait(event: Event[Any], _context: Any) -> None:
        trace.note("waits", event)
        await gate.wait()

    async def serve() -> tuple[Any, Any]:
        async with EventLog(tmp_path / "a.db") as log:
            hooks = {"waits": hook_of({NOTE: wait}), "next": hook_of({NOTE: trace.handler("next")})}
            dispatcher = dispatcher_of(log, hooks)
            await dispatcher.start()
            await log.start_session("s1")
            await append(log, "s1", 2)
            await gate.reached.wait()
            task = dispatcher._lanes.by_session["s1"].task
            assert task is not None
            return dispatcher, task.get_coro()

    loop = asyncio.new_event_loop()
    dispatcher, coroutine = loop.run_until_complete(serve())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's complaint is not what is looked at
    loop.close()
    coroutine.close()
    assert trace.calls == [("waits", "s1", 1)]
    assert [hook.errors for hook in dispatcher.hooks] == [0, 0]
