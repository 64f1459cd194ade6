"""`backup`, `prune`, `forget` and `vacuum`: on a log at rest, and on one that a living process owns."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, control
from eventlog.cli.care import BESIDE_EVENTS
from eventlog.errands import KEPT, MAX_RUNNING
from eventlog.errors import InvalidRequest, LimitExceeded, SessionNotFound
from tests.cli_kit import PATIENCE_S, command, envelopes, environment, filled, fingerprint, good, on_terminal, run
from tests.log_kit import fill, mode_of, whole
from tests.test_prune import append_all, ended, turn


async def some(log: EventLog) -> None:
    """Two finished sessions, one that streamed, and one that goes on."""
    await ended(log, "a")
    await ended(log, "b")
    await append_all(await log.start_session("streamed"), turn(1, 20))
    await fill(await log.start_session("open"), 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", some)


def sessions(path: Path) -> list[str]:
    return sorted({each["sessionId"] for each in envelopes(path)})


# ------------------------------------------------------------------------------------------------------------ at rest


def test_a_backup_of_a_log_at_rest_changes_nothing_of_it(path: Path, tmp_path: Path) -> None:
    before = fingerprint(path)
    done = good("backup", tmp_path / "b.db", "--db", path)
    assert done.stdout.startswith(f"{tmp_path / 'b.db'} has 38 events, ")
    assert fingerprint(path) == before
    assert envelopes(tmp_path / "b.db") == envelopes(path)
    assert mode_of(tmp_path / "b.db") == 0o600
    document = good("backup", tmp_path / "c.db", "--db", path, "--json").document
    assert set(document) == {"path", "events", "lastPosition", "sizeBytes"}
    assert (document["events"], document["lastPosition"]) == (38, 38)
    refused = run("backup", tmp_path / "b.db", "--db", path)
    assert (refused.code, refused.stdout) == (5, "")
    assert "choose another name" in refused.stderr


def test_pruning_says_what_went(path: Path) -> None:
    assert run("prune", "--db", path).code == 2
    done = good("prune", "--older-than", "0s", "--deltas", "--yes", "--db", path)
    assert done.stdout.startswith("removed 10 events of 2 sessions and 20 deltas")
    assert sessions(path) == ["open", "streamed"]
    document = good("prune", "--keep-events", 3, "--keep-bytes", "2GiB", "--db", path, "--json").document
    assert document == {"sessions": 0, "events": 0, "deltas": 0, "owed": 0, "freedBytes": 0}
    good("check", "--db", path)


def test_a_preview_says_what_would_go_and_changes_nothing(path: Path) -> None:
    before = fingerprint(path)
    rules = ["--older-than", "0s", "--deltas", "--dry-run", "--db", path]
    assert good("prune", *rules).stdout == "would remove 10 events of 2 sessions and 20 deltas\n"
    document = good("prune", *rules, "--keep-bytes", "1B", "--json").document
    assert document == {"sessions": 2, "events": 10, "deltas": 20, "more": 0, "owed": 0}
    small = good("prune", "--keep-bytes", "1B", "--dry-run", "--db", path)
    assert (
        small.stdout == "would remove 0 events of 0 sessions and up to 2 more sessions until the file is small enough\n"
    )
    assert run("prune", "--dry-run", "--db", path).code == 2
    assert fingerprint(path) == before
    done = good("prune", *rules[:3], "--db", path)
    assert done.stdout.startswith("removed 10 events of 2 sessions and 20 deltas")


def test_a_pruned_session_is_marked_as_one(path: Path) -> None:
    assert "PRUNED" not in good("sessions", "--db", path).stdout
    good("prune", "--older-than", "0s", "--db", path)
    listed = good("sessions", "--db", path)
    header, *rows = [line.split() for line in listed.lines]
    assert header[:4] == ["SESSION", "STATUS", "EVENTS", "PRUNED"]
    assert rows[0][:4] == ["a", "completed", "0", "5"]
    assert " s" not in listed.lines[1].removesuffix(" ")[-8:]  # how long it lasted
    first = {each["id"]: each["firstIndex"] for each in good("sessions", "--db", path, "--json").document}
    assert first == {"a": 5, "b": 5, "streamed": 0, "open": 0}
    assert good("sessions", "a", "--db", path, "--jsonl").objects[0]["firstIndex"] == 5


def test_the_question_says_what_would_go(path: Path) -> None:
    _, written = questioned(lambda _, ours: os.write(ours, b"n\n"), "prune", "--keep-events", "30", "--db", path)
    assert "Remove 10 events of 2 sessions? [y/N]" in written


def test_nobody_is_asked_where_nothing_would_go(path: Path) -> None:
    assert answered("n", "prune", "--older-than", "300d", "--db", path) == (0, False)


def test_the_question_before_forgetting_names_a_session_that_is_there(path: Path) -> None:
    code, written = questioned(lambda _, ours: os.write(ours, b"n\n"), "forget", "a", "--db", path)
    assert "Forget session a with 5 events? [y/N]" in written
    assert code == 1
    code, written = questioned(lambda *_: None, "forget", "none", "--db", path)
    assert "no session 'none'; `eventlog sessions` lists them" in written
    assert "gone for good" not in written
    assert code == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--older-than", "soon"], "'soon' is not an age"),
        (["--keep-bytes", "much"], "'much' is not a size"),
        (["--keep-events", "-1"], "-1 is not in the range"),
    ],
)
def test_a_rule_that_cannot_be_read_is_wrong_usage(path: Path, words: list[str], complaint: str) -> None:
    done = run("prune", *words, "--db", path)
    assert (done.code, complaint in done.stderr) == (2, True)


def test_forgetting_says_what_was_erased(path: Path) -> None:
    done = good("forget", "a", "b", "--yes", "--db", path)
    assert done.stdout == "forgot 2 sessions: 10 events\n"
    assert good("forget", "a", "--db", path, "--json").document["events"] == 0
    assert [each["data"] for each in envelopes(path, "a")] == [{"forgotten": True}] * 5
    assert "(forgotten)" in good("show", "a", "--db", path).stdout
    assert run("show", "a", "--turn", "t", "--db", path).code in (0, 3)
    missing = run("forget", "open", "none", "--db", path)
    assert (missing.code, missing.stdout) == (3, "")
    assert envelopes(path, "open")[1]["data"] == {"n": 0}
    good("check", "--db", path)


def test_what_was_kept_for_a_forgotten_session_is_named(path: Path) -> None:
    async def keep() -> dict[str, int]:
        async with EventLog(path) as log:
            job = await log.session("open")
            await job.append("job.queued", {"jobId": "j1", "name": "render"})
            return (await log.forget("a")).more

    assert set(asyncio.run(keep())) == set(BESIDE_EVENTS)
    done = good("forget", "open", "--db", path)
    assert done.stdout == "forgot 1 session: 4 events; and what was kept for it: 1 job name\n"


def test_a_pruning_that_frees_nothing_does_not_speak_of_the_file(path: Path) -> None:
    assert good("prune", "--keep-events", 100, "--db", path).stdout == "removed 0 events of 0 sessions and 0 deltas\n"


def test_a_vacuum_packs_the_file(path: Path) -> None:
    filled(path, lambda log: _large_and_gone(log))
    before = path.stat().st_size
    document = good("vacuum", "--db", path, "--json").document
    assert document == {"beforeBytes": before, "afterBytes": path.stat().st_size}
    assert path.stat().st_size < before
    assert good("vacuum", "--db", path).stdout.endswith(" now\n")
    good("check", "--db", path)


async def _large_and_gone(log: EventLog) -> None:
    await log.store.write(lambda c: c.execute("INSERT INTO kv VALUES ('a', 'k', json_quote(hex(zeroblob(500000))))"))
    await log.store.write(lambda c: c.execute("DELETE FROM kv"))


@pytest.mark.parametrize(
    "words", [["backup", "b.db"], ["prune", "--deltas"], ["forget", "s"], ["vacuum"]], ids=lambda words: words[0]
)
def test_a_log_that_is_not_there_is_not_made(tmp_path: Path, words: list[str]) -> None:
    assert run(*words, "--db", tmp_path / "none.db").code == 3
    (tmp_path / "text").write_text("no log at all, but some lines of text that are long enough")
    assert run(*words, "--db", tmp_path / "text").code == 3
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")) == ["text"]


# ------------------------------------------------------------------------------------------------------ on a terminal


def test_on_a_terminal_it_is_asked_first_and_nothing_is_done_without_a_yes(path: Path) -> None:
    before = fingerprint(path)
    assert answered("n", "forget", "a", "--db", path) == (1, True)
    assert answered("n", "prune", "--older-than", "0s", "--db", path) == (1, True)
    assert fingerprint(path) == before
    assert answered("y", "forget", "a", "--db", path) == (0, True)
    assert answered("", "prune", "--deltas", "--yes", "--db", path) == (0, False)


@pytest.mark.parametrize("words", [["forget", "a"], ["prune", "--older-than", "0s"]], ids=["forget", "prune"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_question_at_once(path: Path, words: list[str], number: signal.Signals) -> None:
    before = fingerprint(path)
    assert questioned(lambda child, _: child.send_signal(number), *words, "--db", path)[0] == 130
    assert fingerprint(path) == before


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (b"\x03", 130, ""),
        (b"\x04", 1, "nothing was removed"),
        (b"\n", 1, "nothing was removed"),
        (b"no\n", 1, "nothing was removed"),
    ],
    ids=["ctrl-c", "ctrl-d", "enter", "no"],
)
def test_what_is_no_yes_removes_nothing(path: Path, typed: bytes, code: int, said: str) -> None:
    before = fingerprint(path)
    ended, written = questioned(lambda _, ours: os.write(ours, typed), "forget", "a", "--db", path)
    assert (ended, said in written, "unexpected" in written) == (code, True, False)
    assert fingerprint(path) == before


# So that the terminal's Ctrl-C is a signal to the command.
_ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def questioned(act: Callable[[subprocess.Popen[bytes], int], object], *words: object) -> tuple[int, str]:
    """The exit code of a command on a terminal of its own, to which something is done once it has asked."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, *command(*words)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm"),
        start_new_session=True,
    )
    os.close(theirs)
    written, acted = b"", False
    while chunk := _read(ours):
        written += chunk
        if not acted and b"[y/N]" in written:
            acted = True
            act(child, ours)
    os.close(ours)
    return child.wait(PATIENCE_S), written.decode()


def answered(answer: str, *words: object) -> tuple[int, bool]:
    """The exit code of a command on a terminal, and whether it asked."""
    code, written = questioned(lambda _, ours: os.write(ours, f"{answer}\n".encode()), *words)
    return code, "gone for good" in written


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


def test_progress_is_drawn_on_a_terminal(path: Path, tmp_path: Path) -> None:
    assert "backing up" in on_terminal(80, "backup", tmp_path / "b.db", "--db", path)


# ------------------------------------------------------------------------------------------------- on a living server


async def in_a_process(*words: object, cwd: Path | None = None) -> tuple[int, Any]:
    """A command in a process of its own, while this one owns the log: its exit code and its JSON."""
    child = await asyncio.create_subprocess_exec(
        *command(*words, "--json"), env=environment(), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stdout, _ = await child.communicate()
    return child.returncode or 0, json.loads(stdout) if stdout else None


async def test_the_owner_of_a_log_does_it_for_others(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await some(log)
        code, made = await in_a_process("backup", "b.db", "--db", log.path, cwd=tmp_path)
        assert (code, made["path"], made["events"]) == (0, str(tmp_path / "b.db"), 38)
        code, preview = await in_a_process("prune", "--keep-events", 33, "--deltas", "--dry-run", "--db", log.path)
        assert (code, preview["sessions"], preview["deltas"]) == (0, 1, 20)  # each rule for itself
        code, pruned = await in_a_process("prune", "--keep-events", 33, "--deltas", "--db", log.path)
        assert (code, pruned["sessions"], pruned["deltas"]) == (0, 0, 20)
        code, pruned = await in_a_process("prune", "--keep-events", 14, "--db", log.path)
        assert (code, pruned["sessions"], pruned["events"]) == (0, 1, 5)
        code, forgot = await in_a_process("forget", "b", "--db", log.path)
        assert (code, forgot["events"]) == (0, 5)
        assert (await in_a_process("forget", "none", "--db", log.path))[0] == 3
        assert (await in_a_process("backup", tmp_path / "b.db", "--db", log.path))[0] == 5
        assert (await in_a_process("vacuum", "--db", log.path))[0] == 5, "it needs the log at rest"
        await whole(log)


async def test_an_owner_is_asked_by_name_and_its_errors_are_raised(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await some(log)
        seen: list[tuple[int, int]] = []
        made = await control.back_up(log.path, tmp_path / "b.db", lambda done, total: seen.append((done, total)))
        assert made.events == 38
        with pytest.raises(FileExistsError):
            await control.back_up(log.path, tmp_path / "b.db")
        with pytest.raises(SessionNotFound):
            await control.forget(log.path, ["none"])
        assert (await control.prune(log.path, older_than_s=0.0)).sessions == 2


async def test_whoever_is_cancelled_takes_what_it_asked_for_along(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("eventlog.store.backup.STEP_PAGES", 1)
    monkeypatch.setattr("eventlog.errands.LOOK_S", 0.0)
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 100, text="x" * 100_000)

        def cancel(_done: int, _total: int) -> None:
            asking.cancel()

        asking = asyncio.ensure_future(control.back_up(log.path, tmp_path / "b.db", cancel))
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [file.name for file in tmp_path.iterdir() if "b.db" in file.name] == []
        assert (await log.stats())["checkpointsSuspended"] is False


async def test_errands_are_bounded_and_end_with_the_log(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("eventlog.store.backup.STEP_PAGES", 1)
    async with EventLog(tmp_path / "agent.db") as log:
        for n in range(KEPT + 3):
            with pytest.raises(SessionNotFound):
                await control.forget(log.path, [f"none{n}"])
        with pytest.raises(InvalidRequest, match="no errand 1"):
            await control.ask(log.path, "errand", errand=1)
        with pytest.raises(SessionNotFound):
            await control.ask(log.path, "errand", errand=KEPT + 3)
        await fill(await log.start_session("s"), 100, text="x" * 100_000)
        for n in range(MAX_RUNNING):
            await control.ask(log.path, "backup", path=str(tmp_path / f"b{n}.db"))
        with pytest.raises(LimitExceeded):
            await control.ask(log.path, "backup", path=str(tmp_path / "one-too-many.db"))
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith("agent.db")] == []
