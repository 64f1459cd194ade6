"""Looking for a text in the log from the command line, and completing words in a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, NewEvent
from tests.cli_kit import (
    CHECKOUT,
    HOSTILE,
    acting,
    command,
    conversation,
    damage,
    envelopes,
    environment,
    filled,
    good,
    on_terminal,
    run,
    sample_log,
    shell,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", conversation)


def noted(path: Path, *values: Any) -> Path:
    """A log with a noted value an event, from index 1 on."""

    async def fill(log: EventLog) -> None:
        session = await log.start_session("s1")
        for value in values:
            await session.append("test.noted", {"name of the field": value})

    return filled(path, fill)


def found(path: Path, text: str, *words: object) -> list[int]:
    """The indexes of the events that were found."""
    return [event["index"] for event in good("search", text, "--db", path, "--jsonl", *words).objects]


# -------------------------------------------------------------------------------------------------------- what is found


def test_events_are_found_by_what_they_say(log: Path) -> None:
    assert found(log, "refund") == [0, 2]
    assert found(log, "REFUND") == [0, 2]
    assert found(log, "refund", "--case-sensitive") == [2]
    assert found(log, "A-1") == [4]
    assert found(log, "1714") == [11, 15]
    expected = [event for event in envelopes(log) if event["index"] in (0, 2)]
    assert good("search", "refund", "--db", log, "--jsonl").objects == expected
    assert good("search", "refund", "--db", log, "--json").document == expected


@pytest.mark.parametrize(
    ("filters", "indexes"),
    [
        ([], [14, 15]),
        (["--type", "turn.completed"], [15]),
        (["--turn", "t1"], [14, 15]),
        (["--after", "15"], [15]),  # a position, one more than the index
        (["--since", "1h"], [14, 15]),
        (["--session", "s1", "--limit", "1"], [14]),
        (["--session", "s1", "--after", "14"], [15]),
    ],
    ids=repr,
)
def test_filters_say_where_to_look(log: Path, filters: list[str], indexes: list[int]) -> None:
    assert found(log, "it is paid", *filters) == indexes


@pytest.mark.parametrize(("filters"), [["--turn", "t2"], ["--since", "2999-01-01"], ["--limit", "0"]], ids=repr)
def test_what_filters_leave_out_is_not_found(log: Path, filters: list[str]) -> None:
    done = run("search", "it is paid", "--db", log, "--jsonl", *filters)
    note = "eventlog: nothing says 'it is paid', in capital or small letters\n"
    assert (done.code, done.stdout, done.stderr) == (0, "", note)


@pytest.mark.parametrize(
    "text", ["50%", "a_b", "it's", '"quoted"', "back\\slash", "[x]", "a*", "two\nlines", "\u202e", "'; DROP TABLE log"]
)
def test_no_character_is_special(tmp_path: Path, text: str) -> None:
    others = ["50x", "aXb", "its", "quoted", "backslash", "x", "aa", "two lines", "", "DROP"]
    path = noted(tmp_path / "agent.db", *others, f"before {text} behind")
    assert found(path, text) == [len(others) + 1]


def test_texts_are_found_however_deep_and_names_of_fields_are_not(tmp_path: Path) -> None:
    path = noted(tmp_path / "agent.db", {"deep": [1, [{"er": "pearl"}]]}, 3.25, True, None, "Straße", "你好")
    assert found(path, "pearl") == [1]
    assert found(path, "3.25") == [2]
    assert found(path, "STRASSE") == [5]
    assert found(path, "好") == [6]
    for nothing in ("name of the field", "deep", "true", "null"):
        assert run("search", nothing, "--db", path, "--jsonl").stdout == ""


def test_people_see_the_place_where_it_was_found(tmp_path: Path) -> None:
    path = noted(tmp_path / "agent.db", f"{'x ' * 200}here it is {'y ' * 200}", "here at once")
    first, second = good("search", "here", "--db", path).lines
    assert "...x x" in first
    assert "here it is y y" in first
    assert second.endswith("here at once")
    assert acting("".join(on_terminal(80, "search", "here", "--db", path).split("\n"))) == set()


def test_what_was_found_is_seen_on_a_narrow_terminal_too(tmp_path: Path) -> None:
    path = noted(tmp_path / "agent.db", f"{'x ' * 200}here it is")
    assert " here it is" in on_terminal(80, "search", "here", "--db", path, NO_COLOR="1")


def test_nothing_that_is_found_acts_on_a_terminal(tmp_path: Path) -> None:
    path = noted(tmp_path / "agent.db", HOSTILE)
    assert acting(good("search", "hi", "--db", path).stdout) == set()
    assert acting(good("search", "hi", "--db", path, "--jsonl").stdout) == set()
    assert acting(run("search", "\x1b[2J no", "--db", path).stderr) == set()


def test_a_damaged_event_is_not_passed_over(tmp_path: Path) -> None:
    path = noted(tmp_path / "agent.db", "one", "two", "three")
    damage(path, b'field":"two"', b'field":"twu"')
    done = run("search", "three", "--db", path)
    assert done.code == 4
    assert "CORRUPT: its checksum does not match" in done.lines[0]
    assert done.lines[1].endswith("three")
    assert done.stderr.startswith("eventlog: 1 corrupt; ")


def test_a_mistyped_type_is_noticed_and_an_empty_text_refused(log: Path) -> None:
    done = run("search", "x", "--db", log, "--type", "turn.complete")
    assert (done.code, done.stderr) == (
        0,
        "eventlog: no event of type 'turn.complete'; did you mean 'turn.completed'?\n",
    )
    done = run("search", "", "--db", log)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("eventlog: invalid value for TEXT: it is empty; `eventlog tail` shows events")


# ------------------------------------------------------------------------------------------------------- how it is read


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    path = sample_log(tmp_path)
    done = shell(f'set -o pipefail; eventlog search a --db "{path}" --jsonl | head -n 2')
    assert (done.code, done.stderr, len(done.lines)) == (0, "", 2)


def test_memory_is_bounded_by_a_page_of_the_log(tmp_path: Path) -> None:
    """40,000 events of 4 KB are 160 MB; what a process takes beside the interpreter is far below."""
    path = tmp_path / "agent.db"

    async def fill(log: EventLog) -> None:
        session = await log.start_session("s1")
        batch = [NewEvent("test.noted", {"text": "y" * 4_000})] * 1_000
        for _ in range(40):
            await session.append_many(batch)
        await session.append("test.noted", {"text": "needle"})

    filled(path, fill)
    measure = "import resource, subprocess, sys; p = subprocess.run(sys.argv[1:], capture_output=True);"
    measure += "print(p.stdout.count(b'needle'), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    words = [sys.executable, "-c", measure, *command("search", "needle", "--db", path)]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    hits, peak = map(int, done.stdout.split())
    kib = peak if sys.platform == "linux" else peak // 1_024
    assert (hits, kib < 110_000) == (1, True), kib


# ----------------------------------------------------------------------------------------------------------- completion


def test_bash_completes_commands_and_options_as_the_guide_says(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    recent = "(( BASH_VERSINFO[0] * 10 + BASH_VERSINFO[1] >= 44 ))"
    if bash is None or subprocess.run([bash, "-c", recent], check=False).returncode:
        pytest.skip("completion needs bash 4.4 or newer")
    guide = (CHECKOUT / "docs/command-line.md").read_text()
    line = re.search(r"^eval .*bash_source.*$", guide, re.MULTILINE)
    assert line is not None
    program = tmp_path / "bin" / "eventlog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m eventlog "$@"\n')
    program.chmod(0o755)
    script = f"""
{line[0]}
complete -p eventlog
COMP_WORDS=(eventlog se); COMP_CWORD=1; _eventlog_completion eventlog; echo "${{COMPREPLY[@]}}"
COMPREPLY=(); COMP_WORDS=(eventlog search --ca); COMP_CWORD=2; _eventlog_completion eventlog; echo "${{COMPREPLY[@]}}"
"""
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([bash, "-c", script], env=environment(PATH=path), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split("\n")[1:3] == ["sessions search", "--case-sensitive"]
    assert "_eventlog_completion eventlog" in done.stdout.split("\n")[0]


@pytest.mark.parametrize(
    ("name", "defines"), [("zsh", "compdef _eventlog_completion"), ("fish", "complete --no-files")]
)
def test_the_other_shells_get_a_script_of_their_own(name: str, defines: str) -> None:
    assert defines in run(_EVENTLOG_COMPLETE=f"{name}_source").stdout
