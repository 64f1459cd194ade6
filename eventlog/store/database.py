"""One SQLite connection on one thread: units of work, pragmas, and SQLite's errors turned into ours."""

import asyncio
import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import InvalidOperation
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar
from urllib.parse import quote

import aiosqlite
import msgspec

from eventlog.errors import (
    BrokenInvariant,
    DamagedFile,
    EventLogError,
    LogClosed,
    LogInUse,
    NotALog,
    OutcomeUnknown,
    ReadOnlyLog,
    StorageFull,
    StoreError,
)

P = ParamSpec("P")
T = TypeVar("T")

MIN_SQLITE = (3, 37, 0)  # STRICT tables
MAX_PREPARED_STATEMENTS = 256
BUSY_TIMEOUT_MS = 5_000

WRITER_PRAGMAS = (
    "foreign_keys = OFF",  # the owner asserts them; a look-up for each event would cost a tenth of the rate
    "recursive_triggers = ON",  # else REPLACE passes the append-only triggers
    "secure_delete = ON",
    "wal_autocheckpoint = 0",  # checkpoints are the writer's, see `writer`
    "temp_store = MEMORY",
    "cache_size = -32768",  # KiB; twice as much made the process larger and appends at a million events no quicker
)
READER_PRAGMAS = ("query_only = ON", "temp_store = MEMORY", "cache_size = -16384")


BROKEN = "broken: "  # begins what a trigger says that guards a rule of the log itself


class Outcome(asyncio.Future[T]):
    """A future that is settled by the store alone.

    Cancelling its waiter is put off until it is settled: a task whose future refuses `cancel` gets its
    CancelledError at the next step. So a cancelled append is wholly there or wholly absent, never underway.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Refuse."""
        return False


class Database(aiosqlite.Connection):
    """An aiosqlite connection that runs whole units, each in one hop to its thread.

    aiosqlite's own methods cost a hop for each statement, and its thread keeps a process alive that forgot to close.
    This class is the only place that touches what aiosqlite keeps to itself; a test pins that version.
    """

    def __init__(self, path: Path, *, read_only: bool, pragmas: tuple[str, ...]) -> None:
        mode = "ro" if read_only else "rw"
        uri = f"file:{quote(str(path))}?mode={mode}"

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                uri,
                uri=True,
                isolation_level=None,
                timeout=BUSY_TIMEOUT_MS / 1_000,
                cached_statements=MAX_PREPARED_STATEMENTS,
            )
            try:
                for pragma in pragmas:
                    connection.execute(f"PRAGMA {pragma}")
            except BaseException:
                connection.close()
                raise
            return connection

        super().__init__(connect, iter_chunk_size=64)
        self._read_only = read_only
        self._thread.daemon = True  # a process that forgot to close the log still ends
        self.path = path

    async def open(self) -> Self:
        """Start the thread and connect; when that fails, the thread has ended."""
        try:
            _ = await super().__aenter__()  # connects, on the thread
        except BaseException as error:
            await asyncio.to_thread(self._thread.join)
            ours = self._ours(error)
            if ours is error:
                raise
            raise ours from error
        return self

    async def close(self) -> None:
        """Close when all units have run, and end the thread; a cancellation comes only after that."""
        if self._connection is None or not self._running:
            return
        closed: Outcome[None] = Outcome(loop=asyncio.get_running_loop())
        stopped = self.stop()
        assert stopped is not None, "there is a running loop"
        stopped.add_done_callback(lambda _: closed.set_result(None))
        await closed

    def post(self, unit: Callable[[sqlite3.Connection], None]) -> None:
        """Run a unit on the thread and tell nobody; the unit itself must not raise."""
        self._tx.put_nowait((None, lambda: unit(self._conn)))

    def reopen(self) -> sqlite3.Connection:
        """On the thread: replace the connection, because what it has cached may not be what is on the disk."""
        fresh = self._connector()
        self._conn.close()
        self._connection = fresh
        return fresh

    def unit(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]:
        """Run `work(connection, ...)` on the thread; the returned future is settled even if its waiter is cancelled."""
        if not self._running or self._connection is None:
            raise LogClosed()
        loop = asyncio.get_running_loop()
        outcome: Outcome[T] = Outcome(loop=loop)

        def run() -> None:
            try:
                result = work(self._conn, *args, **kwargs)
            except BaseException as error:  # whatever it was, the waiter has to hear of it
                tell(loop, _fail, outcome, self._ours(error))
            else:
                tell(loop, outcome.set_result, result)

        self._tx.put_nowait((None, run))
        return outcome

    def _ours(self, error: BaseException) -> BaseException:
        ours = map_error(error, self.path)
        if self._read_only and isinstance(ours, OutcomeUnknown):  # there is no outcome of a read
            ours = DamagedFile(self.path, ours.why)
        return ours


def _fail(outcome: Outcome[Any], error: BaseException) -> None:
    outcome.set_exception(error)
    outcome.exception()  # marks it as seen: a waiter that was cancelled meanwhile never looks


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call back on the loop, unless the loop is gone: then nobody waits any more."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def in_transaction(
    connection: sqlite3.Connection,
    unit: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a unit between BEGIN IMMEDIATE and COMMIT, rolled back on every error path."""
    with transaction(connection, "BEGIN IMMEDIATE"):
        return unit(connection, *args, **kwargs)


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """A transaction that is committed at the end, and rolled back on every error path."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def in_snapshot(
    connection: sqlite3.Connection,
    unit: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a reading unit inside one read transaction, so that all its statements see the same log."""
    connection.execute("BEGIN")
    try:
        return unit(connection, *args, **kwargs)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class Checkpoint(NamedTuple):
    """What a checkpoint did: whether all of the WAL is in the database now, and how many pages the WAL still has."""

    complete: bool
    pages: int


def checkpoint(connection: sqlite3.Connection) -> Checkpoint:
    """Bring the WAL into the database, as far as readers allow; it stays as long as it is."""
    return _checkpoint(connection, "PASSIVE")


def empty_wal(connection: sqlite3.Connection) -> Checkpoint:
    """Bring the WAL into the database and cut it to nothing, unless readers hold it for longer than 50 ms."""
    connection.execute("PRAGMA busy_timeout = 50")
    try:
        return _checkpoint(connection, "TRUNCATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


def _checkpoint(connection: sqlite3.Connection, mode: str) -> Checkpoint:
    busy, pages, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return Checkpoint(not busy and pages == moved, max(0, pages))


def map_error(error: BaseException, path: Path) -> BaseException:
    """SQLite's error as one of ours; anything else as it is."""
    if isinstance(error, StopIteration):  # which no future takes: its waiter would wait for ever
        return BrokenInvariant("a unit of work ended without a result")
    if isinstance(error, UnicodeDecodeError):
        return DamagedFile(path, f"it has text that is no UTF-8: {error}")
    if isinstance(error, msgspec.DecodeError | InvalidOperation):  # nothing else is decoded in a unit of work
        return DamagedFile(path, f"a value in it, which is no event's, cannot be read: {error}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(str(error))
    if not isinstance(error, sqlite3.Error):
        return error
    if "decode to UTF-8" in str(error):  # Python's own, without a name
        return DamagedFile(path, f"it has text that is no UTF-8: {error}")
    name = getattr(error, "sqlite_errorname", None) or ""
    ours = _map_by_name(name, str(error), str(path))
    ours.__cause__ = error
    return ours


def _map_by_name(name: str, text: str, path: str) -> EventLogError:
    if name.startswith("SQLITE_CONSTRAINT") and ("log.position" in text or text.startswith(BROKEN)):
        return BrokenInvariant(text.removeprefix(BROKEN))
    if name.startswith("SQLITE_FULL"):
        return StorageFull(text)
    if name.startswith("SQLITE_IOERR"):
        return OutcomeUnknown(f"{text} ({name})")
    if name.startswith("SQLITE_NOTADB"):
        return NotALog(path, "it is no SQLite database")
    if name.startswith("SQLITE_CORRUPT"):
        return DamagedFile(path, f"{text} ({name})")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LogInUse(path, None)
    if name.startswith("SQLITE_READONLY_CAN") or name == "SQLITE_READONLY_DIRECTORY":
        return StoreError(f"SQLite needs a file beside {path}, also to read it; check that the folder may be written")
    if name.startswith("SQLITE_READONLY"):
        return ReadOnlyLog(path)
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreError(f"SQLite cannot open {path}; check that the folder exists and may be written")
    return StoreError(f"{path}: {text} ({name or type(text).__name__})")
