"""Opening and closing a log, its settings, and what `redact` keeps out of it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog.errors import (
    EventLogError,
    InvalidEvent,
    LogClosed,
    ReadOnlyLog,
    SessionNotFound,
)
from eventlog.events import NewEvent
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.owner import HeadFile
from tests.log_kit import Attempt, all_of, everything_in, fill, indexes, nothing_happened, until, whole


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s1")


# -------------------------------------------------------------------------------------------------------- redaction


def hide(event: NewEvent) -> NewEvent:
    text = msgspec.json.encode(event.data).decode().replace("hunter2", "***")
    return NewEvent(event.type, msgspec.json.decode(text), event.turn_id, event.key)


async def test_redact_sees_every_event_before_it_is_stored(tmp_path: Path) -> None:
    """A secret is nowhere in the files: not by append, batch, start or import, nor in the session's own row."""
    path = tmp_path / "agent.db"
    seen: list[str] = []
    line = b'{"type":"own.type","index":0,"sessionId":"%b","at":"2026-01-01T00:00:00Z","data":{"v":"hunter2"}}'
    async with EventLog(path, redact=hide) as log:
        log.on_recorded(lambda events: seen.extend(event.raw.decode() for event in events))
        session = await log.start_session("s", auth={"password": "hunter2"}, title="hunter2", abs=["hunter2"])
        assert (session.info.auth, session.info.title, session.info.abs) == ({"password": "***"}, "***", ["***"])
        event = await session.append("message.received", {"text": "hunter2"}, turn_id="t")
        assert event.data.text == "***"
        await session.append_many([NewEvent("own.type", {"v": "hunter2"}, key="k")])
        assert (await log.import_events([line % b"old"])).added == 1
        assert (await log.import_events([line % b"old"])).known == 1
        assert (await log.import_events([line % b"new"], live=True)).added == 0  # no session of this name
        assert (await log.import_events([line % b"s"], live=True)).added == 1
        assert session.info.auth == {"password": "***"}
        assert not any("hunter2" in text for text in seen)
        assert not any(b"hunter2" in content for content in everything_in(tmp_path).values())
    assert not any(b"hunter2" in content for content in everything_in(tmp_path).values())


async def test_a_redact_that_raises_stores_nothing(tmp_path: Path) -> None:
    def refuse(event: NewEvent) -> NewEvent:
        if event.data.get("bad"):  # type: ignore[union-attr]
            raise LookupError("no rule for this")
        return event

    async with EventLog(tmp_path / "agent.db", redact=lambda e: e if e.type == "session.started" else refuse(e)) as log:
        session = await log.start_session("s")
        with pytest.raises(LookupError):
            await session.append("own.type", {"bad": 1})
        await nothing_happened(log, session, 1)


async def test_a_redact_cannot_make_a_session_without_a_start(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", redact=lambda e: NewEvent("own.type", {})) as log:
        with pytest.raises(InvalidEvent, match=r"session\.started"):
            await log.start_session("s")
        assert await all_of(log.sessions()) == []


# --------------------------------------------------------------------------------------------------- open and close


async def test_full_is_the_default_and_process_is_a_choice(tmp_path: Path) -> None:
    """The sync level in force on the writing connection is the one that was promised, and `stats` names it."""
    for durability, level in ((None, 2), ("full", 2), ("process", 1)):
        options: dict[str, Any] = {} if durability is None else {"durability": durability}
        async with EventLog(tmp_path / f"{durability}.db", **options) as log:
            assert await log.store.write(lambda c: c.execute("PRAGMA synchronous").fetchone()[0]) == level
            assert (await log.stats())["durability"] == (durability or "full")
    with pytest.raises(ValueError, match="'full' or 'process'"):
        EventLog(tmp_path / "x.db", durability="fast")  # type: ignore[arg-type]


async def test_the_head_file_of_durability_process_proves_what_was_checkpointed(tmp_path: Path) -> None:
    """It may lag, never lead: a power cut may take commits that no checkpoint brought to the disk."""
    path = tmp_path / "agent.db"
    async with EventLog(path, durability="process") as log:
        await fill(await log.start_session("s"), 5)
        assert proven(path) == 0
        await until(lambda: proven(path) == 6)  # the writer had nothing to do for a second, and made a checkpoint
    assert proven(path) == 6
    async with EventLog(path, durability="process") as log:
        await log.append("s", "own.type", {})
        assert proven(path) == 6
    async with EventLog(path) as log:
        await log.append("s", "own.type", {})
        assert proven(path) == 8


def proven(path: Path) -> int:
    proof = HeadFile(path).read()
    assert proof is not None
    return proof.position


async def test_a_log_that_is_not_open_says_so(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "agent.db")

    async def is_refused() -> None:
        attempts: list[Attempt] = [
            lambda: log.start_session("s"),
            lambda: log.append("s", "own.type", {}),
            lambda: log.session("s"),
            lambda: all_of(log.read()),
            lambda: all_of(log.sessions()),
            lambda: log.stats(),
            lambda: log.check(),
            lambda: log.import_events([]),
        ]
        for attempt in attempts:
            with pytest.raises(LogClosed):
                await attempt()

    await is_refused()
    assert not log.path.exists()
    await log.open()
    await log.open()  # again: nothing
    session = await log.start_session("s")
    await log.close()
    await log.close()
    await is_refused()
    with pytest.raises(LogClosed):
        await session.append("own.type", {})
    with pytest.raises(LogClosed):
        await all_of(session.read())
    assert session.info.id == "s"


async def test_a_session_of_an_earlier_opening_cannot_be_used_in_the_next(tmp_path: Path) -> None:
    """Its memory is of another time: two heads of one session would give out one index twice."""
    log = EventLog(tmp_path / "agent.db")
    async with log:
        old = await log.start_session("s")
    async with log:
        new = await log.session("s")
        assert (await new.append("own.type", {"w": 2})).index == 1
        with pytest.raises(LogClosed, match="since this session was taken"):
            await old.append("own.type", {"w": 1})
        with pytest.raises(LogClosed):
            await all_of(old.read())
        assert await all_of(old.tail()) == []
        await whole(log)


async def test_a_log_can_be_opened_by_several_at_once_and_while_it_closes(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "agent.db")
    await asyncio.gather(*[log.open() for _ in range(5)])
    await log.start_session("s")
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    await asyncio.gather(log.open(), log.open())
    assert (await log.append("s", "own.type", {})).index == 1
    await closing
    await log.close()


async def test_every_close_waits_until_the_file_is_let_go(tmp_path: Path) -> None:
    log = await EventLog(tmp_path / "agent.db").open()
    session = await log.start_session("s")
    appends = [asyncio.ensure_future(session.append("own.type", {"n": n})) for n in range(300)]
    await asyncio.sleep(0)
    first = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    await log.close()
    async with EventLog(log.path) as again:
        await first
        assert indexes(await asyncio.gather(*appends)) == list(range(1, 301))
        assert (await again.session("s")).next_index == 301


async def test_a_cancelled_close_settles_every_append_and_lets_the_file_go(tmp_path: Path) -> None:
    log = await EventLog(tmp_path / "agent.db").open()
    session = await log.start_session("s")
    appends = [asyncio.ensure_future(session.append("own.type", {"n": n})) for n in range(2_000)]
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    for task in asyncio.all_tasks() - before - {closing}:  # as the end of the loop does
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert len(await asyncio.gather(*appends)) == 2_000
    while (opened := await try_to_open(log.path)) is None:
        await asyncio.sleep(0)
    async with opened:
        assert (await opened.session("s")).next_index == 2_001


async def try_to_open(path: Path) -> EventLog | None:
    try:
        return await EventLog(path).open()
    except EventLogError:
        return None


async def test_a_read_only_log_reads_and_refuses_the_rest(log: EventLog, session: Session) -> None:
    await fill(session, 3)
    async with EventLog(log.path, read_only=True) as reader:
        theirs = await reader.session("s1")
        assert await all_of(theirs.read()) == await all_of(session.read())
        assert await all_of(reader.read()) == await all_of(log.read())
        assert await reader.session_info("s1") == session.info
        assert await reader.committed() == log.head == 4
        attempts: list[Attempt] = [
            lambda: theirs.append("own.type", {}),
            lambda: theirs.append_many([NewEvent("own.type")]),
            lambda: reader.append("s1", "own.type", {}),
            lambda: reader.start_session("s2"),
            lambda: reader.import_events([b"{}"]),
        ]
        for attempt in attempts:
            with pytest.raises(ReadOnlyLog, match="opened read-only"):
                await attempt()
        with pytest.raises(SessionNotFound):
            await reader.session("s2")


async def test_a_read_only_log_of_a_missing_file_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await EventLog(tmp_path / "no" / "agent.db", read_only=True).open()
    with pytest.raises(FileNotFoundError):
        await EventLog(tmp_path / "agent.db", read_only=True).open()
    assert everything_in(tmp_path) == {}


async def test_reading_changes_no_byte_of_a_log_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 20)
    before, changed = everything_in(tmp_path), path.stat().st_mtime_ns
    async with EventLog(path, read_only=True) as log:
        assert len(await all_of(log.read())) == 21
        assert (await log.check()).ok
        await log.stats()
    after = {name: content for name, content in everything_in(tmp_path).items() if not name.endswith(("-shm", "-wal"))}
    assert (after, path.stat().st_mtime_ns) == (before, changed)


async def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    """Characters that mean something in a URI or in SQL mean nothing in a path."""
    path = tmp_path / "a b?c=1#d%41&'\"é.db"
    async with EventLog(path) as log:
        await log.start_session("s")
    assert path.exists()
    async with EventLog(str(path), read_only=True) as log:
        assert [info.id async for info in log.sessions()] == ["s"]


async def test_a_log_does_not_follow_a_change_of_the_working_folder(tmp_path: Path) -> None:
    start = Path.cwd()
    (tmp_path / "elsewhere").mkdir()
    try:
        os.chdir(tmp_path)
        async with EventLog("agent.db") as log:
            session = await log.start_session("s")
            os.chdir(tmp_path / "elsewhere")
            await log.store.with_writer(lambda c, e: e.load(log.store.writer.take_up_again()))
            assert (await session.append("own.type", {})).index == 1
            assert (await log.stats())["databaseBytes"] > 0
    finally:
        os.chdir(start)
    assert everything_in(tmp_path / "elsewhere") == {}


async def test_stats_count_what_is_there(log: EventLog, session: Session) -> None:
    await fill(session, 9)
    stats = await log.stats()
    assert (stats["events"], stats["lastPosition"], stats["sessions"]) == (10, 10, 1)
    assert (stats["notInSessionIndex"], stats["ownerPid"], stats["epoch"]) == (10, os.getpid(), 1)
    assert stats["databaseBytes"] > 0
    await log.store.absorb()
    assert (await log.stats())["notInSessionIndex"] == 0


async def test_the_views_for_people_tell_what_read_tells(log: EventLog, session: Session) -> None:
    """The columns of `events` are the envelope's, and the places of the log."""
    await session.append("message.received", {"text": "hi"}, turn_id="t1", key="k")
    with closing(sqlite3.connect(f"file:{log.path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT position, session_id, idx, type, turn_id, data, key FROM events ORDER BY position"
        ).fetchall()
        assert connection.execute("SELECT id, next_idx, status FROM sessions").fetchall() == [("s1", 2, "active")]
    assert rows == [
        (e.position, e.session_id, e.index, e.type, e.turn_id, e.raw.decode(), e.key) async for e in log.read()
    ]
