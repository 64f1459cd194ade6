"""Runs handlers one after the other in a task that they share, each in a context of its own.

A task for each call costs more than most handlers do. So one task awaits handler after handler, and stays with the
first that waits for something: whoever began a coroutine has to end it, or `asyncio.timeout` and task groups in it
break. A new task then takes over the rest. That is the relay.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeAlias

from eventlog.observe.plain import reduced
from eventlog.observe.threads import PlainThreads

AsyncHandler: TypeAlias = Callable[[Any, Any], Awaitable[object]]


class FreshContext:
    """Awaited in a coroutine of `InContexts`, it makes the rest run in a context that nobody has changed."""

    def __await__(self) -> Generator[Any, None, None]:
        yield self


FRESH_CONTEXT = FreshContext()


class InContexts:
    """A coroutine, run in copies of a context: in the first one until it asks for a fresh one.

    `waits` is called each time when it waits for something, in the task that awaits this.
    """

    __slots__ = ("_blank", "_coroutine", "_waits")

    def __init__(self, blank: Context, coroutine: Coroutine[Any, Any, None], waits: Callable[[], None]) -> None:
        self._blank = blank
        self._coroutine = coroutine
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, None]:
        context = self._blank.copy()
        step: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = context.run(step, value)
            except StopIteration:
                return
            step, value = self._coroutine.send, None
            if waits_for is FRESH_CONTEXT:
                context = self._blank.copy()
                continue
            self._waits()
            try:
                value = yield waits_for
            except BaseException as error:  # whatever it is, it is meant for the coroutine
                step, value = self._coroutine.throw, error


def as_async(handler: Callable[[Any, Any], Any], threads: PlainThreads) -> AsyncHandler:
    """The handler itself if it is a coroutine function; a plain function is called on a thread, with less."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return handler

    async def call(event: Any, context: Any) -> None:
        result = await threads.run(handler, event, reduced(context))
        if inspect.isawaitable(result):  # a function that only passes a coroutine on
            await result

    return call


def new_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that begins at a later turn of the loop.

    The loop's own factory may begin tasks at once, and whoever has events recorded must not have to call handlers.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())


def is_cancelled_from_outside() -> bool:
    """Whether somebody asked the running task to end, so that a CancelledError is not a handler's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def runs_in(task: asyncio.Task[Any] | None) -> bool:
    """Whether this is a step of that task. It is not when its coroutine is closed because nobody needs it any more."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False
