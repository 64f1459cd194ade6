"""Who is called for which event, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from eventlog.events import Event, SessionInfo
from eventlog.observe.handlers import EVERY
from eventlog.observe.hook import OnRestart
from eventlog.observe.relay import AsyncHandler

ContextMaker: TypeAlias = Callable[[SessionInfo, str | None], Any]
"""Makes what a handler is called with beside the event, from the state of its session and the event's turn."""


class Call:
    """One handler of one subscriber."""

    __slots__ = ("count", "handler", "make_context", "subscriber")

    def __init__(self, subscriber: Subscriber, handler: AsyncHandler, make_context: ContextMaker) -> None:
        self.subscriber = subscriber
        self.handler = handler
        self.make_context = make_context
        self.count = 0


Calls: TypeAlias = tuple[Call, ...]


class Subscriber:
    """A hook or a channel: its handlers, where it begins, and what is counted of it."""

    __slots__ = (
        "calls_before",
        "calls_by_type",
        "calls_saved",
        "cursor",
        "errors",
        "errors_saved",
        "gaps",
        "kind",
        "name",
        "on_restart",
        "row",
        "source",
        "start",
        "stuck",
    )

    def __init__(
        self,
        kind: str,
        name: str,
        handlers: Mapping[str, AsyncHandler],
        make_context: ContextMaker,
        on_restart: OnRestart = "skip",
        source: str = "",
    ) -> None:
        self.kind = kind
        self.name = name
        self.calls_by_type = {type_: Call(self, handler, make_context) for type_, handler in handlers.items()}
        self.on_restart: OnRestart = on_restart
        self.source = source
        self.row = 0  # a hook's, in the file
        self.start = 0  # it is shown what lies behind this position
        self.cursor = 0  # in the file
        self.calls_before = self.calls_saved = 0  # before this owner; in the file
        self.errors = self.errors_saved = 0
        self.gaps = 0
        self.stuck = 0  # calls that have not returned for long

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self.calls_before + sum(call.count for call in self.calls_by_type.values())

    def silence(self) -> None:
        """Let the calls that are already on their way do nothing."""
        for call in self.calls_by_type.values():
            call.handler = _nothing

    def calls_for(self, type_: str) -> Iterable[Call]:
        """Its handlers for a type: the one for just that type first."""
        return (self.calls_by_type[key] for key in (type_, EVERY) if key in self.calls_by_type)

    def listens_to(self, type_: str) -> bool:
        """Whether it has a handler for the type."""
        return type_ in self.calls_by_type or EVERY in self.calls_by_type


async def _nothing(event: Event[Any], context: Any) -> None:
    """What is called of a hook that was taken away."""


class Route(dict[str, Calls]):
    """The calls for each type in the sessions of one channel, found out when a type comes by for the first time."""

    def __init__(self, subscribers: Iterable[Subscriber]) -> None:
        super().__init__()
        self._subscribers = tuple(subscribers)

    def __missing__(self, type_: str) -> Calls:
        calls = self[type_] = tuple(call for each in self._subscribers for call in each.calls_for(type_))
        return calls


class Routes:
    """The channels and hooks of one agent: the session's channel first, then hooks in the order of their addition."""

    def __init__(self, agent: str, stranger: Callable[[str, str], None]) -> None:
        self._agent = agent
        self._stranger = stranger  # is told the agent and the session of each event of somebody else's
        self.hooks: list[Subscriber] = []
        self.channels: dict[str, Subscriber] = {}
        self._of_channel: dict[str, Route] = {}
        self._of_others = Route(())
        self.types: frozenset[str] | None = frozenset()
        """What anybody listens to; None is everything."""
        self.begun = 0
        """Behind this position every hook and channel has begun."""

    @property
    def subscribers(self) -> list[Subscriber]:
        """Channels and hooks."""
        return [*self.channels.values(), *self.hooks]

    def rebuild(self) -> None:
        """After a change of the hooks or channels, or of where they begin."""
        self._of_channel = {id_: Route([channel, *self.hooks]) for id_, channel in self.channels.items()}
        self._of_others = Route(self.hooks)
        types = {type_ for each in self.subscribers for type_ in each.calls_by_type}
        self.types = None if EVERY in types else frozenset(types)
        self.begun = max((each.start for each in self.subscribers), default=0)

    def calls(self, session: SessionInfo, event: Event[Any]) -> Calls:
        """The calls for an event, in order: none in the sessions of other agents."""
        if session.agent is not None and session.agent != self._agent:
            self._stranger(session.agent, session.id)
            return ()
        calls = self._of_channel.get(session.channel_id, self._of_others)[event.type]
        if event.position > self.begun:
            return calls
        return tuple(call for call in calls if call.subscriber.start < event.position)
