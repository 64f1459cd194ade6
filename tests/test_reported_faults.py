"""Faults that people reported of systems like this one: each has a test that names it, by the letter of its kind.

A test names one in its name (``test_h8_one_bad_entry_...``) or in its docstring (``H8``), as it does with requirements.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import StorageFull
from eventlog.events import Event, NewEvent
from eventlog.host.files import SessionFiles
from eventlog.log import EventLog
from eventlog.testing import ManualClock
from tests.cli_kit import start
from tests.log_kit import FORK_FOR_EACH_LINE, all_of, child, fill, first_of, line_of, tell_child, whole
from tests.observing import hook_of, served, shown
from tests.torture.counts import Counts

REPORTED = {
    "A1": "two writers take the same index",
    "A2": "order decided by a timestamp that ties",
    "B1": "a failed append leaves the write lock held",
    "B3": "one coroutine commits or breaks another's transaction",
    "C1": "the process never exits",
    "C4": "two servers on one database",
    "D3": "one bad record silently cuts the history",
    "D4": "acknowledged events missing after a crash",
    "E1": "NaN and infinity silently become null",
    "E3": "big integers change or are refused",
    "E6": "a line separator inside of a text breaks a line",
    "F1": "loss or duplicate at the hand-over from history to live",
    "F3": "abandoned or slow tails leak",
    "F5": "subscribers told before the commit",
    "G1": "a raising hook silences the others or kills the loop",
    "G3": "slow hooks: order lost, append stalled",
    "H1": "an event that kills the process is retried for ever",
    "H2": "work lost because it was taken off before it was done",
    "H4": "a later event overtakes a failing earlier one",
    "H7": "retention or the cap deletes what was not delivered",
    "H8": "one bad entry aborts the whole recovery",
    "H10": "a new hook replays all history, or a known one restarts",
    "I1": "keys that leave the store",
    "I3": "an overwrite leaves an empty or torn file",
    "J1": "a closed pipe gives a traceback",
    "J3": "a mistyped path creates an empty database",
}


def test_every_reported_fault_is_named_by_a_test() -> None:
    named: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = f"{node.name.upper().replace('_', ' ')} {ast.get_docstring(node) or ''}"
                named.update(re.findall(r"\b[A-J]\d{1,2}\b", words))
    assert set(REPORTED) - named == set()


async def test_a2_one_moment_for_all_events_gives_append_order_to_every_reader(tmp_path: Path) -> None:
    """A2: the clock stands still, then steps back; reading, tails, hooks and the CLI agree, also after a restart."""
    clock, seen, expected, path = ManualClock(), list[int](), list(range(101)), tmp_path / "agent.db"

    async def look(event: Event[Any], _context: Any) -> None:
        if event.type == "test.noted":
            seen.append(event.data["n"])

    async with served(path, {"look": hook_of({"*": look})}, clock=clock) as (log, dispatcher):
        session = await log.start_session("s")
        await fill(session, 50)
        await session.append_many([NewEvent("test.noted", {"n": n}) for n in range(50, 100)])
        clock.step(-3600)
        await session.append("test.noted", {"n": 100})
        await shown(dispatcher)
        await assert_every_reader_gives(log, expected)
    assert seen == expected
    async with EventLog(path, clock=clock) as log:
        await assert_every_reader_gives(log, expected)


async def assert_every_reader_gives(log: EventLog, expected: list[int]) -> None:
    session = await log.session("s")
    for events in (session.read(after=0), log.read(after=1)):
        assert [event.data["n"] async for event in events] == expected
    for tail in (session.tail(after=0), log.tail(after=1)):
        assert [event.data["n"] for event in await first_of(tail, len(expected))] == expected
    exported, _ = await asyncio.to_thread(start("export", "--db", log.path, "--session", "s").communicate)
    assert [json.loads(line)["data"]["n"] for line in exported.splitlines()[1:]] == expected


OVERWRITER = """
from eventlog.host.files import SessionFiles

async def main():
    async with EventLog(path) as log:
        files = SessionFiles(log.store, "agent", "s")
        for number in range(1_000_000):
            await files.write("a", bytes([number % 256]) * 1_048_576)
            os.write(1, b"written\\n")
"""


def killed_while_it_overwrites(overwriters: subprocess.Popen[str], random: Random) -> None:
    """One process replaces a file again and again; it is killed between two of them or inside of one."""
    tell_child(overwriters)
    pid = int(line_of(overwriters))
    for _ in range(random.randrange(1, 4)):
        assert line_of(overwriters) == "written"
    for _ in range(random.randrange(20_000)):  # so long it goes on: some of a millisecond, which the seed picks
        pass
    os.kill(pid, signal.SIGKILL)
    while line_of(overwriters) != "killed":
        pass


@pytest.mark.faults
def test_i3_kills_while_a_file_is_replaced_leave_it_whole_and_nothing_beside_it(tmp_path: Path, counts: Counts) -> None:
    """I3: the old megabyte or the new one, with its size; no file of any other name in the folder."""
    path, random = tmp_path / "agent.db", Random(3)
    with child(OVERWRITER + FORK_FOR_EACH_LINE, path) as overwriters:
        assert line_of(overwriters) == "ready"
        for _ in range(counts.file_kills):
            killed_while_it_overwrites(overwriters, random)
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            ((content,),) = connection.execute("SELECT content FROM file").fetchall()
            connection.close()
            assert (len(content), len(set(content))) == (1_048_576, 1)
    print(f"\n{counts.file_kills} kills while a file is replaced, seed 3: all held")
    asyncio.run(reopened_whole(path))
    assert {file.name for file in tmp_path.iterdir()} <= {"agent.db", "agent.db.head", "agent.db.lock"}


async def reopened_whole(path: Path) -> None:
    async with EventLog(path) as log:
        await whole(log)
        assert await SessionFiles(log.store, "agent", "s").list() == ["a"]


async def test_i3_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    """I3: neither a replacement nor a new file that finds no room leaves anything behind."""
    async with EventLog(tmp_path / "agent.db") as log:
        files = SessionFiles(log.store, "agent", "s")
        await files.write("a", b"1" * 1_048_576)
        pages = await log.store.with_writer(lambda connection, _: connection.execute("PRAGMA page_count").fetchone()[0])
        await log.store.with_writer(lambda connection, _: connection.execute(f"PRAGMA max_page_count = {pages}"))
        for name in ("a", "b"):
            with pytest.raises(StorageFull):
                await files.write(name, b"2" * 2_097_152)
        assert await files.list() == ["a"]
        assert await files.read_bytes("a") == b"1" * 1_048_576
        assert len(await all_of(log.read())) == 0
        await whole(log)
