"""The opened file: who owns it, its connections, and what runs on them."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Concatenate, Literal, ParamSpec, TypeVar

from eventlog.clock import AnchoredClock, Clock
from eventlog.errors import LogClosed, LogShortened, OutcomeUnknown, ReadOnlyLog, StoreError
from eventlog.store import schema
from eventlog.store.database import (
    READER_PRAGMAS,
    WRITER_PRAGMAS,
    Database,
    Outcome,
    checkpoint,
    empty_wal,
    in_snapshot,
    in_transaction,
    map_error,
)
from eventlog.store.drafting import Append
from eventlog.store.events import Eras, Events, Rider, last_position
from eventlog.store.index import SLICE_ROWS, SessionIndex
from eventlog.store.owner import (
    UNPROVEN,
    HeadFile,
    Lock,
    Proof,
    create_file,
    create_folder,
    inspected,
    must_be_writable,
    refuse_network_file_system,
)
from eventlog.store.reading import Reading
from eventlog.store.standing import Standing
from eventlog.store.wal import WalFile
from eventlog.store.writer import Landed, Writer

P = ParamSpec("P")
T = TypeVar("T")

Durability = Literal["full", "process"]
SYNCHRONOUS = {"full": "FULL", "process": "NORMAL"}

log = logging.getLogger("eventlog.store")


class Store:
    """One file, opened by its owner or read-only. The layers above reach SQLite through `write` and `read` alone."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durability: Durability = "full",
        read_only: bool = False,
        accept_loss: bool = False,
        allow_network_fs: bool = False,
        wait_for_owner_s: float = 0.0,
        verify_reads: bool = False,
        slice_rows: int = SLICE_ROWS,
        made_of: schema.Schema | None = None,
    ) -> None:
        self.path = Path(os.path.realpath(path))  # one file has one lock, by whatever name it is opened
        self.clock = AnchoredClock(clock)  # a step of the wall clock changes nothing while the file is open
        self.durability = durability
        self.read_only = read_only
        self.events = Events(self.clock)
        self.reading = Reading(verify=verify_reads)
        self.found_position = 0
        """The last position that the file held when its owner opened it; what follows is this process's own."""
        self.rebuilding = asyncio.Lock()
        """Held by whoever folds built-in projections again: there is one table for the new rows of each."""
        self.loss: LogShortened | None = None
        """What is lost of the file, found when it was opened; accepted, since it is open."""
        self._accept_loss = accept_loss
        self._allow_network_fs = allow_network_fs
        self._wait_for_owner_s = wait_for_owner_s
        self._slice_rows = slice_rows
        self._schema = made_of or schema.installed()
        self._lock = Lock(self.path)
        self._standing = Standing(self.path, self._lock)
        self._head_file = HeadFile(self.path, at_commit=durability == "full")
        self._wal_file = WalFile(self.path)
        self._index = SessionIndex(self.events, slice_rows)
        self._writer: Writer | None = None
        self._writing: Database | None = None
        self._reader: Database | None = None
        self._held = ExitStack()
        self._closing: Outcome[None] | None = None

    @property
    def lock(self) -> Lock:
        """The lock on the file, which tells other processes where its owner can be asked."""
        return self._lock

    @property
    def writer(self) -> Writer:
        """The writer; raises ReadOnlyLog or LogClosed when there is none, ForkedProcess in a forked child."""
        writer = self._writer
        if writer is None or self._lock.forked:
            self._lock.check()
            raise ReadOnlyLog(self.path) if self.read_only else LogClosed()
        return writer

    # -- opening ------------------------------------------------------------------------------------------------

    async def open(self, landed: Landed) -> None:
        """Open the file; whatever fails leaves nothing locked and no thread behind."""
        try:
            schema.check_sqlite()
            if self.read_only:
                self._held.enter_context(inspected(self.path, may_be_empty=False))
            else:
                await self._open_as_owner(landed)
            self._reader = await Database(self.path, read_only=True, pragmas=READER_PRAGMAS).open()
            if self.read_only:
                await self._reader.unit(self._look_at_it)
        except BaseException as error:
            await self.close()
            ours = map_error(error, self.path)
            if isinstance(ours, OutcomeUnknown):  # nobody has given anything to store yet
                ours = StoreError(ours.why)
            if ours is error:
                raise
            raise ours from error

    async def _open_as_owner(self, landed: Landed) -> None:
        if not self._allow_network_fs:
            refuse_network_file_system(self.path)
        create_folder(self.path.parent)
        await self._lock.acquire(self._wait_for_owner_s)
        create_file(self.path)
        self._held.enter_context(inspected(self.path, may_be_empty=True))
        must_be_writable(self.path)
        synchronous = f"synchronous = {SYNCHRONOUS[self.durability]}"
        self._writing = await Database(self.path, read_only=False, pragmas=(*WRITER_PRAGMAS, synchronous)).open()
        await self._writing.unit(self._take_over)
        self._wal_file.check()  # what a dead owner left in it counts from now on
        self._writer = Writer(
            self._writing, self._standing, self.events, self._index, self._head_file, self._wal_file, landed
        )

    def _take_over(self, connection: sqlite3.Connection) -> None:
        now_us = self.clock.now_us()
        proof = self._head_file.read()
        if schema.is_empty(connection):
            self._accept(proof, 0)  # there may have been a log that somebody emptied
            schema.create(connection, self._schema, token_hex(4), now_us)
            reason = None
        else:
            schema.check_version(connection, self._schema, self.path, migrates=True)
            reason = self._loss(connection, proof)
            schema.migrate(connection, self._schema)
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        in_transaction(connection, _begin_epoch, reason, last_position(connection), now_us)
        self.events.load(connection)
        self.found_position = self.events.position
        eras = self.events.eras
        if not self.eras_are_proven(connection):
            log.error("%s: its head file is another log's, or its eras are damaged and ids of events new", self.path)
        self._head_file.open(_file_id(connection), eras.current, self._on_disk(connection, proof), eras.digest)

    def _look_at_it(self, connection: sqlite3.Connection) -> None:
        """A reader's part of the same: it refuses what an owner would refuse, and begins nothing."""
        schema.check_version(connection, self._schema, self.path)
        proof = self._head_file.read()  # before the end is looked up: an owner may append meanwhile
        if proof is not None and proof.file_id == _file_id(connection):
            self._accept(proof, last_position(connection))

    def _loss(self, connection: sqlite3.Connection, proof: Proof | None) -> str | None:
        """Why a new era has to begin; raises LogShortened when the head file proves more than the file holds."""
        if proof is None or proof.file_id != _file_id(connection):
            return "restored"
        return "accepted-loss" if self._accept(proof, last_position(connection)) else None

    def _accept(self, proof: Proof | None, found: int) -> bool:
        """Whether there is a loss, and it was accepted; raises LogShortened when it was not."""
        if proof is None or found >= proof.position:
            return False
        self.loss = LogShortened(self.path, proof.position, found)
        if not self._accept_loss:
            raise self.loss
        if not self.read_only:
            log.error(
                "%s held events up to position %d and now ends at %d; this was accepted, and it goes on from there",
                self.path,
                proof.position,
                found,
            )
        return True

    def _on_disk(self, connection: sqlite3.Connection, proof: Proof | None) -> int:
        """The position up to which everything is on the disk."""
        position = self.events.position
        if self.durability == "full" or checkpoint(connection).complete:  # "full": the epoch's commit saw to it
            return position
        proven = proof.position if proof is not None and proof.file_id == _file_id(connection) else 0
        return min(position, proven)

    # -- units --------------------------------------------------------------------------------------------------

    async def write(
        self, unit: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a unit as one transaction on the writer's thread, shielded from cancellation."""
        return await self._on_writer(lambda connection: in_transaction(connection, unit, *args, **kwargs))

    def ride(self, ask: Callable[[list[Append]], Rider | None]) -> Callable[[], None]:
        """Ask for work to be done in the commit of a group, before one is sent; returns what takes it back."""
        writer = self.writer
        writer.riders = (*writer.riders, ask)

        def remove() -> None:
            writer.riders = tuple(known for known in writer.riders if known is not ask)

        return remove

    async def with_writer(
        self, unit: Callable[Concatenate[sqlite3.Connection, Events, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a unit that keeps its own transactions and moves what the owner has in memory."""

        def run(connection: sqlite3.Connection) -> T:
            result = unit(connection, self.events, *args, **kwargs)
            self._head_file.committed(self.events.position)
            return result

        return await self._on_writer(run)

    async def absorb(self) -> None:
        """Bring everything into the session index now."""
        await self._on_writer(self._index.absorb_all)

    async def cut_wal(self) -> bool:
        """Bring all of the WAL into the file and cut it to nothing; False when a reader holds it."""
        return await self._on_writer(self.writer.cut_wal)

    def _on_writer(self, work: Callable[[sqlite3.Connection], T]) -> Outcome[T]:
        writer = self.writer  # or why there is none
        if self._writing is None:
            raise LogClosed()
        return self._writing.unit(writer.run_beside, work)

    async def read(self, unit: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit on one snapshot of the log, on a read-only connection."""
        return await self._on_reader(lambda connection: in_snapshot(connection, unit, *args, **kwargs))

    async def read_aside(
        self, unit: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a unit that takes long on a connection of its own, so that other reads go on meanwhile."""
        async with self.aside() as aside:
            return await aside.unit(lambda connection: in_snapshot(connection, unit, *args, **kwargs))

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[Database]:
        """A read-only connection of its own."""
        self.lock.check()
        if self._reader is None:
            raise LogClosed()
        with inspected(self.path, may_be_empty=False):
            aside = await Database(self.path, read_only=True, pragmas=READER_PRAGMAS).open()
            try:
                yield aside
            finally:
                await aside.close()

    @contextmanager
    def checkpoints_suspended(self) -> Iterator[None]:
        """Let the WAL grow as it must while a long snapshot is held, and say so in the statistics."""
        writer = self._writer
        if writer is None:  # then its owner is another process, or nobody writes
            yield
            return
        writer.checkpoints_suspended += 1
        try:
            yield
        finally:
            writer.checkpoints_suspended -= 1

    async def data_version(self) -> int:
        """A number that changes when another process commits."""
        return await self._on_reader(_data_version)

    def _on_reader(self, work: Callable[[sqlite3.Connection], T]) -> Outcome[T]:
        self._lock.check()
        if self._reader is None:
            raise LogClosed()
        return self._reader.unit(work)

    def proven(self, connection: sqlite3.Connection) -> int | None:
        """The position up to which the head file proves commits, or None when the file has none of its own."""
        proof = self._head_file.read()
        return None if proof is None or proof.file_id != _file_id(connection) else proof.position

    def eras_are_proven(self, connection: sqlite3.Connection) -> bool:
        """Whether the eras are those that the head file knows; true as well where it knows none."""
        proof = self._head_file.read()  # first: an owner that opens the file may add one meanwhile
        return proof is None or proof.eras == UNPROVEN or Eras.load(connection).go_on_from(proof.eras)

    # -- closing ------------------------------------------------------------------------------------------------

    def close(self) -> Outcome[None]:
        """Settle what is queued, absorb, empty the WAL and let the file go; any number of calls do it once."""
        if self._closing is None:
            self._closing = Outcome(loop=asyncio.get_running_loop())
            self._go_on_closing()
        return self._closing

    def _go_on_closing(self, ended: asyncio.Task[None] | None = None) -> None:
        """Close in a task of its own. Whoever cancels all tasks may cut it short, but the file is not left open."""
        if ended is None or ended.cancelled():
            asyncio.ensure_future(self._close()).add_done_callback(self._go_on_closing)
            return
        assert self._closing is not None
        error = ended.exception()
        if error is None:
            self._closing.set_result(None)
        else:
            self._closing.set_exception(error)
            self._closing.exception()  # seen: whoever was cancelled never looks

    async def _close(self) -> None:
        """Every step of it can be repeated."""
        if self._lock.forked:
            return  # the threads of these connections live in the parent
        if self._writer is not None and self._writing is not None:
            await self._writer.close()
            self._writer = None
            if self._standing.is_good():
                await self._settle_file(self._writing)
        if self._wal_file.is_cut and self._reader is not None:
            _kept_open.append(self._reader)  # or SQLite would checkpoint when the last connection is closed
            self._reader = None
        for database in (self._reader, self._writing):
            if database is not None:
                await database.close()
        try:
            self._head_file.close()
        except OutcomeUnknown as error:  # it may lag, and the file must be let go all the same
            log.warning("the file was closed without its last proof: %s", error)
        self._held.close()
        self._lock.release()

    async def _settle_file(self, writing: Database) -> None:
        try:
            self._wal_file.check()
            await writing.unit(self._index.absorb_all)
            if (await writing.unit(empty_wal)).complete:
                self._head_file.checkpointed(self.events.position)
        except Exception as error:  # closing goes on: the next open finds all of it in the WAL
            log.warning("the file was closed without being tidied up: %s", error)


_kept_open: list[Database] = []
"""Readers of files whose WAL was cut, until the end of the process."""


def _begin_epoch(connection: sqlite3.Connection, reason: str | None, found: int, now_us: int) -> None:
    connection.execute("UPDATE epoch SET epoch = epoch + 1")
    if reason is not None:
        connection.execute(  # later than the last one, whatever the wall clock says: their order is read off it
            "INSERT INTO era SELECT ?, ?, max(?, 1 + max(began_at)), ? FROM era",
            (token_hex(4), found + 1, now_us, reason),
        )


def _file_id(connection: sqlite3.Connection) -> str:
    """The first era of a file; it never changes."""
    (era,) = connection.execute("SELECT era FROM era ORDER BY began_at, first_position LIMIT 1").fetchone()
    return str(era)


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
