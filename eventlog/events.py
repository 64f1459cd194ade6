"""An event before and after it is recorded, and its form on the wire.

The payload structs and the type tables are in `eventlog.vocabulary`, the encoding in `eventlog.encoding`;
both are offered here as well, so that this is the one module to import events from.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar, cast

import msgspec

from eventlog.clock import format_time, parse_time, to_datetime
from eventlog.encoding import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    MAX_DEPTH,
    MAX_EVENT_BYTES,
    MAX_ID_CHARACTERS,
    TOMBSTONE,
    Encoded,
    EventData,
    Forgotten,
    check_id,
    encode_event,
    encode_json,
    encode_tombstone,
    encode_value,
    invalid,
    refuse_twins,
)
from eventlog.errors import CorruptEvent, InvalidEvent, printable
from eventlog.vocabulary import (
    TURN_INTERRUPTED,
    TYPE_KEYS,
    VOCABULARY,
    AbAssigned,
    ActionCall,
    ActionResult,
    ActionsRequested,
    ArtifactTagged,
    Cost,
    InputRequest,
    InputRequested,
    InputResolution,
    InputResolved,
    JobCompleted,
    JobQueued,
    JobStarted,
    JobStatus,
    MessageAppended,
    MessageCompleted,
    MessageReceived,
    ReasoningAppended,
    ReasoningCompleted,
    ReminderCancelled,
    ReminderCreated,
    ReminderDue,
    SessionCompleted,
    SessionEventType,
    SessionFailed,
    SessionStarted,
    SessionUpdated,
    SessionWaiting,
    StepCompleted,
    StepFailed,
    StepStarted,
    TokenUsage,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    decode_json,
    decoder_of,
    define_event,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_EVENTS",
    "MAX_DEPTH",
    "MAX_EVENT_BYTES",
    "MAX_ID_CHARACTERS",
    "TOMBSTONE",
    "TURN_INTERRUPTED",
    "TYPE_KEYS",
    "VOCABULARY",
    "AbAssigned",
    "ActionCall",
    "ActionResult",
    "ActionsRequested",
    "ArtifactTagged",
    "Corrupt",
    "Cost",
    "Encoded",
    "Envelope",
    "Event",
    "EventData",
    "Forgotten",
    "InputRequest",
    "InputRequested",
    "InputResolution",
    "InputResolved",
    "JobCompleted",
    "JobQueued",
    "JobStarted",
    "JobStatus",
    "MessageAppended",
    "MessageCompleted",
    "MessageReceived",
    "NewEvent",
    "ReasoningAppended",
    "ReasoningCompleted",
    "ReminderCancelled",
    "ReminderCreated",
    "ReminderDue",
    "SessionCompleted",
    "SessionEvent",
    "SessionEventType",
    "SessionFailed",
    "SessionInfo",
    "SessionStarted",
    "SessionUpdated",
    "SessionWaiting",
    "StepCompleted",
    "StepFailed",
    "StepStarted",
    "TokenUsage",
    "TurnCompleted",
    "TurnFailed",
    "TurnStarted",
    "check_id",
    "decode_json",
    "define_event",
    "encode_event",
    "encode_json",
    "encode_value",
    "format_time",
    "parse_envelope",
    "parse_time",
]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

# --------------------------------------------------------------------------------------------------------------- events


class NewEvent(msgspec.Struct, frozen=True):
    """An event that is to be appended; `data` is a payload struct, or a mapping with camelCase keys."""

    type: str
    data: EventData = {}
    turn_id: str | None = None
    key: str | None = None


class Corrupt(msgspec.Struct, frozen=True, gc=False):
    """Stands in the place of a payload that the store knows to be damaged."""

    why: str


class Event(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """A recorded fact.

    `index` is its place in the session, from 0, `position` its place in the whole log, from 1, and `at_us`
    its time in microseconds since 1970 UTC. `raw` holds the stored JSON of `data`. (R81)
    """

    type: str
    index: int
    session_id: str
    turn_id: str | None
    at_us: int
    position: int
    era: str
    raw: bytes
    key: str | None = None
    _payload: Any = msgspec.UNSET

    @property
    def data(self) -> T:
        """The payload struct for types of the vocabulary, plain JSON for others; decoded on first use.

        Of an event that was forgotten it is `Forgotten()`. Raises CorruptEvent when the stored bytes cannot be read.
        """
        payload = self._payload
        if payload is msgspec.UNSET or payload.__class__ is Corrupt:
            payload = self._decoded(_read_tombstone if self.is_forgotten else decoder_of(self.type))
            msgspec.structs.force_setattr(self, "_payload", payload)
        return cast(T, payload)

    def unshared(self) -> Self:
        """The same event with a payload of its own: what one reader does to nested data reaches no other."""
        return msgspec.structs.replace(self, _payload=msgspec.UNSET)

    @property
    def is_forgotten(self) -> bool:
        """Whether its data was erased: its place, type, turn and time are what is left of it."""
        return self.raw == TOMBSTONE

    @property
    def at(self) -> datetime:
        """When it was recorded, as an aware datetime in UTC."""
        return self._stored(to_datetime, self.at_us)

    @property
    def id(self) -> str:
        """`<era>:<position>`, never given to another event of this log."""
        return f"{self.era}:{self.position}"

    def to_dict(self) -> dict[str, Any]:
        """The envelope in plain JSON, fields of `data` that we do not know included (R81).

        `{type, index, sessionId, turnId?, at, data}`; `turnId` is absent when the event belongs to no turn (R82).
        Raises CorruptEvent when the stored bytes cannot be read.
        """
        turn = {} if self.turn_id is None else {"turnId": self.turn_id}
        return {
            "type": self.type,
            "index": self.index,
            "sessionId": self.session_id,
            **turn,
            "at": self._stored(format_time, self.at_us),
            "data": self._decoded(decode_json),
        }

    def to_json(self) -> bytes:
        """The envelope as one line of JSON, without a line end; the stored bytes of `data` are in it as they are.

        Raises CorruptEvent when they cannot be read.
        """
        raw = self._decoded(_check_json)
        if b"\n" in self.raw:  # never as we write it
            raw = msgspec.Raw(encode_json(self._decoded(decode_json)))
        return encode_json(
            _Wire(
                type=self.type,
                index=self.index,
                session_id=self.session_id,
                turn_id=msgspec.UNSET if self.turn_id is None else self.turn_id,
                at=self._stored(format_time, self.at_us),
                data=raw,
            )
        )

    def _decoded(self, decode: Callable[[bytes], Any]) -> Any:
        if isinstance(self._payload, Corrupt):
            raise self._corrupt(self._payload.why)
        return self._stored(decode, self.raw)

    def _stored(self, read: Callable[[A], B], value: A) -> B:
        try:
            return read(value)
        except Exception as error:
            raise self._corrupt(f"it cannot be read ({printable(str(error))})") from error

    def _corrupt(self, why: str) -> CorruptEvent:
        return CorruptEvent(self.session_id, self.index, self.position, why)

    def _facts(self) -> tuple[object, ...]:
        return (
            self.era,
            self.position,
            self.session_id,
            self.index,
            self.type,
            self.turn_id,
            self.at_us,
            self.key,
            self.raw,
        )

    def __eq__(self, other: object) -> bool:
        return self._facts() == other._facts() if isinstance(other, Event) else NotImplemented

    def __ne__(self, other: object) -> bool:  # else the struct's own would go by identity
        return not self == other

    def __hash__(self) -> int:
        return hash((self.era, self.position))

    def __repr__(self) -> str:
        return f"Event({self.type!r}, session_id={self.session_id!r}, index={self.index}, position={self.position})"


_read_tombstone = msgspec.json.Decoder(Forgotten).decode


if TYPE_CHECKING:
    SessionEvent: TypeAlias = Event[Any]
else:
    SessionEvent = Event  # the class itself, so that isinstance() works


class SessionInfo(msgspec.Struct, frozen=True):
    """What is known of a session (R99 to R101)."""

    id: str
    agent: str | None
    project: str
    channel_id: str
    mode: Literal["chat", "task"]
    purpose: Literal["live", "eval"]
    auth: Any
    title: str | None
    sdk_agent_id: str | None
    abs: Any
    continuation_token: str | None
    next_index: int
    status: Literal["active", "waiting", "completed", "failed"]
    started_at: datetime
    updated_at: datetime


# ------------------------------------------------------------------------------------------------------------ envelopes


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    type: str
    index: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    session_id: str
    turn_id: str | msgspec.UnsetType = msgspec.UNSET
    at: str
    data: msgspec.Raw


_decode_wire = msgspec.json.Decoder(_Wire).decode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class Envelope(msgspec.Struct, frozen=True):
    """One line of an export: an event that has its index and time, but no place in this log yet."""

    index: int
    session_id: str
    at_us: int
    encoded: Encoded
    """Checked and encoded as if it were appended."""

    @property
    def type(self) -> str:
        """The event's type."""
        return self.encoded.type

    @property
    def turn_id(self) -> str | None:
        """The turn that it belongs to, if any."""
        return self.encoded.turn_id

    @property
    def data(self) -> bytes:
        """Its data as JSON."""
        return self.encoded.raw


def parse_envelope(line: bytes) -> Envelope:
    """Read one line of JSON as an envelope; raises InvalidEvent, which names the path, for everything else."""
    wire = _read("", _decode_wire, line)
    raw = bytes(wire.data)
    session_id = check_id("sessionId", wire.session_id)
    turn_id = None if wire.turn_id is msgspec.UNSET else wire.turn_id
    if raw == TOMBSTONE:
        encoded = encode_tombstone(wire.type, turn_id)
    else:
        encoded = encode_event(wire.type, parse_data(raw), turn_id)
        if encoded.raw != raw:  # spaces, escapes, or a loss
            _refuse_twins("data", raw)
    if len(encode_json(wire)) != len(line.strip()):  # the same around the data; what is encoded anew is never longer
        _refuse_twins("event", line)
    return Envelope(wire.index, session_id, parse_time(wire.at), encoded)


def _refuse_twins(path: str, raw: bytes) -> None:
    try:
        refuse_twins(raw)
    except ValueError as error:
        raise InvalidEvent(path, str(error)) from None


def parse_data(raw: bytes) -> Any:
    """JSON as the plain data of an event; raises InvalidEvent for what is none, such as a number that is no float."""
    return _read("data", decode_json, raw)


def _read(path: str, decode: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise invalid(path, error) from None
    except Exception as error:
        raise InvalidEvent(path or "event", f"is not JSON: {error}") from None
