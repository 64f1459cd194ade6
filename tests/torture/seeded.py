"""An event loop with a seed and a virtual clock, and SQLite connections whose threads it steps itself.

Nothing here runs beside the loop, so that a seed is a schedule: when each unit of work runs, when the loop hears of it,
and which of several tasks that are ready goes first. Time passes only when nothing is ready, and then at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from eventlog.store import store, writer
from eventlog.store.database import Database

T = TypeVar("T")

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
DELAYS_S = (0.0, 0.0, 0.0, 0.000_1, 0.001, 0.01)  # of a thread, until it takes or tells something


class SeededLoop(asyncio.SelectorEventLoop):
    """Callbacks keep their order, as asyncio promises; tasks that are ready at once do not."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self._now_s = 0.0
        self._told: deque[asyncio.Handle] = deque()

    def time(self) -> float:
        return self._now_s

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """What a thread tells arrives in order, and later than it was done."""
        told = asyncio.Handle(callback, args, self, context)
        self._told.append(told)
        self.call_later(self.random.choice(DELAYS_S), self._hear)
        return told

    def _hear(self) -> None:
        self._told.popleft()._run()

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        steps = [place for place, handle in enumerate(ready) if _is_step(handle)]
        if len(steps) > 1:
            shuffled = [ready[place] for place in steps]
            self.random.shuffle(shuffled)
            for place, handle in zip(steps, shuffled, strict=True):
                ready[place] = handle
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self._now_s = max(self._now_s, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def _is_step(handle: asyncio.Handle) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # type: ignore[attr-defined]


class LoopClock:
    """The time of the loop that makes it, as a clock of a log."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time

    def now_us(self) -> int:
        return START_US + round(self._time() * 1_000_000)

    def monotonic_s(self) -> float:
        return self._time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Steps:
    """Stands for the queue of a connection's thread and for the thread: one unit after the other, on the loop."""

    daemon = True

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop
        self._units: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()

    def put_nowait(self, unit: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        self._units.append(unit)
        self._loop.call_later(self._loop.random.choice(DELAYS_S), self._step)

    def _step(self) -> None:
        future, function = self._units.popleft()
        try:
            result, error = function(), None
        except BaseException as caught:
            result, error = None, caught
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def start(self) -> None:
        """There is no thread."""

    def join(self) -> None:
        """There is no thread."""


class SteppedDatabase(Database):
    """A connection whose units the loop runs."""

    def __init__(self, path: Path, *, read_only: bool, pragmas: tuple[str, ...]) -> None:
        super().__init__(path, read_only=read_only, pragmas=pragmas)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self._thread = self._tx = _Steps(loop)  # type: ignore[assignment]


@contextmanager
def stepped() -> Iterator[None]:
    """Inside of this, logs are opened on connections without threads, and the writer has no thread to give way to."""
    no_work = SimpleNamespace(thread_time=lambda: 0.0)  # the loop starves nobody: there is no thread
    with patch.object(store, "Database", SteppedDatabase), patch.object(writer, "time", no_work):
        yield


def run(seed: int, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a loop with a seed."""
    with stepped(), asyncio.Runner(loop_factory=lambda: SeededLoop(seed)) as runner:
        return runner.run(main())
