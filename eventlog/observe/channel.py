"""Defines a channel: the surface that owns a session, and its handlers of that session's events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, overload

import msgspec

from eventlog.errors import InvalidName
from eventlog.events import (
    MAX_ID_CHARACTERS,
    AbAssigned,
    ActionResult,
    ActionsRequested,
    ArtifactTagged,
    Event,
    InputRequested,
    InputResolved,
    JobCompleted,
    JobQueued,
    JobStarted,
    MessageAppended,
    MessageCompleted,
    MessageReceived,
    ReasoningAppended,
    ReasoningCompleted,
    ReminderCancelled,
    ReminderCreated,
    ReminderDue,
    SessionCompleted,
    SessionFailed,
    SessionStarted,
    SessionUpdated,
    SessionWaiting,
    StepCompleted,
    StepFailed,
    StepStarted,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from eventlog.observe.context import ChannelContext
from eventlog.observe.handlers import CheckedHandlers, checked_handlers, is_id
from eventlog.observe.plain import PlainContext

D = TypeVar("D")


class ChannelCoroutineHandlerOf(Protocol[D]):
    """A channel's coroutine function for events with this payload; see `CoroutineHandlerOf`."""

    def __call__(self, event: Event[D], ctx: ChannelContext, /) -> Awaitable[None]: ...


ChannelHandlerOf: TypeAlias = ChannelCoroutineHandlerOf[D] | Callable[[Event[D], PlainContext], None]
"""A channel's coroutine function, or a plain one, which gets less, for events with this payload."""

ChannelHandler: TypeAlias = ChannelHandlerOf[Any]
"""A handler in a plain map, where own types may stand; type checkers leave its event alone."""

ChannelEvents = TypedDict(
    "ChannelEvents",
    {
        "session.started": ChannelHandlerOf[SessionStarted],
        "session.updated": ChannelHandlerOf[SessionUpdated],
        "session.waiting": ChannelHandlerOf[SessionWaiting],
        "session.completed": ChannelHandlerOf[SessionCompleted],
        "session.failed": ChannelHandlerOf[SessionFailed],
        "turn.started": ChannelHandlerOf[TurnStarted],
        "turn.completed": ChannelHandlerOf[TurnCompleted],
        "turn.failed": ChannelHandlerOf[TurnFailed],
        "job.queued": ChannelHandlerOf[JobQueued],
        "job.started": ChannelHandlerOf[JobStarted],
        "job.completed": ChannelHandlerOf[JobCompleted],
        "message.received": ChannelHandlerOf[MessageReceived],
        "message.appended": ChannelHandlerOf[MessageAppended],
        "message.completed": ChannelHandlerOf[MessageCompleted],
        "reasoning.appended": ChannelHandlerOf[ReasoningAppended],
        "reasoning.completed": ChannelHandlerOf[ReasoningCompleted],
        "actions.requested": ChannelHandlerOf[ActionsRequested],
        "action.result": ChannelHandlerOf[ActionResult],
        "input.requested": ChannelHandlerOf[InputRequested],
        "input.resolved": ChannelHandlerOf[InputResolved],
        "step.started": ChannelHandlerOf[StepStarted],
        "step.completed": ChannelHandlerOf[StepCompleted],
        "step.failed": ChannelHandlerOf[StepFailed],
        "ab.assigned": ChannelHandlerOf[AbAssigned],
        "artifact.tagged": ChannelHandlerOf[ArtifactTagged],
        "reminder.created": ChannelHandlerOf[ReminderCreated],
        "reminder.cancelled": ChannelHandlerOf[ReminderCancelled],
        "reminder.due": ChannelHandlerOf[ReminderDue],
        "*": ChannelHandlerOf[object],
    },
    total=False,
)
"""The typed map; see `HookEvents`."""


class ChannelDefinition(msgspec.Struct, frozen=True, eq=False):
    """A channel as it is authored: its handlers see the sessions whose channel has this `id`, and no others (R129).

    Raises InvalidName for an id that no session could have, and as HookDefinition does.
    """

    id: str
    events: CheckedHandlers

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "events", checked_handlers(self.events))
        if not is_id(self.id):
            raise InvalidName("channel id", self.id, f"use 1 to {MAX_ID_CHARACTERS} printable characters")


@overload
def define_channel(id: str, events: ChannelEvents) -> ChannelDefinition: ...
@overload
def define_channel(id: str, events: Mapping[str, ChannelHandlerOf[object]]) -> ChannelDefinition: ...
def define_channel(id: str, events: Any) -> ChannelDefinition:
    """Define a channel for `Runtime.add_channel` (R132); its handlers get a ChannelContext, before the hooks (R122).

    Raises InvalidName for an unknown event type, for what is no handler, and for a bad id.
    """
    return ChannelDefinition(id, events)
