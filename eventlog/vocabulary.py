"""The event types that the log knows: their payload structs, and where turns belong.

Payloads are camelCase on the wire and snake_case here. A field that is unknown is left out, never null.
Any other type may be stored too, with any JSON object as its data; `define_event` adds one to the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from eventlog.errors import InvalidEvent, InvalidName, shown

TURN_INTERRUPTED = "turn interrupted"
"""The message of the `turn.failed` of a turn that was interrupted (R95)."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
WITHOUT_NUL = r"^[^\x00]*$"
Indexed: TypeAlias = Annotated[str, msgspec.Meta(pattern=WITHOUT_NUL)]
"""Text that triggers of schema.sql read. SQLite ends a text at U+0000, and would take two for the same."""


class Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the built-in payload structs."""


# ------------------------------------------------------------------------------------------------------------- sessions


class SessionStarted(Payload, frozen=True):
    """`session.started`: the first event of a session."""

    channel_id: str
    mode: Literal["chat", "task"]
    purpose: Literal["live", "eval"]
    project_id: str
    agent: str | None = None
    auth: Any = None
    title: Indexed | None = None
    sdk_agent_id: Indexed | None = None
    abs: Any = None
    continuation_token: Indexed | None = None


class SessionUpdated(Payload, frozen=True):
    """`session.updated`: what changed of a session."""

    title: Indexed | None = None
    sdk_agent_id: Indexed | None = None
    abs: Any = None
    continuation_token: Indexed | None = None


class SessionWaiting(Payload, frozen=True):
    """`session.waiting`: the session waits for a follow-up."""

    continuation_token: Indexed | None = None


class SessionCompleted(Payload, frozen=True):
    """`session.completed`."""


class SessionFailed(Payload, frozen=True):
    """`session.failed`."""

    message: str


# ---------------------------------------------------------------------------------------------------------------- turns


class TokenUsage(Payload, frozen=True):
    """Tokens that a step or a turn used (R85)."""

    input_tokens: Count
    output_tokens: Count
    cache_read_tokens: Count
    cache_write_tokens: Count
    reasoning_tokens: Count | None = None


class Cost(Payload, frozen=True):
    """What a turn cost in US dollars, and the model it was priced against (R86)."""

    total_usd: Amount
    model: str


class TurnStarted(Payload, frozen=True):
    """`turn.started`."""


class TurnCompleted(Payload, frozen=True):
    """`turn.completed` (R84)."""

    result: Any = None
    usage: TokenUsage | None = None
    cost: Cost | None = None


class TurnFailed(Payload, frozen=True):
    """`turn.failed` (R87); an interruption has the message `TURN_INTERRUPTED`."""

    message: str


class StepStarted(Payload, frozen=True):
    """`step.started`: one call of the model begins."""

    step_index: Count


class StepCompleted(Payload, frozen=True):
    """`step.completed`."""

    step_index: Count
    finish_reason: str | None = None
    usage: TokenUsage | None = None


class StepFailed(Payload, frozen=True):
    """`step.failed`."""

    step_index: Count
    message: str


# ----------------------------------------------------------------------------------------------------- text and actions


class MessageReceived(Payload, frozen=True):
    """`message.received`: what the user said (R83)."""

    text: str


class MessageAppended(Payload, frozen=True):
    """`message.appended`: one token of the reply (R92)."""

    delta: str


class MessageCompleted(Payload, frozen=True):
    """`message.completed`: the whole reply (R93)."""

    text: str


class ReasoningAppended(Payload, frozen=True):
    """`reasoning.appended`: one token of the model's reasoning (R94)."""

    delta: str


class ReasoningCompleted(Payload, frozen=True):
    """`reasoning.completed`: the whole of the model's reasoning (R94)."""

    text: str


class ActionCall(Payload, frozen=True):
    """One tool call; with `parent_call_id` it is a subagent's (R88, R89)."""

    call_id: str
    tool_name: str
    args: Any = None
    parent_call_id: str | None = None


class ActionsRequested(Payload, frozen=True):
    """`actions.requested` (R88)."""

    calls: tuple[ActionCall, ...]


class ActionResult(Payload, frozen=True):
    """`action.result`; `stubbed` when a dry run answered a write without running it (R90, R91)."""

    call_id: str
    tool_name: str
    is_error: bool
    output: Any = None
    stubbed: bool | None = None


class InputRequest(Payload, frozen=True):
    """One question to the user."""

    request_id: Indexed
    kind: str
    prompt: str
    call_id: str | None = None
    options: Any = None


class InputRequested(Payload, frozen=True):
    """`input.requested`."""

    requests: tuple[InputRequest, ...]


class InputResolution(Payload, frozen=True):
    """What became of one question."""

    request_id: Indexed
    outcome: str
    response: Any = None


class InputResolved(Payload, frozen=True):
    """`input.resolved`."""

    resolutions: tuple[InputResolution, ...]


# ----------------------------------------------------------------------------------------------------------------- jobs


class JobStatus(StrEnum):
    """Where a background job stands (R14)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    OUTCOME_UNKNOWN = "outcomeUnknown"

    @property
    def terminal(self) -> bool:
        """Whether the job is over, with whatever outcome."""
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class JobQueued(Payload, frozen=True):
    """`job.queued`."""

    job_id: Indexed
    name: Indexed | None = None


class JobStarted(Payload, frozen=True):
    """`job.started`."""

    job_id: Indexed


class JobCompleted(Payload, frozen=True):
    """`job.completed`, for every terminal status (R10)."""

    job_id: Indexed
    status: JobStatus
    result: Any = None
    error: Any = None

    def __post_init__(self) -> None:
        if not JobStatus(self.status).terminal:
            raise ValueError(f"the status of a completed job is terminal, not {self.status}")


# -------------------------------------------------------------------------------------------- A/B, artifacts, reminders


class AbAssigned(Payload, frozen=True):
    """`ab.assigned`: the session is in this arm (R98)."""

    experiment: str
    arm: str


class ArtifactTagged(Payload, frozen=True):
    """`artifact.tagged`."""

    kind: str
    key: str
    title: str | None = None
    data: Any = None


class ReminderCreated(Payload, frozen=True):
    """`reminder.created`; `at` is an aware datetime."""

    reminder_id: Indexed
    at: Moment
    text: Indexed


class ReminderCancelled(Payload, frozen=True):
    """`reminder.cancelled`."""

    reminder_id: Indexed


class ReminderDue(Payload, frozen=True):
    """`reminder.due`."""

    reminder_id: Indexed
    text: str


# ----------------------------------------------------------------------------------------------------------- the tables

SessionEventType: TypeAlias = Literal[
    "session.started",
    "session.updated",
    "session.waiting",
    "session.completed",
    "session.failed",
    "turn.started",
    "turn.completed",
    "turn.failed",
    "job.queued",
    "job.started",
    "job.completed",
    "message.received",
    "message.appended",
    "message.completed",
    "reasoning.appended",
    "reasoning.completed",
    "actions.requested",
    "action.result",
    "input.requested",
    "input.resolved",
    "step.started",
    "step.completed",
    "step.failed",
    "ab.assigned",
    "artifact.tagged",
    "reminder.created",
    "reminder.cancelled",
    "reminder.due",
]
"""The names of the vocabulary; a handler's key, and `event.type` where it is one of these."""

Turn: TypeAlias = Literal["required", "refused", "optional"]
"""Whether events of a type belong to a turn."""

# (key in the file, name, payload, turn)
_BUILT_IN: tuple[tuple[int, SessionEventType, type[msgspec.Struct], Turn], ...] = (
    (1, "session.started", SessionStarted, "refused"),
    (2, "session.updated", SessionUpdated, "refused"),
    (3, "session.waiting", SessionWaiting, "refused"),
    (4, "session.completed", SessionCompleted, "refused"),
    (5, "session.failed", SessionFailed, "refused"),
    (6, "turn.started", TurnStarted, "required"),
    (7, "turn.completed", TurnCompleted, "required"),
    (8, "turn.failed", TurnFailed, "required"),
    (9, "job.queued", JobQueued, "optional"),
    (10, "job.started", JobStarted, "optional"),
    (11, "job.completed", JobCompleted, "optional"),
    (12, "message.received", MessageReceived, "required"),
    (13, "message.appended", MessageAppended, "required"),
    (14, "message.completed", MessageCompleted, "required"),
    (15, "reasoning.appended", ReasoningAppended, "required"),
    (16, "reasoning.completed", ReasoningCompleted, "required"),
    (17, "actions.requested", ActionsRequested, "required"),
    (18, "action.result", ActionResult, "required"),
    (19, "input.requested", InputRequested, "required"),
    (20, "input.resolved", InputResolved, "required"),
    (21, "step.started", StepStarted, "required"),
    (22, "step.completed", StepCompleted, "required"),
    (23, "step.failed", StepFailed, "required"),
    (24, "ab.assigned", AbAssigned, "refused"),
    (25, "artifact.tagged", ArtifactTagged, "optional"),
    (26, "reminder.created", ReminderCreated, "refused"),
    (27, "reminder.cancelled", ReminderCancelled, "refused"),
    (28, "reminder.due", ReminderDue, "refused"),
)

TYPE_KEYS: dict[str, int] = {name: key for key, name, _, _ in _BUILT_IN}
"""The fixed keys of the built-in types, as schema.sql lists them."""

VOCABULARY: dict[str, type[msgspec.Struct]] = {name: struct for _, name, struct, _ in _BUILT_IN}
"""The payload struct of each known type, those of `define_event` included."""


class EventType(msgspec.Struct, frozen=True):
    """How events of one type are checked and read."""

    name: str
    turn: Turn
    decode: Callable[[bytes], Any]
    """From the stored bytes to `event.data`."""
    struct: type[msgspec.Struct] | None = None


decode_json: Callable[[bytes], Any] = msgspec.json.Decoder().decode
"""JSON bytes to plain dicts, lists, strings, numbers, bools and None."""

_KNOWN: dict[str, EventType] = {
    name: EventType(name, turn, msgspec.json.Decoder(struct).decode, struct) for _, name, struct, turn in _BUILT_IN
}
_OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,127}", re.ASCII)
_RULE = "a type is a letter, then up to 127 of A-Z a-z 0-9 _ . : / -"


def event_type(name: str) -> EventType:
    """The type of this name, known or not; raises InvalidEvent when no event can have such a type."""
    if not isinstance(name, str):
        raise InvalidEvent("type", f"must be a string, not {type(name).__name__}")
    return _KNOWN.get(name) or _own_type(name)


def decoder_of(name: str) -> Callable[[bytes], Any]:
    """How stored data of this type is read; of a type that nobody defined, as plain JSON."""
    known = _KNOWN.get(name)
    return decode_json if known is None else known.decode


@lru_cache(maxsize=4_096)
def _own_type(name: str) -> EventType:
    if not _may_be_type(name):
        raise InvalidEvent("type", f"{shown(name)} cannot be stored; {_RULE}")
    return EventType(str.__str__(name), "optional", decode_json)


def _may_be_type(name: object) -> bool:
    return isinstance(name, str) and _OWN_NAME.fullmatch(name) is not None


def define_event(name: str, struct: type[msgspec.Struct]) -> None:
    """Add an own event type to the vocabulary of this process: its data is checked by, and read as, `struct`.

    The same definition may be made again, as happens when a module is imported twice: the newer class is used.
    Raises InvalidName for a bad name, a name that means something else, and a struct that is not written as
    a JSON object.
    """
    if not _may_be_type(name):
        raise InvalidName("event type", name, _RULE)
    decode = _decoder(name, struct)
    before = VOCABULARY.get(name, struct)
    if before is not struct and (name in TYPE_KEYS or not _alike(before, struct)):
        raise InvalidName("event type", name, f"already has the payload {before.__name__}; choose another name")
    if name not in TYPE_KEYS:
        _KNOWN[name] = EventType(name, "optional", decode, struct)
        VOCABULARY[name] = struct


def _decoder(name: str, struct: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    if not _is_written_as_object(struct):
        raise InvalidName("event type", name, "its payload must be a msgspec.Struct that is written as a JSON object")
    try:
        return msgspec.json.Decoder(struct).decode
    except Exception as error:  # of msgspec, or of an annotation that cannot be evaluated
        raise InvalidName("event type", name, f"{struct.__name__} cannot be decoded: {error}") from error


def _is_written_as_object(struct: object) -> bool:
    if not isinstance(struct, type) or not issubclass(struct, msgspec.Struct):
        return False
    return not struct.__struct_config__.array_like


def _alike(one: type[msgspec.Struct], other: type[msgspec.Struct]) -> bool:
    try:
        return one.__qualname__ == other.__qualname__ and msgspec.json.schema(one) == msgspec.json.schema(other)
    except TypeError:  # a field has a type that no schema describes
        return False
