"""A session: append to one conversation, read it, follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from eventlog.encoding import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, Encoded, EventData
from eventlog.errors import InvalidEvent, LimitExceeded, LogClosed, ReadOnlyLog
from eventlog.events import Event, NewEvent, SessionInfo
from eventlog.folding import Reducer, SessionFold
from eventlog.following import pages, wait_in
from eventlog.store.bounds import Bounds, wanted
from eventlog.store.events import as_time
from eventlog.store.heads import Head
from eventlog.store.reading import session_floor

if TYPE_CHECKING:  # the log makes sessions; a session only needs the name of its type
    from eventlog.log import EventLog


S = TypeVar("S")


class Session:
    """A handle on one session of an open log, from `EventLog.start_session` or `EventLog.session`."""

    __slots__ = ("_head", "_info", "_key", "_log", "id")

    def __init__(self, log: EventLog, info: SessionInfo, key: int, head: Head | None) -> None:
        self.id = info.id
        self._log = log
        self._info = info
        self._key = key
        self._head = head  # None when the log was opened read-only

    def __repr__(self) -> str:
        return f"Session({self.id!r}, next_index={self.next_index})"

    @property
    def log(self) -> EventLog:
        """The log that it is a session of."""
        return self._log

    @property
    def info(self) -> SessionInfo:
        """What is known of the session: now on the owner; as of this handle's making on a read-only log."""
        return self._info if self._head is None else info_now(self._head) or self._info

    @property
    def next_index(self) -> int:
        """The index that its next event gets."""
        return self._info.next_index if self._head is None else self._head.next_index

    # -- appending ----------------------------------------------------------------------------------------------

    async def append(
        self,
        type: str,
        data: EventData | None = None,
        *,
        turn_id: str | None = None,
        key: str | None = None,
        expected_index: int | None = None,
    ) -> Event[Any]:
        """Append one event and return it when it is committed.

        `data` is a payload struct or a mapping with camelCase keys. The same `key` with the same type, turn and data
        again returns the first event. With `expected_index` the event is stored only if it gets that index. A
        cancelled append is wholly there or wholly absent. Raises InvalidEvent, IndexConflict, KeyConflict,
        StorageFull, OutcomeUnknown, ReadOnlyLog, LogClosed, ForkedProcess.
        """
        log, head = self._log, self._head
        if head is None or head.key is None:
            head = self._owned()  # raises
        encoded = log.encode(type, {} if data is None else data, turn_id, key)
        return (await log.submit(head, [encoded], expected_index))[0]

    async def append_many(self, events: Iterable[NewEvent], *, expected_index: int | None = None) -> list[Event[Any]]:
        """Append up to 1,000 events or 8 MiB of them at consecutive indexes, all or nothing.

        Either every event has a key or none has: then the batch can be repeated as a whole. Raises as `append` does.
        """
        head = self._owned()
        items = [self._encoded(place, event) for place, event in enumerate(events)]
        if not items:
            return []
        if len(items) > MAX_BATCH_EVENTS:
            raise LimitExceeded("events of a batch", MAX_BATCH_EVENTS, len(items))
        size_bytes = sum(len(item.raw) for item in items)
        if size_bytes > MAX_BATCH_BYTES:
            raise LimitExceeded("bytes of a batch", MAX_BATCH_BYTES, size_bytes)
        keys = {item.key for item in items}
        if keys != {None} and (None in keys or len(keys) != len(items)):
            raise InvalidEvent("key", "give every event of a batch a key of its own, or none of them one")
        return await self._log.submit(head, items, expected_index)

    def _encoded(self, place: int, event: NewEvent) -> Encoded:
        if not isinstance(event, NewEvent):
            raise InvalidEvent(f"events[{place}]", f"must be a NewEvent, not {type(event).__name__}")
        return self._log.encode(event.type, event.data, event.turn_id, event.key)

    def _owned(self) -> Head:
        if self._head is None:
            raise ReadOnlyLog(self._log.path)
        if self._head.key is None:
            raise LogClosed("the log was closed since this session was taken from it")
        return self._head

    # -- reading ------------------------------------------------------------------------------------------------

    def read(
        self,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[Event[Any]]:
        """Its events in index order, or the other way; `after` and `before` are exclusive indexes.

        Raises CursorExpired when events behind `after` were pruned; without it, what is left is read.
        """
        bounds = Bounds(after, before, wanted(types), 0, reverse, None if after is None else 0)
        return pages(self._page, _index_of, bounds, limit)  # not around it: each generator costs every event a step

    async def tail(self, after: int | None = None) -> AsyncIterator[Event[Any]]:
        """Its events behind an index, then live ones, without a gap or a repeat; ends when the log closes.

        Raises CursorExpired when events were pruned behind the last one that it gave, or behind `after`.
        """
        log, head, index = self._log, self._head, -1 if after is None else after
        with suppress(LogClosed):  # in the middle of a read
            store = log.store
            seen_floor = await store.read(session_floor, self._key) if after is None else 0
            while not log.ended(store):
                seen = 0 if head is not None else await log.committed()
                upto = -1 if head is None else head.next_index - 1
                bounds = Bounds(after=index, limit=0, seen_floor=seen_floor)
                async for event in pages(self._page, _index_of, bounds, None):
                    index = event.index
                    yield event
                index = max(index, upto)  # the last ones may be gone
                if head is None and not log.ended(store):
                    await log.wait_remote(seen, self._key)
                while head is not None and not log.ended(store) and head.next_index <= index + 1:
                    for event in await wait_in(head.waiters):
                        if event.index == index + 1:
                            index = event.index
                            yield event.unshared()

    async def fold(self, reducer: Reducer[S], initial: S, version: int = 1, *, name: str | None = None) -> S:
        """The state after all events: `reducer(state, event) -> state`, from `initial` or from the newest snapshot.

        States are plain JSON, and the result is what JSON makes of it. A snapshot is kept every so many events (see
        `FoldLimits`) and belongs to the reducer's name, its `version` and `initial`: raise `version` when the reducer
        changes. A lambda or inner function has no name of its own and no snapshots, unless `name` gives it one. A
        corrupt event is passed, with an error in the log of `eventlog.projections`. Raises InvalidEvent for a state
        that is not JSON, and whatever the reducer raises.
        """
        fold = SessionFold(self._log.store, self._log.fold_limits, self.id, self._key)
        return await fold.run(self.read, reducer, initial, version, name)

    async def _page(self, bounds: Bounds) -> list[Event[Any]]:
        # The tail is copied before the snapshot is taken: what the index absorbs in between is found there.
        tail = self._owned().tail_copy() if self._head is not None else None
        store = self._log.store
        return await store.read(store.reading.session_page, self._key, bounds, tail)


def _index_of(event: Event[Any]) -> int:
    return event.index


def info_now(head: Head) -> SessionInfo | None:
    """A head's info, brought up to its last event."""
    info = head.info
    if info is not None and info.next_index != head.next_index:
        info = head.info = msgspec.structs.replace(
            info, next_index=head.next_index, updated_at=as_time(head.updated_at_us)
        )
    return info
