"""Damage beside the log: what is kept as JSON, or as a number in a text, and cannot be read any more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.errors import DamagedFile
from eventlog.folding import FoldLimits
from eventlog.host.kv import Kv
from eventlog.projections import Projection, Projector
from eventlog.store.checking import JSON_COLUMNS
from tests.cli_kit import run
from tests.folding_kit import count_types, turn
from tests.log_kit import CHECKOUT, all_of, rewriting

EVERY_EVENT = FoldLimits(snapshot_every_events=1)
NOTHING: dict[str, int] = {}


async def a_log(folder: Path) -> Path:
    """A log with something in each table that holds JSON."""
    async with EventLog(folder / "agent.db", fold_limits=EVERY_EVENT) as log:
        session = await log.start_session("s", auth={"user": 1}, abs={"a": 1})
        await session.append("turn.completed", turn(inputTokens=1), turn_id="t")
        await session.fold(count_types, NOTHING)
        await Kv(log.store, "main").put("k", {"a": 1})
        await log.usage()
        projector = Projector(log, [Projection(name="own", events=["*"], fold=count_types, initial={})])
        await projector.start()
        await projector.catch_up()
        await projector.stop()
    return folder / "agent.db"


def damage(path: Path, table: str, column: str, value: str = "{x") -> None:
    """Change one behind everybody's back."""
    with rewriting(path, "session_is_a_fact_update") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))  # noqa: S608 (our own text)


Read = Callable[[EventLog], Awaitable[Any]]

READS: dict[str, tuple[tuple[str, ...], Read]] = {
    "a session's auth": (("session", "auth"), lambda log: log.session("s")),
    "a session in a list": (("session", "abs"), lambda log: all_of(log.sessions())),
    "a value of a handler": (("kv", "value"), lambda log: Kv(log.store, "main").get("k")),
    "a projection's state": (("projection", "state"), lambda log: log.projection("own")),
    "a projection's events": (("projection", "events"), lambda log: log.projection("own")),
    "a sum of money": (("usage", "cost_usd", "x"), lambda log: log.usage()),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("read_only", [True, False])
async def test_a_value_that_cannot_be_read_is_named_damage_and_the_log_goes_on(
    tmp_path: Path, name: str, read_only: bool
) -> None:
    path = await a_log(tmp_path)
    where, read = READS[name]
    damage(path, *where)
    async with EventLog(path, read_only=read_only) as log:
        (rows,) = await log.store.read(lambda c: c.execute(f"SELECT count(*) FROM {where[0]}").fetchone())  # noqa: S608
        with pytest.raises(DamagedFile, match="cannot be read"):
            await read(log)
        assert len(await all_of(log.read())) == 2
        if not read_only:
            assert (await (await log.start_session("another")).append("own.type", {})).index == 1
        faults = (await log.check()).faults
    named = f"what is in {where[1]} of {where[0]} is not JSON in {rows} rows"
    assert faults == ([] if where[0] == "usage" else [named]), "a sum is a text to SQLite"


def test_check_looks_at_every_column_that_has_to_be_json() -> None:
    table, found = "", []
    for line in (CHECKOUT / "schema.sql").read_text().splitlines():
        if line.startswith("CREATE TABLE"):
            table = line.split()[2]
        elif re.search(r"CHECK \(.*json_valid\(", line):
            found.append((table, line.split()[0]))
    assert tuple(found) == JSON_COLUMNS


async def test_a_snapshot_that_cannot_be_read_is_passed_and_replaced(tmp_path: Path) -> None:
    """It can be folded again, from the log."""
    path = await a_log(tmp_path)
    damage(path, "snapshot", "state")
    async with EventLog(path, fold_limits=EVERY_EVENT) as log:
        session = await log.session("s")
        state = {"session.started": 1, "turn.completed": 1}
        for _ in range(2):
            assert await session.fold(count_types, NOTHING) == state
        kept = await log.store.read(lambda c: c.execute("SELECT json_valid(state) FROM snapshot").fetchall())
        assert kept == [(1,)]


def test_a_command_that_meets_one_ends_with_4(tmp_path: Path) -> None:
    path = asyncio.run(a_log(tmp_path))
    damage(path, "kv", "value")
    damage(path, "session", "auth")
    for words in (["sessions"], ["kv", "--get", "k"], ["show", "s"]):
        done = run(*words, "--db", path)
        assert (done.code, "cannot be read" in done.stderr) == (4, True), (words, done)
