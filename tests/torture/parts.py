"""The parts of the torture: what each needs, and how much of it a long run does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventlog.store.store import Durability
from tests import test_delivery_kills, test_hook_kills
from tests.torture import (
    cancelling,
    caring,
    endurance,
    face,
    fulldisk,
    ioerrors,
    killpoints,
    powercut,
    removing,
    schedules,
)
from tests.torture.counts import CI, LONG
from tests.torture.forker import forker
from tests.torture.tally import Tally


@dataclass(frozen=True)
class Part:
    """One kind of fault; `run(tally, folder, count)`, where no count is everything that there is."""

    run: Callable[[Tally, Path, int | None], Coroutine[Any, Any, None]]
    long_run: int | None
    injects: bool = False


async def power_cut(tally: Tally, work: Path, count: int | None, appends: int = LONG.power_cut_appends) -> None:
    """Three of five at FULL, where more is promised."""
    durabilities: tuple[tuple[Durability, float], ...] = (("full", 0.6), ("process", 0.4))
    for durability, share in durabilities:
        recording = await powercut.recorded(work / durability, durability, appends)
        number = None if count is None else round(count * share)
        await powercut.cut(recording, tally, work / "left", number)


async def kill_points(tally: Tally, work: Path, count: int | None, appends: int = LONG.kill_points_appends) -> None:
    """A kill at each write, sync, cut and unlink: so many appends, with deliveries, absorbing, checkpoints, closes."""
    recording = await powercut.recorded(work / "recorded", "full", appends)
    await powercut.cut(recording, tally, work / "left", count, fates=("kept",))


async def injected_kills(tally: Tally, work: Path, count: int | None, appends: int = CI.kill_points_appends) -> None:
    """The same by strace, in a process of its own each time."""
    with forker("tests.torture.killpoints") as forks:
        await killpoints.kill_everywhere(forks, tally, work, count, appends)


async def random_kills(tally: Tally, work: Path, count: int | None) -> None:
    """A server with hooks and extensions is killed at random moments, again and again, and judged at the end."""
    lanes, kills = test_delivery_kills.LANES, count or LONG.kills
    folders = [work / f"server{number}" for number in range(lanes)]
    runs = [test_delivery_kills.kill_often(each, tally.seed + n, kills // lanes) for n, each in enumerate(folders)]
    for run in await asyncio.gather(*runs, return_exceptions=True):
        if isinstance(run, BaseException):
            tally.breach(f"{type(run).__name__}: {run}")
        else:
            tally.tried["kills"] += kills // lanes
            tally.seen.update({f"fell {phase}": number for phase, number in run.phases.items()})
            tally.seen["deliveries"] += run.calls


async def hook_kills(tally: Tally, work: Path, count: int | None) -> None:
    """A server with six hooks and a channel, likewise."""
    try:
        run = await test_hook_kills.kill_often(work, tally.seed, count or LONG.hook_kills)
    except AssertionError as error:
        tally.breach(str(error))
    else:
        tally.tried["kills"] += count or LONG.hook_kills
        tally.seen.update({f"fell {phase}": number for phase, number in run.phases.items()})
        tally.seen["calls"] += run.calls


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
    await asyncio.to_thread(face.explore, tally, work, count or 0)


async def endure(tally: Tally, work: Path, count: int | None) -> None:
    """So many events, and as many sessions as that is of the whole."""
    events = count or LONG.events
    await endurance.endure(tally, work, events, max(1, LONG.sessions * events // LONG.events), LONG.tails)


PARTS: dict[str, Part] = {
    "kills": Part(random_kills, LONG.kills),
    "hook-kills": Part(hook_kills, LONG.hook_kills),
    "power-cut": Part(power_cut, LONG.power_cuts, injects=True),
    "kill-points": Part(kill_points, None, injects=True),
    "injected-kills": Part(injected_kills, LONG.injected_kills, injects=True),
    "io-errors": Part(io_errors, LONG.io_errors, injects=True),
    "schedules": Part(many_schedules, LONG.schedules),
    "threads": Part(threads, LONG.threads),
    "care": Part(caring.cut_short, LONG.care_cuts, injects=True),
    "cancel": Part(cancelling.cancel_everywhere, LONG.cancellations),
    "model": Part(machines, LONG.machines),
    "removing": Part(removing.remove_and_append, LONG.removals),
    "full-disk": Part(fulldisk.fill_up, LONG.full_disks),
    "long": Part(endure, LONG.events),
}
