"""What passes over a control socket: a request and its answer, each a message of JSON behind its length.

JSON and not MessagePack, because an event's integers may be of any size. Errors pass as they are: who asked gets the
class that was raised, with the same attributes and the same message.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from eventlog import errors
from eventlog.encoding import MAX_EVENT_BYTES, encode_value, refuse_twins
from eventlog.errors import EventLogError, Finding, InvalidRequest, LimitExceeded, printable

MAX_MESSAGE_BYTES = MAX_EVENT_BYTES + 65_536
"""The largest event, and what stands around it."""

T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 262_144


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command, and its arguments as an object."""

    command: str = msgspec.field(name="do")
    arguments: msgspec.Raw = msgspec.field(name="with", default=msgspec.Raw(b"{}"))


class _Fault(msgspec.Struct, frozen=True):
    kind: str
    message: str
    attributes: dict[str, Any]


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: _Fault | None = None


# ------------------------------------------------------------------------------------------------------------- to bytes


def encode_request(command: str, arguments: Mapping[str, Any]) -> bytes:
    """A request, with camelCase names of its arguments; raises InvalidEvent for what JSON cannot hold as it is."""
    named = {_camel(name): _exact(_camel(name), value) for name, value in arguments.items()}
    return _encoded({"do": command, "with": named})


def _exact(name: str, value: object) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(encode_value(value, name))


def encode_done(value: object) -> bytes:
    """The answer of a command that was done."""
    return _encoded({"value": value})


def encode_error(error: EventLogError | OSError) -> bytes:
    """The answer of a command that raised."""
    if isinstance(error, OSError):
        fault = _Fault("OSError", _text(error.strerror or str(error)), _os_attributes(error))
    else:
        attributes = {name: value for name, value in vars(error).items() if not name.startswith("__")}
        fault = _Fault(type(error).__name__, _text(error), msgspec.to_builtins(attributes, enc_hook=_text))
    try:
        return _encoded(_Answer(error=fault))
    except InvalidRequest:  # a path that is not Unicode, say
        return _encoded(_Answer(error=_Fault(fault.kind, fault.message, {})))


def _os_attributes(error: OSError) -> dict[str, Any]:
    return {"errno": error.errno, "filename": None if error.filename is None else _text(error.filename)}


def _encoded(message: object) -> bytes:
    try:
        body = msgspec.json.encode(message)
    except Exception as error:
        raise InvalidRequest(f"it cannot be written as JSON: {printable(str(error))}") from None
    if len(body) > MAX_MESSAGE_BYTES:
        raise LimitExceeded("bytes of a message to or from the log's owner", MAX_MESSAGE_BYTES, len(body))
    return body


def _text(value: object) -> str:
    """As text that is Unicode."""
    return str(value).encode(errors="backslashreplace").decode()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


# ----------------------------------------------------------------------------------------------------------- from bytes


def decode_request(body: bytes) -> Request:
    """A request; raises InvalidRequest for everything else, and for an object with a key twice: one would be lost."""
    request = decode_as(Request, body)
    try:
        refuse_twins(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(printable(str(error))) from None
    return request


def decode_as(kind: type[T], body: bytes | msgspec.Raw) -> T:
    """A message, or a part of one, as an instance of `kind`; raises InvalidRequest for what is not one."""
    try:
        return msgspec.json.decode(body, type=kind)
    except Exception as error:  # of depth and of encoding too
        raise InvalidRequest(printable(str(error))) from None


def decode_answer(body: bytes) -> Any:
    """What a command answered, as plain JSON; raises what it raised."""
    answer = decode_as(_Answer, body)
    if answer.error is not None:
        raise _error_of(answer.error)
    return msgspec.json.decode(answer.value)


def _error_of(fault: _Fault) -> Exception:
    if fault.kind == "OSError":
        return OSError(fault.attributes.get("errno"), fault.message, fault.attributes.get("filename"))
    kind = _KINDS.get(fault.kind, EventLogError)  # of a newer version: still an error of the log
    error = kind.__new__(kind, fault.message)
    error.__dict__.update(fault.attributes)
    if "findings" in fault.attributes:
        error.__dict__["findings"] = msgspec.convert(fault.attributes["findings"], tuple[Finding, ...])
    return error


def _tree(kind: type[EventLogError]) -> Iterator[type[EventLogError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_KINDS = {kind.__name__: kind for kind in _tree(EventLogError) if kind.__module__ == errors.__name__}


# ------------------------------------------------------------------------------------------------------- over a socket


async def send(connection: socket.socket, body: bytes) -> None:
    """Send a message over a socket that does not block."""
    await asyncio.get_running_loop().sock_sendall(connection, framed(body))


def framed(body: bytes) -> bytes:
    """A message behind its length, as it is sent."""
    return _LENGTH.pack(len(body)) + body


async def receive(connection: socket.socket) -> bytes:
    """The next message; raises InvalidRequest for one that is too long, EOFError when the other side has gone."""
    (length,) = _LENGTH.unpack(await _exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise InvalidRequest(f"it says that it is {length} bytes long; the limit is {MAX_MESSAGE_BYTES}")
    return await _exactly(connection, length)


async def _exactly(connection: socket.socket, count: int) -> bytes:
    loop, received = asyncio.get_running_loop(), bytearray()
    while len(received) < count:
        chunk = await loop.sock_recv(connection, min(count - len(received), _CHUNK_BYTES))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)
