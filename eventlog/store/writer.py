"""Group commit: appends wait in one bounded queue, and the next group takes what waits.

The loop's side decides what flies and when; the thread's side stores a group in one hop and does the chores between
two groups (absorbing, checkpoints). At most two groups fly, the next sent before the callers of the last are woken.
"""

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from eventlog.errors import LogClosed, OutcomeUnknown
from eventlog.events import Event
from eventlog.store.database import Checkpoint, Database, Outcome, checkpoint, empty_wal, map_error, tell
from eventlog.store.events import Append, Events
from eventlog.store.index import SessionIndex
from eventlog.store.owner import HeadFile

GROUP_ROWS = 128
MIN_SECOND_GROUP_ROWS = 32
GROUPS_IN_FLIGHT = 2
MAX_QUEUE_EVENTS = 10_000
MAX_QUEUE_BYTES = 64 * 1024 * 1024

# A saturated loop starves every other thread: it gives the interpreter up so briefly that the writer never gets it.
# So a write that has been pending for a while makes each turn of the loop sleep for a moment until it is done.
PUMP_AFTER_S = 0.002
PUMP_SLEEP_S = 0.000_05

CHECKPOINT_PAGES = 4_000
TRUNCATE_PAGES = 16_384  # 64 MiB
PAGE_BYTES = 4_096
IDLE_S = 1.0

T = TypeVar("T")

log = logging.getLogger("eventlog.store")


class Landed(Protocol):
    """What the log does with the events of a group, on the loop, after its callers were told."""

    def __call__(self, recorded: list[Event[Any]], appends: list[Append]) -> None: ...


class Flight(NamedTuple):
    """A group on its way through the thread."""

    rows: int
    sent_at_s: float


class Writer:
    """The one writer of the file."""

    def __init__(
        self, database: Database, events: Events, index: SessionIndex, head_file: HeadFile, landed: Landed
    ) -> None:
        self._database = database
        self._events = events
        self._index = index
        self._head_file = head_file
        self._landed = landed
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[Append] = deque()
        self._waiting_rows = 0
        self._queued_events = 0  # waiting or in flight
        self._queued_bytes = 0
        self._flying: deque[Flight] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
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

    def has_room(self) -> bool:
        """Whether an append may be queued at once."""
        return not self._room and self._queued_events < MAX_QUEUE_EVENTS and self._queued_bytes < MAX_QUEUE_BYTES

    async def wait_for_room(self) -> None:
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
            if self._queued_events < MAX_QUEUE_EVENTS and self._queued_bytes < MAX_QUEUE_BYTES:
                return

    def submit(self, append: Append) -> None:
        """Queue an append. Its outcome is settled later, in any case."""
        if self._closed:
            raise LogClosed()
        rows = len(append.items)
        self._waiting.append(append)
        self._waiting_rows += rows
        self._queued_events += rows
        self._queued_bytes += append.size_bytes
        if not self._flying or (self._waiting_rows >= MIN_SECOND_GROUP_ROWS and self._worth_sending()):
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
            if self._drained is None:
                self._drained = Outcome(loop=self.loop)
            await self._drained  # also when cancelled: an append that nobody settles would never end

    def _worth_sending(self) -> bool:
        """With nothing in flight, at once; a second group only when it is as large as the first.

        Small groups beside large ones would stay small: each is made of the callers that the last one woke.
        """
        if not self._flying:
            return True
        enough = min(GROUP_ROWS, max(MIN_SECOND_GROUP_ROWS, self._flying[-1].rows))
        return len(self._flying) < GROUPS_IN_FLIGHT and self._waiting_rows >= enough

    def _send(self) -> None:
        group = [self._waiting.popleft()]
        rows = len(group[0].items)
        while self._waiting and rows + len(self._waiting[0].items) <= GROUP_ROWS:
            append = self._waiting.popleft()
            rows += len(append.items)
            group.append(append)
        self._waiting_rows -= rows
        self._last_sent_s = now = self.loop.time()
        self._flying.append(Flight(rows, now))
        self._database.post(lambda connection: self._store(connection, group))
        if not self._pumping:
            self._pumping = True
            self.loop.call_later(PUMP_AFTER_S, self._pump)

    def _pump(self) -> None:
        if not self._flying:
            self._pumping = False
            return
        pending_s = self.loop.time() - self._flying[0].sent_at_s
        if pending_s < PUMP_AFTER_S:
            self.loop.call_later(PUMP_AFTER_S - pending_s, self._pump)
            return
        time.sleep(PUMP_SLEEP_S)
        self.loop.call_soon(self._pump)

    def _land(self, group: list[Append], recorded: list[Event[Any]], error: BaseException | None) -> None:
        self._flying.popleft()
        if self._waiting and self._worth_sending():
            self._send()
        for append in group:
            self._queued_events -= len(append.items)
            self._queued_bytes -= append.size_bytes
            if error is None and append.error is None:
                append.outcome.set_result(append.events)
            else:
                append.outcome.set_exception(_own_copy(append.error or error))
                append.outcome.exception()  # seen: a cancelled caller never looks
        if self._room:
            self._give_room()
        self._landed(recorded, group)
        if not self._flying:
            self._rest()

    def _give_room(self) -> None:
        free = MAX_QUEUE_EVENTS - self._queued_events
        while self._room and free > 0 and self._queued_bytes < MAX_QUEUE_BYTES:
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

    def _store(self, connection: sqlite3.Connection, group: list[Append]) -> None:
        recorded: list[Event[Any]] = []
        error: BaseException | None = None
        try:
            if self._damaged:
                connection = self._take_up_again()
            recorded = self._events.commit(connection, group)
            self._head_file.committed(self._events.position)
        except BaseException as caught:  # the callers have to hear of it, whatever it was
            error = map_error(caught, self._database.path)
            self._damaged = self._damaged or isinstance(error, OutcomeUnknown)
            if self._damaged:
                log.error("a commit failed, its outcome is unknown, the file is opened again: %s", error)
        self.groups += 1
        tell(self.loop, self._land, group, recorded, error)
        if error is None:
            self._pages_since_checkpoint += 2 + sum([append.size_bytes for append in group]) // PAGE_BYTES
            self._chores(connection)

    def run_beside(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run other work on the thread, between two groups and by the same rule: an I/O error opens the file again."""
        try:
            if self._damaged:
                connection = self._take_up_again()
            return work(connection)
        except BaseException as caught:
            self._damaged = self._damaged or isinstance(map_error(caught, self._database.path), OutcomeUnknown)
            raise

    def _take_up_again(self) -> sqlite3.Connection:
        """Open the connection anew and read back what is stored: SQLite's cache may hold what the disk does not."""
        connection = self._database.reopen()
        self._index.forget_slice()
        self._events.load(connection)
        self._damaged = False
        return connection

    def _chores(self, connection: sqlite3.Connection) -> None:
        try:
            if self._index.due:
                self._index.step(connection)
                self._pages_since_checkpoint += 128
            if self._pages_since_checkpoint >= CHECKPOINT_PAGES and not self.checkpoints_suspended:
                self._checkpoint(connection)
        except sqlite3.Error as error:
            # Nothing of an append depends on a chore; it is tried again after a later group.
            log.warning("a chore of the writer failed and will be tried again: %s", error)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        self._checkpointed(checkpoint(connection))
        if self.wal_pages > TRUNCATE_PAGES:
            self._checkpointed(empty_wal(connection))

    def _checkpointed(self, done: Checkpoint) -> None:
        if done.complete:
            self._head_file.checkpointed(self._events.position)
        else:
            self._head_file.sync()
        self.wal_pages = done.pages
        self._pages_since_checkpoint = 0

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """While nothing is appended: empty the WAL, so that the file stays small and the next open is quick."""
        try:
            if self._pages_since_checkpoint and not self.checkpoints_suspended and not self._damaged:
                self._checkpointed(empty_wal(connection))
        except sqlite3.Error as error:
            log.warning("the WAL could not be emptied and will be tried again: %s", error)


def _own_copy(error: BaseException | None) -> BaseException:
    """An error of its own for each caller: a traceback that several tasks append to grows without end."""
    if error is None:
        return LogClosed()
    copy: BaseException
    try:
        copy = error.__class__.__new__(error.__class__, *error.args)
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
    except TypeError:
        return error
    copy.__cause__ = error.__cause__
    return copy
