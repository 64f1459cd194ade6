"""Runs handlers that are plain functions on daemon threads: a bounded number, and a stuck one is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

MAX_STUCK = 224
"""Threads that may be given up; with the default of 32 places there are 256 at most."""


class Threads:
    """Places for plain functions. Their threads are daemons, so that a stuck one never keeps the process alive."""

    def __init__(self, places: int) -> None:
        self._free = asyncio.Semaphore(places)
        self._stuck = 0

    async def take_place(self) -> Place:
        """Wait for a free place, first come first served."""
        await self._free.acquire()
        return Place(self)

    def _release(self, was_stuck: bool) -> None:
        if was_stuck:
            self._stuck -= 1
        else:
            self._free.release()

    def _replace(self) -> bool:
        if self._stuck >= MAX_STUCK:
            return False
        self._stuck += 1
        self._free.release()
        return True


class Place:
    """The right to run one function on a thread; `async with` gives it back when the function has ended."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_replaced = False

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads._release(self._is_replaced)

    def replace(self) -> None:
        """Let somebody else have a place, once, because this function does not end; not done past `MAX_STUCK`."""
        self._is_replaced = self._threads._replace()

    async def run(self, function: Callable[..., Any], *args: object) -> Any:
        """Call the function on a thread of its own, in a context of its own; returns or raises what it does."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def call() -> None:
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as raised:  # whatever it was, the waiter has to hear of it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody waits
                loop.call_soon_threadsafe(_tell, ended, result, error)

        threading.Thread(target=call, name="eventlog-durable", daemon=True).start()
        result, error = await ended
        if error is not None:
            raise error
        return result


def _tell(ended: asyncio.Future[tuple[Any, BaseException | None]], result: Any, error: BaseException | None) -> None:
    if not ended.done():
        ended.set_result((result, error))
