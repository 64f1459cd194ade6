"""Runs subjects round after round: each once in every round, so that what slows the machine down slows all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from eventlog.bench.report import Figure, Measured, Samples, percentile
from eventlog.bench.workload import SESSIONS

QUICK_SHARE = 0.1
"""How much of the work is done when all that is asked is whether it runs."""


class Run:
    """Where one subject makes its files, how much it is to do, and what it has measured so far."""

    def __init__(self, folder: Path, share: float = 1.0) -> None:
        self.folder = folder
        self.share = share
        self.samples: Samples = defaultdict(list)

    def scaled(self, count: int, at_least: int = 1) -> int:
        """So much of `count` as is to be done."""
        return max(at_least, round(count * self.share))

    @property
    def sessions(self) -> int:
        """In how many sessions the events are: 1,000, but in the smallest runs."""
        return min(SESSIONS, self.scaled(10 * SESSIONS))

    def note(self, name: str, value: float) -> None:
        """Keep what was measured for a figure in this round."""
        self.samples[name].append(value)

    def note_percentiles(self, name: str, seconds: Sequence[float], per_second: float, *percents: int) -> None:
        """Keep percentiles of some durations as `NAME, p50` and so on; `per_second` units are a second."""
        for percent in percents or (50, 99):
            self.note(f"{name}, p{percent}", percentile(seconds, percent) * per_second)

    @contextmanager
    def a_folder(self) -> Iterator[Path]:
        """A new folder, which is gone afterwards."""
        with TemporaryDirectory(dir=self.folder) as inside:
            yield Path(inside)


@dataclass(frozen=True)
class Subject:
    """One thing to measure.

    `about` says what is measured and what not; it is None where Python runs without docstrings. `most_rounds` is for
    what takes minutes.
    """

    name: str
    about: str | None
    figures: tuple[Figure, ...]
    measure: Callable[[Run], Awaitable[None]]
    most_rounds: int | None = None


async def measure(
    subjects: Sequence[Subject], folder: Path, *, rounds: int, share: float, say: Callable[[str], None]
) -> list[Measured]:
    """Measure each subject once in every round, in files that are gone afterwards; `say` is told what is underway."""
    with TemporaryDirectory(prefix="eventlog-bench-", dir=folder) as inside:
        runs = {subject.name: Run(Path(inside), share) for subject in subjects}
        for number in range(1, rounds + 1):
            for subject in subjects:
                if subject.most_rounds is None or number <= subject.most_rounds:
                    began_s = perf_counter()
                    await subject.measure(runs[subject.name])
                    say(f"round {number} of {rounds}: {subject.name}, {perf_counter() - began_s:.0f} s")
    return [Measured(each.name, each.about, each.figures, runs[each.name].samples) for each in subjects]
