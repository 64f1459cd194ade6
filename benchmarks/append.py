"""Measures appending, as ratios to what SQLite itself does in the same minute.

`python -m benchmarks.append [--rounds 5] [--events 50000] [--quick] [--json FILE] [--dir DIR]`. Absolute figures say
more about a disk than about a program, and both change while others use the machine. So everything is measured once
in each round, beside its limit, and what counts is the median of the rounds' ratios. docs/performance.md says what
the figures mean.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import limits, measures
from benchmarks.report import Figure, Samples, as_json, machine, percentile, table
from benchmarks.workload import EVENT_BYTES, PRODUCERS, SESSIONS, TYPE, Durability

QUICK_ROUNDS, QUICK_EVENTS = 2, 5_000

R, R_NORMAL, H, H_P99 = "R", "R at NORMAL", "H", "H's p99"
HOOKS_R, HOOKS_H = "R beside hooks", "H beside hooks"  # measured again, because time has passed
APPEND, PROCESS = "append", 'append, durability="process"'
ALONE = "alone"

FIGURES = (
    Figure(R, "events/s", "sqlite3 alone, executemany in groups of 256, synchronous = FULL"),
    Figure(R_NORMAL, "events/s", "the same, synchronous = NORMAL"),
    Figure(H, "us", "one bare INSERT on aiosqlite, awaited, FULL: half of them took no longer"),
    Figure(H_P99, "us", "99 of 100 of them took no longer"),
    Figure(APPEND, "events/s", "256 tasks, each awaits its append; it is on the disk then", R, at_least=0.6),
    Figure(PROCESS, "events/s", "the same; it survives the process then, not a power cut", R_NORMAL, at_least=0.6),
    Figure("one append, p50", "us", "one task, one awaited append after the other", H, at_most=1.25),
    Figure("one append, p99", "us", "99 of 100 of them took no longer", H_P99),
    Figure("1 ms slices: an append, p50", "ms", "256 tasks on a loop that never idles: from call to return"),
    Figure("1 ms slices: an append, p99", "ms", "99 of 100 of them took no longer", at_most=20),
    Figure("10 ms slices: an append, p50", "ms", "the same, while each turn of the loop takes 10 ms"),
    Figure("10 ms slices: an append, p99", "ms", "99 of 100 of them took no longer"),
    Figure("busy loop: append", "events/s", "256 tasks on a loop that has other work 4 ms of 5", APPEND),
    Figure("busy loop: its own work", "share", "of the loop's time, that this work got meanwhile", ALONE),
    Figure("append to 1 hook", "events/s", "256 tasks, until the hook was called with the last event", HOOKS_R),
    Figure("append to 6 hooks", "events/s", "the same, until all six were", HOOKS_R),
    Figure("one append to a hook, p50", "us", "idle: from the call of append until the handler is called", HOOKS_H),
)


class Rounds:
    """Measures everything, again and again."""

    def __init__(self, folder: Path, events: int) -> None:
        self.samples: Samples = defaultdict(list)
        self._folder = folder
        self._events = events
        self._blocks = max(2, events // 5_000)
        self._saturated_s = events / 50_000

    async def measure(self) -> None:
        """One round."""
        self._limit(R, "full")
        self._note(APPEND, await measures.append_rate(self._folder, self._events, "full"))
        self._limit(R_NORMAL, "process")
        self._note(PROCESS, await measures.append_rate(self._folder, self._events, "process"))
        await self._one_at_a_time()
        await self._saturated(1)
        await self._saturated(10)
        await self._busy()
        await self._observed()

    def _limit(self, name: str, durability: Durability) -> None:
        self._note(name, limits.append_rate(self._folder, self._events, durability))

    async def _one_at_a_time(self) -> None:
        ours_s, bare_s = await measures.one_at_a_time(self._folder, self._blocks)
        self._note("one append, p50", percentile(ours_s, 50) * 1e6)
        self._note("one append, p99", percentile(ours_s, 99) * 1e6)
        self._note(H, percentile(bare_s, 50) * 1e6)
        self._note(H_P99, percentile(bare_s, 99) * 1e6)

    async def _saturated(self, slice_ms: int) -> None:
        took_s = await measures.latencies_while_saturated(self._folder, slice_ms / 1e3, self._saturated_s)
        for percent in (50, 99):
            self._note(f"{slice_ms} ms slices: an append, p{percent}", percentile(took_s, percent) * 1e3)

    async def _busy(self) -> None:
        busy = await measures.rate_while_busy(self._folder, self._events // 5)
        self._note("busy loop: append", busy.rate)
        self._note("busy loop: its own work", busy.share)
        self._note(ALONE, busy.share_alone)

    async def _observed(self) -> None:
        self._limit(HOOKS_R, "full")
        for name, hooks in (("append to 1 hook", 1), ("append to 6 hooks", 6)):
            self._note(name, await measures.observed_rate(self._folder, self._events, hooks))
        ours_s, bare_s = await measures.until_observed(self._folder, self._blocks)
        self._note("one append to a hook, p50", percentile(ours_s, 50) * 1e6)
        self._note(HOOKS_H, percentile(bare_s, 50) * 1e6)

    def _note(self, name: str, value: float) -> None:
        self.samples[name].append(value)


async def run(arguments: argparse.Namespace) -> None:
    """Measure in a folder that is gone afterwards, and tell."""
    rounds, events = (QUICK_ROUNDS, QUICK_EVENTS) if arguments.quick else (arguments.rounds, arguments.events)
    with TemporaryDirectory(prefix="eventlog-bench-", dir=arguments.dir) as folder:
        measured = Rounds(Path(folder), events)
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            await measured.measure()
    print(f"{EVENT_BYTES}-byte events ({TYPE}), {SESSIONS:,} sessions in turn, {PRODUCERS} tasks; {_machine()}\n")
    print(table(FIGURES, measured.samples))
    if arguments.json is not None:
        settings = {"rounds": rounds, "events": events, "eventBytes": EVENT_BYTES, "sessions": SESSIONS}
        arguments.json.write_text(as_json(FIGURES, measured.samples, settings))


def _machine() -> str:
    found = machine()
    return f"{found['cores']} cores of {found['processor']}, Python {found['python']}, SQLite {found['sqlite']}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.append", description="Measures appending.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--events", type=int, default=50_000, help="appended for one rate (default: 50000)")
    parser.add_argument("--quick", action="store_true", help="two short rounds, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--dir", type=Path, default=Path(), help="on the disk to measure (default: the current folder)")
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
