"""What is stored says exactly what was given, or nothing is stored and the place is named."""

from __future__ import annotations

import enum
import json
import uuid
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from eventlog.encoding import (
    MAX_DEPTH,
    MAX_EVENT_BYTES,
    MAX_ID_CHARACTERS,
    Encoded,
    check_id,
    encode_event,
    encode_value,
    plain,
)
from eventlog.errors import InvalidEvent
from eventlog.events import Cost, MessageReceived, TokenUsage, TurnCompleted, TurnFailed

OWN = "acme.checked"

texts = st.text() | st.text(st.sampled_from('\u2028\u2029\x85\r\x0b\x0c\n\x1c\x00\\"{}[]\ufeff\U0001f600'))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10)
objects = st.dictionaries(texts, values)


def own(data: Any) -> Encoded:
    return encode_event(OWN, data)


def refused(data: Any, type: str = OWN, turn_id: str | None = None) -> InvalidEvent:
    with pytest.raises(InvalidEvent) as caught:
        encode_event(type, data, turn_id)
    assert str(caught.value).isprintable(), "a message may end on a terminal"
    assert not isinstance(caught.value, BaseExceptionGroup)
    return caught.value


def identical(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down: 1 is not True and not 1.0, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    return repr(one) == repr(other)


# ------------------------------------------------------------------------------------------------ what goes through


@given(objects)
@example({"zero": -0.0, "tiny": 5e-324, "whole": 1.0, "yes": True, "one": 1})
def test_any_json_object_goes_through_unchanged(data: dict[str, Any]) -> None:
    encoded = own(data)
    assert identical(encoded.payload, data)
    assert identical(json.loads(encoded.raw), data), "another library reads the same"


@given(values)
def test_any_json_value_goes_through_unchanged(value: Any) -> None:
    assert identical(json.loads(encode_value(value)), value)
    assert identical(plain(value), value)


@given(objects)
def test_the_payload_shares_nothing_with_what_was_given(data: dict[str, Any]) -> None:
    """What readers see was decoded from the stored bytes, so the caller can go on changing its own."""
    encoded = own(data)
    before = encoded.raw
    data["later"] = True
    assert json.loads(before) == encoded.payload != data


@given(texts)
def test_a_line_feed_never_reaches_the_bytes(text: str) -> None:
    """E6: a record is one line when it is split at LF alone."""
    encoded = own({text: [text]})
    assert b"\n" not in encoded.raw
    assert b"\r" not in encoded.raw
    assert encoded.payload == {text: [text]}


@pytest.mark.parametrize(
    "number",
    [2**53 + 1, 2**63 - 1, 2**63, 2**64 + 10**18 + 1, 19933688932870350000, -(2**63) - 1, 10**4299, 1 - 10**4299],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_a_big_integer_stays_exact(number: int) -> None:
    """E3."""
    assert own({"n": [number]}).payload == {"n": [number]}
    assert json.loads(own({"n": number}).raw) == {"n": number}
    assert json.loads(encode_value(number)) == number


@pytest.mark.parametrize(
    "number", [10**5000, -(10**5000), 10**4300, -(10**4299)], ids=["large", "small", "above", "below"]
)
def test_an_integer_that_python_cannot_read_back_is_refused(number: int) -> None:
    """E3."""
    assert refused({"n": {"m": number}}).path == "data.n.m"
    with pytest.raises(InvalidEvent, match="4300 digits"):
        encode_value(number)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Point(NamedTuple):
    x: int
    y: int


class Note(msgspec.Struct, rename="camel", omit_defaults=True):
    the_text: str
    the_tags: list[str] | None = None
    rest: Any = msgspec.UNSET


class Tagged(msgspec.Struct, tag="kind-of", tag_field="kind"):
    a: int


class Own(Mapping[str, Any]):
    def __init__(self, items: dict[str, Any]) -> None:
        self._own = items

    def __getitem__(self, key: str) -> Any:
        return self._own[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@pytest.mark.parametrize(
    ("given_value", "stored"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Text("text"), "text"),
        (Number(7), 7),
        (Real(0.5), 0.5),
        ({Colour.RED: Text("a")}, {"red": "a"}),
        ({Text("key"): 1}, {"key": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (UserDict({"a": {"b": MappingProxyType({})}}), {"a": {"b": {}}}),
        (Own({"a": Own({"b": 1})}), {"a": {"b": 1}}),
        (Note("hi"), {"theText": "hi"}),
        (Note("hi", ["a"], {"b": (1,)}), {"theText": "hi", "theTags": ["a"], "rest": {"b": [1]}}),
        (Tagged(1), {"kind": "kind-of", "a": 1}),
        (TokenUsage(1, 2, 3, 4), {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "cacheWriteTokens": 4}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_json_in_other_clothes_is_taken_as_json(given_value: Any, stored: Any) -> None:
    assert identical(own({"v": given_value}).payload, {"v": stored})
    assert identical(json.loads(encode_value([given_value])), [stored])
    if isinstance(stored, dict):
        assert identical(own(given_value).payload, stored)


# ------------------------------------------------------------------------------------------------ what is refused


class Plain(enum.Enum):
    A = "a"


@dataclass
class Data:
    a: int = 1


class Raising:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unreadable(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[str]:
        yield "a"

    def __len__(self) -> int:
        return 1


class Lying(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("\x1b[31m")


class Forgetful(msgspec.Struct):
    a: int

    @property
    def b(self) -> int:
        raise AssertionError


class WithoutClass:
    def __getattribute__(self, name: str) -> Any:  # `__class__` included
        raise ZeroDivisionError


def cyclic() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def unset() -> Forgetful:
    struct = Forgetful(1)
    del struct.a
    return struct


LOSSY: list[Callable[[], Any]] = [
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: float("-inf"),
    lambda: Real("nan"),
    lambda: Decimal("NaN"),
    lambda: Decimal("1.10"),
    lambda: Fraction(1, 2),
    lambda: 1 + 2j,
    lambda: "\ud800",
    lambda: "text \udfff text",
    lambda: Text("\ud800"),
    lambda: b"bytes",
    lambda: bytearray(b"bytes"),
    lambda: memoryview(b"bytes"),
    lambda: datetime(2026, 1, 1, tzinfo=UTC),
    lambda: date(2026, 1, 1),
    lambda: timedelta(1),
    lambda: uuid.UUID(int=0),
    lambda: {1, 2},
    lambda: frozenset({"a"}),
    lambda: range(3),
    lambda: iter([1]),
    lambda: {}.keys(),
    lambda: Plain.A,
    lambda: Data(),
    lambda: object(),
    lambda: int,
    lambda: print,
    lambda: msgspec.UNSET,
    lambda: msgspec.Raw(b"NaN"),
    lambda: msgspec.Raw(b"1"),
    lambda: 10**5000,
    lambda: {1: "a"},
    lambda: {1: "a", "1": "b"},
    lambda: {None: 1},
    lambda: {True: 1},
    lambda: {1.5: 1},
    lambda: {Level.LOW: 1},
    lambda: {b"a": 1},
    lambda: {(1, 2): 1},
    lambda: {Plain.A: 1},
    lambda: Raising(),
    lambda: Unreadable(),
    lambda: unset(),
]

keys = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,20}\Z")
steps = st.lists(keys | st.integers(0, 3), max_size=6)


def planted(value: Any, steps: list[str | int], siblings: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """`value` at the end of the steps (a key of an object, or a place in a list), and the path to it."""
    path = ""
    for step in reversed(steps):
        if isinstance(step, int):
            value, path = [siblings] * step + [value], f"[{step}]{path}"
        else:
            value, path = {**siblings, step: value}, f".{step}{path}"
    return {"root": value}, f"data.root{path}"


@given(st.sampled_from(LOSSY), steps, objects)
def test_a_value_that_json_would_change_is_refused_and_its_place_is_named(
    lossy: Callable[[], Any], steps: list[str | int], siblings: dict[str, Any]
) -> None:
    """E1: NaN, Decimal and all the others, at any depth, among any other values."""
    assume(not {step for step in steps if isinstance(step, str)} & set(siblings))
    data, path = planted(lossy(), steps, siblings)
    assert refused(data).path == path


@pytest.mark.parametrize("lossy", LOSSY)
def test_a_lossy_value_is_refused_wherever_values_are_encoded(lossy: Callable[[], Any]) -> None:
    """E1, as for the values of a key-value store."""
    with pytest.raises(InvalidEvent) as caught:
        encode_value([lossy()], "value")
    assert caught.value.path == "value[0]"
    assert refused({"result": {"v": lossy()}}, "turn.completed", "t1").path == "data.result.v"
    assert refused(TurnCompleted(result={"v": lossy()}), "turn.completed", "t1").path == "data.result.v"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_called_by_its_name_in_a_typed_field(value: float) -> None:
    """E1: never null in place of a number."""
    data = {"cost": {"totalUsd": value, "model": "m"}}
    for given_data in (data, TurnCompleted(cost=Cost(value, "m"))):
        error = refused(given_data, "turn.completed", "t1")
        assert (error.path, error.why.split()[0]) == ("data.cost.totalUsd", repr(value))


def test_equal_keys_of_an_own_mapping_are_not_merged() -> None:
    class Twins(Own):
        def items(self) -> Any:
            return [("a", 1), ("a", 2)]

    assert refused({"v": Twins({})}).path == "data.v"


def test_a_key_is_named_so_that_it_can_be_printed() -> None:
    assert refused({"\x1b[31m": object()}).path == r"data['\x1b[31m']"
    assert refused({"k" * 1000: object()}).path == f"data['{'k' * 40}...']"
    assert refused({"a b": {"c": [0, object()]}}).path == "data['a b'].c[1]"
    assert refused({"v": {"a\ud800": 1}}).path == r"data.v, the key 'a\ud800'"


@pytest.mark.parametrize("data", [None, 1, "text", [], [{}], (), 1.5, True, object(), b"{}", Lying()])
def test_data_is_a_json_object(data: Any) -> None:
    assert refused(data).path == "data"
    assert refused(data, "session.completed").path == "data"


def test_errors_of_the_callers_own_objects_become_ours() -> None:
    """Whatever an object raises while it is read, the caller of append catches one type."""
    for data in (Unreadable(), {"a": Raising()}, {"a": WithoutClass()}, unset(), {"a": cyclic()}):
        refused(data)
        refused({"result": data}, "turn.completed", "t1")


# ---------------------------------------------------------------------------------------------------- limits


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """`levels` containers inside each other."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_depth_64_is_stored_and_65_is_refused(kind: Any) -> None:
    assert own({"a": nested(MAX_DEPTH - 1, kind)}).payload == {"a": nested(MAX_DEPTH - 1, kind)}
    error = refused({"a": nested(MAX_DEPTH, kind)})
    assert error.path == f"data.a{('[0]' if kind is list else '.a') * (MAX_DEPTH - 1)}"
    assert "64" in error.why


@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_depth_without_end_is_refused_like_any_other(levels: int) -> None:
    assert "deeper" in refused({"a": nested(levels, list)}).why
    assert "deeper" in refused({"result": nested(levels, list)}, "turn.completed", "t1").why
    assert "deeper" in refused({"a": cyclic()}).why


def test_brackets_in_a_text_are_not_depth() -> None:
    text = "{[" * 1_000
    assert own({"code": text}).payload == {"code": text}
    assert own({"many": [{} for _ in range(1_000)]}).payload == {"many": [{}] * 1_000}


def test_an_event_of_one_mebibyte_is_stored_and_one_byte_more_is_refused() -> None:
    frame = len(own({"text": ""}).raw)
    assert len(own({"text": "x" * (MAX_EVENT_BYTES - frame)}).raw) == MAX_EVENT_BYTES
    error = refused({"text": "x" * (MAX_EVENT_BYTES - frame + 1)})
    assert error.path == "data"
    assert str(MAX_EVENT_BYTES) in error.why


@pytest.mark.parametrize("value", ["s", "s" * MAX_ID_CHARACTERS, "a b", "ses_9/é:ü", "\U0001f600", " "])
def test_an_id_is_1_to_256_printable_characters(value: str) -> None:
    assert check_id("sessionId", value) == value
    assert encode_event(OWN, {}, value, value).key == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s" * 257,
        "a\nb",
        "\x00",
        "\x1b[31m",
        "\x7f",
        "\x85",
        "\u2028",
        "\u2029",
        "\ud800",
        "\u202e",
        None,
        1,
        b"s",
        [],
    ],
)
def test_other_ids_are_refused(value: Any) -> None:
    """E6: a session id with a line separator in it cannot be."""
    with pytest.raises(InvalidEvent, match=r"^sessionId: ") as caught:
        check_id("sessionId", value)
    assert str(caught.value).isprintable()
    if value is not None:
        with pytest.raises(InvalidEvent, match=r"^turnId: "):
            encode_event(OWN, {}, value)
        with pytest.raises(InvalidEvent, match=r"^key: "):
            encode_event(OWN, {}, None, value)


def test_an_id_of_an_own_string_class_is_stored_as_a_plain_string() -> None:
    encoded = encode_event(Text(OWN), {}, Text("t1"), Text("k1"))
    assert [type(part) for part in (encoded.type, encoded.turn_id, encoded.key)] == [str, str, str]


@pytest.mark.parametrize("name", ["a", "A" * 128, "TEXT_MESSAGE_START", "acme.tool/v1:x-y_z", "Z9"])
def test_an_own_type_is_a_letter_and_up_to_127_more(name: str) -> None:
    assert encode_event(name, {}).type == name


@pytest.mark.parametrize(
    "name", ["", "A" * 129, "9a", ".a", "a b", "a\n", "é", "aé", "a\u2028", "a\x85", "*", "a*", None, 1, [], {}, b"a"]
)
def test_other_types_are_refused(name: Any) -> None:
    """E6: nor an event type with a line separator in it."""
    with pytest.raises(InvalidEvent, match=r"^type: ") as caught:
        encode_event(name, {})
    assert str(caught.value).isprintable()


# ------------------------------------------------------------------------------------------ own payload structs


def test_a_struct_of_another_type_is_refused() -> None:
    error = refused(TurnFailed("x"), "turn.completed", "t1")
    assert error.why == "turn.completed takes a TurnCompleted, not a TurnFailed"


def test_a_struct_and_its_wire_mapping_are_the_same_event() -> None:
    from_struct = encode_event("message.received", MessageReceived("hi"), "t1")
    from_mapping = encode_event("message.received", {"text": "hi"}, "t1")
    assert from_struct == from_mapping
    assert from_struct.payload == MessageReceived("hi")


def test_a_fault_of_msgspec_is_told_in_our_words() -> None:
    error = refused({"usage": {"inputTokens": "many"}}, "turn.completed", "t1")
    assert (error.path, error.why) == ("data.usage.inputTokens", "expected `int`, got `str`")
    missing = refused({"usage": {}}, "turn.completed", "t1")
    assert (missing.path, missing.why) == ("data.usage.inputTokens", "is required")
    spoofed = refused({**SESSION, "mode": "\x1b[31m - at `$.other"}, "session.started")
    assert spoofed.path == "data.mode"


SESSION = {"channelId": "c", "mode": "chat", "purpose": "live", "projectId": "p"}
