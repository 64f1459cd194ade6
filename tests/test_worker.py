"""The worker: when handlers are called, what their end means, and what a stop, a kill and a bad entry leave."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from eventlog.clock import SystemClock
from eventlog.durable import DeliveryPolicy, HookCallContext, Reject, RetryAfter
from eventlog.durable.call import MAX_TEXT_BYTES
from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.threads import MAX_STUCK, Place, Threads
from eventlog.durable.worker import STUCK_AFTER_S
from eventlog.log import EventLog
from eventlog.store.deliveries import Asked
from eventlog.store.extensions import Extensions
from eventlog.testing import ManualClock
from tests.extension_kit import DAY_S, JOB, TURN, Bench, Recorder, bench, complete_turn, hang, installation, start

BACKOFFS_S = (5, 20, 80, 320, 900)


async def fail_to_the_end(it: Bench) -> None:
    """Let every back-off pass."""
    await it.worker.idle()
    for wait_s in BACKOFFS_S:
        await it.pass_time(wait_s * 1.2)


# -------------------------------------------------------------------------------------------------- return and raise


async def test_r29_a_return_is_the_ack_and_is_settled_after_it(tmp_path: Path) -> None:
    """R29, R16: the row is there, held by this attempt, as long as the handler runs."""
    seen: list[tuple[str, int]] = []

    async def look(event: Any, context: HookCallContext) -> None:
        (row,) = await it.live()
        seen.append((row.state, row.attempts))
        assert not context.signal.aborted

    async with bench(tmp_path) as it:
        handler = Recorder(look)
        await it.install(handler=handler)
        event = await it.turn("a", "t1")
        await it.worker.idle()
        assert seen == [("delivering", 1)]
        assert await it.live() == []
    (got,), (context,) = handler.events, handler.contexts
    assert (got.event_id, got.type, got.conversation_id, got.turn_id, got.version) == (event.id, TURN, "a", "t1", 1)
    assert context.project_id == "p"
    assert context.request_id


async def test_no_handler_is_called_inside_a_transaction(tmp_path: Path) -> None:
    async def append(event: Any, context: HookCallContext) -> None:
        await it.log.append("a", "message.received", {"text": "hi"}, turn_id="t1")

    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(append))
        await it.turn("a", "t1")
        await it.worker.idle()
        assert [event.type async for event in it.log.read()][-1] == "message.received"


class Awaitable:
    """Can be awaited, and is no coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, object]:
        return self._coroutine.__await__()


async def test_r17_plain_functions_coroutines_and_awaitables_are_handlers_and_their_results_mean_nothing(
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    async def coroutine(event: Any, context: HookCallContext) -> str:
        calls.append(threading.current_thread().name)
        return "no"

    def plain(event: Any, context: HookCallContext) -> bool:
        calls.append(threading.current_thread().name)
        return False

    async with bench(tmp_path) as it:
        handlers = {
            "one": coroutine,
            "two": plain,
            "three": lambda *both: coroutine(*both),
            "four": lambda *both: Awaitable(coroutine(*both)),
        }
        for name, handler in handlers.items():
            await it.install(name, handler=handler)
        await it.turn("a", "t1")
        await it.worker.idle()
        assert await it.live() == []
    main = threading.current_thread().name
    assert sorted(calls) == sorted([main, main, main, "eventlog-durable"])


async def test_each_call_has_a_context_of_its_own(tmp_path: Path) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")
    seen: list[str] = []

    async def on_the_loop(event: Any, context: HookCallContext) -> None:
        seen.append(variable.get())
        variable.set("dirty")

    def on_a_thread(event: Any, context: HookCallContext) -> None:
        seen.append(variable.get())
        variable.set("dirty")

    async with bench(tmp_path) as it:
        await it.install("one", handler=on_the_loop)
        await it.install("two", handler=on_a_thread)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await it.worker.idle()
    assert seen == ["clean"] * 4


async def test_r30_r32_a_raised_error_is_retried_with_the_same_event_id_and_a_new_request_id(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(ValueError("no"))
        await it.install(handler=handler)
        event = await it.turn("a", "t1")
        await it.worker.idle()
        (row,) = await it.live()
        assert (row.state, row.attempts, row.last_error) == ("pending", 1, "ValueError: no")
        wait_s = (row.due_at - row.recorded_at).total_seconds()
        assert 4 <= wait_s <= 6
        await it.pass_time(wait_s - 0.001)
        assert len(handler.events) == 1
        await it.pass_time(0.001)
        assert await it.live() == []
    assert [each.event_id for each in handler.events] == [event.id] * 2
    assert len({context.request_id for context in handler.contexts}) == 2


async def test_r34_r35_what_always_fails_is_called_six_times_and_is_then_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(always=ValueError("never"))
        await it.install(handler=handler)
        event = await it.turn("a", "t1")
        await it.worker.idle()
        for calls, wait_s in enumerate(BACKOFFS_S, start=1):
            assert len(handler.events) == calls
            (row,) = await it.live()
            assert row.attempts == calls
            due_in_s = (row.due_at.timestamp() * 1e6 - it.clock.now_us()) / 1e6
            assert 0.8 * wait_s <= due_in_s <= 1.2 * wait_s
            await it.pass_time(1.2 * wait_s)
        await it.pass_time(DAY_S)
        (letter,) = it.letters
        assert await DeadLetters(it.log).list() == [letter]
    assert len(handler.events) == 6
    assert (letter.reason, letter.event_id, letter.attempts) == ("exhausted", event.id, 6)
    assert f'dead letter: extension "acme", event {event.id} of session a is exhausted after 6 attempts' in caplog.text


async def test_reject_buries_at_once_and_retry_after_sets_the_due_time(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(RetryAfter(60), Reject("not ours"))
        await it.install(handler=handler)
        event = await it.turn("a", "t1")
        await it.worker.idle()
        (row,) = await it.live()
        assert (row.due_at - row.recorded_at).total_seconds() == 60
        await it.pass_time(60)
        letter = await DeadLetters(it.log).get(event.id, "acme")
    assert letter is not None
    assert (letter.reason, letter.attempts, letter.last_error) == ("rejected", 2, "Reject: not ours")
    assert [(each.number, each.outcome) for each in letter.failures] == [(1, "retry-after"), (2, "rejected")]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError(),
        ExceptionGroup("several", [ValueError("one")]),
        BaseExceptionGroup("worse", [SystemExit(1)]),
        Unprintable(),
        ValueError("\ud800 \x00"),
        StopIteration("mine"),
        ValueError("x" * 100_000),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_whatever_a_handler_raises_is_a_failure_like_others(
    tmp_path: Path, error: BaseException, plain: bool
) -> None:
    def raise_it(event: Any, context: HookCallContext) -> None:
        raise error

    async with bench(tmp_path) as it:
        handler = Recorder(error)
        await it.install(handler=raise_it if plain else handler)
        event, other = await it.turn("a", "t1"), await it.turn("b", "t1")
        if plain:
            await fail_to_the_end(it)
        else:
            await until(lambda: len(handler.events) == 2)
            await it.pass_time(0)  # both calls are settled
            await it.pass_time(6)
            assert [each.event_id for each in handler.events] == [event.id, other.id, event.id]
            assert await it.live() == []
            return
        letter = await DeadLetters(it.log).get(event.id, "acme")
    assert letter is not None
    assert {each.outcome for each in letter.failures} == {"failed"}
    assert all(len(each.error.encode()) <= MAX_TEXT_BYTES for each in letter.failures)
    assert all(len((each.traceback or "").encode()) <= MAX_TEXT_BYTES for each in letter.failures)


# ----------------------------------------------------------------------------------------------------------- order


async def test_r36_h4_a_failing_event_is_not_overtaken_in_its_lane_and_r38_others_go_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(ValueError("1"), None, ValueError("2"))
        await it.install(handler=handler)
        for number in range(1, 6):
            await it.turn("a", f"a{number}")
        await it.turn("b", "b1")
        await it.worker.idle()
        assert handler.turns == ["a1", "b1"]
        await it.pass_time(6)
        await it.pass_time(24)
    assert handler.turns == ["a1", "b1", "a1", "a1", "a2", "a3", "a4", "a5"]


async def test_r37_a_dead_letter_does_not_block_its_conversation(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(Reject("no"))
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await it.worker.idle()
    assert handler.turns == ["t1", "t2"]


async def test_the_lane_keeps_its_order_when_the_log_is_opened_again_between_retries(tmp_path: Path) -> None:
    """H4 over a restart: the stored due time holds, and the lane with it."""
    clock = ManualClock()
    first, second = Recorder(always=ValueError("no")), Recorder()
    async with bench(tmp_path, clock) as it:
        await it.install(handler=first)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await it.worker.idle()
    async with bench(tmp_path, clock) as it:
        await it.install(handler=second)
        await it.worker.idle()
        assert second.turns == []
        await it.pass_time(6)
    assert first.turns == ["t1"]
    assert second.turns == ["t1", "t2"]


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_no_more_calls_run_than_the_policy_says_and_extensions_do_not_share_places(
    tmp_path: Path, plain: bool
) -> None:
    let_go, go = threading.Event(), asyncio.Event()
    running, most = 0, 0
    lock = threading.Lock()

    def count(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    async def wait(event: Any, context: HookCallContext) -> None:
        count(1)
        await go.wait()
        count(-1)

    def wait_on_a_thread(event: Any, context: HookCallContext) -> None:
        count(1)
        let_go.wait(10)
        count(-1)

    async with bench(tmp_path, concurrency=3) as it:
        other = Recorder()
        await it.install("slow", handler=wait_on_a_thread if plain else wait)
        await it.install("other", handler=other)
        for number in range(8):
            await it.turn(f"s{number}", "t1")
        await until(lambda: len(other.events) == 8 and most == 3)
        assert it.worker.running == 3
        go.set()
        let_go.set()
        await it.worker.idle()
        assert await it.live() == []
    assert most == 3


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until something has happened; the time limit of the test ends it otherwise."""
    while not condition():
        await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------------------- timeout


async def test_r33_at_thirty_seconds_the_signal_aborts_the_attempt_fails_and_the_handler_is_cancelled(
    tmp_path: Path,
) -> None:
    ends: list[str] = []

    async def wait(event: Any, context: HookCallContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(f"cancelled: {context.signal.reason}")
            raise

    async with bench(tmp_path) as it:
        handler = Recorder(wait)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await handler.started.wait()
        it.clock.advance(29.999)
        await it.worker.run_once()
        assert not handler.contexts[0].signal.aborted
        await it.pass_time(0.001)
        assert ends == ["cancelled: timeout"]
        (row,) = await it.live()
        assert row.last_error == "TimedOut: the handler did not return within 30 s"
        await it.pass_time(6)
        assert await it.live() == []


async def test_r33_a_late_return_is_no_ack(tmp_path: Path) -> None:
    async def return_at_the_signal(event: Any, context: HookCallContext) -> None:
        await context.signal.wait()

    async with bench(tmp_path) as it:
        handler = Recorder(return_at_the_signal)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await handler.started.wait()
        await it.pass_time(30)
        (row,) = await it.live()
        assert (row.state, row.attempts) == ("pending", 1)


async def test_a_handler_that_ignores_its_end_keeps_its_lane_and_its_place_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = asyncio.Event()

    async def ignore(event: Any, context: HookCallContext) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with bench(tmp_path, concurrency=2) as it:
        handler = Recorder(ignore)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("b", "t1")
        await handler.started.wait()
        it.clock.advance(30)
        await it.worker.run_once()
        it.clock.advance(STUCK_AFTER_S - 0.001)
        await it.worker.run_once()
        assert it.worker.stuck == 0
        it.clock.advance(0.001)
        await it.worker.idle()
        assert (it.worker.stuck, it.worker.running) == (1, 1)
        assert 'extension "acme" has a handler that does not end' in caplog.text
        await it.pass_time(3_600)  # its retry is due, but the lane is taken
        assert [each.conversation_id for each in handler.events] == ["a", "b"]
        end.set()
        await until(lambda: it.worker.running == 0)
        await it.worker.idle()
        assert [each.conversation_id for each in handler.events] == ["a", "b", "a"]
        assert (it.worker.stuck, await it.live()) == (0, [])


async def test_a_handler_that_ends_when_it_is_cut_short_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=(handler := Recorder(hang)))
        await it.turn("a", "t1")
        await handler.started.wait()
        await it.pass_time(30)
        await it.pass_time(STUCK_AFTER_S)
        assert (it.worker.stuck, it.worker.running) == (0, 0)
    assert "does not end" not in caplog.text


async def test_the_time_of_a_call_that_has_ended_is_over_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said of a handler that returned, or failed, when its time would have come."""
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(None, Reject("no")))
        for turn in ("t1", "t2"):
            await it.turn("a", turn)
            await it.worker.idle()
        caplog.clear()
        await it.pass_time(30)
        await it.pass_time(STUCK_AFTER_S)
        assert (caplog.messages, it.worker._reports) == ([], {})


async def test_a_handler_that_ignored_its_withdrawal_is_reported_and_fails_no_second_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its delivery was handed back: the end of its time changes nothing of that."""
    let_go = threading.Event()

    def ignore(event: Any, context: HookCallContext) -> None:
        let_go.wait(30)

    async with bench(tmp_path) as it:
        installed = await it.install(handler=ignore)
        await it.turn("a", "t1")
        await until(lambda: it.worker.running == 1 and bool(it.worker._time_limits))
        await it.worker.withdraw(installed.key, "disabled", grace_s=0)
        await it.worker.run_once()
        it.clock.advance(30)
        await it.worker.run_once()
        it.clock.advance(STUCK_AFTER_S)
        await until(lambda: it.worker.stuck == 1)
        await it.worker.idle()
        assert [(each.state, each.last_error) for each in await it.live()] == [("pending", None)]
        let_go.set()
        await until(lambda: it.worker.running == 0)
    assert f'extension "{installed.key}" has a handler that does not end' in caplog.text


async def test_a_plain_function_has_its_time_although_nothing_else_wakes_the_worker(tmp_path: Path) -> None:
    """It begins when it has a thread, while the worker waits for something later."""
    let_go, signals = threading.Event(), list[Any]()

    def wait(event: Any, context: HookCallContext) -> None:
        signals.append(context.signal)
        let_go.wait(30)

    async with bench(tmp_path) as it:
        it.clock.advance(1_000)
        await it.install(handler=wait)
        await start(it.log, "a")
        await it.worker.idle()  # from here on there is one reason to wake, the turn
        await it.turn("a", "t1")
        await until(lambda: bool(signals))
        it.clock.advance(30)
        await until(lambda: signals[0].reason == "timeout")
        let_go.set()
        await it.worker.idle()
        assert [each.attempts for each in await it.live()] == [1]


async def test_a_stuck_call_after_a_crash_keeps_its_lane_and_not_the_whole_extension(tmp_path: Path) -> None:
    clock, end = ManualClock(), asyncio.Event()
    async with bench(tmp_path, clock, dies=True) as it:
        handler = Recorder(always=hang)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("b", "t1")
        await until(lambda: len(handler.events) == 2)

    async def ignore(event: Any, context: HookCallContext) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with bench(tmp_path, clock) as it:
        handler = Recorder(ignore)
        await it.install(handler=handler)
        await handler.started.wait()
        await it.worker.run_once()
        assert len(handler.events) == 1
        it.clock.advance(30)
        await until(lambda: len(handler.events) == 2)
        end.set()


async def test_a_plain_function_that_does_not_end_keeps_its_lane_and_its_thread_is_replaced(tmp_path: Path) -> None:
    let_go = threading.Event()
    calls: list[str] = []

    def wait(event: Any, context: HookCallContext) -> None:
        calls.append(event.conversation_id)
        if len(calls) == 1:
            let_go.wait(10)
            assert context.signal.reason == "timeout"

    async with bench(tmp_path, start=False) as it:
        it.worker._threads = type(it.worker._threads)(1)
        await it.worker.start()
        await it.install(handler=wait)
        await it.turn("a", "t1")
        await it.turn("b", "t1")
        await until(lambda: calls == ["a"])
        await it.worker.run_once()
        assert calls == ["a"]  # there is one thread
        it.clock.advance(30)
        await it.worker.run_once()
        it.clock.advance(STUCK_AFTER_S)
        await it.worker.idle()
        assert calls == ["a", "b"]
        let_go.set()
        await until(lambda: it.worker.running == 0)
        await it.pass_time(6)
        assert calls == ["a", "b", "a"]
        assert await it.live() == []


async def test_threads_that_are_given_up_are_replaced_up_to_a_limit(tmp_path: Path) -> None:
    """At the limit there is one place more; past it there is none, until a function ends after all."""
    let_go, threads = threading.Event(), Threads(1)

    async def begin() -> tuple[Place, asyncio.Task[None]]:
        place, began = await threads.take_place(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(began.set)
            let_go.wait(30)

        async def run() -> None:
            async with place:
                await place.run(block)

        task = asyncio.create_task(run())
        await began.wait()
        return place, task

    calls: list[asyncio.Task[None]] = []
    for _ in range(MAX_STUCK):
        place, call = await begin()
        place.replace()
        calls.append(call)
    place, call = await begin()
    place.replace()
    waiting = asyncio.create_task(threads.take_place())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    let_go.set()
    await asyncio.gather(call, *calls)
    async with await waiting as place:
        assert await place.run(lambda: "there is room again") == "there is room again"


async def test_a_plain_function_whose_caller_was_cancelled_ends_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a server cancels every task it finds: nobody waits any more for what the thread has to tell."""
    let_go, threads, ended = threading.Event(), Threads(1), asyncio.Event()
    loop, began = asyncio.get_running_loop(), asyncio.Event()

    def block() -> None:
        loop.call_soon_threadsafe(began.set)
        let_go.wait(30)
        loop.call_soon_threadsafe(loop.call_soon, ended.set)  # behind what the thread tells next

    async with await threads.take_place() as place:
        call = asyncio.create_task(place.run(block))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    let_go.set()
    await ended.wait()
    assert caplog.records == []


# ------------------------------------------------------------------------------------------------- what is delivered


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "outcomeUnknown"])
async def test_r10_r14_each_end_of_a_job_is_delivered_and_r40_an_ack_says_nothing_of_it(
    tmp_path: Path, status: str
) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder()
        await it.install(job=handler)
        await start(it.log, "a")
        await it.log.append("a", "job.queued", {"jobId": "j1"})
        await it.log.append("a", "job.completed", {"jobId": "j1", "status": status})
        await it.worker.idle()
        assert await it.live() == []
        stored = await it.log.store.read(lambda c: c.execute("SELECT job_id, status FROM job").fetchall())
    (event,) = handler.events
    assert (event.type, event.job_id, event.status.value) == (JOB, "j1", status)
    assert stored == [("j1", status)]


async def test_r11_r12_a_turn_is_delivered_once_when_it_is_completed(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder()
        await it.install(handler=handler)
        await start(it.log, "a")
        for number in range(200):
            await it.log.append("a", "message.appended", {"delta": str(number)}, turn_id="t1")
        result = {"callId": "c", "toolName": "t", "isError": False}
        await it.log.append("a", "action.result", result, turn_id="t1")
        await it.log.append("a", "turn.failed", {"message": "no"}, turn_id="t0")
        await it.worker.idle()
        assert handler.events == []
        await it.turn("a", "t1")
        await it.turn("a", "t1")
        await it.worker.idle()
    assert [(event.turn_id, event.version) for event in handler.events] == [("t1", 1), ("t1", 2)]


async def test_r51_r52_nothing_that_a_handler_does_changes_what_is_recorded(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install("one", handler=Recorder(always=Reject("this reply")))
        await it.install("two", handler=lambda event, context: {"result": "another reply"})
        await start(it.log, "a")
        appended = await it.log.append("a", "turn.completed", {"result": "the reply"}, turn_id="t1")
        await it.worker.idle()
        stored = [event async for event in it.log.read()]
    assert stored[-1] == appended
    assert len(stored) == 2


async def test_a_damaged_event_becomes_a_dead_letter_and_no_call(tmp_path: Path) -> None:
    async with bench(tmp_path, start=False) as it:
        handler = Recorder()
        await it.install(handler=handler)
        damaged, whole = await it.turn("a", "t1"), await it.turn("a", "t2")
        await damage(it.log, damaged.position)
        await it.worker.start()
        await it.worker.idle()
    assert [(each.event_id, each.reason, each.attempts) for each in it.letters] == [(damaged.id, "undecodable", 0)]
    assert [each.event_id for each in handler.events] == [whole.id]


async def test_an_event_on_a_lost_page_becomes_a_dead_letter_and_the_others_are_delivered(tmp_path: Path) -> None:
    """The page cannot be read at all, so that no more of the event is known than that it is owed."""
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=Recorder())
        await start(it.log, "a")
        lost = await it.log.append("a", "turn.completed", {"result": "A" * 30_000}, turn_id="t1")
        await it.turn("b", "t1")
    file = tmp_path / "agent.db"
    content = file.read_bytes()
    page = next(at for at in range(0, len(content), 4_096) if content[at + 4 : at + 4_096] == b"A" * 4_092)
    file.write_bytes(content[:page] + bytes(4_096) + content[page + 4_096 :])
    async with bench(tmp_path) as it:
        await it.install(handler=(handler := Recorder()))
        await it.worker.idle()
        assert [each.conversation_id for each in handler.events] == ["b"]
        assert [(each.event_id, each.reason) for each in it.letters] == [(lost.id, "undecodable")]
        assert "the event cannot be read" in (it.letters[0].last_error or "")


async def damage(log: EventLog, position: int) -> None:
    """Write garbage over a stored payload, as a bad disk does."""

    def overwrite(connection: Any) -> None:
        connection.execute("INSERT INTO gate VALUES (1, 'forget')")
        connection.execute("UPDATE log SET data = '{\"res' WHERE position = ?", (position,))
        connection.execute("DELETE FROM gate")

    await log.store.write(overwrite)


# ---------------------------------------------------------------------------------------------------- age, operators


async def test_r43_what_nobody_took_for_seven_days_is_a_dead_letter_without_a_call(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder()
        await it.install(handler=handler)
        await it.extensions.pause("acme")
        event = await it.turn("a", "t1")
        await it.pass_time(7 * DAY_S - 1)
        assert len(await it.live()) == 1
        it.clock.advance(1)
        await until(lambda: len(it.letters) == 1)  # nothing but its own alarm wakes the worker
        assert [(each.event_id, each.reason, each.attempts) for each in it.letters] == [(event.id, "expired", 0)]
        await it.pass_time(7 * DAY_S - 1)
        assert len(await DeadLetters(it.log).list()) == 1
        await it.pass_time(1)
        assert await DeadLetters(it.log).list() == []
    assert handler.events == []


async def test_a_back_off_never_ends_behind_the_retention(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(RetryAfter(10**9))
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.worker.idle()
        await it.pass_time(7 * DAY_S)
    assert [each.reason for each in it.letters] == ["expired"]
    assert len(handler.events) == 1


@pytest.mark.parametrize("end", ["disabled", "revoked"])
async def test_a_call_whose_delivery_was_cleared_is_aborted_and_settles_nothing(tmp_path: Path, end: str) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(hang, hang)
        installed = await it.install(handler=handler)
        await it.extensions.grant("acme", "q")
        await it.turn("a", "t1")
        await it.turn("other", "t1", project="q")
        await until(lambda: len(handler.events) == 2)
        if end == "disabled":
            await it.extensions.disable("acme")
            it.worker.abort(installed.key, end)
            await it.worker.idle()
        else:
            await it.extensions.revoke("acme", "p")
            it.worker.abort(installed.key, end, "p")
            await until(lambda: it.worker.running == 1)
        of_p, of_q = sorted(handler.contexts, key=lambda context: context.project_id)
        assert of_p.signal.reason == end
        assert of_q.signal.reason == ("disabled" if end == "disabled" else None)
        assert [each.project for each in await it.live()] == ([] if end == "disabled" else ["q"])


async def test_a_withdrawn_extension_is_called_no_more_and_loses_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        before, after = Recorder(hang), Recorder()
        installed = await it.install(handler=before)
        await it.turn("a", "t1")
        await before.started.wait()
        await it.worker.withdraw(installed.key, "shutdown", grace_s=0)
        await it.worker.idle()
        (row,) = await it.live()
        assert (row.state, before.contexts[0].signal.reason) == ("pending", "shutdown")
        it.worker.serve(installed.key, "acme", {TURN: after})
        await it.worker.idle()
        assert (len(before.events), after.turns, await it.live()) == (1, ["t1"], [])


async def test_a_full_queue_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, capacity=1) as it:
        await it.install(handler=Recorder())
        await it.extensions.pause("acme")
        await it.worker.idle()
        for number in range(4):
            await it.turn("a", f"t{number}")
            await it.worker.idle()
    assert caplog.text.count("its queue is full") == 1
    assert 'extension "acme" is refused events of project p from position 3 on' in caplog.text


async def test_what_on_dead_letter_does_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail_later(letter: object) -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    def fail_at_once(letter: object) -> None:
        raise ValueError("at once")

    def exit(letter: object) -> None:
        raise SystemExit(1)

    for callback in (fail_later, fail_at_once, exit):
        async with bench(tmp_path) as it:
            it.worker._on_dead_letter = callback
            await it.install(handler=Recorder(always=Reject("no")))
            await it.turn(callback.__name__, "t1")
            await it.worker.idle()
    assert caplog.text.count("on_dead_letter raised") == 3


async def test_a_stop_waits_for_whoever_is_told_of_a_dead_letter(tmp_path: Path) -> None:
    told: list[object] = []

    async with bench(tmp_path) as it:

        async def look_around(letter: object) -> None:
            for _ in range(20):
                await it.live()
            told.append(letter)

        it.worker._on_dead_letter = look_around
        await it.install(handler=Recorder(Reject("no")))
        await it.turn("a", "t1")
        await it.worker.idle()
        assert told == []
        await it.worker.stop()
        assert len(told) == 1


# ------------------------------------------------------------------------------------------------- stop and restart


async def test_a_handler_that_returns_while_the_worker_stops_has_done_its_work(tmp_path: Path) -> None:
    async def return_at_the_signal(event: Any, context: HookCallContext) -> None:
        assert await context.signal.wait() == "shutdown"

    async with bench(tmp_path) as it:
        handler = Recorder(return_at_the_signal)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await handler.started.wait()
        await it.worker.stop()
        assert await it.live() == []


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "withdraw"])
async def test_a_handler_has_its_grace_before_it_is_cancelled(tmp_path: Path, stops: bool) -> None:
    """At a stop and when an extension is withdrawn: what it does within its grace is its own end."""

    async def tidy_up(event: Any, context: HookCallContext) -> None:
        await context.signal.wait()
        for _ in range(100):
            await asyncio.sleep(0)

    async with bench(tmp_path) as it:
        installed = await it.install(handler=(handler := Recorder(tidy_up)))
        await it.turn("a", "t1")
        await handler.started.wait()
        await (it.worker.stop(30) if stops else it.worker.withdraw(installed.key, "reinstalled", 30))
        await it.worker.idle()
        assert await it.live() == []


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "withdraw"])
async def test_a_handler_that_is_cancelled_may_still_come_to_its_end(tmp_path: Path, stops: bool) -> None:
    """What it finishes at once is done, and not called again."""

    async def finish(event: Any, context: HookCallContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(100):
                await asyncio.sleep(0)

    async with bench(tmp_path) as it:
        installed = await it.install(handler=(handler := Recorder(finish)))
        await it.turn("a", "t1")
        await handler.started.wait()
        await (it.worker.stop(0) if stops else it.worker.withdraw(installed.key, "reinstalled", 0))
        await it.worker.idle()
        assert await it.live() == []


async def test_an_attempt_of_what_was_withdrawn_meanwhile_is_given_back(tmp_path: Path) -> None:
    """While the attempt was being committed its extension went: it is not called, and nothing is lost or counted."""
    committing = threading.Event()
    async with bench(tmp_path) as it:
        installed = await it.install(handler=(before := Recorder()))
        await it.extensions.pause("acme")
        event = await it.turn("a", "t1")
        await it.worker.idle()
        await it.extensions.resume("acme")
        busy = asyncio.ensure_future(it.log.store.write(lambda _connection: committing.wait(20)))
        await asyncio.sleep(0)
        it.worker.wake()
        await until(it.worker._one_turn.locked)
        await it.worker.withdraw(installed.key, "reinstalled")
        committing.set()
        await busy
        await it.worker.idle()
        assert [(each.state, each.last_error) for each in await it.live()] == [("pending", None)]
        it.worker.serve(installed.key, "acme", {TURN: (after := Recorder(always=ValueError("no")))})
        await it.worker.idle()
        await fail_to_the_end(it)
        assert [each.reason for each in it.letters] == ["exhausted"]
    assert before.events == []
    assert [each.event_id for each in after.events] == [event.id] * 6


def test_a_handler_that_is_interrupted_is_cut_short_and_called_again_by_the_next_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C in a handler is for the process: no ACK, no failure of the handler, no complaint of a task."""
    calls: list[str] = []

    def interrupted(event: Any, context: HookCallContext) -> None:
        calls.append("interrupted")
        raise KeyboardInterrupt

    async def on_the_loop(event: Any, context: HookCallContext) -> None:
        interrupted(event, context)

    async def serve() -> None:
        async with bench(tmp_path) as it:
            await it.install(handler=on_the_loop)
            await it.turn("a", "t1")
            await asyncio.Event().wait()

    async def serve_again() -> None:
        async with bench(tmp_path) as it:
            await it.install(handler=(handler := Recorder()))
            await it.worker.idle()
            assert (handler.turns, await it.live(), it.letters) == (["t1"], [], [])

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(serve())
    asyncio.run(serve_again())
    assert calls == ["interrupted"]
    gc.collect()  # a task complains when it goes
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_what_an_orderly_stop_cut_short_is_due_at_once_and_does_not_count(tmp_path: Path) -> None:
    async def raise_at_the_signal(event: Any, context: HookCallContext) -> None:
        await context.signal.wait()
        context.signal.throw_if_aborted()

    clock = ManualClock()
    async with bench(tmp_path, clock) as it:
        handler = Recorder(raise_at_the_signal, hang)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("b", "t1")
        await until(lambda: len(handler.events) == 2)
        await it.worker.stop(grace_s=0.05)
        assert [(each.state, each.last_error) for each in await it.live()] == [("pending", None)] * 2
    async with bench(tmp_path, clock) as it:
        handler = Recorder(always=ValueError("no"))
        await it.install(handler=handler)
        await fail_to_the_end(it)
        assert len(it.letters) == 2
    assert len(handler.events) == 12


async def test_a_call_that_ignores_the_stop_does_not_keep_it(tmp_path: Path) -> None:
    let_go = threading.Event()
    async with bench(tmp_path) as it:
        await it.install(handler=lambda event, context: let_go.wait(10))
        await it.turn("a", "t1")
        await until(lambda: it.worker.running == 1)
        await it.worker.stop(grace_s=0)
        assert [each.state for each in await it.live()] == ["pending"]
        let_go.set()


async def test_an_attempt_that_has_no_call_is_given_back_at_the_stop(tmp_path: Path) -> None:
    """A commit whose outcome was never learnt may have begun attempts that nobody calls."""
    async with bench(tmp_path) as it:
        installed = await it.install(handler=Recorder())
        await it.extensions.pause("acme")
        await it.turn("a", "t1")
        await it.worker.idle()
        await it.extensions.resume("acme")
        want = it.worker._wants()
        turn = await it.deliveries.turn(Asked([], want, it.worker._limits))
        assert [attempt.extension for attempt, _ in turn.begun] == [installed.key]
        await it.worker.stop()
        assert [(each.state, each.attempts) for each in await it.live()] == [("pending", 1)]


async def test_r31_after_a_kill_what_was_in_flight_is_called_first_one_at_a_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with bench(tmp_path, clock, dies=True) as it:
        handler = Recorder(always=hang)
        await it.install(handler=handler)
        for name in "abc":
            await it.turn(name, "t1")
        await until(lambda: len(handler.events) == 3)
    running, most = 0, 0
    calls: list[str] = []

    async def note(event: Any, context: HookCallContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        calls.append(event.conversation_id)
        running -= 1

    async with bench(tmp_path, clock, start=False) as it:
        await it.turn("new", "t1")
        await it.install(handler=note)
        assert (await it.worker.start()).resumed == 3
        await it.worker.idle()
        assert calls == ["a", "b", "c", "new"]
        assert most == 1
        await it.extensions.pause("acme")
        await it.turn("d", "t1")
        await it.turn("e", "t1")
        await it.extensions.resume("acme")
        await it.worker.idle()
    assert most == 2  # and then it is called as ever


async def test_h8_one_bad_entry_stops_no_other_at_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with bench(tmp_path, clock, dies=True, attempts=1) as it:
        handler = Recorder(always=hang)
        await it.install(handler=handler)
        await it.install("gone", handler=Recorder(always=hang))
        await it.extensions.revoke("gone", "p")
        await it.extensions.grant("gone", "q")
        await it.turn("fourth", "t1")
        await handler.started.wait()
    async with bench(tmp_path, clock, start=False, attempts=1) as it:
        first, second = await it.turn("first", "t1"), await it.turn("second", "t1")
        third = await it.turn("third", "t1", project="q")
        fifth = await it.turn("fifth", "t1")
        await damage(it.log, second.position)
        handler = Recorder()
        await it.install(handler=handler)
        taken_up = await it.worker.start()
        assert (taken_up.resumed, [each.session_id for each in taken_up.letters]) == (0, ["fourth"])
        await it.worker.idle()
        assert [each.event_id for each in handler.events] == [first.id, fifth.id]
        assert {(each.session_id, each.reason) for each in it.letters} == {
            ("second", "undecodable"),
            ("fourth", "exhausted"),
        }
        (waiting,) = await it.live()
        assert (waiting.event_id, waiting.extension, waiting.attempts) == (third.id, "gone", 0)


async def test_while_the_file_cannot_be_written_deliveries_wait_and_then_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse_writes(refused: bool) -> None:
        writing = it.log.store._writing
        assert writing is not None
        await writing.unit(lambda connection: connection.execute(f"PRAGMA query_only = {refused}").close())

    async with bench(tmp_path) as it:
        handler = Recorder(lambda event, context: refuse_writes(True))
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await until(lambda: "deliveries wait" in caplog.text)
        await refuse_writes(False)
        await it.pass_time(1)
        assert await it.live() == []
    assert handler.turns == ["t1", "t2"]  # the first one's end was kept, and settled once


async def test_when_the_log_is_closed_first_the_worker_ends_by_itself(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.log.close()
        await it.worker.idle()
        await it.worker.stop()
        await it.log.open()


async def test_a_new_event_is_delivered_at_once_on_the_real_clock(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", clock=SystemClock()) as log:
        it = Bench(log, ManualClock(), DeliveryPolicy(backoff_first_s=0.01))
        log.on_recorded(lambda events: it.worker.wake())
        await it.worker.start()
        handler = Recorder(ValueError("once"))
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await until(lambda: len(handler.events) == 2)  # the retry, too, without anybody's help
        await it.worker.idle()
        await it.worker.stop()


# -------------------------------------------------------------------------------------------------- real processes

CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.extension_kit import Recorder, bench
from eventlog.clock import SystemClock

async def main():
    async with bench(Path(sys.argv[1]), SystemClock()) as it:
        async def handle(event, context):
            print(event.conversation_id, context.request_id, flush=True)
            if event.conversation_id == "kills":
                os._exit(9)
            if event.conversation_id == "returns and dies" and not Path(sys.argv[1], "once").exists():
                Path(sys.argv[1], "once").touch()
                asyncio.get_running_loop().call_soon(os._exit, 9)
        await it.install(handler=handle)
        await it.worker.idle()

asyncio.run(main())
"""


def run_child(folder: Path) -> tuple[int, list[str]]:
    """Serve what is in the log until nothing is due; its exit code, and the sessions of its calls."""
    checkout = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode in (0, 9), done.stderr
    return done.returncode, [line.rsplit(" ", 1)[0] for line in done.stdout.splitlines()]


async def record(folder: Path, *sessions: str) -> None:
    """Record a turn of each, for an extension that is not up."""
    async with EventLog(folder / "agent.db") as log:
        await Extensions(log.store).install(installation("acme"), ["p"])
        for session_id in sessions:
            await complete_turn(log, session_id, "t1")
            await complete_turn(log, session_id, "t2")


async def test_h1_a_handler_that_kills_the_process_is_called_six_times_and_nothing_else_is_lost(tmp_path: Path) -> None:
    innocents = [f"innocent {number}" for number in range(15)]
    await record(tmp_path, *innocents[:7], "kills", *innocents[7:])
    calls: list[str] = []
    starts = 0
    while True:
        starts += 1
        code, called = run_child(tmp_path)
        calls += called
        if code == 0:
            break
        assert starts < 20
    async with EventLog(tmp_path / "agent.db") as log:
        letters = await DeadLetters(log).list()
    assert {(each.session_id, each.reason, each.attempts) for each in letters} == {("kills", "exhausted", 6)}
    assert calls.count("kills") == 12  # both of its turns
    assert set(innocents) < set(calls)
    assert all(2 <= calls.count(name) <= 4 for name in innocents)


async def test_h2_r31_a_kill_between_return_and_ack_delivers_again_and_no_other_twice(tmp_path: Path) -> None:
    await record(tmp_path, "returns and dies")
    first, second = run_child(tmp_path), run_child(tmp_path)
    assert first == (9, ["returns and dies"])
    assert second == (0, ["returns and dies"] * 2)
    assert run_child(tmp_path) == (0, [])
