"""Lanes: the sessions whose handlers are not through, and what waits behind them, in memory or only in the log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from eventlog.errors import CursorExpired, ForkedProcess, LogClosed, SessionNotFound
from eventlog.events import Event, SessionInfo
from eventlog.log import EventLog
from eventlog.observe.inbox import RETRY_S
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.routes import Call, Calls, Subscriber
from eventlog.store.cursors import Cursors, Gap

MIN_PAGE_EVENTS = 8

T = TypeVar("T")

log = logging.getLogger("eventlog.observe")


class Lanes:
    """The lanes of one dispatcher, by session, and how much they hold together."""

    def __init__(self, event_log: EventLog, cursors: Cursors, limits: ObserveLimits) -> None:
        self.by_session: dict[str, Lane] = {}
        self._log = event_log
        self._clock = event_log.clock
        self._cursors = cursors
        self._limits = limits
        self._events = 0

    @property
    def places(self) -> Iterator[int]:
        """Up to where each lane is through."""
        return (lane.event.position - 1 for lane in self.by_session.values())

    def hold(self, lane: Lane) -> None:
        """From now on the session of its event has this lane."""
        lane.held = True
        self.by_session[lane.event.session_id] = lane

    def put(self, event: Event[Any]) -> None:
        """Let an event wait in its session's lane."""
        has_room = self._events < self._limits.lanes_events
        if self.by_session[event.session_id].put(event, self._limits.lane_events if has_room else 0):
            self._events += 1

    async def advance(self, lane: Lane, types: frozenset[str] | None) -> bool:
        """Bring the next event of a lane to its front. When there is none, the session needs no lane: False."""
        now_s = self._clock.monotonic_s()
        if now_s - lane.since_s > self._limits.batch_s:  # handlers that never wait must not keep the loop
            lane.since_s = now_s
            await asyncio.sleep(0)
        while not lane.queue and lane.missed is not None:
            await self._persist(lambda: self._refill(lane, types))
        if not lane.next():
            del self.by_session[lane.event.session_id]
            return False
        self._events -= 1
        return True

    async def info(self, lane: Lane) -> SessionInfo | None:
        """The state of its session; None when there is no such session any more."""
        return await self._persist(lambda: self._info(lane.event.session_id))

    async def _info(self, session_id: str) -> SessionInfo | None:
        try:
            return self._log.info_of(session_id) or await self._log.session_info(session_id)
        except SessionNotFound:
            return None

    async def _refill(self, lane: Lane, types: frozenset[str] | None) -> None:
        """Read on from the log where the lane's memory ended."""
        missed = lane.missed
        assert missed is not None
        after, last_index = missed.after, missed.last_index
        limit = max(MIN_PAGE_EVENTS, min(self._limits.page_events, self._limits.lanes_events - self._events))
        try:
            session = await self._log.session(lane.event.session_id)
            page = [event async for event in session.read(after=after, before=last_index + 1, limit=limit)]
        except (SessionNotFound, CursorExpired):
            page = []  # pruned: no hook waited for it, or it would not have been
        upto_index = page[-1].index if len(page) == limit else last_index
        recorded = await self._cursors.recorded_here(page)
        wanted = [event for event in recorded if types is None or event.type in types]
        lane.refill(wanted, upto_index)
        self._events += len(wanted)

    async def _persist(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read until it succeeds: a lane must not lose its place because the disk once did not answer."""
        while True:
            try:
                return await read()
            except (LogClosed, ForkedProcess):
                raise
            except Exception as error:
                log.warning("observe hooks wait, and it is tried again in %g s: %s", RETRY_S, error)
                await self._clock.sleep(RETRY_S)


class Lane:
    """The place of one session: an event in the midst of its calls, events behind it, and how many more in the log.

    The relay has one too, which belongs to no session until a handler waits: from then on it is `held`.
    """

    __slots__ = ("call", "calls", "event", "held", "missed", "queue", "reported", "since_s", "task", "waited")

    event: Event[Any]

    def __init__(self) -> None:
        self.calls: Calls | None = None  # of the event: all, or those that are left; None: not looked up yet
        self.call: Call | None = None  # the one that was begun,
        self.waited = False  # whether it waited,
        self.since_s = 0.0  # since when,
        self.reported = False  # and whether that was reported as too long
        self.held = False
        self.task: asyncio.Task[Any] | None = None
        self.queue: deque[Event[Any]] = deque()
        self.missed: Missed | None = None

    def next(self) -> bool:
        """Bring the event that waits first to the front; False when none does."""
        if not self.queue:
            return False
        self.event = self.queue.popleft()
        self.calls = None
        return True

    def waits(self, now_s: float) -> None:
        """What was begun waits for something, not for the first time perhaps."""
        if not self.waited:
            self.waited, self.since_s = True, now_s

    def goes_on(self) -> None:
        """What waited has ended."""
        if self.reported and self.call is not None:
            self.call.subscriber.stuck -= 1
        self.waited = self.reported = False

    def drop_call(self) -> None:
        """The call has ended and the task with it: the next calls are left to another task."""
        self.goes_on()
        self.calls = self.unfinished[1:]
        self.call = None

    @property
    def unfinished(self) -> Calls:
        """The calls of the event that have not ended."""
        calls = self.calls or ()
        return calls if self.call is None else calls[calls.index(self.call) :]

    def put(self, event: Event[Any], limit: int) -> bool:
        """Take a later event; False when it is only noted, because too many wait."""
        if self.missed is None and len(self.queue) < limit:
            self.queue.append(event)
            return True
        if self.missed is None:
            self.missed = Missed(after=(self.queue[-1] if self.queue else self.event).index)
        self.missed.note(event)
        return False

    def refill(self, page: list[Event[Any]], upto_index: int) -> None:
        """Take events that were only noted, as they were read from the log: all of them up to an index."""
        assert self.missed is not None
        self.missed.forget(page, upto_index)
        self.queue.extend(page)
        if self.missed.after >= self.missed.last_index:
            self.missed = None

    def owed(self, to: Subscriber) -> Gap | None:
        """What a subscriber would still be shown here, the call that was begun and not ended included."""
        is_owed = self.calls is None or any(call.subscriber is to for call in self.unfinished)
        events = [*([self.event] if is_owed else []), *self.queue]
        positions = [event.position for event in events if event.position > to.start and to.listens_to(event.type)]
        missed = self.missed.owed(to) if self.missed is not None else None
        if not positions:
            return missed
        gap = Gap(positions[0], positions[-1], len(positions))
        return gap if missed is None else Gap(gap.first, missed.last, gap.at_most + missed.at_most)


class Missed:
    """Events of a session that a lane had no room for: how many of each type there are, and where they end."""

    __slots__ = ("_counts", "_first", "_lasts", "after", "last_index")

    def __init__(self, after: int) -> None:
        self.after = after  # the index before the first of them
        self.last_index = after
        self._first = 0  # a position that none of them is before
        self._lasts: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def note(self, event: Event[Any]) -> None:
        """One more."""
        self._first = self._first or event.position
        self._lasts[event.type] = event.position
        self.last_index = event.index
        self._counts[event.type] += 1

    def forget(self, page: list[Event[Any]], upto_index: int) -> None:
        """These were read from the log: all up to an index."""
        self._counts.subtract(event.type for event in page)
        if page:
            self._first = page[-1].position + 1
        self.after = upto_index

    def owed(self, to: Subscriber) -> Gap | None:
        """What a subscriber would have been shown of them."""
        types = [type_ for type_, count in self._counts.items() if count > 0 and to.listens_to(type_)]
        first = max(self._first, to.start + 1)
        last = max((self._lasts[type_] for type_ in types), default=0)
        if first > last:
            return None
        return Gap(first, last, min(sum(self._counts[type_] for type_ in types), last - first + 1))
