"""Evals: one turn of an eval session is run, and its events are handed to assertions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import (
    Event,
    EventLog,
    HookContext,
    NewEvent,
    Runtime,
    Session,
    define_ab,
    define_channel,
    define_hook,
)
from eventlog.host import Host
from eventlog.observe import ChannelContext
from eventlog.testing import run_eval_turn

HOOK = """
from pathlib import Path
from eventlog import define_hook

async def note(event, ctx):
    with Path(__file__).with_name("seen.txt").open("a") as file:
        file.write(f"{event.type} {ctx.session.purpose}\\n")

hook = define_hook(events={"turn.completed": note, "turn.failed": note})
"""

AGENT = """
async def turn(session, message, host):
    return message.upper()
"""

EVAL = """
from pathlib import Path

from eventlog.testing import run_eval_turn

AGENT = Path(__file__).parents[2]


async def test_it_greets() -> None:
    turn = await run_eval_turn("hello", agent_dir=AGENT)
    assert (turn.reply, turn.result) == ("HELLO", "HELLO")


async def test_it_greets_in_french() -> None:
    turn = await run_eval_turn("hello", agent_dir=AGENT)
    assert turn.reply == "BONJOUR"
"""

INI = """
[pytest]
asyncio_mode = auto
python_files = test_*.py *_eval.py
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        yield runtime


async def forecaster(session: Session, message: str, _host: Host) -> AsyncGenerator[str | NewEvent, None]:
    """An agent that calls a tool and says what it found."""
    call = {"callId": "c1", "toolName": "tides.read", "args": {"question": message}}
    yield NewEvent("actions.requested", {"calls": [call]})
    found = {"callId": "c1", "toolName": "tides.read", "isError": False, "output": "06:12"}
    yield NewEvent("action.result", found)
    await session.append("test.noted", {}, turn_id="another")
    yield "At "
    yield "06:12."


async def test_r133_a_turn_is_run_and_its_events_are_handed_to_assertions(runtime: Runtime) -> None:
    turn = await run_eval_turn("Is it high tide?", agent=forecaster, runtime=runtime)
    assert turn.types == [
        "turn.started",
        "message.received",
        "actions.requested",
        "action.result",
        "message.appended",
        "message.appended",
        "message.completed",
        "turn.completed",
    ]
    assert turn.events[1].data.text == "Is it high tide?"
    assert [(call.tool_name, call.args) for call in turn.calls] == [("tides.read", {"question": "Is it high tide?"})]
    assert [event.data.output for event in turn.of("action.result")] == ["06:12"]
    assert (turn.reply, turn.result, turn.failure) == ("At 06:12.", "At 06:12.", None)
    assert (turn.session.purpose, turn.session.channel_id) == ("eval", "eval")
    stored = [event async for event in (await runtime.log.session(turn.session.id)).read() if event.turn_id == "t1"]
    assert list(turn.events) == stored


async def test_r125_r135_hooks_and_channels_see_an_eval_and_no_experiment_does(runtime: Runtime) -> None:
    seen: list[tuple[str, str]] = []

    async def of_hook(event: Event[Any], ctx: HookContext) -> None:
        seen.append((event.type, ctx.session.purpose))
        await ctx.artifacts.tag("report", "r1")

    async def of_channel(_event: Event[Any], ctx: ChannelContext) -> None:
        seen.append(("delivered", ctx.session.purpose))

    runtime.add_hook("h", define_hook(events={"turn.completed": of_hook}))
    runtime.add_channel(define_channel(id="eval", events={"turn.completed": of_channel}))
    runtime.add_ab(define_ab("tone", {"short": 1, "long": 1}, on_sample=lambda sample: seen.append(("sample", ""))))
    await runtime.settled()
    turn = await run_eval_turn("hello", agent=forecaster, runtime=runtime)
    assert seen == [("delivered", "eval"), ("turn.completed", "eval")]
    assert turn.types[-2:] == ["turn.completed", "artifact.tagged"], "what hooks did is part of the trajectory"
    assert turn.session.abs is None
    everything = [event.type async for event in runtime.log.read()]
    assert "ab.assigned" not in everything


async def test_a_turn_goes_on_with_an_earlier_eval_session_and_with_no_live_one(runtime: Runtime) -> None:
    session = await runtime.log.start_session("s1", purpose="eval", channel="slack")
    first = await run_eval_turn("one", agent=forecaster, runtime=runtime, session=session)
    second = await run_eval_turn("two", agent=forecaster, runtime=runtime, session=session)
    assert (first.turn_id, second.turn_id) == ("t1", "t10")
    assert [event.data.text for turn in (first, second) for event in turn.of("message.received")] == ["one", "two"]
    assert second.session.channel_id == "slack"
    live = await runtime.log.start_session("s2")
    with pytest.raises(ValueError, match="session 's2' is live"):
        await run_eval_turn("three", agent=forecaster, runtime=runtime, session=live)


async def test_what_an_agent_raises_is_how_its_turn_failed(runtime: Runtime) -> None:
    async def agent(_session: Session, _message: str, _host: Host) -> None:
        raise LookupError("no tides here")

    turn = await run_eval_turn("hello", agent=agent, runtime=runtime)
    assert turn.types == ["turn.started", "message.received", "turn.failed"]
    assert (turn.failure, turn.result, turn.reply) == ("LookupError: no tides here", None, None)


async def test_an_agent_that_takes_too_long_is_interrupted(runtime: Runtime) -> None:
    async def agent(session: Session, _message: str, _host: Host) -> None:
        async for _ in session.tail():
            pass

    turn = await run_eval_turn("hello", agent=agent, runtime=runtime, timeout_s=0.05)
    assert turn.failure == "turn interrupted"


async def test_an_agent_has_the_host_of_its_session(runtime: Runtime) -> None:
    hosts: list[Host] = []

    async def agent(_session: Session, _message: str, host: Host) -> None:
        hosts.append(host)

    turn = await run_eval_turn("hello", agent=agent, runtime=runtime)
    assert hosts[0] is runtime.host_for(turn.session.id)
    assert (turn.reply, turn.result) == (None, None)


async def test_without_a_runtime_it_has_one_of_its_own_for_the_agents_folder(tmp_path: Path) -> None:
    for path, text in (("agent/hooks/note.py", HOOK), ("agent/agent.py", AGENT)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert (await run_eval_turn("hello", agent_dir=tmp_path)).reply == "HELLO"
    assert (await run_eval_turn("hello", agent_dir=tmp_path, agent=forecaster)).reply == "At 06:12."
    assert (tmp_path / "agent/hooks/seen.txt").read_text() == "turn.completed eval\n" * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent"], "its log is thrown away"
    assert (await run_eval_turn("hello", agent=forecaster)).reply == "At 06:12."


async def test_somebody_has_to_answer(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    for folder in (None, tmp_path):
        with pytest.raises(ValueError, match="nobody answers"):
            await run_eval_turn("hello", runtime=runtime, agent_dir=folder)


def test_r134_evals_are_files_below_evals_that_pytest_runs(tmp_path: Path) -> None:
    for path, text in (
        ("agent/hooks/note.py", HOOK),
        ("agent/agent.py", AGENT),
        ("evals/greeting/hello_eval.py", EVAL),
        ("evals/greeting/helper.py", "raise RuntimeError('this is no eval')"),
        ("pytest.ini", INI),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "evals"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "'HELLO' == 'BONJOUR'" in ran.stdout
    assert (tmp_path / "agent/hooks/seen.txt").read_text() == "turn.completed eval\n" * 2
