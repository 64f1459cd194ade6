"""Starting: `import eventlog`, the names that a reader and a server take from it, and `eventlog --help` as a process.

Each import is of a new process, from the beginning of the import to its end; `--help` is a whole process, from its
start to its end, beside one that defines a command with click and shows its help. Not measured: the
first start after an installation, which compiles the modules; opening a log, which is in `opening`.
"""

from __future__ import annotations

import asyncio
import sys
from statistics import median
from time import perf_counter

from eventlog.bench import Figure, Run, Subject

REPEATED = 7

IMPORTED, HELPED = "import of three", "a bare click program"

FIGURES = (
    Figure(IMPORTED, "ms", "import aiosqlite, msgspec, click"),
    Figure("import eventlog", "ms", "the same beside it; names come when they are asked for", IMPORTED, at_most=1.5),
    Figure("import EventLog", "ms", "from eventlog import EventLog", IMPORTED, at_most=1.5),
    Figure("import EventLog, Runtime", "ms", "what a server needs: hooks and extensions too", IMPORTED),
    Figure(HELPED, "ms", "--help of one command, as a process"),
    Figure("eventlog --help", "ms", "as a process", HELPED, at_most=2),
)

TIMED = "from time import perf_counter as t; b = t(); {}; print(t() - b)"
IMPORTS = {
    IMPORTED: "import aiosqlite, msgspec, click",
    "import eventlog": "import eventlog",
    "import EventLog": "from eventlog import EventLog",
    "import EventLog, Runtime": "from eventlog import EventLog, Runtime",
}
BARE = "import click; click.command()(lambda: None).main(['--help'])"


async def measure(run: Run) -> None:
    """One round."""
    repeated = run.scaled(REPEATED)
    taken: dict[str, list[float]] = {name: [] for name in (*IMPORTS, HELPED, "eventlog --help")}
    for _ in range(repeated):
        for name, statement in IMPORTS.items():
            taken[name].append(float(await _output("-c", TIMED.format(statement))))
        taken[HELPED].append(await _seconds("-c", BARE))
        taken["eventlog --help"].append(await _seconds("-m", "eventlog", "--help"))
    for name, values in taken.items():
        run.note(name, median(values) * 1e3)


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
