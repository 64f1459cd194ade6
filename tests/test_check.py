"""Damage is named and never hides what stands behind it; and nothing on our side can change what was recorded."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import CorruptEvent
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.store.checking import MAX_NAMED, Damaged, Missing
from tests.extension_kit import bench
from tests.log_kit import all_of, crash_copy, damaging, fill, first_of, indexes, whole

EVENTS = 10
"""Of session "s": index 0 to 9 at positions 1 to 10; session "t" follows with 11 to 13."""


async def a_log(folder: Path, *, killed: bool = False) -> Path:
    """A log at rest; of a killed owner, the session index has absorbed nothing of it."""
    async with EventLog(folder / "agent.db") as log:
        await fill(await log.start_session("s"), EVENTS - 1)
        await fill(await log.start_session("t"), 2)
        if killed:
            return crash_copy(log.path, folder / "killed")
    return folder / "agent.db"


def change(path: Path, what: str, where: str = "position = 6") -> None:
    """Change events behind everybody's back."""
    with damaging(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE log SET {what} WHERE {where}")  # noqa: S608 (our own text)


def corrupt(event: Event[Any]) -> bool:
    """Whether its data cannot be had, and the error names it."""
    try:
        _ = event.data
    except CorruptEvent as caught:
        error = caught
    else:
        return False
    return (error.session_id, error.index, error.position) == (event.session_id, event.index, event.position)


async def damaged(path: Path) -> list[tuple[str, int, int]]:
    async with EventLog(path, read_only=True) as log:
        report = await log.check()
    assert not report.ok
    assert report.damaged_count == len(report.damaged)
    return [(each.session_id, each.index, each.position) for each in report.damaged]


# -------------------------------------------------------------------------------------------------- one bad record

PAYLOADS: dict[str, tuple[str, Any]] = {
    "no JSON": ("'gar{bage'", None),
    "cut": ("substr(data, 1, length(data) - 1)", None),
    "no UTF-8": ("CAST(x'7b22ff22' AS TEXT)", None),
    "empty": ("''", None),
    "another value": ("replace(data, '4', '5')", {"n": 5}),
    "a flipped letter": ("replace(data, 'n', 'm')", {"m": 4}),
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", PAYLOADS)
async def test_a_damaged_payload_is_named_and_the_history_goes_on(tmp_path: Path, name: str, killed: bool) -> None:
    """Read, tail and check give index 5 as corrupt and everything behind it; appends go on at the right index."""
    expression, readable = PAYLOADS[name]
    path = await a_log(tmp_path, killed=killed)
    change(path, f"data = {expression}")
    async with EventLog(path, verify_reads=True) as log:
        session = await log.session("s")
        for events in (
            await all_of(session.read()),
            await first_of(session.tail(), EVENTS),
            (await all_of(log.read()))[:EVENTS],
            (await all_of(session.read(reverse=True)))[::-1],
        ):
            assert indexes(events) == list(range(EVENTS))
            assert [event.index for event in events if corrupt(event)] == [5]
        assert not any(corrupt(event) for event in await all_of((await log.session("t")).read()))
        assert (await session.append("own.type", {})).index == EVENTS
    assert await damaged(path) == [("s", 5, 6)]
    async with EventLog(path, read_only=True) as log:
        event = (await all_of((await log.session("s")).read()))[5]
        if readable is None:
            assert corrupt(event)
        else:
            assert event.data == readable, "what can be decoded is only noticed by its checksum"


COLUMNS: dict[str, str] = {
    "its time": "at = at + 1",
    "its turn": "turn_id = 'other'",
    "a turn that is no text": "turn_id = CAST(x'ff' AS TEXT)",
    "a turn that is empty": "turn_id = ''",
    "its key": "key = 'other'",
    "its checksum": "checksum = zeroblob(16)",
    "its type": "type = 1",
    "a type that is none": "type = 77777",
    "its index, upwards": "idx = 1000",
    "its index, downwards": "idx = 2",
    "its index, to that of the next": "idx = 6",
    "its session": "session = 2",
    "a session that is none": "session = 99",
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
async def test_damage_of_any_column_is_found_and_hides_no_other_event(tmp_path: Path, name: str, killed: bool) -> None:
    """The damaged event keeps its place in the session; every other one is read once, and appends go on behind."""
    path = await a_log(tmp_path, killed=killed)
    change(path, COLUMNS[name])
    async with EventLog(path, read_only=True) as log:
        assert [each.position for each in (await log.check()).damaged] == [6], "and nothing else is accused"
    moved = killed and "session" in COLUMNS[name]  # then nothing else says whose it was
    expected = [position for position in range(1, EVENTS + 1) if not (moved and position == 6)]
    for _ in range(2):
        async with EventLog(path, verify_reads=True) as log:
            session = await log.session("s")
            for events in (await all_of(session.read()), (await all_of(session.read(reverse=True)))[::-1]):
                assert [event.position for event in events][: len(expected)] == expected
                assert sorted(indexes(events)) == indexes(events)
            assert [event.position async for event in log.read()][:13] == list(range(1, 14))
            before = session.next_index
            assert (await session.append("own.type", {})).index == before >= EVENTS
            expected += [event.position async for event in session.read(after=before - 1)]
    async with EventLog(path) as log:
        assert (await (await log.session("t")).append("own.type", {})).index in (3, 4)


@pytest.mark.parametrize("position", [1, 6, 10])
@pytest.mark.parametrize("killed", [False, True])
async def test_a_lost_row_is_missed_and_hides_no_other_event(tmp_path: Path, killed: bool, position: int) -> None:
    """The gate that pruning opens is not enough: what is in no removed range is missing."""
    path = await a_log(tmp_path, killed=killed)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO gate VALUES (1, 'prune')")
        connection.execute("DELETE FROM log WHERE position = ?", (position,))
        connection.execute("DELETE FROM gate")
    async with EventLog(path, read_only=True) as log:
        report = await log.check()
        assert (report.ok, report.missing) == (False, [Missing(position, position)])
        assert report.damaged == [], "what follows it has the index that it says"
    kept = [index for index in range(EVENTS) if index != position - 1]
    for _ in range(2):
        async with EventLog(path) as log:
            session = await log.session("s")
            assert indexes(await all_of(session.read())) == kept
            assert indexes(await all_of(session.read(reverse=True))) == kept[::-1]
            event = await session.append("own.type", {})
            assert event.index == session.next_index - 1
            assert event.index > kept[-1]
            if not killed:  # the index still knows of the lost one, whose place is not given to another
                assert event.index >= EVENTS
            kept.append(event.index)
            assert indexes(await all_of(session.read())) == kept
    async with EventLog(path, read_only=True) as log:
        assert indexes(await all_of((await log.session("s")).read())) == kept


@pytest.mark.parametrize("absorbed", [True, False])
async def test_a_page_that_cannot_be_read_hides_no_event_of_another(tmp_path: Path, absorbed: bool) -> None:
    """Each event on it is named by session and index; the last ones, which no index has, by position alone."""
    async with EventLog(tmp_path / "agent.db") as log:
        sessions = [await log.start_session(f"s{n}") for n in range(3)]
        events = [await sessions[n % 3].append("own.type", {"mark": f"<{n}>", "x": "x" * 100}) for n in range(200)]
        if absorbed:
            await log.store.absorb()
        path = crash_copy(log.path, tmp_path / "copy")
    with damaging(path) as connection:  # everything into the database, which an owner's close would have done
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    content = bytearray(path.read_bytes())
    content[content.rfind(b"<100>") // size * size] = 0xFF
    path.write_bytes(content)
    lost = [event for event in events if not can_be_read(path, event.position)]
    assert 10 < len(lost) < 50
    async with EventLog(path, read_only=True) as log:
        report = await log.check()
    places = {(each.session_id, each.index) if absorbed else ("unknown", -1) for each in lost}
    assert {(each.session_id, each.index) for each in report.damaged} == places
    assert [each.position for each in report.damaged] == [each.position for each in lost]
    assert all("cannot be read" in each.why for each in report.damaged)
    assert (report.events, report.missing) == (203 - len(lost), [])


@pytest.mark.parametrize("absorbed", [True, False])
async def test_an_event_that_is_there_and_not_found_by_its_position_is_named(tmp_path: Path, absorbed: bool) -> None:
    """Of a page whose rows are in disorder a scan shows all, a look-up only some: a session's reader misses events."""
    path = await a_log(tmp_path, killed=not absorbed)
    with damaging(path) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'log'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    content = bytearray(path.read_bytes())
    places = (root - 1) * size + 8
    content[places : places + 26] = content[places + 12 : places + 26] + content[places : places + 12]
    path.write_bytes(content)
    lost = [position for position in range(1, 14) if not can_be_read(path, position)]
    assert lost
    async with EventLog(path, read_only=True) as log:
        assert len(await all_of(log.read())) == 13
        report = await log.check()
    assert {*lost} <= {each.position for each in report.damaged}
    assert all(each.why == "it is not found by its position" for each in report.damaged)


def can_be_read(path: Path, position: int) -> bool:
    """Whether SQLite itself finds an event."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        try:
            return bool(connection.execute("SELECT data FROM log WHERE position = ?", (position,)).fetchone())
        except sqlite3.DatabaseError:
            return False


@pytest.mark.parametrize("table", ["session", "removed", "session_index", "extension", "delivery", "kv"])
async def test_a_page_that_cannot_be_read_is_reported_whatever_stood_on_it(tmp_path: Path, table: str) -> None:
    """`check` itself does not end with the error that tells to run it; and no event is called lost that is there."""
    async with EventLog(tmp_path / "agent.db") as log:
        await (await log.start_session("old")).append("session.completed", {})
        await log.prune(older_than_s=0.0)
        await fill(await log.start_session("s"), EVENTS)
    path = tmp_path / "agent.db"
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size] = 0xFF
    path.write_bytes(content)
    async with EventLog(path, read_only=True) as log:
        report = await log.check()
    assert report.faults
    assert {each.position for each in report.damaged} == (set(range(3, EVENTS + 4)) if table == "session" else set())
    assert report.missing == ([Missing(1, 2)] if table == "removed" else [])


async def test_many_damaged_events_are_counted_beyond_those_that_are_named(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        for _ in range(0, MAX_NAMED + 500, 100):
            await asyncio.gather(*[session.append("own.type", {}) for _ in range(100)])
    change(tmp_path / "agent.db", "data = 'x'", "position > 1")
    async with EventLog(tmp_path / "agent.db", read_only=True) as log:
        report = await log.check()
    assert (report.damaged_count, len(report.damaged)) == (MAX_NAMED + 500, MAX_NAMED)
    assert report.damaged[0] == Damaged("s", 1, 2, "its checksum does not match")


# ----------------------------------------------------------------------------------------------- the session index


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session_index SET position = 12 WHERE session = 1 AND idx = 5",
        "UPDATE session_index SET position = 7 WHERE session = 1 AND idx = 5",
        "UPDATE session_index SET position = 999 WHERE session = 1 AND idx = 5",
        "UPDATE session_index SET idx = 500 WHERE session = 1 AND idx = 5",
        "DELETE FROM session_index WHERE session = 1 AND idx = 5",
        "INSERT INTO session_index VALUES (1, 400, 3)",
        "UPDATE absorbed SET position = 5",
        "UPDATE absorbed SET position = 99",
    ],
)
async def test_damage_of_the_session_index_is_found(tmp_path: Path, statement: str) -> None:
    path = await a_log(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    async with EventLog(path, read_only=True) as log:
        report = await log.check()
        if statement == "UPDATE absorbed SET position = 5":  # a slice that a kill cut short looks just so
            assert report.ok
            return
        assert (report.ok, report.damaged) == (False, [])
        assert any("session index" in fault for fault in report.faults)


async def test_a_queue_that_lost_a_place_is_named(tmp_path: Path) -> None:
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=print)
        for number in range(3):
            await it.turn("a", f"t{number}")
        assert (await it.log.check()).ok
        await it.log.store.write(lambda c: c.execute("DELETE FROM delivery WHERE place = 2").rowcount)
        report = await it.log.check()
    assert (report.ok, report.damaged) == (False, [])
    assert report.first_fault() == "the queue of extension 'acme' has 2 places, and the last is number 3"


async def test_what_is_absorbed_again_is_what_the_log_says(tmp_path: Path) -> None:
    """Entries of a slice that was cut short are written again, and wrong ones among them are put right."""
    path = await a_log(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE absorbed SET position = 4")
        connection.execute("UPDATE session_index SET position = 3 WHERE session = 1 AND idx = 7")
    for _ in range(2):
        async with EventLog(path) as log:
            assert indexes(await all_of((await log.session("s")).read())) == list(range(EVENTS))
    async with EventLog(path, read_only=True) as log:
        await whole(log)


async def test_an_index_that_points_at_another_event_does_not_pass_it_off_as_its_own(tmp_path: Path) -> None:
    """Session "s" does not show an event of "t" as its own index 5: that one is corrupt, and the next ones follow."""
    path = await a_log(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE session_index SET position = 12 WHERE session = 1 AND idx = 5")
    async with EventLog(path) as log:
        events = await all_of((await log.session("s")).read())
    assert indexes(events) == list(range(EVENTS))
    assert [event.index for event in events if corrupt(event)] == [5]


# ---------------------------------------------------------------------------------------------------- while it lives


async def test_a_check_while_appends_go_on_finds_nothing(tmp_path: Path) -> None:
    """By the owner and by a reader, with the index absorbing: what comes meanwhile is neither missing nor lost."""
    async with EventLog(tmp_path / "agent.db", slice_rows=300) as log:
        session = await log.start_session("s")
        await asyncio.gather(*[session.append("own.type", {}) for _ in range(5_000)])
        stop = asyncio.Event()

        async def go_on() -> None:
            while not stop.is_set():
                await asyncio.gather(*[session.append("own.type", {}) for _ in range(20)])

        appending = asyncio.ensure_future(go_on())
        async with EventLog(log.path, read_only=True) as reader:
            for opened in (log, reader):
                for full in (True, False):
                    await assert_finds_nothing(opened, full)
        stop.set()
        await appending


async def assert_finds_nothing(log: EventLog, full: bool) -> None:
    seen: list[tuple[int, int]] = []
    report = await log.check(full=full, progress=lambda done, total: seen.append((done, total)))
    assert report.ok, report
    assert report.events >= 5_001
    assert seen[-1] == (report.events, report.events)


async def test_an_empty_log_is_whole(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await whole(log)


# -------------------------------------------------------------------------------------------------------- append-only


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET data = '{}' WHERE position = 1",
        "UPDATE log SET at = 0",
        "UPDATE OR REPLACE log SET position = 1 WHERE position = 2",
        "DELETE FROM log WHERE position = 1",
        "DELETE FROM log",
        "REPLACE INTO log SELECT * FROM log WHERE position = 1",
        "INSERT OR REPLACE INTO log (position, session, idx, type, at, data, checksum)"
        " VALUES (1, 1, 0, 1000, 0, '{}', zeroblob(16))",
        "INSERT INTO log SELECT * FROM log WHERE position = 1 ON CONFLICT (position) DO UPDATE SET data = '{}'",
    ],
)
async def test_r57_the_log_is_append_only(tmp_path: Path, statement: str) -> None:
    """R57: on our own writing connection, no statement changes, replaces or takes away an event."""
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 3)
        before = await all_of(log.read())

        def run(connection: sqlite3.Connection) -> None:
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)

        await log.store.write(run)
        assert await all_of(log.read()) == before
        await whole(log)


@pytest.mark.parametrize(
    ("purpose", "statement"),
    [
        ("import", "UPDATE log SET at = 0"),
        ("import", "DELETE FROM log"),
        ("prune", "UPDATE log SET at = 0"),
        ("forget", "DELETE FROM log"),
    ],
)
async def test_a_gate_opens_what_it_is_for_and_nothing_else(tmp_path: Path, purpose: str, statement: str) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await log.start_session("s")

        def run(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO gate VALUES (1, ?)", (purpose,))
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
            connection.execute("DELETE FROM gate")

        await log.store.write(run)
        await whole(log)


async def test_the_writing_connection_keeps_its_promises(tmp_path: Path) -> None:
    """Triggers run for REPLACE too, deleted bytes are overwritten, and no checkpoint happens behind the writer."""
    async with EventLog(tmp_path / "agent.db") as log:

        def look(connection: sqlite3.Connection) -> dict[str, Any]:
            names = ("journal_mode", "recursive_triggers", "secure_delete", "wal_autocheckpoint", "auto_vacuum")
            return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

        assert await log.store.write(look) == {
            "journal_mode": "wal",
            "recursive_triggers": 1,
            "secure_delete": 1,
            "wal_autocheckpoint": 0,
            "auto_vacuum": 2,
        }


@pytest.mark.parametrize("read_only", [True, False])
async def test_the_reading_connection_cannot_write(tmp_path: Path, read_only: bool) -> None:
    async with EventLog(tmp_path / "agent.db") as log, EventLog(log.path, read_only=True) as reader:

        def write(connection: sqlite3.Connection) -> None:
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("DELETE FROM kv")

        await (reader if read_only else log).store.read(write)
