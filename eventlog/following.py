"""Reading page by page, and waiting for what comes: how a tail is woken, by this process's commits or another's."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from eventlog.clock import Clock
from eventlog.errors import EventLogError
from eventlog.events import Event
from eventlog.store.bounds import Bounds
from eventlog.store.reading import sessions_with_news
from eventlog.store.store import Store

FIRST_PAGE_EVENTS = 32
PAGE_EVENTS = 500

logger = logging.getLogger("eventlog.log")
PAGE_BYTES = 4 * 1_048_576  # aimed at, by the size of the events before

Waiters = set[asyncio.Future[list[Event[Any]]]]
ReadPage = Callable[[Bounds], Awaitable[list[Event[Any]]]]


async def pages(
    read: ReadPage, place: Callable[[Event[Any]], int], bounds: Bounds, limit: int | None
) -> AsyncIterator[Event[Any]]:
    """Events page after page. The first page is small, so that a short read stays short; nothing is held in between."""
    size, left = FIRST_PAGE_EVENTS, limit
    while left is None or left > 0:
        size = size if left is None else min(size, left)
        events = await read(replace(bounds, limit=size))
        for event in events:
            yield event
        if len(events) < size:
            return
        last = place(events[-1])
        bounds = replace(bounds, before=last) if bounds.reverse else replace(bounds, after=last)
        left = None if left is None else left - len(events)
        size = max(1, min(PAGE_EVENTS, PAGE_BYTES * len(events) // (1 + sum(len(event.raw) for event in events))))


def wake(waiters: Waiters, news: list[Event[Any]] | None = None) -> None:
    """Wake all that wait here, with what was committed: without it, or where it does not follow what they have seen,
    they read the log."""
    for waiter in tuple(waiters):
        if not waiter.done():
            waiter.set_result(news or [])


async def wait_in(waiters: Waiters) -> list[Event[Any]]:
    """Wait to be woken, and return the news. Between its look at the log and this call a caller must not await."""
    waiter: asyncio.Future[list[Event[Any]]] = asyncio.get_running_loop().create_future()
    waiters.add(waiter)
    try:
        return await waiter
    finally:
        waiters.discard(waiter)  # an abandoned or cancelled tail leaves nothing behind


class RemoteCommits:
    """Notices what another process commits, by a look at SQLite's data version every `poll_s` seconds.

    Runs only while somebody waits, and wakes only the sessions that have news.
    """

    def __init__(self, store: Store, poll_s: float, clock: Clock) -> None:
        self._store = store
        self._poll_s = poll_s
        self._clock = clock
        self._position = 0  # everything up to here was announced
        self._version = -1
        self._sessions: dict[int, Waiters] = {}
        self._all: Waiters = set()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, seen: int, session_key: int | None = None) -> None:
        """Wait until the session, or the whole log, may have something beyond the position that was seen."""
        if not self._running:
            self._position = seen
            self._task = asyncio.ensure_future(self._watch())
        elif self._position > seen:
            return
        waiters = self._all if session_key is None else self._sessions.setdefault(session_key, set())
        try:
            await wait_in(waiters)
        finally:
            if session_key is not None and not waiters:
                self._sessions.pop(session_key, None)

    def stop(self) -> None:
        """Wake everybody and watch no more."""
        if self._task is not None:
            self._task.cancel()
        self._wake_all()

    @property
    def waiting(self) -> int:
        """How many tails wait here."""
        return len(self._all) + sum(map(len, self._sessions.values()))

    @property
    def _running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _watch(self) -> None:
        try:
            while self._all or self._sessions or self._version == -1:
                version = await self._store.data_version()
                if version != self._version:
                    self._version = version
                    self._announce(*await self._store.read(sessions_with_news, self._position))
                await self._clock.sleep(self._poll_s)
        except EventLogError as error:  # whoever waits is woken, reads again, and hears of it
            logger.debug("another process's commits are not watched any more: %s", error)
        finally:
            self._version = -1
            self._wake_all()  # whatever ended the watch, nobody may wait for it

    def _announce(self, position: int, sessions: set[int]) -> None:
        self._position = max(self._position, position)
        if not sessions:
            return
        wake(self._all)
        for key in sessions & self._sessions.keys():
            wake(self._sessions[key])

    def _wake_all(self) -> None:
        wake(self._all)
        for waiters in self._sessions.values():
            wake(waiters)
