"""The memory hook: a line for each turn that ended, read by later sessions, torn and lost by none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog import Event, EventLog, HookDefinition, Runtime, Session, memory_hook
from eventlog.errors import InvalidName
from eventlog.observe import MemoryLine, memory, read_memory
from eventlog.store.keep import forget_kept
from eventlog.testing import ManualClock

MEMORY = "from eventlog import memory_hook\n\nhook = memory_hook()\n"


@asynccontextmanager
async def remembering(path: Path, hook: HookDefinition | None = None) -> AsyncIterator[tuple[EventLog, Runtime]]:
    """A runtime with the memory hook, until an orderly stop."""
    async with EventLog(path / "agent.db", clock=ManualClock()) as log:
        runtime = Runtime(log)
        runtime.add_hook("memory", hook or memory_hook())
        async with runtime:
            yield log, runtime


async def turn(session: Session, turn_id: str, asked: str = "Is it high tide?", **data: Any) -> Event[Any]:
    """A turn from its question to its end."""
    await session.append("turn.started", {}, turn_id=turn_id)
    await session.append("message.received", {"text": asked}, turn_id=turn_id)
    return await session.append("turn.failed" if "message" in data else "turn.completed", data, turn_id=turn_id)


async def remembered(runtime: Runtime, session_id: str, limit: int = 20) -> list[MemoryLine]:
    """What a session reads, when every turn is journaled."""
    await runtime.settled()
    return await read_memory(runtime.host_for(session_id), limit)


# ------------------------------------------------------------------------------------------------------ what it keeps


async def test_r79_each_turn_is_a_line_that_a_later_session_reads(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        session = await log.start_session("s1")
        completed = await turn(session, "t1", result="At 06:12.")
        failed = await turn(session, "t2", asked="And tomorrow?", message="turn interrupted")
        await log.start_session("later")
        assert await remembered(runtime, "later") == [
            MemoryLine(completed.at, "s1", "t1", "completed", "Is it high tide?", "At 06:12."),
            MemoryLine(failed.at, "s1", "t2", "failed", "And tomorrow?", "turn interrupted"),
        ]


async def test_r79_lines_survive_a_restart(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        await turn(await log.start_session("s1"), "t1", result="At 06:12.")
        await runtime.settled()
    async with remembering(tmp_path) as (log, runtime):
        await log.start_session("s2")
        assert [line.answer for line in await remembered(runtime, "s2")] == ["At 06:12."]


async def test_what_was_said_is_the_answer_of_a_turn_without_a_result(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        session = await log.start_session("s1")
        await session.append("message.completed", {"text": "Low tide."}, turn_id="t1")
        await turn(session, "t1")
        await session.append("turn.completed", {}, turn_id="t2")
        await session.append("turn.completed", {"result": {"tide": ["low", 2]}}, turn_id="t3")
        lines = await remembered(runtime, "s1")
        assert [(line.asked, line.answer) for line in lines] == [
            ("Is it high tide?", "Low tide."),
            (None, None),
            (None, '{"tide":["low",2]}'),
        ]


async def test_a_long_text_is_cut_to_a_line(tmp_path: Path) -> None:
    most = memory.MAX_TEXT_CHARACTERS
    async with remembering(tmp_path) as (log, runtime):
        session = await log.start_session("s1")
        await turn(session, "t1", asked="q" * most, result="a" * (most + 1))
        (line,) = await remembered(runtime, "s1")
        assert (line.asked, line.answer) == ("q" * most, "a" * (most - 1) + "…")


async def test_evals_teach_nothing(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        await turn(await log.start_session("s1", purpose="eval"), "t1", result="rehearsed")
        assert await remembered(runtime, "s1") == []


async def test_r106_another_agent_has_a_memory_of_its_own(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        await turn(await log.start_session("s1"), "t1", result="ours")
        await log.start_session("s2", agent="billing")
        assert await remembered(runtime, "s2") == []


# --------------------------------------------------------------------------------------------- parallel, and bounded


async def test_r79_parallel_sessions_lose_and_tear_no_line(tmp_path: Path) -> None:
    """As many lines as turns, each whole, in the order in which the turns ended."""
    async with remembering(tmp_path) as (log, runtime):
        sessions = [await log.start_session(f"s{n}") for n in range(30)]

        async def talk(session: Session) -> list[Event[Any]]:
            return [await turn(session, f"t{n}", asked=session.id, result=f"{session.id}/{n}") for n in range(6)]

        ended = [event for events in await asyncio.gather(*map(talk, sessions)) for event in events]
        lines = await remembered(runtime, "s0", limit=1_000)
        assert [(line.session_id, line.turn_id) for line in lines] == [
            (event.session_id, event.turn_id) for event in sorted(ended, key=lambda event: event.position)
        ]
        assert all(line.asked == line.session_id for line in lines)
        assert all(line.answer == f"{line.session_id}/{line.turn_id.removeprefix('t')}" for line in lines)


async def test_the_newest_lines_are_kept_and_the_others_go_with_their_values(tmp_path: Path) -> None:
    async with remembering(tmp_path, memory_hook(keep=3)) as (log, runtime):
        session, host = await log.start_session("s1"), runtime.host_for("s1")
        await host.kv.put("memory/of my own", 1)
        await host.kv.put("memory/0000000000000001", 1)
        for n in range(3):
            await turn(session, f"t{n}", result=n)
        assert [line.answer for line in await remembered(runtime, "s1")] == ["0", "1", "2"]
        for n in range(3, 8):
            await turn(session, f"t{n}", result=n)
        assert [line.answer for line in await remembered(runtime, "s1")] == ["5", "6", "7"]
        assert len(await host.kv.list()) == 2 * 3 + 2


async def test_parallel_sessions_leave_the_newest_lines(tmp_path: Path) -> None:
    async with remembering(tmp_path, memory_hook(keep=10)) as (log, runtime):
        sessions = [await log.start_session(f"s{n}") for n in range(20)]
        ended = await asyncio.gather(*(turn(session, "t1", result="x") for session in sessions))
        lines = await remembered(runtime, "s0")
        newest = sorted(ended, key=lambda event: event.position)[-10:]
        assert [line.session_id for line in lines] == [event.session_id for event in newest]


async def test_a_reader_gets_as_many_lines_as_it_asks_for(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (log, runtime):
        session = await log.start_session("s1")
        for n in range(4):
            await turn(session, f"t{n}", result=n)
        for limit, expected in ((0, []), (1, ["3"]), (3, ["1", "2", "3"]), (9, ["0", "1", "2", "3"])):
            assert [line.answer for line in await remembered(runtime, "s1", limit)] == expected


async def test_a_thousand_lines_are_kept_unless_told_otherwise() -> None:
    assert memory.KEEP_LINES == 1_000
    with pytest.raises(InvalidName, match="number of lines from 1 on"):
        memory_hook(keep=0)


async def test_turns_that_never_end_are_forgotten_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "OPEN_TURNS", 2)
    async with remembering(tmp_path) as (log, runtime):
        session = await log.start_session("s1")
        for n in range(3):
            await session.append("message.received", {"text": f"asked {n}"}, turn_id=f"t{n}")
        for n in range(3):
            await session.append("turn.completed", {}, turn_id=f"t{n}")
        assert [line.asked for line in await remembered(runtime, "s1")] == [None, "asked 1", "asked 2"]


# ---------------------------------------------------------------------------------------------------------- and erasure


@pytest.mark.parametrize("id", ["s1", "memory/0000000000000001", "a/b/c", "x" * 256], ids=lambda id: id[:24])
async def test_a_line_stands_under_the_id_of_its_session_and_goes_with_it(tmp_path: Path, id: str) -> None:
    async with remembering(tmp_path) as (log, runtime):
        await turn(await log.start_session("other"), "t1", result="stays")
        await turn(await log.start_session(id), "t" * 256, result="goes")
        assert [line.session_id for line in await remembered(runtime, "other")] == ["other", id]
        assert await log.store.write(forget_kept, id, "api") == (2, 0)
        assert [line.answer for line in await remembered(runtime, "other")] == ["stays"]
        assert len(await runtime.host_for("other").kv.list()) == 2, "the line, and its place in the contents"


# ------------------------------------------------------------------------------------------------------- and opting out


async def test_r80_the_file_of_the_hook_opts_in_and_deleting_it_opts_out(tmp_path: Path) -> None:
    file = tmp_path / "agent" / "hooks" / "memory.py"
    file.parent.mkdir(parents=True)
    file.write_text(MEMORY)
    for expected in (["first"], ["first"]):
        async with EventLog(tmp_path / "agent.db") as log, Runtime(log, tmp_path) as runtime:
            assert [(hook.name, hook.errors) for hook in runtime.hooks] == [("memory", 0)] * file.exists()
            session = await log.start_session()
            await turn(session, "t1", result="first" if file.exists() else "second")
            assert [line.answer for line in await remembered(runtime, session.id)] == expected
        file.unlink(missing_ok=True)
