"""How times are taken: of one piece of work, in blocks that take turns with a bare INSERT, and beside a busy loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter

from eventlog.bench.limits import bare_insert
from eventlog.bench.rounds import Run
from eventlog.bench.workload import Appender, Durability, opened

WARM_UP_EVENTS = 2_000
BLOCK = 100
"""So many of ours and so many bare INSERTs take turns: what slows the machine down slows both."""

Work = Callable[[], Awaitable[object]]


async def seconds(work: Work) -> float:
    """How long it took."""
    began_s = perf_counter()
    await work()
    return perf_counter() - began_s


@asynccontextmanager
async def warm(
    run: Run, durability: Durability = "full", *, sessions: int | None = None, turns: bool = False
) -> AsyncIterator[Appender]:
    """A log that has some events already."""
    async with opened(run.folder, durability, sessions=sessions or run.sessions, turns=turns) as appender:
        await appender.many(min(WARM_UP_EVENTS, run.scaled(10 * WARM_UP_EVENTS)))
        gc.collect()  # of what was measured before
        yield appender


async def beside_bare_inserts(
    run: Run, ours: Callable[[], Awaitable[float]], blocks: int
) -> tuple[list[float], list[float]]:
    """Seconds that each of ours took, and each bare INSERT; blocks of 100 of them take turns."""
    ours_s, bare_s = list[float](), list[float]()
    block = min(BLOCK, run.scaled(10 * BLOCK))
    async with bare_insert(run.folder) as bare:
        for _ in range(run.scaled(blocks)):
            ours_s += [await ours() for _ in range(block)]
            bare_s += [await seconds(bare.one) for _ in range(block)]
    return ours_s, bare_s


class OwnWork:
    """What a server has to do on its loop beside appending: slices of pure Python.

    It rests after so many slices, which asyncio does for a millisecond at least, or never, when `slices` is None.
    """

    def __init__(self, slice_s: float, slices: int | None = None) -> None:
        self._slice_s = slice_s
        self._slices = slices
        self._done_s = 0.0

    async def beside(self, work: Work) -> tuple[float, float]:
        """Its share of the time that other work takes on the same loop, and that time in seconds."""
        self._done_s = 0.0
        own = asyncio.create_task(self._go_on())
        try:
            took_s = await seconds(work)
        finally:
            own.cancel()
        return self._done_s / took_s, took_s

    async def _go_on(self) -> None:
        slices = 0
        while True:
            until_s = perf_counter() + self._slice_s
            while perf_counter() < until_s:
                pass
            self._done_s += self._slice_s
            slices += 1
            rests = self._slices is not None and slices % self._slices == 0
            await asyncio.sleep(0.001 if rests else 0)
