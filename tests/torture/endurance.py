"""A long run: many sessions, tails that follow, pruning and backups meanwhile. Nothing may grow, or become slow."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from eventlog.errors import CursorExpired
from eventlog.known import RECENT_SESSIONS
from eventlog.log import EventLog
from eventlog.session import Session
from tests.torture.tally import Tally

TASKS = 64
OF_ALL, OF_SESSIONS = 50, 2
"""Every fiftieth tail follows the whole log; of the others every second one a session, and the rest wait for ever."""
MAX_WAL_BYTES = 64 * 1_048_576
MAX_DRIFT_PERCENT = 5
PAGE_CACHES_BYTES = (32 + 16) * 1_048_576
"""What SQLite may keep of the file for the writer and the reader. It fills and empties with the work, so that it is no
drift: of 64 MiB at the start and 87 at the end of a run of 200,000 events it was 18 and 41, and the rest the same."""
REST_S = 1.5
LATER = 2.0  # times the p99 of the start
FEW_S = 0.05  # a p99 that is no matter


class Mark(NamedTuple):
    """What was reached at some moment."""

    sessions: int
    resident_bytes: int
    files: int
    p99_s: float
    """Of the appends since the mark before, in time in which a processor was ours."""


class Run:
    """Sessions that begin, get their events and end, one after the other in many tasks."""

    def __init__(self, log: EventLog, events: int, sessions: int, random: Random) -> None:
        self.log = log
        self.left = events
        self.events_per_session = events // sessions
        self.random = random
        self.running: list[Session] = []
        self.appended = 0
        self.followed = 0
        self.waits_s: list[float] = []
        self.number = 0
        self._began_s = (time.perf_counter(), time.process_time())

    def mark(self) -> Mark:
        """What is reached now."""
        gc.collect()
        waits_s, self.waits_s = sorted(self.waits_s), []
        began_s, self._began_s = self._began_s, (time.perf_counter(), time.process_time())
        took_s, worked_s = (now - then for now, then in zip(self._began_s, began_s, strict=True))
        p99_s = waits_s[int(len(waits_s) * 0.99)] if waits_s else 0.0
        resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        return Mark(self.number, resident_bytes, files, p99_s * min(1.0, worked_s / took_s))

    async def work(self) -> None:
        while self.left > 0:
            self.number += 1
            session = await self.log.start_session(f"s{self.number}")
            self.running.append(session)
            for _ in range(self.events_per_session):
                began_s = time.perf_counter()
                await session.append("own.type", {"v": "x" * self.random.randrange(400)})
                self.waits_s.append(time.perf_counter() - began_s)
                self.appended += 1
                self.left -= 1
            self.running.remove(session)
            await session.append("session.completed", {})

    async def follow(self, number: int, idle: Session) -> None:
        """As many tails at any time as there are of these: one that ends has another one in its place."""
        if number % OF_ALL == 0:
            await self._follow_all()
        elif number % OF_SESSIONS == 0:
            await self._follow_sessions(idle)
        else:
            async for _ in idle.tail():
                self.followed += 1

    async def _follow_sessions(self, idle: Session) -> None:
        while True:
            session = self.random.choice(self.running or [idle])
            with suppress(CursorExpired):
                async for event in session.tail(after=session.next_index - 1):
                    self.followed += 1
                    if event.type == "session.completed":
                        break

    async def _follow_all(self) -> None:
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


async def endure(tally: Tally, work: Path, events: int, sessions: int, tails: int, *, timed: bool = True) -> None:
    """So many events: memory, descriptors, the WAL and, when `timed`, p99 from the second tenth on to the end."""
    random, folder = Random(tally.seed), work / "backups"
    folder.mkdir()
    wal = work / "agent.db-wal"
    wal_bytes, marks = 0, list[Mark]()
    async with EventLog(work / "agent.db") as log:
        run, idle = Run(log, events, sessions, random), await log.start_session("idle")
        following = [asyncio.ensure_future(run.follow(number, idle)) for number in range(tails)]
        care = asyncio.ensure_future(run.care(folder))
        workers = [asyncio.ensure_future(run.work()) for _ in range(TASKS)]
        for tenth in range(1, 11):
            while run.appended < tenth * events // 10 and not all(each.done() for each in workers):
                await asyncio.sleep(0.02)
                wal_bytes = max(wal_bytes, wal.stat().st_size if wal.exists() else 0)
            marks.append(run.mark())
        await asyncio.gather(*workers)
        waiting = log.tails_waiting()
        for each in (care, *following):
            each.cancel()
        ended = await asyncio.gather(care, *following, return_exceptions=True)
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
    tally.seen["sessions"] += run.number
    tally.seen["tails that waited at the end"] += waiting
    tally.seen["events that tails gave"] += run.followed
    tally.seen["MiB of WAL at most, under backups"] = wal_bytes // 1_048_576
    full = [mark for mark in marks if mark.sessions > RECENT_SESSIONS]
    _hold_to_limits(tally, full or marks[2:], wal_at_rest_bytes, timed)


def _hold_to_limits(tally: Tally, marks: list[Mark], wal_bytes: int, timed: bool) -> None:
    first, last = marks[0], marks[-1]
    first_s, last_s = (median(mark.p99_s for mark in some) for some in (marks[:3], marks[-3:]))
    tally.seen["MiB resident at the start"] = first.resident_bytes // 1_048_576
    tally.seen["MiB resident at the end"] = last.resident_bytes // 1_048_576
    tally.seen["MiB of WAL at rest"] = wal_bytes // 1_048_576
    tally.seen["microseconds of p99 at the start"] = round(first_s * 1e6)
    tally.seen["microseconds of p99 at the end"] = round(last_s * 1e6)
    drift_bytes = first.resident_bytes * MAX_DRIFT_PERCENT // 100 + PAGE_CACHES_BYTES
    if last.resident_bytes - first.resident_bytes > drift_bytes:
        tally.breach(f"memory grew from {first.resident_bytes:,} to {last.resident_bytes:,} bytes")
    if abs(last.files - first.files) > 4:  # a backup or a check may have some open at one of the moments
        tally.breach(f"descriptors went from {first.files} to {last.files}")
    if wal_bytes > MAX_WAL_BYTES:
        tally.breach(f"the WAL had {wal_bytes:,} bytes")
    if timed and last_s > max(FEW_S, first_s * LATER):
        tally.breach(f"p99 went from {first_s:.4f} s to {last_s:.4f} s")
