"""The parts of the torture: what each needs, and how much of it a long run does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from eventlog.store.store import Durability
from tests import test_delivery_kills
from tests.torture import cancelling, caring, endurance, fulldisk, ioerrors, model, powercut, removing, schedules
from tests.torture.forker import forker
from tests.torture.tally import Tally


@dataclass(frozen=True)
class Part:
    """One kind of fault; `run(tally, folder, count)`, where no count is everything that there is."""

    run: Callable[[Tally, Path, int | None], Coroutine[Any, Any, None]]
    long_run: int | None
    injects: bool = False


async def power_cut(tally: Tally, work: Path, count: int | None, appends: int = 120) -> None:
    """Three of five at FULL, where more is promised."""
    durabilities: tuple[tuple[Durability, float], ...] = (("full", 0.6), ("process", 0.4))
    for durability, share in durabilities:
        recording = await powercut.recorded(work / durability, durability, appends)
        number = None if count is None else round(count * share)
        await powercut.cut(recording, tally, work / "left", number)


async def kill_points(tally: Tally, work: Path, count: int | None, appends: int = 120) -> None:
    """A kill at each write, sync, cut and unlink: so many appends, with deliveries, absorbing, checkpoints, closes."""
    recording = await powercut.recorded(work / "recorded", "full", appends)
    await powercut.cut(recording, tally, work / "left", count, fates=("kept",))


async def random_kills(tally: Tally, work: Path, count: int | None) -> None:
    """A server with hooks and extensions is killed at random moments, again and again, and judged at the end."""
    lanes = min(test_delivery_kills.LANES, count or 1)
    with patch.object(test_delivery_kills, "KILLS", count):
        folders = [work / f"server{number}" for number in range(lanes)]
        runs = [test_delivery_kills.kill_often(folder, tally.seed + n) for n, folder in enumerate(folders)]
        for run in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(run, BaseException):
                tally.breach(f"{type(run).__name__}: {run}")
            else:
                tally.tried["kills"] += (count or 0) // lanes
                tally.seen.update({f"fell {phase}": number for phase, number in run.phases.items()})
                tally.seen["deliveries"] += run.calls


async def io_errors(tally: Tally, work: Path, count: int | None) -> None:
    """The n-th call fails, once and for ever."""
    with forker("tests.torture.ioerrors") as forks:
        await ioerrors.fail_everywhere(forks, tally, work, count)


async def many_schedules(tally: Tally, work: Path, count: int | None) -> None:
    """Seeds of a loop with virtual time; it has a loop for each, so it cannot run on this one."""
    await asyncio.to_thread(schedules.explore, tally, work, count or 0)


async def threads(tally: Tally, work: Path, count: int | None) -> None:
    """The same actors with real threads, which change places a million times a second."""
    await asyncio.to_thread(schedules.explore, tally, work, count or 0, threads=True)


async def machines(tally: Tally, work: Path, count: int | None) -> None:
    """Machines of forty steps; each has a loop of its own."""
    await asyncio.to_thread(model.explore, tally, work, count or 0)


PARTS: dict[str, Part] = {
    "kills": Part(random_kills, 10_000),
    "power-cut": Part(power_cut, 100_000, injects=True),
    "kill-points": Part(kill_points, None, injects=True),
    "io-errors": Part(io_errors, None, injects=True),
    "schedules": Part(many_schedules, 500_000),
    "threads": Part(threads, 20_000),
    "care": Part(caring.cut_short, None, injects=True),
    "cancel": Part(cancelling.cancel_everywhere, 20_000),
    "model": Part(machines, 5_000),
    "removing": Part(removing.remove_and_append, 2_000),
    "full-disk": Part(fulldisk.fill_up, 50),
    "long": Part(endurance.endure, 1_000_000),
}
