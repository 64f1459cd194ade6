"""Memory: a million events through two hooks, past a tail that lags, in a process of its own.

One hook returns at once, the other waits in one session of a hundred for as long as the run lasts, so that what is
recorded there lines up behind it. The tail is of the whole log and takes an event in a millisecond. Measured is the
resident memory above what it was when the log was open and warm, at its highest of a sample every 50 ms (Linux).
Not measured: events of more than 387 bytes, and what handlers keep.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.children import printed_by
from eventlog import Event, EventLog, HookContext, Runtime, define_hook
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.measuring import warm
from eventlog.bench.workload import TYPE

EVENTS = 1_000_000
STATM = Path("/proc/self/statm")
MIB = 1_048_576
SAMPLE_S = 0.05

FIGURES = (
    Figure("at the start", "MiB", "the process with an open, warm log and its hooks"),
    Figure("above the start", "MiB", "at most, while 1,000,000 events pass", at_most=64),
)


def resident_mib() -> float:
    """The resident memory of this process."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


async def measure(run: Run) -> None:
    """One round; nothing where the memory of a process cannot be read."""
    if not STATM.exists():
        return
    with run.a_folder() as folder:
        start, above = await printed_by("memory", folder, run.scaled(EVENTS, 5_000))
    run.note("at the start", start)
    run.note("above the start", above)


async def in_the_child(folder: Path, events: int) -> tuple[float, float]:
    """What it had when it was warm, and how much more at its highest."""
    done = asyncio.Event()

    async def returns(event: Event[Any], context: HookContext) -> None:
        pass

    async def waits(event: Event[Any], context: HookContext) -> None:
        if context.session.id.endswith("00"):
            await done.wait()

    async with warm(Run(folder)) as appender:
        runtime = Runtime(appender.log)
        for name, handler in (("returns", returns), ("waits", waits)):
            runtime.add_hook(name, define_hook(events={TYPE: handler}))
        async with runtime:
            await appender.many(2_000)
            gc.collect()
            start = resident_mib()
            watch = asyncio.ensure_future(_highest())
            tail = asyncio.ensure_future(_lag(appender.log))
            await appender.many(events)
            tail.cancel()
            watch.cancel()
            done.set()
            with suppress(asyncio.CancelledError):
                await tail
            return start, max(0.1, await watch - start)


async def _highest() -> float:
    highest = resident_mib()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(SAMPLE_S)
            highest = max(highest, resident_mib())
    return max(highest, resident_mib())


async def _lag(log: EventLog) -> None:
    async for _ in log.tail():
        await asyncio.sleep(0.001)


MEMORY = Subject("memory", __doc__, FIGURES, measure)

if __name__ == "__main__":
    print(json.dumps(asyncio.run(in_the_child(Path(sys.argv[1]), int(sys.argv[2])))))
