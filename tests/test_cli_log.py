"""Looking at sessions and events from the command line: lists, transcripts, the end of the log, on a terminal too."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from eventlog import EventLog
from tests.cli_kit import (
    HOSTILE,
    SAMPLE,
    Done,
    acting,
    conversation,
    envelopes,
    environment,
    filled,
    good,
    on_terminal,
    run,
    sample_log,
    shell,
    start,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", conversation)


# ------------------------------------------------------------------------------------------------------------ sessions


def test_sessions_are_listed_in_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    path = sample_log(tmp_path)
    rows = good("sessions", "--db", path, "--json").document
    assert [row["id"] for row in rows] == list(dict.fromkeys(each["sessionId"] for each in envelopes(path)))
    assert good("sessions", "--db", path, "--jsonl").objects == rows
    assert len(good("sessions", "--db", path).lines) == 1 + len(rows)
    assert good("sessions", "--db", path, "--json", "--limit", 1).document == rows[:1]
    assert good("sessions", rows[0]["id"][:-1], "--db", path, "--json").document[0] == rows[0]
    assert good("sessions", "--db", path, "--json", "--project", "no such").document == []


def test_a_session_is_told_with_its_state(log: Path) -> None:
    (row,) = good("sessions", "--db", log, "--json").document
    told = {name: row[name] for name in ("id", "agent", "project", "channelId", "status", "title", "nextIndex")}
    assert list(told.values()) == ["s1", "helper", "shop", "http", "active", "Refund", 20]
    head, line = good("sessions", "--db", log).lines
    assert head.split()[:6] == ["SESSION", "STATUS", "EVENTS", "PROJECT", "AGENT", "CHANNEL"]
    assert line.split()[:7] == ["s1", "active", "20", "shop", "helper", "http", "chat"]


# ---------------------------------------------------------------------------------------------------------------- show


def test_r147_a_session_is_shown_by_its_id(log: Path) -> None:
    lines = good("show", "s1", "--db", log).lines
    assert len(lines) == 20
    assert lines[2].split(maxsplit=4)[2:] == ["message.received", "t1", "Where is my refund?"]
    assert lines[15].endswith("1,714 in, 173 out, 5 to cache, $0.0077 haiku")


def test_json_lines_of_a_session_are_its_envelopes(log: Path) -> None:
    expected = envelopes(log, "s1")
    assert good("show", "s1", "--db", log, "--jsonl").objects == expected
    assert good("show", "s1", "--db", log, "--json").document == expected
    assert good("show", "s1", "--db", log, "--json", "--limit", 0).document == []


@pytest.mark.parametrize(
    ("filters", "indexes"),
    [
        (["--after", 17], [18, 19]),
        (["--before", 2], [0, 1]),
        (["--after", -1, "--limit", 2], [0, 1]),
        (["--type", "turn.started"], [1, 16]),
        (["--type", "turn.started", "--type", "turn.failed", "--after", 1], [16, 19]),
        (["--turn", "t2"], [16, 17, 18, 19]),
        (["--since", "1h", "--after", 18], [19]),
        (["--since", "2999-01-01"], []),
        (["--since", "2999-01-01T00:00:00+02:00"], []),
    ],
    ids=repr,
)
def test_a_session_is_filtered(log: Path, filters: list[object], indexes: list[int]) -> None:
    assert [each["index"] for each in run("show", "s1", "--db", log, "--jsonl", *filters).objects] == indexes


def test_a_type_that_nothing_has_is_a_typo_that_is_pointed_at(log: Path) -> None:
    done = run("show", "s1", "--db", log, "--type", "turn.complete")
    assert done == (0, "", "eventlog: no event of type 'turn.complete'; did you mean 'turn.completed'?\n")


def test_a_session_or_turn_that_is_not_there_is_not_found(log: Path) -> None:
    done = run("show", "s2", "--db", log)
    assert done == (3, "", "eventlog: no session 's2'; `eventlog sessions` lists them\n")
    done = run("show", "s1", "--db", log, "--turn", "t3")
    assert (done.code, done.stdout) == (3, "")
    assert "no turn 't3' in session 's1'" in done.stderr


# ---------------------------------------------------------------------------------------------------------- transcripts

TRANSCRIPT = """\
turn t1 of session s1, DAY UTC

TIME  user
          Where is my
              refund?

TIME  reasoning
          look it up

TIME  call 1 Find
          order=A-1, deep=true

TIME  call 2 Read (for c1)
          notes.txt

TIME  call 3 Pay

TIME  result 2 Read failed, 0.0 s
          gone

TIME  result 1 Find ok, 0.0 s
          row 0
          row 1
          row 2
          row 3
          row 4
          row 5
          row 6
          row 7
          row 8
          row 9
          ... 210 more characters (--full shows them)

TIME  result 3 Pay dry run, 0.0 s

TIME  result of an unknown call Pay ok

TIME  asks for approval
          Pay it?
          ["yes","no"]

TIME  answered: approved
          yes

TIME  step 0  stop; 1,714 in, 173 out, 5 to cache

TIME  acme.refund  {"cents":500}

TIME  assistant
          It is paid.

TIME  turn completed, 0.0 s; 1,714 in, 173 out, 5 to cache; $0.0077 haiku
"""


def timeless(text: str) -> str:
    """With every day and time replaced by a word."""
    words = [("DAY", r"\d{4}-\d\d-\d\d"), ("TIME", r"\d\d:\d\d:\d\d"), ("0.0 s", r"0\.\d s")]
    for word, pattern in words:
        text = re.sub(pattern, word, text)
    return text


def test_r91_a_turn_is_drawn_as_people_read_it(log: Path) -> None:
    """R91: what was only a dry run is told as one."""
    assert timeless(good("show", "s1", "--db", log, "--turn", "t1").stdout) == TRANSCRIPT


def test_without_a_name_every_turn_is_drawn_and_what_was_not_completed_is_kept(log: Path) -> None:
    text = timeless(good("show", "s1", "--db", log, "--turn").stdout)
    assert text.startswith("TIME  session.started  helper shop http chat live Refund\n\nturn t1 of session s1")
    assert text.endswith(
        "turn t2 of session s1, DAY UTC\n\nTIME  assistant (not completed)\n          Let me see\n\n"
        "TIME  turn failed, 0.0 s: turn interrupted\n"
    )


def test_nothing_is_shortened_when_all_is_asked_for(log: Path) -> None:
    text = good("show", "s1", "--turn", "t1", "--db", log, "--full").stdout
    assert "          row 39\n" in text
    assert "          order=A-1\n          deep=true\n" in text
    assert "more characters" not in text


def test_a_forgotten_session_says_so_once_and_not_line_by_line(log: Path) -> None:
    good("forget", "s1", "--yes", "--db", log)
    told = "forgotten: {} of session s1, index {}"
    when = r" {10}recorded \d{4}-\d\d-\d\d \d\d:\d\d:\d\d( to \S+ \S+)? UTC; what was said is erased"
    for words, first in (([], told.format("20 events", "0 to 19")), (["t2"], told.format("4 events", "16 to 19"))):
        lines = good("show", "s1", "--turn", *words, "--db", log).lines
        assert lines[0] == first
        assert [re.fullmatch(when, line) is None for line in lines[1:]] == [False]
    good("append", "s1", "message.received", '{"text": "again"}', "--turn", "t3", "--db", log)
    first, _when, *rest = good("show", "s1", "--turn", "--db", log).lines
    assert first == told.format("20 events", "0 to 19")
    assert [line for line in rest if "turn t3" in line or line.strip() == "again"] == [rest[1], rest[-1]]
    assert len(good("show", "s1", "--turn", "--jsonl", "--db", log).objects) == 21


def test_a_message_cannot_pose_as_a_line_of_the_transcript(tmp_path: Path) -> None:
    forged = "hi\n12:00:00  turn completed, 0.1 s\nturn t9 of session s9"

    async def fill(log: EventLog) -> None:
        session = await log.start_session("s1")
        await session.append("message.received", {"text": forged}, turn_id="t1")

    lines = good("show", "s1", "--turn", "--db", filled(tmp_path / "agent.db", fill)).lines
    assert [line for line in lines if line.startswith(" " * 10)] == [f"          {line}" for line in forged.split("\n")]


# ---------------------------------------------------------------------------------------------------------------- tail


def test_the_last_events_of_the_log_and_of_a_session_are_shown(tmp_path: Path) -> None:
    path = sample_log(tmp_path)
    everything = envelopes(path)
    last = everything[-1]["sessionId"]
    assert good("tail", "--db", path, "--jsonl").objects == everything[-10:]
    assert good("tail", "--db", path, "--jsonl", "-n", 0).objects == []
    assert good("tail", last, "--db", path, "--jsonl", "-n", 3).objects == envelopes(path, last)[-3:]
    assert good("tail", "--db", path, "--jsonl", "--after", 5).objects == everything[5:]
    started = [each for each in everything if each["type"] == "turn.started"]
    assert good("tail", "--db", path, "--jsonl", "--type", "turn.started", "-n", 2).objects == started[-2:]
    assert good("tail", "--db", path, "--jsonl", "--since", "2999-01-01").objects == []
    assert len(good("tail", "--db", path, "-n", 4).lines) == 4


def test_a_tail_of_a_session_that_is_not_there_is_not_found(log: Path) -> None:
    assert run("tail", "s2", "--db", log).code == 3


# -------------------------------------------------------------------------------------------------------- on a terminal


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    async def fill(log: EventLog) -> None:
        session = await log.start_session("s1", title=HOSTILE, project="p", auth={"user": HOSTILE})
        for kind, data in (
            ("message.received", {"text": HOSTILE}),
            ("message.appended", {"delta": HOSTILE}),
            ("actions.requested", {"calls": [{"callId": "c", "toolName": HOSTILE, "args": {HOSTILE: HOSTILE}}]}),
            ("action.result", {"callId": "c", "toolName": HOSTILE, "isError": True, "output": {HOSTILE: [HOSTILE]}}),
            ("step.completed", {"stepIndex": 1, "finishReason": HOSTILE}),
            (
                "input.requested",
                {"requests": [{"requestId": "r", "kind": HOSTILE, "prompt": HOSTILE, "options": HOSTILE}]},
            ),
            ("input.resolved", {"resolutions": [{"requestId": "r", "outcome": HOSTILE, "response": HOSTILE}]}),
            ("acme.own", {HOSTILE: HOSTILE}),
            ("turn.completed", {"result": HOSTILE, "cost": {"totalUsd": 1, "model": HOSTILE}}),
            ("turn.failed", {"message": HOSTILE}),
        ):
            await session.append(kind, data, turn_id="t1")

    return filled(tmp_path / "agent.db", fill)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_of_a_payload_acts_on_a_terminal(hostile: Path, columns: int) -> None:
    for words in (
        ["sessions"],
        ["show", "s1"],
        ["show", "s1", "--turn", "--full"],
        ["tail"],
        ["export"],
        ["show", "s1", "--json"],
    ):
        text = on_terminal(columns, *words, "--db", hostile)
        assert "eventlog:" not in text, text
        assert acting(text) == set(), words
        assert text.count("\n") > 1


def test_a_terminal_without_colours_gets_no_escape_at_all(hostile: Path) -> None:
    for words in (["sessions"], ["show", "s1"], ["show", "s1", "--turn"]):
        assert "\x1b" not in on_terminal(80, *words, "--db", hostile, NO_COLOR="1")
        assert "\x1b[" in on_terminal(80, *words, "--db", hostile)


def test_markup_in_a_payload_is_text(hostile: Path) -> None:
    assert "[red]r[/red]" in on_terminal(200, "show", "s1", "--turn", "--db", hostile)
    assert "[red]r[/red]" in good("sessions", "--db", hostile).stdout


@pytest.mark.parametrize("columns", [80, 200])
def test_lists_and_transcripts_fit_the_terminal(log: Path, columns: int) -> None:
    for words in (["sessions"], ["show", "s1"], ["show", "s1", "--turn"], ["tail"], ["stats"]):
        for line in on_terminal(columns, *words, "--db", log, NO_COLOR="1").split("\n"):
            assert len(line) <= columns or str(log) in line, line


def test_an_import_shows_how_far_it_is_on_a_terminal_only(tmp_path: Path) -> None:
    assert "importing" in on_terminal(80, "import", SAMPLE, "--db", tmp_path / "one.db")
    done = shell(f"eventlog import {SAMPLE} --db {tmp_path}/two.db")
    assert (done.code, done.stderr) == (0, "")


def test_errors_name_a_path_without_effect_on_a_terminal(tmp_path: Path) -> None:
    done: Done = run("sessions", "--db", tmp_path / "a\x1b[2J\nb.db")
    assert (done.code, done.stderr.count("\n")) == (3, 1)
    assert acting(done.stderr) == set()
    assert environment()  # the same goes for real processes, which share this code


# ---------------------------------------------------------------------------------------------------- lists of events


async def long_and_short(log: EventLog) -> None:
    for session_id in ("s1", "a-session-with-a-long-id", "s2"):
        session = await log.start_session(session_id)
        await session.append("job.queued", {"jobId": f"job of {session_id}", "name": "tidy up"})
        await session.append("job.started", {"jobId": f"job of {session_id}"})


@pytest.mark.parametrize("columns", [None, 80, 200])
def test_behind_a_long_id_the_columns_stay_in_line(tmp_path: Path, columns: int | None) -> None:
    words = ("tail", "--db", filled(tmp_path / "agent.db", long_and_short))
    text = good(*words).stdout if columns is None else on_terminal(columns, *words, NO_COLOR="1")
    lines = [line for line in text.splitlines() if "job." in line]
    assert [line.index("job.") for line in lines[-4:]] == [lines[-1].index("job.")] * 4


def test_a_day_is_told_with_its_zone(log: Path) -> None:
    first = on_terminal(80, "show", "s1", "--db", log, NO_COLOR="1").splitlines()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d UTC", first)


def test_the_line_of_a_job_names_it(tmp_path: Path) -> None:
    lines = good("show", "s1", "--db", filled(tmp_path / "agent.db", long_and_short)).lines
    assert [line.split("-  ")[-1].strip() for line in lines[1:]] == ["job of s1 tidy up", "job of s1"]


# ----------------------------------------------------------------------------------------------------------- appending


def test_an_event_that_belongs_to_a_turn_is_refused_with_the_option_for_it(log: Path) -> None:
    done = run("append", "s1", "message.received", '{"text": "hi"}', "--db", log)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == (
        "eventlog: message.received belongs to a turn; name it with --turn; see `eventlog append --help`\n"
    )


def test_the_end_of_the_log_is_one_document_or_one_object_a_line(log: Path) -> None:
    lines = good("tail", "--db", log, "--jsonl").objects
    assert len(lines) == 10
    assert good("tail", "--db", log, "--json").document == lines
    assert good("tail", "--last", "0", "--db", log, "--json").document == []
    with start("tail", "--follow", "--db", log, "--json") as child:
        assert child.stdout is not None
        assert [json.loads(child.stdout.readline()) for _ in lines] == lines
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


@pytest.mark.parametrize("option", ["--json", "--jsonl"])
def test_an_export_is_the_same_whichever_json_is_asked_for(log: Path, option: str) -> None:
    assert good("export", option, "--db", log).stdout == good("export", "--db", log).stdout
