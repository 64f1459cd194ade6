"""The memory of the OpenAI Agents SDK: like the SDK's own sessions, with its own Runner, over restarts and kills."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog import Event, EventLog, HookContext, InvalidEvent, Runtime, Session, define_hook
from tests.log_kit import CHECKOUT, all_of, crash_copy
from tests.test_docs import blocks

pytest.importorskip("agents", reason="needs the extra: pip install -e '.[openai-agents]'")

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool, set_tracing_disabled
from agents import Session as SdkSession
from agents.testing import ScriptedModel, assistant_message, function_call

from eventlog.adapters.openai_agents import (
    ITEM_ADDED,
    ITEM_POPPED,
    ITEMS_CLEARED,
    EventLogSession,
    ItemAdded,
    ItemPopped,
    ItemsCleared,
)

set_tracing_disabled(True)  # it would be sent to a network

ITEMS: list[Any] = [
    {"role": "user", "content": "Hello"},
    {"content": "the other order of keys", "role": "assistant"},
    {"type": "function_call", "call_id": "c1", "name": "tides", "arguments": '{"port": "Brest"}', "id": None},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": ""}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": 'gAAAA\n\t\u2028\u0000\\"'},
    {"type": "message", "logprobs": [-0.5, 1e-300, 0.1, 12345678901234567890], "phase": True, "nested": {"a": {}}},
    {"role": "user", "content": "你好 👩\u200d👧 e\u0301"},
]


def texts(items: list[Any]) -> list[str]:
    """The items as JSON: equal when they are, the order of their keys included."""
    return [json.dumps(item) for item in items]


def scripted(*said: Any) -> ScriptedModel:
    """Stands for a model: says one thing at each call."""
    return ScriptedModel([[each] for each in said])


def message(number: int) -> Any:
    return {"role": "user", "content": f"message {number}"}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as log:
        yield log


@pytest.fixture
async def memory(log: EventLog) -> EventLogSession:
    return await EventLogSession.open(log, "s1")


async def types_of(log: EventLog, session_id: str = "s1") -> list[str]:
    return [event.type async for event in (await log.session(session_id)).read()]


# ------------------------------------------------------------------------------------------------ what it is asked for


async def test_it_is_a_session_of_the_sdk(memory: EventLogSession) -> None:
    session: SdkSession = memory
    assert isinstance(session, SdkSession)
    assert (session.session_id, session.session_settings) == ("s1", None)


async def test_items_come_back_as_they_were_given_key_by_key(log: EventLog, memory: EventLogSession) -> None:
    await memory.add_items(ITEMS)
    assert texts(await memory.get_items()) == texts(ITEMS)
    given: list[Any] = await memory.get_items()
    given[0]["content"] = "changed by its reader"
    assert texts(await memory.get_items()) == texts(ITEMS)


async def test_items_come_back_after_a_restart_and_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        memory = await EventLogSession.open(log, "s1", channel="cli")
        await memory.add_items(ITEMS)
        assert await memory.pop_item() == ITEMS[-1]
        killed = crash_copy(path, tmp_path / "copy")
    for each in (path, killed):
        async with EventLog(each) as log:
            memory = await EventLogSession.open(log, "s1")
            assert texts(await memory.get_items()) == texts(ITEMS[:-1])
            assert (await log.session("s1")).info.channel_id == "cli"


@pytest.mark.parametrize("seed", range(8))
async def test_it_does_what_the_sessions_of_the_sdk_do(log: EventLog, tmp_path: Path, seed: int) -> None:
    random, number = Random(seed), 0
    ours, theirs = await EventLogSession.open(log, "s1"), SQLiteSession("s1", tmp_path / "theirs.db")
    session = await log.session("s1")
    for _ in range(120):
        match random.choices(["add", "pop", "clear", "settings", "other"], [5, 4, 0.4, 1, 2])[0]:
            case "add":
                items = [message(number + each) for each in range(random.choice([0, 1, 1, 2, 30]))]
                number += len(items)
                await ours.add_items(items)
                await theirs.add_items(items)
            case "pop":
                assert await ours.pop_item() == await theirs.pop_item()
            case "clear":
                await ours.clear_session()
                await theirs.clear_session()
            case "settings":
                ours.session_settings = theirs.session_settings = SessionSettings(limit=random.choice([None, 0, 2, 9]))
            case _:
                await session.append("message.received", {"text": "of somebody else"}, turn_id="t1")
        for limit in (None, 0, 1, random.randrange(2, 40), -1):
            assert await ours.get_items(limit) == await theirs.get_items(limit), limit
    theirs.close()


async def test_each_item_is_popped_once_however_many_pop_at_the_same_time(
    log: EventLog, memory: EventLogSession
) -> None:
    await memory.add_items([message(number) for number in range(10)])
    others = [await EventLogSession.open(log, "s1") for _ in range(15)]
    popped = await asyncio.gather(*(other.pop_item() for other in others))
    assert sorted(texts([item for item in popped if item])) == sorted(texts([message(n) for n in range(10)]))
    assert popped.count(None) == 5
    assert await memory.get_items() == []


async def test_sessions_that_are_opened_at_once_are_one(log: EventLog) -> None:
    memories = await asyncio.gather(*(EventLogSession.open(log, "new") for _ in range(10)))
    for memory in memories:
        await memory.add_items([message(1)])
    assert len(await memories[0].get_items()) == 10


async def test_more_than_a_batch_is_added_in_order(memory: EventLogSession) -> None:
    many = [message(number) for number in range(2_300)]
    await memory.add_items(many)
    assert await memory.get_items() == many
    assert await memory.get_items(limit=1_500) == many[-1_500:]
    large: list[Any] = [{"role": "user", "content": f"{number}{'x' * 1_000_000}"} for number in range(18)]
    await memory.add_items(large)
    assert await memory.get_items(limit=18) == large


@pytest.mark.parametrize("bad", [{"n": float("nan")}, {"content": b"bytes"}, {"content": "x" * 1_048_576}, {1: "a"}])
async def test_an_item_that_cannot_be_kept_is_refused_with_those_beside_it(
    log: EventLog, memory: EventLogSession, bad: Any
) -> None:
    with pytest.raises(InvalidEvent, match="data"):
        await memory.add_items([message(1), bad])
    assert await types_of(log) == ["session.started"]


# --------------------------------------------------------------------------------------------- what stays in the log


async def test_what_is_popped_and_cleared_stays_in_the_history(log: EventLog, memory: EventLogSession) -> None:
    memory.turn_id = "t1"
    await memory.add_items(ITEMS[:2])
    assert await memory.pop_item() == ITEMS[1]
    await memory.clear_session()
    assert await memory.get_items() == []
    assert await memory.pop_item() is None
    events = await all_of((await log.session("s1")).read(after=0))
    assert [event.type for event in events] == [ITEM_ADDED, ITEM_ADDED, ITEM_POPPED, ITEMS_CLEARED]
    assert [event.data for event in events] == [ItemAdded(ITEMS[0]), ItemAdded(ITEMS[1]), ItemPopped(2), ItemsCleared()]
    assert [event.to_dict()["data"] for event in events[1:]] == [{"item": ITEMS[1]}, {"index": 2}, {}]
    assert {event.turn_id for event in events} == {"t1"}


@pytest.mark.parametrize("last", ["added", "popped", "cleared"])
async def test_a_conversation_that_was_forgotten_is_empty_and_goes_on(
    log: EventLog, memory: EventLogSession, last: str
) -> None:
    await memory.add_items([message(n) for n in range(20)])
    if last == "popped":
        await memory.pop_item()
    if last == "cleared":
        await memory.clear_session()
    await log.forget("s1")
    assert await memory.get_items() == await memory.get_items(5) == []
    assert await memory.pop_item() is None
    await memory.add_items([message(100), message(101)])
    for each in (memory, await EventLogSession.open(log, "s1")):
        assert await each.get_items() == await each.get_items(5) == [message(100), message(101)]
    assert await memory.pop_item() == message(101)
    assert await memory.get_items() == [message(100)]
    await memory.clear_session()
    assert await memory.get_items() == []
    assert await memory.pop_item() is None


async def test_hooks_see_what_the_sdk_remembers_and_forgets(log: EventLog) -> None:
    seen: list[str] = []

    async def note(event: Event[Any], _ctx: HookContext) -> None:
        seen.append(event.type)

    async with Runtime(log) as runtime:
        runtime.add_hook("note", define_hook(events={ITEM_ADDED: note, ITEM_POPPED: note, ITEMS_CLEARED: note}))
        memory = await EventLogSession.open(log, "s1")
        await memory.add_items(ITEMS[:1])
        await memory.pop_item()
        await memory.clear_session()
        await runtime.settled()
    assert seen == [ITEM_ADDED, ITEM_POPPED, ITEMS_CLEARED]


async def test_a_few_items_are_read_without_the_whole_session(
    memory: EventLogSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.add_items([message(number) for number in range(3_000)])
    for _ in range(5):
        await memory.pop_item()
    read = 0
    page = Session._page

    async def counted(session: Session, bounds: Any) -> list[Event[Any]]:
        nonlocal read
        events = await page(session, bounds)
        read += len(events)
        return events

    monkeypatch.setattr(Session, "_page", counted)
    assert await memory.get_items(limit=50) == [message(number) for number in range(2_945, 2_995)]
    assert read <= 50 + 2 * 5 + 16
    read = 0
    await memory.pop_item()
    assert read <= 2 * 16


# ------------------------------------------------------------------------------------------------------ with its Runner

Run = Callable[..., Awaitable[Any]]


async def streamed(*args: Any, **kwargs: Any) -> Any:
    """`Runner.run_streamed`, to its end."""
    result = Runner.run_streamed(*args, **kwargs)
    async for _ in result.stream_events():
        pass
    return result


RUNS = pytest.mark.parametrize("run", [Runner.run, streamed], ids=["run", "run_streamed"])


@RUNS
async def test_a_run_is_given_what_was_said_before_also_after_a_restart(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "agent.db"
    model = scripted(assistant_message("San Francisco"), assistant_message("California"))
    agent = Agent(name="guide", model=model)
    async with EventLog(path) as log:
        memory = await EventLogSession.open(log, "s1")
        result = await run(agent, "What city is the Golden Gate Bridge in?", session=memory)
        assert result.final_output == "San Francisco"
    async with EventLog(path) as log:
        memory = await EventLogSession.open(log, "s1")
        before = await memory.get_items()
        assert len(before) == 2
        result = await run(agent, "What state is it in?", session=memory)
        assert result.final_output == "California"
        assert len(await memory.get_items()) == 4
    assert model.last_call is not None
    given: list[Any] = list(model.last_call.input)
    assert [item["role"] for item in given] == ["user", "assistant", "user"]
    assert given[1]["content"][0]["text"] == "San Francisco"
    model.assert_complete()


@RUNS
async def test_the_calls_of_tools_are_remembered(memory: EventLogSession, run: Run) -> None:
    @function_tool
    def tides(port: str) -> str:
        """Tell the tides."""
        return f"high tide in {port} at 06:12"

    call = function_call("tides", {"port": "Brest"}, call_id="c1")
    model = scripted(call, assistant_message("At 06:12."), assistant_message("You are welcome."))
    agent = Agent(name="guide", model=model, tools=[tides])
    await run(agent, "When is high tide in Brest?", session=memory)
    items: list[Any] = await memory.get_items()
    kinds = [item.get("type") or item["role"] for item in items]
    assert kinds == ["user", "function_call", "function_call_output", "message"]
    assert items[2]["output"] == "high tide in Brest at 06:12"
    await run(agent, "Thanks", session=memory)
    assert model.last_call is not None
    assert len(list(model.last_call.input)) == 5


@RUNS
async def test_settings_limit_what_a_run_is_given(memory: EventLogSession, run: Run) -> None:
    await memory.add_items([message(number) for number in range(6)])
    model = scripted(assistant_message("one"), assistant_message("two"))
    agent = Agent(name="guide", model=model)
    memory.session_settings = SessionSettings(limit=3)
    await run(agent, "first", session=memory)
    assert model.first_call is not None
    assert list(model.first_call.input)[:3] == [message(number) for number in (3, 4, 5)]
    await run(agent, "second", session=memory, run_config=RunConfig(session_settings=SessionSettings(limit=1)))
    assert model.last_call is not None
    assert len(list(model.last_call.input)) == 2


async def test_sessions_do_not_know_each_other(log: EventLog) -> None:
    one, other = [await EventLogSession.open(log, name) for name in ("one", "other")]
    model = scripted(assistant_message("a"), assistant_message("b"))
    agent = Agent(name="guide", model=model)
    await asyncio.gather(Runner.run(agent, "first", session=one), Runner.run(agent, "second", session=other))
    await other.clear_session()
    assert (len(await one.get_items()), await other.get_items()) == (2, [])


async def test_the_code_of_the_guide_remembers(log: EventLog) -> None:
    (code,) = blocks("docs/adapters.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  it is our own document
    agent = Agent(name="guide", model=scripted(assistant_message("Hello"), assistant_message("Bye")))
    assert await names["answer"](log, agent, "s1", "Hi") == "Hello"
    assert await names["answer"](log, agent, "s1", "I have to go") == "Bye"
    assert len(await (await EventLogSession.open(log, "s1")).get_items()) == 4


# ------------------------------------------------------------------------------------------------------------ the extra


def test_the_adapter_needs_nothing_of_the_sdk_to_be_imported() -> None:
    code = "import sys\nsys.modules['agents'] = None\nimport eventlog.adapters.openai_agents"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
