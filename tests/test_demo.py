"""Runs the demo and the shortest example as a user would, and proves that the demo's proof can fail."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventlog import SessionEvent
from eventlog.events import Event, encode_event, parse_envelope
from examples import proof
from examples.data import make_sessions
from examples.demo import SAMPLE
from examples.proof import Evidence, HookCall, HookGap, prove
from examples.traffic import Traffic, Unplayable, read_traffic
from tests.real_data import real_data

CHECKOUT = Path(__file__).parents[1]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, without the settings of whoever runs the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EVENTLOG_"))}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)


# ------------------------------------------------------------------------------------------------------ as a user would


@pytest.mark.timeout(60)
def test_r31_r126_r128_the_demo_keeps_every_promise_on_the_sample() -> None:
    assert_every_promise_is_proven(run("-m", "examples.demo"))


@pytest.mark.timeout(120)
def test_r31_r126_the_demo_keeps_every_promise_on_real_sessions() -> None:
    assert_every_promise_is_proven(run("-m", "examples.demo", "--data", real_data()))


def assert_every_promise_is_proven(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{len(proof.PROMISES)} promises proven, 0 broken." in done.stdout
    assert done.stderr == ""


def test_the_demo_keeps_its_folder_when_it_is_asked_to_and_takes_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = run("-m", "examples.demo", "--keep", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"demo: {tmp_path} is not empty; name a folder that is, or that is not there yet\n"


def test_the_demo_refuses_what_it_cannot_play(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"type":"turn.started","index":0,"sessionId":"s1","turnId":"t1","data":{}}\n')
    done = run("-m", "examples.demo", "--data", data)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "demo: session s1 does not begin with session.started, but with turn.started\n"


def test_embedding_takes_twenty_lines_of_code_and_works() -> None:
    example = CHECKOUT / "examples" / "embed.py"
    done = run("-m", "examples.embed")
    assert (done.returncode, done.stderr) == (0, "")
    greeting, *lines = done.stdout.splitlines()
    assert greeting == 's1 received "Is it high tide?"'
    assert [json.loads(line)["type"] for line in lines] == ["session.started", "message.received", "turn.completed"]
    assert len(lines_of_code(example.read_text())) <= 20


def lines_of_code(source: str) -> list[str]:
    """Without the docstring and empty lines."""
    docstring = ast.parse(source).body[0].end_lineno or 0
    return [line for line in source.splitlines()[docstring:] if line.strip()]


# ----------------------------------------------------------------------------------------------------------- the sample


def test_the_sample_is_what_its_script_writes(tmp_path: Path) -> None:
    make_sessions.main([str(tmp_path / "sessions.jsonl")])
    assert (tmp_path / "sessions.jsonl").read_bytes() == SAMPLE.read_bytes()


def test_every_event_of_the_sample_is_one_of_the_vocabulary() -> None:
    for line in SAMPLE.read_bytes().splitlines():
        parse_envelope(line)
        envelope = json.loads(line)
        encode_event(envelope["type"], envelope["data"], envelope.get("turnId"), None)


@pytest.mark.parametrize("kind", ["message", "reasoning"])
def test_r93_the_deltas_of_the_sample_add_up_to_the_completed_text(kind: str) -> None:
    for lines in read_traffic(SAMPLE).sessions.values():
        text = ""
        for line in lines:
            if line["type"] == f"{kind}.appended":
                text += line["data"]["delta"]
            elif line["type"] == f"{kind}.completed":
                assert text == line["data"]["text"]
                text = ""
            elif line["type"] == "turn.failed":
                text = ""
        assert text == ""


def test_the_sample_has_what_the_story_needs() -> None:
    traffic = read_traffic(SAMPLE)
    types = {line["type"] for line in traffic.lines}
    assert {"message.received", "reasoning.completed", "job.completed", "turn.failed", "input.resolved"} <= types
    assert 300 <= len(traffic.lines) <= 500
    assert traffic.live_projects() == ["acme"]
    assert {traffic.project_of(session) for session in traffic.sessions} == {"acme", "acme-evals"}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["{"], "line 1 is no envelope"),
        (['{"type":"session.started","index":0}'], "line 1 is no envelope of an event: KeyError"),
        (['{"type":"session.started","index":1,"sessionId":"s"}'], "has index 1 where 0 should follow"),
    ],
)
def test_traffic_that_cannot_be_played_is_refused_with_the_reason(lines: list[str], why: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    with pytest.raises(Unplayable, match=why):
        read_traffic(tmp_path / "data.jsonl")


# -------------------------------------------------------------------------------------------------- the proof can fail


def line(session: str, index: int, type: str, data: dict[str, Any], turn: str | None = None) -> dict[str, Any]:
    turn_id = {} if turn is None else {"turnId": turn}
    return {"type": type, "index": index, "sessionId": session, **turn_id, "data": data}


def recorded(position: int, session: str, index: int, type: str, data: str, turn: str | None = None) -> SessionEvent:
    return Event(type, index, session, turn, at_us=0, position=position, era="e", raw=data.encode())


SENT = Traffic(
    {
        "a": [
            line("a", 0, "session.started", {"projectId": "p"}),
            line("a", 1, "turn.completed", {}, "t1"),
            line("a", 2, "turn.completed", {}, "t2"),
        ],
        "b": [
            line("b", 0, "session.started", {"projectId": "evals", "purpose": "eval"}),
            line("b", 1, "turn.completed", {}, "t1"),
        ],
    }
)
RECORDED = [
    recorded(1, "a", 0, "session.started", '{"projectId":"p"}'),
    recorded(2, "b", 0, "session.started", '{"projectId":"evals","purpose":"eval"}'),
    recorded(3, "a", 1, "turn.completed", "{}", "t1"),
    recorded(4, "a", 2, "turn.completed", "{}", "t2"),
    recorded(5, "b", 1, "turn.completed", "{}", "t1"),
]
HONEST = Evidence(
    sent=SENT,
    refused="a/t1",
    killed="a/t2",
    exits=[-9, 0],
    recorded=RECORDED,
    head_at_kill=4,
    hooks={"every": ["*"], "turns": ["turn.completed"]},
    hook_calls=[HookCall("every", 1), HookCall("every", 3), HookCall("every", 5), HookCall("turns", 5)],
    hook_gaps=[HookGap("every", "a", 4, 4), HookGap("every", None, 2, 2), HookGap("turns", None, 1, 4)],
    delivered=["e:3", "e:3", "e:3", "e:4", "e:4"],
    billed=["e:3", "e:4"],
    waiting=0,
    dead=0,
    sound=True,
    tracebacks=0,
)


def test_a_run_that_kept_every_promise_is_proven() -> None:
    assert [promise for promise in prove(HONEST) if not promise.kept] == []


Look = Callable[[Evidence], proof.Promise]

TAMPERED: Sequence[tuple[Look, dict[str, Any]]] = [
    (proof.nothing_is_lost, {"recorded": RECORDED[:-1]}),
    (proof.nothing_is_lost, {"recorded": [*RECORDED, recorded(6, "b", 2, "turn.started", "{}", "t2")]}),
    (proof.nothing_is_lost, {"recorded": [*RECORDED, RECORDED[-1]]}),
    (proof.indexes_have_no_hole, {"recorded": [RECORDED[0], *RECORDED[2:]]}),
    (proof.indexes_have_no_hole, {"recorded": [*RECORDED[:2], RECORDED[3], RECORDED[2], RECORDED[4]]}),
    (proof.nothing_is_changed, {"recorded": [*RECORDED[:4], recorded(5, "b", 1, "turn.completed", '{"x":1}', "t1")]}),
    (proof.nothing_is_changed, {"recorded": [*RECORDED[:4], recorded(5, "b", 1, "turn.completed", "{}", "t2")]}),
    (proof.the_file_is_sound, {"sound": False}),
    (proof.no_hook_saw_an_event_twice, {"hook_calls": [*HONEST.hook_calls, HookCall("turns", 5)]}),
    (proof.hooks_saw_sessions_in_order, {"hook_calls": [HookCall("every", 3), HookCall("every", 1)]}),
    (proof.what_no_hook_saw_is_a_gap, {"hook_gaps": HONEST.hook_gaps[1:]}),
    (proof.what_no_hook_saw_is_a_gap, {"hook_gaps": [HookGap("every", "b", 1, 5), *HONEST.hook_gaps[1:]]}),
    (proof.a_good_end_leaves_no_gap, {"hook_calls": HONEST.hook_calls[:-1]}),
    (proof.a_good_end_leaves_no_gap, {"head_at_kill": 5}),
    (proof.all_that_is_owed_was_delivered, {"delivered": ["e:3"]}),
    (proof.all_that_is_owed_was_delivered, {"delivered": [*HONEST.delivered, "e:5"]}),
    (proof.deliveries_kept_the_order, {"delivered": ["e:3", "e:4", "e:3"]}),
    (proof.each_had_its_effect_once, {"billed": ["e:3"]}),
    (proof.each_had_its_effect_once, {"billed": ["e:3", "e:4", "e:4"]}),
    (proof.each_had_its_effect_once, {"billed": ["e:3", "e:4", "e:5"]}),
    (proof.a_failure_was_retried, {"delivered": ["e:3", "e:3", "e:4", "e:4"]}),
    (proof.a_failure_was_retried, {"recorded": []}),
    (proof.a_failure_was_retried, {"waiting": 1}),
    (proof.a_failure_was_retried, {"dead": 1}),
    (proof.the_kill_was_survived, {"exits": [0, 0]}),
    (proof.the_kill_was_survived, {"exits": [-9, 1]}),
    (proof.the_kill_was_survived, {"delivered": ["e:3", "e:3", "e:3", "e:4"]}),
    (proof.nothing_failed_unexpectedly, {"tracebacks": 1}),
]


@pytest.mark.parametrize(("promise", "change"), TAMPERED, ids=lambda value: getattr(value, "__name__", None))
def test_a_tampered_result_breaks(promise: Look, change: dict[str, Any]) -> None:
    tampered = dataclasses.replace(HONEST, **change)
    assert not promise(tampered).kept
    assert promise(tampered) in prove(tampered)


def test_every_promise_can_be_broken() -> None:
    assert {promise for promise, _ in TAMPERED} == set(proof.PROMISES)
