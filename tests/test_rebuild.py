"""Folding again: rows equal to those that were kept live, and at every moment the old ones or the new ones."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections import Counter
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog import EventLog, Projection, Runtime
from eventlog.errors import InvalidName, ReadOnlyLog
from eventlog.folding import FoldLimits
from eventlog.inspection import Inspection
from eventlog.projections import BUILT_IN, Projector, rebuild
from eventlog.store import projections
from tests.folding_kit import (
    COUNTS,
    FOLDED,
    LIMITS,
    PAGES,
    count_types,
    fill_randomly,
    kill_after,
    leftovers,
    rebuild_over_and_over,
    tables,
)
from tests.log_kit import all_of, damaging
from tests.real_data import real_data
from tests.torture.counts import QUICK, Counts

DAMAGE = {
    "sessions": "UPDATE session SET title = 'wrong', status = 'failed', abs = NULL, continuation_token = 'x'",
    "turns": "DELETE FROM turn_version WHERE version = 2; UPDATE turn_version SET position = position + 1;"
    " INSERT INTO turn_version VALUES (1, 'never was', 1, 1)",
    "jobs": "DELETE FROM job WHERE job_id = 'j1'; UPDATE job SET status = 'queued', name = NULL;"
    " INSERT INTO job VALUES (1, 'never was', NULL, 'queued', 1)",
    "usage": "DELETE FROM usage WHERE model = 'm1'; UPDATE usage SET output_tokens = 7;"
    " INSERT INTO usage SELECT projection, 1, 'never was', '2020-01-01', 1, 0, 0, 0, 0, 0, 0, 0, 0, '0'"
    " FROM projection WHERE name = 'usage'",
}


def wreck(path: Path, *names: str) -> None:
    """Write wrong rows into tables of a closed log."""
    with damaging(path) as connection:
        facts = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ('turn_version', 'session')"
        triggers = [row for row in connection.execute(facts).fetchall() if "is_a_fact" in row[0]]
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for name in names:
            for statement in DAMAGE[name].split(";"):
                connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)


async def filled(path: Path, seed: int) -> dict[str, list[Any]]:
    """A closed log with every kind of event that is folded; its rows as they were kept live."""
    async with EventLog(path, fold_limits=LIMITS) as log:
        await fill_randomly(log, Random(seed))
        await log.usage()
        return await tables(log)


@pytest.mark.parametrize("seed", range(5))
async def test_rows_that_are_folded_again_equal_those_that_were_kept_live(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "agent.db"
    live = await filled(path, seed)
    assert all(live.values())
    for limits in (LIMITS, FoldLimits()):
        async with EventLog(path, fold_limits=limits) as log:
            assert [(each.name, each.different) for each in await rebuild(log)] == [(name, 0) for name in BUILT_IN]
            assert await tables(log) == live
            assert await leftovers(log) == [0] * 5


@pytest.mark.parametrize("name", BUILT_IN)
async def test_wrong_rows_are_put_right_and_counted_and_no_others_are_touched(tmp_path: Path, name: str) -> None:
    path = tmp_path / "agent.db"
    live = await filled(path, 11)
    wreck(path, *BUILT_IN)
    async with EventLog(path, fold_limits=LIMITS) as log:
        wrong = await tables(log)
        assert all(wrong[each] != live[each] for each in BUILT_IN)
        (done,) = await rebuild(log, name)
        places = {"sessions": 1, "turns": 3, "jobs": 2, "usage": 3}[name]
        keyed = [{row[:places]: row for row in rows[name]} for rows in (wrong, live)]
        keys = keyed[0].keys() | keyed[1].keys()
        assert done.different == sum(keyed[0].get(key) != keyed[1].get(key) for key in keys)
        assert await tables(log) == {**wrong, name: live[name]}


@pytest.mark.parametrize(
    "value",
    [True, False, 0, 2**70, 1.0, 1e300, "x", "[X,\0]", "5", '\u2028ü"', [], {}, [True, {"a": 2**70, "b": None}]],
    ids=repr,
)
async def test_abs_is_the_same_value_live_after_a_restart_and_folded_again(tmp_path: Path, value: Any) -> None:
    """Told by `repr`, because in Python true is equal to 1 and to 1.0."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        _ = await log.start_session("started", abs=value)
        updated = await log.start_session("updated", abs="before")
        _ = await updated.append("session.updated", {"abs": value})
        assert await abs_of(log) == [repr(value)] * 2
    async with EventLog(path, read_only=True) as log:
        assert await abs_of(log) == [repr(value)] * 2
    async with EventLog(path) as log:
        assert [each.different for each in await rebuild(log, "sessions")] == [0]
    wreck(path, "sessions")
    async with EventLog(path) as log:
        assert await abs_of(log) == ["None"] * 2
        assert [each.different for each in await rebuild(log, "sessions")] == [2]
    async with EventLog(path) as log:
        assert await abs_of(log) == [repr(value)] * 2


async def test_fields_that_a_type_has_not_move_neither_its_session_nor_its_job(tmp_path: Path) -> None:
    """They are stored with the event, and they are its writer's: live, after a restart, and folded again."""
    path, foreign = tmp_path / "agent.db", {"title": "a\0b", "sdkAgentId": "x", "abs": 5, "name": "other"}
    async with EventLog(path) as log:
        session = await log.start_session("s", title="t", abs=True, continuation_token="k")
        _ = await session.append("session.waiting", foreign)
        _ = await session.append("turn.started", foreign | {"continuationToken": "other"}, turn_id="t1")
        for name in ("session.failed", "session.completed"):
            _ = await session.append(name, foreign | {"continuationToken": "other", "message": "m"})
        _ = await session.append("job.queued", {"jobId": "j1", "name": "n"})
        _ = await session.append("job.started", {"jobId": "j1"} | foreign)
        _ = await session.append("job.started", {"jobId": "j2"} | foreign)
        info = session.info
        assert (info.title, info.sdk_agent_id, repr(info.abs), info.continuation_token) == ("t", None, "True", "k")
        assert [(await log.job(id)).name for id in ("j1", "j2")] == ["n", None]
    async with EventLog(path) as log:
        assert (await log.session("s")).info == info
        assert [each.different for each in await rebuild(log)] == [0] * 4


async def abs_of(log: EventLog) -> list[str]:
    return [repr(info.abs) async for info in log.sessions()]


async def test_a_rebuild_goes_on_while_events_come(tmp_path: Path) -> None:
    """What comes behind its last page is folded in the transaction that brings the new rows over."""
    async with EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log:
        await fill_randomly(log, Random(2), 50)
        session = await log.session("s1")
        pages: list[tuple[int, int | None]] = []
        for name in BUILT_IN:
            await session.append("turn.completed", {}, turn_id="t")
            await session.append("job.queued", {"jobId": name})
            await session.append("session.updated", {"title": name})
            await rebuild(log, name, lambda position, last: pages.append((position, last)))
        assert (await log.session_info("s1")).title == BUILT_IN[-1]
        assert [row.turns for row in await log.usage("session")][1] == sum(
            [event.session_id == "s1" async for event in log.read(types=["turn.completed"])]
        )
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0] * 4
        assert await tables(log) == before
        assert all(last is None or position <= last for position, last in pages)
        assert len(pages) > 4 * 7


async def test_imported_history_is_folded_like_what_was_appended(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "one.db") as log:
        await fill_randomly(log, Random(8))
        lines = await all_of(log.export())
        usage = await log.usage("model")
    async with EventLog(tmp_path / "two.db") as log:
        await log.import_events(lines)
        assert await log.usage("model") == usage
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0] * 4
        assert await tables(log) == before


async def test_real_sessions_fold_again_to_equal_rows(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        with real_data().open("rb") as lines:
            await log.import_events(lines)
        await log.usage()
        before = await tables(log)
        assert [each.different for each in await rebuild(log)] == [0] * 4
        assert await tables(log) == before


@pytest.mark.parametrize("position_of", ["session.updated", "job.completed", "job.queued"])
async def test_a_corrupt_event_is_passed_with_a_record_and_the_rest_is_folded(tmp_path: Path, position_of: str) -> None:
    path = tmp_path / "agent.db"
    live = await filled(path, 4)
    async with EventLog(path) as log:
        position = (await all_of(log.read(types=[position_of])))[0].position
    for data in ("{", "[]", '"text"'):
        with damaging(path) as connection:
            connection.execute("UPDATE log SET data = ? WHERE position = ?", (data, position))
        async with EventLog(path) as log:
            done = {each.name: each.passed for each in await rebuild(log)}
            errors = await Inspection(log).projection_errors()
            rows = await tables(log)
        passed = "sessions" if position_of == "session.updated" else "jobs"
        unreadable = data == "{" or passed == "jobs"  # a session is told nothing by any other value, either
        assert done == {**dict.fromkeys(BUILT_IN, 0), passed: int(unreadable)}
        assert {error.position for error in errors} <= {position}
        others = FOLDED.keys() - {passed}
        assert {name: rows[name] for name in others} == {name: live[name] for name in others}
        assert len(rows[passed]) >= len(live[passed]) - 1


async def pages_of(path: Path) -> dict[str, int]:
    """How many pages a rebuild of each takes."""
    folder, counts = path.parent / "dry", Counter[str]()
    folder.mkdir()
    for suffix in ("", ".head"):
        shutil.copy(path.with_name(path.name + suffix), folder / f"agent.db{suffix}")
    async with EventLog(folder / "agent.db", fold_limits=PAGES) as log:
        for name in BUILT_IN:
            await rebuild(log, name, lambda position, last, name=name: counts.update([name]))  # type: ignore[misc]
    return counts


@pytest.mark.faults
async def test_a_rebuild_killed_anywhere_leaves_the_old_rows_or_the_new_ones(tmp_path: Path, counts: Counts) -> None:
    """Never a mixture: of each of the four, in a file whose rows are all wrong; then one that ends puts all right."""
    origin, random = tmp_path / "origin.db", Random(20261130)
    live = await filled(origin, 21)
    wreck(origin, *BUILT_IN)
    async with EventLog(origin, read_only=True) as log:
        wrong = await tables(log)
    pages = await pages_of(origin)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(counts.fold_kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        db = folder / "agent.db"
        for suffix in ("", ".head"):
            shutil.copy(origin.with_name(origin.name + suffix), folder / f"agent.db{suffix}")
        names = random.sample(BUILT_IN, len(BUILT_IN))
        ends = list(accumulate(pages[name] for name in names))  # behind these the new rows have their turn
        page = random.choice(ends) if number % 2 else random.randrange(1, ends[-1])
        assert await kill_after(page, rebuild_over_and_over, db, names, later_s=random.uniform(0.0, 0.004))
        async with EventLog(db) as log:
            rows = await tables(log)
            for name in BUILT_IN:
                assert rows[name] in (wrong[name], live[name]), "a mixture"
                found[name, "new" if rows[name] == live[name] else "old"] += 1
            await rebuild(log)
            assert await tables(log) == live
            assert await leftovers(log) == [0] * 5
            assert (await log.check()).ok
    print(f"\n{counts.fold_kills} kills: {dict(found)}")
    assert len(found) == 2 * len(BUILT_IN) or counts == QUICK, f"the kills fell on one side only: {found}"


async def test_a_projection_of_ones_own_is_folded_again_by_the_next_runtime_and_serves_meanwhile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path, fold_limits=LIMITS) as log, Runtime(log, projections=[COUNTS]) as runtime:
        await fill_randomly(log, Random(1), 30)
        state = (await runtime.projection("counts")).state

    async with EventLog(path) as log:
        await log.store.write(spoil)
        (done,) = await rebuild(log, "counts")
        assert done.waits
        assert (await log.projection("counts")).state == {"wrong": 1}
        rows = await log.store.read(projections.rows, "counts")
        assert [(row.serves, row.cursor) for row in rows] == [(True, 34), (False, 0)]
    async with EventLog(path, fold_limits=LIMITS) as log, Runtime(log, projections=[COUNTS]) as runtime:
        assert (await runtime.projection("counts")).state == state
        assert len(await log.store.read(projections.rows, "counts")) == 1


async def test_a_version_that_is_in_the_making_is_what_a_rebuild_begins_again(tmp_path: Path) -> None:
    """The runtime that makes it goes on with it, and it takes the place of the old one."""
    version_2 = Projection(name="counts", events=["*"], fold=count_types, initial={}, version=2)
    async with EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log:
        async with Runtime(log, projections=[COUNTS]) as runtime:
            await fill_randomly(log, Random(1), 30)
            state = (await runtime.projection("counts")).state
        projector = Projector(log, [version_2])
        await log.store.write(projections.join, version_2.definition)
        (_, being_made) = await log.store.read(projections.rows, "counts")
        assert not await projector.fold_once(version_2, being_made.key)
        await rebuild(log, "counts")
        rows = await log.store.read(projections.rows, "counts")
        assert [(row.serves, row.version, row.cursor) for row in rows] == [(True, 1, 34), (False, 2, 0)]
        await projector.catch_up()
        found = await log.projection("counts")
        assert (found.version, found.state, found.lag) == (2, state, 0)


async def test_rebuilds_at_the_same_time_do_not_mix_their_rows(tmp_path: Path) -> None:
    """R97: turns kept their versions doubled when two rebuilds filled one table."""
    async with EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log:
        await fill_randomly(log, Random(1), 100)
        _ = await log.usage()
        live = await tables(log)
        done = await asyncio.gather(*[rebuild(log, name) for name in (None, "turns", "jobs", "usage", None)])
        assert [each.different for rebuilt in done for each in rebuilt] == [0] * 11
        assert await tables(log) == live


def spoil(connection: sqlite3.Connection) -> None:
    connection.execute("""UPDATE projection SET state = '{"wrong": 1}' WHERE name = 'counts'""")


async def test_what_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        with pytest.raises(InvalidName, match="no process has folded"):
            await rebuild(log, "nothing")
    async with EventLog(path, read_only=True) as log:
        for name in (None, "usage", "turns"):
            with pytest.raises(ReadOnlyLog):
                await rebuild(log, name)
