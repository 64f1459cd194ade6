"""How each thing is measured, once. `append` does all of it again and again, and compares."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.limits import bare_insert
from benchmarks.workload import PRODUCERS, TYPE, Appender, Durability, opened
from eventlog import Event, HookContext, Runtime, define_hook
from eventlog.observe import Handler

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
async def warm(folder: Path, durability: Durability = "full") -> AsyncIterator[Appender]:
    """A log that has some events already."""
    async with opened(folder, durability) as appender:
        await appender.many(WARM_UP_EVENTS)
        gc.collect()  # of what was measured before
        yield appender


async def append_rate(folder: Path, events: int, durability: Durability) -> float:
    """Events a second that 256 tasks append."""
    async with warm(folder, durability) as appender:
        return events / await seconds(lambda: appender.many(events))


# ------------------------------------------------------------------------------------------------------- one at a time


async def one_at_a_time(folder: Path, blocks: int) -> tuple[list[float], list[float]]:
    """Seconds that each append took, and each bare INSERT."""
    async with warm(folder) as appender:
        return await _in_turn(folder, lambda: seconds(appender.one), blocks)


async def until_observed(folder: Path, blocks: int) -> tuple[list[float], list[float]]:
    """Seconds from the call of an append until a hook's handler was called, and of each bare INSERT."""
    calls = asyncio.Queue[float]()

    async def handler(event: Event[Any], ctx: HookContext) -> None:
        calls.put_nowait(perf_counter())

    async def once() -> float:
        began_s = perf_counter()
        await appender.one()
        return await calls.get() - began_s

    async with warm(folder) as appender, observed(appender, [handler]):
        return await _in_turn(folder, once, blocks)


async def _in_turn(folder: Path, ours: Callable[[], Awaitable[float]], blocks: int) -> tuple[list[float], list[float]]:
    ours_s, bare_s = list[float](), list[float]()
    async with bare_insert(folder) as bare:
        for _ in range(blocks):
            ours_s += [await ours() for _ in range(BLOCK)]
            bare_s += [await seconds(bare.one) for _ in range(BLOCK)]
    return ours_s, bare_s


# --------------------------------------------------------------------------------------------------------- a busy loop


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


async def latencies_while_saturated(folder: Path, slice_s: float, for_s: float) -> list[float]:
    """Seconds that each append of 256 tasks took, on a loop that always has a slice of work to do."""
    took_s = list[float]()
    async with warm(folder) as appender:
        until_s = perf_counter() + for_s

        async def produce() -> None:
            while perf_counter() < until_s:
                took_s.append(await seconds(appender.one))

        await OwnWork(slice_s).beside(lambda: asyncio.gather(*[produce() for _ in range(PRODUCERS)]))
    return took_s


class Busy(NamedTuple):
    """What came of appending beside other work."""

    rate: float
    """Events a second."""
    share: float
    """Of the time, that the other work had."""
    share_alone: float
    """The same when nothing is appended."""


async def rate_while_busy(folder: Path, events: int) -> Busy:
    """What 256 tasks append on a loop that is busy for four milliseconds of five."""
    work = OwnWork(0.001, slices=4)
    async with warm(folder) as appender:
        share_alone, _ = await work.beside(lambda: asyncio.sleep(0.5))
        share, took_s = await work.beside(lambda: appender.many(events))
    return Busy(events / took_s, share, share_alone)


# ------------------------------------------------------------------------------------------------------- observe hooks


@asynccontextmanager
async def observed(appender: Appender, handlers: list[Handler]) -> AsyncIterator[None]:
    """A runtime with a hook for each handler."""
    runtime = Runtime(appender.log)
    for number, handler in enumerate(handlers):
        runtime.add_hook(f"hook_{number}", define_hook(events={TYPE: handler}))
    async with runtime:
        yield


async def observed_rate(folder: Path, events: int, hooks: int) -> float:
    """Events a second, from the first append of 256 tasks until each hook was called with the last event."""
    left = events * hooks
    all_called = asyncio.Event()

    async def handler(event: Event[Any], ctx: HookContext) -> None:
        nonlocal left
        left -= 1
        if not left:
            all_called.set()

    async def append_and_wait() -> None:
        await appender.many(events)
        await all_called.wait()

    async with warm(folder) as appender, observed(appender, [handler] * hooks):
        return events / await seconds(append_and_wait)
