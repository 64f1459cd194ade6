"""The session index absorbs the log in steps: no reader sees a difference, and a kill between two costs nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import StorageFull
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.store.index import SessionIndex
from tests.log_kit import all_of, crash_copy, indexes, whole

SESSIONS = [f"s{n}" for n in range(12)]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


class Absorber:
    """Drives an index of its own step by step, with steps so small that a slice has many."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.index = SessionIndex(log.store.events, slice_rows=1, step_rows=16)

    async def step(self) -> bool:
        """Do one step; whether another one is due."""
        await self.log.store.with_writer(lambda connection, _: self.index.step(connection))
        return self.index.due


async def grow(log: EventLog, random: Random, count: int) -> dict[str, list[Event[Any]]]:
    """Append to all sessions, picked by a seed; what was returned, by session."""
    added: dict[str, list[Event[Any]]] = {id: [] for id in SESSIONS}
    for n in range(count):
        id = random.choice(SESSIONS)
        added[id].append(await log.append(id, f"own.{'ab'[n % 2]}", {"n": n}))
    return added


async def begin(log: EventLog, random: Random, count: int) -> dict[str, list[Event[Any]]]:
    for id in SESSIONS:
        await log.start_session(id)
    return await grow(log, random, count)


def join(first: dict[str, list[Event[Any]]], then: dict[str, list[Event[Any]]]) -> dict[str, list[Event[Any]]]:
    return {id: first[id] + then[id] for id in SESSIONS}


async def assert_reads(log: EventLog, expected: dict[str, list[Event[Any]]], random: Random) -> None:
    """Every session reads as it was appended, both ways, by type, and between any two indexes."""
    for id, events in expected.items():
        session = await log.session(id)
        assert session.next_index == len(events) + 1
        assert await all_of(session.read(after=0)) == events
        assert await all_of(session.read(after=0, reverse=True)) == events[::-1]
        assert await all_of(session.read(types=["own.a"])) == [event for event in events if event.type == "own.a"]
        after = random.randrange(len(events) + 1)
        before = random.randrange(len(events) + 2)
        part = [event for event in events if after < event.index < before]
        assert await all_of(session.read(after=after, before=before)) == part
        assert await all_of(session.read(after=after, before=before, reverse=True, limit=3)) == part[::-1][:3]


async def test_reads_are_equal_at_every_step(log: EventLog) -> None:
    """Of the owner and of another process, also when appends come between the steps."""
    random = Random(7)
    expected = await begin(log, random, 150)
    absorber, steps = Absorber(log), 0
    async with EventLog(log.path, read_only=True) as reader:
        for _ in range(2):
            more = True
            while more and steps < 60:
                more = await absorber.step()
                steps += 1
                if steps % 2 and steps < 30:
                    expected = join(expected, await grow(log, random, 3))
                for opened in (log, reader):
                    await assert_reads(opened, expected, random)
    assert steps > 25
    assert (await log.stats())["notInSessionIndex"] == 0
    await whole(log)


async def test_a_kill_at_any_step_costs_nothing(log: EventLog, tmp_path: Path) -> None:
    """Reopened from the files as they were: same reads, right next indexes, clean, and the index goes on."""
    random = Random(7)
    expected = await begin(log, random, 150)
    absorber = Absorber(log)
    for step in range(8):
        copy = crash_copy(log.path, tmp_path / f"killed{step}")
        async with EventLog(copy, read_only=True) as reader:
            await assert_reads(reader, expected, random)
        async with EventLog(copy, slice_rows=64 if step % 2 else 100_000) as again:
            await assert_reads(again, expected, random)
            longer = join(expected, await grow(again, random, 70))
            await assert_reads(again, longer, random)
            await whole(again)
        async with EventLog(copy) as again:
            await assert_reads(again, longer, random)
            assert (await again.stats())["notInSessionIndex"] == 0
            await whole(again)
        await absorber.step()


async def test_slices_are_absorbed_while_events_come(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", slice_rows=200) as log:
        session = await log.start_session("s")
        for _ in range(20):
            await asyncio.gather(*[session.append("own.type", {}) for _ in range(100)])
        left = (await log.stats())["notInSessionIndex"]
        assert left < 600
        assert len(session_tail(log)) <= left
        assert indexes(await all_of(session.read())) == list(range(2_001))
        await whole(log)
    async with EventLog(tmp_path / "agent.db") as log:
        assert (await log.stats())["notInSessionIndex"] == 0


def session_tail(log: EventLog) -> list[tuple[int, int]]:
    return log.store.events.heads["s"].tail_copy()


async def test_a_step_that_fails_is_made_again(tmp_path: Path) -> None:
    """The disk is full in the middle of a slice: later the whole slice is absorbed, nothing of it is passed over."""
    async with EventLog(tmp_path / "agent.db", slice_rows=100_000) as log:
        session = await log.start_session("s")
        for _ in range(12):
            await session.append_many([NewEvent("own.type", {"n": n}) for n in range(1_000)])
        pages = await log.store.write(pragma, "page_count")
        await log.store.write(pragma, f"max_page_count = {pages + 20}")
        with pytest.raises(StorageFull):
            await log.store.absorb()
        await log.store.write(pragma, "max_page_count = 1000000")
        for _ in range(20):
            await session.append("own.type", {})
        assert indexes(await all_of(session.read())) == list(range(12_021))
        await whole(log)


def pragma(connection: sqlite3.Connection, text: str) -> int:
    return int(connection.execute(f"PRAGMA {text}").fetchone()[0])


async def test_sessions_that_are_not_in_use_are_let_go_when_they_are_absorbed(log: EventLog) -> None:
    """Memory holds what is in use or not absorbed, and not every session that there ever was."""
    for n in range(50):
        await log.start_session(f"s{n}")
    kept = await log.session("s7")
    await log.store.absorb()
    assert len(log.store.events.unabsorbed) == 0
    await log.close()
    async with EventLog(log.path) as again:
        assert len(again.store.events.heads) == 0
        assert (await again.append(kept.id, "own.type", {})).index == 1
        assert list(again.store.events.heads) == ["s7"]


# ------------------------------------------------------------------------------------------------------- query plans


async def plans_of(
    log: EventLog, run: Callable[[], Awaitable[object]], on: str = "read"
) -> list[tuple[str, list[str]]]:
    """The statements that `run` makes the reader or the writer execute, each with SQLite's plan for it."""
    statements: list[str] = []
    unit = log.store.read if on == "read" else log.store.write

    def listen(connection: sqlite3.Connection, listener: Callable[[str], object] | None) -> None:
        connection.set_trace_callback(listener)

    def explain(connection: sqlite3.Connection) -> list[tuple[str, list[str]]]:
        return [(text, [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]) for text in selects]

    await unit(listen, statements.append)
    await run()
    await unit(listen, None)
    selects = [text for text in statements if "FROM log" in text or "FROM session_index" in text or "JOIN log" in text]
    return await log.store.read(explain)


@pytest.fixture
async def filled(log: EventLog) -> EventLog:
    await begin(log, Random(7), 200)
    await log.store.absorb()
    await grow(log, Random(8), 50)
    await log.append("s1", "own.a", {}, key="k")
    return log


async def test_a_page_of_a_session_is_found_by_its_index(filled: EventLog) -> None:
    session = await filled.session("s1")
    for options in ({}, {"after": 3, "before": 9}, {"reverse": True}, {"types": ["own.a"]}):
        plans = await plans_of(filled, lambda options=options: all_of(session.read(**options)))  # type: ignore[misc]
        by_index = [plan for text, plan in plans if "session_index" in text]
        by_position = [plan for text, plan in plans if "session_index" not in text]
        assert [len(by_index), len(by_position)] == [1, 0 if "before" in options else 1]
        for line, *rest in by_index:
            assert line.startswith("SEARCH i USING PRIMARY KEY (session=? AND idx>? AND idx<?)"), line
            assert rest == ["SEARCH l USING INTEGER PRIMARY KEY (rowid=?)"]
        for plan in by_position:
            assert plan == ["SEARCH l USING INTEGER PRIMARY KEY (rowid=?)"]


async def test_another_process_scans_only_what_is_not_absorbed(filled: EventLog) -> None:
    async with EventLog(filled.path, read_only=True) as reader:
        session = await reader.session("s1")
        plans = await plans_of(reader, lambda: all_of(session.read()))
    (_, by_index), (_, rest) = plans
    assert by_index[0].startswith("SEARCH i USING PRIMARY KEY (session=? AND idx>? AND idx<?)")
    assert rest[0] == "SEARCH l USING INTEGER PRIMARY KEY (rowid>?)"


async def test_a_key_is_found_by_its_index(filled: EventLog) -> None:
    session = await filled.session("s1")
    plans = await plans_of(filled, lambda: session.append("own.a", {}, key="k"), on="write")
    ((_, plan),) = plans
    assert "SEARCH l USING INDEX log_by_key (session=? AND key=?)" in plan
    assert not any("SCAN l" in line for line in plan)


async def test_a_page_of_the_log_is_a_range_of_positions(filled: EventLog) -> None:
    for options in ({}, {"after": 50, "before": 90}, {"reverse": True}, {"types": ["own.a"]}):
        plans = await plans_of(filled, lambda options=options: all_of(filled.read(**options)))  # type: ignore[misc]
        for _, plan in plans:
            assert plan == ["SEARCH l USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]


async def test_a_session_is_loaded_without_a_look_through_the_log(filled: EventLog) -> None:
    await filled.close()
    async with EventLog(filled.path) as log:
        plans = await plans_of(log, lambda: log.session("s3"))
        assert plans
        for text, plan in plans:
            assert not any(line.startswith("SCAN") for line in plan), (text, plan)
