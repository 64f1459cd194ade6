"""Streaming a session as server-sent events, over the protocol between server and application (ASGI)."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventlog import EventLog, Session
from tests.log_kit import CHECKOUT, all_of, damaging, fill, until

pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")

from starlette.requests import Request
from starlette.responses import Response

from eventlog.sse import HEARTBEAT_S, SEND_TIMEOUT_S, Reset, stream


class Message(NamedTuple):
    """One message as a client reads it."""

    id: str | None
    event: str | None
    data: Any


class Client:
    """A client of the stream, at the other end of ASGI."""

    def __init__(self, *last_event_ids: str) -> None:
        headers = [(b"last-event-id", text.encode()) for text in last_event_ids]
        self.scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
        self.request = Request(self.scope)
        self.status = 0
        self.body = b""
        self.ended = False
        self.takes = asyncio.Event()
        self.takes.set()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ask(self, response: Response) -> Client:
        """Let the application answer."""
        self._task = asyncio.ensure_future(response(self.scope, self._receive, self._send))
        return self

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.takes.wait()
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        self.ended |= message["type"] == "http.response.body" and not message.get("more_body", False)

    async def leave(self) -> None:
        """Close the connection, and wait until the application has noticed."""
        self._gone.set()
        await self.answered()

    async def answered(self) -> None:
        """Wait until the application has nothing more to say."""
        assert self._task is not None
        await self._task

    async def first(self, count: int) -> list[Message]:
        """The first so many messages."""
        await until(lambda: len(self.messages) >= count or self.ended)
        return self.messages[:count]

    @property
    def messages(self) -> list[Message]:
        """What came so far and has data."""
        found = []
        for text in self.body.decode().replace("\r\n", "\n").split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in text.split("\n") if not line.startswith(":"))
            if "data" in fields:
                found.append(Message(fields.get("id"), fields.get("event"), json.loads(fields["data"])))
        return found

    @property
    def ids(self) -> list[str | None]:
        """The id of each message."""
        return [message.id for message in self.messages]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as log:
        yield log


@pytest.fixture
async def session(log: EventLog) -> Session:
    """Indexes 0 to 9."""
    session = await log.start_session("s1")
    await fill(session, 9, text="a\u2028b\u2029c\x85 \r\n d")
    return session


def following(session: Session, *last_event_ids: str, **settings: Any) -> Client:
    """A client that has asked for the stream."""
    client = Client(*last_event_ids)
    return client.ask(stream(client.request, session, **settings))


# ------------------------------------------------------------------------------------------------------- what is sent


async def test_a_stream_is_the_history_and_then_what_comes(session: Session) -> None:
    client = following(session)
    await client.first(10)
    event = await session.append("message.received", {"text": "live"}, turn_id="t1")
    messages = await client.first(11)
    assert [message.id for message in messages] == [str(index) for index in range(11)]
    assert [message.data for message in messages] == [each.to_dict() async for each in session.read()]
    assert messages[-1] == Message("10", None, event.to_dict())
    await client.leave()


@pytest.mark.parametrize(("last", "expected"), [("0", 1), ("4", 5), ("8", 9), ("", 0)])
async def test_a_client_goes_on_behind_the_last_event_that_it_saw(session: Session, last: str, expected: int) -> None:
    client = following(session, last)
    assert (await client.first(1))[0].id == str(expected)
    await client.leave()


async def test_a_client_that_saw_everything_waits(log: EventLog, session: Session) -> None:
    client = following(session, "9")
    await until(lambda: log.tails_waiting() == 1)
    assert client.messages == []
    await session.append("test.noted", {})
    assert [message.id for message in await client.first(1)] == ["10"]
    await client.leave()


async def test_the_server_says_where_a_client_without_an_id_begins(session: Session) -> None:
    fresh, resumed = following(session, after=6), following(session, "8", after=6)
    assert (await fresh.first(1))[0].id == "7"
    assert (await resumed.first(1))[0].id == "9"
    await fresh.leave()
    await resumed.leave()


@pytest.mark.parametrize(
    "ids", [["x"], ["-1"], ["1.0"], ["01"], ["1e3"], ["0x1"], [" 1"], ["+1"], ["9" * 19], ["1", "2"], ["a\x1b[2J"]]
)
async def test_an_id_that_is_no_index_is_refused(session: Session, ids: list[str]) -> None:
    client = following(session, *ids)
    await client.answered()
    assert client.status == 400
    error = json.loads(client.body)["error"]
    assert error.startswith("Last-Event-ID must be the index of an event, such as 42, not ")
    assert error.isprintable()


@pytest.mark.parametrize("last", ["10", "99", "9" * 18])
async def test_a_client_that_saw_more_than_there_is_is_told_to_begin_anew(session: Session, last: str) -> None:
    client = following(session, last)
    first, second, *_ = await client.first(11)
    assert first == Message("", "reset", {"reason": "ahead", "floor": 0})
    assert Reset(**first.data) == Reset("ahead", 0)
    assert second.id == "0"
    assert client.ids == ["", *map(str, range(10))]
    await client.leave()


@pytest.mark.skipif(not hasattr(EventLog, "prune"), reason="logs cannot be pruned yet")
async def test_a_client_whose_place_was_pruned_is_told_to_begin_anew(log: EventLog, session: Session) -> None:
    await session.append("session.completed", {})
    live, done = following(session), following(session, "10")
    await live.first(11)
    pruned = await getattr(log, "prune")(keep_events=0)  # noqa: B009
    assert pruned.sessions == 1
    late, fresh = following(session, "1"), following(session)
    assert await late.first(1) == [Message("", "reset", {"reason": "expired", "floor": 11})]
    await session.append("test.noted", {})
    assert [message.id for message in await late.first(2)] == ["", "11"]
    assert [message.id for message in await done.first(1)] == ["11"]
    assert [message.id for message in await fresh.first(1)] == ["11"]
    assert [message.id for message in await live.first(12)] == [str(index) for index in range(12)]
    for client in (live, done, late, fresh):
        await client.leave()


async def test_a_reader_that_lags_behind_is_not_taken_for_one_that_is_ahead(log: EventLog, session: Session) -> None:
    async with EventLog(log.path, read_only=True) as other:
        handle = await other.session("s1")
        await fill(session, 5)
        assert handle.next_index == 10
        client = following(handle, "12")
        assert [message.id for message in await client.first(2)] == ["13", "14"]
        await client.leave()


async def test_a_damaged_event_is_told_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s1"), 3)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = ? WHERE idx = 2", ('{"n":7}',))
    async with EventLog(path, verify_reads=True) as log:
        client = following(await log.session("s1"))
        messages = await client.first(4)
        assert [message.id for message in messages] == ["0", "1", "2", "3"]
        assert [message.event for message in messages] == [None, None, "corrupt", None]
        told = {"sessionId": "s1", "index": 2, "corrupt": "its checksum does not match"}
        assert messages[2].data == told
        await client.leave()


# ---------------------------------------------------------------------------------------------------- how a stream ends


async def test_a_stream_ends_when_the_log_closes(log: EventLog, session: Session) -> None:
    client = following(session)
    await until(lambda: log.tails_waiting() == 1)
    await log.close()
    await client.answered()
    assert client.ended
    assert len(client.messages) == 10


async def test_a_client_that_leaves_leaves_nothing_behind(log: EventLog, session: Session) -> None:
    clients = [following(session) for _ in range(100)]
    await until(lambda: log.tails_waiting() == 100)
    for client in clients:
        await client.leave()
    assert log.tails_waiting() == 0


async def test_a_client_that_takes_nothing_is_let_go(
    log: EventLog, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = following(session, send_timeout_s=0.05), following(session, send_timeout_s=0.05)
    await slow.first(10)
    await quick.first(10)
    slow.takes.clear()
    with caplog.at_level(logging.WARNING, "eventlog.sse"):
        await session.append("test.noted", {})
        await slow.answered()
    assert caplog.messages == ["a client of session 's1' took nothing for 0.05 s and is let go; it can resume"]
    assert not slow.ended
    await quick.first(11)
    assert log.tails_waiting() == 1
    await quick.leave()


# -------------------------------------------------------------------------------------------------------- its settings


async def test_heartbeats_come_as_often_as_they_are_asked_for(session: Session) -> None:
    client = following(session, "9", heartbeat_s=0.01)
    await until(lambda: client.body.count(b": heartbeat\r\n\r\n") >= 3)
    assert client.messages == []
    await client.leave()


async def test_the_settings_reach_the_response(session: Session) -> None:
    chosen: Any = stream(Client().request, session, heartbeat_s=0, send_timeout_s=7)
    usual: Any = stream(Client().request, session)
    assert (chosen.ping_interval, chosen.send_timeout) == (0, 7)
    assert (usual.ping_interval, usual.send_timeout) == (HEARTBEAT_S, SEND_TIMEOUT_S)
    for response in (chosen, usual):
        await response.body_iterator.aclose()


async def test_clients_are_told_when_to_come_again(session: Session) -> None:
    client = following(session, reconnect_s=0.25)
    await client.first(1)
    assert client.body.startswith(b"retry: 250\n\n")
    await client.leave()


async def test_a_long_history_does_not_hold_up_the_others(log: EventLog) -> None:
    session = await log.start_session("long")
    await fill(session, 400)
    client, turns = following(session), 0
    while not client.messages or client.messages[-1].id != "400":
        await asyncio.sleep(0)
        turns += 1
    assert turns > 400 / 8
    await client.leave()


# ------------------------------------------------------------------------------------------------------------ the extra


def test_without_the_extra_the_import_says_what_to_install_and_the_library_needs_none() -> None:
    code = (
        "import sys, eventlog\n"
        "assert not {'starlette', 'sse_starlette', 'agents', 'pytest'} & set(sys.modules)\n"
        "sys.modules['sse_starlette'] = None\n"
        "import eventlog.sse\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    told = "ImportError: eventlog.sse needs the extra `sse`: install eventlog with it, as its README shows\n"
    assert done.stderr.endswith(told)


async def test_nothing_of_a_stream_is_read_before_it_is_asked_for(log: EventLog, session: Session) -> None:
    response: Any = stream(Client().request, session)
    await response.body_iterator.aclose()
    assert log.tails_waiting() == 0
    assert len(await all_of(session.read())) == 10
