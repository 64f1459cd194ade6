"""What a backup costs those who append meanwhile.

A log is filled; then tasks await append after append, for a while with nothing beside them and then for as long as one
backup takes, copying and proving. So what slows the machine down slows both, and what counts is the ratio of a round.
Not measured: a backup to another disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

from eventlog import EventLog, NewEvent, Session
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.report import percentile
from eventlog.bench.workload import TYPE, payload

EVENTS = 100_000
BATCH = 1_000
SESSIONS = 100
ALONE_S = 2.0
TASKS = (1, 32)


def _figures() -> tuple[Figure, ...]:
    figures: list[Figure] = []
    for tasks in TASKS:
        who = "one task" if tasks == 1 else f"{tasks} tasks"
        for percent, at_most in ((50, None), (99, 3.0)):
            alone = f"{who}, p{percent}"
            figures += [
                Figure(alone, "us", f"from call to return of append, {who}, nothing beside it"),
                Figure(f"{alone}, backup", "us", "the same while a backup is made", alone, at_most=at_most),
            ]
    return (*figures, Figure("a backup", "ms", "copied and proven, beside these appends"))


FIGURES = _figures()


async def filled(log: EventLog, events: int) -> list[Session]:
    """The sessions of a log that has so many events."""
    sessions = [await log.start_session(f"ses_{number:04}") for number in range(SESSIONS)]
    batch = [NewEvent(TYPE, payload(), "t1")] * BATCH
    for session, _ in zip(cycle(sessions), range(events // BATCH), strict=False):
        await session.append_many(batch)
    return sessions


async def latencies_s(sessions: Sequence[Session], tasks: int, goes_on: Callable[[], bool]) -> list[float]:
    """How long appends took while it goes on, in seconds."""
    took_s: list[float] = []
    data = payload()

    async def append(number: int) -> None:
        turn = number
        while goes_on():
            begun = time.perf_counter()
            await sessions[turn % len(sessions)].append(TYPE, data, turn_id="t1")
            took_s.append(time.perf_counter() - begun)
            turn += tasks

    await asyncio.gather(*[append(number) for number in range(tasks)])
    return took_s


async def measure(run: Run) -> None:
    """One round."""
    with run.a_folder() as folder:
        async with EventLog(folder / "agent.db") as log:
            sessions = await filled(log, run.scaled(EVENTS, BATCH))
            for tasks in TASKS:
                await _measure_beside(run, log, sessions, tasks, folder / "backup.db")


async def _measure_beside(run: Run, log: EventLog, sessions: Sequence[Session], tasks: int, target: Path) -> None:
    until_s = time.perf_counter() + max(0.1, ALONE_S * min(1.0, run.share))
    alone_s = await latencies_s(sessions, tasks, lambda: time.perf_counter() < until_s)
    began_s = time.perf_counter()
    backing_up = asyncio.ensure_future(log.backup(target))
    beside_s = await latencies_s(sessions, tasks, lambda: not backing_up.done())
    await backing_up
    if tasks == TASKS[-1]:
        run.note("a backup", (time.perf_counter() - began_s) * 1e3)
    target.unlink()
    who = "one task" if tasks == 1 else f"{tasks} tasks"
    for percent in (50, 99):
        run.note(f"{who}, p{percent}", percentile(alone_s, percent) * 1e6)
        run.note(f"{who}, p{percent}, backup", percentile(beside_s, percent) * 1e6)


BACKUP = Subject("backup", __doc__, FIGURES, measure)
