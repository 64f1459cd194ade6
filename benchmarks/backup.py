"""Measures what a backup costs those who append meanwhile.

`python -m benchmarks.backup [--rounds 5] [--events 100000] [--json FILE] [--dir DIR]`. A log is filled; then tasks
await append after append, for a while with nothing beside them and then for as long as one backup takes, copying and
proving. So what slows the machine down slows both, and what counts is the ratio of a round.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Figure, Samples, as_json, machine, percentile, table
from benchmarks.workload import TYPE, payload
from eventlog import EventLog, NewEvent, Session

QUICK_ROUNDS, QUICK_EVENTS = 1, 10_000
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


async def measure(log: EventLog, sessions: Sequence[Session], folder: Path, samples: Samples) -> None:
    """One round."""
    for tasks in TASKS:
        who = "one task" if tasks == 1 else f"{tasks} tasks"
        until = time.perf_counter() + ALONE_S
        alone_s = await latencies_s(sessions, tasks, lambda until=until: time.perf_counter() < until)  # type: ignore[misc]
        target, begun = folder / "backup.db", time.perf_counter()
        backing_up = asyncio.ensure_future(log.backup(target))
        beside_s = await latencies_s(sessions, tasks, lambda task=backing_up: not task.done())  # type: ignore[misc]
        await backing_up
        samples["a backup"].append((time.perf_counter() - begun) * 1e3)
        target.unlink()
        for percent in (50, 99):
            samples[f"{who}, p{percent}"].append(percentile(alone_s, percent) * 1e6)
            samples[f"{who}, p{percent}, backup"].append(percentile(beside_s, percent) * 1e6)


async def run(arguments: argparse.Namespace) -> None:
    """Measure in a folder that is gone afterwards, and tell."""
    rounds, events = (QUICK_ROUNDS, QUICK_EVENTS) if arguments.quick else (arguments.rounds, arguments.events)
    samples: Samples = defaultdict(list)
    with TemporaryDirectory(prefix="eventlog-bench-", dir=arguments.dir) as name:
        async with EventLog(Path(name) / "agent.db") as log:
            sessions = await filled(log, events)
            for number in range(1, rounds + 1):
                print(f"round {number} of {rounds}", file=sys.stderr)
                await measure(log, sessions, Path(name), samples)
    found = machine()
    print(f"a log of {events:,} events; {found['cores']} cores, Python {found['python']}\n")
    print(table(FIGURES, samples))
    if arguments.json is not None:
        arguments.json.write_text(as_json(FIGURES, samples, {"rounds": rounds, "events": events}))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backup", description="Measures appends during a backup."
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--events", type=int, default=100_000, help="in the log at first (default: 100000)")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--dir", type=Path, default=Path(), help="on the disk to measure (default: the current folder)")
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
