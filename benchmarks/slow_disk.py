"""A slow disk: each fsync takes 10 ms more, as on a disk without a battery, for 64 tasks that append.

A commit for each event would wait for the disk with each; a group waits once for all of its events. Both are measured
in a process whose fsync and fdatasync are held up by strace, so only where strace is installed. Not measured: writes
that are slow themselves.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from time import perf_counter

from benchmarks.children import printed_by
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.measuring import seconds
from eventlog.bench.workload import opened

PRODUCERS = 64
EVENTS = 6_400
ONE_BY_ONE = 50
DELAY_US = 10_000

EACH = "a commit for each event"

FIGURES = (
    Figure(EACH, "events/s", "one task, one awaited append after the other"),
    Figure("64 tasks", "events/s", "each awaits its append before the next", EACH, at_least=30),
)


async def measure(run: Run) -> None:
    """One round; nothing where there is no strace."""
    strace = shutil.which("strace")
    if strace is None:
        return
    slow = [strace, "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]
    slow += ["-e", f"inject=fsync,fdatasync:delay_enter={DELAY_US}"]
    with run.a_folder() as folder:
        each, group = await printed_by("slow_disk", folder, run.scaled(EVENTS, PRODUCERS), before=slow)
    run.note(EACH, each)
    run.note("64 tasks", group)


async def in_the_child(folder: Path, events: int) -> tuple[float, float]:
    """Both rates."""
    async with opened(folder, sessions=PRODUCERS) as appender:
        began_s = perf_counter()
        for _ in range(ONE_BY_ONE):
            await appender.one()
        each = ONE_BY_ONE / (perf_counter() - began_s)
        return each, events / await seconds(lambda: appender.many(events, PRODUCERS))


SLOW_DISK = Subject("slow_disk", __doc__, FIGURES, measure)

if __name__ == "__main__":
    print(json.dumps(asyncio.run(in_the_child(Path(sys.argv[1]), int(sys.argv[2])))))
