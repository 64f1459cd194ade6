"""What operators do with dead letters: list, look at one, retry, discard."""

from __future__ import annotations

import logging
from collections.abc import Callable

from eventlog.errors import InvalidName
from eventlog.log import EventLog
from eventlog.store.buried import Buried, DeadLetter, Filter, Retried
from eventlog.store.extensions import Extensions

logger = logging.getLogger("eventlog.durable")


class DeadLetters:
    """The dead letters of a log. An extension is named by its folder or its manifest id; InvalidName if it is unknown.

    Looking changes nothing and works on a read-only log. `wake` tells a worker, where there is one, of a retry.
    """

    def __init__(self, log: EventLog, wake: Callable[[], object] = lambda: None) -> None:
        self._buried = Buried(log.store)
        self._extensions = Extensions(log.store)
        self._wake = wake

    async def list(
        self, extension: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Those of an extension or with a reason, in the order in which they died, without their failed attempts."""
        return await self._buried.letters(await self._filter(None, extension, reason), limit)

    async def get(self, event_id: str, extension: str) -> DeadLetter | None:
        """One of them with its failed attempts, None if there is no such letter."""
        position, era = parse_event_id(event_id)
        return await self._buried.get((await self._extensions.find(extension)).key, position, era)

    async def retry(
        self, event_id: str | None = None, extension: str | None = None, reason: str | None = None
    ) -> Retried:
        """Give the letters that pass all filters six new attempts, due now; without a filter, all letters.

        It is done in chunks: what was retried before a kill stays so. A letter is refused while its extension is not
        enabled or not granted, and once its event is older than the retention. Where the queue of an extension is full
        it stops for that extension, and says so: retry again when there is room.
        """
        retried = await self._buried.retry(await self._filter(event_id, extension, reason))
        self._wake()
        return retried

    async def discard(self, event_id: str, extension: str, reason: str) -> bool:
        """Remove a letter with its attempts, for a reason that goes to the log; False if there is no such letter."""
        if not reason.strip():
            raise InvalidName("reason", reason, "say why nobody needs this event any more")
        discarded = await self._buried.discard(await self._filter(event_id, extension, None)) > 0
        if discarded:
            logger.warning('dead letter: event %s of extension "%s" was discarded: %s', event_id, extension, reason)
        return discarded

    async def _filter(self, event_id: str | None, extension: str | None, reason: str | None) -> Filter:
        key = None if extension is None else (await self._extensions.find(extension)).key
        position, era = (None, None) if event_id is None else parse_event_id(event_id)
        return Filter(extension=key, position=position, era=era, reason=reason)


def parse_event_id(event_id: str) -> tuple[int, str]:
    """`<era>:<position>` as (position, era); raises InvalidName."""
    era, _, position = event_id.partition(":")
    if not (era and position.isascii() and position.isdigit() and len(position) < 19):
        raise InvalidName("event id", event_id, "an event's id is <era>:<position>, such as 1f0c9a3e:57")
    return int(position), era
