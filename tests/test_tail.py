"""Tails: history, then live, without a gap or a repeat, here and from another process; they end with the log."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.session import Session
from tests.log_kit import (
    all_of,
    child,
    damaging,
    fill,
    first_of,
    indexes,
    line_of,
    tell_child,
    until,
)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db", slice_rows=256) as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s1")


class Follower:
    """A task that follows a tail and notes what it gets."""

    def __init__(self, tail: AsyncIterator[Event[Any]], random: Random | None = None) -> None:
        self.events: list[Event[Any]] = []
        self._random = random
        self.task = asyncio.ensure_future(self._follow(tail))

    async def _follow(self, tail: AsyncIterator[Event[Any]]) -> None:
        async for event in tail:
            self.events.append(event)
            while self._random is not None and self._random.random() < 0.2:
                await asyncio.sleep(0)

    async def has(self, count: int) -> list[Event[Any]]:
        await until(lambda: len(self.events) >= count or self.task.done())
        return self.events


def waiters(log: EventLog, session: Session) -> int:
    head = log.store.events.heads[session.id]
    return len(head.waiters)


# ------------------------------------------------------------------------------------------- history, then live


@pytest.mark.parametrize("in_batches", [False, True])
async def test_tails_that_start_at_any_moment_get_their_range_once(
    log: EventLog, session: Session, in_batches: bool
) -> None:
    """F1: A writer appends 2,000 events flat out; tails begin meanwhile at the start, in the middle and at the head."""
    random, count, followers = Random(7), 2_000, list[tuple[int, Follower]]()
    readers = [await EventLog(log.path, read_only=True, poll_s=0.001).open() for _ in range(2)]

    async def write() -> None:
        if in_batches:
            for _ in range(0, count, 50):
                await session.append_many([NewEvent("own.type")] * 50)
        else:
            for _ in range(0, count, 20):
                await asyncio.gather(*[session.append("own.type", {}) for _ in range(20)])

    writing = asyncio.ensure_future(write())
    for n in range(20):
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        opened = random.choice([log, log, *readers])
        after = random.choice([-1, session.next_index // 2, session.next_index - 1])
        if n % 2:
            followers.append((after, Follower((await opened.session("s1")).tail(after=after), random)))
        else:  # of this one session, a position is an index and one
            followers.append((after, Follower(opened.tail(after=after + 1), random)))
    await writing
    for after, follower in followers:
        events = await follower.has(count - after)
        assert indexes(events) == list(range(after + 1, count + 1))
    for reader in readers:
        await reader.close()
    await log.close()
    await asyncio.gather(*[follower.task for _, follower in followers])
    assert [len(follower.events) for _, follower in followers] == [count - after for after, _ in followers]


async def test_a_tail_behind_the_head_waits_for_what_comes(log: EventLog, session: Session) -> None:
    follower = Follower(session.tail(after=session.next_index - 1))
    await until(lambda: waiters(log, session))
    assert follower.events == []
    event = await session.append("own.type", {})
    assert await follower.has(1) == [event]


@pytest.mark.parametrize("after", [2**63, 2**70])
async def test_a_tail_beyond_every_index_waits_and_ends(log: EventLog, session: Session, after: int) -> None:
    followers = [Follower(session.tail(after=after)), Follower(log.tail(after=after))]
    await until(lambda: waiters(log, session))
    await fill(session, 3)
    await until(lambda: waiters(log, session))
    await log.close()
    await asyncio.gather(*[follower.task for follower in followers])
    assert [follower.events for follower in followers] == [[], []]


async def test_a_tail_of_types_passes_the_others(log: EventLog, session: Session) -> None:
    follower = Follower(log.tail(types=["own.b"]))
    for n in range(30):
        await session.append(f"own.{'abc'[n % 3]}", {"n": n})
    assert [event.data["n"] for event in await follower.has(10)] == list(range(1, 30, 3))


async def test_a_consumer_finds_its_event_at_once(log: EventLog, session: Session) -> None:
    """Whoever is told of an event can read it, by this log and by another one: it is told after the commit."""
    found: list[tuple[bool, bool]] = []
    told: list[int] = []
    log.on_recorded(lambda events: told.extend(event.position for event in events))
    async with EventLog(log.path, read_only=True) as reader:

        async def consume() -> None:
            async for event in session.tail():
                mine = await all_of(session.read(after=event.index - 1, limit=1))
                theirs = await all_of(reader.read(after=event.position - 1, limit=1))
                found.append((mine == [event], theirs == [event]))

        consuming = asyncio.ensure_future(consume())
        await fill(session, 20)
        await until(lambda: len(found) == 21)
        consuming.cancel()
    assert set(found) == {(True, True)}
    assert told == list(range(2, 22))


async def test_a_commit_is_told_once_in_order_after_it_happened(log: EventLog, session: Session) -> None:
    committed: list[tuple[int, int]] = []
    with closing(sqlite3.connect(f"file:{log.path}?mode=ro", uri=True, isolation_level=None)) as look:
        remove = log.on_recorded(
            lambda events: committed.extend(
                (event.position, look.execute("SELECT max(position) FROM log").fetchone()[0]) for event in events
            )
        )
        await asyncio.gather(*[fill(session, 20) for _ in range(10)])
        remove()
        await session.append("own.type", {})
    assert [position for position, _ in committed] == list(range(2, 202))
    assert all(position <= seen for position, seen in committed)


# ------------------------------------------------------------------------------------------------------------ waking


async def test_a_tail_is_woken_by_its_own_session_only(log: EventLog, session: Session) -> None:
    other = await log.start_session("s2")
    follower = Follower(session.tail())
    await follower.has(1)
    await until(lambda: waiters(log, session))
    (waiter,) = log.store.events.heads["s1"].waiters
    await fill(other, 50)
    assert log.store.events.heads["s1"].waiters == {waiter}
    assert not waiter.done()
    await session.append("own.type", {})
    assert indexes(await follower.has(2)) == [0, 1]


async def test_a_live_tail_is_handed_what_was_committed_and_reads_nothing(log: EventLog, session: Session) -> None:
    """Also several events of one commit; and a tail that missed some of them meanwhile reads on from the log."""
    followers = [Follower(session.tail()), Follower(log.tail()), Follower(log.tail(types=["own.type"]))]
    await until(lambda: log.tails_waiting() == 3)
    statements: list[str] = []
    await log.store.read(lambda connection: connection.set_trace_callback(statements.append))
    statements.clear()  # of the end of that very read
    for number in range(1, 4):
        await asyncio.gather(session.append_many([NewEvent("own.type")] * 2), session.append("own.type", {}))
        await until(lambda: log.tails_waiting() == 3)
        for follower in followers[:2]:
            assert indexes(await follower.has(1 + 3 * number)) == list(range(1 + 3 * number))
    assert statements == []
    await log.store.read(lambda connection: connection.set_trace_callback(None))
    assert indexes(followers[2].events) == list(range(1, 10))
    await asyncio.gather(*[fill(session, 30) for _ in range(10)])
    assert indexes(await followers[0].has(310)) == list(range(310))
    assert [event.position for event in await followers[1].has(310)] == list(range(1, 311))


async def test_r60_what_one_tail_does_to_a_payload_reaches_no_other(log: EventLog, session: Session) -> None:
    one, other = session.tail(after=0), Follower(session.tail(after=0))
    appended = asyncio.ensure_future(anext(aiter(one)))
    await until(lambda: waiters(log, session) == 2)
    event = await session.append("own.type", {"list": [1]})
    (await appended).data["list"].append(2)
    assert [each.data for each in await other.has(1)] == [event.data] == [{"list": [1]}]


async def test_tails_see_what_is_imported(log: EventLog, session: Session) -> None:
    followers = [Follower(session.tail(after=0)), Follower(log.tail(after=1))]
    await until(lambda: waiters(log, session))
    lines = [
        b'{"type":"own.type","index":%d,"sessionId":"s1","at":"2026-01-01T00:00:00Z","data":{}}' % n for n in (1, 2)
    ]
    assert (await log.import_events(lines)).added == 2
    for follower in followers:
        assert indexes(await follower.has(2)) == [1, 2]


async def test_a_tail_waits_even_if_the_last_event_is_gone(tmp_path: Path) -> None:
    """It does not look for ever for what a damaged file has lost, and sees what is appended next."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await fill(await log.start_session("s1"), 5)
    with damaging(path) as connection:
        connection.execute("INSERT INTO gate VALUES (1, 'prune')")
        connection.execute("DELETE FROM log WHERE idx = 5")
        connection.execute("DELETE FROM gate")
    async with EventLog(path) as log:
        session = await log.session("s1")
        assert session.next_index == 6
        follower = Follower(session.tail())
        assert indexes(await follower.has(5)) == [0, 1, 2, 3, 4]
        await until(lambda: waiters(log, session))
        await session.append("own.type", {})
        assert indexes(await follower.has(6)) == [0, 1, 2, 3, 4, 6]


# --------------------------------------------------------------------------------------------- ending, leaving


async def test_tails_end_when_the_log_closes(log: EventLog, session: Session) -> None:
    reader = await EventLog(log.path, read_only=True, poll_s=0.001).open()
    theirs = await reader.session("s1")
    followers = [Follower(tail) for tail in (session.tail(), log.tail(), theirs.tail(), reader.tail())]
    for follower in followers:
        await follower.has(1)
    await until(lambda: waiters(log, session))
    await reader.close()
    await log.close()
    await asyncio.gather(*[follower.task for follower in followers])
    assert [indexes(follower.events) for follower in followers] == [[0]] * 4


async def test_a_tail_ends_with_its_log_even_if_that_is_opened_again_before_it_looks(
    log: EventLog, session: Session
) -> None:
    """Of the session and of the log, owned and read-only: what is appended afterwards is for tails that begin then."""
    async with EventLog(log.path, read_only=True) as reader:
        tails = [session.tail(), log.tail(), (await reader.session("s1")).tail(), reader.tail()]
        assert [(await anext(tail)).index for tail in tails] == [0] * 4
        for each in (log, reader):
            await each.close()
            await each.open()
        await (await log.session("s1")).append("own.type", {})
        assert [await all_of(tail) for tail in tails] == [[]] * 4
        assert (log.tails_waiting(), reader.tails_waiting()) == (0, 0)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_tail_in_the_middle_of_a_read_ends_as_quietly(log: EventLog, session: Session, read_only: bool) -> None:
    """Closed after any number of the loop's turns: the tail ends, no error, and no task is left with one."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await session.append_many([NewEvent("own.type")] * 200)
    path = log.path
    await log.close()
    followers: list[Follower] = []
    for turns in range(0, 60, 3):
        opened = await EventLog(path, read_only=read_only, poll_s=0.000_1).open()
        followers = [Follower((await opened.session("s1")).tail()), Follower(opened.tail())]
        for _ in range(turns):
            await asyncio.sleep(0)
        await opened.close()
        for follower in followers:
            await follower.task
            assert indexes(follower.events) == list(range(len(follower.events)))
    followers.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def abandon(tail: Callable[[], AsyncIterator[Event[Any]]], count: int) -> None:
    """Make three times `count` tails: never iterated, dropped after one event, cancelled while they wait."""
    _never = [tail() for _ in range(count)]
    for dropped in [tail() for _ in range(count)]:
        await anext(dropped)
    waiting = [Follower(tail()) for _ in range(count)]
    for follower in waiting:
        await follower.has(1)
    for _ in range(20):
        await asyncio.sleep(0)
    for follower in waiting:
        follower.task.cancel()
    await asyncio.gather(*[follower.task for follower in waiting], return_exceptions=True)


async def test_abandoned_tails_leave_nothing_behind(log: EventLog, session: Session) -> None:
    """F3: 1,000 tails, a third never iterated, a third dropped after one event, a third cancelled while they wait."""
    async with EventLog(log.path, read_only=True) as reader:
        for tail in (session.tail, log.tail, (await reader.session("s1")).tail, reader.tail):
            await abandon(tail, 111)
            gc.collect()
            await asyncio.sleep(0)
        assert waiters(log, session) == 0
        assert log.tails_waiting() == 0
        await until(lambda: reader.tails_waiting() == 0)
    await session.append("own.type", {})


async def test_a_stalled_tail_costs_nothing_and_resumes_in_order(log: EventLog, session: Session) -> None:
    """F3."""
    stalled = session.tail()
    assert (await anext(stalled)).index == 0
    tracemalloc.start()
    try:
        used = []
        for _ in range(5):
            await asyncio.gather(*[session.append("own.type", {"v": "x" * 1_000}) for _ in range(1_000)])
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert used[-1] - used[0] < 500_000, "4 MB of events were appended, and none of them is kept for the tail"
    assert indexes(await first_of(stalled, 5_000)) == list(range(1, 5_001))


# ---------------------------------------------------------------------------------------------- from another process

WRITER = """
async def main():
    async with EventLog(path, slice_rows=64) as log:
        session = await log.start_session("s1") if sys.argv[2] == "0" else await log.session("s1")
        other = await log.start_session(f"other{sys.argv[2]}")
        say("open")
        for line in sys.stdin:
            for _ in range(int(line)):
                await asyncio.gather(session.append("own.type", {}), other.append("own.type", {}))
            say("done")
        say("end")
asyncio.run(main())
"""


async def test_a_read_only_tail_follows_another_process_over_its_death(tmp_path: Path) -> None:
    """No gap and no repeat while the owner appends, absorbs, is killed, and another one takes its place."""
    path = tmp_path / "agent.db"
    with child(WRITER, path, "0") as owner:
        assert line_of(owner) == "open"
        async with EventLog(path, read_only=True, poll_s=0.002) as reader:
            of_session = Follower((await reader.session("s1")).tail())
            of_log = Follower(reader.tail())
            tell_child(owner, "150")
            await of_session.has(100)
            assert await asyncio.to_thread(line_of, owner) == "done"
            await of_session.has(151)
            owner.kill()
            owner.wait()
            with child(WRITER, path, "1") as second:
                assert await asyncio.to_thread(line_of, second) == "open"
                tell_child(second, "20")
                assert await asyncio.to_thread(line_of, second) == "done"
                await of_session.has(171)
                await of_log.has(343)
    await asyncio.gather(of_session.task, of_log.task)
    assert indexes(of_session.events) == list(range(171))
    assert [event.position for event in of_log.events] == list(range(1, 344))


async def test_a_read_only_log_looks_for_commits_only_while_somebody_waits(log: EventLog, session: Session) -> None:
    before = asyncio.all_tasks()
    async with EventLog(log.path, read_only=True, poll_s=0.001) as reader:
        follower = Follower(reader.tail())
        await follower.has(1)
        await until(reader.tails_waiting)
        assert len(asyncio.all_tasks() - before) == 2  # the follower and the look-out
        follower.task.cancel()
        await until(lambda: asyncio.all_tasks() == before)
