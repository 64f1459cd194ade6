"""The memory of the OpenAI Agents SDK in a session of the log (extra `openai-agents`).

    memory = await EventLogSession.open(log, "s1")
    result = await Runner.run(agent, "Is it high tide?", session=memory)

Each item is an event, and so is that items were popped or cleared: what the SDK forgets stays in the history, hooks see
it, and a tail streams it. Items come back as they were given, key by key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from eventlog import Event, EventLog, IndexConflict, NewEvent, Session, SessionExists, SessionNotFound, define_event
from eventlog.events import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_EVENT_BYTES, encode_value

if TYPE_CHECKING:  # the SDK calls us: at run time nothing of it is needed here
    from agents import SessionSettings, TResponseInputItem

__all__ = ["ITEMS_CLEARED", "ITEM_ADDED", "ITEM_POPPED", "EventLogSession", "ItemAdded", "ItemPopped", "ItemsCleared"]

ITEM_ADDED = "openai.item.added"
"""The type of an event whose data is an `ItemAdded`."""

ITEM_POPPED = "openai.item.popped"
"""The type of an event whose data is an `ItemPopped`."""

ITEMS_CLEARED = "openai.items.cleared"
"""The type of an event whose data is an `ItemsCleared`."""


class ItemAdded(msgspec.Struct, frozen=True):
    """An input item of the Responses API was added, as the SDK gave it."""

    item: Any


class ItemPopped(msgspec.Struct, frozen=True):
    """The item that the event of this index added does not count any more."""

    index: int


class ItemsCleared(msgspec.Struct, frozen=True):
    """Nothing that was added before counts any more."""


define_event(ITEM_ADDED, ItemAdded)  # so that hooks can name them
define_event(ITEM_POPPED, ItemPopped)
define_event(ITEMS_CLEARED, ItemsCleared)

_TYPES = (ITEM_ADDED, ITEM_POPPED, ITEMS_CLEARED)

READ_AT_LEAST = 16
"""Events of one look backwards, so that a few pops do not make a look each."""


class EventLogSession:
    """A session as the SDK knows them, on one of an open log; it lives on the log's event loop.

    That is the loop of `Runner.run` and `Runner.run_streamed`; `Runner.run_sync` has another one. `session_settings`
    limits how many items a run is given. `turn_id` is what the events of items belong to, and may be set before each
    run.
    """

    def __init__(
        self, session: Session, *, session_settings: SessionSettings | None = None, turn_id: str | None = None
    ) -> None:
        self.session_id = session.id
        self.session_settings = session_settings
        self.turn_id = turn_id
        self._session = session

    @classmethod
    async def open(
        cls,
        log: EventLog,
        session_id: str,
        *,
        session_settings: SessionSettings | None = None,
        turn_id: str | None = None,
        **start: Any,
    ) -> EventLogSession:
        """The session of this id, which is started where it is not known: then with `start`, as `start_session`."""
        session = await _get_or_start(log, session_id, start)
        return cls(session, session_settings=session_settings, turn_id=turn_id)

    # -- what the SDK asks for ----------------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items that count, oldest first: all, or the newest `limit` of them, which alone are read then.

        Without a limit that of `session_settings` holds; a negative one is none, as in the SDK's own sessions. Raises
        CorruptEvent rather than leave out an item.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        added = [event async for event in self._newest(None if limit is None or limit < 0 else limit)]
        return [_item(event) for event in reversed(added)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items: all or none of them, up to 1,000 or 8 MiB at once; more are added in parts.

        Raises InvalidEvent for what JSON cannot hold, and for an item over 1 MiB.
        """
        events = [NewEvent(ITEM_ADDED, ItemAdded(item), self.turn_id) for item in items]
        for part in _parts(events):
            await self._session.append_many(part)

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item out of what counts, and return it; None when there is none."""
        while True:
            expected_index = self._session.next_index
            newest = [event async for event in self._newest(1)]
            if not newest:
                return None
            try:
                popped = ItemPopped(newest[0].index)
                await self._session.append(ITEM_POPPED, popped, turn_id=self.turn_id, expected_index=expected_index)
            except IndexConflict:  # there is a newer one perhaps, or somebody else has popped this one
                continue
            return _item(newest[0])

    async def clear_session(self) -> None:
        """Let nothing count any more that was added so far. It stays in the log: `EventLog.forget` erases."""
        await self._session.append(ITEMS_CLEARED, ItemsCleared(), turn_id=self.turn_id)

    # -- the fold -------------------------------------------------------------------------------------------------

    async def _newest(self, limit: int | None) -> AsyncIterator[Event[Any]]:
        """What added the items that count, newest first. What an event takes back was before it, so it is known.

        A forgotten event is the end, as a clear is: all that was before it was forgotten with it.
        """
        popped: set[int] = set()
        before, left = None, limit
        while left is None or left > 0:
            size = None if left is None else max(READ_AT_LEAST, left + len(popped))
            read = 0
            async for event in self._session.read(before=before, limit=size, types=_TYPES, reverse=True):
                before, read = event.index, read + 1
                if event.is_forgotten or event.type == ITEMS_CLEARED:
                    return
                if event.type == ITEM_POPPED:
                    popped.add(event.data.index)
                elif event.index in popped:
                    popped.remove(event.index)
                elif left is None or left > 0:
                    left = None if left is None else left - 1
                    yield event
            if size is None or read < size:
                return


async def _get_or_start(log: EventLog, session_id: str, start: dict[str, Any]) -> Session:
    while True:
        with suppress(SessionNotFound):
            return await log.session(session_id)
        with suppress(SessionExists):
            return await log.start_session(session_id, **start)
        await asyncio.sleep(0)  # somebody else's start is being committed


def _item(event: Event[Any]) -> TResponseInputItem:
    return cast("TResponseInputItem", event.data.item)


def _parts(events: list[NewEvent]) -> Iterator[list[NewEvent]]:
    """As much at a time as the log takes at once."""
    part: list[NewEvent] = []
    size_bytes = 0
    counted = len(events) * MAX_EVENT_BYTES > MAX_BATCH_BYTES  # fewer cannot be too large together
    for event in events:
        event_bytes = len(encode_value(event.data, "item")) if counted else 0
        if part and (len(part) == MAX_BATCH_EVENTS or size_bytes + event_bytes > MAX_BATCH_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(event)
        size_bytes += event_bytes
    if part:
        yield part
