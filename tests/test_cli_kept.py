"""What handlers keep, from the command line: keys and files, a value or a file, and looking changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.host.files import SessionFiles
from eventlog.host.kv import Kv, channel_state, extension_storage
from tests.cli_kit import HOSTILE, acting, command, environment, filled, fingerprint, good, on_terminal, run

BINARY = b"\x00\xff\x1b[2J"


async def kept(log: EventLog) -> None:
    for session_id in ("s1", "s2"):
        session = await log.start_session(session_id, channel="http")
        await channel_state(log.store, session.info).put("draft", session_id)
        files = SessionFiles(log.store, "helper", session_id)
        await files.write("notes/a.txt", f"of {session_id}\n")
        await files.write("bytes.bin", BINARY)
    await SessionFiles(log.store, "helper", "s1").write("all.txt", HOSTILE, scope="deployment")
    await Kv(log.store, "helper").put("last-result/s1", {"at": 1, "text": HOSTILE})
    await Kv(log.store, "other").put("last-result/s1", None)
    await extension_storage(log.store, "acme.points").put("points/1", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", kept)


def test_r105_keys_are_listed_with_their_sizes_and_whose_they_are(path: Path) -> None:
    before = fingerprint(path)
    header, *rows = [line.split() for line in good("kv", "--db", path).lines]
    assert header == ["KEY", "SIZE", "OF"]
    assert [(row[0], row[3:]) for row in rows] == [
        ("draft", ["channel", "http", "in", "session", "s1"]),
        ("draft", ["channel", "http", "in", "session", "s2"]),
        ("last-result/s1", ["agent", "helper"]),
        ("last-result/s1", ["agent", "other"]),
        ("points/1", ["extension", "acme.points"]),
    ]
    assert fingerprint(path) == before


def test_r108_a_prefix_and_an_agent_narrow_the_keys_down(path: Path) -> None:
    (only,) = good("kv", "last-", "--agent", "other", "--db", path, "--json").document
    assert only == {
        **{"agent": "other", "extension": None, "channel": None, "sessionId": None},
        **{"key": "last-result/s1", "sizeBytes": 4},
    }
    assert good("kv", "last_", "--db", path, "--json").document == []
    assert good("kv", "none", "--db", path).stdout == ""
    assert "no keys" in on_terminal(80, "kv", "none", "--db", path)


def test_a_value_is_written_as_json_and_acts_on_no_terminal(path: Path) -> None:
    words = ("kv", "--get", "last-result/s1", "--agent", "helper", "--db", path)
    assert good(*words).document == {"at": 1, "text": HOSTILE}
    assert acting(on_terminal(80, *words)) == set()
    assert good("kv", "--get", "last-result/s1", "--agent", "other", "--db", path).stdout == "null\n"
    assert good("kv", "--get", "draft", "--session", "s2", "--db", path).document == "s2"


def test_a_key_that_more_than_one_has_is_asked_about_and_one_that_is_not_there_is_not_found(path: Path) -> None:
    done = run("kv", "--get", "draft", "--db", path)
    assert (done.code, done.stdout) == (2, "")
    assert "more than one key 'draft'; say which with --agent, --extension or --session" in done.stderr
    done = run("kv", "--get", "none", "--db", path)
    assert (done.code, done.stderr) == (3, "eventlog: no key 'none'; `eventlog kv` lists them\n")
    assert run("kv", "--agent", "a", "--session", "s1", "--db", path).code == 2
    assert run("kv", "--session", "none", "--db", path).code == 3
    assert run("kv", "--extension", "none", "--db", path).code == 3


def test_r109_r110_files_are_listed_by_session_and_of_the_whole_deployment(path: Path) -> None:
    listed = good("files", "--db", path, "--json").document
    assert [(each["sessionId"], each["path"], each["sizeBytes"]) for each in listed] == [
        (None, "all.txt", len(HOSTILE.encode())),
        *[(session, *file) for session in ("s1", "s2") for file in (("bytes.bin", 6), ("notes/a.txt", 6))],
    ]
    assert {each["agent"] for each in listed} == {"helper"}
    (line,) = good("files", "notes/", "--session", "s2", "--db", path).lines[1:]
    assert line.split()[:4] == ["notes/a.txt", "6", "B", "s2"]
    assert [each["path"] for each in good("files", "--deployment", "--db", path, "--json").document] == ["all.txt"]
    assert "no files" in on_terminal(80, "files", "none", "--db", path)


def test_a_file_is_written_as_it_is_into_a_pipe_and_harmless_on_a_terminal(path: Path) -> None:
    words = ("files", "--get", "bytes.bin", "--session", "s1", "--db", path)
    piped = subprocess.run(command(*words), env=environment(), capture_output=True, check=True)
    assert piped.stdout == BINARY
    assert "'bytes.bin' is no text; write it into a file" in on_terminal(200, *words)
    assert acting(on_terminal(80, "files", "--get", "all.txt", "--db", path)) == set()


def test_a_path_that_more_than_one_session_has_is_asked_about(path: Path) -> None:
    done = run("files", "--get", "notes/a.txt", "--db", path)
    assert (done.code, done.stdout) == (2, "")
    assert "more than one file 'notes/a.txt'" in done.stderr
    assert good("files", "--get", "notes/a.txt", "--session", "s1", "--db", path).stdout == "of s1\n"
    assert run("files", "--get", "none", "--db", path).code == 3
    assert run("files", "--session", "s1", "--deployment", "--db", path).code == 2
