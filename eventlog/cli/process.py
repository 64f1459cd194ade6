"""How a command that waits for the log runs: its event loop, signals, and readers that leave."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from eventlog.cli import output
from eventlog.cli.explain import Code

P = ParamSpec("P")
T = TypeVar("T")
Work = Coroutine[Any, Any, Code | None]

WATCH_S = 0.25


def asynchronous(command: Callable[P, Work]) -> Callable[P, Code | None]:
    """Make a coroutine function a plain one, with an event loop of its own."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> Code | None:
        return awaited(command(*args, **kwargs))

    return run


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, in an event loop of its own; KeyboardInterrupt when a signal ended it."""
    try:
        return asyncio.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """SIGINT and SIGTERM cancel the work, so that it ends in order."""
    task = asyncio.current_task()
    assert task is not None
    with _signals_to(task):
        return await work


class _Loop:
    """The event loop of this process; there is one at a time."""

    signals = 0
    is_blocked = False
    """It waits for input, and would not hear of a cancellation."""


@contextmanager
def blocking() -> Iterator[None]:
    """While the loop waits for input, the first signal ends it."""
    _Loop.is_blocked = True
    try:
        if _Loop.signals:  # it came a moment before
            raise KeyboardInterrupt
        yield
    finally:
        _Loop.is_blocked = False


@contextmanager
def _signals_to(task: asyncio.Task[Any]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    _Loop.signals = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        _Loop.signals += 1
        if _Loop.signals > 1 or _Loop.is_blocked:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(task.cancel)
        output.stop_writing()

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        output.may_write()


def confirmed(question: str) -> bool:
    """Whether the terminal says yes; anything else, and its end, is a no. SIGINT and SIGTERM end the waiting.

    Only outside of an event loop, in which a signal would wait for the answer.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        output.err().harmless(f"{output.escaped(question)}? [y/N] ")
        output.err().flush()
        answer = sys.stdin.readline()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if not answer.endswith("\n"):
        output.err().line()  # the terminal has not done it
    return answer.strip().lower() in ("y", "yes")


async def while_read(work: Coroutine[Any, Any, None]) -> None:
    """Do it until it is done, or nobody reads stdout any more: then raises OutputClosed."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if output.reader_left():
                raise output.OutputClosed
            await asyncio.wait({task}, timeout=WATCH_S)
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
