"""From a caller's data to the bytes that are stored: encoded once, and proven to say the same.

JSON libraries change some values without a word (NaN to null, the key 1 to "1", bytes to base64). So what
was encoded is decoded again and compared with what was given. That is cheaper than looking at every value,
and it catches whatever an encoder may do. Only when something differs are the values looked at one by one:
`plain` names the first that JSON cannot hold, or turns harmless ones (tuples, other mappings) into plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TypeAlias

import msgspec

from eventlog.errors import InvalidEvent, printable, shown
from eventlog.vocabulary import WITHOUT_NUL, EventType, decode_json, event_type

MAX_EVENT_BYTES = 1_048_576
"""Of one event's encoded data."""
MAX_DEPTH = 64
"""Objects and lists inside each other, the data itself included."""
MAX_BATCH_EVENTS = 1_000
MAX_BATCH_BYTES = 8 * 1_048_576
MAX_ID_CHARACTERS = 256
MAX_INTEGER_CHARACTERS = 4_300
"""Of one integer with its sign; longer ones could be written but not read back."""

EventData: TypeAlias = Mapping[str, Any] | msgspec.Struct

encode_json = msgspec.json.Encoder().encode

_SHOWN_KEY_CHARACTERS = 40
_JSON_KINDS = "use strings, numbers, lists and mappings"
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_HAS_NUL = f"Expected `str` matching regex {WITHOUT_NUL!r}"
_OPENING_BRACE = ord("{")
_UNCHANGED = frozenset({str, bool, type(None)})
_TOO_LARGE, _TOO_SMALL = 10**MAX_INTEGER_CHARACTERS, -(10 ** (MAX_INTEGER_CHARACTERS - 1))


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event that is ready to be stored; `payload` is what its readers will see as `event.data`."""

    type: str
    turn_id: str | None
    key: str | None
    raw: bytes
    payload: Any


TOMBSTONE = b'{"forgotten": true}'
"""What is stored in the place of data that was erased. No append writes it: ours have no space behind a colon."""


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """Stands in the place of a payload that `EventLog.forget` erased, whatever the event's type."""

    forgotten: Literal[True] = True


def encode_tombstone(type: str, turn_id: str | None) -> Encoded:
    """What is left of an event that was forgotten; raises InvalidEvent for a type or a turn that none could have."""
    kind = event_type(type)
    if turn_id is not None and kind.turn != "refused":
        turn_id = check_id("turnId", turn_id)
    else:
        _check_no_turn(kind, turn_id)
    return Encoded(kind.name, turn_id, None, TOMBSTONE, Forgotten())


def encode_event(type: str, data: EventData, turn_id: str | None = None, key: str | None = None) -> Encoded:
    """Check an event against the vocabulary and the limits, and encode its data.

    Raises InvalidEvent, which names the path, for everything that cannot be stored exactly as it is.
    """
    kind = event_type(type)
    if turn_id is not None and kind.turn != "refused":
        turn_id = _turn_id(turn_id) if turn_id.__class__ is str else check_id("turnId", turn_id)
    else:
        _check_no_turn(kind, turn_id)
    if key is not None:
        key = check_id("key", key)
    flat = False
    try:
        flat = _is_flat(data)
        raw = encode_json(data)
        payload = kind.decode(raw)
        if flat:
            same = True
        elif payload.__class__ is data.__class__:
            same = payload == data
        else:
            same = decode_json(raw) == data
    except Exception:  # of the encoder, or of the caller's own objects: looked at again, to name the place
        raw, payload, same = b"", None, False
    if not same or raw[0] != _OPENING_BRACE:
        raw, payload = _encode_carefully(kind, data)
    if len(raw) > MAX_EVENT_BYTES:
        raise InvalidEvent("data", f"is {len(raw)} bytes of JSON; the limit is {MAX_EVENT_BYTES}")
    if not flat and raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:  # only then can it be too deep
        plain(decode_json(raw))
    return Encoded(kind.name, turn_id, key, raw, payload)


def _is_flat(data: Any) -> bool:
    """Whether it is text and flags alone: there is nothing in it that an encoder could change, and nothing deep."""
    if data.__class__ is not dict:
        return False
    for key, value in data.items():  # noqa: SIM110  all() makes a generator for each event
        if key.__class__ is not str or value.__class__ not in _UNCHANGED:
            return False
    return True


def encode_value(value: object, path: str = "value") -> bytes:
    """Encode any JSON value exactly as it is; raises InvalidEvent, which names the place below `path`."""
    try:
        clean = plain(value, path)
        raw = encode_json(clean)
        same = decode_json(raw) == clean
    except InvalidEvent:
        raise
    except Exception as error:  # of the caller's own objects
        raise InvalidEvent(path, f"cannot be written as JSON: {_name_of(error)} was raised") from error
    if not same:
        raise InvalidEvent(path, "would be changed by writing it as JSON")
    return raw


def refuse_twins(raw: bytes) -> None:
    """Raise ValueError where JSON says a key twice in one object: decoders keep one of them and lose the other."""
    with suppress(Exception):  # of values that cannot be had; whoever wants them says why
        if encode_json(decode_json(raw)) == raw:
            return
    json.loads(raw, object_pairs_hook=_without_twins)  # there are spaces, escapes, or a loss


def _without_twins(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("has a key twice in one object")


def check_id(what: str, value: str) -> str:
    """The id as a plain string: 1 to 256 characters that are printable in Unicode; raises InvalidEvent for others."""
    if not isinstance(value, str):
        raise InvalidEvent(what, f"must be a string, not {_name_of(value)}")
    if not 0 < len(value) <= MAX_ID_CHARACTERS:
        raise InvalidEvent(what, f"has {len(value)} characters; 1 to {MAX_ID_CHARACTERS} are allowed")
    if not value.isprintable():
        raise InvalidEvent(what, f"{shown(value)} has characters that are not printable")
    return str.__str__(value)


def _check_no_turn(kind: EventType, turn_id: str | None) -> None:
    if turn_id is None and kind.turn == "required":
        raise InvalidEvent("turnId", f"{kind.name} belongs to a turn; give its turn_id")
    if turn_id is not None:
        raise InvalidEvent("turnId", f"{kind.name} belongs to the session; give no turn_id")


@lru_cache(maxsize=4_096)
def _turn_id(turn_id: str) -> str:
    return check_id("turnId", turn_id)  # a turn has many events


# ------------------------------------------------------------------------------------------------------ the careful way


def _encode_carefully(kind: EventType, data: object) -> tuple[bytes, Any]:
    raw = encode_value(data, "data")
    if kind.struct and isinstance(data, msgspec.Struct) and not isinstance(data, kind.struct):
        raise InvalidEvent("data", f"{kind.name} takes a {kind.struct.__name__}, not a {_name_of(data)}")
    if raw[0] != _OPENING_BRACE:
        raise InvalidEvent("data", f"must be a JSON object (a mapping or a struct), not {_name_of(data)}")
    try:
        return raw, kind.decode(raw)
    except InvalidEvent:
        raise
    except msgspec.ValidationError as error:
        raise invalid("data", error) from None
    except Exception as error:  # of an own payload struct
        raise InvalidEvent("data", f"is not a {kind.name}: {_name_of(error)} was raised") from error


def invalid(root: str, error: msgspec.ValidationError) -> InvalidEvent:
    """msgspec's fault in our words: its "Expected `int`, got `str` - at `$.usage.inputTokens`" names the path."""
    why, at, place = str(error).rpartition(" - at `$")
    why, place = (why, place.rstrip("`")) if at else (place, "")
    missing = _MISSING.fullmatch(why)
    if missing:
        place, why = f"{place}.{missing[1]}", "is required"
    elif why == _HAS_NUL:
        why = "has the character U+0000, at which SQLite ends a text; leave it out"
    return InvalidEvent(f"{root}{place}".lstrip(".") or "event", printable(f"{why[:1].lower()}{why[1:]}"))


def plain(value: object, path: str = "data", depth: int = 1) -> Any:
    """`value` as plain JSON: dicts, lists, str, int, float, bool and None; raises InvalidEvent at the first other."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _plain_text(value, path)
    if isinstance(value, int):
        return _plain_integer(value, path)
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidEvent(path, f"{float.__repr__(value)} is not a JSON number; use null or a string")
        return float.__float__(value)
    if not isinstance(value, (Mapping, msgspec.Struct, list, tuple)):
        hint = "write it as text, by its isoformat()" if isinstance(value, date) else _JSON_KINDS
        raise InvalidEvent(path, f"{_name_of(value)} is not JSON; {hint}")
    if depth > MAX_DEPTH:
        raise InvalidEvent(path, f"is deeper than {MAX_DEPTH} levels")
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _plain_object(value, path, depth)


def _plain_text(value: str, path: str) -> str:
    text = str.__str__(value)  # of a subclass (an enum's member, say) the text alone
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(path, f"has a lone surrogate at character {error.start}, which is not text") from None
    return text


def _plain_integer(value: int, path: str) -> int:
    number = int.__int__(value)
    if not _TOO_SMALL < number < _TOO_LARGE:
        raise InvalidEvent(path, f"has more than {MAX_INTEGER_CHARACTERS} digits; use a string")
    return number


def _plain_object(value: Mapping[Any, Any] | msgspec.Struct, path: str, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in _items(value, path):
        if not isinstance(key, str):
            raise InvalidEvent(path, f"its key {shown(key)} is {_name_of(key)}; JSON keys are strings")
        name = _plain_text(key, f"{path}, the key {shown(key)}")
        if name in result:
            raise InvalidEvent(path, f"its key {shown(name)} is there twice")
        result[name] = plain(item, _below(path, name), depth + 1)
    return result


def _items(value: Mapping[Any, Any] | msgspec.Struct, path: str) -> list[tuple[Any, Any]]:
    try:
        return list(_fields(value) if isinstance(value, msgspec.Struct) else value.items())
    except Exception as error:  # the caller's own mapping, or a field that was never set
        raise InvalidEvent(path, f"cannot be read: {_name_of(value)} raised {_name_of(error)}") from error


def _fields(struct: msgspec.Struct) -> Iterable[tuple[Any, Any]]:
    config = struct.__struct_config__
    if config.tag is not None:
        yield config.tag_field, config.tag
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value is msgspec.UNSET or (config.omit_defaults and value is field.default):
            continue
        yield field.encode_name, value


def _below(path: str, key: str) -> str:
    if len(key) <= _SHOWN_KEY_CHARACTERS and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}"
    cut = key if len(key) <= _SHOWN_KEY_CHARACTERS else f"{key[:_SHOWN_KEY_CHARACTERS]}..."
    return f"{path}[{cut!a}]"


def _name_of(value: object) -> str:
    return type(value).__name__
