"""A disk of one megabyte, full again and again: nothing is lost, reading goes on, and room is used within a second."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from eventlog.errors import OutcomeUnknown, StorageFull
from eventlog.log import EventLog
from eventlog.session import Session
from tests.torture.tally import Tally

DISK = "4m"  # an empty log takes a third of a megabyte, and its WAL as much again
RESUMES_WITHIN_S = 1.0


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system in memory; False where this user may not mount one."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    folder.mkdir()
    done = mount and umount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(folder)], check=False, capture_output=True
    )  # fmt: skip
    is_mounted = bool(done and done.returncode == 0)
    try:
        yield is_mounted
    finally:
        if is_mounted and umount:
            subprocess.run([umount, "-l", str(folder)], check=True)


async def fill_up(tally: Tally, work: Path, count: int | None) -> None:
    """So many times: full, and room again."""
    with small_disk(work / "disk") as is_mounted:
        if not is_mounted:
            tally.seen["left out: mounting a file system needs root"] += 1
            return
        random, followed = Random(tally.seed), list[int]()
        async with EventLog(work / "disk" / "agent.db") as log:
            session = await log.start_session("s")
            tail = asyncio.ensure_future(_follow(session, followed))
            stored = 1
            for round_number in range(count or 50):
                filler = work / "disk" / "filler"
                stored = await _until_full(tally, session, random, stored, filler)
                if [event.index async for event in session.read()] != list(range(stored)):
                    tally.breach(f"round {round_number}: reading a full disk gives something else than was stored")
                filler.unlink()
                try:
                    async with asyncio.timeout(RESUMES_WITHIN_S):
                        event = await session.append("own.after", {})
                except (StorageFull, OutcomeUnknown, TimeoutError):
                    tally.tried["a disk that was wholly full of the log itself"] += 1
                    break
                if event.index != stored:
                    tally.breach(f"round {round_number}: the next index is {event.index} and not {stored}")
                stored += 1
                tally.tried["full, and room again"] += 1
            while len(followed) < stored:
                await asyncio.sleep(0.01)
            tail.cancel()
        if followed != list(range(stored)):
            tally.breach("the tail is not the log")
        async with EventLog(work / "disk" / "agent.db", read_only=True) as log:
            if not (report := await log.check()).ok:
                tally.breach(f"the check finds {report}")


async def _until_full(tally: Tally, session: Session, random: Random, stored: int, filler: Path) -> int:
    """Append while another file takes the rest of the disk; how many events there are."""
    with filler.open("wb", buffering=0) as file:
        full = False
        while not full:
            try:
                file.write(bytes(random.randrange(1, 200_000)))
            except OSError:
                full = True
        for _ in range(100):
            key = f"k{stored}"
            try:
                event = await session.append("own.type", {"v": "x" * random.randrange(20_000)}, key=key)
            except StorageFull:
                tally.seen["StorageFull"] += 1
                return stored
            except OutcomeUnknown:
                tally.seen["OutcomeUnknown"] += 1
                return stored
            if event.index != stored:
                tally.breach(f"index {event.index} and not {stored}")
            stored += 1
    return stored


async def _follow(session: Session, followed: list[int]) -> None:
    async for event in session.tail():
        followed += [event.index]
