"""What a durable hook is handed: references to what ended, never the thing itself."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from eventlog.errors import InvalidEvent
from eventlog.events import Event, JobStatus, format_time
from eventlog.store.turns import TurnReference


class DurableEventType(StrEnum):
    """The two events that are delivered at least once; there are no others (R3)."""

    TURN_COMPLETED = "conversation.turn.completed"
    JOB_COMPLETED = "background.job.completed"


DURABLE_TYPE_OF: Mapping[str, DurableEventType] = MappingProxyType(
    {"turn.completed": DurableEventType.TURN_COMPLETED, "job.completed": DurableEventType.JOB_COMPLETED}
)
"""From the log's event type to the durable type that it is delivered as."""

LOG_TYPE_OF: Mapping[DurableEventType, str] = MappingProxyType(
    {durable: log for log, durable in DURABLE_TYPE_OF.items()}
)
"""The same the other way round."""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", gc=False):
    """What both shapes share (R5): `occurred_at` is RFC 3339 in UTC, `event_id` is equal in every redelivery (R32)."""

    event_id: str
    project_id: str
    occurred_at: str

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form, camelCase keys and `type` included."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire


class TurnCompletedEnvelope(_Envelope, frozen=True, kw_only=True, tag="conversation.turn.completed"):
    """A turn has its final reply (R6, R11); read it with `context.turns.get(event.turn)`."""

    type: ClassVar[Literal["conversation.turn.completed"]] = "conversation.turn.completed"
    conversation_id: str
    turn_id: str
    version: int

    @property
    def turn(self) -> TurnReference:
        """The reference that `turns.get` takes."""
        return TurnReference(self.conversation_id, self.turn_id, self.version)


class JobCompletedEnvelope(_Envelope, frozen=True, kw_only=True, tag="background.job.completed"):
    """A background job has ended, well or not (R7, R10); `context.jobs.get(event.job_id)` is the authority (R13)."""

    type: ClassVar[Literal["background.job.completed"]] = "background.job.completed"
    job_id: str
    status: JobStatus

    def __post_init__(self) -> None:
        if not self.status.terminal:
            raise InvalidEvent(
                "data.status", f"a completed job cannot be {self.status.value!r}; give a terminal status"
            )


HookEnvelope: TypeAlias = TurnCompletedEnvelope | JobCompletedEnvelope
"""`event.type` alone tells the two apart (R8)."""


def envelope_of(event: Event[Any], *, project_id: str, version: int | None = None) -> HookEnvelope:
    """Return the envelope of a recorded `turn.completed` or `job.completed`.

    `version` is the turn's and is needed for turns only. Raises `CorruptEvent` if a job's payload cannot be
    decoded, and `InvalidEvent` for an event that is not delivered durably.
    """
    occurred_at = format_time(event.at_us)
    match DURABLE_TYPE_OF.get(event.type):
        case DurableEventType.TURN_COMPLETED if event.turn_id is not None and version is not None:
            return TurnCompletedEnvelope(
                event_id=event.id,
                project_id=project_id,
                occurred_at=occurred_at,
                conversation_id=event.session_id,
                turn_id=event.turn_id,
                version=version,
            )
        case DurableEventType.JOB_COMPLETED:
            return JobCompletedEnvelope(
                event_id=event.id,
                project_id=project_id,
                occurred_at=occurred_at,
                job_id=event.data.job_id,
                status=JobStatus(event.data.status),
            )
        case DurableEventType.TURN_COMPLETED:
            raise InvalidEvent("turnId", "a completed turn is delivered by its id and version; give both")
        case None:
            names = " and ".join(sorted(DURABLE_TYPE_OF))
            raise InvalidEvent("type", f"{event.type!r} is not delivered to extensions; only {names} are")
