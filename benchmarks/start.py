"""Starting: `import eventlog`, `eventlog --help`, and a log of a million events from opening to the first append.

Each import is of a new process, from the beginning of the import to its end; `--help` is a whole process, from its
start to its end, beside one that defines a command with click and shows its help. Files are in the disk's cache. Not
measured: the first start after an installation, which compiles the modules.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from eventlog import EventLog
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.workload import TURN_ID, TYPE, opened, payload

EVENTS = 1_000_000
REPEATED = 7

IMPORTED, HELPED, EMPTY = "import of three", "a bare click program", "an empty file"

FIGURES = (
    Figure(IMPORTED, "ms", "import aiosqlite, msgspec, click"),
    Figure("import eventlog", "ms", "the same beside it", IMPORTED, at_most=1.5),
    Figure(HELPED, "ms", "--help of one command, as a process"),
    Figure("eventlog --help", "ms", "as a process", HELPED, at_most=2),
    Figure(EMPTY, "ms", "a log without events, from opening to the first append"),
    Figure("1,000,000 events", "ms", "the same with so many", EMPTY, at_most=2),
)

TIMED = "from time import perf_counter as t; b = t(); import {}; print(t() - b)"
BARE = "import click; click.command()(lambda: None).main(['--help'])"


async def measure(run: Run) -> None:
    """One round."""
    repeated = run.scaled(REPEATED)
    three, ours, bare, help_s = list[float](), list[float](), list[float](), list[float]()
    for _ in range(repeated):
        three.append(float(await _output("-c", TIMED.format("aiosqlite, msgspec, click"))))
        ours.append(float(await _output("-c", TIMED.format("eventlog"))))
        bare.append(await _seconds("-c", BARE))
        help_s.append(await _seconds("-m", "eventlog", "--help"))
    for name, values in ((IMPORTED, three), ("import eventlog", ours), (HELPED, bare), ("eventlog --help", help_s)):
        run.note(name, median(values) * 1e3)
    await _opening(run)


async def _opening(run: Run) -> None:
    with run.a_folder() as folder:
        async with EventLog(folder / "empty.db") as log:
            session = await log.start_session("ses_0000")
            _ = await session.append(TYPE, payload(), turn_id=TURN_ID)
        async with opened(folder) as appender:
            await appender.many(run.scaled(EVENTS, 2_000))
            await appender.log.close()
            empty, full = list[float](), list[float]()
            for _ in range(run.scaled(REPEATED)):
                empty.append(await _until_appended(folder / "empty.db"))
                full.append(await _until_appended(appender.log.path))
    run.note(EMPTY, median(empty) * 1e3)
    run.note("1,000,000 events", median(full) * 1e3)


async def _until_appended(path: Path) -> float:
    began_s = perf_counter()
    async with EventLog(path) as log:
        session = await log.session("ses_0000")
        await session.append(TYPE, payload(), turn_id=TURN_ID)
        return perf_counter() - began_s


async def _output(*words: str) -> str:
    child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    printed, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"python {' '.join(words)} ended with {child.returncode}")
    return printed.decode()


async def _seconds(*words: str) -> float:
    began_s = perf_counter()
    await _output(*words)
    return perf_counter() - began_s


START = Subject("start", __doc__, FIGURES, measure)
