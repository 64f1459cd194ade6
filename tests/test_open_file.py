"""The file as other programs see it: what the guide shows is what they print, and they change nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.testing import ManualClock
from tests.cli_kit import fingerprint
from tests.log_kit import CHECKOUT, whole
from tests.test_docs import blocks

GUIDE = "docs/open-file.md"

VIEWS = {
    line.split("|")[1].strip(" `"): line.split("|")[3].strip(" `").split(", ")
    for line in (CHECKOUT / GUIDE).read_text().splitlines()
    if line.startswith("| `")
}
"""The columns of each view, as the guide has them."""


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """The log of the guide."""
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s1", agent="guide", channel="cli", title="Tides")
        clock.advance(0.25)
        await session.append("message.received", {"text": "Is it high tide?"}, turn_id="t1")
        clock.advance(1)
        usage = {"inputTokens": 12, "outputTokens": 5, "cacheReadTokens": 0, "cacheWriteTokens": 0}
        await session.append("turn.completed", {"result": "At 06:12.", "usage": usage}, turn_id="t1")
    return tmp_path / "agent.db"


def shown() -> list[tuple[str, str]]:
    """Each command of the guide, and what it prints there."""
    console = "".join(blocks(GUIDE, "console"))
    return [(line, printed) for line, _, printed in (part.partition("\n") for part in console.split("$ ")[1:])]


@pytest.mark.parametrize(("line", "printed"), shown(), ids=[line for line, _ in shown()])
async def test_other_programs_print_what_the_guide_shows(path: Path, line: str, printed: str) -> None:
    program = line.split()[0]
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    if shutil.which(program, path=search) is None:
        pytest.skip(f"{program} is not installed")
    before = fingerprint(path)
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=path.parent,
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.replace("\r\n", "\n") == printed
    assert fingerprint(path) == before
    async with EventLog(path) as log:
        await whole(log)


def test_the_python_of_the_guide_runs(path: Path) -> None:
    (code,) = blocks(GUIDE, "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("s1 3\n", "")


def test_the_views_have_the_columns_that_the_guide_promises(path: Path) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]
        there = {name: [column[1] for column in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    assert {name: there.get(name) for name in VIEWS} == VIEWS
    assert {"events", "sessions", "turns", "jobs", "deliveries", "dead_letters", "hooks", "projections"} == set(VIEWS)


async def test_the_views_are_read_while_the_server_writes_and_hold_nothing_up(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", slice_rows=16) as log:
        session = await log.start_session("s1")
        with closing(sqlite3.connect(f"file:{log.path}?mode=ro", uri=True, isolation_level=None)) as connection:
            for number in range(50):
                await session.append("test.noted", {"number": number})
                (row,) = connection.execute("SELECT idx, data FROM events ORDER BY position DESC LIMIT 1").fetchall()
                assert row == (number + 1, f'{{"number":{number}}}')
                assert connection.execute("SELECT next_idx FROM sessions").fetchone() == (number + 2,)


@pytest.mark.parametrize("change", ["UPDATE log SET data = '{}'", "DELETE FROM log", "DELETE FROM events"])
def test_facts_refuse_to_be_changed_by_whoever_tries(path: Path, change: str) -> None:
    before = fingerprint(path)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError):
        connection.execute(change)
    assert fingerprint(path) == before
