"""Appending: by 256 tasks at once, one at a time, and beside a loop that is busy or never idles.

Measured is the time from the call of `append` until it returned, when the event is on the disk ("full") or survives the
process ("process"). Not measured: a log that is large already (see `flat`), keys, `append_many`, other processes.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from eventlog.bench.limits import append_rate
from eventlog.bench.measuring import OwnWork, beside_bare_inserts, seconds, warm
from eventlog.bench.report import Figure
from eventlog.bench.rounds import Run, Subject
from eventlog.bench.workload import PRODUCERS, Durability

EVENTS = 50_000

R, R_NORMAL, H, H_P99 = "R", "R at NORMAL", "H, p50", "H, p99"
MANY, MANY_NORMAL, ALONE = "append", 'append, durability="process"', "alone"
R_LATER, MANY_LATER = "R, 250,000 events", "append, 250,000 events"
LIMITS: dict[Durability, tuple[str, str]] = {"full": (R, MANY), "process": (R_NORMAL, MANY_NORMAL)}

FIGURES = (
    Figure(R, "events/s", "sqlite3 alone, executemany in groups of 256, synchronous = FULL"),
    Figure(R_NORMAL, "events/s", "the same, synchronous = NORMAL"),
    Figure(H, "us", "one bare INSERT on aiosqlite, awaited, FULL: half of them took no longer"),
    Figure(H_P99, "us", "99 of 100 of them took no longer"),
    Figure(MANY, "events/s", "256 tasks, each awaits its append; it is on the disk then", R, at_least=0.85),
    Figure(MANY_NORMAL, "events/s", "the same; it survives the process then, not a power cut", R_NORMAL, at_least=0.85),
    Figure(R_LATER, "events/s", "as R, for five times as many events"),
    Figure(MANY_LATER, "events/s", "256 tasks, for five times as many events", R_LATER, at_least=0.85),
    Figure("one append, p50", "us", "one task, one awaited append after the other", H, at_most=1.1),
    Figure("one append, p99", "us", "99 of 100 of them took no longer", H_P99, at_most=1.3),
    Figure("1 ms slices, p50", "ms", "256 tasks on a loop that never idles: from call to return", at_most=10),
    Figure("1 ms slices, p99", "ms", "99 of 100 of them took no longer"),
    Figure("10 ms slices, p50", "ms", "the same, while each turn of the loop takes 10 ms", at_most=40),
    Figure("10 ms slices, p99", "ms", "99 of 100 of them took no longer"),
    Figure("busy loop", "events/s", "256 tasks on a loop that has other work 4 ms of 5", MANY, at_least=0.35),
    Figure("busy loop: its work", "share", "of the loop's time, that this work got meanwhile", ALONE, at_least=0.75),
)


async def measure(run: Run) -> None:
    """One round."""
    for durability in LIMITS:
        await _many(run, durability, *LIMITS[durability], EVENTS)
    await _many(run, "full", R_LATER, MANY_LATER, 5 * EVENTS)
    await _one_at_a_time(run)
    for slice_ms in (1, 10):
        await _saturated(run, slice_ms)
    await _busy(run)


async def _many(run: Run, durability: Durability, limit: str, ours: str, count: int) -> None:
    events = run.scaled(count)
    run.note(limit, append_rate(run.folder, events, durability))
    async with warm(run, durability) as appender:
        run.note(ours, events / await seconds(lambda: appender.many(events)))


async def _one_at_a_time(run: Run) -> None:
    async with warm(run) as appender:
        ours_s, bare_s = await beside_bare_inserts(run, lambda: seconds(appender.one), 10)
    run.note_percentiles("one append", ours_s, 1e6)
    run.note_percentiles("H", bare_s, 1e6)


async def _saturated(run: Run, slice_ms: int) -> None:
    """On a loop that always has a slice of work to do."""
    took_s = list[float]()
    async with warm(run) as appender:
        until_s = perf_counter() + max(0.1, run.share)

        async def produce() -> None:
            while perf_counter() < until_s:
                took_s.append(await seconds(appender.one))

        await OwnWork(slice_ms / 1e3).beside(lambda: asyncio.gather(*[produce() for _ in range(PRODUCERS)]))
    run.note_percentiles(f"{slice_ms} ms slices", took_s, 1e3)


async def _busy(run: Run) -> None:
    """On a loop that is busy for four milliseconds of five."""
    work, events = OwnWork(0.001, slices=4), run.scaled(EVENTS // 5)
    async with warm(run) as appender:
        share_alone, _ = await work.beside(lambda: asyncio.sleep(0.5 * min(1.0, 2 * run.share)))
        share, took_s = await work.beside(lambda: appender.many(events))
    run.note("busy loop", events / took_s)
    run.note("busy loop: its work", share)
    run.note(ALONE, share_alone)


APPEND = Subject("append", __doc__, FIGURES, measure)
