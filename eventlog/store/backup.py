"""A copy of the file while it is written to: one read snapshot, proven whole before it gets its name.

The snapshot is held by a connection of its own, so that the copy is what the log was at one moment, however many events
are appended meanwhile; a copy made step by step from no snapshot would begin again at every commit. It gets no head
file: whoever opens it first begins a new era, because the log it was taken from has gone on giving out positions.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec

from eventlog.errors import DamagedFile, EventLogError, InvalidName, StorageFull, StoreError
from eventlog.events import Event
from eventlog.store.checking import Report, check
from eventlog.store.database import tell
from eventlog.store.drafting import Append
from eventlog.store.events import last_position
from eventlog.store.owner import create_file
from eventlog.store.space import size_bytes
from eventlog.store.store import Store

STEP_PAGES = 256
PROVEN_EVENTS = 64
"""Proven at once: an append may have to wait until a thread that does so lets the interpreter go."""
LEFT_ALONE_S = 86_400.0
"""How long a copy of another name is left, though nobody holds its lock: that of another machine may not be seen."""
SIDES = ("", "-wal", "-shm", "-journal", ".head")
"""What must not be there before: SQLite, or the proof of another log, would be believed beside the copy."""

PARTIAL = ".eventlog-partial"
"""Ends the name of a copy that is not proven yet."""

OF_THE_LOG = (
    "SQLITE_IOERR_READ",
    "SQLITE_IOERR_SHORT_READ",
    "SQLITE_IOERR_CORRUPTFS",
    "SQLITE_IOERR_SHM",
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
)
"""What begins the names of errors that come of reading. All others are the copy's: from the log it is only read."""

Progress = Callable[[int, int], None]


class BackedUp(msgspec.Struct, frozen=True):
    """A backup that was made, and proven by a check of all of it."""

    path: str
    events: int
    last_position: int
    size_bytes: int


class _Stopped(Exception):
    """The copying was cancelled."""


async def back_up(store: Store, target: Path, progress: Progress | None) -> BackedUp:
    """Copy the log to a new file of mode 0600, prove it, and only then give it its name.

    `progress(done, total)` is in bytes: of all that is copied, and of all that is proven. Raises FileExistsError,
    InvalidName for what names no file, DamagedFile when the copy is not whole, because the log is not, and StorageFull
    or StoreError when the copy cannot be written; nothing is left behind then.
    """
    target = _named(target)
    _remove_what_was_left(target)
    _refuse_existing(target)
    with _partial(target) as partial:
        position, size = await _copy(store, partial, target, progress)
        report = await _prove(Store(partial, store.clock, read_only=True), size, progress)
        if not report.ok:
            raise DamagedFile(store.path, f"its copy is not whole, and was not kept: {report.first_fault()}")
        _give_name(partial, target)
    return BackedUp(str(target), report.events, position, size)


# ------------------------------------------------------------------------------------------------------- the copy


async def _copy(store: Store, partial: Path, target: Path, progress: Progress | None) -> tuple[int, int]:
    """The position of the last event in the copy, and its size."""
    loop, stop = asyncio.get_running_loop(), threading.Event()

    def told(done: int, total: int) -> None:
        if stop.is_set():
            raise _Stopped
        if progress is not None:
            tell(loop, progress, done, 2 * total)  # to be proven then

    async with store.aside() as aside:
        with store.checkpoints_suspended():
            copying = aside.unit(_copy_snapshot, partial, target, told)
            try:
                return await asyncio.shield(copying)
            except asyncio.CancelledError:
                stop.set()
                with suppress(_Stopped, EventLogError, OSError):
                    await copying
                raise


def _copy_snapshot(source: sqlite3.Connection, partial: Path, target: Path, told: Progress) -> tuple[int, int]:
    source.execute("BEGIN")
    try:
        position = last_position(source)  # from here on it is one snapshot
        size = size_bytes(source)
        page_bytes = int(source.execute("PRAGMA page_size").fetchone()[0])
        with _writing(target):
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                source.backup(
                    copy,
                    pages=STEP_PAGES,
                    progress=lambda _status, left, total: told((total - left) * page_bytes, total * page_bytes),
                )
                copy.execute("PRAGMA journal_mode = DELETE").fetchone()  # all of it in the one file
            _sync(partial, os.O_RDWR)
        return position, size
    finally:
        source.execute("ROLLBACK")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Tell what keeps the copy from being written as such: the log, whose connection meets it, is not at fault."""
    try:
        yield
    except OSError as error:
        raise _unwritten(target, error.strerror or str(error), error.errno in (errno.ENOSPC, errno.EDQUOT)) from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        if name.startswith(OF_THE_LOG):
            raise
        raise _unwritten(target, f"{error} ({name})", name == "SQLITE_FULL") from error


def _unwritten(target: Path, why: str, is_full: bool) -> EventLogError:
    if is_full:
        return StorageFull(f"no room for the backup {target}: {why}")
    return StoreError(
        f"the backup {target} cannot be written: {why}; choose another place for it, the log is as it was"
    )


async def _prove(copy: Store, size: int, progress: Progress | None) -> Report:
    def told(done: int, total: int) -> None:
        if progress is not None:
            progress(size + size * done // max(1, total), 2 * size)

    await copy.open(_nothing_lands)
    try:
        return await check(copy, full=True, progress=told, page_events=PROVEN_EVENTS)
    finally:
        await copy.close()


def _nothing_lands(recorded: list[Event[Any]], appends: list[Append]) -> None:
    """Nothing is appended to the copy."""


# ------------------------------------------------------------------------------------------------------ its name


def _named(path: Path) -> Path:
    """The absolute path of a file that can have such a name; raises InvalidName for others."""
    text = str(path)
    if not path.absolute().name or "\0" in text or not _is_unicode(text):
        raise InvalidName("backup", text, "names no file; give the path of a new one, in a folder that is there")
    return path.absolute()


def _is_unicode(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _refuse_existing(target: Path) -> None:
    for suffix in SIDES:
        beside = target.with_name(target.name + suffix)
        if os.path.lexists(beside):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(beside))


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A file under another name beside the target, which is locked while it is ours and gone when it is done."""
    path, descriptor = _made_and_locked(target)
    try:
        yield path
    finally:
        _unlink(path)
        os.close(descriptor)


def _made_and_locked(target: Path) -> tuple[Path, int]:
    """A new file, and the descriptor that holds its lock, which is closed after SQLite has let go of it."""
    while True:
        path = target.with_name(f".{target.name}.{token_hex(4)}{PARTIAL}")
        create_file(path)
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)  # taken for one that was left, before it was locked


def _remove_what_was_left(target: Path) -> None:
    """By a process that was killed: nobody holds the lock of it any more. Of other names, too, when it is old."""
    left = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{8}}{re.escape(PARTIAL)}", re.DOTALL)
    with suppress(OSError):
        for path in target.parent.iterdir():
            found = left.fullmatch(path.name)
            if found is not None and (found["name"] == target.name or _is_old(path)):
                _remove_if_left(path)


def _is_old(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > LEFT_ALONE_S
    return False


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unlink(path)
        finally:
            os.close(descriptor)


def _unlink(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _give_name(partial: Path, target: Path) -> None:
    """Name it durably, and over nothing that came there meanwhile."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
    except OSError:  # a file system without hard links
        _refuse_existing(target)
        partial.rename(target)
    _sync(target.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
