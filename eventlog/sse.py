"""Streams a session to an HTTP client as server-sent events, for Starlette and FastAPI (extra `sse`).

    async def events(request: Request) -> Response:
        session = await log.session(request.path_params["session"])
        return stream(request, session)             # who may see it is the server's to decide, before this line

Each event is one message: `id` is its index, `data` its envelope. A client that lost its connection sends the last id
as `Last-Event-ID`, as browsers do by themselves, and goes on behind it, without a gap or a repeat, also when the server
was started again meanwhile. Where that cannot be, it is told so by a message of type `reset`: what it has is to be
thrown away, and what there is follows.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Literal, cast

import msgspec

from eventlog import CorruptEvent, CursorExpired, Event, Session
from eventlog.errors import shown

try:
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from sse_starlette.sse import SendTimeoutError
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.types import Message, Receive, Scope, Send
except ImportError as error:
    needs = "eventlog.sse needs the extra `sse`: install eventlog with it, as its README shows"
    raise ImportError(needs, name=error.name) from error

__all__ = ["HEARTBEAT_S", "RECONNECT_S", "SEND_TIMEOUT_S", "Reset", "stream"]

HEARTBEAT_S = 15.0
"""Proxies end a connection on which nothing comes, many of them after 30 or 60 s."""

SEND_TIMEOUT_S = 30.0
"""A client that takes nothing for so long is let go: it can resume, and holds a page of the log in memory meanwhile."""

RECONNECT_S = 1.0
"""How long browsers are told to wait before they connect again; their own choice is 3 to 5 s."""

END_LIMIT_S = 1.0
"""How long a stream that is cut off by the end of the server may take to be ended in order."""

WRITES_IN_A_ROW = 4
"""Then the loop has its turn, in a long history too: others are served, and that the client has gone is noticed."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)

logger = logging.getLogger("eventlog.sse")


class Reset(msgspec.Struct, frozen=True):
    """The `data` of a `reset`: the events that the client has seen do not lead to those that follow.

    It is to throw away what it has. What there is of the session follows, from the beginning. `expired`: some of what
    comes behind the client's last event was pruned, and from the index `floor` on nothing was. `ahead`: it has seen
    events that the log does not hold (any more), as after a restore of a backup.
    """

    reason: Literal["expired", "ahead"]
    floor: int


def stream(
    request: Request,
    session: Session,
    *,
    after: int | None = None,
    heartbeat_s: float = HEARTBEAT_S,
    send_timeout_s: float = SEND_TIMEOUT_S,
    reconnect_s: float = RECONNECT_S,
) -> Response:
    """Answer a request with the events of a session: history, then live, until the log closes or the client goes.

    It begins behind the request's `Last-Event-ID`, or behind the index `after` where there is none. An id that is no
    index is answered with 400. `heartbeat_s=0` sends no heartbeats. A client that takes nothing for `send_timeout_s`
    is let go, which is logged.
    """
    given = request.headers.getlist("last-event-id")
    if len(given) > 1 or (given and given[0] and not _INDEX.fullmatch(given[0])):
        why = f"Last-Event-ID must be the index of an event, such as 42, not {shown(', '.join(given))}"
        return JSONResponse({"error": why}, status_code=400)
    last_seen = int(given[0]) if given and given[0] else after
    return _Stream(session, last_seen, heartbeat_s, send_timeout_s, reconnect_s)


class _Stream(EventSourceResponse):
    """The messages, and what becomes of a client that does not take them."""

    def __init__(
        self, session: Session, after: int | None, heartbeat_s: float, send_timeout_s: float, reconnect_s: float
    ) -> None:
        super().__init__(
            _messages(session, after, round(reconnect_s * 1_000)),
            ping=heartbeat_s,
            ping_message_factory=lambda: ServerSentEvent(comment="heartbeat"),
            send_timeout=send_timeout_s,
        )
        self._session_id = session.id
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def noted(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        try:
            await super().__call__(scope, receive, noted)
            if is_open:  # a server that stops cuts it off in the middle, and would call that an error
                await _ended(send)
        except SendTimeoutError:
            logger.warning(
                "a client of session %s took nothing for %g s and is let go; it can resume",
                shown(self._session_id),
                self._send_timeout_s,
            )


async def _ended(send: Send) -> None:
    """A client that takes nothing keeps no server from stopping."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_LIMIT_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _messages(session: Session, after: int | None, reconnect_ms: int) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % reconnect_ms
    while True:
        try:
            if after is not None and await _is_ahead(session, after):
                after = None
                yield _reset(Reset("ahead", floor=0))
            async with aclosing(cast(AsyncGenerator[Event[Any]], session.tail(after=after))) as events:
                async for event in events:
                    after = event.index
                    yield _message(event)
                    if after % WRITES_IN_A_ROW == 0:
                        await asyncio.sleep(0)
            return
        except CursorExpired as expired:
            after = None
            yield _reset(Reset("expired", expired.floor))


async def _is_ahead(session: Session, index: int) -> bool:
    """Whether the session has not come to this index. A read-only handle may lag, so the log itself is asked."""
    if index < session.next_index:
        return False
    return not [event async for event in session.read(after=index - 1, limit=1)]


def _message(event: Event[Any]) -> bytes:
    """An event as a message; its JSON is one line. A damaged one is not left out, but says that it is."""
    try:
        return b"id: %d\ndata: %s\n\n" % (event.index, event.to_json())
    except CorruptEvent as error:
        data = {"sessionId": event.session_id, "index": event.index, "corrupt": error.why}
        return b"id: %d\nevent: corrupt\ndata: %s\n\n" % (event.index, msgspec.json.encode(data))


def _reset(reset: Reset) -> bytes:
    """With an empty id: a client that loses its connection now comes again as a new one."""
    return b"id: \nevent: reset\ndata: %s\n\n" % msgspec.json.encode(reset)
