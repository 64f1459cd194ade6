"""The sessions that a log's owner knows: one head of each, however many ask for it at the same time.

Two heads of one session would give out the same index twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eventlog.errors import SessionExists, SessionNotFound
from eventlog.store.heads import Head
from eventlog.store.reading import find_session

if TYPE_CHECKING:  # the log has them; they only need its store, which another one takes the place of
    from eventlog.log import EventLog

RECENT_SESSIONS = 4_096


class KnownSessions:
    """Finds the head of a session in memory or in the file, and makes one for a session that is started."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._recent: OrderedDict[str, Head] = OrderedDict()  # keeps the heads of the sessions used last
        self._loading: dict[str, asyncio.Task[Head | None]] = {}
        self._starts: dict[str, asyncio.Event] = {}  # underway; set when they end

    def forget(self) -> None:
        """The file was closed."""
        self._recent.clear()

    async def head(self, session_id: str) -> Head:
        """A session's one head, which is kept in memory from now on; raises SessionNotFound."""
        head = self._recent.get(session_id)
        if head is None:
            head = await self._find(session_id)
            if head is None:
                raise SessionNotFound(session_id)
            self._recent[session_id] = head
            if len(self._recent) > RECENT_SESSIONS:
                self._recent.popitem(last=False)
        return head

    async def start_ended(self, session_id: str) -> None:
        """Return when no start of this session is underway any more."""
        if session_id in self._starts:
            _ = await self._starts[session_id].wait()

    @asynccontextmanager
    async def starting(self, session_id: str) -> AsyncIterator[Head]:
        """The head of a session that is started in here, gone again if it is not; raises SessionExists."""
        found = await self._find(session_id)
        heads = self._log.store.events.heads
        if found is not None or session_id in heads:  # there, or begun while it was looked for
            raise SessionExists(session_id)
        head = heads[session_id] = Head(session_id)  # from here on a second start finds it
        ended = self._starts[session_id] = asyncio.Event()
        try:
            yield head
        finally:
            del self._starts[session_id]
            ended.set()
            if head.key is None and heads.get(session_id) is head:
                del heads[session_id]
                self._recent.pop(session_id, None)

    async def _find(self, session_id: str) -> Head | None:
        """The one in memory, or loaded once."""
        head = self._log.store.events.heads.get(session_id)
        if head is not None and (head.info is not None or head.key is None):
            return head
        loading = self._loading.get(session_id)
        if loading is None:
            loading = self._loading[session_id] = asyncio.ensure_future(self._load(session_id))
            loading.add_done_callback(lambda _: self._loading.pop(session_id, None))
        return await asyncio.shield(loading)

    async def _load(self, session_id: str) -> Head | None:
        store, imports, found = self._log.store, -1, None
        while imports != store.events.imports:  # what was looked up before an import may be what it was before it
            imports = store.events.imports
            found = await store.read(find_session, session_id, absorbed=True)
        if found is None:
            return store.events.heads.get(session_id)  # its start may be underway
        loaded = Head(session_id)
        loaded.key, loaded.next_index, loaded.info = found.key, found.info.next_index, found.info
        head = store.events.heads.setdefault(session_id, loaded)  # an import may have been quicker
        head.info = head.info or found.info
        return head
