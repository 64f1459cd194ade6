"""What was recorded and is not in anybody's hands yet: in memory while it is little, else only in the log.

Events pass straight from the log to the relay. They wait, in order, when a "resume" hook's claim has to be committed
before they are shown, while a hook joins, and behind events that are only in the log, which is read page by page then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from eventlog.clock import Clock
from eventlog.errors import ForkedProcess, LogClosed
from eventlog.events import Event
from eventlog.store.cursors import Cursors

PAGE_EVENTS = 500
RETRY_S = 1.0

log = logging.getLogger("eventlog.observe")


class Inbox:
    """Events between the log and the relay; `limit` is how many it holds in memory."""

    def __init__(self, cursors: Cursors, clock: Clock, limit: int, wake: Callable[[], None]) -> None:
        self.ready: deque[Event[Any]] = deque()
        """What the relay may take."""
        self.seen = 0
        """The position of the last event that was recorded."""
        self.claimants: list[int] = []
        """The "resume" hooks, by their rows: what they are shown is claimed first."""
        self._cursors = cursors
        self._clock = clock
        self._limit = limit
        self._wake = wake
        self._waiting: deque[Event[Any]] = deque()
        self._behind: int | None = None  # the rest, after this position, is only in the log
        self._holds = 0
        self._feeder: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def place(self) -> int:
        """Everything up to here was taken by the relay."""
        for events in (self.ready, self._waiting):
            if events:
                return events[0].position - 1
        return self.seen if self._behind is None else self._behind

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self.ready and not self._waiting and self._behind is None

    def put(self, events: list[Event[Any]]) -> None:
        """Take what was recorded; it follows what was recorded before."""
        self.seen = events[-1].position
        if self._behind is not None:
            return  # it is read when its turn comes
        direct = not (self.claimants or self._holds or self._waiting or self._feeder)
        if len(self.ready) + len(self._waiting) + len(events) > self._limit:
            self._behind = events[0].position - 1
            self._feed_on()
        elif direct:
            self.ready.extend(events)
        else:
            self._waiting.extend(events)
            self._feed_on()

    async def hold(self) -> None:
        """Keep what comes from the relay until `release`; when this returns nothing more is made ready."""
        self._holds += 1
        if self._feeder is not None:
            self._make_room()
            await asyncio.wait([self._feeder])

    def release(self) -> None:
        """Let the relay have again what it may have."""
        self._holds -= 1
        self._feed_on()

    def rewind(self, after: int) -> None:
        """Begin again behind a position, which is read from the log. Only while held and with nothing ready."""
        self._waiting.clear()
        self._behind = after if after < self.seen else None

    def taken(self) -> None:
        """To be called when the relay has taken some: there may be room again."""
        if self._room is not None and len(self.ready) <= self._limit // 2:
            self._make_room()

    def close(self) -> asyncio.Task[None] | None:
        """Hand nothing on any more; returns what is still running."""
        self._holds += 1
        if self._feeder is not None:
            self._feeder.cancel()
        return self._feeder

    # -- feeding ------------------------------------------------------------------------------------------------

    def _feed_on(self) -> None:
        idle = self._feeder is None and not self._holds
        if idle and (self._waiting or self._behind is not None):
            self._feeder = asyncio.get_running_loop().create_task(self._feed())
            self._feeder.add_done_callback(self._fed)

    def _fed(self, _feeder: asyncio.Task[None]) -> None:
        self._feeder = None
        self._feed_on()  # also if somebody has cancelled it
        self._wake()

    async def _feed(self) -> None:
        while not self._holds and (self._waiting or self._behind is not None):
            try:
                await self._feed_once()
            except (LogClosed, ForkedProcess):
                self._holds += 1  # for good
            except Exception as error:  # a full disk, say: hooks wait for the log to be usable again
                log.warning("observe hooks wait, and it is tried again in %g s: %s", RETRY_S, error)
                await self._clock.sleep(RETRY_S)

    async def _feed_once(self) -> None:
        """Make one batch ready: what waits, or a page of the log."""
        await self._wait_for_room()
        if self._holds:
            return
        if self._waiting:
            count = len(self._waiting)
            await self._claim(self._waiting[-1].position)
            events = list(islice(self._waiting, count))
            for _ in range(count):
                self._waiting.popleft()
        else:
            assert self._behind is not None
            seen = self.seen
            page = await self._cursors.page(self._behind, PAGE_EVENTS)
            events = [event for event in page if event.position <= seen]  # what follows was not announced yet
            after = events[-1].position if events else seen
            await self._claim(after)
            self._behind = after if after < self.seen else None
        self.ready.extend(events)
        self._wake()

    async def _claim(self, upto: int) -> None:
        if self.claimants:
            await self._cursors.claim(self.claimants, upto)

    async def _wait_for_room(self) -> None:
        while len(self.ready) > self._limit // 2 and not self._holds:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
