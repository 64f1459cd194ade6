"""`recover`: a log at rest tells what the next start would find unfinished, as a table and as JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eventlog import EventLog
from tests.cli_kit import HOSTILE, acting, fingerprint, good, on_terminal, run, shell
from tests.log_kit import crash_copy, damaging


async def crash(log: EventLog) -> None:
    session = await log.start_session("s1")
    call = {"callId": "c1", "toolName": "pay", "args": {"eur": 5}}
    question = {"requestId": "q1", "kind": "approval", "prompt": "Pay 5 EUR?"}
    await session.append("turn.started", {}, turn_id="t1")
    await session.append("actions.requested", {"calls": [call]}, turn_id="t1")
    await session.append("input.requested", {"requests": [question]}, turn_id="t1")
    await session.append("job.queued", {"jobId": "j1", "name": "render"})
    await session.append("job.started", {"jobId": "j1"})


def killed(folder: Path) -> Path:
    async def live() -> Path:
        async with EventLog(folder / "agent.db") as log:
            await crash(log)
            return crash_copy(log.path, folder / "killed")

    return asyncio.run(live())


def test_what_is_unfinished_is_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    path = killed(tmp_path)
    before = fingerprint(path)
    done = good("recover", "--db", path)
    assert [line.split(maxsplit=1)[0] for line in done.lines] == ["UNFINISHED", "turn", "call", "input", "job"]
    assert done.lines[2].split(maxsplit=5) == ["call", "s1", "t1", "2", "c1", 'pay {"eur": 5}']
    assert "approval: Pay 5 EUR?" in done.lines[3]
    assert "render" in done.lines[4]
    found = good("recover", "--db", path, "--json").document
    assert [(each["sessionId"], each["turnId"]) for each in found["openTurns"]] == [("s1", "t1")]
    assert [(each["callId"], each["toolName"], each["args"]) for each in found["unansweredCalls"]] == [
        ("c1", "pay", {"eur": 5})
    ]
    assert [each["requestId"] for each in found["openInputs"]] == ["q1"]
    assert [each["jobId"] for each in found["jobsUnknown"]] == ["j1"]
    assert (found["damaged"], found["deliveriesResumed"], found["gaps"], found["shortened"]) == ([], 0, 0, None)
    assert fingerprint(path) == before


def test_a_log_in_order_says_so_on_a_terminal_and_nothing_in_a_pipe(tmp_path: Path) -> None:
    async def live() -> None:
        async with EventLog(tmp_path / "agent.db"):
            pass

    asyncio.run(live())
    assert good("recover", "--db", tmp_path / "agent.db").stdout == ""
    assert "nothing is unfinished" in on_terminal(80, "recover", "--db", tmp_path / "agent.db")


@pytest.mark.parametrize("options", ["", "--accept-loss"])
async def test_a_log_that_is_served_is_not_at_rest(tmp_path: Path, options: str) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await crash(log)
        done = await asyncio.to_thread(shell, f"eventlog recover --db {log.path} {options}")
    assert (done.code, done.stdout, done.stderr.count("\n")) == (5, "", 1)
    assert "in use by process" in done.stderr
    assert "`runtime.recovered`" in done.stderr


def test_damage_that_is_met_ends_with_4(tmp_path: Path) -> None:
    path = killed(tmp_path)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = '{' WHERE type = 17")
    done = run("recover", "--db", path)
    assert (done.code, [line.split()[0] for line in done.lines]) == (
        4,
        ["UNFINISHED", "turn", "input", "job", "damaged"],
    )
    assert run("recover", "--db", path, "--json").document["damaged"][0]["index"] == 2


def test_what_a_tool_was_given_acts_on_no_terminal(tmp_path: Path) -> None:
    async def live() -> Path:
        async with EventLog(tmp_path / "agent.db") as log:
            session = await log.start_session("s1")
            await session.append("turn.started", {}, turn_id="t1")
            call = {"callId": "c1", "toolName": HOSTILE, "args": {"text": HOSTILE}}
            await session.append("actions.requested", {"calls": [call]}, turn_id="t1")
            return crash_copy(log.path, tmp_path / "killed")

    path = asyncio.run(live())
    for words in ([], ["--json"]):
        assert acting(run("recover", "--db", path, *words).stdout) == set()
