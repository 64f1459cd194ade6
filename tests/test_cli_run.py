"""Talking to an agent from the command line: `run`, `dev`, and `replay` over what they recorded."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli_kit import (
    CHECKOUT,
    HOSTILE,
    PATIENCE_S,
    Done,
    acting,
    command,
    conversation,
    envelopes,
    environment,
    filled,
    fingerprint,
    good,
    on_terminal,
    run,
    shell,
)

ENDS_WITHIN_S = 2.0

THROWS = """
from eventlog import define_hook

async def on_turn(event, ctx):
    raise ValueError("no \\x1b[2J way\\nreally \\u202e")

hook = define_hook(events={"turn.completed": on_turn})
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent without code and without hooks."""
    (tmp_path / "helper" / "agent").mkdir(parents=True)
    return tmp_path / "helper"


def write(folder: Path, path: str, text: str) -> None:
    """A file below `agent/`."""
    (folder / "agent" / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / "agent" / path).write_text(text)


def log_of(folder: Path) -> Path:
    return folder / ".eventlog" / "agent.db"


def recorded(folder: Path, session_id: str | None = None) -> list[dict[str, Any]]:
    return envelopes(log_of(folder), session_id)


def types(folder: Path, session_id: str | None = None) -> list[str]:
    return [each["type"] for each in recorded(folder, session_id)]


# ----------------------------------------------------------------------------------------------------------------- run


def test_r154_run_sends_one_turn_and_writes_the_reply_alone(agent: Path) -> None:
    done = run("run", "--dir", agent, "--message", "Is it high tide?", "--session", "s1")
    assert done == (0, "Is it high tide?\n", "eventlog: session s1\n")
    assert types(agent) == [
        "session.started",
        "turn.started",
        "message.received",
        "message.completed",
        "turn.completed",
    ]
    started = recorded(agent)[0]["data"]
    assert (started["agent"], started["channelId"], started["purpose"]) == ("helper", "cli", "live")
    assert log_of(agent).stat().st_mode & 0o777 == 0o600


def test_r154_a_session_is_gone_on_with_or_started(agent: Path) -> None:
    assert good_run(agent, "one", "--session", "s1").stderr == "eventlog: session s1\n"
    assert good_run(agent, "two", "--session", "s1").stderr == ""
    new = good_run(agent, "three").stderr
    assert re.fullmatch(r"eventlog: session s_[0-9a-f]{16}\n", new)
    texts = [each["data"]["text"] for each in recorded(agent, "s1") if each["type"] == "message.received"]
    assert texts == ["one", "two"]


def good_run(agent: Path, message: str, *words: object) -> Done:
    done = run("run", "--dir", agent, "-m", message, *words)
    assert done.code == 0, done
    return done


def test_r155_r156_what_hooks_throw_is_a_line_on_stderr_and_the_reply_is_alone_on_stdout(agent: Path) -> None:
    write(agent, "hooks/audit/boom.py", THROWS)
    write(agent, "hooks/crm.py", THROWS)
    done = good_run(agent, "hi", "--session", "s1")
    assert done.stdout == "hi\n"
    thrown = "handler for turn.completed threw: ValueError: no \\x1b[2J way\\nreally \\u202e"
    assert done.stderr.split("\n") == [
        "eventlog: session s1",
        f'hook "audit/boom" {thrown}',
        "    agent/hooks/audit/boom.py:5 in on_turn",
        f'hook "crm" {thrown}',
        "    agent/hooks/crm.py:5 in on_turn",
        "",
    ]


def test_r157_logs_reads_what_hooks_threw_under_run(agent: Path) -> None:
    write(agent, "hooks/boom.py", THROWS)
    thrown = good_run(agent, "hi", "--session", "s1").stderr.split("\n")[1]
    (line,) = good("logs", "--dir", agent).lines
    assert line.endswith(f"  {thrown}")
    (row,) = good("logs", "boom", "--dir", agent, "--json").document
    assert row["message"] == thrown


def test_what_the_agent_prints_and_logs_is_no_part_of_its_reply(agent: Path) -> None:
    write(
        agent,
        "agent.py",
        "import logging\n"
        "async def turn(session, message, host):\n"
        "    print('thinking')\n"
        "    logging.getLogger('acme').warning('careful \\x1b[1m')\n"
        "    return 'reply'\n",
    )
    done = shell(f"eventlog run --dir {agent} -m hi --session s1")
    assert done == (0, "reply\n", "eventlog: session s1\nthinking\ncareful \\x1b[1m\n")


def test_neither_a_reply_nor_an_error_acts_on_a_terminal(agent: Path) -> None:
    write(agent, "hooks/boom.py", THROWS)
    for words in (["run", "--message", HOSTILE], ["run", "--session", "s1", "--message", "hi"]):
        assert acting(on_terminal(80, *words, "--dir", agent)) <= {"\t"}


def test_a_reply_keeps_its_lines_and_tabs_in_a_pipe(agent: Path) -> None:
    assert good_run(agent, "all:\n\tmake\n").stdout == "all:\n\tmake\n"


def test_a_turn_that_fails_is_told_and_ends_with_1(agent: Path) -> None:
    write(agent, "agent.py", "async def turn(session, message, host):\n    yield 'It '\n    raise KeyError('x')\n")
    done = run("run", "--dir", agent, "-m", "hi", "--session", "s1")
    told = "eventlog: session s1\neventlog: the turn failed: KeyError: 'x' (agent/agent.py:3 in turn)\n"
    assert done == (1, "It \n", told)
    assert recorded(agent)[-1]["data"] == {"message": "KeyError: 'x'"}


def test_what_keeps_an_agent_from_being_served_is_told_before_a_log_is_made(agent: Path, tmp_path: Path) -> None:
    write(agent, "hooks/broken.py", "import does_not_exist\n")
    done = run("run", "--dir", agent, "-m", "hi")
    assert (done.code, done.stdout) == (1, "")
    assert "error hook-import-failed agent/hooks/broken.py: " in done.stderr
    (agent / "agent" / "hooks" / "broken.py").unlink()
    write(agent, "agent.py", "def turn(session, message, host): ...\n")
    done = run("run", "--dir", agent, "-m", "hi")
    assert (done.code, "must be `async def turn(session, message, host)`" in done.stderr) == (2, True)
    assert run("run", "--dir", tmp_path, "-m", "hi").code == 3
    assert run("run", "--dir", agent).code == 2
    assert not log_of(agent).exists()


def test_r152_validate_reports_a_turn_that_cannot_be_called(agent: Path) -> None:
    write(agent, "agent.py", "def turn(session, message, host): ...\n")
    done = run("validate", "--dir", agent, "--json")
    (found,) = done.document["findings"]
    assert (done.code, found["severity"], found["code"], found["path"]) == (
        1,
        "error",
        "agent-turn-invalid",
        "agent/agent.py",
    )
    assert run("validate", "--dri", agent).code == 2


def test_agent_code_without_a_turn_is_an_echo_that_says_so(agent: Path) -> None:
    write(agent, "agent.py", "answer = 1\n")
    assert good_run(agent, "hi", "--session", "s1") == (
        0,
        "hi\n",
        "eventlog: agent/agent.py has no turn(); the echo agent answers\neventlog: session s1\n",
    )


def test_the_session_of_another_agent_is_refused(agent: Path) -> None:
    log_of(agent).parent.mkdir()
    filled(log_of(agent), lambda log: log.start_session("s1", agent="other"))
    done = run("run", "--dir", agent, "-m", "hi", "--session", "s1")
    assert (done.code, done.stderr) == (2, "eventlog: session 's1' belongs to agent 'other', and this is 'helper'\n")


def test_hooks_that_take_too_long_are_told_of(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventlog.cli.serving.SETTLE_S", 0.01)
    write(agent, "hooks/slow.py", THROWS.replace("raise ValueError(", "await __import__('asyncio').sleep(0.1) or str("))
    told = "eventlog: hooks or extensions were not done within 0.01 s, and are cut short\n"
    assert good_run(agent, "hi", "--session", "s1") == (0, "hi\n", f"eventlog: session s1\n{told}")


def test_the_reply_goes_on_though_its_reader_left(agent: Path) -> None:
    write(
        agent,
        "agent.py",
        "import sys, asyncio\n"
        "async def turn(session, message, host):\n"
        "    for number in range(300):\n"
        "        yield f'{number} ' * 100 + '\\n'\n",
    )
    done = shell(f"eventlog run --dir {agent} -m hi --session s1 2>/dev/null | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.code, len(done.lines)) == (0, 1)
    assert types(agent)[-2:] == ["message.completed", "turn.completed"]


def test_the_example_of_the_documentation_runs(agent: Path) -> None:
    text = (CHECKOUT / "docs" / "agents.md").read_text()
    (code,) = re.findall(r"<!-- example: agent/agent.py -->\n```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```console\n\$ eventlog (.*?)\n(.*?)\$ eventlog show", text, re.DOTALL)
    write(agent, "agent.py", code)
    done = shell(f"cd {agent} && eventlog {shown[0]}")
    assert (done.code, done.stdout) == (0, shown[1])
    assert good("validate", "--dir", agent).stdout == "valid: 0 hooks and 0 extensions\n"
    assert good("show", "s1", "--turn", "--dir", agent).code == 0


# ----------------------------------------------------------------------------------------------------------------- dev


def test_r154_dev_answers_line_after_line_in_one_session(agent: Path) -> None:
    write(agent, "hooks/boom.py", THROWS)
    done = run("dev", "--dir", agent, "--session", "s1", stdin="one\n\n  \ntwo\nthree")
    assert (done.code, done.stdout) == (0, "one\ntwo\nthree\n")
    assert done.stderr.count('\nhook "boom" handler for turn.completed threw: ValueError: ') == 3
    assert types(agent).count("turn.completed") == 3


def test_dev_goes_on_after_a_turn_that_failed(agent: Path) -> None:
    write(agent, "agent.py", "async def turn(session, message, host):\n    return {'a': 'x', 'b': 'y'}[message]\n")
    done = run("dev", "--dir", agent, stdin="a\nc\nb\n")
    assert (done.code, done.stdout) == (0, "x\ny\n")
    assert "eventlog: the turn failed: KeyError: 'c' (agent/agent.py:2 in turn)\n" in done.stderr


@pytest.mark.parametrize("source", ["printf 'one\\ntwo' |", "<{file}", "</dev/null", "<&-"])
def test_dev_reads_pipes_and_files_until_they_end(agent: Path, source: str) -> None:
    (agent / "lines").write_text("one\ntwo")
    piped, redirected = (source, "") if source.endswith("|") else ("", source.format(file=agent / "lines"))
    done = shell(f"{piped} eventlog dev --dir {agent} {redirected}")
    expected = "" if "null" in source or "&-" in source else "one\ntwo\n"
    assert (done.code, done.stdout) == (0, expected)
    assert len({envelope["sessionId"] for envelope in recorded(agent)}) == (1 if expected else 0)


def test_dev_takes_no_line_that_no_event_could_hold(agent: Path) -> None:
    done = shell(f"head -c 3000000 /dev/zero | eventlog dev --dir {agent} --session s1")
    assert (done.code, done.stdout) == (2, "")
    assert "bytes of a line: " in done.stderr


# ------------------------------------------------------------------------------------------------------------- signals

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)

WAITS = """
import asyncio, sys

async def turn(session, message, host):
    yield "It "
    queued = [asyncio.ensure_future(session.append("acme.note", {"n": n})) for n in range(500)]
    await asyncio.sleep(0)  # all of them are in the queue
    print("ready")
    await asyncio.Event().wait()
"""


def begun(agent: Path, *words: object) -> subprocess.Popen[bytes]:
    """A command that has printed `ready`, by the agent's code, and waits."""
    child = subprocess.Popen(
        command(*words, "--dir", agent),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    while (line := child.stderr.readline()) != b"ready\n":
        assert line, "it ended"
    return child


def interrupted(child: subprocess.Popen[bytes], number: signal.Signals) -> tuple[int, str]:
    """How it ended, in time, and what it complained of."""
    sent_s = time.monotonic()
    child.send_signal(number)
    _, complaint = child.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - sent_s < ENDS_WITHIN_S
    return child.returncode, complaint.decode()


@SIGNALS
def test_a_signal_ends_run_with_the_turn_interrupted_and_what_was_appended_settled(
    agent: Path, number: signal.Signals
) -> None:
    write(agent, "agent.py", WAITS)
    child = begun(agent, "run", "-m", "hi", "--session", "s1")
    assert interrupted(child, number) == (130, "")
    events = recorded(agent, "s1")
    assert [each["data"]["n"] for each in events if each["type"] == "acme.note"] == list(range(500))
    (failed,) = [each for each in events if each["type"] == "turn.failed"]
    assert failed["data"] == {"message": "turn interrupted"}
    assert good("check", "--dir", agent).code == 0


@SIGNALS
def test_a_signal_ends_dev_while_it_waits_for_a_line(agent: Path, number: signal.Signals) -> None:
    write(agent, "agent.py", "async def turn(session, message, host):\n    print('ready')\n    return message\n")
    child = subprocess.Popen(
        command("dev", "--dir", agent, "--session", "s1"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"hi\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"hi\n"
    code, complaint = interrupted(child, number)
    assert (code, complaint) == (130, "eventlog: session s1\nready\n")
    assert types(agent)[-1] == "turn.completed"


STUBBORN_AGENT = """
import asyncio, time

async def turn(session, message, host):
    print("ready")
    while True:
        try:
            await asyncio.to_thread(time.sleep, 60)
        except asyncio.CancelledError:
            pass
"""


def test_a_signal_ends_run_though_the_agent_heeds_no_cancellation(agent: Path) -> None:
    write(agent, "agent.py", STUBBORN_AGENT)
    child = begun(agent, "run", "-m", "hi", "--session", "s1")
    assert interrupted(child, signal.SIGINT)[0] == 130
    assert types(agent)[-1] == "message.received"
    assert good("check", "--dir", agent).code == 0


STUBBORN_HOOK = """
import asyncio, time
from eventlog import define_hook

async def ignores(event, ctx):
    print("ready")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

def blocks(event, ctx):
    print("ready")
    time.sleep(60)

hook = define_hook(events={"turn.completed": HANDLER})
"""


@pytest.mark.parametrize("handler", ["ignores", "blocks"])
def test_a_signal_ends_run_though_a_hook_heeds_nothing_which_is_a_gap_then(agent: Path, handler: str) -> None:
    write(agent, "hooks/stubborn.py", STUBBORN_HOOK.replace("HANDLER", handler))
    child = begun(agent, "run", "-m", "hi", "--session", "s1")
    assert interrupted(child, signal.SIGINT)[0] == 130
    (gap,) = good("hooks", "stubborn", "--gaps", "--dir", agent, "--json").document
    assert (gap["sessionId"], gap["first"], gap["last"]) == ("s1", 5, 5)
    assert good("check", "--dir", agent).code == 0


# -------------------------------------------------------------------------------------------------------------- replay

SEEN = """
from eventlog import define_hook

async def on_turn(event, ctx):
    print(f"turn {event.index} of {ctx.session.id}")
    if event.data.result == "two":
        raise ValueError("two")
    await ctx.host.kv.put(f"seen/{event.index}", event.data.result)

def on_any(event, ctx):
    print(event.type)
    ctx.host.otel.increment("seen")

hook = define_hook(events={"turn.completed": on_turn, "*": on_any}, on_restart="resume")
"""


def test_replay_calls_a_hook_for_recorded_events_and_moves_no_cursor(agent: Path) -> None:
    run("dev", "--dir", agent, "--session", "s1", stdin="one\ntwo\n")
    good_run(agent, "other", "--session", "s2")
    write(agent, "hooks/seen.py", SEEN)
    before = good("hooks", "--all", "--json", "--dir", agent).document
    done = run("replay", "seen", "--session", "s1", "--dir", agent)
    assert (done.code, done.stdout) == (1, "seen: 11 calls for 9 events, 1 error\n")
    assert done.stderr.split("\n")[:2] == ["session.started", "turn.started"]
    assert done.stderr.split("\n")[-6:] == [
        "message.completed",
        "turn 8 of s1",
        'hook "seen" handler for turn.completed threw: ValueError: two',
        "    agent/hooks/seen.py:7 in on_turn",
        "turn.completed",
        "",
    ]
    assert good("hooks", "--all", "--json", "--dir", agent).document == before == []
    assert good("logs", "--dir", agent).stdout == ""
    assert len(recorded(agent)) == 14


def test_replay_takes_a_part_of_a_session(agent: Path) -> None:
    run("dev", "--dir", agent, "--session", "s1", stdin="one\ntwo\n")
    write(agent, "hooks/seen.py", SEEN)
    words = ["replay", "seen", "--session", "s1", "--dir", agent, "--json"]
    for narrowed, events, calls in (
        (["--turn", "t1"], 4, 5),
        (["--type", "turn.completed", "--after", 1, "--turn", "t1"], 1, 2),
        (["--after", 8], 0, 0),
    ):
        done = run(*words, *narrowed)
        assert (done.code, done.document) == (
            0,
            {"hook": "seen", "session": "s1", "events": events, "calls": calls, "errors": 0},
        )


def test_replay_lets_a_hook_do_what_it_does(agent: Path) -> None:
    """A mirror that did not exist then is filled, and filling it again changes nothing."""
    good_run(agent, "one", "--session", "s1")
    write(agent, "hooks/mirror.py", (CHECKOUT / "examples" / "hooks" / "mirror.py").read_text())
    write(
        agent,
        "hooks/lists.py",
        "from eventlog import define_hook\n"
        "async def f(event, ctx):\n"
        "    print(await ctx.host.files.list('transcript/'))\n"
        "hook = define_hook(events={'session.started': f})\n",
    )
    names = [f"transcript/{index:06}.json" for index in range(5)]
    for _ in range(2):
        assert run("replay", "mirror", "--session", "s1", "--dir", agent).stdout == (
            "mirror: 5 calls for 5 events, 0 errors\n"
        )
        assert run("replay", "lists", "--session", "s1", "--dir", agent).stderr == f"{names}\n"


def test_replay_finds_the_hooks_of_extensions_and_names_the_nearest_of_an_unknown_one(agent: Path) -> None:
    good_run(agent, "one", "--session", "s1")
    write(agent, "extensions/crm/hooks/seen.py", SEEN)
    assert run("replay", "crm__seen", "--session", "s1", "--dir", agent).code == 0
    for words, told in (
        (["crm__sen", "--session", "s1"], "the agent has no hook 'crm__sen'; did you mean 'crm__seen'?"),
        (["x", "--session", "s1"], "the agent has no hook 'x'; `eventlog info` lists them"),
        (["crm__seen", "--session", "s2"], "no session 's2'; `eventlog sessions` lists them"),
    ):
        assert run("replay", *words, "--dir", agent) == (3, "", f"eventlog: {told}\n")


def test_replay_without_a_log_makes_none(agent: Path) -> None:
    write(agent, "hooks/seen.py", SEEN)
    assert run("replay", "seen", "--session", "s1", "--dir", agent).code == 3
    assert not log_of(agent).exists()


def test_looking_at_the_log_of_another_folder_is_left_to_db(agent: Path, tmp_path: Path) -> None:
    path = filled(tmp_path / "other.db", conversation)
    write(agent, "hooks/seen.py", SEEN)
    before = fingerprint(path)[0]
    assert run("replay", "seen", "--session", "s1", "--dir", agent, "--db", path, "--type", "acme.refund").code == 0
    assert not log_of(agent).exists()
    assert before
