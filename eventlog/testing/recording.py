"""A hook that keeps what it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from eventlog import Event, HookContext, HookDefinition, define_hook


class Recording:
    """Keeps the events that its hook is shown: `runtime.add_hook("recording", recording.hook)`."""

    def __init__(self, types: Iterable[str] = ("*",)) -> None:
        self.events: list[Event[Any]] = []
        self.hook: HookDefinition = define_hook(events=dict.fromkeys(types, self._keep))
        self._news: set[asyncio.Future[None]] = set()

    @property
    def types(self) -> list[str]:
        """The type of each event, in the order in which they were shown."""
        return [event.type for event in self.events]

    def of(self, type: str) -> list[Event[Any]]:
        """The events of one type."""
        return [event for event in self.events if event.type == type]

    async def seen(self, type: str, count: int = 1, timeout_s: float = 10.0) -> Event[Any]:
        """Wait until it was shown `count` events of the type, and return the last of these; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(found := self.of(type)) < count:
                news = asyncio.get_running_loop().create_future()
                self._news.add(news)
                try:
                    await news
                finally:
                    self._news.discard(news)
        return found[count - 1]

    async def _keep(self, event: Event[Any], _ctx: HookContext) -> None:
        self.events.append(event)
        for news in tuple(self._news):
            if not news.done():
                news.set_result(None)
