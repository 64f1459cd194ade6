"""Groups are drafted while others fly: whatever becomes of those, each append has its own place or its own error."""

from __future__ import annotations

import asyncio
import sqlite3
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import IndexConflict, KeyConflict, LimitExceeded, SessionNotFound, StorageFull
from eventlog.events import MAX_BATCH_EVENTS, Event, NewEvent, SessionStarted
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.drafting import MAX_OWN_TYPES, checksum
from eventlog.store.writer import GROUP_ROWS, MAX_SESSIONS_AHEAD
from eventlog.testing import ManualClock
from tests.log_kit import all_of, indexes, whole
from tests.torture.counts import Counts

LARGE = {"v": "x" * 20_000}
STARTED = SessionStarted(channel_id="c", mode="chat", purpose="live", project_id="p")


def line(session_id: str, index: int) -> bytes:
    text = '{"type":"own.imported","index":%d,"sessionId":"%s","at":"2026-01-01T00:00:00Z","data":{}}'
    return (text % (index, session_id)).encode()


def limit_pages(connection: sqlite3.Connection, more: int) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + more}")


class Crowd:
    """Tasks that append in every way there is, and what each of them was told."""

    def __init__(self, log: EventLog, seed: int) -> None:
        self.log = log
        self.random = Random(seed)
        self.returned: dict[str, dict[int, Event[Any]]] = {}
        self.refused: dict[type[Exception], int] = {}
        self.sessions: list[Session] = []
        self.begun = 0

    async def work(self) -> None:
        for _ in range(25):
            try:
                await self.one()
            except (StorageFull, IndexConflict, KeyConflict, SessionNotFound) as error:
                self.refused[type(error)] = self.refused.get(type(error), 0) + 1

    async def one(self) -> None:
        chance, session = self.random.random(), self.random.choice(self.sessions)
        data: dict[str, Any] = {"n": self.random.random(), **(LARGE if chance < 0.05 else {})}
        if chance < 0.70:
            self.note(await session.append("own.type", data))
        elif chance < 0.80:
            key = str(self.random.randrange(20))
            self.note(await session.append("own.keyed", {"key": key if chance < 0.78 else "other"}, key=key))
        elif chance < 0.88:
            self.note(await session.append("own.expected", data, expected_index=session.next_index))
        elif chance < 0.94:
            for event in await session.append_many([NewEvent("own.batch", data)] * self.random.randrange(1, 200)):
                self.note(event)
        elif chance < 0.97:
            self.note(await session.append(f"own.new-{self.random.randrange(50)}", data))
        else:
            self.begun += 1
            self.sessions.append(await self.log.start_session(f"begun-{self.begun}"))

    def note(self, event: Event[Any]) -> None:
        known = self.returned.setdefault(event.session_id, {}).setdefault(event.index, event)
        assert known == event

    async def trouble(self) -> None:
        """Turn the disk full and empty again, and import, while the others append."""
        for n in range(12):
            await self.log.store.write(limit_pages, 3)
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)
            await self.log.store.write(limit_pages, 1_000_000)
            _ = await self.log.import_events([line(f"imported-{n}", index) for index in range(3)])


@pytest.mark.faults
async def test_whatever_happens_to_the_groups_before_it_an_append_has_its_own_place(
    tmp_path: Path, counts: Counts
) -> None:
    """A disk that is full now and then, imports, known keys, wrong expectations, new types and sessions at once."""
    for seed in range(counts.crowds):
        await crowded(tmp_path / f"{seed}.db", seed)
    print(f"\n{counts.crowds} crowds, seeds from 0: all held")


async def crowded(path: Path, seed: int) -> None:
    async with EventLog(path) as log:
        crowd = Crowd(log, seed)
        crowd.sessions = [await log.start_session(f"s{n}") for n in range(40)]
        await asyncio.gather(crowd.trouble(), *[crowd.work() for _ in range(200)])
        assert log.store.events.redrafted > 0
        assert {StorageFull, IndexConflict, KeyConflict} <= set(crowd.refused)
        for session_id, events in crowd.returned.items():
            stored = await all_of((await log.session(session_id)).read())
            assert indexes(stored) == list(range(len(stored)))
            assert {event.index: event for event in stored if event.index in events} == events
            assert len(stored) == 1 + len(events)  # what was refused is not there
        await whole(log)


async def test_groups_follow_one_another_without_being_drafted_again(tmp_path: Path) -> None:
    """Sessions, types, keys and expectations that are new do not hold up those behind them."""
    async with EventLog(tmp_path / "agent.db") as log:

        async def live(number: int) -> None:
            session = await log.start_session(f"s{number}")
            for n in range(1, 10):
                await session.append(f"own.{number}.{n}", {}, key=f"k{n}", expected_index=n)

        await asyncio.gather(*[live(number) for number in range(3 * GROUP_ROWS)])
        assert log.store.events.redrafted == 0
        await whole(log)


async def with_types(log: EventLog, count: int) -> Session:
    """A session whose log has so many types of its own."""
    session = await log.start_session("s")
    for start in range(0, count, MAX_BATCH_EVENTS):
        await session.append_many([NewEvent(f"own.t{n}") for n in range(start, min(start + MAX_BATCH_EVENTS, count))])
    return session


async def test_no_type_is_given_out_beyond_the_limit_however_many_come_at_once(tmp_path: Path) -> None:
    """5,000 new types where 10 are left: ten are stored, and appends of known types go on between the refused ones."""
    path = tmp_path / "agent.db"
    async with EventLog(path, durability="process") as log:
        session = await with_types(log, MAX_OWN_TYPES - 10)
        before = session.next_index
        new = [session.append(f"own.new{n}") for n in range(5_000)]
        known = [session.append(f"own.t{n}") for n in range(500)]
        mixed = [append for n in range(500) for append in (*new[10 * n : 10 * n + 10], known[n])]
        outcomes = await asyncio.gather(*mixed, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, LimitExceeded)]
        stored = [each for each in outcomes if isinstance(each, Event)]
        assert (len(refused), len(stored)) == (4_990, 510)
        assert {error.actual for error in refused} == {MAX_OWN_TYPES + 1}
        assert indexes(stored) == list(range(before, before + 510))
        assert [event.type for event in stored if "new" in event.type] == [f"own.new{n}" for n in range(10)]
        await whole(log)
    async with EventLog(path, durability="process") as log:
        assert log.store.events.own_types() == MAX_OWN_TYPES
        assert (await log.session("s")).next_index == before + 510


async def test_a_batch_with_one_type_too_many_is_refused_whole_and_takes_no_type(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", durability="process") as log:
        session = await with_types(log, MAX_OWN_TYPES - 2)
        before = session.next_index
        batch = [NewEvent(f"own.{name}") for name in ("t1", "a", "b", "c", "t2")]
        whole_batch, start, fits, more, too_late = await asyncio.gather(
            session.append_many(batch),
            log.start_session("new"),
            session.append_many([NewEvent(f"own.{name}") for name in ("x", "t1", "y", "x", "y")]),
            session.append_many([NewEvent("own.x"), NewEvent("own.t1")]),
            log.record_start("late", STARTED, more=[NewEvent("own.z")]),
            return_exceptions=True,
        )
        assert isinstance(whole_batch, LimitExceeded)
        assert whole_batch.actual == MAX_OWN_TYPES + 1
        assert isinstance(too_late, LimitExceeded)
        assert isinstance(start, Session)
        assert isinstance(fits, list)
        assert isinstance(more, list)
        assert indexes([*fits, *more]) == list(range(before, before + 7))
        assert [info.id async for info in log.sessions()] == ["s", "new"]
        assert log.store.events.own_types() == MAX_OWN_TYPES
        assert (await log.record_start("late", STARTED)).index == 0, "its id is free again"
        await whole(log)


async def test_an_append_to_a_session_whose_start_is_in_flight_follows_it(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        starting = asyncio.ensure_future(log.start_session("new"))
        while log.store.events.heads.get("new") is None:
            await asyncio.sleep(0)
        early = [asyncio.ensure_future(log.append("new", "own.type", {})) for _ in range(3)]
        _ = await starting
        assert indexes(await asyncio.gather(*early)) == [1, 2, 3]
        await whole(log)


class FailingClock(ManualClock):
    """One that fails now and then, as a clock of somebody else's may."""

    fails = False

    def monotonic_s(self) -> float:
        if self.fails:
            raise RuntimeError("the clock has stopped")
        return super().monotonic_s()


async def test_a_group_that_cannot_be_drafted_is_refused_and_the_next_one_is_stored(tmp_path: Path) -> None:
    clock = FailingClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s")
        clock.fails = True
        appends = [session.append("own.type", {"n": n}) for n in range(3 * GROUP_ROWS)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert {str(outcome) for outcome in outcomes} == {"the clock has stopped"}
        clock.fails = False
        assert (await session.append("own.type", {})).index == 1
        assert log.store.writer.queued_events == log.store.writer.queued_bytes == 0
        await whole(log)


async def test_what_drafts_remember_of_sessions_has_a_bound(tmp_path: Path) -> None:
    """One past the limit is drafted when nothing flies, and nothing is lost by it."""
    async with EventLog(tmp_path / "agent.db", durability="process") as log:
        starting = [log.start_session(f"s{n}") for n in range(MAX_SESSIONS_AHEAD + 2 * GROUP_ROWS)]
        sessions = await asyncio.gather(*starting)
        events = await asyncio.gather(*[session.append("own.type", {}) for session in sessions])
        assert {event.index for event in events} == {1}
        await whole(log)


def test_the_checksum_of_an_event_never_changes() -> None:
    """Files keep it: blake2b-128 of a JSON array and the data, as docs/guarantees.md says."""
    digest = checksum(7, 'a"é', 2, 1_768_208_400_375_125, "own.type", None, "k\\1", b'{"a":1}')
    by_hand = '[7,"a\\"é",2,1768208400375125,"own.type",null,"k\\\\1"]{"a":1}'
    assert digest.hex() == blake2b(by_hand.encode(), digest_size=16).hexdigest() == "e7dca4bb7e4371241d1ad2afe1df7271"
