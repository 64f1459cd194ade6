"""Bringing events in and out, the care for the file, and what is no log at all, from the command line."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from tests.cli_kit import (
    HOSTILE,
    SAMPLE,
    Done,
    acting,
    conversation,
    damage,
    envelopes,
    filled,
    good,
    run,
    sample_log,
    shell,
)
from tests.real_data import real_data


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", conversation)


# -------------------------------------------------------------------------------------------------------------- append


@pytest.mark.parametrize(
    ("written", "meant"), [("session.update", "session.updated"), ("turn.complete", "turn.completed")]
)
def test_a_type_that_is_nearly_a_built_in_one_is_stored_and_doubted(log: Path, written: str, meant: str) -> None:
    done = run("append", "s1", written, "--db", log)
    assert (done.code, done.stdout.split()[0]) == (0, written)
    assert f"did you mean the built-in {meant}?" in done.stderr
    assert good("append", "s1", "acme.refund", "--db", log).stderr == ""


def test_an_event_is_appended_and_told(log: Path) -> None:
    done = good("append", "s1", "message.received", '{"text": "hi"}', "--turn", "t3", "--db", log)
    assert done.stdout == "message.received is event 20 of session s1, position 21\n"
    done = good("append", "s1", "acme.note", "--db", log, "--json")
    assert done.document == envelopes(log)[-1]
    assert done.document["data"] == {}


def test_data_can_come_from_stdin_and_keeps_its_numbers(log: Path) -> None:
    text = '{"big": 12345678901234567890123, "one": 1.0, "text": "a\u2028b"}'
    good("append", "s1", "acme.note", "-", "--db", log, stdin=text)
    assert envelopes(log)[-1]["data"] == json.loads(text)


def test_a_key_makes_an_append_repeatable(log: Path) -> None:
    once = good("append", "s1", "acme.note", '{"n": 1}', "--key", "k", "--db", log).stdout
    assert good("append", "s1", "acme.note", '{"n": 1}', "--key", "k", "--db", log).stdout == once
    done = run("append", "s1", "acme.note", '{"n": 2}', "--key", "k", "--db", log)
    assert (done.code, done.stdout) == (1, "")
    assert run("append", "s1", "acme.note", "--expected-index", 99, "--db", log).code == 1
    assert len(envelopes(log)) == 21


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["acme.note", '{"a": NaN}'], "data: is not JSON: NaN is not a JSON value"),
        (["acme.note", '{"a": 1, "a": 2}'], "data: is not JSON: an object has a key twice"),
        (["acme.note", "[" * 100_000], "data: is not JSON"),
        (["acme.note", '{"a": 1e999}'], "data.a: inf is not a JSON number"),
        (["acme.note", '{"a": ' + "9" * 5_000 + "}"], "data: is not JSON"),
        (["acme.note", "[1]"], "data: must be a JSON object"),
        (["acme.note", '"\\ud800"'], "data: must be a JSON object"),
        (["acme.note", '{"a": "\\ud800"}'], "data.a: "),
        (["message.received", "{}", "--turn", "t1"], "data.text: is required"),
        (["message.received", '{"text": ""}'], "message.received belongs to a turn; name it with --turn"),
        (["bad type"], "type: 'bad type' cannot be stored"),
        (["acme.note", "{}", "--key", "\x1b"], "key: '\\x1b' has characters that are not printable"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_stored_is_named_and_nothing_is(log: Path, words: list[str], complaint: str) -> None:
    done = run("append", "s1", *words, "--db", log)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"eventlog: {complaint}")
    assert len(envelopes(log)) == 20


def test_a_session_is_started_only_when_that_is_asked_for(log: Path) -> None:
    assert run("append", "s2", "acme.note", "--db", log).code == 3
    good("append", "s2", "acme.note", "--start", "--db", log)
    good("append", "s2", "acme.note", "--start", "--db", log)
    assert [each["type"] for each in envelopes(log, "s2")] == ["session.started", "acme.note", "acme.note"]


# --------------------------------------------------------------------------------------------------- import and export


def test_the_real_sessions_are_imported_once_and_exported_as_they_were(tmp_path: Path) -> None:
    path, data = tmp_path / "agent.db", real_data()
    assert good("import", data, "--db", path).stdout == "added 1,576 events in 10 sessions\n"
    assert good("import", data, "--db", path).stdout == "nothing was added; 1,576 events known before\n"
    lines = data.read_text("utf-8").removesuffix("\n").split("\n")
    assert good("export", "--db", path).objects == [json.loads(line) for line in lines]


def test_a_session_is_exported_alone(tmp_path: Path) -> None:
    path = sample_log(tmp_path)
    session_id = envelopes(path)[0]["sessionId"]
    assert good("export", "--session", session_id, "--db", path).objects == envelopes(path, session_id)
    assert run("export", "--session", "nobody", "--db", path).code == 3


def test_an_export_is_a_new_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    path, target = sample_log(tmp_path), tmp_path / "out.jsonl"
    done = good("export", "--db", path, "--output", target)
    assert done.stdout == f"{target} has {len(envelopes(path))} events\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_text("utf-8") == good("export", "--db", path).stdout
    done = run("export", "--db", path, "--output", target)
    assert (done.code, done.stderr) == (
        5,
        f"eventlog: {target}: File exists; choose another name, or remove it first\n",
    )


def test_e6_breaks_of_lines_inside_of_texts_break_no_line(tmp_path: Path) -> None:
    """Also E1 of a round trip: what comes out goes in again and is the same."""
    texts = [HOSTILE, *(f"a{c}b" for c in "\u2028\u2029\x85\r\v\f\n\x1c\x7f")]

    async def fill(log: EventLog) -> None:
        session = await log.start_session("s\u00e9")
        for text in texts:
            await session.append("message.received", {"text": text}, turn_id="t1")

    path = filled(tmp_path / "agent.db", fill)
    expected = envelopes(path)
    assert [each["data"].get("text") for each in expected] == [None, *texts]
    for words in (["export"], ["show", "s\u00e9", "--jsonl"], ["tail", "--after", "0", "--jsonl"]):
        done = good(*words, "--db", path)
        assert done.objects == expected
        assert len(done.stdout.splitlines()) == len(expected)
        assert acting(done.stdout) == set()
    exported = good("export", "--db", path).stdout
    good("import", "-", "--db", tmp_path / "other.db", stdin=exported)
    assert envelopes(tmp_path / "other.db") == expected


def test_bad_lines_are_counted_and_named_and_the_others_imported(tmp_path: Path) -> None:
    good_line = SAMPLE.read_bytes().split(b"\n")[0]
    hole = json.dumps({**json.loads(good_line), "index": 9, "type": "acme.note"}).encode()
    lines = [good_line, b"garbage \x1b[2J", hole, b"", b'{"type": 1}', b'{"a": "' + b"x" * 3_000_000]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    path = tmp_path / "agent.db"
    done = run("import", tmp_path / "bad.jsonl", "--db", path)
    assert (done.code, done.stdout) == (1, "added 1 event in 1 session\n")
    assert [line.split(" was not imported: ")[0] for line in done.stderr.splitlines()] == [
        f"eventlog: line {number}" for number in (2, 3, 5, 6)
    ]
    assert acting(done.stderr) == set()
    done = run("import", tmp_path / "bad.jsonl", "--db", path, "--json")
    assert (done.code, done.stderr) == (1, "")
    assert [done.document[name] for name in ("added", "known", "sessions", "bad")] == [0, 1, 1, 4]
    assert [each["line"] for each in done.document["badLines"]] == [2, 3, 5, 6]


def test_the_session_that_was_forgotten_is_named_when_it_is_imported(log: Path, tmp_path: Path) -> None:
    """Its tombstones do not say whose it was."""
    good("forget", "s1", "--yes", "--db", log)
    good("export", "--db", log, "-o", tmp_path / "out.jsonl")
    second = tmp_path / "second.db"
    done = run("import", tmp_path / "out.jsonl", "--db", second)
    assert (done.code, done.stdout) == (0, "added 20 events in 1 session\n")
    assert done.stderr == (
        "eventlog: 1 session was forgotten before it was exported (s1): nobody knows any more its agent, project and"
        " channel; it has no agent, project default and channel import here\n"
    )
    again = good("import", tmp_path / "out.jsonl", "--db", second, "--json").document
    assert (again["known"], again["forgotten"]) == (20, [])


def test_only_the_first_bad_lines_are_named_when_there_are_many(tmp_path: Path) -> None:
    done = run("import", "-", "--db", tmp_path / "agent.db", stdin="bad\n" * 50)
    assert (done.code, done.stdout) == (1, "nothing was added\n")
    assert done.stderr.count("was not imported") == 10
    assert "50 bad lines in all" in done.stderr


def test_a_strict_import_ends_at_the_first_bad_line(tmp_path: Path) -> None:
    done = run("import", "--strict", "-", "--db", tmp_path / "agent.db", stdin="bad\nbad\n")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("eventlog: line 1: ")


def test_a_file_that_is_not_there_makes_no_log(tmp_path: Path) -> None:
    done = run("import", tmp_path / "none.jsonl", "--db", tmp_path / "agent.db")
    assert (done.code, done.stderr.count("\n")) == (3, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_live_import_is_new_events_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    first = good("import", "--live", SAMPLE, "--db", path).stdout
    assert first.startswith("added ")
    assert good("import", "--live", SAMPLE, "--db", path).stdout.startswith("nothing was added")
    sent = [json.loads(line) for line in SAMPLE.read_bytes().splitlines()]
    taken = {(each["sessionId"], each["index"]): each["data"] for each in envelopes(path)}
    assert taken == {(each["sessionId"], each["index"]): each["data"] for each in sent}


def test_the_log_of_a_folder_is_used_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("import", SAMPLE, "--dir", tmp_path)
    assert (tmp_path / ".eventlog" / "agent.db").is_file()
    assert stat.S_IMODE((tmp_path / ".eventlog").stat().st_mode) == 0o700
    monkeypatch.chdir(tmp_path)
    everything = good("sessions", "--json").document
    assert good("sessions", "--json", "--dir", tmp_path).document == everything
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("sessions").code == 3
    assert run("sessions", "--json", EVENTLOG_DB=str(tmp_path / ".eventlog" / "agent.db")).document == everything
    assert run("sessions", "--db", "none.db", EVENTLOG_DB=str(tmp_path / ".eventlog" / "agent.db")).code == 3


# ----------------------------------------------------------------------------------------------------- stats and check


def test_the_numbers_of_a_log_are_told(log: Path) -> None:
    found = good("stats", "--db", log, "--json").document
    assert [found[name] for name in ("path", "events", "sessions", "ownerPid")] == [str(log), 20, 1, None]
    told = dict(line.split(maxsplit=1) for line in good("stats", "--db", log).lines)
    assert (told["events"], told["log"]) == ("20", str(log))


def test_the_numbers_of_a_log_are_told_in_words_of_the_glossary(log: Path) -> None:
    """What only the store knows by its name is left to the JSON."""
    labels = [re.split("  +", line)[0] for line in good("stats", "--db", log).lines]
    assert labels == [
        "log",
        "events",
        "last position",
        "sessions",
        "deliveries",
        "dead letters",
        "observe hooks",
        "gaps of observe hooks",
        "keys that handlers keep",
        "files that handlers keep",
        "eras",
        "owners so far",
        "size of the file",
        "size of its -wal",
        "SQLite",
    ]
    assert "notInSessionIndex" in good("stats", "--db", log, "--json").document


async def test_what_only_its_owner_knows_of_a_log_is_asked_of_it(log: Path) -> None:
    async def stats(words: str = "") -> Done:
        return await asyncio.to_thread(shell, f"eventlog stats {words} --db {log}")

    async with EventLog(log, durability="process") as owner:
        document = (await stats("--json")).document
        assert (document["durability"], document["checkpointsSuspended"]) == ("process", False)
        with owner.store.checkpoints_suspended():
            assert re.search(r"^held by a backup +yes$", (await stats()).stdout, re.MULTILINE)
    assert (await stats("--json")).document["durability"] is None


def test_a_sound_log_is_told_to_be_sound(log: Path) -> None:
    assert good("check", "--db", log).stdout == "ok: 20 events in 1 session, nothing damaged and nothing missing\n"
    assert good("check", "--db", log, "--quick", "--json").document == {
        "ok": True,
        "events": 20,
        "sessions": 1,
        "damaged": [],
        "damagedCount": 0,
        "missing": [],
        "faults": [],
        "shortened": None,
    }


def test_d3_a_damaged_event_is_named_and_the_others_are_shown(log: Path) -> None:
    damage(log, b'"text":"look it up"', b'"text":"look at it"')
    done = run("check", "--db", log)
    assert (done.code, done.stderr) == (1, "")
    assert done.lines[0] == "fault  event 3 of session s1 (position 4) is damaged: its checksum does not match"
    (damaged,) = run("check", "--db", log, "--json").document["damaged"]
    assert (damaged["sessionId"], damaged["index"], damaged["position"]) == ("s1", 3, 4)

    done = run("show", "s1", "--db", log)
    assert (done.code, len(done.lines)) == (4, 20)
    assert "CORRUPT: its checksum does not match" in done.lines[3]
    assert "1 corrupt" in done.stderr
    done = run("show", "s1", "--db", log, "--jsonl")
    assert (done.code, len(done.objects)) == (4, 20)
    assert done.objects[3]["corrupt"] == "its checksum does not match"
    assert "data" not in done.objects[3]
    done = run("show", "s1", "--turn", "t1", "--db", log)
    assert (done.code, done.stdout.count("CORRUPT reasoning.completed")) == (4, 1)
    done = run("export", "--db", log)
    assert (done.code, [each["index"] for each in done.objects]) == (4, [n for n in range(20) if n != 3])
    assert "left out: event 3 of session 's1'" in done.stderr


def test_a_payload_that_is_no_json_is_a_corrupt_row(log: Path) -> None:
    damage(log, b'{"text":"look it up"}', b'{"text":"look it up" ')
    assert run("tail", "s1", "-n", 19, "--db", log).code == 4
    assert run("tail", "s1", "-n", 2, "--db", log).code == 0


def test_an_event_whose_time_is_damaged_is_a_corrupt_row_too(log: Path) -> None:
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute("INSERT INTO gate VALUES (1, 'forget')")
        connection.execute("UPDATE log SET at = 9223372036854775807 WHERE idx = 3")
        connection.execute("DELETE FROM gate")
    for words in (["show", "s1"], ["show", "s1", "--jsonl"], ["show", "s1", "--turn"], ["export"]):
        done = run(*words, "--db", log)
        assert (done.code, "Traceback" in done.stderr, "unexpected" in done.stderr) == (4, False, False), done
        assert "It is paid." in done.stdout


def test_a_log_that_lost_its_end_is_told(log: Path, tmp_path: Path) -> None:
    other = filled(tmp_path / "other.db", conversation)
    before = log.read_bytes()
    good("append", "s1", "acme.note", "--db", log)
    log.write_bytes(before)
    done = run("check", "--db", log)
    assert (done.code, done.lines[0]) == (4, "fault  the log held events up to position 21, and now ends at 20")
    assert run("check", "--db", log, "--json").document["shortened"] == {"proven": 21, "found": 20}
    done = run("append", "s1", "acme.note", "--db", log)
    assert (done.code, done.stderr.count("\n")) == (4, 1)
    for words in (["show", "s1"], ["sessions"], ["tail"], ["hooks"], ["deliveries"]):
        done = run(*words, "--db", log)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (4, "", 1), "no shortened history without a word"
        assert "up to position 21 and now ends at 20" in done.stderr
    done = run("export", "--db", log)
    assert (done.code, len(done.lines)) == (4, 20)
    assert "up to position 21 and now ends at 20" in done.stderr
    assert run("check", "--db", other).code == 0


def test_a_log_that_lost_its_end_is_taken_as_it_is_when_that_is_said(log: Path) -> None:
    before = log.read_bytes()
    good("append", "s1", "acme.note", "--db", log)
    log.write_bytes(before)
    done = run("recover", "--db", log, "--json")
    assert (done.code, done.document["shortened"]) == (4, {"proven": 21, "found": 20})
    done = shell(f"eventlog recover --db {log} --accept-loss")
    told = "held events up to position 21 and now ends at 20; this was accepted, and it goes on from there"
    assert (done.code, done.stderr) == (0, f"eventlog: {log} {told}\n")
    good("append", "s1", "acme.note", "--db", log)
    good("check", "--db", log)
    assert len(good("stats", "--db", log, "--json").document["eras"]) == 2


# ------------------------------------------------------------------------------------------------ files that are no log


def write_nothing(path: Path) -> None:
    """A path with nothing there."""


def write_empty(path: Path) -> None:
    path.write_bytes(b"")


def write_text(path: Path) -> None:
    path.write_text("hello\n" * 100)


def write_folder(path: Path) -> None:
    path.mkdir()


READING = [
    ["sessions"],
    ["show", "s1"],
    ["tail"],
    ["tail", "--follow"],
    ["hooks"],
    ["logs"],
    ["extensions"],
    ["deliveries"],
    ["dead"],
    ["dead", "show", "1"],
    ["export"],
    ["stats"],
    ["check"],
    ["recover"],
]
WRITING = [["append", "s1", "acme.note"], ["append", "s1", "acme.note", "--start"]]


@pytest.mark.parametrize("write", [write_nothing, write_empty, write_text, write_folder])
@pytest.mark.parametrize("words", READING + WRITING, ids=" ".join)
def test_j3_what_is_no_log_is_refused_and_left_alone(tmp_path: Path, words: list[str], write: Any) -> None:
    path = tmp_path / "agent.db"
    write(path)
    before = [(each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*")]
    done = run(*words, "--db", path)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert str(path) in done.stderr
    left = [(each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*") if each.suffix != ".lock"]
    assert left == before


def test_d3_a_log_that_was_cut_short_is_damaged_and_left_alone(log: Path) -> None:
    cut = log.read_bytes()[:100]
    log.write_bytes(cut)
    for words in (*READING, *WRITING):
        done = run(*words, "--db", log)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (4, "", 1), words
    assert log.read_bytes() == cut
