"""The head file notices what the database lost: a shortened log is refused, a position issued again has a new id."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import EventLogError, LogShortened
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.store.owner import HeadFile, Proof
from eventlog.testing import ManualClock
from tests.log_kit import all_of, crash_copy, fill, rewriting, whole

FILE_ID, ERA = "0123abcd", "4567cdef"


def head_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def proven(path: Path) -> int:
    proof = HeadFile(path).read()
    assert proof is not None
    return proof.position


async def a_killed_log(folder: Path, events: int = 30) -> Path:
    """A log whose owner was killed: its schema is in the database, all of its events are in the WAL."""
    async with EventLog(folder / "agent.db") as log:
        await fill(await log.start_session("s"), events)
        return crash_copy(log.path, folder / "killed")


async def eras_of(log: EventLog) -> list[str]:
    return [str(era) for era in (await log.stats())["eras"]]


# ----------------------------------------------------------------------------------------------------- a loss is seen


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_one_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def spoil_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 64)


@pytest.mark.parametrize("harm", [delete, empty, halve, cut_one_byte, spoil_the_middle])
async def test_a_log_that_lost_a_part_of_its_wal_is_refused_unless_the_loss_is_accepted(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = await a_killed_log(tmp_path)
    harm(wal_of(path))
    with pytest.raises(LogShortened, match="31") as caught:
        await EventLog(path).open()
    assert caught.value.proven == 31
    found = caught.value.found
    assert 0 <= found < 31
    assert proven(path) == 31, "a refused opening leaves the proof"
    with pytest.raises(LogShortened):
        await EventLog(path).open()

    async with EventLog(path, accept_loss=True) as log:
        first, second = await eras_of(log)
        survivors = await all_of(log.read())
        assert [event.position for event in survivors] == list(range(1, found + 1))
        assert {event.id for event in survivors} == {f"{first}:{n}" for n in range(1, found + 1)}
        session = await log.session("s") if found else await log.start_session("s")
        assert session.next_index == max(found, 1)
        event = await session.append("own.type", {})
        assert event.id == f"{second}:{event.position}"
        assert event.position <= 31, "a position is issued again, and its id is another one"
        await whole(log)
    async with EventLog(path) as log:
        assert await eras_of(log) == [first, second]
        assert (await all_of(log.read()))[-1] == event
        assert proven(path) == event.position


async def test_a_loss_is_accepted_once(tmp_path: Path) -> None:
    """`accept_loss` left in the code of a server changes nothing when nothing is lost."""
    path = await a_killed_log(tmp_path)
    for _ in range(3):
        async with EventLog(path, accept_loss=True) as log:
            assert len(await eras_of(log)) == 1
            assert log.head == 31


@pytest.mark.parametrize("harm", [delete, empty])
async def test_a_database_that_was_emptied_is_refused_unless_the_loss_is_accepted(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 4)
        (lost,) = await eras_of(log)
    harm(path)
    for _ in range(2):
        with pytest.raises(LogShortened) as caught:
            await EventLog(path).open()
        assert (caught.value.proven, caught.value.found) == (5, 0)
    async with EventLog(path, accept_loss=True) as log:
        assert await all_of(log.read()) == []
        event = await (await log.start_session("s")).append("own.type", {})
        assert lost not in event.id
    async with EventLog(path) as log:
        assert log.head == 2


async def test_the_check_names_a_loss(tmp_path: Path) -> None:
    path = await a_killed_log(tmp_path)
    wal_of(path).unlink()
    async with EventLog(path, read_only=True, accept_loss=True) as log:
        report = await log.check()
        assert log.loss is not None
        assert (log.loss.proven, log.loss.found) == (31, 0)
    assert (report.ok, report.head) == (False, (31, 0))


async def test_a_reader_is_not_shown_a_shortened_history_without_a_word(tmp_path: Path) -> None:
    """It is refused like an owner is; what is left can be read by whoever accepts the loss, and begins no era."""
    path = await a_killed_log(tmp_path)
    halve(wal_of(path))
    with pytest.raises(LogShortened) as caught:
        await EventLog(path, read_only=True).open()
    for _ in range(2):
        async with EventLog(path, read_only=True, accept_loss=True) as log:
            assert len(await all_of(log.read())) == caught.value.found > 0
            assert len(await eras_of(log)) == 1
    assert proven(path) == 31


async def test_a_kill_loses_nothing_and_begins_no_era(tmp_path: Path) -> None:
    path = await a_killed_log(tmp_path)
    assert proven(path) == 31
    async with EventLog(path) as log:
        assert (log.head, len(await eras_of(log))) == (31, 1)


async def test_a_proof_that_lags_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        lagging = head_of(path).read_bytes()
        await fill(session, 5)
    head_of(path).write_bytes(lagging)
    async with EventLog(path) as log:
        assert (log.head, len(await eras_of(log))) == (6, 1)
        assert proven(path) == 6


async def test_the_proof_never_leads(tmp_path: Path) -> None:
    """At every moment, another process finds what the head file proves; and after an append it proves that append."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        with closing(sqlite3.connect(f"file:{log.path}?mode=ro", uri=True)) as look:
            for n in range(50):
                event = await session.append("own.type", {}) if n % 5 else (await many(session))[-1]
                position = proven(log.path)
                assert position == event.position
                assert look.execute("SELECT max(position) FROM log").fetchone()[0] >= position
        lines = [b'{"type":"own.type","index":0,"sessionId":"i","at":"2026-01-01T00:00:00Z","data":{}}']
        await log.import_events(lines)
        assert proven(log.path) == log.head


async def many(session: Any) -> Any:
    return await session.append_many([NewEvent("own.type")] * 200)


# ---------------------------------------------------------------------------------------------- without a head file


@pytest.mark.parametrize(
    "harm",
    [
        delete,
        empty,
        halve,
        lambda head: head.write_bytes(b"\0" * 128),
        lambda head: head.write_bytes(os.urandom(128)),
        lambda head: head.write_text("not a head file at all, but a text that is long enough to hold two slots" * 3),
    ],
    ids=["delete", "empty", "halve", "zeros", "noise", "text"],
)
async def test_a_log_without_its_head_file_begins_a_new_era(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        old = await all_of((await log.start_session("s")).read())
        (first,) = await eras_of(log)
    harm(head_of(path))
    if harm is halve and HeadFile(path).read() is not None:
        return  # the slot that was left holds the proof
    async with EventLog(path) as log:
        assert await all_of(log.read()) == old
        (kept, second) = await eras_of(log)
        assert kept == first
        assert (await log.append("s", "own.type", {})).id == f"{second}:2"
    async with EventLog(path) as log:
        assert await eras_of(log) == [first, second]


async def test_the_head_file_of_another_log_proves_nothing(tmp_path: Path) -> None:
    """A copy of the database beside somebody else's head file: no loss is invented, `check` says whose it is not, and
    a new era begins."""
    async with EventLog(tmp_path / "large.db") as log:
        await fill(await log.start_session("s"), 20)
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 2)
    (tmp_path / "large.db.head").replace(tmp_path / "agent.db.head")
    async with EventLog(tmp_path / "agent.db", read_only=True) as log:
        report = await log.check()
        assert (report.head, report.missing, report.faults) == (None, [], [OTHER_ERAS])
    async with EventLog(tmp_path / "agent.db") as log:
        assert len(await eras_of(log)) == 2
        assert proven(log.path) == 3
        await whole(log)


OTHER_ERAS = "the eras, which are in the ids of all events, are not those that the head file proves"


@pytest.mark.parametrize(
    "change",
    [
        "era = '0' || substr(era, 2) WHERE first_position = 1",
        "era = '00000000' WHERE first_position = 2",
        "first_position = 3 WHERE first_position = 2",
        "first_position = CAST(x'ff' AS BLOB) WHERE first_position = 2",
    ],
)
async def test_a_damaged_era_is_found_and_hides_no_event(tmp_path: Path, change: str) -> None:
    """It is in the id of every event, and no event's checksum covers it: the head file does."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await log.start_session("s")
    head_of(path).unlink()
    async with EventLog(path) as log:
        await fill(await log.session("s"), 3)
        assert len(await eras_of(log)) == 2
    with rewriting(path, "era_is_a_fact_update") as connection:
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'era'").fetchone()
        loose = sql.replace(" STRICT,", "")  # what a flipped bit makes of a row is of any type
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'era'", (loose,))
    with rewriting(path, "era_is_a_fact_update") as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE era SET {change}")  # noqa: S608 (our own text)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'era'", (sql,))
    async with EventLog(path, read_only=True) as log:
        assert len(await all_of(log.read())) == 4
        assert OTHER_ERAS in (await log.check()).faults


async def test_a_head_file_that_knows_no_eras_proves_the_rest(tmp_path: Path) -> None:
    """One that a library before this wrote; so does one that was left behind by a kill before an era was in it."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await log.start_session("s")
        (era,) = await eras_of(log)
    head = HeadFile(path)
    head.open(era, era, 1)
    head.close()
    async with EventLog(path, read_only=True) as log:
        await whole(log)
    async with EventLog(path) as log:
        assert await eras_of(log) == [era]
    before = head_of(path).read_bytes()
    head_of(path).unlink()
    async with EventLog(path) as log:
        assert len(await eras_of(log)) == 2
    head_of(path).write_bytes(before)
    async with EventLog(path, read_only=True) as log:
        await whole(log)


async def test_the_eras_keep_their_order_whatever_the_clock_says(tmp_path: Path) -> None:
    """Four eras that begin at one position, the clock stands still and steps back: the last one is in force."""
    path, clock = tmp_path / "agent.db", ManualClock()
    ids: list[str] = []
    for _ in range(6):
        async with EventLog(path, clock=clock) as log:
            eras = await eras_of(log)
            assert eras[: len(ids)] == ids
            ids = eras
            assert log.store.events.eras.current == ids[-1]
        clock.step(-3600)
        head_of(path).unlink()
    async with EventLog(path, clock=clock) as log:
        event = await (await log.start_session("s")).append("own.type", {})
        assert event.id.partition(":")[0] == (await eras_of(log))[-1]
        assert (await all_of(log.read()))[-1].id == event.id


async def test_old_events_keep_their_era(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    events: list[Event[Any]] = []
    for _ in range(4):
        async with EventLog(path) as log:
            session = await log.start_session("s") if not events else await log.session("s")
            events.append(await session.append("own.type", {}, key=f"k{len(events)}"))
        head_of(path).unlink()
    async with EventLog(path) as log:
        assert await all_of((await log.session("s")).read(after=0)) == events
        assert len({event.era for event in events}) == 4
        for number, event in enumerate(events):
            assert await log.append("s", "own.type", {}, key=f"k{number}") == event


# ------------------------------------------------------------------------------------------------------- its two slots


def written(path: Path, *positions: int) -> bytes:
    """A head file after these positions were proven, each by a commit."""
    head = HeadFile(path)
    head.open(FILE_ID, ERA, positions[0])
    for position in positions[1:]:
        head.committed(position)
    head.close()
    return head_of(path).read_bytes()


def test_two_slots_of_64_bytes_are_written_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    before, after = written(path, 1, 2, 3), written(path, 1, 2, 3, 4)
    assert len(before) == len(after) == 128
    assert HeadFile(path).read() == Proof(7, FILE_ID, ERA, 4)


def test_a_torn_slot_leaves_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    content = written(path, 7, 8, 9)
    for byte in range(128):
        torn = bytearray(content)
        torn[byte] ^= 1
        head_of(path).write_bytes(torn)
        proof = HeadFile(path).read()
        assert proof is not None
        assert proof.position in (8, 9)


def test_opening_keeps_the_last_proof_until_the_new_one_is_there(tmp_path: Path) -> None:
    """Also when what is proven goes back, because a loss was accepted."""
    path = tmp_path / "agent.db"
    content = written(path, 5, 6)
    reopened = written(path, 3)
    assert HeadFile(path).read() == Proof(3, FILE_ID, ERA, 3)
    slots = [content[:64], content[64:]]
    assert slots[0] in reopened or slots[1] in reopened
    assert content[:64] != reopened[:64] or content[64:] != reopened[64:]


async def test_a_head_file_that_cannot_be_written_is_no_reason_to_crash(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    head_of(path).mkdir()
    with pytest.raises((EventLogError, OSError)):
        await EventLog(path).open()
    head_of(path).rmdir()
    async with EventLog(path) as log:
        await log.start_session("s")
