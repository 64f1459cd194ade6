"""Group commit: appends wait in one bounded queue, and the next group takes what waits.

The loop's side decides what flies and when, and drafts it; the thread's side stores a group in one hop and does the
chores between two groups (absorbing, checkpoints). At most two groups fly, the next sent before the callers of the
last are woken. Work that belongs to an append may ride in its commit, while nothing else is on its way.
"""

import asyncio
import logging
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from eventlog.errors import DamagedFile, LogClosed, OutcomeUnknown
from eventlog.events import Event
from eventlog.store.database import Checkpoint, Database, Outcome, checkpoint, empty_wal, tell
from eventlog.store.drafting import Append, Base, Draft
from eventlog.store.events import Events, Rider
from eventlog.store.index import SessionIndex
from eventlog.store.owner import HeadFile
from eventlog.store.standing import Standing, own_copy
from eventlog.store.wal import WalFile

GROUP_ROWS = 128
MIN_SECOND_GROUP_ROWS = 32
GROUPS_IN_FLIGHT = 2
NEVER = sys.maxsize
MAX_SESSIONS_AHEAD = 10_000  # that drafts remember while groups fly
MAX_QUEUE_EVENTS = 10_000
MAX_QUEUE_BYTES = 64 * 1024 * 1024
EVENT_OVERHEAD_BYTES = 100  # what an event counts for in the queue beside its data

# A saturated loop starves every other thread: it gives the interpreter up so briefly that the writer never gets it.
# So when the loop has worked for a while since a write was sent, its turns sleep for a moment each until it is done.
# Its own processor time says how long it worked: while it waits, or others have the machine, a slow write is not its
# doing, and sleep would only make it slower.
PUMP_AFTER_S = 0.002
PUMP_SLEEP_S = 0.000_05

# A commit that overwrites the WAL takes half as long as one that makes the file longer. So it is begun anew early, but
# under load only so often that groups need not wait for it; and it is made shorter only when it is far too long.
CHECKPOINT_PAGES = 4_000
CHECKPOINT_PAGES_AT_LEISURE = 1_000
TRUNCATE_PAGES = 16_384  # 64 MiB
PAGE_BYTES = 4_096
CHANGES_PER_PAGE = 2  # changed rows, beside those of the log, that make a page of the WAL; measured with deliveries
IDLE_S = 1.0

CHORES_FAIL_WITH = (sqlite3.Error, DamagedFile, OutcomeUnknown)

T = TypeVar("T")

log = logging.getLogger("eventlog.store")


class Landed(Protocol):
    """What the log does with the events of a group, on the loop, after its callers were told."""

    def __call__(self, recorded: list[Event[Any]], appends: list[Append]) -> None: ...


class Flight(NamedTuple):
    """A group on its way through the thread."""

    rows: int
    size_bytes: int
    sent_at_s: float  # in processor time of the loop's thread
    rider: Rider | None


class Writer:
    """The one writer of the file."""

    def __init__(
        self,
        database: Database,
        standing: Standing,
        events: Events,
        index: SessionIndex,
        head_file: HeadFile,
        wal_file: WalFile,
        landed: Landed,
    ) -> None:
        self._database = database
        self._standing = standing
        self._events = events
        self._index = index
        self._head_file = head_file
        self._landed = landed
        self._wal_file = wal_file
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[Append] = deque()
        self._waiting_rows = 0
        self._enough_rows = 1  # to send the next group
        self.queued_events = 0  # waiting or in flight
        self.queued_bytes = 0
        self._flying: deque[Flight] = deque()
        self._base: Base | None = None  # what the next group is drafted on; None when only the thread can tell
        self._room: deque[asyncio.Future[None]] = deque()
        self.riders: tuple[Callable[[list[Append]], Rider | None], ...] = ()
        """Asked before a group is sent behind which nothing waits; the first one that has something to do rides."""
        self._pumping = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_sent_s = 0.0
        self._drained: Outcome[None] | None = None
        self._closed = False
        self._pages_since_checkpoint = 0
        self._damaged = False
        self.checkpoints_suspended = 0  # a backup holds its snapshot
        self.groups = 0
        self.wal_pages = 0

    # -- the loop's side ----------------------------------------------------------------------------------------

    async def append(self, append: Append) -> list[Event[Any]]:
        """Queue an append, when there is room for it, and return its events when they are stored; or raise its error.

        When its caller is cancelled it is settled first: wholly there or wholly absent, never underway.
        """
        if self._room or self.queued_events >= MAX_QUEUE_EVENTS or self.queued_bytes >= MAX_QUEUE_BYTES:
            await self._wait_for_room()
        self._queue(append)
        try:
            await append.landed
        except asyncio.CancelledError:
            await append.settled()
            raise
        if append.error is not None:
            raise append.error
        return append.events

    async def _wait_for_room(self) -> None:
        """Wait, first come first served, until the queue has room."""
        while not self._closed:
            turn: asyncio.Future[None] = self.loop.create_future()
            self._room.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._room:
                    self._room.remove(turn)
                elif not turn.cancelled():
                    self._give_room()  # its turn had come; the next one takes it
                raise
            if self.queued_events < MAX_QUEUE_EVENTS and self.queued_bytes < MAX_QUEUE_BYTES:
                return

    def _queue(self, append: Append) -> None:
        if self._closed:
            raise LogClosed()
        rows = len(append.items)
        size_bytes = EVENT_OVERHEAD_BYTES * rows
        for item in append.items:
            size_bytes += len(item.raw)
        append.size_bytes = size_bytes
        self._waiting.append(append)
        self._waiting_rows += rows
        self.queued_events += rows
        self.queued_bytes += size_bytes
        if self._waiting_rows >= self._enough_rows:
            self._send()

    async def close(self) -> None:
        """Refuse new appends and return when the queued ones are settled."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        while self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._flying or self._waiting:
            self._drained = Outcome(loop=self.loop)
            await self._drained  # also when cancelled: an append that nobody settles would never end

    def _send_next(self) -> None:
        """Send a group if enough waits: with nothing in flight, anything; a second one only when as large as the first.

        Small groups beside large ones would stay small: each is made of the callers that the last one woke. Without a
        base the next group waits until nothing flies: from then on there is one again.
        """
        if not self._flying:
            self._enough_rows = 1
        elif self._base is None or len(self._flying) == GROUPS_IN_FLIGHT:
            self._enough_rows = NEVER
        else:
            self._enough_rows = min(GROUP_ROWS, max(MIN_SECOND_GROUP_ROWS, self._flying[-1].rows))
        if self._waiting_rows >= self._enough_rows:
            self._send()

    def _send(self) -> None:
        group = [self._waiting.popleft()]
        rows, size_bytes = len(group[0].items), group[0].size_bytes
        while self._waiting and rows + len(self._waiting[0].items) <= GROUP_ROWS:
            append = self._waiting.popleft()
            rows += len(append.items)
            size_bytes += append.size_bytes
            group.append(append)
        self._waiting_rows -= rows
        self._last_sent_s = self.loop.time()
        rider = None if self._flying or self._waiting else self._rider(group)
        draft = self._draft(group)
        self._flying.append(Flight(rows, size_bytes, time.thread_time(), rider))
        self._database.post(lambda connection: self._store(connection, group, draft, rider))
        self._send_next()
        if not self._pumping:
            self._pumping = True
            self.loop.call_later(PUMP_AFTER_S, self._pump)

    def _rider(self, group: list[Append]) -> Rider | None:
        return next((rider for ask in self.riders if (rider := ask(group)) is not None), None)

    def _draft(self, group: list[Append]) -> Draft | None:
        """The group as rows, on what is stored when all that flies has landed as it was drafted."""
        if not self._flying:
            self._base = Base(self._events)
        assert self._base is not None  # or `_send_next` would have waited until nothing flies
        try:
            draft = self._events.draft(group, self._base, {})
        except Exception:  # the thread meets it again, and tells the callers
            self._base = None
            return None
        if len(self._base.indexes) > MAX_SESSIONS_AHEAD:
            self._base = None
        return draft

    def _pump(self) -> None:
        if not self._flying:
            self._pumping = False
            return
        worked_s = time.thread_time() - self._flying[0].sent_at_s
        if worked_s < PUMP_AFTER_S:
            self.loop.call_later(PUMP_AFTER_S - worked_s, self._pump)
            return
        time.sleep(PUMP_SLEEP_S)
        self.loop.call_soon(self._pump)

    def _land(
        self, group: list[Append], recorded: list[Event[Any]], error: BaseException | None, as_drafted: bool
    ) -> None:
        landed = self._flying.popleft()
        if not as_drafted:
            self._base = None
        self.queued_events -= landed.rows
        self.queued_bytes -= landed.size_bytes
        self._send_next()
        if error is not None:
            for append in group:
                append.error = own_copy(error)
        for append in group:
            append.is_settled = True
            if not append.landed.done():  # its caller may have been cancelled
                append.landed.set_result(None)
        if landed.rider is not None:
            self._tell_rider(landed.rider, is_stored=error is None)
        if self._room:
            self._give_room()
        self._landed(recorded, group)
        if not self._flying:
            self._rest()

    def _tell_rider(self, rider: Rider, is_stored: bool) -> None:
        try:
            rider.landed(is_stored)
        except Exception:
            log.exception("what rode in a commit raised; the events are stored")

    def _give_room(self) -> None:
        free = MAX_QUEUE_EVENTS - self.queued_events
        while self._room and free > 0 and self.queued_bytes < MAX_QUEUE_BYTES:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def _rest(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._idle_timer is None and not self._closed:
            self._idle_timer = self.loop.call_later(IDLE_S, self._when_idle)

    def _when_idle(self) -> None:
        self._idle_timer = None
        if self._closed or self._flying:
            return
        left_s = IDLE_S - (self.loop.time() - self._last_sent_s)
        if left_s > 0.01:
            self._idle_timer = self.loop.call_later(left_s, self._when_idle)
        else:
            self._database.post(self._tidy)

    # -- the thread's side --------------------------------------------------------------------------------------

    def _store(
        self, connection: sqlite3.Connection, group: list[Append], draft: Draft | None, rider: Rider | None
    ) -> None:
        recorded: list[Event[Any]] = []
        error: BaseException | None = None
        changes = 0
        try:
            self._standing.check()
            if self._damaged:
                connection = self.take_up_again()
            self._wal_file.check()
            changes = connection.total_changes
            recorded = self._events.commit(connection, group, draft, rider)
            self._head_file.committed(self._events.position)
        except BaseException as caught:  # the callers have to hear of it, whatever it was
            error = self._standing.met(caught)
            self._damaged = self._damaged or isinstance(error, OutcomeUnknown)
            if self._damaged:
                log.error("a commit failed, its outcome is unknown, the file is opened again: %s", error)
        self.groups += 1
        others_wait = len(self._flying) > 1
        as_drafted = self._events.last is draft
        tell(self.loop, self._land, group, recorded, error, as_drafted)
        if error is None:
            size_bytes = sum([append.size_bytes for append in group])
            self._count_pages(connection.total_changes - changes - len(recorded), size_bytes)
            self._chores(connection, others_wait)

    def run_beside(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run other work on the thread, between two groups and by the same rule: an I/O error opens the file again."""
        try:
            self._standing.check()
            if self._damaged:
                connection = self.take_up_again()
            self._wal_file.check()
            changes = connection.total_changes
            result = work(connection)
        except BaseException as caught:
            error = self._standing.met(caught)
            self._damaged = self._damaged or isinstance(error, OutcomeUnknown)
            raise error from error.__cause__
        changes = self._database.total_changes - changes  # below 0 if the work opened the file again
        if changes > 0:
            self._count_pages(changes)
        if self._pages_since_checkpoint >= CHECKPOINT_PAGES:
            self._database.post(self._chores)  # behind this, so that nobody waits for it
        return result

    def _count_pages(self, changes: int, size_bytes: int = 0) -> None:
        """Guess what a commit added to the WAL, which SQLite tells only with a checkpoint."""
        self._pages_since_checkpoint += 2 + size_bytes // PAGE_BYTES + changes // CHANGES_PER_PAGE

    def take_up_again(self) -> sqlite3.Connection:
        """Open the connection anew and read back what is stored: SQLite's cache may hold what the disk does not."""
        connection = self._database.reopen()
        self._index.forget_slice()
        self._events.load(connection)
        self._damaged = False
        return connection

    def _chores(self, connection: sqlite3.Connection, others_wait: bool = True) -> None:
        try:
            if self._index.due:
                self._index.step(connection)
                self._pages_since_checkpoint += 128
            enough_pages = CHECKPOINT_PAGES if others_wait else CHECKPOINT_PAGES_AT_LEISURE
            if self._pages_since_checkpoint >= enough_pages and not self.checkpoints_suspended:
                self._checkpoint(connection)
        except CHORES_FAIL_WITH as error:
            # Nothing of an append depends on a chore; it is tried again after a later group.
            log.warning("a chore of the writer failed and will be tried again: %s", error)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        if not self._standing.is_good():
            return
        self._wal_file.check()
        self._checkpointed(checkpoint(connection))
        if self.wal_pages > TRUNCATE_PAGES:
            self.cut_wal(connection)

    def cut_wal(self, connection: sqlite3.Connection) -> bool:
        """Bring all of the WAL into the file and cut it to nothing; False when a reader holds it."""
        self._wal_file.emptied()
        done = empty_wal(connection)
        self._wal_file.check()  # a reader may have kept it from being made shorter
        self._checkpointed(done)
        return done.complete

    def _checkpointed(self, done: Checkpoint) -> None:
        if done.complete:
            self._head_file.checkpointed(self._events.position)
        else:
            self._head_file.sync()
        self.wal_pages = done.pages
        self._pages_since_checkpoint = 0

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """While nothing is appended: bring the WAL into the file, so that its beginning is written next."""
        try:
            if self._pages_since_checkpoint and not self.checkpoints_suspended and not self._damaged:
                self._checkpoint(connection)
        except CHORES_FAIL_WITH as error:
            log.warning("a checkpoint failed and will be tried again: %s", error)
