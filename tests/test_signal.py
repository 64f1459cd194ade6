"""The signal of a call, and things that are undone once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import pytest

from eventlog.durable import AbortController, Aborted, Disposable
from eventlog.errors import EventLogError


def test_a_signal_begins_unaborted() -> None:
    signal = AbortController().signal
    assert (signal.aborted, signal.reason) == (False, None)
    signal.throw_if_aborted()


def test_an_aborted_signal_says_why() -> None:
    controller = AbortController()
    controller.abort("timeout")
    assert (controller.signal.aborted, controller.signal.reason) == (True, "timeout")
    with pytest.raises(Aborted, match="timeout") as caught:
        controller.signal.throw_if_aborted()
    assert caught.value.reason == "timeout"
    assert isinstance(caught.value, EventLogError)


def test_the_first_reason_stands() -> None:
    controller = AbortController()
    controller.abort("revoked")
    controller.abort("timeout")
    assert controller.signal.reason == "revoked"


def test_a_handler_cannot_abort_its_own_signal() -> None:
    signal = AbortController().signal
    assert [name for name in dir(signal) if not name.startswith("_")] == [
        "aborted",
        "reason",
        "throw_if_aborted",
        "wait",
    ]
    with pytest.raises(AttributeError):
        signal.aborted = True  # type: ignore[misc]


async def test_everybody_who_waits_is_woken_with_the_reason() -> None:
    controller = AbortController()
    waiting = [asyncio.create_task(controller.signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    controller.abort("disabled")
    assert await asyncio.gather(*waiting) == ["disabled"] * 3
    assert await controller.signal.wait() == "disabled"


async def test_a_waiter_that_is_cancelled_with_the_abort_ends_as_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """As a handler's own timeout in the turn of the loop in which it is told: no complaint of the loop."""
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    controller.abort("disabled")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert caplog.records == []


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert controller.signal._waiters == []
    controller.abort("stopped")


async def test_a_thread_sees_the_abort_by_polling_and_another_loop_by_waiting() -> None:
    controller = AbortController()
    loop, begun = asyncio.get_running_loop(), asyncio.Semaphore(0)
    seen: list[str | None] = []

    def poll() -> None:
        loop.call_soon_threadsafe(begun.release)
        while not controller.signal.aborted:
            pass
        seen.append(controller.signal.reason)

    async def wait() -> None:
        loop.call_soon_threadsafe(begun.release)
        seen.append(await controller.signal.wait())

    threads = [threading.Thread(target=poll), threading.Thread(target=lambda: asyncio.run(wait()))]
    for thread in threads:
        thread.start()
    await begun.acquire()
    await begun.acquire()
    controller.abort("timeout")
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert seen == ["timeout", "timeout"]


def test_a_loop_that_has_ended_does_not_hinder_an_abort() -> None:
    controller = AbortController()

    async def wait() -> None:
        controller.signal._waiters.append(asyncio.get_running_loop().create_future())

    asyncio.run(wait())
    controller.abort("stopped")
    assert controller.signal.aborted


def test_dispose_undoes_once() -> None:
    undone: list[str] = []
    thing = Disposable(lambda: undone.append("x"))
    assert undone == []
    thing.dispose()
    thing.dispose()
    thing.close()
    assert undone == ["x"]


def test_dispose_raises_once_what_undoing_raises() -> None:
    thing = Disposable(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        thing.dispose()
    thing.dispose()


async def test_with_async_with_and_closing_dispose_at_the_end_also_of_a_failure() -> None:
    undone: list[str] = []
    with Disposable(lambda: undone.append("with")) as thing:
        assert isinstance(thing, Disposable)
        assert undone == []
    async with Disposable(lambda: undone.append("async with")) as thing:
        assert isinstance(thing, Disposable)
    with closing(Disposable(lambda: undone.append("closing"))):
        pass
    with pytest.raises(KeyError), Disposable(lambda: undone.append("failure")):
        raise KeyError
    assert undone == ["with", "async with", "closing", "failure"]
