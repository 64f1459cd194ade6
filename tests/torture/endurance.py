"""A long run: many sessions, tails that follow, pruning and backups meanwhile. Nothing may grow, or become slow."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from eventlog.errors import CursorExpired
from eventlog.log import RECENT_SESSIONS, EventLog
from tests.torture.tally import Tally

TASKS = 64
EVENTS_PER_SESSION = 100
TAILS_PER_EVENTS = 1_000  # events for each tail
MAX_TAILS = 1_000
MAX_WAL_BYTES = 64 * 1_048_576
MAX_DRIFT_PERCENT = 5
MAX_DRIFT_BYTES = 32 * 1_048_576  # of a short run, in which the sessions used last are not yet as many as are kept
REST_S = 1.5
LATER = 2.0  # times the p99 of the start


class Run:
    """Sessions that begin, get their events and end, one after the other in many tasks."""

    def __init__(self, log: EventLog, events: int, random: Random) -> None:
        self.log = log
        self.left = events
        self.random = random
        self.appended = 0
        self.followed = 0
        self.waits_s: list[float] = []
        self.number = 0

    async def work(self) -> None:
        while self.left > 0:
            self.number += 1
            session = await self.log.start_session(f"s{self.number}")
            for _ in range(EVENTS_PER_SESSION):
                began_s = time.perf_counter()
                await session.append("own.type", {"v": "x" * self.random.randrange(400)})
                self.waits_s.append(time.perf_counter() - began_s)
                self.appended += 1
                self.left -= 1
            await session.append("session.completed", {})

    async def follow(self) -> None:
        """Tails come and go: each follows for a while, and another one takes its place."""
        while True:
            tail, take = self.log.tail(after=self.log.head), self.random.randrange(1, 200)
            with suppress(CursorExpired):
                async for _ in tail:
                    self.followed += 1
                    take -= 1
                    if not take:
                        break

    async def care(self, folder: Path) -> None:
        """Prune to the last sessions, and make a backup, again and again."""
        while True:
            await self.log.prune(keep_events=5_000)
            copy = folder / "backup.db"
            await self.log.backup(copy)
            for file in folder.glob("backup.db*"):
                file.unlink()
            await asyncio.sleep(0.5)


async def endure(tally: Tally, work: Path, count: int | None, *, timed: bool = True) -> None:
    """So many events: memory, descriptors, the WAL and, when `timed`, p99 from the second tenth on to the end."""
    events, random, folder = count or 1_000_000, Random(tally.seed), work / "backups"
    folder.mkdir()
    wal = work / "agent.db-wal"
    wal_bytes, marks, begun = 0, list[tuple[int, int, float]](), list[int]()
    async with EventLog(work / "agent.db") as log:
        run = Run(log, events, random)
        tails = [asyncio.ensure_future(run.follow()) for _ in range(min(MAX_TAILS, events // TAILS_PER_EVENTS))]
        care = asyncio.ensure_future(run.care(folder))
        workers = [asyncio.ensure_future(run.work()) for _ in range(TASKS)]
        for tenth in range(1, 11):
            while run.appended < tenth * events // 10 and not all(each.done() for each in workers):
                await asyncio.sleep(0.02)
                wal_bytes = max(wal_bytes, wal.stat().st_size if wal.exists() else 0)
            marks.append(_mark(run))
            begun.append(run.number)
        await asyncio.gather(*workers)
        for each in (care, *tails):
            each.cancel()
        ended = await asyncio.gather(care, *tails, return_exceptions=True)
        if failed := [each for each in ended if not isinstance(each, asyncio.CancelledError)]:
            tally.breach(f"ended by itself: {failed[:3]}")
        report = await log.check()
        if not report.ok:
            tally.breach(f"the check finds {report}")
        await asyncio.sleep(REST_S)  # the WAL may be long while a backup holds its snapshot, and no longer than that
        wal_at_rest_bytes = wal.stat().st_size
        if log.tails_waiting():
            tally.breach(f"{log.tails_waiting()} tails are left behind")
    tally.tried["events"] += run.appended
    tally.seen["events that tails gave"] += run.followed
    tally.seen["MiB of WAL at most, under backups"] = wal_bytes // 1_048_576
    full = [mark for mark, sessions in zip(marks, begun, strict=True) if sessions > RECENT_SESSIONS]
    _hold_to_limits(tally, full or marks[2:], wal_at_rest_bytes, timed)


def _mark(run: Run) -> tuple[int, int, float]:
    """(memory, descriptors, p99 in seconds) now."""
    gc.collect()
    waits_s, run.waits_s = sorted(run.waits_s), []
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    p99_s = waits_s[int(len(waits_s) * 0.99)] if waits_s else 0.0
    return resident, len(os.listdir("/proc/self/fd")), p99_s  # noqa: PTH208


def _hold_to_limits(tally: Tally, marks: list[tuple[int, int, float]], wal_bytes: int, timed: bool) -> None:
    (first_bytes, first_files, first_s), (last_bytes, last_files, last_s) = marks[0], marks[-1]
    tally.seen["MiB resident at the end"] = last_bytes // 1_048_576
    tally.seen["MiB of WAL at rest"] = wal_bytes // 1_048_576
    tally.seen["microseconds of p99 at the start"] = round(first_s * 1e6)
    tally.seen["microseconds of p99 at the end"] = round(last_s * 1e6)
    if last_bytes - first_bytes > max(MAX_DRIFT_BYTES, first_bytes * MAX_DRIFT_PERCENT // 100):
        tally.breach(f"memory grew from {first_bytes:,} to {last_bytes:,} bytes")
    if abs(last_files - first_files) > 4:  # a backup or a check may have some open at one of the moments
        tally.breach(f"descriptors went from {first_files} to {last_files}")
    if wal_bytes > MAX_WAL_BYTES:
        tally.breach(f"the WAL had {wal_bytes:,} bytes")
    if timed and last_s > first_s * LATER and last_s > 0.05:
        tally.breach(f"p99 went from {first_s:.4f} s to {last_s:.4f} s")
