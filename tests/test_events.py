"""The vocabulary, and an event after it is recorded."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import events, vocabulary
from eventlog.errors import CorruptEvent, InvalidEvent, InvalidName
from eventlog.events import (
    TURN_INTERRUPTED,
    TYPE_KEYS,
    VOCABULARY,
    ActionCall,
    Corrupt,
    Event,
    JobStarted,
    JobStatus,
    MessageReceived,
    NewEvent,
    SessionEvent,
    SessionEventType,
    TurnCompleted,
    define_event,
    encode_event,
    parse_envelope,
)

SCHEMA = Path(__file__).parents[1] / "schema.sql"
USAGE = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 4}
CALL = {"callId": "c1", "toolName": "search"}
START = {"channelId": "cli", "mode": "task", "purpose": "live", "projectId": "p1"}
JOB = {"jobId": "j1"}
AT_US = 1_765_024_083_008_000
AT = "2025-12-06T12:28:03.008Z"

# Of each type: the least data that is valid, all that it may have, and whether it belongs to a turn.
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "session.started": (
        START,
        START
        | {"agent": "a", "auth": {"user": "u"}, "title": "t", "sdkAgentId": "x", "abs": {"e": "b"}}
        | {"continuationToken": "k"},
        "no",
    ),
    "session.updated": ({}, {"title": "t", "sdkAgentId": "x", "abs": {"e": "b"}, "continuationToken": "k"}, "no"),
    "session.waiting": ({}, {"continuationToken": "k"}, "no"),
    "session.completed": ({}, {}, "no"),
    "session.failed": ({"message": "m"}, {"message": "m"}, "no"),
    "turn.started": ({}, {}, "yes"),
    "message.received": ({"text": "hi"}, {"text": "hi"}, "yes"),
    "message.appended": ({"delta": "h"}, {"delta": "h"}, "yes"),
    "reasoning.appended": ({"delta": "h"}, {"delta": "h"}, "yes"),
    "message.completed": ({"text": "hi"}, {"text": "hi"}, "yes"),
    "reasoning.completed": ({"text": "hi"}, {"text": "hi"}, "yes"),
    "actions.requested": ({"calls": [CALL]}, {"calls": [CALL | {"args": {"q": 1}, "parentCallId": "c0"}]}, "yes"),
    "action.result": (CALL | {"isError": False}, CALL | {"isError": True, "output": ["o"], "stubbed": True}, "yes"),
    "input.requested": (
        {"requests": [{"requestId": "r", "kind": "k", "prompt": "p"}]},
        {"requests": [{"requestId": "r", "kind": "k", "prompt": "p", "callId": "c1", "options": ["a", "b"]}]},
        "yes",
    ),
    "input.resolved": (
        {"resolutions": [{"requestId": "r", "outcome": "o"}]},
        {"resolutions": [{"requestId": "r", "outcome": "o", "response": {"a": 1}}]},
        "yes",
    ),
    "step.started": ({"stepIndex": 0}, {"stepIndex": 0}, "yes"),
    "step.completed": ({"stepIndex": 0}, {"stepIndex": 0, "finishReason": "stop", "usage": USAGE}, "yes"),
    "step.failed": ({"stepIndex": 0, "message": "m"}, {"stepIndex": 0, "message": "m"}, "yes"),
    "turn.completed": (
        {},
        {"result": "r", "usage": USAGE | {"reasoningTokens": 9}, "cost": {"totalUsd": 0.5, "model": "m"}},
        "yes",
    ),
    "turn.failed": ({"message": "m"}, {"message": TURN_INTERRUPTED}, "yes"),
    "job.queued": (JOB, JOB | {"name": "n"}, "either"),
    "job.started": (JOB, JOB, "either"),
    "job.completed": (JOB | {"status": "failed"}, JOB | {"status": "succeeded", "result": 1, "error": "e"}, "either"),
    "ab.assigned": ({"experiment": "e", "arm": "b"}, {"experiment": "e", "arm": "b"}, "no"),
    "artifact.tagged": ({"kind": "k", "key": "k"}, {"kind": "k", "key": "k", "title": "t", "data": [1]}, "either"),
    "reminder.created": (
        {"reminderId": "r", "at": "2026-01-01T00:00:00Z", "text": "t"},
        {"reminderId": "r", "at": "2026-01-01T00:00:00.123456Z", "text": "t"},
        "no",
    ),
    "reminder.cancelled": ({"reminderId": "r"}, {"reminderId": "r"}, "no"),
    "reminder.due": ({"reminderId": "r", "text": "t"}, {"reminderId": "r", "text": "t"}, "no"),
}


def turn_of(type: str) -> str | None:
    return "t1" if ROWS[type][2] == "yes" else None


def data_of(type: str, data: Any) -> Any:
    return encode_event(type, data, turn_of(type)).payload


def refused(type: str, data: Any) -> str:
    with pytest.raises(InvalidEvent) as caught:
        encode_event(type, data, turn_of(type))
    return caught.value.path


def recorded(type: str, data: Any, turn_id: str | None = None, **more: Any) -> Event[Any]:
    facts: dict[str, Any] = {"index": 3, "session_id": "s1", "at_us": AT_US, "position": 17, "era": "0a1b2c3d"}
    facts["raw"] = encode_event(type, data, turn_id).raw
    return Event(type=type, turn_id=turn_id, **(facts | more))


@pytest.fixture
def own_types() -> Iterator[None]:
    """What a test defines is gone after it."""
    before = set(VOCABULARY)
    yield
    for name in set(VOCABULARY) - before:
        del VOCABULARY[name], vocabulary._KNOWN[name]


# ---------------------------------------------------------------------------------------------------- the tables


def test_the_keys_of_the_types_are_the_rows_of_the_schema() -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA.read_text())
    rows = dict(connection.execute("SELECT name, type FROM event_type"))
    connection.close()
    assert rows == TYPE_KEYS


def test_every_table_of_types_has_the_same_types() -> None:
    assert set(get_args(SessionEventType)) == set(TYPE_KEYS) == set(built_in()) == set(ROWS)


def test_every_payload_struct_can_be_imported_from_events() -> None:
    structs = {name for name, thing in vars(vocabulary).items() if is_payload(thing)}
    assert structs - set(events.__all__) == set()
    assert {struct.__name__ for struct in built_in().values()} <= structs


def built_in() -> dict[str, type[msgspec.Struct]]:
    """The vocabulary without what adapters define, which a module of tests may have imported."""
    return {name: struct for name, struct in VOCABULARY.items() if struct.__module__ == vocabulary.__name__}


def is_payload(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, vocabulary.Payload) and thing is not vocabulary.Payload


@pytest.mark.parametrize("type", ROWS)
def test_the_least_data_and_the_most_are_valid(type: str) -> None:
    """R83, R84, R87, R88, R90: the payload of every type, by its required and its optional fields."""
    least, most, _ = ROWS[type]
    for data in (least, most):
        encoded = encode_event(type, data, turn_of(type))
        assert json.loads(encoded.raw) == data
        assert isinstance(encoded.payload, VOCABULARY[type])
        assert encode_event(type, encoded.payload, turn_of(type)).payload == encoded.payload


@pytest.mark.parametrize("type", ROWS)
def test_every_required_field_is_required_and_typed(type: str) -> None:
    """R83, R87, R88, R90."""
    least, most, _ = ROWS[type]
    for name in least:
        assert refused(type, {key: value for key, value in least.items() if key != name}) == f"data.{name}"
    for name in most:
        if name not in {"auth", "abs", "result", "error", "output", "data"}:  # those hold any JSON value
            assert refused(type, most | {name: {"not": "it"}}).startswith(f"data.{name}")


@pytest.mark.parametrize("type", ROWS)
def test_a_field_that_is_unknown_is_left_out_and_not_null(type: str) -> None:
    """R84: optional keys are omitted."""
    least = encode_event(type, ROWS[type][0], turn_of(type)).payload
    assert json.loads(encode_event(type, least, turn_of(type)).raw) == ROWS[type][0]


@pytest.mark.parametrize("type", ROWS)
def test_fields_beyond_the_vocabulary_are_kept(type: str) -> None:
    data = ROWS[type][1] | {"x-own": {"a": [1, None]}}
    event = recorded(type, data, turn_of(type))
    assert event.to_dict()["data"] == data
    assert isinstance(event.data, VOCABULARY[type])


@pytest.mark.parametrize("type", ROWS)
def test_r82_a_turn_id_is_where_the_type_has_one(type: str) -> None:
    data, _, turn = ROWS[type]
    for turn_id, fits in (("t1", turn != "no"), (None, turn != "yes")):
        if fits:
            assert ("turnId" in recorded(type, data, turn_id).to_dict()) == (turn_id is not None)
        else:
            with pytest.raises(InvalidEvent, match=r"^turnId: .*turn_id"):
                encode_event(type, data, turn_id)


@pytest.mark.parametrize("name", ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"])
def test_r85_usage_has_four_counts_that_are_never_negative(name: str) -> None:
    assert refused("turn.completed", {"usage": {k: v for k, v in USAGE.items() if k != name}}) == f"data.usage.{name}"
    for wrong in (-1, 1.0, "1", True, None):
        assert refused("turn.completed", {"usage": USAGE | {name: wrong}}) == f"data.usage.{name}"
    assert data_of("turn.completed", {"usage": USAGE | {name: 2**70}})


def test_r85_reasoning_tokens_are_optional() -> None:
    assert data_of("turn.completed", {"usage": USAGE}).usage.reasoning_tokens is None
    assert data_of("turn.completed", {"usage": USAGE | {"reasoningTokens": 5}}).usage.reasoning_tokens == 5
    assert refused("turn.completed", {"usage": USAGE | {"reasoningTokens": -5}}) == "data.usage.reasoningTokens"


def test_r86_cost_has_dollars_and_the_model() -> None:
    cost = data_of("turn.completed", {"cost": {"totalUsd": 1, "model": "m"}}).cost
    assert (cost.total_usd, cost.model) == (1.0, "m")
    assert refused("turn.completed", {"cost": {"totalUsd": 1}}) == "data.cost.model"
    assert refused("turn.completed", {"cost": {"model": "m"}}) == "data.cost.totalUsd"
    assert refused("turn.completed", {"cost": {"totalUsd": -0.1, "model": "m"}}) == "data.cost.totalUsd"


def test_r89_a_call_of_a_subagent_keeps_its_parent() -> None:
    calls = data_of("actions.requested", {"calls": [CALL, CALL | {"parentCallId": "c0"}]}).calls
    assert calls == (ActionCall("c1", "search"), ActionCall("c1", "search", parent_call_id="c0"))


def test_r90_a_stubbed_result_says_so() -> None:
    """R91: the field is kept and shown."""
    event = recorded("action.result", CALL | {"isError": False, "stubbed": True}, "t1")
    assert event.data.stubbed is True
    assert event.to_dict()["data"]["stubbed"] is True
    assert data_of("action.result", CALL | {"isError": False}).stubbed is None


def test_r94_reasoning_is_on_the_stream() -> None:
    assert [type for type in VOCABULARY if type.startswith("reasoning.")] == [
        "reasoning.appended",
        "reasoning.completed",
    ]


def test_an_interruption_has_its_exact_message() -> None:
    assert TURN_INTERRUPTED == "turn interrupted"


def test_r14_a_job_status_knows_whether_it_is_terminal() -> None:
    assert {status.value: status.terminal for status in JobStatus} == {
        "queued": False,
        "running": False,
        "succeeded": True,
        "failed": True,
        "cancelled": True,
        "outcomeUnknown": True,
    }


@pytest.mark.parametrize("status", JobStatus)
def test_r14_a_completed_job_has_a_terminal_status(status: JobStatus) -> None:
    if status.terminal:
        assert data_of("job.completed", JOB | {"status": status}).status is status
    else:
        refused("job.completed", JOB | {"status": status})


NUL = "a\0b"
READ_BY_TRIGGERS: list[tuple[str, dict[str, Any], str]] = [
    *[
        (type, data | {name: NUL}, f"data.{name}")
        for type, data in (("session.started", START), ("session.updated", {}))
        for name in ("title", "sdkAgentId", "continuationToken")
    ],
    ("session.waiting", {"continuationToken": NUL}, "data.continuationToken"),
    *[(type, ROWS[type][0] | {"jobId": NUL}, "data.jobId") for type in ("job.queued", "job.started", "job.completed")],
    ("job.queued", JOB | {"name": NUL}, "data.name"),
    (
        "input.requested",
        {"requests": [{"requestId": id, "kind": "k", "prompt": "p"} for id in ("r", NUL)]},
        "data.requests[1].requestId",
    ),
    ("input.resolved", {"resolutions": [{"requestId": NUL, "outcome": "o"}]}, "data.resolutions[0].requestId"),
    *[
        (type, ROWS[type][0] | {"reminderId": NUL}, "data.reminderId")
        for type in ("reminder.created", "reminder.cancelled", "reminder.due")
    ],
    ("reminder.created", ROWS["reminder.created"][0] | {"text": NUL}, "data.text"),
]


@pytest.mark.parametrize(("type", "data", "path"), READ_BY_TRIGGERS)
def test_r14_r114_text_that_triggers_read_has_no_nul(type: str, data: Any, path: str) -> None:
    """SQLite would cut it there: one job would end another, and a reminder would be due with another text."""
    with pytest.raises(InvalidEvent, match=r"U\+0000") as caught:
        encode_event(type, data, turn_of(type))
    assert caught.value.path == path
    line = {"type": type, "index": 0, "sessionId": "s", "turnId": turn_of(type), "at": AT, "data": data}
    with pytest.raises(InvalidEvent, match=r"U\+0000") as caught:
        parse_envelope(json.dumps({name: value for name, value in line.items() if value is not None}).encode())
    assert caught.value.path == path


def test_a_payload_struct_that_triggers_read_has_no_nul_either() -> None:
    assert refused("job.started", JobStarted(NUL)) == "data.jobId"


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("message.received", {"text": NUL}),
        ("job.completed", JOB | {"status": "failed", "error": NUL}),
        ("session.updated", {"abs": NUL}),
        ("job.queued", {"jobId": "a\nb\n", "name": ""}),
    ],
)
def test_other_text_may_have_any_character(type: str, data: Any) -> None:
    assert json.loads(encode_event(type, data, turn_of(type)).raw) == data


def test_a_reminder_is_due_at_an_aware_time() -> None:
    created = data_of("reminder.created", ROWS["reminder.created"][1])
    assert created.at == datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert refused("reminder.created", ROWS["reminder.created"][0] | {"at": "2026-01-01T00:00:00"}) == "data.at"


# --------------------------------------------------------------------------------------------------- own types


class Ticket(msgspec.Struct, rename="camel", frozen=True):
    ticket_id: int
    due: datetime | None = None


@pytest.mark.usefixtures("own_types")
def test_a_defined_type_is_checked_by_its_struct_and_read_as_it() -> None:
    before = recorded("acme.ticket", {"ticketId": 1})
    assert before.data == {"ticketId": 1}
    define_event("acme.ticket", Ticket)
    assert recorded("acme.ticket", {"ticketId": 1, "more": 2}).data == Ticket(1)
    assert recorded("acme.ticket", Ticket(1)).data == Ticket(1)
    with pytest.raises(InvalidEvent, match=r"^data\.ticketId: "):
        encode_event("acme.ticket", {"ticketId": "1"})
    assert VOCABULARY["acme.ticket"] is Ticket
    assert "acme.ticket" not in TYPE_KEYS


@pytest.mark.usefixtures("own_types")
def test_a_defined_struct_may_have_fields_that_json_has_not() -> None:
    """Its own decoder reads them back, so nothing is lost; in a mapping they are written as they are read."""
    define_event("acme.ticket", Ticket)
    ticket = Ticket(1, datetime(2026, 1, 1, tzinfo=UTC))
    assert recorded("acme.ticket", ticket).data == ticket
    assert recorded("acme.ticket", {"ticketId": 1, "due": "2026-01-01T00:00:00Z"}).data == ticket
    with pytest.raises(InvalidEvent, match=r"^data\.due: datetime"):
        encode_event("acme.ticket", {"ticketId": 1, "due": ticket.due})


@pytest.mark.usefixtures("own_types")
def test_a_type_is_defined_once_but_its_module_may_be_imported_twice() -> None:
    def a_module(kind: type) -> type[msgspec.Struct]:
        return msgspec.defstruct("Point", [("x", kind)])

    first, again, other = a_module(int), a_module(int), a_module(str)
    define_event("acme.point", first)
    define_event("acme.point", first)
    define_event("acme.point", again)
    assert VOCABULARY["acme.point"] is again
    assert isinstance(recorded("acme.point", {"x": 1}).data, again)
    with pytest.raises(InvalidName, match="already has the payload Point"):
        define_event("acme.point", other)
    assert VOCABULARY["acme.point"] is again


class Listed(msgspec.Struct, array_like=True):
    a: int


class Ambiguous(msgspec.Struct):
    a: list[int] | set[int]


class Odd(msgspec.Struct):
    a: complex


@pytest.mark.usefixtures("own_types")
@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("", Ticket),
        ("a b", Ticket),
        ("a\x1b", Ticket),
        (None, Ticket),
        ([], Ticket),
        ("turn.completed", Ticket),
        ("acme.x", dict),
        ("acme.x", Ticket(1)),
        ("acme.x", Listed),
        ("acme.x", Ambiguous),
    ],
)
def test_a_definition_that_cannot_be_is_refused(name: Any, struct: Any) -> None:
    before = dict(VOCABULARY)
    with pytest.raises(InvalidName, match=r"^event type ") as caught:
        define_event(name, struct)
    assert str(caught.value).isprintable()
    assert before == VOCABULARY


@pytest.mark.usefixtures("own_types")
def test_structs_that_no_schema_describes_are_alike_only_if_they_are_one() -> None:
    define_event("acme.odd", Odd)
    define_event("acme.odd", Odd)
    with pytest.raises(InvalidName):
        define_event("acme.odd", msgspec.defstruct("Odd", [("a", complex)]))


@pytest.mark.usefixtures("own_types")
def test_an_error_of_an_own_struct_is_ours() -> None:
    class Picky(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            raise {1: ValueError("too small"), 2: RuntimeError("\x1b"), 3: InvalidEvent("data.a", "three")}[self.a]

    define_event("acme.picky", Picky)
    for a, path in ((1, "data"), (2, "data"), (3, "data.a")):
        assert [refused_own.path for refused_own in [refusal("acme.picky", {"a": a})]] == [path]


def refusal(type: str, data: Any) -> InvalidEvent:
    with pytest.raises(InvalidEvent) as caught:
        encode_event(type, data)
    assert str(caught.value).isprintable()
    return caught.value


# ---------------------------------------------------------------------------------------------- recorded events


def test_r81_the_envelope_has_these_keys_in_this_order() -> None:
    assert list(recorded("turn.started", {}, "t1").to_dict().items()) == [
        ("type", "turn.started"),
        ("index", 3),
        ("sessionId", "s1"),
        ("turnId", "t1"),
        ("at", AT),
        ("data", {}),
    ]


def test_r82_the_turn_id_is_absent_and_not_null_outside_of_turns() -> None:
    event = recorded("session.completed", {})
    assert list(event.to_dict()) == ["type", "index", "sessionId", "at", "data"]
    assert b"turnId" not in event.to_json()


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    numbers | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
json_objects = st.dictionaries(st.text(), json_values)


@given(json_objects, names, st.none() | names, st.integers(0, 2**50))
def test_every_event_is_one_line_that_reads_as_itself(
    data: dict[str, Any], session_id: str, turn_id: str | None, at_us: int
) -> None:
    """E6: whatever characters are in it, an event is one line at LF, equal to its envelope and to what is imported."""
    event = recorded("acme.note", data, turn_id, session_id=session_id, at_us=at_us)
    line = event.to_json()
    assert line.split(b"\n") == [line]
    assert json.loads(line) == event.to_dict()
    assert event.to_dict()["data"] == event.data == data
    envelope = parse_envelope(line)
    assert (envelope.type, envelope.index, envelope.session_id) == ("acme.note", 3, session_id)
    assert (envelope.turn_id, envelope.at_us, envelope.data) == (turn_id, at_us, event.raw)


def test_the_stored_bytes_are_in_the_line_as_they_are() -> None:
    event = recorded("acme.note", {}, raw=b'{ "a" : 1.10 }')
    assert event.to_json().endswith(b'"data":{ "a" : 1.10 }}')


def test_data_is_decoded_once_and_the_same_object_ever_after() -> None:
    event = recorded("message.received", {"text": "hi"}, "t1")
    assert event.data == MessageReceived("hi")
    assert event.data is event.data
    payload = MessageReceived("given")
    assert recorded("message.received", {"text": "hi"}, "t1", _payload=payload).data is payload


def test_an_event_is_frozen_and_its_payload_too() -> None:
    event = recorded("turn.completed", {"usage": USAGE}, "t1")
    for thing, name in ((event, "index"), (event, "data"), (event.data, "usage"), (event.data.usage, "input_tokens")):
        with pytest.raises(AttributeError):
            setattr(thing, name, None)


def test_what_a_handler_does_to_nested_json_does_not_reach_the_stored_bytes() -> None:
    event = recorded("acme.note", {"tags": ["a"]})
    event.data["tags"].append("b")
    assert event.to_dict()["data"] == {"tags": ["a"]}
    assert json.loads(event.to_json())["data"] == {"tags": ["a"]}


def test_an_event_knows_its_time_and_its_id() -> None:
    event = recorded("turn.started", {}, "t1")
    assert event.at == datetime(2025, 12, 6, 12, 28, 3, 8_000, tzinfo=UTC)
    assert event.at.utcoffset() is not None
    assert event.id == "0a1b2c3d:17"


def test_events_are_equal_by_their_facts_and_not_by_what_was_decoded() -> None:
    event, same = recorded("turn.started", {}, "t1"), recorded("turn.started", {}, "t1")
    _ = event.data
    assert event == same
    assert not event != same  # noqa: SIM202 (an operator of its own, which a struct answers by identity)
    assert hash(event) == hash(same)
    others = {"index": 4, "session_id": "s2", "at_us": 0, "position": 18, "era": "00000000", "key": "k"}
    for name, value in others.items():
        other = recorded("turn.started", {}, "t1", **{name: value})
        assert (other == event, other != event) == (False, True)
    assert not recorded("turn.started", {"a": 1}, "t1") == event  # noqa: SIM201 (it is `==` that is asked)
    assert not recorded("turn.started", {}, "t2") == event  # noqa: SIM201
    assert not event == event.to_dict()  # noqa: SIM201


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))])  # noqa: S301
def test_an_event_can_be_copied_and_pickled(copied: Any) -> None:
    event = recorded("message.received", {"text": "hi"}, "t1")
    assert copied(event) == event
    assert copied(event).data == event.data


def test_an_event_shows_where_it_is_and_not_its_whole_payload() -> None:
    assert repr(recorded("turn.started", {}, "t1")) == "Event('turn.started', session_id='s1', index=3, position=17)"


def test_a_session_event_is_an_event() -> None:
    event: SessionEvent = recorded("turn.started", {}, "t1")
    assert type(event) is SessionEvent is Event


def test_an_event_is_generic_in_its_payload() -> None:
    event: Event[TurnCompleted] = recorded("turn.completed", {"usage": USAGE}, "t1")
    assert event.data.usage is not None
    assert event.data.usage.input_tokens == 1


@pytest.mark.parametrize(
    "raw",
    [b"", b"garbage", b"\x00\xff\xfe", b'{"text":', b'{"text":"\xff"}', b"{}", b'{"text":1}', b"[]", b"[" * 100_000],
    ids=lambda raw: repr(raw[:12]),
)
def test_an_event_that_cannot_be_decoded_says_which_it_is(raw: bytes) -> None:
    event = recorded("message.received", {"text": "hi"}, "t1", raw=raw)
    for _ in range(2):
        with pytest.raises(CorruptEvent) as caught:
            _ = event.data
        assert (caught.value.session_id, caught.value.index, caught.value.position) == ("s1", 3, 17)
        assert str(caught.value).isprintable()
    assert event.index == 3, "the envelope is still there"


@pytest.mark.parametrize(
    "raw", [b"", b"garbage", b'{"text":', b'{"text":"hi"}\n{}', b"[" * 100_000], ids=lambda raw: repr(raw[:12])
)
def test_bytes_that_are_not_json_are_not_put_into_a_line(raw: bytes) -> None:
    event = recorded("message.received", {"text": "hi"}, "t1", raw=raw)
    for read in (event.to_dict, event.to_json):
        with pytest.raises(CorruptEvent):
            read()


def test_an_event_that_the_store_knows_to_be_damaged_is_not_decoded() -> None:
    event = recorded("message.received", {"text": "hi"}, "t1", _payload=Corrupt("its checksum differs"))
    for read in (lambda: event.data, event.to_dict, event.to_json):
        with pytest.raises(CorruptEvent, match="its checksum differs"):
            read()


def test_a_time_that_is_none_is_a_corrupt_event() -> None:
    event = recorded("turn.started", {}, "t1", at_us=2**62)
    for read in (lambda: event.at, event.to_dict, event.to_json):
        with pytest.raises(CorruptEvent, match="years 1 to 9999"):
            read()


def test_bytes_that_somebody_broke_into_lines_are_one_line_again() -> None:
    event = recorded("acme.note", {}, raw=b'{\n  "a": "b\\n"\n}')
    assert event.to_json().endswith(b'"data":{"a":"b\\n"}}')


def test_what_is_said_of_a_corrupt_event_can_be_printed() -> None:
    event = recorded("session.started", START, raw=json.dumps(START | {"mode": "\x7f\u2028" * 500}).encode())
    with pytest.raises(CorruptEvent) as caught:
        _ = event.data
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_500


def test_an_event_of_a_type_that_cannot_be_appended_any_more_can_be_read() -> None:
    event: Event[Any] = Event("no type", 0, "s1", None, AT_US, 1, "0a1b2c3d", b'{"a":1}')
    assert event.data == {"a": 1}


def test_a_new_event_has_data_of_its_own() -> None:
    assert NewEvent("turn.started") == NewEvent("turn.started", {}, None, None)
    assert NewEvent("turn.started").data is not NewEvent("turn.started").data


# ---------------------------------------------------------------------------------------------------- envelopes

LINE = {"type": "message.received", "index": 0, "sessionId": "s1", "turnId": "t1", "at": AT, "data": {"text": "hi"}}


def line_of(**changes: Any) -> bytes:
    return json.dumps({key: value for key, value in (LINE | changes).items() if value is not ...}).encode()


def test_a_line_with_spaces_and_escapes_is_stored_as_if_it_were_appended() -> None:
    line = b' { "at":"2025-12-06T13:28:03.008+01:00", "data": {"text":"\\u0068i"} ,"type":"message.received"'
    envelope = parse_envelope(line + b',"turnId":"t1","sessionId":"s1","index":7}\r\n')
    assert (envelope.index, envelope.session_id, envelope.at_us) == (7, "s1", AT_US)
    assert envelope.encoded == encode_event("message.received", {"text": "hi"}, "t1")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b"", "event"),
        (b"\xff", "event"),
        (b"null", "event"),
        (b"[]", "event"),
        (b"{}", "type"),
        (b'{"a":1} {"a":2}', "event"),
        (b"[" * 100_000, "event"),
        (line_of(type=...), "type"),
        (line_of(type=1), "type"),
        (line_of(type="no type"), "type"),
        (line_of(index=...), "index"),
        (line_of(index=-1), "index"),
        (line_of(index=1.5), "index"),
        (line_of(index=2**63), "index"),
        (line_of(sessionId=...), "sessionId"),
        (line_of(sessionId=""), "sessionId"),
        (line_of(sessionId="a\u2028"), "sessionId"),
        (line_of(turnId=...), "turnId"),
        (line_of(turnId=None), "turnId"),
        (line_of(turnId="a\n"), "turnId"),
        (line_of(at=...), "at"),
        (line_of(at=0), "at"),
        (line_of(at="yesterday"), "at"),
        (line_of(data=...), "data"),
        (line_of(data=None), "data"),
        (line_of(data=[]), "data"),
        (line_of(data={"text": 1}), "data.text"),
        (line_of(data={"text": "\ud800"}), "event"),
        (line_of(type="a", data={"n": float("nan")}), "event"),
        (line_of(type="a").replace(b'{"text": "hi"}', b'{"n":1e400}'), "data[...]"),
        (line_of(type="a").replace(b'{"text": "hi"}', b'{"n":' + b"1" * 5_000 + b"}"), "data[...]"),
        (line_of(type="a").replace(b'{"text": "hi"}', b'{"n":{"a":1,"a":2}}'), "data"),
        (line_of(position=1), "event"),
    ],
)
def test_a_line_that_is_no_envelope_is_refused_and_its_place_is_named(line: bytes, path: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        parse_envelope(line)
    assert caught.value.path == path
    assert str(caught.value).isprintable()
