"""What the command line tells of hooks, extensions, deliveries and dead letters that a real runtime left behind."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from eventlog import DeliveryPolicy, EventLog, HookDefinition, Runtime, define_hook
from eventlog.inspection import Inspection
from eventlog.runtime import DEFAULT_AGENT
from eventlog.testing import ManualClock
from tests.cli_kit import HOSTILE, Done, acting, good, on_terminal, run, shell
from tests.log_kit import until
from tests.observing import Gate

MANIFEST = {
    "publisher": "labs",
    "name": "billing",
    "version": "1.2.3",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "on_turn"}],
}
MAIN = f"""
from eventlog import Reject

def activate(context):
    context.subscriptions.append(context.hooks.register("on_turn", on_turn))

async def on_turn(event, context):
    if event.turn_id == "rejected":
        raise Reject({HOSTILE!r})
    if event.turn_id == "failed":
        raise RuntimeError({HOSTILE!r})
"""
ONCE = DeliveryPolicy(attempts=2, backoff_first_s=0.0, jitter=0.0)
SLOWLY = DeliveryPolicy(backoff_first_s=600.0, capacity=2)


async def boom(event: Any, context: Any) -> None:
    raise ValueError(HOSTILE)


async def fine(event: Any, context: Any) -> None: ...


def hook(handler: Any) -> HookDefinition:
    return define_hook(events={"turn.completed": handler})


async def serve(folder: Path, policy: DeliveryPolicy, *turns: tuple[str, str], pause: bool = False) -> None:
    """Serve an agent that completes these turns (session, turn), until nothing more is to be done now."""
    async with (
        EventLog(folder / ".eventlog" / "agent.db") as log,
        Runtime(log, agent_dir=folder, policy=policy, grants={"acme": ["default"], "other": ["default"]}) as runtime,
    ):
        runtime.add_hook("loud", hook(boom))
        runtime.add_hook("quiet", hook(fine))
        await complete(log, *turns)
        await runtime.settled()
        if pause:
            await runtime.extensions.pause("acme")


async def complete(log: EventLog, *turns: tuple[str, str]) -> None:
    known = {info.id async for info in log.sessions()}
    for session_id, turn_id in turns:
        if session_id not in known:
            await log.start_session(session_id)
            known.add(session_id)
        await log.append(session_id, "turn.completed", {}, turn_id=turn_id)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent with the extensions acme, which fails now and then, and other, which has a hook."""
    for name in ("acme", "other"):
        folder = tmp_path / "agent" / "extensions" / name
        folder.mkdir(parents=True)
        (folder / "extension.json").write_text(json.dumps({**MANIFEST, "publisher": name}))
        (folder / "main.py").write_text(MAIN)
    return tmp_path


@pytest.fixture
def served(agent: Path) -> Path:
    """Behind it: a gap of the hooks, errors, deliveries of every kind, a gap of extensions, dead letters."""
    asyncio.run(serve(agent, ONCE, ("s1", "ok"), ("s1", "rejected"), ("s2", "failed")))

    async def unseen() -> None:
        async with EventLog(agent / ".eventlog" / "agent.db") as log:
            await complete(log, ("s5", "ok"))

    asyncio.run(unseen())
    asyncio.run(serve(agent, ONCE))
    asyncio.run(serve(agent, SLOWLY, ("s3", "failed"), ("s3", "ok"), ("s4", "ok")))
    return agent


# -------------------------------------------------------------------------------------------------------------- hooks


def test_hooks_are_listed_with_what_they_did_and_missed(served: Path) -> None:
    rows = {row["name"]: row for row in good("hooks", "--dir", served, "--json").document}
    assert list(rows) == ["loud", "quiet"]
    assert {name: rows["loud"][name] for name in ("events", "onRestart", "lag", "calls", "errors")} == {
        "events": ["turn.completed"],
        "onRestart": "skip",
        "lag": 0,
        "calls": 6,
        "errors": 6,
    }
    assert (rows["quiet"]["calls"], rows["quiet"]["errors"]) == (6, 0)
    head, loud, *_ = good("hooks", "--dir", served).lines
    assert head.split()[:6] == ["HOOK", "AGENT", "BEHIND", "GAPS", "CALLS", "ERRORS"]
    assert loud.split()[0] == "loud"
    assert len(good("hooks", "quiet", "--dir", served, "--json").document) == 1


def test_r127_what_a_hook_was_not_shown_is_told_as_a_gap(served: Path) -> None:
    gaps = good("hooks", "quiet", "--gaps", "--dir", served, "--json").document
    assert [(gap["name"], gap["sessionId"], gap["atMost"]) for gap in gaps] == [("quiet", None, 1)]
    first, last = gaps[0]["first"], gaps[0]["last"]
    positions = str(first)
    assert first == last
    assert good("hooks", "--dir", served, "--json").document[0]["gaps"] == 1
    lines = good("hooks", "quiet", "--dir", served).lines
    assert lines[2] == ""
    assert lines[3].split()[:4] == ["GAP", "OF", "HOOK", "AGENT"]
    assert lines[4].split()[:1] + lines[4].split()[2:7] == ["quiet", positions, "at", "most", "1", "all"]
    assert good("hooks", "quiet", "--gaps", "--dir", served).lines == lines[3:]


async def test_a_call_that_does_not_return_is_counted_as_long_as_its_server_runs(tmp_path: Path) -> None:
    """Nobody knows of it but the server, so it is asked; a log without one is looked at all the same."""
    db, clock, gate = tmp_path / "agent.db", ManualClock(), Gate()

    async def told(*words: str) -> str:
        line = shlex.join(["eventlog", "hooks", "--db", str(db), *words])
        done = await asyncio.to_thread(shell, line)
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    async def stuck() -> list[Any]:
        return [row["stuck"] for row in json.loads(await told("--json"))]

    async with EventLog(db, clock=clock) as log:
        runtime = Runtime(log)
        runtime.add_hook("waits", HookDefinition({"*": gate.handler}))
        async with runtime:
            await log.start_session("s1")
            await gate.reached.wait()
            assert await stuck() == [0]
            clock.advance(31)
            await until(lambda: runtime.hooks[0].stuck)
            assert await stuck() == [1]
            heads, row = (line.split() for line in (await told()).splitlines())
            assert dict(zip(heads, row, strict=False))["STUCK"] == "1"
            gate.opened.set()
            await runtime.settled()
            assert await stuck() == [0]
    assert await stuck() == [None]


def test_sessions_of_an_agent_that_has_none_of_the_loaded_hooks_are_told(served: Path) -> None:
    """A name that differs is easily overlooked: its sessions are recorded, and shown to no hook."""

    async def start_sessions() -> None:
        async with EventLog(served / ".eventlog" / "agent.db") as log:
            for _ in range(2):
                await log.start_session(agent="shop")
            await log.start_session(agent=served.name)

    asyncio.run(start_sessions())
    for words in (["hooks"], ["hooks", "--json"], ["hooks", "--gaps"]):
        done = run(*words, "--dir", served)
        assert done.stderr == "eventlog: agent 'shop' has 2 sessions here, and none of the loaded hooks\n"


def test_a_hook_that_is_not_loaded_any_more_is_shown_only_when_asked_for(served: Path) -> None:
    async def without_loud() -> None:
        async with EventLog(served / ".eventlog" / "agent.db") as log, Runtime(log, agent_dir=served) as runtime:
            runtime.add_hook("quiet", hook(fine))

    asyncio.run(without_loud())
    listed = {
        tuple(words): {row["name"] for row in good("hooks", *words, "--dir", served, "--json").document}
        for words in ([], ["--all"], ["loud"])
    }
    assert listed[("--all",)] >= {"loud", "quiet"}
    assert listed[("loud",)] == {"loud"}
    gaps = {words: good("hooks", *words, "--gaps", "--dir", served, "--json").document for words in ((), ("--all",))}
    assert "loud" in {gap["name"] for gap in gaps[("--all",)]}
    assert {gap["name"] for gap in gaps[()]} <= listed[()]


async def test_the_hooks_of_an_agent_that_has_another_name_now_are_no_alarm_and_can_be_unloaded(tmp_path: Path) -> None:
    """The name of an agent is that of its folder unless agent.toml has one: it changes easily."""
    db, old = tmp_path / "agent.db", DEFAULT_AGENT

    async def told(*words: str) -> Done:
        return await asyncio.to_thread(shell, shlex.join(["eventlog", "hooks", "--db", str(db), *words]))

    async def mounted() -> dict[str, bool | None]:
        return {row["agent"]: row["mounted"] for row in json.loads((await told("--json")).stdout)}

    async with EventLog(db) as log:
        async with Runtime(log) as before:
            before.add_hook("fine", hook(fine))
            await before.settled()
        (tmp_path / "agent").mkdir()
        (tmp_path / "agent/agent.toml").write_text('name = "shop"')
        async with Runtime(log, agent_dir=tmp_path) as runtime:
            runtime.add_hook("fine", hook(fine))
            await runtime.settled()
            session = await log.start_session("s1")
            await session.append("turn.completed", {}, turn_id="t1")
            done = await told()
            (row,) = [line for line in done.stdout.splitlines() if f" {old} " in line]
            assert "not mounted" in row
            assert f"`eventlog hooks --unload {old}`" in done.stderr
            assert await mounted() == {old: False, "shop": True}
            refused = await told("--unload", "shop")
            assert (refused.code, "is served by this process" in refused.stderr) == (2, True)
            assert (await told("--unload", old)).stdout.startswith(f"1 hook of agent {old} unloaded")
            assert await mounted() == {"shop": True}
    assert [(await told("--unload", "shop")).code for _ in range(2)] == [0, 3], "and at rest"
    async with EventLog(db) as log, Runtime(log, agent_dir=tmp_path) as runtime:
        runtime.add_hook("fine", hook(fine))
        await runtime.settled()
        assert await mounted() == {"shop": True}, "a runtime that has it loads it again"


def test_r155_r157_what_handlers_threw_is_in_the_logs(served: Path) -> None:
    lines = good("logs", "--dir", served).lines
    assert len(lines) == 6
    assert 'hook "loud" handler for turn.completed threw: ValueError: hi \\x1b[2J' in lines[0]
    errors = good("logs", "--dir", served, "--json").document
    assert [error["name"] for error in errors] == ["loud"] * 6
    assert good("logs", "loud", "--dir", served, "--jsonl", "--limit", 2).objects == errors[-2:]
    assert good("logs", "--dir", served, "--jsonl", "--after", errors[3]["number"]).objects == errors[4:]
    assert good("logs", "quiet", "--dir", served).lines == []


@pytest.mark.parametrize(
    "words", [["hooks", "none"], ["logs", "none"], ["deliveries", "none"], ["dead", "--extension", "none"]]
)
def test_a_hook_or_extension_that_is_not_there_is_not_found(served: Path, words: list[str]) -> None:
    done = run(*words, "--dir", served)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "'none'" in done.stderr


# ---------------------------------------------------------------------------------------------------------- extensions


def test_extensions_are_listed_with_what_they_are_owed(served: Path) -> None:
    acme, other = good("extensions", "--dir", served, "--json").document
    told = {
        name: acme[name]
        for name in [
            "name",
            "id",
            "version",
            "state",
            "paused",
            "live",
            "dead",
            "refused",
            "failure",
            "handlers",
            "grants",
        ]
    }
    assert told == {
        "name": "acme",
        "id": "acme.billing",
        "version": "1.2.3",
        "state": "enabled",
        "paused": False,
        "live": 2,
        "dead": 2,
        "refused": 1,
        "failure": None,
        "handlers": {"turn.completed": "on_turn"},
        "grants": [{"capability": "conversations.turns.read", "project": "default"}],
    }
    assert other["name"] == "other"
    assert good("extensions", "list", "--dir", served, "--json").document == [acme, other]
    head, line, _ = good("extensions", "--dir", served).lines
    assert head.split()[:6] == ["EXTENSION", "STATE", "VERSION", "OWED", "DEAD", "REFUSED"]
    assert line.split()[:7] == ["acme", "enabled", "1.2.3", "2", "2", "1", "turn.completed"]
    assert "conversations.turns.read of default" in line


def test_an_extension_that_could_not_be_activated_is_told_to_have_failed_and_why(agent: Path) -> None:
    """By the server that tried last, whether it still serves or not; once it is activated that is over."""
    main = agent / "agent" / "extensions" / "acme" / "main.py"
    main.write_text("1 / 0  # \x1b[2J")
    asyncio.run(serve(agent, SLOWLY, ("s1", "ok")))
    acme, other = good("extensions", "--dir", agent, "--json").document
    assert (acme["state"], acme["live"], other["failure"]) == ("enabled", 1, None)
    assert acme["failure"] == "main.py does not import: ZeroDivisionError: division by zero"
    _, line, _, why = good("extensions", "--dir", agent).lines
    assert line.split()[:2] == ["acme", "failed"]
    assert why == f"acme failed: {acme['failure']}"
    main.write_text(MAIN)
    asyncio.run(serve(agent, SLOWLY))
    assert [(each["failure"], each["live"]) for each in good("extensions", "--dir", agent, "--json").document] == [
        (None, 0),
        (None, 0),
    ]


def test_an_uninstalled_extension_is_shown_only_when_asked_for(served: Path) -> None:
    async def uninstall() -> None:
        async with EventLog(served / ".eventlog" / "agent.db") as log, Runtime(log, agent_dir=served) as runtime:
            await runtime.extensions.uninstall("other")

    asyncio.run(uninstall())
    assert [each["name"] for each in good("extensions", "--dir", served, "--json").document] == ["acme"]
    assert [each["state"] for each in good("extensions", "list", "--all", "--dir", served, "--json").document] == [
        "enabled",
        "uninstalled",
    ]


# ---------------------------------------------------------------------------------------------------------- deliveries


def test_deliveries_tell_what_is_retried_what_waits_and_what_never_comes(served: Path) -> None:
    """R36 and R44 as an operator sees them: the lane that waits, and the gap of a full queue."""
    first, second = good("deliveries", "acme", "--dir", served, "--json").document
    assert (first["sessionId"], first["state"], first["attempts"], first["waitsFor"]) == ("s3", "pending", 1, None)
    assert (second["sessionId"], second["attempts"], second["waitsFor"]) == ("s3", 0, first["position"])
    assert first["lastError"] == f"RuntimeError: {HOSTILE}"
    (gap,) = good("deliveries", "acme", "--gaps", "--dir", served, "--json").document
    assert (gap["reason"], gap["count"], gap["extension"]) == ("capacity", 1, "acme")
    assert len(good("deliveries", "--dir", served, "--json").document) == 4

    lines = good("deliveries", "acme.billing", "--dir", served).lines
    assert lines[0].split()[:5] == ["EXTENSION", "EVENT", "STATE", "ATTEMPTS", "NEXT"]
    assert lines[1].split()[:5] == ["acme", first["eventId"], "retrying", "1", "in"]
    assert lines[2].split()[:6] == ["acme", second["eventId"], "waiting", "0", "after", first["eventId"]]
    assert lines[4].split()[:4] == ["GAP", "OF", "EXTENSION", "REASON"]
    assert lines[5].split()[:2] == ["acme", "capacity"]


def test_the_deliveries_of_a_paused_extension_are_told_to_be_paused(agent: Path) -> None:
    asyncio.run(serve(agent, SLOWLY, ("s1", "failed"), pause=True))
    states = {line.split()[0]: line.split()[2] for line in good("deliveries", "--dir", agent).lines[1:]}
    assert states == {"acme": "paused", "other": "retrying"}
    assert "paused" in good("extensions", "--dir", agent).lines[1]


# -------------------------------------------------------------------------------------------------------- dead letters


def test_r35_dead_letters_are_listed_and_shown_with_every_attempt(served: Path) -> None:
    letters = good("dead", "--dir", served, "--json").document
    assert {(each["extension"], each["sessionId"], each["reason"], each["attempts"]) for each in letters} == {
        ("acme", "s1", "rejected", 1),
        ("acme", "s2", "exhausted", 2),
        ("other", "s1", "rejected", 1),
        ("other", "s2", "exhausted", 2),
    }
    assert "failures" not in letters[0]
    assert len(good("dead", "list", "--extension", "acme", "--dir", served, "--json").document) == 2
    assert len(good("dead", "--reason", "rejected", "--limit", 1, "--dir", served, "--json").document) == 1
    assert len(good("dead", "--dir", served).lines) == 5

    event_id = next(each["eventId"] for each in letters if each["reason"] == "exhausted")
    letter = good("dead", "show", event_id, "acme", "--dir", served, "--json").document
    assert [(each["number"], each["outcome"]) for each in letter["failures"]] == [(1, "failed"), (2, "failed")]
    text = good("dead", "show", event_id, "acme.billing", "--dir", served).stdout
    assert text.startswith(f"event {event_id} for extension acme\n  exhausted after 2 attempts, died ")
    assert text.count("\nattempt ") == 2
    assert text.count("  Traceback (most recent call last):\n") == 1
    assert text.endswith("\n  the same as of attempt 1\n")
    assert acting(text) == set()


def test_an_event_that_several_extensions_have_buried_needs_the_name_of_one(served: Path) -> None:
    letter = good("dead", "--dir", served, "--json").document[0]
    done = run("dead", "show", letter["eventId"], "--dir", served)
    assert (done.code, done.stdout) == (2, "")
    assert "acme, other" in done.stderr
    assert (
        good("dead", "show", letter["position"], "acme", "--dir", served, "--json").document["eventId"]
        == letter["eventId"]
    )


def test_a_dead_letter_that_is_discarded_at_rest_is_told_once_with_the_reason(served: Path) -> None:
    (letter, *_) = good("dead", "--dir", served, "--json").document
    words = [letter["eventId"], letter["extension"], "--reason", "nobody waits", "--dir", served]
    told = f"discarded the dead letter of event {letter['eventId']} for {letter['extension']}: nobody waits"
    assert good("dead", "discard", *words).lines == [told]


@pytest.mark.parametrize("event", ["00000000:1", "1", "nonsense", "\x1b[2J"])
def test_a_dead_letter_that_is_absent_is_a_finding(served: Path, event: str) -> None:
    done = run("dead", "show", event, "--dir", served)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert acting(done.stderr) == set()


# ---------------------------------------------------------------------------------------------------- looking at it all

LISTS = [["hooks"], ["logs"], ["extensions"], ["deliveries"], ["dead"], ["hooks", "--gaps"], ["deliveries", "--gaps"]]


def test_errors_are_told_with_the_zone_of_their_time_and_fit_a_terminal(served: Path) -> None:
    (line, *_) = good("logs", "loud", "--dir", served).lines
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  position \d+  hook \"loud\" handler for", line)
    written = on_terminal(100, "logs", "loud", "--dir", served, NO_COLOR="1").splitlines()
    assert max(map(len, written)) <= 100
    assert "".join(part.strip().replace(" ", "") for part in written).startswith(line.replace(" ", "")[:120])


def test_a_terminal_is_told_that_there_are_no_errors(agent: Path) -> None:
    asyncio.run(serve(agent, SLOWLY))
    assert "no errors" in on_terminal(80, "logs", "--dir", agent)
    assert good("logs", "--dir", agent).stdout == ""


@pytest.mark.parametrize("columns", [80, 200])
def test_nothing_that_was_thrown_acts_on_a_terminal(served: Path, columns: int) -> None:
    for words in (*LISTS, ["dead", "--json"]):
        text = on_terminal(columns, *words, "--dir", served)
        assert "eventlog: " not in text
        assert acting(text) == set(), words
        if words not in (["logs"], ["dead", "--json"]):
            plain = on_terminal(columns, *words, "--dir", served, NO_COLOR="1")
            assert max(map(len, plain.split("\n"))) <= columns, plain


def test_lists_of_nothing_say_so_on_a_terminal_only(agent: Path) -> None:
    asyncio.run(serve(agent, ONCE))
    for words, told in (
        (["dead"], "no dead letters"),
        (["deliveries"], "nothing is owed"),
        (["hooks", "--gaps"], "no gaps"),
    ):
        assert good(*words, "--dir", agent).stdout == ""
        assert told in on_terminal(80, *words, "--dir", agent)
        assert good(*words, "--dir", agent, "--json").document == []


async def test_the_library_offers_the_same_view(served: Path) -> None:
    async with EventLog(served / ".eventlog" / "agent.db", read_only=True) as log:
        inspection = Inspection(log)
        assert [row.name for row in await inspection.hooks()] == ["loud", "quiet"]
        assert await inspection.hooks("another agent") == []
        assert [error.name for error in await inspection.hook_errors(limit=1)] == ["loud"]
        assert (await inspection.extension("acme.billing")).name == "acme"
        assert [each.waits_for is None for each in await inspection.deliveries("acme")] == [True, False]
        assert [gap.count for gap in await inspection.delivery_gaps("acme")] == [1]
        letter = (await inspection.dead_letters("acme", limit=1))[0]
        whole = await inspection.dead_letter(letter.event_id, "acme")
        assert whole is not None
        assert len(whole.failures) == letter.attempts
