"""Faults that the torture found, each by itself: what was lost, raw or locked then is not any more."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import LogClosed, NotALog, OutcomeUnknown
from eventlog.events import Event, NewEvent, parse_envelope
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.limits import ObserveLimits
from eventlog.store.events import Events
from eventlog.store.history import import_batch
from eventlog.store.hook_lists import hook_gaps
from eventlog.store.owner import JOURNAL_MAGIC
from tests.log_kit import all_of, indexes, whole
from tests.observing import dispatcher_of, hook_of
from tests.torture import seeded


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


def half_made(path: Path, journal: bytes) -> None:
    """What a power cut can leave of a making: pages, but not the first one, and the journal that takes them back."""
    path.write_bytes(bytes(4_096) + b"x" * 8_192)
    path.with_name(path.name + "-journal").write_bytes(journal)


async def test_a_power_cut_while_a_log_was_made_leaves_one_that_can_be_made(tmp_path: Path) -> None:
    """Its first page was not written. SQLite's journal says that there was nothing before, and makes it so."""
    path = tmp_path / "agent.db"
    header = (
        JOURNAL_MAGIC + (0).to_bytes(4) + (1).to_bytes(4) + (0).to_bytes(4) + (512).to_bytes(4) + (4_096).to_bytes(4)
    )
    half_made(path, header.ljust(512, b"\0"))
    with pytest.raises(NotALog, match="the file is empty"):
        await EventLog(path, read_only=True).open()
    async with EventLog(path) as log:
        assert (await log.start_session("s")).next_index == 1
        await whole(log)


@pytest.mark.parametrize("journal", [b"", b"some other text"])
async def test_a_file_of_zeros_without_a_journal_is_no_log_and_not_touched(tmp_path: Path, journal: bytes) -> None:
    path = tmp_path / "agent.db"
    half_made(path, journal)
    before = path.read_bytes()
    with pytest.raises(NotALog, match="no SQLite database"):
        await EventLog(path).open()
    assert path.read_bytes() == before


def break_the_head_file(log: EventLog) -> None:
    """From now on it cannot be written: its descriptor is one that only reads."""
    descriptor = log.store._head_file._descriptor
    assert descriptor is not None
    os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)


async def test_an_event_whose_proof_could_not_be_written_is_of_unknown_outcome_and_the_lock_is_let_go(
    tmp_path: Path,
) -> None:
    """It is no raw OSError, and not StorageFull, which says that nothing was stored: the event is there."""
    path = tmp_path / "agent.db"
    log = await EventLog(path).open()
    session = await log.start_session("s")
    break_the_head_file(log)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"agent.db.head"):
            await session.append("own.type", {}, key="k")
    with pytest.raises(OutcomeUnknown):
        await log.import_events(
            [b'{"type":"own.type","index":0,"sessionId":"i","at":"2026-01-01T00:00:00Z","data":{}}']
        )
    await log.close()
    async with EventLog(path) as log:
        session = await log.session("s")
        assert (await session.append("own.type", {}, key="k")).index == 1
        assert indexes(await all_of(session.read())) == [0, 1]
        await whole(log)


async def test_what_the_owner_knows_of_a_session_is_never_shown_in_part(log: EventLog) -> None:
    """It is read back after an I/O error, on the thread, while the loop reads and follows. A tail that saw less would
    wait for what is there."""
    session = await log.start_session("s")
    for _ in range(6):
        await session.append_many([NewEvent("own.type")] * 1_000)
    head = log.store.events.heads["s"]

    def read_back(connection: sqlite3.Connection, events: Events) -> None:
        for _ in range(5):
            events.load(connection)

    reading = asyncio.ensure_future(log.store.with_writer(read_back))
    looks = 0
    while not reading.done():
        assert head.next_index == 6_001
        assert len(head.tail.positions) == 6_001
        looks += 1
        if looks % 100 == 0:
            await asyncio.sleep(0)
    assert looks > 100


async def test_a_session_that_is_imported_on_while_it_is_looked_up_has_its_new_end(log: EventLog) -> None:
    """The look-up saw the file before the import and is heard of after it: indexes would have been given out twice."""
    line = b'{"type":"own.type","index":%d,"sessionId":"old","at":"2026-01-01T00:00:00Z","data":{}}'
    await log.import_events([line % n for n in range(3)])
    await log.store.absorb()
    gc.collect()
    assert "old" not in log.store.events.heads
    may_hold, reached, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold(sql: str) -> None:
        if sql == "ROLLBACK" and may_hold.is_set() and not reached.is_set():
            reached.set()
            go_on.wait(20)

    await log.store.read(lambda connection: connection.set_trace_callback(hold))
    may_hold.set()
    looking_up = asyncio.ensure_future(log.session("old"))
    await asyncio.to_thread(reached.wait, 20)
    batch = [(n, parse_envelope(line % n)) for n in range(3, 5)]
    await log.store.with_writer(import_batch, batch)
    await log.store.absorb()
    gc.collect()
    go_on.set()
    session = await looking_up
    assert (session.next_index, (await session.append("own.type", {})).index) == (5, 5)
    await whole(log)


def test_an_event_that_could_not_be_shown_because_the_log_was_closed_is_a_gap(tmp_path: Path) -> None:
    """R127: the log is closed before its dispatcher, which had taken events up, and wrote its cursors behind them."""
    shown: set[int] = set()

    async def show(event: Event[Any], _context: Any) -> None:
        shown.add(event.position)

    def dispatcher_for(log: EventLog) -> Dispatcher:
        return dispatcher_of(log, {"all": hook_of({"*": show})}, limits=ObserveLimits(cursor_every_s=0.001))

    async def live() -> None:
        async with EventLog(tmp_path / "agent.db") as log:
            session = await log.start_session("s")
            dispatcher = dispatcher_for(log)
            await dispatcher.start()
            appends = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(300)]
            while log.head < 2:
                await asyncio.sleep(0.000_01)
            await log.close()  # the queued ones are settled first, and meanwhile nobody can be shown anything
            assert {event.index for event in await asyncio.gather(*appends)} == set(range(1, 301))
            with pytest.raises(LogClosed):
                await dispatcher.stop()

    async def look_again() -> None:
        async with EventLog(tmp_path / "agent.db") as log:
            dispatcher = dispatcher_for(log)
            await dispatcher.start()
            assert await dispatcher.settled(10)
            await dispatcher.stop()
            gaps = await hook_gaps(log.store)
            unheard = [p for p in range(2, 302) if p not in shown and not any(g.first <= p <= g.last for g in gaps)]
            assert unheard == []

    for seed in range(10):
        for old in tmp_path.glob("agent.db*"):
            old.unlink()
        shown.clear()
        seeded.run(seed, live)
        seeded.run(seed, look_again)
