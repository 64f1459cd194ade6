"""Daemon threads for handlers that are plain functions: as many as are useful, and more when some never return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any

from eventlog.clock import Clock

log = logging.getLogger("eventlog.observe")


class _Job:
    """One call, from its submission to its end."""

    __slots__ = ("_call", "_clock", "_context", "_done", "_loop", "outcome", "since_s", "stuck")

    def __init__(
        self, call: Callable[[], Any], clock: Clock, done: Callable[[_Job, Any, BaseException | None], None]
    ) -> None:
        self._call = call
        self._clock = clock
        self._context: Context = copy_context()
        self._done = done
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()
        self.since_s: float | None = None  # when a thread took it up
        self.stuck = False

    def run(self) -> None:
        """On the thread: call, and tell the loop how it ended."""
        self.since_s = self._clock.monotonic_s()
        result, error = None, None
        try:
            result = self._context.run(self._call)
        except BaseException as caught:  # whatever it was: the lane decides what passes
            error = caught
        try:
            self._loop.call_soon_threadsafe(self._done, self, result, error)
        except RuntimeError:  # the loop is gone, and with it whoever waited
            return


class PlainThreads:
    """Runs plain functions off the loop, first come first served.

    `threads` is how many run at once. One that a function has not given back for `stuck_after_s` does not count and is
    replaced, up to `ceiling` threads in all; then functions wait.
    """

    def __init__(self, clock: Clock, threads: int, ceiling: int, stuck_after_s: float) -> None:
        self._clock = clock
        self._useful = threads
        self._ceiling = ceiling
        self._stuck_after_s = stuck_after_s
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._unfinished: set[_Job] = set()
        self._threads = 0
        self._stuck = 0
        self._reported = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function on a thread, in a copy of the caller's context, and return or raise what it does.

        Cancelling the caller does not stop the function: nothing can.
        """
        job = _Job(lambda: function(*args), self._clock, self._finished)
        self._unfinished.add(job)
        self._jobs.put(job)
        self._grow()
        result, error = await job.outcome
        if error is not None:
            raise error
        return result

    def relieve(self) -> None:
        """Replace the threads of functions that do not return. To be called now and then."""
        now_s = self._clock.monotonic_s()
        for job in self._unfinished:
            if not job.stuck and job.since_s is not None and now_s - job.since_s >= self._stuck_after_s:
                job.stuck = True
                self._stuck += 1
        self._grow()
        exhausted = self._stuck >= self._ceiling
        if exhausted and not self._reported:
            log.error("all %d threads for plain functions are stuck: plain handlers wait", self._ceiling)
        self._reported = exhausted

    def close(self) -> None:
        """Let the idle threads end; the others end with their function, or with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _grow(self) -> None:
        allowed = min(self._useful + self._stuck, self._ceiling)
        while self._threads < min(len(self._unfinished), allowed):
            Thread(target=self._work, name=f"eventlog-plain-{self._threads}", daemon=True).start()
            self._threads += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()

    def _finished(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._unfinished.discard(job)
        if job.stuck:
            self._stuck -= 1
            if self._threads > self._useful + self._stuck:
                self._threads -= 1
                self._jobs.put(None)
        if not job.outcome.done():  # its caller may have been cancelled
            job.outcome.set_result((result, error))
