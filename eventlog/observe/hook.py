"""Defines an observe hook: which events it is shown, by which functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, overload

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
from eventlog.observe.context import HookContext
from eventlog.observe.handlers import CheckedHandlers, checked_handlers, is_id
from eventlog.observe.plain import PlainContext

D = TypeVar("D")


class CoroutineHandlerOf(Protocol[D]):
    """A coroutine function for events with this payload.

    A protocol beside a `Callable`, so that type checkers take a lambda for what it is: a plain function.
    """

    def __call__(self, event: Event[D], ctx: HookContext, /) -> Awaitable[None]: ...


HandlerOf: TypeAlias = CoroutineHandlerOf[D] | Callable[[Event[D], PlainContext], None]
"""A coroutine function, or a plain one, which gets less, for events with this payload."""

Handler: TypeAlias = HandlerOf[Any]
"""A handler in a plain map, `dict[str, Handler]`, where own types may stand; type checkers leave its event alone."""

HookEvents = TypedDict(
    "HookEvents",
    {
        "session.started": HandlerOf[SessionStarted],
        "session.updated": HandlerOf[SessionUpdated],
        "session.waiting": HandlerOf[SessionWaiting],
        "session.completed": HandlerOf[SessionCompleted],
        "session.failed": HandlerOf[SessionFailed],
        "turn.started": HandlerOf[TurnStarted],
        "turn.completed": HandlerOf[TurnCompleted],
        "turn.failed": HandlerOf[TurnFailed],
        "job.queued": HandlerOf[JobQueued],
        "job.started": HandlerOf[JobStarted],
        "job.completed": HandlerOf[JobCompleted],
        "message.received": HandlerOf[MessageReceived],
        "message.appended": HandlerOf[MessageAppended],
        "message.completed": HandlerOf[MessageCompleted],
        "reasoning.appended": HandlerOf[ReasoningAppended],
        "reasoning.completed": HandlerOf[ReasoningCompleted],
        "actions.requested": HandlerOf[ActionsRequested],
        "action.result": HandlerOf[ActionResult],
        "input.requested": HandlerOf[InputRequested],
        "input.resolved": HandlerOf[InputResolved],
        "step.started": HandlerOf[StepStarted],
        "step.completed": HandlerOf[StepCompleted],
        "step.failed": HandlerOf[StepFailed],
        "ab.assigned": HandlerOf[AbAssigned],
        "artifact.tagged": HandlerOf[ArtifactTagged],
        "reminder.created": HandlerOf[ReminderCreated],
        "reminder.cancelled": HandlerOf[ReminderCancelled],
        "reminder.due": HandlerOf[ReminderDue],
        "*": HandlerOf[object],
    },
    total=False,
)
"""The typed map (R68). A `"*"` handler is shown every type, so it has to take an event with any payload."""

OnRestart: TypeAlias = Literal["skip", "resume"]
"""Whether events that were recorded and not yet shown are skipped after a restart, or shown then."""


class HookDefinition(msgspec.Struct, frozen=True, eq=False):
    """A hook as it is authored: `events` maps types, or `"*"`, to the functions that were given.

    Raises InvalidName for an unknown event type, for what is no handler, and for an unknown `on_restart`.
    """

    events: CheckedHandlers
    on_restart: OnRestart = "skip"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "events", checked_handlers(self.events))
        if self.on_restart not in ("skip", "resume"):
            raise InvalidName("on_restart", self.on_restart, 'must be "skip" or "resume"')


class DisabledHook(msgspec.Struct, frozen=True):
    """The export of a file that removes the mounted hook it is named after."""


def check_hook_name(name: str) -> None:
    """Raise InvalidName unless a hook may be authored under this name (R73): `usage`, or `audit/usage`."""
    if not is_id(name):
        raise InvalidName("hook name", name, f"use 1 to {MAX_ID_CHARACTERS} printable characters")
    if "__" in name:
        raise InvalidName("hook name", name, 'it cannot contain "__", which is how the hooks of extensions are named')
    if "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidName("hook name", name, "use names with single / between them, as in audit/usage")


@overload
def define_hook(events: HookEvents, on_restart: OnRestart = "skip") -> HookDefinition: ...
@overload
def define_hook(events: Mapping[str, HandlerOf[object]], on_restart: OnRestart = "skip") -> HookDefinition: ...
def define_hook(events: Any, on_restart: OnRestart = "skip") -> HookDefinition:
    """Define what `agent/hooks/<name>.py` exports as its `hook` (R64, R65); raises InvalidName as HookDefinition does.

    Handlers are called with `(event, ctx)` after the event is recorded, a plain function with a PlainContext. A literal
    map is checked by key; for own types declare it first, as `events: dict[str, Handler] = {"acme.refund": on_refund}`.
    """
    return HookDefinition(events, on_restart)


def disable_hook() -> DisabledHook:
    """Define what a file exports as its `hook` to remove the extension's hook of that name (R77).

    The file is `agent/hooks/<ns>__<name>.py`, or `agent/extensions/<ns>/hooks/<name>.py` beside a packaged extension.
    """
    return DisabledHook()
