"""How long it takes to open a log, until the first append has returned, and what a runtime then takes to start.

A file with nothing in it, one with a million events that was closed in order, and one whose owner was killed with a
write-ahead log of 64 MiB. The files are made in the first round. Not measured: a disk that has nothing of them in its
cache.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.children import CHECKOUT
from eventlog import EventLog, NewEvent, Runtime, Session
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.workload import TURN_ID, TYPE, payload, session_ids

EVENTS = 1_000_000
BATCH = 100
AT_ONCE = 8
WAL_BYTES = 64 * 1024 * 1024

EMPTY, LARGE, KILLED = "nothing in it", "a million events, closed", "killed, 64 MiB of WAL"
START_EMPTY, START_LARGE, START_KILLED = (f"{name}: a start" for name in (EMPTY, LARGE, KILLED))


def _figures() -> tuple[Figure, ...]:
    opened = "from the call of open until the first append has returned"
    started = "what a Runtime without hooks takes to start after that; it looks for what is unfinished"
    return (
        Figure(EMPTY, "ms", f"{opened}; a file that was made before, with no event"),
        Figure(LARGE, "ms", f"{opened}; 1,000 sessions of 1,000 events", against=EMPTY, at_most=2.0),
        Figure(KILLED, "ms", f"{opened}; SQLite reads the whole WAL first", at_most=500),
        Figure(START_EMPTY, "ms", started),
        Figure(START_LARGE, "ms", f"{started}; 20 turns are open, each with 1,000 tool results"),
        Figure(
            START_KILLED,
            "ms",
            f"{started}; 20 open turns again, and a part of the log that the session index has not absorbed",
        ),
    )


FIGURES = _figures()

# ------------------------------------------------------------------------------------------------------- what is opened


async def make(path: Path, events: int) -> None:
    """A log with so many events over 1,000 sessions, some of which have a turn that does not end."""
    async with EventLog(path, durability="process") as log:
        sessions = [await log.start_session(id) for id in session_ids()]
        for session in sessions[:20]:
            await session.append("turn.started", {}, turn_id=TURN_ID)
        for number in range(0, events // BATCH, AT_ONCE):
            await grow(sessions, number)


async def grow(sessions: list[Session], number: int) -> None:
    """Append a batch of the workload to each of the next sessions in turn."""
    batch = [NewEvent(TYPE, payload(), turn_id=TURN_ID)] * BATCH
    turns = [sessions[(number + place) % len(sessions)] for place in range(AT_ONCE)]
    await asyncio.gather(*[session.append_many(batch) for session in turns])


async def grow_wal_and_die(path: Path, wal_bytes: int) -> None:
    """Append until the WAL has 64 MiB, without a checkpoint, as during a backup; then be killed."""
    async with EventLog(path) as log:
        sessions = [await log.session(id) for id in session_ids()]
        log.store.writer.checkpoints_suspended += 1
        wal = path.with_name(f"{path.name}-wal")
        number = 0
        while wal.stat().st_size < wal_bytes:
            await grow(sessions, number)
            number += AT_ONCE
        os.kill(os.getpid(), signal.SIGKILL)


def kill_one(path: Path, wal_bytes: int) -> None:
    """Let a process grow the WAL of a log, and die."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.opening", str(path), str(wal_bytes)], check=False, cwd=CHECKOUT
    )
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"the process that was to be killed ended with {done.returncode}")


def copy_of(folder: Path, into: Path) -> Path:
    """The files of a log, on the disk and in its cache."""
    copied = Path(shutil.copytree(folder, into, ignore=shutil.ignore_patterns("*.sock")))
    for file in copied.iterdir():
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
    return copied / "log.db"


# ----------------------------------------------------------------------------------------------------- and is measured


async def until_appended(path: Path) -> tuple[float, float]:
    """Milliseconds until the first append has returned, and those that a runtime then takes to start."""
    gc.collect()
    began_s = perf_counter()
    log = await EventLog(path).open()
    _ = await log.append("ses_0000", TYPE, payload(), turn_id=TURN_ID)
    opened_s = perf_counter() - began_s
    async with Runtime(log) as runtime:
        started_s = runtime.recovered.duration_s
    await log.close()
    return 1_000 * opened_s, 1_000 * started_s


async def measure(run: Run) -> None:
    """One round: every opening; what an opening changes is opened in a fresh copy."""
    folder = run.folder / "opening"
    bases = {name: folder / name.split(",")[0].replace(" ", "-") for name in (EMPTY, LARGE, KILLED)}
    if not folder.exists():
        await _make_all(run, bases)
    for name, base in bases.items():
        with TemporaryDirectory(dir=folder) as inside:
            path = base / "log.db" if name == LARGE else copy_of(base, Path(inside) / "copy")
            opened_ms, started_ms = await until_appended(path)
        run.note(name, opened_ms)
        run.note(f"{name}: a start", started_ms)


async def _make_all(run: Run, bases: dict[str, Path]) -> None:
    for base in bases.values():
        base.mkdir(parents=True)
    async with EventLog(bases[EMPTY] / "log.db") as log:
        _ = await log.start_session("ses_0000")
    await make(bases[LARGE] / "log.db", run.scaled(EVENTS, 1_000))
    await make(bases[KILLED] / "log.db", run.scaled(EVENTS // 10, 1_000))
    wal_bytes = run.scaled(WAL_BYTES) if run.share < 1 else WAL_BYTES
    await asyncio.to_thread(kill_one, bases[KILLED] / "log.db", wal_bytes)


OPENING = Subject("opening", __doc__, FIGURES, measure)

if __name__ == "__main__":
    asyncio.run(grow_wal_and_die(Path(sys.argv[1]), int(sys.argv[2])))
