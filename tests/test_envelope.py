"""What a durable hook is handed."""

from __future__ import annotations

import json
from typing import Any, assert_never

import msgspec
import pytest

from eventlog.durable import (
    DURABLE_TYPE_OF,
    LOG_TYPE_OF,
    DurableEventType,
    HookEnvelope,
    JobCompletedEnvelope,
    TurnCompletedEnvelope,
    TurnReference,
    envelope_of,
)
from eventlog.errors import CorruptEvent, InvalidEvent
from eventlog.events import VOCABULARY, Event, JobStatus

AT_US = 1_767_225_600_123_000
TERMINAL = [status for status in JobStatus if status.terminal]


def recorded(type: str, data: dict[str, Any], turn_id: str | None = None) -> Event[Any]:
    return Event(type, 4, "s1", turn_id, AT_US, 17, "0badcafe", json.dumps(data).encode())


def turn_envelope() -> HookEnvelope:
    return envelope_of(recorded("turn.completed", {"result": "secret text"}, "t1"), project_id="p1", version=2)


def job_envelope(status: JobStatus = JobStatus.SUCCEEDED) -> HookEnvelope:
    data = {"jobId": "j1", "status": status, "result": "secret text", "error": "secret error"}
    return envelope_of(recorded("job.completed", data), project_id="p1")


def test_r3_exactly_two_durable_types_exist() -> None:
    assert [event.value for event in DurableEventType] == ["conversation.turn.completed", "background.job.completed"]


def test_each_durable_type_comes_from_one_type_of_the_vocabulary() -> None:
    assert set(DURABLE_TYPE_OF) <= set(VOCABULARY)
    assert {LOG_TYPE_OF[event]: event for event in DurableEventType} == DURABLE_TYPE_OF


def test_r6_a_turn_envelope_has_seven_keys_and_no_other() -> None:
    """R5, R9: references only, no text of the turn."""
    assert turn_envelope().to_dict() == {
        "eventId": "0badcafe:17",
        "projectId": "p1",
        "occurredAt": "2026-01-01T00:00:00.123Z",
        "type": "conversation.turn.completed",
        "conversationId": "s1",
        "turnId": "t1",
        "version": 2,
    }


def test_r7_a_job_envelope_has_six_keys_and_no_other() -> None:
    """R5, R9: references only, neither result nor error."""
    assert job_envelope().to_dict() == {
        "eventId": "0badcafe:17",
        "projectId": "p1",
        "occurredAt": "2026-01-01T00:00:00.123Z",
        "type": "background.job.completed",
        "jobId": "j1",
        "status": "succeeded",
    }


@pytest.mark.parametrize("envelope", [turn_envelope(), job_envelope()])
def test_an_envelope_is_the_same_on_the_wire_and_back(envelope: HookEnvelope) -> None:
    wire = json.dumps(envelope.to_dict())
    assert msgspec.json.decode(wire, type=HookEnvelope) == envelope
    assert msgspec.json.decode(msgspec.json.encode(envelope)) == envelope.to_dict()


def named(event: HookEnvelope) -> str:
    """Type checkers accept this only because `type` tells the shapes apart."""
    match event.type:
        case "conversation.turn.completed":
            return event.turn_id
        case "background.job.completed":
            return event.job_id
        case _:
            assert_never(event.type)


def test_r8_the_type_alone_tells_the_two_shapes_apart() -> None:
    assert named(turn_envelope()) == "t1"
    assert named(job_envelope()) == "j1"


@pytest.mark.parametrize("status", TERMINAL)
def test_r10_every_terminal_outcome_has_an_envelope(status: JobStatus) -> None:
    envelope = job_envelope(status)
    assert isinstance(envelope, JobCompletedEnvelope)
    assert envelope.status is status


@pytest.mark.parametrize("status", [status for status in JobStatus if not status.terminal])
def test_r14_an_envelope_of_a_job_that_goes_on_cannot_be_made(status: JobStatus) -> None:
    with pytest.raises(InvalidEvent, match="terminal"):
        JobCompletedEnvelope(
            event_id="e:1", project_id="p", occurred_at="2026-01-01T00:00:00Z", job_id="j", status=status
        )


@pytest.mark.parametrize("envelope", [turn_envelope(), job_envelope()])
def test_envelopes_are_frozen_all_over(envelope: HookEnvelope) -> None:
    for name in ("event_id", "type", "invented"):
        with pytest.raises(AttributeError):
            setattr(envelope, name, "x")


def test_a_turn_envelope_refers_to_its_turn() -> None:
    envelope = turn_envelope()
    assert isinstance(envelope, TurnCompletedEnvelope)
    assert envelope.turn == TurnReference("s1", "t1", 2)
    assert envelope.turn.to_dict() == {"conversationId": "s1", "turnId": "t1", "version": 2}
    assert {envelope.turn: "found"}[TurnReference(conversation_id="s1", turn_id="t1", version=2)] == "found"


@pytest.mark.parametrize("type", [*sorted(set(VOCABULARY) - set(DURABLE_TYPE_OF)), "acme.own"])
def test_r50_no_other_event_becomes_an_envelope(type: str) -> None:
    with pytest.raises(InvalidEvent, match="not delivered"):
        envelope_of(recorded(type, {}, "t1"), project_id="p1", version=1)


@pytest.mark.parametrize(("turn_id", "version"), [(None, 1), ("t1", None)])
def test_a_turn_without_id_or_version_is_refused(turn_id: str | None, version: int | None) -> None:
    with pytest.raises(InvalidEvent, match="id and version"):
        envelope_of(recorded("turn.completed", {}, turn_id), project_id="p1", version=version)


def test_a_job_event_that_cannot_be_read_raises_what_reading_it_raises() -> None:
    with pytest.raises(CorruptEvent):
        envelope_of(recorded("job.completed", {"jobId": 7}), project_id="p1")
