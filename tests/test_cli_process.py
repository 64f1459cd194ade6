"""The command line as a process: pipes, signals, other processes beside it, and what it leaves alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.store.owner import owner_of
from tests.cli_kit import (
    PATIENCE_S,
    conversation,
    envelopes,
    filled,
    fingerprint,
    good,
    run,
    shell,
    start,
)

ENDS_WITHIN_S = 2.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", conversation)


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """More than a pipe holds."""

    async def fill(log: EventLog) -> None:
        session = await log.start_session("s1")
        for number in range(300):
            await session.append("message.received", {"text": f"{number} {'x' * 1_000}"}, turn_id="t1")

    return filled(tmp_path / "long.db", fill)


def ended(child: subprocess.Popen[bytes]) -> tuple[int, str]:
    """How it ended, and what it complained of."""
    _, complaint = child.communicate(timeout=PATIENCE_S)
    return child.returncode, complaint.decode()


# --------------------------------------------------------------------------------------------------- readers that leave

PIPED = [
    "sessions",
    "sessions --json",
    "show s1",
    "show s1 --jsonl",
    "show s1 --turn",
    "tail",
    "tail --follow",
    "tail --follow --jsonl",
    "export",
    "stats",
    "check",
]


@pytest.mark.parametrize("words", PIPED)
def test_j1_a_closed_pipe_ends_quietly(long_log: Path, words: str) -> None:
    done = shell(f"eventlog {words} --db {long_log} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}")
    assert (done.code, done.stderr) == (0, "")


def test_j1_a_follower_ends_with_its_reader_when_no_more_events_come(log: Path) -> None:
    done = shell(f"eventlog tail --follow -n 1 --db {log} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.code, len(done.lines), done.stderr) == (0, 1, "")


@pytest.mark.parametrize("words", ["--help", "show --help", "policy", "--version"])
def test_j1_help_into_a_closed_pipe_ends_quietly(words: str) -> None:
    done = shell(f"eventlog {words} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["sessions", "tail", "tail --follow", "export", "check", "append s1 acme.note"])
def test_j1_stdout_that_was_never_open_is_no_error(log: Path, words: str) -> None:
    done = shell(f"eventlog {words} --db {log} >&-")
    assert (done.code, done.stderr) == (0, "")
    assert run("check", "--db", log).code == 0


def test_what_was_to_be_done_is_done_though_nobody_can_be_told(log: Path) -> None:
    assert shell(f"eventlog append s1 acme.note --db {log} <&- >&- 2>&-").code == 0
    assert envelopes(log)[-1]["type"] == "acme.note"
    assert shell(f"eventlog append s2 acme.note --db {log} <&- >&- 2>&-").code == 3
    assert run("check", "--db", log).code == 0


def test_the_code_of_an_error_is_kept_when_nobody_reads_the_error(log: Path) -> None:
    done = shell(f"eventlog show s2 --db {log} 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}")
    assert (done.code, done.stderr) == (3, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_output_is_told(log: Path) -> None:
    done = shell(f"eventlog export --db {log} >/dev/full")
    assert done == (
        5,
        "",
        "eventlog: the output cannot be written: No space left on device; make room, or write it elsewhere\n",
    )


# ------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_follower_in_order(log: Path, number: signal.Signals) -> None:
    child = start("tail", "--follow", "-n", 1, "--db", log, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()  # it is up, and waits
    sent_s = time.monotonic()
    child.send_signal(number)
    assert ended(child) == (130, "")
    assert time.monotonic() - sent_s < ENDS_WITHIN_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "words", [["tail", "--follow", "--after", "0", "--jsonl"], ["show", "s1"], ["export"]], ids=" ".join
)
def test_a_signal_ends_what_waits_for_a_reader_that_does_not_read(
    long_log: Path, words: list[str], number: signal.Signals
) -> None:
    reader, writer = os.pipe()
    child = start(*words, "--db", long_log, stdout=writer)
    os.close(writer)
    wait_until_full(reader, child)
    sent_s = time.monotonic()
    child.send_signal(number)
    assert ended(child) == (130, "")
    assert time.monotonic() - sent_s < ENDS_WITHIN_S
    os.close(reader)


def until_it_reads(child: subprocess.Popen[bytes]) -> None:
    """Return when it waits in read(0, ...)."""
    until_s = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{child.pid}/syscall").read_text().split()[:2] != ["0", "0x0"]:
        assert child.poll() is None
        assert time.monotonic() < until_s


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="only Linux tells what a process waits for")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("words", ["import -", "import - --live", "append s1 own.type -"])
def test_a_signal_ends_what_waits_for_its_input(log: Path, words: str, number: signal.Signals) -> None:
    child = start(*words.split(), "--db", log, stdin=subprocess.PIPE)
    until_it_reads(child)
    child.send_signal(number)
    assert child.wait(PATIENCE_S) == 130
    assert "Traceback" not in ended(child)[1]
    assert good("check", "--db", log)


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="only Linux tells what a process waits for")
def test_an_import_waits_for_the_first_line_before_it_owns_the_log(log: Path) -> None:
    line = b'{"type":"session.started","index":0,"sessionId":"piped","at":"2026-01-01T00:00:00Z","data":%s}\n'
    child = start("import", "-", "--db", log, stdin=subprocess.PIPE)
    until_it_reads(child)
    assert owner_of(log) is None
    data = b'{"channelId":"cli","mode":"chat","purpose":"live","projectId":"p"}'
    stdout, _ = child.communicate(line % data, timeout=PATIENCE_S)
    assert (child.returncode, stdout) == (0, b"added 1 event in 1 session\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_an_import_of_a_line_without_an_end(tmp_path: Path, number: signal.Signals) -> None:
    child = start("import", "/dev/zero", "--db", tmp_path / "new.db")
    until_s = time.monotonic() + PATIENCE_S
    while not (tmp_path / "new.db").exists():
        assert time.monotonic() < until_s
    child.send_signal(number)
    assert ended(child)[0] == 130


def wait_until_full(reader: int, child: subprocess.Popen[bytes]) -> None:
    """Until there is about as much in a pipe as one holds, so that its writer waits in a write, or will."""
    deadline_s = time.monotonic() + PATIENCE_S
    waiting = bytearray(4)
    while int.from_bytes(waiting, sys.byteorder) < 50_000:
        assert child.poll() is None
        assert time.monotonic() < deadline_s
        os.sched_yield()
        fcntl.ioctl(reader, termios.FIONREAD, waiting)


# ----------------------------------------------------------------------------------------- beside a process that writes

OWNER = """
import asyncio, sys
from eventlog import EventLog

async def main():
    async with EventLog(sys.argv[1]) as log:
        session = await log.session("s1")
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            event = await session.append("message.received", {"text": line.strip()}, turn_id="t3")
            print(event.index, flush=True)

asyncio.run(main())
"""


class Owner:
    """A process that owns the log, and appends what it is told to."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            text=True,
            bufsize=1,
        )
        assert self._told() == "ready"

    def append(self, text: str) -> int:
        """Let it append; the index of the event, when it is committed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        return int(self._told())

    def _told(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def owner(log: Path) -> Iterator[Owner]:
    made = Owner(log)
    yield made
    made.process.communicate(timeout=PATIENCE_S)


def test_a_follower_sees_what_another_process_records(log: Path, owner: Owner) -> None:
    words: list[tuple[object, ...]] = [("tail", "s1", "-f", "-n", 1, "--jsonl"), ("tail", "-f", "-n", 1, "--jsonl")]
    children = [start(*each, "--db", log, stdout=subprocess.PIPE) for each in words]
    for child in children:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["index"] == 19
    indexes = [owner.append(f"message {number}") for number in range(3)]
    for child in children:
        assert child.stdout is not None
        seen: list[dict[str, Any]] = [json.loads(child.stdout.readline()) for _ in indexes]
        assert [each["index"] for each in seen] == indexes == [20, 21, 22]
        assert seen[2]["data"] == {"text": "message 2"}
        child.terminate()
        assert ended(child) == (130, "")


def test_what_needs_the_log_at_rest_says_who_has_it_and_what_to_do(log: Path, owner: Owner) -> None:
    before = owner.append("one")
    done = run("import", __file__, "--db", log)
    told = (
        f"eventlog: {log} is in use by process {owner.process.pid}; do this in that process, or stop it and try again\n"
    )
    assert done == (5, "", told)
    assert owner.append("two") == before + 1


def test_everything_can_be_looked_at_while_another_process_owns_the_log(log: Path, owner: Owner) -> None:
    owner.append("one")
    assert good("stats", "--db", log, "--json").document["ownerPid"] == owner.process.pid
    assert len(good("show", "s1", "--db", log, "--jsonl").objects) == 21
    for words in (["sessions"], ["tail"], ["hooks"], ["logs"], ["extensions"], ["deliveries"], ["dead"], ["check"]):
        good(*words, "--db", log)


def test_a_reader_that_stalls_holds_up_no_commit(long_log: Path) -> None:
    reader, writer = os.pipe()
    owner = Owner(long_log)
    child = start("export", "--db", long_log, stdout=writer)
    os.close(writer)
    wait_until_full(reader, child)
    begun_s = time.monotonic()
    assert owner.append("one") == 301
    assert time.monotonic() - begun_s < 1.0
    os.close(reader)
    assert ended(child) == (0, "")
    owner.process.communicate(timeout=PATIENCE_S)


# --------------------------------------------------------------------------------------------------- what is left alone

READING = [
    ["sessions"],
    ["show", "s1"],
    ["show", "s1", "--turn"],
    ["tail"],
    ["hooks"],
    ["logs"],
    ["extensions"],
    ["deliveries"],
    ["dead"],
    ["export"],
    ["stats"],
    ["check"],
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_looking_changes_neither_the_bytes_nor_the_time_of_the_log(log: Path, words: list[str]) -> None:
    before = fingerprint(log)
    good(*words, "--db", log)
    assert fingerprint(log) == before


def test_an_export_needs_no_more_memory_for_a_longer_log(tmp_path: Path) -> None:
    def peak_bytes(events: int) -> int:
        async def fill(log: EventLog) -> None:
            session = await log.start_session("s1")
            texts = [f"{number} {'x' * 4_000}" for number in range(events)]
            await asyncio.gather(*[session.append("acme.note", {"text": text}) for text in texts])

        path = filled(tmp_path / f"{events}.db", fill)
        tracemalloc.start()
        good("export", "--db", path, "--output", tmp_path / f"{events}.jsonl")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    short, long = peak_bytes(1_000), peak_bytes(5_000)
    assert (tmp_path / "5000.jsonl").stat().st_size > 20_000_000
    assert long - short < 2_000_000
