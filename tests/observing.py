"""Helpers for tests of the dispatcher: a served log, and a hook that writes down what it was shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from eventlog.clock import Clock
from eventlog.events import Event, NewEvent, SessionInfo
from eventlog.log import EventLog
from eventlog.observe.channel import ChannelDefinition
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.hook import HookDefinition, OnRestart
from eventlog.observe.limits import ObserveLimits

PATIENCE_S = 20.0

NOTE = "artifact.tagged"
"""A type that may stand anywhere."""
NOTED = {"kind": "note", "key": "k"}


class Context(msgspec.Struct, frozen=True):
    """Stands for what handlers are called with beside the event."""

    session: SessionInfo
    turn_id: str | None


def hook_of(handlers: Mapping[str, Callable[..., Any]], on_restart: OnRestart = "skip") -> HookDefinition:
    """A hook from a plain map."""
    return HookDefinition(dict(handlers), on_restart)


def channel_of(id: str, handlers: Mapping[str, Callable[..., Any]]) -> ChannelDefinition:
    """A channel from a plain map."""
    return ChannelDefinition(id, dict(handlers))


class Trace:
    """Writes down every call: (who, session, index)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.events: list[Event[Any]] = []

    def handler(self, who: str) -> Callable[[Event[Any], Any], Any]:
        """A coroutine function that returns at once."""

        async def note(event: Event[Any], _context: Any) -> None:
            self.note(who, event)

        return note

    def note(self, who: str, event: Event[Any]) -> None:
        """One call."""
        self.calls.append((who, event.session_id, event.index))
        self.events.append(event)

    def hook(self, who: str, on_restart: OnRestart = "skip") -> HookDefinition:
        """A hook that is shown everything."""
        return hook_of({"*": self.handler(who)}, on_restart)

    def indexes(self, who: str, session_id: str) -> list[int]:
        """What one subscriber was shown of a session."""
        return [index for name, session, index in self.calls if (name, session) == (who, session_id)]


class Gate:
    """Holds up handlers until it is opened, and tells when the first of them has come."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        """Hold up the caller."""
        self.reached.set()
        await self.opened.wait()

    async def handler(self, _event: Event[Any], _context: Any) -> None:
        """A handler that is held up."""
        await self.wait()


async def append(log: EventLog, session_id: str, count: int = 1, type: str = NOTE) -> list[Event[Any]]:
    """Append some events at once."""
    session = await log.session(session_id)
    return await session.append_many([NewEvent(type, NOTED)] * count)


def dispatcher_of(
    log: EventLog,
    hooks: Mapping[str, HookDefinition],
    channels: tuple[ChannelDefinition, ...] = (),
    limits: ObserveLimits | None = None,
    agent: str = "agent",
) -> Dispatcher:
    """A dispatcher that is not started."""
    dispatcher = Dispatcher(log, agent=agent, hook_context=Context, channel_context=Context, limits=limits)
    for channel in channels:
        dispatcher.add_channel(channel)
    for name, hook in hooks.items():
        dispatcher.add_hook(name, hook, "tests")
    return dispatcher


@asynccontextmanager
async def served(
    path: Path,
    hooks: Mapping[str, HookDefinition],
    channels: tuple[ChannelDefinition, ...] = (),
    limits: ObserveLimits | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[tuple[EventLog, Dispatcher]]:
    """A log whose events are shown to hooks and channels, until an orderly stop."""
    async with EventLog(path, clock=clock) as log:
        dispatcher = dispatcher_of(log, hooks, channels, limits)
        await dispatcher.start()
        try:
            yield log, dispatcher
        finally:
            await dispatcher.stop()


async def shown(dispatcher: Dispatcher) -> None:
    """Wait until everything was shown."""
    assert await dispatcher.settled(PATIENCE_S), "something is still underway"
