"""Usage: what turns used, summed up from the log, and right at every read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog import Event, EventLog, Projection, Runtime, Usage
from eventlog.errors import InvalidName
from eventlog.folding import FoldLimits
from eventlog.projections import rebuild
from eventlog.store import usage
from eventlog.store.projections import page_behind, rows
from eventlog.testing import ManualClock
from tests.folding_kit import (
    COUNTS,
    LIMITS,
    add_up_over_and_over,
    as_sums,
    fill_randomly,
    kill_after,
    plain_sums,
    play_real_data,
    tables,
    turn,
)
from tests.log_kit import all_of, damaging
from tests.real_data import real_data
from tests.torture.counts import Counts

BY: tuple[usage.By, ...] = ("session", "agent", "model", "day")


@pytest.mark.parametrize("by", BY)
async def test_usage_is_what_a_plain_loop_over_the_events_adds_up(tmp_path: Path, by: usage.By) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log:
        await fill_randomly(log, Random(1))
        agents = {info.id: info.agent async for info in log.sessions()}
        assert as_sums(await log.usage(by)) == plain_sums(await all_of(log.read()), by, agents)


async def test_what_no_turn_told_is_none_and_not_0(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s", agent="a")
        await session.append("turn.completed", {}, turn_id="t1")
        assert await log.usage() == [Usage("s", 1, 0, None, None, None, None, None, 0, None)]
        assert await log.usage("model") == [Usage(None, 1, 0, None, None, None, None, None, 0, None)]
        await session.append("turn.completed", turn("m", 0.1, outputTokens=7), turn_id="t2")
        await session.append("turn.completed", turn("m", 0.2), turn_id="t2")
        (row,) = await log.usage("agent")
        assert row == Usage("a", 3, 1, 0, 7, 0, 0, None, 2, 0.3)


async def test_each_version_of_a_turn_counts_because_each_was_paid(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        for _ in range(3):
            await session.append("turn.completed", turn("m", 1.0, inputTokens=5), turn_id="t")
        (row,) = await log.usage()
        assert (row.turns, row.input_tokens, row.cost_usd) == (3, 15, 3.0)


async def test_a_read_is_never_stale_whoever_reads(tmp_path: Path) -> None:
    """The owner folds what is behind; a reader in another process cannot, and adds it to what it reads."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log, EventLog(path, read_only=True) as reader:
        session = await log.start_session("s")
        for turns in range(1, 6):
            await session.append("turn.completed", turn(inputTokens=1), turn_id=f"t{turns}")
            (read,) = await reader.usage()
            assert read.turns == turns
            if turns % 2:
                assert await log.usage() == [read]
        (row,) = await reader.store.read(rows, usage.NAME)
        assert row.cursor == 6  # up to the last read of the owner


async def test_usage_can_be_asked_of_a_project_and_a_purpose(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        for id_, project, purpose in (("a", "p1", "live"), ("b", "p2", "live"), ("c", "p1", "eval")):
            session = await log.start_session(id_, project=project, purpose=purpose)  # type: ignore[arg-type]
            await session.append("turn.completed", {}, turn_id="t")
        for reader in (log, await EventLog(log.path, read_only=True).open()):
            assert [row.key for row in await reader.usage(project="p1")] == ["a", "c"]
            assert [row.key for row in await reader.usage(project="p1", purpose="live")] == ["a"]
        await reader.close()
        with pytest.raises(InvalidName, match="session, agent, model, day"):
            await log.usage("month")  # type: ignore[arg-type]


async def test_days_are_in_utc(tmp_path: Path) -> None:
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s")
        for _ in range(2):
            await session.append("turn.completed", turn(inputTokens=1), turn_id="t")
            clock.advance(86_399)
        assert [(row.key, row.turns) for row in await log.usage("day")] == [("2026-01-01", 2)]
        clock.advance(1)
        await session.append("turn.completed", turn(inputTokens=1), turn_id="t")
        assert [row.key for row in await log.usage("day")] == ["2026-01-01", "2026-01-02"]


async def test_costs_are_added_exactly_in_whatever_pages_they_come(tmp_path: Path) -> None:
    """A sum of floats would depend on the order, and rows that are folded again would not be equal."""
    costs = [0.1, 0.2, 1e16, 0.3, 1e-9, 5e-324, 123.456]
    found = []
    for pages in (1, 2, 100):
        limits = FoldLimits(page_events=pages)
        async with EventLog(tmp_path / f"{pages}.db", fold_limits=limits, clock=ManualClock()) as log:
            session = await log.start_session("s")
            for usd in costs:
                await session.append("turn.completed", turn("m", usd), turn_id="t")
            await log.usage()
            found.append((await tables(log))["usage"])
    assert found[0] == found[1] == found[2]
    assert float(found[0][0][-1]) == 1e16 + 124


async def test_a_turn_that_claims_more_than_can_be_counted_is_passed_with_a_record(tmp_path: Path) -> None:
    """At the limit it counts, one past it does not."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        for tokens in (usage.MAX_TOKENS_PER_TURN, usage.MAX_TOKENS_PER_TURN + 1, 10**30):
            await session.append("turn.completed", turn(inputTokens=tokens), turn_id="t")
        (row,) = await log.usage()
        assert (row.turns, row.input_tokens) == (1, usage.MAX_TOKENS_PER_TURN)
        (found,) = await log.store.read(rows, usage.NAME)
        assert found.passed == 2


@pytest.mark.parametrize("data", ["{", '{"usage": 7}', "not json", '{"cost": {"totalUsd": 1}}'])
async def test_a_corrupt_turn_is_passed_with_a_record_and_the_next_ones_count(tmp_path: Path, data: str) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        for number in range(3):
            await session.append("turn.completed", turn(inputTokens=1), turn_id=f"t{number}")
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = ? WHERE position = 3", (data,))
    async with EventLog(path, read_only=True) as reader:
        assert [row.turns for row in await reader.usage()] == [2]
    async with EventLog(path) as log:
        assert [(row.turns, row.input_tokens) for row in await log.usage()] == [(2, 2)]
        (found,) = await log.store.read(rows, usage.NAME)
        assert (found.cursor, found.passed) == (4, 1)
        before = await tables(log)
        (again,) = await rebuild(log, "usage")
        assert (again.different, again.passed) == (0, 1)
        assert await tables(log) == before


async def test_a_page_that_somebody_else_was_quicker_with_is_not_counted_twice(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        await session.append("turn.completed", turn(inputTokens=1), turn_id="t")
        await log.store.write(usage.prepare)
        (row,) = await log.store.read(rows, usage.NAME)
        page = await log.store.read(page_behind, log.store.reading, row, 10, 10)
        for expected in (True, False):
            assert await log.store.write(usage.commit, page, usage.tally_of(page), 0) is expected
        assert [row.turns for row in await log.usage()] == [1]


async def test_another_version_of_the_fold_takes_its_place_at_the_next_read(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await fill_randomly(log, Random(3), 60)
        expected = await log.usage("model")

        def age(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE projection SET version = 99")
            connection.execute("UPDATE usage SET input_tokens = 1")

        await log.store.write(age)
        assert await log.usage("model") == expected
        (row,) = await log.store.read(rows, usage.NAME)
        assert (row.version, row.serves) == (1, True)


# --------------------------------------------------------------------------------------- what pruning and erasing leave


async def test_what_pruning_takes_is_counted_before_and_stays_through_rebuilds(tmp_path: Path) -> None:
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock, fold_limits=LIMITS) as log:
        await fill_randomly(log, Random(5), 120)
        await log.usage()
        sessions = [await log.session(f"s{number}") for number in range(4)]
        await sessions[0].append("turn.completed", turn("m1", 2.0, inputTokens=10), turn_id="late")  # still behind
        for job in range(9):
            await sessions[0].append("job.completed", {"jobId": f"j{job}", "status": "cancelled"})
        await sessions[0].append("session.completed", {})
        for session in sessions[1:]:
            await session.append("session.waiting", {})
        expected = plain_sums(await all_of(log.read()), "session")
        clock.advance(60)
        assert (await log.prune(older_than_s=30)).sessions == 1
        assert as_sums(await log.usage()) == expected
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0, 0, 0, 0]
        assert await tables(log) == before
        await sessions[0].append("turn.completed", turn("m1", 1.0, inputTokens=1), turn_id="again")
        assert (await log.usage())[0].turns == expected["s0"]["turns"] + 1
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0, 0, 0, 0]
        assert await tables(log) == before


async def test_what_was_folded_from_a_forgotten_session_is_gone_and_stays_gone(tmp_path: Path) -> None:
    """Nothing of it comes back by folding again, and what is left of its events hinders no fold."""
    async with (
        EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log,
        Runtime(log, projections=[COUNTS, TEXTS]) as runtime,
    ):
        await fill_randomly(log, Random(5), 60)
        session = await log.session("s0")
        await session.append("message.received", {"text": "secret"}, turn_id="t1")
        assert (await runtime.projection("texts")).state == ["secret"]
        assert await session.fold(count_s0, 0) == session.next_index
        forgot = await log.forget("s0")
        assert forgot.more["usage"] >= 1
        assert (forgot.more["snapshots"], forgot.more["projectionStates"]) == (1, 2)
        assert (await log.projection("texts")).state == []
        assert [row.key for row in await log.usage()] == ["s1", "s2", "s3"]
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0, 0, 0, 0]
        assert await tables(log) == before
        texts = await runtime.projection("texts")
        assert (texts.state, texts.lag, texts.stuck, texts.passed) == ([], 0, None, 0)
        assert (await runtime.projection("counts")).state["session.started"] == 3
        assert await session.fold(count_s0, 0) == 0
    for file in tmp_path.iterdir():
        assert not file.is_file() or b"secret" not in file.read_bytes()


def texts_of(state: list[str], event: Event[Any]) -> list[str]:
    return [*state, event.data.text]


TEXTS = Projection(name="texts", events=["message.received"], fold=texts_of, initial=[])


def count_s0(state: int, event: object) -> int:
    return state + 1


# ------------------------------------------------------------------------------------------------------- real data


@pytest.mark.faults
async def test_sums_and_cursor_are_one_commit_wherever_a_kill_falls(tmp_path: Path, counts: Counts) -> None:
    db, random = tmp_path / "agent.db", Random(20261130)
    for _ in range(counts.fold_kills):
        later_s = random.uniform(0.0, 0.008)
        assert await kill_after(random.randrange(1, 12), add_up_over_and_over, db, later_s=later_s)
        async with EventLog(db, read_only=True) as log:
            events = [event async for event in log.read(types=["turn.completed"])]
            (row,) = await log.store.read(rows, usage.NAME)
            folded = sum(sums[3] for sums in (await tables(log))["usage"])
            assert folded == sum(event.position <= row.cursor for event in events)
            assert as_sums(await log.usage()) == plain_sums(events, "session")


@pytest.mark.faults
async def test_r97_real_sessions_that_are_killed_anywhere_end_with_exact_sums(tmp_path: Path, counts: Counts) -> None:
    """R97: processes are killed at random events; the last one plays the rest, and all sums are exact, each time."""
    data, db, random = real_data(), tmp_path / "agent.db", Random(20261130)
    for _ in range(counts.fold_kills):
        assert await kill_after(random.randrange(1, 80), play_real_data, db, data)
        async with EventLog(db, read_only=True) as log:
            events = await all_of(log.read())
            for by in BY:
                assert as_sums(await log.usage(by)) == plain_sums(events, by)
            for row in await log.store.read(rows, COUNTS.name):  # its state is of exactly what its cursor says
                state = (await log.projection(COUNTS.name)).state
                assert sum(state.values()) == sum(event.position <= row.cursor for event in events)
    assert not await kill_after(10**9, play_real_data, db, data)
    async with EventLog(db) as log:
        events = await all_of(log.read())
        assert len(events) == len(data.read_text().splitlines())
        for by in BY:
            assert as_sums(await log.usage(by)) == plain_sums(events, by)
        state = await log.projection(COUNTS.name)
        assert (sum(state.state.values()), state.lag) == (len(events), 0)
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0, 0, 0, 0]
        assert await tables(log) == before
