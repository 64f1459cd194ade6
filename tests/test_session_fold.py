"""`session.fold`: the state of a session, from the newest snapshot of the same fold."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from eventlog import Event, EventLog, InvalidEvent, NewEvent, Session
from eventlog.errors import InvalidName
from eventlog.folding import FoldLimits, name_of
from tests.log_kit import all_of, damaging, fill

seen: list[int] = []


def collect(state: list[int], event: Event[Any]) -> list[int]:
    """A reducer that notes what it is called with, and changes the state that it is given."""
    seen.append(event.index)
    state.append(event.index)
    return state


def count(state: int, event: Event[Any]) -> int:
    seen.append(event.index)
    return state + 1


async def calls_of(fold: Any) -> tuple[Any, list[int]]:
    """What a fold came to, and the indexes that its reducer was called with."""
    seen.clear()
    result = await fold
    return result, list(seen)


async def snapshots(session: Session) -> list[tuple[Any, ...]]:
    sql = "SELECT reducer, version, idx, state FROM snapshot ORDER BY reducer, version"
    return list(await session._log.store.read(lambda connection: connection.execute(sql).fetchall()))


async def test_r97_the_last_50_of_100_000_events_are_folded_without_reading_the_others(tmp_path: Path) -> None:
    """R97: the file itself says what was read: with the snapshot, the events before it may be gone, and SQLite takes no
    more steps than in a session of a thousandth."""
    path = tmp_path / "agent.db"
    async with EventLog(path, durability="process") as log:
        session = await log.start_session("s")
        batch = [NewEvent("test.noted", {"n": n}) for n in range(1_000)]
        for _ in range(100):
            await session.append_many(batch)
        assert (await calls_of(session.fold(count, 0)))[0] == 100_001
        await session.append_many(batch[:50])
        state, calls = await calls_of(session.fold(count, 0))
        assert (state, calls) == (100_051, list(range(100_001, 100_051)))
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = '{' WHERE idx <= 100000")
    for read_only in (False, True):
        async with EventLog(path, read_only=read_only) as log:
            state, calls = await calls_of((await log.session("s")).fold(count, 0))
            assert (state, len(calls)) == (100_051, 50)
    steps = [await steps_to_the_last_50(each) for each in (path, await with_events(tmp_path / "short.db", 100))]
    assert steps[0] == steps[1]


async def with_events(path: Path, events: int) -> Path:
    """A log of one session that was folded, and 50 events behind its snapshot."""
    async with EventLog(path, fold_limits=FoldLimits(snapshot_every_events=events)) as log:
        session = await log.start_session("s")
        await session.append_many([NewEvent("test.noted", {"n": n}) for n in range(events)])
        await session.fold(count, 0)
        await session.append_many([NewEvent("test.noted", {"n": n}) for n in range(50)])
    return path


async def steps_to_the_last_50(path: Path) -> list[int]:
    """What SQLite does for a fold and for reads of the last 50 events, in steps of its machine."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    async with EventLog(path, read_only=True) as log:
        session = await log.session("s")
        await log.store.read(lambda connection: connection.set_progress_handler(step, 1))
        taken = []
        for work in (
            session.fold(count, 0),
            all_of(session.read(after=session.next_index - 51)),
            all_of(session.read(reverse=True, limit=50)),
        ):
            before = steps
            await work
            taken.append(steps - before)
    return taken


async def test_a_snapshot_is_kept_every_so_many_events(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=10)) as log:
        session = await log.start_session("s")
        await fill(session, 8)
        assert (await calls_of(session.fold(count, 0)))[0] == 9
        assert await snapshots(session) == []
        await fill(session, 1)
        assert (await calls_of(session.fold(count, 0)))[1] == list(range(10))
        name = f"{count.__module__}.count"
        assert await snapshots(session) == [(name, 1, 9, "10")]
        await fill(session, 9)
        assert (await calls_of(session.fold(count, 0)))[1] == list(range(10, 19))
        assert await snapshots(session) == [(name, 1, 9, "10")]
        await fill(session, 1)
        assert (await calls_of(session.fold(count, 0)))[0] == 20
        assert await snapshots(session) == [(name, 1, 19, "20")]


async def test_another_version_name_or_initial_state_ignores_a_snapshot(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        session = await log.start_session("s")
        await fill(session, 4)
        assert await calls_of(session.fold(count, 0)) == (5, [0, 1, 2, 3, 4])
        assert await calls_of(session.fold(count, 0)) == (5, [])
        assert await calls_of(session.fold(count, 0, version=2)) == (5, [0, 1, 2, 3, 4])
        assert await calls_of(session.fold(count, 0, version=2)) == (5, [])
        assert await calls_of(session.fold(count, 100, version=2)) == (105, [0, 1, 2, 3, 4])
        assert await calls_of(session.fold(count, 0, name="other")) == (5, [0, 1, 2, 3, 4])
        assert [row[:3] for row in await snapshots(session)] == [("other", 1, 4), (f"{count.__module__}.count", 2, 4)]
        assert (await calls_of(session.fold(count, 0)))[1] == [0, 1, 2, 3, 4]  # version 1 went when 2 was kept


async def test_a_reducer_without_a_name_of_its_own_has_no_snapshots_unless_it_is_given_one(tmp_path: Path) -> None:
    """Two lambdas of one module would take each other's state."""

    def inner(state: int, event: Event[Any]) -> int:
        return count(state, event)

    assert name_of(count) == f"{count.__module__}.count"
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        session = await log.start_session("s")
        for reducer in (inner, lambda state, event: count(state, event)):
            for _ in range(2):
                assert (await calls_of(session.fold(reducer, 0)))[1] == [0]
        await session.fold(inner, 0, name="mine")
        assert (await calls_of(session.fold(inner, 0, name="mine")))[1] == []


async def test_the_initial_state_and_the_kept_one_are_not_changed_by_a_reducer(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=2)) as log:
        session = await log.start_session("s")
        await fill(session, 2)
        initial: list[int] = []
        assert await session.fold(collect, initial) == [0, 1, 2]
        assert await session.fold(collect, initial) == [0, 1, 2]
        assert initial == []


def nan(state: Any, event: Event[Any]) -> Any:
    return {"mean": float("nan")}


def keyed(state: Any, event: Event[Any]) -> Any:
    return {1: "one"}


@pytest.mark.parametrize(("reducer", "path"), [(nan, "state.mean"), (keyed, "state")])
async def test_a_state_that_json_would_change_is_refused_with_its_place(
    tmp_path: Path, reducer: Any, path: str
) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        session = await log.start_session("s")
        with pytest.raises(InvalidEvent) as refused:
            await session.fold(reducer, None)
        assert refused.value.path == path
        with pytest.raises(InvalidEvent, match="initial"):
            await session.fold(count, float("inf"))  # type: ignore[arg-type]
        with pytest.raises(InvalidName, match="version"):
            await session.fold(count, 0, version=0)
        assert await snapshots(session) == []


def grow(state: str, event: Event[Any]) -> str:
    return state + "x"


async def test_a_state_over_its_limit_is_given_and_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the limit it is kept: six characters and their quotes."""
    limits = FoldLimits(snapshot_every_events=1, state_bytes=8)
    async with EventLog(tmp_path / "agent.db", fold_limits=limits) as log:
        session = await log.start_session("s")
        await fill(session, 5)
        assert await session.fold(grow, "") == "x" * 6
        assert [row[2] for row in await snapshots(session)] == [5]
        await fill(session, 1)
        assert await session.fold(grow, "") == "x" * 7
        assert [row[2] for row in await snapshots(session)] == [5]
    assert "9 bytes, over the limit of 8" in caplog.text


async def test_what_a_reducer_raises_reaches_the_caller_and_nothing_is_kept(tmp_path: Path) -> None:
    def fail(state: int, event: Event[Any]) -> int:
        if event.index == 3:
            raise KeyError("of the reducer")
        return state + 1

    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        session = await log.start_session("s")
        await fill(session, 4)
        with pytest.raises(KeyError, match="of the reducer"):
            await session.fold(fail, 0, name="fail")
        assert await snapshots(session) == []


async def test_a_corrupt_event_is_passed_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 4)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = 'gone' WHERE idx = 2")
    async with EventLog(path) as log:
        session = await log.session("s")
        nothing: list[int] = []
        assert await session.fold(collect, nothing) == [0, 1, 3, 4]
        assert len(await all_of(session.read())) == 5
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "passed an event: event 2 of session 's'" in record.getMessage()


@pytest.mark.parametrize("name", ["page_events", "page_positions", "state_bytes", "snapshot_every_events"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match=name):
        FoldLimits(**{name: 0})
    FoldLimits(**{name: 1})


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "1", None, 2**63])
async def test_a_version_that_cannot_be_kept_is_refused(tmp_path: Path, version: Any) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        with pytest.raises(InvalidName, match="whole number from 1 to 9223372036854775807"):
            await session.fold(count, 0, version)
        assert await session.fold(count, 0, 2**63 - 1) == 1


async def test_a_reducer_that_cannot_be_called_at_once_is_refused(tmp_path: Path) -> None:
    async def later(state: int, event: Event[Any]) -> int:
        return state

    reducers: list[Any] = [None, 7, later]
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        for reducer in reducers:
            with pytest.raises(InvalidName, match="plain function of a state and an event"):
                await session.fold(reducer, 0)
