"""What the tests of the log share: children that run its code, copies as a kill would leave them, a second look."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.session import Session

T = TypeVar("T")

Attempt = Callable[[], Awaitable[object]]

CHECKOUT = Path(__file__).parents[1]
KILLED = -9

# What every child begins with: the log by its path, which is the first argument.
PRELUDE = """
import asyncio, os, signal, sys, warnings
from pathlib import Path
from eventlog.errors import EventLogError, ForkedProcess, LogInUse, OutcomeUnknown, StorageFull
from eventlog.events import NewEvent
from eventlog.log import EventLog
path = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background ignores

def say(*words):
    print(*words, flush=True)
"""


FORK_FOR_EACH_LINE = """
say("ready")
for line in sys.stdin:
    if not (pid := os.fork()):
        asyncio.run(main())
        os._exit(0)
    say(pid)
    os.waitpid(pid, 0)
    say("killed")
"""
"""Ends the code of a child that is to be killed often: it has everything imported, so a life takes milliseconds."""


async def all_of(events: AsyncIterator[T]) -> list[T]:
    """Everything that an asynchronous iterator gives."""
    return [each async for each in events]


async def first_of(events: AsyncIterator[T], count: int) -> list[T]:
    """The first `count` things that an asynchronous iterator gives; it is then left alone."""
    found: list[T] = []
    async for each in events:
        found.append(each)
        if len(found) == count:
            break
    return found


async def fill(session: Session, count: int, **data: Any) -> list[Event[Any]]:
    """Append `count` numbered events."""
    return [await session.append("test.noted", {"n": n, **data}) for n in range(count)]


def indexes(events: list[Event[Any]]) -> list[int]:
    """The index of each."""
    return [event.index for event in events]


# ---------------------------------------------------------------------------------------------------------- children


def start_child(code: str, *arguments: str | Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Run code after `PRELUDE` in a child; it gets the arguments as text."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        cwd=CHECKOUT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def child(code: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A child that is killed at the end, if it still lives."""
    with start_child(code, *arguments, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a child says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the child said nothing more: {process.stderr.read() if process.stderr else ''}"
    return line.strip()


def tell_child(process: subprocess.Popen[str], line: str = "") -> None:
    """Give a child one line on its standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


NO_INJECTION = "needs strace, and the permission to use it"


@cache
def can_inject() -> bool:
    """Whether `run_injected` works here."""
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], check=False).returncode == 0
    )


def run_injected(what: str, code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a child whose system calls fail, or kill it, as strace is told by `what`: "fsync:error=EIO:when=3"."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={what.partition(':')[0]}", "-e", f"inject={what}"]
    return subprocess.run(
        [*strace, sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


# ------------------------------------------------------------------------------------------------- files of a log


def crash_copy(path: Path, folder: Path) -> Path:
    """The files of an open log as a kill would leave them now. Another process reads them: closing an open database
    as a plain file would drop the locks that SQLite holds on it here."""
    folder.mkdir(mode=0o700)
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", ".head")]
    cp = shutil.which("cp")
    assert cp is not None
    subprocess.run([cp, *(str(file) for file in files if file.exists()), str(folder)], check=True)
    return folder / path.name


@contextmanager
def rewriting(path: Path, *triggers: str) -> Iterator[sqlite3.Connection]:
    """A closed log, to be damaged behind its back: these triggers are away meanwhile, and back afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        texts = []
        for name in triggers:
            (text,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
            texts.append(text)
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for text in texts:
            connection.execute(text)


def damaging(path: Path) -> Any:
    """A closed log whose append-only triggers are away meanwhile."""
    return rewriting(path, "log_is_append_only_update", "log_is_append_only_delete")


def can_be_written(path: Path) -> bool:
    """Whether an independent connection that waits for nothing can begin a writing transaction."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


async def assert_unlocked(log: EventLog) -> None:
    """Assert that the writer has no open transaction, and that an independent connection can begin one."""
    assert not await log.store.with_writer(lambda connection, _: connection.in_transaction)
    assert can_be_written(log.path)


def everything_in(folder: Path) -> dict[str, bytes]:
    """The files of a folder and what is in them."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


UNREADABLE = Path("/proc/self/mem")
"""A file that root too may open, and whose first byte gives an I/O error, as on a disk that fails; on Linux."""


def mode_of(path: Path) -> int:
    """The permission bits."""
    return path.stat().st_mode & 0o777


async def whole(log: EventLog) -> None:
    """Assert that a check finds nothing."""
    report = await log.check()
    assert report.ok, report


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """No file of this process can be written behind that: a real error of the system, EFBIG, which SQLite meets."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@asynccontextmanager
async def busy_writer(log: EventLog) -> AsyncIterator[None]:
    """Inside of this the writer's thread is at something else: what is to be written waits behind it."""
    done = threading.Event()
    work = asyncio.ensure_future(log.store.write(lambda _connection: done.wait(20)))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        done.set()
        await work


async def until(condition: Callable[[], object]) -> None:
    """Let the others run until something holds; the time limit of the test is the limit.

    Other threads too, which do not get the interpreter from a loop that only looks.
    """
    while not condition():
        time.sleep(0.000_05)
        await asyncio.sleep(0)


async def nothing_happened(log: EventLog, session: Session, next_index: int) -> None:
    """Assert that the file is not locked and the session as long as before, and that the next append gets its index."""
    await assert_unlocked(log)
    assert indexes(await all_of(session.read())) == list(range(next_index))
    assert (await session.append("test.noted", {})).index == next_index
