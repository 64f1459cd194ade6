"""Runs a hook over recorded events again, to see what it does with them: no cursor moves, nothing is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from eventlog.events import Event, SessionInfo
from eventlog.host import Meter
from eventlog.host.hosts import Hosts
from eventlog.host.kv import channel_state
from eventlog.host.reminding import Reminding
from eventlog.log import EventLog
from eventlog.logs import harmless_logger
from eventlog.observe.context import Contexts
from eventlog.observe.failures import threw
from eventlog.observe.handlers import EVERY
from eventlog.observe.hook import HookDefinition
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.relay import as_async, is_cancelled_from_outside
from eventlog.observe.threads import PlainThreads

logger = harmless_logger("eventlog.observe")


class Replay:
    """Calls the handlers of one hook, one event after the other, with the context that they get when they are live.

    What the handlers do is done: they write to the same kv and files. `ctx.session` is the session as it is now.
    """

    def __init__(
        self,
        log: EventLog,
        agent: str,
        name: str,
        hook: HookDefinition,
        services: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        limits = ObserveLimits()
        self._log = log
        self._name = name
        self._threads = PlainThreads(log.clock, limits.plain_threads, limits.max_plain_threads, limits.stuck_after_s)
        self._handlers = {type: as_async(handler, self._threads) for type, handler in hook.events.items()}
        hosts = Hosts(log, agent, Meter(agent), Reminding(log, agent), services)
        self._contexts = Contexts(
            agent=agent,
            state_root=log.path.absolute().parent / "state",
            append=log.append,
            host_for=hosts.of,
            state_for=lambda info: channel_state(log.store, info),
        )
        self.calls = 0
        self.errors = 0

    async def show(self, event: Event[Any], session: SessionInfo) -> None:
        """Call what the hook has for an event, the typed handler first; what it throws is logged and counted."""
        for key in (event.type, EVERY):
            if key in self._handlers:
                await self._call(key, event, session)

    async def _call(self, key: str, event: Event[Any], session: SessionInfo) -> None:
        self.calls += 1
        try:
            await self._handlers[key](event, self._contexts.for_hook(session, event.turn_id))
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError) and is_cancelled_from_outside()
            if cancelled or isinstance(error, KeyboardInterrupt):
                raise
            self.errors += 1
            logger.error("%s", threw("hook", self._name, event, error), exc_info=error)

    def close(self) -> None:
        """Let its threads end."""
        self._threads.close()
