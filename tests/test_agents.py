"""How a message becomes a recorded turn of an agent's own code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eventlog import EventLog, InvalidEvent, NewEvent, Runtime, Session
from eventlog.agents import Turned, echo, run_turn, turn_of
from eventlog.errors import InvalidName
from eventlog.host import Host

USAGE = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 0}


class Conversation:
    """A session of a served log, and what was said in it."""

    def __init__(self, session: Session, host: Host) -> None:
        self.session = session
        self.host = host
        self.said: list[str] = []

    async def turn(self, turn: Any, message: str = "hi") -> Turned:
        return await run_turn(turn, self.session, message, self.host, self.said.append)

    async def recorded(self) -> list[tuple[str, dict[str, Any]]]:
        """What is in the log behind the first event; all of it belongs to one turn."""
        events = [event async for event in self.session.read(after=0)]
        assert {event.turn_id for event in events} == {"t1"}
        return [(event.type, event.to_dict()["data"]) for event in events]


@pytest.fixture
async def conversation(tmp_path: Path) -> AsyncIterator[Conversation]:
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        session = await log.start_session("s1")
        yield Conversation(session, runtime.host_for("s1"))


ASKED = [("turn.started", {}), ("message.received", {"text": "hi"})]


# -------------------------------------------------------------------------------------------------- what is recorded


async def test_a_returned_text_is_the_reply_and_the_result(conversation: Conversation) -> None:
    assert await conversation.turn(echo) == Turned("t1", "hi")
    assert await conversation.recorded() == [
        *ASKED,
        ("message.completed", {"text": "hi"}),
        ("turn.completed", {"result": "hi"}),
    ]
    assert conversation.said == ["hi"]


async def test_an_agent_may_have_nothing_to_say(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> None: ...

    assert await conversation.turn(turn) == Turned("t1", "")
    assert await conversation.recorded() == [*ASKED, ("turn.completed", {})]


async def test_yielded_pieces_are_deltas_and_their_whole_is_the_message(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[str | NewEvent]:
        yield NewEvent("reasoning.completed", {"text": "hm"})
        yield "It is "
        yield "late."
        yield NewEvent("acme.note", {"n": 1})
        yield "Bye."

    assert await conversation.turn(turn) == Turned("t1", "It is late.\nBye.")
    assert await conversation.recorded() == [
        *ASKED,
        ("reasoning.completed", {"text": "hm"}),
        ("message.appended", {"delta": "It is "}),
        ("message.appended", {"delta": "late."}),
        ("message.completed", {"text": "It is late."}),
        ("acme.note", {"n": 1}),
        ("message.appended", {"delta": "Bye."}),
        ("message.completed", {"text": "Bye."}),
        ("turn.completed", {"result": "Bye."}),
    ]
    assert conversation.said == ["It is ", "late.", "\nBye."]


async def test_messages_and_an_end_that_the_agent_yields_itself_are_not_recorded_twice(
    conversation: Conversation,
) -> None:
    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[str | NewEvent]:
        yield "It is late."
        yield NewEvent("message.completed", {"text": "It is late."})
        yield NewEvent("message.completed", {"text": "Bye."})
        yield NewEvent("turn.completed", {"result": {"at": 3}, "usage": USAGE})

    assert await conversation.turn(turn) == Turned("t1", "It is late.\nBye.")
    assert await conversation.recorded() == [
        *ASKED,
        ("message.appended", {"delta": "It is late."}),
        ("message.completed", {"text": "It is late."}),
        ("message.completed", {"text": "Bye."}),
        ("turn.completed", {"result": {"at": 3}, "usage": USAGE}),
    ]
    assert conversation.said == ["It is late.", "\nBye."]


async def test_an_event_of_the_session_gets_no_turn(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[NewEvent]:
        yield NewEvent("session.updated", {"title": "Late"})
        yield NewEvent("acme.note", {}, turn_id="other")

    await conversation.turn(turn)
    events = [event async for event in conversation.session.read(types=["session.updated", "acme.note"])]
    assert [event.turn_id for event in events] == [None, "other"]
    assert conversation.session.info.title == "Late"


async def test_the_agent_is_given_its_session_the_message_and_the_host_of_its_hooks(
    conversation: Conversation,
) -> None:
    async def turn(session: Session, message: str, host: Host) -> str:
        assert host is conversation.host
        before = [event.type async for event in session.read()]
        return f"{session.id} {message} {before}"

    turned = await conversation.turn(turn)
    assert turned.reply == "s1 hi ['session.started', 'turn.started', 'message.received']"


# ------------------------------------------------------------------------------------------------------ how it fails


async def test_what_the_agent_raises_fails_the_turn(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[str]:
        yield "It "
        raise SystemExit("no harbour")

    turned = await conversation.turn(turn)
    assert (turned.failure, type(turned.error)) == ("SystemExit: no harbour", SystemExit)
    assert await conversation.recorded() == [
        *ASKED,
        ("message.appended", {"delta": "It "}),
        ("turn.failed", {"message": "SystemExit: no harbour"}),
    ]


async def test_a_failure_that_the_agent_records_is_one(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[NewEvent]:
        yield NewEvent("turn.failed", {"message": "no model"})

    assert await conversation.turn(turn) == Turned("t1", "", "no model")
    assert await conversation.recorded() == [*ASKED, ("turn.failed", {"message": "no model"})]


async def test_what_cannot_be_recorded_fails_the_turn_and_closes_the_generator(conversation: Conversation) -> None:
    closed = []

    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[NewEvent]:
        try:
            yield NewEvent("acme.note", {"n": float("nan")})
        finally:
            closed.append(True)

    turned = await conversation.turn(turn)
    assert isinstance(turned.error, InvalidEvent)
    assert [type for type, _ in await conversation.recorded()][2:] == ["turn.failed"]
    assert closed == [True]


@pytest.mark.parametrize("what", [3, b"x", ["x"]], ids=repr)
async def test_what_is_neither_text_nor_an_event_is_told(conversation: Conversation, what: Any) -> None:
    async def returns(session: Session, message: str, host: Host) -> Any:
        return what

    async def yields(session: Session, message: str, host: Host) -> AsyncIterator[Any]:
        yield what

    name = type(what).__name__
    returned, yielded = await conversation.turn(returns), await conversation.turn(yields)
    assert returned.failure == f"TypeError: turn returned {name}; return text, or yield text and NewEvent"
    assert yielded.failure == f"TypeError: turn yielded {name}; yield text or NewEvent"


async def test_r95_a_cancelled_turn_is_recorded_as_interrupted(conversation: Conversation) -> None:
    begun = asyncio.Event()

    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[str]:
        yield "It "
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(conversation.turn(turn))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await conversation.recorded())[-1] == ("turn.failed", {"message": "turn interrupted"})


async def test_a_cancellation_of_the_agents_own_is_a_failure(conversation: Conversation) -> None:
    async def turn(session: Session, message: str, host: Host) -> str:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
        return "never"

    assert (await conversation.turn(turn)).failure == "CancelledError"


# ----------------------------------------------------------------------------------------------- what can be called


def module(**names: Any) -> ModuleType:
    made = ModuleType("agent")
    vars(made).update(names)
    return made


def test_an_agent_has_a_turn_or_none() -> None:
    assert turn_of(None) is None
    assert turn_of(module(other=1)) is None
    assert turn_of(module(turn=echo)) is echo


def test_a_turn_that_cannot_be_called_is_refused() -> None:
    def plain(session: Session, message: str, host: Host) -> str:
        return message

    async def of_two(session: Session, message: str) -> str:
        return message

    for turn in (plain, "text"):
        with pytest.raises(InvalidName, match=r"must be `async def turn\(session, message, host\)`"):
            turn_of(module(turn=turn))
    with pytest.raises(InvalidName, match=r"is called with .* too many positional arguments"):
        turn_of(module(turn=of_two))


# ----------------------------------------------------------------------------------------------------- one at a time


async def test_a_second_turn_of_a_session_waits_for_the_first_and_has_an_id_of_its_own(
    conversation: Conversation,
) -> None:
    """Also of another handle of the session; other sessions do not wait."""
    session, host = conversation.session, conversation.host
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_session: Session, message: str, _host: Host) -> str:
        begun.set()
        await go_on.wait()
        return message

    first = asyncio.create_task(run_turn(slow, session, "first", host))
    await begun.wait()
    second = asyncio.create_task(run_turn(echo, await session.log.session("s1"), "second", host))
    assert (await run_turn(echo, await session.log.start_session("s2"), "elsewhere", host)).reply == "elsewhere"
    assert session.next_index == 3
    go_on.set()
    assert [await first, await second] == [Turned("t1", "first"), Turned("t5", "second")]
    events = [event async for event in session.read(after=0)]
    assert [event.turn_id for event in events] == ["t1"] * 4 + ["t5"] * 4


async def test_a_turn_that_is_begun_while_others_append_has_the_index_of_its_beginning_in_its_id(
    conversation: Conversation,
) -> None:
    session = conversation.session
    _, turned = await asyncio.gather(session.append("note"), conversation.turn(echo))
    events = [event async for event in session.read(after=0)]
    assert [(event.type, event.turn_id) for event in events[:2]] == [("note", None), ("turn.started", "t2")]
    assert turned == Turned("t2", "hi")


async def test_a_turn_that_waits_can_be_cancelled_and_leaves_nothing(conversation: Conversation) -> None:
    begun = asyncio.Event()

    async def endless(_session: Session, _message: str, _host: Host) -> None:
        begun.set()
        await asyncio.Event().wait()

    first = asyncio.create_task(conversation.turn(endless))
    await begun.wait()
    second = asyncio.create_task(conversation.turn(echo, "never said"))
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(first, second, return_exceptions=True)
    )
    assert [type_ for type_, _ in await conversation.recorded()] == ["turn.started", "message.received", "turn.failed"]


async def test_an_agent_that_runs_a_turn_of_its_own_session_is_told_that_it_would_wait_for_itself(
    conversation: Conversation,
) -> None:
    async def nested(session: Session, _message: str, host: Host) -> str:
        return (await run_turn(echo, session, "again", host)).reply

    turned = await conversation.turn(nested)
    assert isinstance(turned.error, InvalidEvent)
    assert [type_ for type_, _ in await conversation.recorded()][-1] == "turn.failed"
