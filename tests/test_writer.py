"""The writer: groups really group, a cancelled append is settled, the queue is bounded, nobody pays for others."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import (
    EventLogError,
    IndexConflict,
    InvalidEvent,
    KeyConflict,
    LogClosed,
    SessionExists,
    SessionNotFound,
)
from eventlog.events import Event, NewEvent
from eventlog.known import RECENT_SESSIONS
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.writer import (
    CHECKPOINT_PAGES_AT_LEISURE,
    MAX_QUEUE_BYTES,
    MAX_QUEUE_EVENTS,
    PAGE_BYTES,
    TRUNCATE_PAGES,
)
from tests.log_kit import all_of, assert_unlocked, busy_writer, crash_copy, damaging, fill, indexes, until, whole


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s1")


# ------------------------------------------------------------------------------------------------- group commit


async def test_what_waits_together_is_committed_together(log: EventLog, session: Session) -> None:
    before = log.store.writer.groups
    await asyncio.gather(*[session.append("own.type", {}) for _ in range(256)])
    assert 2 <= log.store.writer.groups - before <= 16
    before = log.store.writer.groups
    await fill(session, 10)
    assert log.store.writer.groups - before == 10


async def test_a_batch_is_one_commit(log: EventLog, session: Session) -> None:
    """Also of more rows than a statement takes: another process sees all of it or nothing."""
    seen: set[int] = set()
    before = log.store.writer.groups
    async with EventLog(log.path, read_only=True) as reader:
        appending = asyncio.ensure_future(session.append_many([NewEvent("own.type")] * 1_000))
        while not appending.done():
            seen.add(await reader.committed())
    assert seen <= {1, 1_001}
    assert log.store.writer.groups - before == 1


async def test_append_takes_what_waits_in_the_order_of_the_calls(log: EventLog) -> None:
    sessions = [await log.start_session(f"s{n}") for n in range(7)]
    tasks = [asyncio.ensure_future(sessions[n % 7].append("own.type", {"n": n})) for n in range(700)]
    events = await asyncio.gather(*tasks)
    assert [event.position for event in events] == list(range(8, 708))


async def contend(log: EventLog, ids: list[str], tasks: int, each: int) -> dict[str, list[Event[Any]]]:
    """Tasks that append to sessions picked by a seed, singly and in batches; what was returned, by session."""
    returned: dict[str, list[Event[Any]]] = {id: [] for id in ids}

    async def work(number: int) -> None:
        random = Random(number)
        for n in range(each):
            id = random.choice(ids)
            data = {"by": number, "n": n}
            if random.random() < 0.1:
                batch = [NewEvent("own.type", {**data, "part": part}) for part in range(3)]
                returned[id] += await (await log.session(id)).append_many(batch)
            else:
                returned[id].append(await log.append(id, "own.type", data))

    await asyncio.gather(*[work(number) for number in range(tasks)])
    return returned


async def assert_contiguous(log: EventLog, returned: dict[str, list[Event[Any]]], start: int = 1) -> None:
    for id, events in returned.items():
        events.sort(key=lambda event: event.index)
        assert indexes(events) == list(range(start, start + len(events))), id
        assert await all_of((await log.session(id)).read(after=start - 1)) == events, id
    await whole(log)


async def test_50_tasks_append_20_events_each_to_one_session(log: EventLog) -> None:
    """A1."""
    await log.start_session("one")
    returned = await contend(log, ["one"], tasks=50, each=20)
    assert len(returned["one"]) >= 1_000
    await assert_contiguous(log, returned)


async def test_50_tasks_append_20_events_each_to_ten_sessions(log: EventLog) -> None:
    """A1."""
    ids = [(await log.start_session(f"s{n}")).id for n in range(10)]
    await assert_contiguous(log, await contend(log, ids, tasks=50, each=20))


async def test_64_tasks_append_to_1000_sessions_across_slices_and_a_reopening(tmp_path: Path) -> None:
    """The session index absorbs two slices and more meanwhile; nothing is lost, doubled or out of order."""
    path = tmp_path / "agent.db"
    async with EventLog(path, slice_rows=700) as log:
        ids = [f"s{n}" for n in range(1_000)]
        await asyncio.gather(*[log.start_session(id) for id in ids])
        first = await contend(log, ids, tasks=64, each=15)
        assert (await log.stats())["notInSessionIndex"] < 1_500
        await assert_contiguous(log, first)
    async with EventLog(path, slice_rows=700) as log:
        again = await contend(log, ids, tasks=64, each=15)
        await assert_contiguous(log, {id: first[id] + again[id] for id in ids})
    async with EventLog(path, read_only=True) as log:
        await assert_contiguous(log, {id: first[id] + again[id] for id in ids})


async def test_many_that_find_a_session_anew_share_its_one_memory(tmp_path: Path) -> None:
    """Nothing of it is in memory, 60 tasks ask for it at once by its id and by handles: two would give out one index
    twice. The same when it was long not in use, and 4,200 other sessions were."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 3)
    async with EventLog(path) as log:

        async def by_handle(n: int) -> Event[Any]:
            return await (await log.session("s")).append("own.type", {"n": n})

        async def many_at_once(first: int) -> None:
            attempts = [by_handle(n) if n % 2 else log.append("s", "own.type", {"n": n}) for n in range(60)]
            assert sorted(indexes(await asyncio.gather(*attempts))) == list(range(first, first + 60))

        await many_at_once(4)
        await asyncio.gather(*[log.start_session(f"other{n}") for n in range(RECENT_SESSIONS + 100)])
        await asyncio.gather(*[log.append(f"other{n}", "own.type", {}) for n in range(RECENT_SESSIONS + 100)])
        await log.store.absorb()
        await many_at_once(64)
        assert indexes(await all_of((await log.session("s")).read())) == list(range(124))
        await whole(log)


# ----------------------------------------------------------------------------------------------------- cancellation


def one(log: EventLog, session: Session) -> Awaitable[object]:
    return session.append("own.type", {"n": 1})


def by_id(log: EventLog, session: Session) -> Awaitable[object]:
    return log.append("s1", "own.type", {"n": 1})


def a_batch(log: EventLog, session: Session) -> Awaitable[object]:
    return session.append_many([NewEvent("own.type", {"n": n}) for n in range(300)])


def with_key(log: EventLog, session: Session) -> Awaitable[object]:
    return session.append("own.type", {"n": 1}, key="k")


@pytest.mark.parametrize("work", [one, by_id, a_batch, with_key])
async def test_a_cancelled_append_is_wholly_there_or_wholly_absent(
    log: EventLog, work: Callable[[EventLog, Session], Awaitable[object]]
) -> None:
    """Cancelled after any number of the loop's turns. When it says so, it is settled: nothing comes after."""
    session = await log.start_session("s1")
    size = 300 if work is a_batch else 1
    cancelled = 0
    for turns in range(61):
        before = session.next_index
        task = asyncio.ensure_future(work(log, session))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
        stored = len(await all_of(session.read(after=before - 1)))
        assert stored in (0, size), turns
        await assert_unlocked(log)
        event = await session.append("own.next", {})
        assert event.index == before + stored
    assert cancelled > 0
    await whole(log)


async def test_a_cancelled_start_is_wholly_there_or_wholly_absent(log: EventLog) -> None:
    for turns in range(61):
        task = asyncio.ensure_future(log.start_session(f"s{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            session = await log.session(f"s{turns}")
        except SessionNotFound:
            session = await log.start_session(f"s{turns}")
        assert (await session.append("own.type", {})).index == 1
    await whole(log)


async def test_many_cancelled_at_once_leave_a_whole_log(log: EventLog, session: Session) -> None:
    random = Random(7)
    tasks = [asyncio.ensure_future(session.append("own.type", {"n": n})) for n in range(1_000)]
    while not all(task.done() for task in tasks):
        random.choice(tasks).cancel()
        await asyncio.sleep(0)
    settled = await asyncio.gather(*tasks, return_exceptions=True)
    known = [result for result in settled if isinstance(result, Event)]
    stored = await all_of(session.read(after=0))
    assert set(known) <= set(stored)
    assert indexes(stored) == list(range(1, len(stored) + 1))
    await whole(log)


async def test_a_timeout_around_append_waits_for_the_outcome(log: EventLog, session: Session) -> None:
    before = session.next_index
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await session.append("own.type", {})
    stored = len(await all_of(session.read(after=before - 1)))
    assert session.next_index == before + stored


async def test_other_work_on_the_writer_is_settled_when_its_cancellation_arrives(log: EventLog) -> None:
    def put(connection: sqlite3.Connection, n: int) -> None:
        connection.execute("INSERT INTO kv VALUES ('a', ?, '1')", (n,))

    def count(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT count(*) FROM kv").fetchone()[0])

    for turns in range(20):
        before = await log.store.read(count)
        task = asyncio.ensure_future(log.store.write(put, turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = await log.store.read(count)
        assert after in (before, before + 1)
        await assert_unlocked(log)
        assert await log.store.read(count) == after


# ------------------------------------------------------------------------------------------------- one pays for one


async def test_an_append_that_is_refused_takes_no_other_with_it(log: EventLog, session: Session) -> None:
    """All in one group: conflicts of index and key, a session that exists, bad data; the rest is stored."""
    await session.append("own.type", {"n": "first"}, key="k")
    good = [session.append("own.type", {"n": n}) for n in range(40)]
    bad: list[Awaitable[object]] = [
        session.append("own.type", {}, expected_index=0),
        session.append("own.type", {"n": "other"}, key="k"),
        session.append_many([NewEvent("own.type", {"n": "first"}, key="k"), NewEvent("own.type", key="l")]),
        session.append("own.type", {"n": float("nan")}),
        log.start_session("s1"),
        log.append("nobody", "own.type", {}),
    ]
    mixed: list[Awaitable[object]] = [*good[:20], *bad, *good[20:]]
    results = await asyncio.gather(*mixed, return_exceptions=True)
    errors = [type(result) for result in results if isinstance(result, BaseException)]
    assert errors == [IndexConflict, KeyConflict, KeyConflict, InvalidEvent, SessionExists, SessionNotFound]
    assert indexes([result for result in results if isinstance(result, Event)]) == list(range(2, 42))
    await whole(log)


async def test_a_key_whose_event_is_damaged_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s1")
        await session.append("own.type", {"n": 1}, key="k")
    with damaging(path) as connection:
        connection.execute("INSERT INTO gate VALUES (1, 'forget')")
        connection.execute("UPDATE log SET data = CAST(x'ff7b00' AS TEXT) WHERE key = 'k'")
        connection.execute("DELETE FROM gate")
    async with EventLog(path) as log:
        session = await log.session("s1")
        again = asyncio.ensure_future(session.append("own.type", {"n": 1}, key="k"))
        other = asyncio.ensure_future(session.append("own.type", {}))
        with pytest.raises(KeyConflict):
            await again
        assert (await other).index == 2


async def test_a_start_that_fails_takes_no_append_with_it(log: EventLog, session: Session) -> None:
    """The start of one session cannot be stored; what was appended to it is refused, everything else is there."""
    await log.store.write(lambda c: c.execute("CREATE TEMP TABLE refuse (id TEXT)"))
    await log.store.write(
        lambda c: c.execute(
            "CREATE TEMP TRIGGER no_such_session BEFORE INSERT ON main.session WHEN NEW.id = 'bad'"
            " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    )
    starting = asyncio.ensure_future(log.start_session("bad"))
    await until(lambda: "bad" in log.store.events.heads or starting.done())
    late = [asyncio.ensure_future(log.append("bad", "own.type", {})) for _ in range(3)]
    good = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(3)]
    with pytest.raises(EventLogError, match="not this one"):
        await starting
    for append in late:
        with pytest.raises((SessionNotFound, EventLogError)):
            await append
    await asyncio.gather(*good, return_exceptions=True)
    await log.store.write(lambda c: c.execute("DROP TRIGGER no_such_session"))
    await log.start_session("bad")
    assert (await log.append("bad", "own.type", {})).index == 1
    assert (await session.append("own.type", {})).index == session.next_index - 1
    await whole(log)


async def test_units_of_many_kinds_do_not_break_each_others_transactions(log: EventLog) -> None:
    """B3: Batches, single appends, other tables and reads at once, and some that fail at their last statement."""
    sessions = [await log.start_session(f"s{n}") for n in range(20)]

    def put(connection: sqlite3.Connection, n: int, fails: bool) -> None:
        for part in range(5):
            connection.execute("INSERT INTO kv VALUES (?, ?, '1')", (f"a{n}", part))
        if fails:
            connection.execute("INSERT INTO kv VALUES (?, 0, '1')", (f"a{n}",))

    def keys(connection: sqlite3.Connection) -> set[tuple[str, int]]:
        return set(connection.execute("SELECT agent, count(*) FROM kv GROUP BY agent"))

    work: list[Awaitable[object]] = []
    for n, session in enumerate(sessions):
        work.append(session.append_many([NewEvent("own.type", {"n": part}) for part in range(200)]))
        work.append(log.store.write(put, n, n % 4 == 3))
        work.append(all_of(session.read()))
        work.append(session.append("own.type", {}))
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    assert [type(failure).__name__ for failure in failures] == ["StoreError"] * 5
    assert await log.store.read(keys) == {(f"a{n}", 5) for n in range(20) if n % 4 != 3}
    for session in sessions:
        assert indexes(await all_of(session.read())) == list(range(202))
    await whole(log)


async def test_who_is_told_of_events_may_raise(log: EventLog, session: Session, caplog: Any) -> None:
    """It is logged, and everybody else hears of them; appending and closing go on."""
    told: list[int] = []

    def fail(events: list[Event[Any]]) -> None:
        raise LookupError("not mine")

    log.on_recorded(fail)
    log.on_recorded(lambda events: told.extend(event.index for event in events))
    await fill(session, 3)
    assert told == [1, 2, 3]
    assert caplog.text.count("LookupError: not mine") == 3
    await log.close()


# ---------------------------------------------------------------------------------------------------- back-pressure


async def test_the_queue_takes_10000_events_then_append_waits(log: EventLog, session: Session) -> None:
    writer = log.store.writer
    tasks = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(MAX_QUEUE_EVENTS - 1)]
    await asyncio.sleep(0)
    assert writer.queued_events == MAX_QUEUE_EVENTS - 1
    tasks += [asyncio.ensure_future(session.append("own.type", {})) for _ in range(50)]
    most, done = 0, asyncio.gather(*tasks)
    while not done.done():
        await asyncio.sleep(0)
        most = max(most, writer.queued_events)
    assert most == MAX_QUEUE_EVENTS
    assert writer.queued_events == 0
    assert indexes(await done) == list(range(1, MAX_QUEUE_EVENTS + 50))
    await whole(log)


async def test_the_queue_takes_64_mib_then_append_waits(log: EventLog, session: Session) -> None:
    writer = log.store.writer
    mib = {"v": "x" * (1024 * 1024 - 8)}
    tasks = [asyncio.ensure_future(session.append("own.type", mib)) for _ in range(80)]
    most, done = 0, asyncio.gather(*tasks)
    while not done.done():
        await asyncio.sleep(0)
        most = max(most, writer.queued_bytes)
    assert MAX_QUEUE_BYTES - 1024 * 1024 < most < MAX_QUEUE_BYTES + 1024 * 1024 + 1_000
    assert len(await done) == 80
    assert writer.queued_bytes == writer.queued_events == 0


async def test_batches_wait_like_single_events(log: EventLog, session: Session) -> None:
    """The queue is over its bound by one batch at most, however many wait for room."""
    writer = log.store.writer
    tasks = [asyncio.ensure_future(session.append_many([NewEvent("own.type")] * 900)) for _ in range(40)]
    most, done = 0, asyncio.gather(*tasks)
    while not done.done():
        await asyncio.sleep(0)
        most = max(most, writer.queued_events)
    assert most < MAX_QUEUE_EVENTS + 900
    assert sorted(index for batch in await done for index in indexes(batch)) == list(range(1, 36_001))


async def test_a_cancelled_wait_for_room_gives_its_place_to_the_next(log: EventLog, session: Session) -> None:
    random = Random(7)
    tasks = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(MAX_QUEUE_EVENTS + 500)]
    await asyncio.sleep(0)
    waiting = tasks[MAX_QUEUE_EVENTS:]
    for task in random.sample(waiting, 250):
        task.cancel()
        if random.random() < 0.3:
            await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    events = [result for result in results if isinstance(result, Event)]
    assert len(events) >= MAX_QUEUE_EVENTS + 250
    stored = await all_of(session.read(after=0))
    assert set(events) <= set(stored)
    assert indexes(stored) == list(range(1, len(stored) + 1))


async def test_closing_settles_the_queue_and_refuses_who_waits_for_room(log: EventLog, session: Session) -> None:
    tasks = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(MAX_QUEUE_EVENTS + 100)]
    await asyncio.sleep(0)
    await log.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, Event) for result in results[:MAX_QUEUE_EVENTS])
    assert {type(result) for result in results[MAX_QUEUE_EVENTS:]} <= {Event, LogClosed}
    stored = sum(isinstance(result, Event) for result in results)
    async with EventLog(log.path) as again:
        assert (await again.session("s1")).next_index == stored + 1


async def test_who_is_cancelled_while_waiting_for_room_as_the_log_is_closed_is_cancelled(
    log: EventLog, session: Session
) -> None:
    async with busy_writer(log):
        tasks = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(MAX_QUEUE_EVENTS + 10)]
        await until(lambda: len(log.store.writer._room) == 10)
        closing = asyncio.ensure_future(log.store.writer.close())  # begins before those who are cancelled hear of it
        for task in tasks[MAX_QUEUE_EVENTS::2]:
            task.cancel()
        refused = await asyncio.gather(*tasks[MAX_QUEUE_EVENTS:], return_exceptions=True)
        assert [type(each) for each in refused] == [asyncio.CancelledError, LogClosed] * 5
    await closing
    assert indexes(await asyncio.gather(*tasks[:MAX_QUEUE_EVENTS])) == list(range(1, MAX_QUEUE_EVENTS + 1))


async def test_who_still_finds_no_room_when_the_log_is_closed_is_refused(log: EventLog, session: Session) -> None:
    """At once, and not when those that are queued are stored."""
    batch, writer = [NewEvent("own.type")] * 1_000, log.store.writer
    async with busy_writer(log):
        tasks = [asyncio.ensure_future(session.append_many(batch)) for _ in range(MAX_QUEUE_EVENTS // 1_000 + 5)]
        await until(lambda: len(writer._room) == 5)
        assert writer.queued_events == MAX_QUEUE_EVENTS
        closing = asyncio.ensure_future(writer.close())
        refused = await asyncio.gather(*tasks[10:], return_exceptions=True)
        assert [type(each) for each in refused] == [LogClosed] * 5
        assert not closing.done()
    await closing
    assert [len(stored) for stored in await asyncio.gather(*tasks[:10])] == [1_000] * 10
    assert indexes(await all_of(session.read())) == list(range(10_001))


async def test_a_close_that_every_canceller_meets_settles_the_queue_all_the_same(
    log: EventLog, session: Session
) -> None:
    """As when a server cancels every task that it finds, again and again."""
    appends = [asyncio.ensure_future(session.append("own.type", {})) for _ in range(2_000)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close())
    while not closing.done():
        for task in asyncio.all_tasks() - {*appends, asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(closing, return_exceptions=True)
    await log.close()
    assert {type(result) for result in await asyncio.gather(*appends)} == {Event}
    async with EventLog(log.path) as again:
        assert (await again.session("s1")).next_index == 2_001


# ------------------------------------------------------------------------------------------------- checkpoints, idle


async def test_an_idle_writer_brings_the_wal_into_the_file_and_says_so(log: EventLog, session: Session) -> None:
    """After a second without an append, so that whoever dies then leaves a file that is whole by itself."""
    writer = log.store.writer
    await fill(session, 3)
    assert writer._pages_since_checkpoint > 0
    await until(lambda: writer._pages_since_checkpoint == 0)
    assert writer.wal_pages > 0
    alone = crash_copy(log.path, log.path.with_name("copy"))
    alone.with_name(f"{alone.name}-wal").unlink()
    with closing(sqlite3.connect(alone)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (4,)


async def test_an_idle_writer_that_has_nothing_to_bring_does_nothing(log: EventLog, session: Session) -> None:
    """The checkpoint was made behind the last append, which was large."""
    writer = log.store.writer
    await session.append_many([NewEvent("own.type", {"v": "x" * 500_000}) for _ in range(10)])
    await until(lambda: writer._pages_since_checkpoint == 0)
    pages = writer.wal_pages
    assert pages > CHECKPOINT_PAGES_AT_LEISURE
    await until(lambda: writer._idle_timer is None)
    await assert_unlocked(log)
    assert writer.wal_pages == pages


@pytest.mark.parametrize("kind", ["one by one", "in groups", "large"])
async def test_the_pages_that_commits_are_guessed_to_add_are_near_to_those_that_they_add(
    log: EventLog, session: Session, kind: str
) -> None:
    """SQLite tells how long the WAL is only with a checkpoint, and when to make one is what the guess is for."""
    writer = log.store.writer
    writer.checkpoints_suspended += 1
    await log.store.with_writer(lambda connection, _: writer._checkpoint(connection))
    if kind == "one by one":
        await fill(session, 200)
    elif kind == "in groups":
        await asyncio.gather(*[session.append("own.type", {"n": n}) for n in range(5_000)])
    else:
        await fill(session, 40, text="x" * 50_000)
    guessed = await log.store.with_writer(lambda _connection, _: writer._pages_since_checkpoint)
    await log.store.with_writer(lambda connection, _: writer._checkpoint(connection))
    assert 0.6 * writer.wal_pages < guessed < 1.25 * writer.wal_pages


async def test_a_wal_that_a_reader_made_long_is_cut_when_it_lets_go(tmp_path: Path) -> None:
    """While somebody reads an old state no page of the WAL can be written anew; afterwards it is no longer 64 MiB."""
    async with EventLog(tmp_path / "agent.db", durability="process") as log:
        session = await log.start_session("s1")
        wal = tmp_path / "agent.db-wal"
        with closing(sqlite3.connect(log.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
            for _ in range(70):
                await session.append("own.type", {"v": "x" * 1_000_000})
            assert wal.stat().st_size > TRUNCATE_PAGES * PAGE_BYTES
            assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
            reader.execute("ROLLBACK")
        await until(lambda: wal.stat().st_size == 0)
        await session.append("own.type", {})
        await whole(log)


# ------------------------------------------------------------------------------------------------------- starvation


async def test_a_group_lands_while_the_loop_is_saturated(log: EventLog, session: Session) -> None:
    """Slices of 1 ms without a pause never let another thread run for long; the writer gets its turn all the same."""
    saturating = True

    async def saturate() -> None:
        while saturating:
            until_s = time.perf_counter() + 0.001
            while time.perf_counter() < until_s:
                pass
            await asyncio.sleep(0)

    burning = asyncio.ensure_future(saturate())
    events = await fill(session, 5)
    events += await asyncio.gather(*[session.append("own.type", {}) for _ in range(300)])
    saturating = False
    await burning
    assert indexes(events) == list(range(1, 306))
