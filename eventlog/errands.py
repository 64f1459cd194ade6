"""Care that takes longer than an answer may: begun by one request to the log's owner, and looked at by others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from eventlog.errors import InvalidRequest, LimitExceeded
from eventlog.serving import Command
from eventlog.upkeep import prunable

if TYPE_CHECKING:  # the log has the errands; they only need the name of its type
    from eventlog.log import EventLog

MAX_RUNNING = 4
KEPT = 16
"""Errands that have ended, whose result can still be asked for."""
LOOK_S = 0.2
"""How long a look at an errand waits for its end; in real time, since another process waits."""

Update = Callable[[int, int], None]


class Seen(msgspec.Struct, frozen=True):
    """An errand, as it is now."""

    done: int
    total: int | None
    ended: bool
    result: Any = None


class _Errand:
    def __init__(self, work: Callable[[Update], Awaitable[Any]]) -> None:
        self.done = 0
        self.total: int | None = None
        self.task = asyncio.ensure_future(work(self._update))
        self.task.add_done_callback(_look)

    def _update(self, done: int, total: int) -> None:
        self.done, self.total = done, total


def _look(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as seen: whoever asked for it may be gone


class Errands:
    """What the owner of a log does for others, each by its number. It goes on if nobody looks at it any more."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._errands: OrderedDict[int, _Errand] = OrderedDict()
        self._last = 0

    def all(self) -> dict[str, Command]:
        """The commands by name."""
        return {
            "backup": self.backup,
            "prune": self.prune,
            "prune.preview": self.preview,
            "forget": self.forget,
            "errand": self.look,
            "errand.cancel": self.cancel,
        }

    async def backup(self, path: str) -> int:
        """Begin a backup."""
        return self._begin(lambda update: self._log.backup(path, update))

    async def prune(
        self,
        older_than_s: float | None = None,
        keep_events: int | None = None,
        keep_bytes: int | None = None,
        deltas: bool = False,
    ) -> int:
        """Begin to prune."""
        return self._begin(lambda update: self._log.prune(older_than_s, keep_events, keep_bytes, deltas, update))

    async def preview(
        self,
        older_than_s: float | None = None,
        keep_events: int | None = None,
        keep_bytes: int | None = None,
        deltas: bool = False,
    ) -> int:
        """Begin to count what pruning would remove."""
        return self._begin(lambda _: prunable(self._log, older_than_s, keep_events, keep_bytes, deltas))

    async def forget(self, session_ids: list[str]) -> int:
        """Begin to forget sessions."""
        return self._begin(lambda update: self._log.forget(*session_ids, progress=update))

    async def look(self, errand: int) -> Seen:
        """How far an errand is; its end is waited for a moment. Raises what it raised."""
        found = self._find(errand)
        await asyncio.wait({found.task}, timeout=LOOK_S)
        if not found.task.done():
            return Seen(found.done, found.total, False)
        if found.task.cancelled():
            raise InvalidRequest(f"errand {errand} was cancelled")
        return Seen(found.done, found.total, True, msgspec.to_builtins(found.task.result()))

    async def cancel(self, errand: int) -> None:
        """End an errand early, and return when it has ended."""
        task = self._find(errand).task
        task.cancel()
        await asyncio.wait({task})

    async def close(self) -> None:
        """End all of them early."""
        running = {errand.task for errand in self._errands.values() if not errand.task.done()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _begin(self, work: Callable[[Update], Awaitable[Any]]) -> int:
        running = sum(not errand.task.done() for errand in self._errands.values())
        if running >= MAX_RUNNING:
            raise LimitExceeded("errands at once", MAX_RUNNING, running + 1)
        ended = [number for number, errand in self._errands.items() if errand.task.done()]
        for number in ended[: max(0, len(ended) - KEPT + 1)]:
            del self._errands[number]
        self._last += 1
        self._errands[self._last] = _Errand(work)
        return self._last

    def _find(self, errand: int) -> _Errand:
        found = self._errands.get(errand)
        if found is None:
            raise InvalidRequest(f"there is no errand {errand}")
        return found
