"""What rides in the commit of an append: a turn of the queue, which begins what the append is owed at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eventlog.errors import IndexConflict, StorageFull
from eventlog.events import NewEvent
from eventlog.log import EventLog
from eventlog.store.drafting import Append
from tests.extension_kit import Bench, Recorder, bench, hang, start
from tests.log_kit import all_of, whole
from tests.test_errors_of_the_disk import no_more_room, room


class Rider:
    """Writes that it rode, in the transaction; or raises."""

    def __init__(self, fails: BaseException | None = None, hears: BaseException | None = None) -> None:
        self.fails, self.hears = fails, hears
        self.heard: list[bool] = []

    def offer(self, group: Sequence[Append]) -> Rider:
        return self

    def ride(self, connection: sqlite3.Connection, position: int) -> None:
        (found,) = connection.execute("SELECT max(position) FROM log").fetchone()
        assert (found, connection.in_transaction) == (position, True)
        connection.execute("UPDATE policy SET capacity = ?", (position,))
        if self.fails is not None:
            raise self.fails

    def landed(self, is_stored: bool) -> None:
        self.heard.append(is_stored)
        if self.hears is not None:
            raise self.hears


async def capacity(log: EventLog) -> int:
    """What a rider leaves."""
    return await log.store.read(lambda connection: int(connection.execute("SELECT capacity FROM policy").fetchone()[0]))


async def counted_turns(it: Bench) -> list[int]:
    """How much each turn from now on begins that is taken apart."""
    turns: list[int] = []
    take = it.worker._deliveries.turn

    async def counted(asked: object) -> object:
        turn = await take(asked)  # type: ignore[arg-type]
        turns.append(len(turn.begun))
        return turn

    it.worker._deliveries.turn = counted  # type: ignore[assignment,method-assign]
    return turns


def fail_once(it: Bench) -> list[object]:
    """Let the next turn fail when all of it is done; what it was asked is in the list then."""
    within = it.worker._deliveries.within
    failed: list[object] = []

    def fails_once(connection: sqlite3.Connection, asked: object) -> object:
        turn = within(connection, asked)  # type: ignore[arg-type]
        if not failed:
            failed.append(asked)
            raise sqlite3.DatabaseError("database disk image is malformed")
        return turn

    it.worker._deliveries.within = fails_once  # type: ignore[assignment,method-assign]
    return failed


async def calls_ended(it: Bench) -> None:
    """Wait until no call runs, without a look at the queue."""
    while it.worker.running:
        await asyncio.sleep(0)


@asynccontextmanager
async def idle_bench(path: Path, *recorders: Recorder) -> AsyncIterator[Bench]:
    """Extensions that wait for a turn of session "a"."""
    async with bench(path) as it:
        for number, recorder in enumerate(recorders):
            await it.install(f"acme{number}", handler=recorder)
        await start(it.log, "a")
        await it.worker.idle()
        yield it


# ------------------------------------------------------------------------------------------------------- the commit


async def test_the_commit_of_an_append_holds_what_rides_in_it(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "a.db") as log:
        await start(log, "a")
        rider = Rider()
        remove = log.store.ride(rider.offer)
        event = await log.append("a", "own.type", {})
        assert (await capacity(log), rider.heard) == (event.position, [True])
        remove()
        await log.append("a", "own.type", {})
        assert (await capacity(log), rider.heard) == (event.position, [True])


async def test_what_rides_in_the_commit_of_a_start_sees_its_session(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "a.db") as log:
        rider = Rider()
        log.store.ride(rider.offer)
        await start(log, "a")
        assert (await capacity(log), rider.heard) == (log.head, [True])
        await whole(log)


@pytest.mark.parametrize("error", [ValueError("its own"), sqlite3.DatabaseError("SQLite's"), MemoryError()])
async def test_an_append_is_stored_without_what_fails_in_its_commit(tmp_path: Path, error: Exception) -> None:
    async with EventLog(tmp_path / "a.db") as log:
        await start(log, "a")
        before, rider = await capacity(log), Rider(fails=error)
        log.store.ride(rider.offer)
        events = [await log.append("a", "own.type", {}) for _ in range(3)]
        assert [event.index for event in events] == [1, 2, 3]
        assert (await capacity(log), rider.heard) == (before, [True] * 3)
        assert (await all_of(log.read()))[-3:] == events
        await whole(log)


async def test_what_rode_may_raise_when_it_hears_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    async with EventLog(tmp_path / "a.db") as log:
        await start(log, "a")
        log.on_recorded(lambda events: told.append(events[-1].position))
        log.store.ride(Rider(hears=ValueError("no")).offer)
        event = await log.append("a", "own.type", {})
        assert (told, log.head) == ([event.position], event.position)
    assert "what rode in a commit raised; the events are stored" in caplog.text


async def test_one_rides_at_a_time_and_none_while_others_wait(tmp_path: Path) -> None:
    """R107: a group that others wait behind is not made to wait longer."""
    async with EventLog(tmp_path / "a.db") as log:
        await start(log, "a")
        first, second = Rider(), Rider()
        log.store.ride(first.offer)
        log.store.ride(second.offer)
        before = log.store.writer.groups
        await asyncio.gather(*[log.append("a", "own.type", {}) for _ in range(300)])
        groups = log.store.writer.groups - before
        assert 1 <= len(first.heard) < groups
        assert second.heard == []


async def test_a_refused_append_carries_nothing(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "a.db") as log:
        await start(log, "a")
        before, rider = await capacity(log), Rider()
        log.store.ride(rider.offer)
        with pytest.raises(IndexConflict):
            await log.append("a", "own.type", {}, expected_index=7)
        assert (await capacity(log), rider.heard) == (before, [True])


# ------------------------------------------------------------------------------------------------ a turn of the queue


async def test_a_call_begins_with_the_commit_of_its_event_and_no_other(tmp_path: Path) -> None:
    """R29: one commit holds the event, what is owed of it, and the attempt; no look at the queue comes before it."""
    async with idle_bench(tmp_path, Recorder(hang), Recorder(hang)) as it:
        turns = await counted_turns(it)
        event = await it.log.append("a", "turn.completed", {}, turn_id="t1")
        live = await it.live()
        assert [(each.position, each.state, each.attempts) for each in live] == [(event.position, "delivering", 1)] * 2
        assert it.worker.running == 2
        await it.log.store.write(lambda connection: None)  # behind a look at the queue, if there were one
        assert turns == []


async def test_an_event_that_rode_wakes_the_worker_for_its_ack_alone(tmp_path: Path) -> None:
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        turns = await counted_turns(it)
        for number in range(5):
            await it.log.append("a", "turn.completed", {}, turn_id=f"t{number}")
            await it.worker.idle()
        assert recorder.turns == [f"t{number}" for number in range(5)]
        assert await it.live() == []
        assert set(turns) == {0}


async def test_a_batch_that_rides_begins_what_has_a_place_and_the_rest_follows_in_order(tmp_path: Path) -> None:
    """R36, R38: the first of each lane, at most sixteen."""
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        session = await it.log.session("a")
        await session.append_many([NewEvent("turn.completed", {}, turn_id=f"t{number}") for number in range(40)])
        assert [each.state for each in await it.live()].count("delivering") == 1
        await it.worker.idle()
        assert recorder.turns == [f"t{number}" for number in range(40)]


async def test_acks_that_are_due_are_settled_by_the_next_append_too(tmp_path: Path) -> None:
    """R29: an append that comes between the return and its ACK takes it along."""
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=(recorder := Recorder()))
        await it.turn("a", "t1")
        await it.worker.run_once()
        await calls_ended(it)
        it.log.store.ride(it.worker._offer)
        await it.log.append("a", "turn.completed", {}, turn_id="t2")
        assert [(each.position, each.state) for each in await it.live()] == [(it.log.head, "delivering")]
        await calls_ended(it)
        assert recorder.turns == ["t1", "t2"]


async def test_a_look_at_the_queue_waits_for_the_one_that_rides(tmp_path: Path) -> None:
    """R38: both would find the same place free."""
    async with bench(tmp_path, start=False, concurrency=1) as it:
        await it.install(handler=Recorder(hang))
        await it.worker.run_once()
        await it.turn("b", "t1")
        await start(it.log, "a")
        it.log.store.ride(it.worker._offer)
        appending = asyncio.ensure_future(it.log.append("a", "turn.completed", {}, turn_id="t1"))
        while it.worker._ride is None:
            await asyncio.sleep(0)
        assert (await it.worker.run_once()).begun == []
        await appending
        assert it.worker.running == 1
        assert sorted(each.state for each in await it.live()) == ["delivering", "pending"]


async def test_what_was_withdrawn_while_it_rode_is_given_back(tmp_path: Path) -> None:
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        (key,) = it.worker._served
        appending = asyncio.ensure_future(it.log.append("a", "turn.completed", {}, turn_id="t1"))
        while it.worker._ride is None:
            await asyncio.sleep(0)
        it.worker._served.pop(key)
        await appending
        await it.worker.idle()
        assert [(each.state, each.attempts) for each in await it.live()] == [("pending", 1)]
        assert recorder.turns == []


async def test_a_turn_that_could_not_ride_is_taken_apart(tmp_path: Path) -> None:
    """The event is stored, and what the turn was to do is done by the next one."""
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        failed = fail_once(it)
        event = await it.log.append("a", "turn.completed", {}, turn_id="t1")
        await it.worker.idle()
        assert len(failed) == 1
        assert [context.request_id.endswith(f".{event.position}.1") for context in recorder.contexts] == [True]
        assert await it.live() == []


async def test_after_a_commit_that_failed_the_next_append_is_delivered(tmp_path: Path) -> None:
    """R120: nothing was stored, so nothing was begun."""
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        await no_more_room(it.log)
        with pytest.raises(StorageFull):
            await it.log.append("a", "turn.completed", {"result": "x" * 100_000}, turn_id="t1")
        assert (await it.live(), it.worker._ride) == ([], None)
        await room(it.log)
        await it.log.append("a", "turn.completed", {}, turn_id="t2")
        await it.worker.idle()
        assert recorder.turns == ["t2"]
        await whole(it.log)


async def test_r44_a_gap_that_a_failed_ride_found_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was rolled back was not reported, so the next turn has to."""
    async with bench(tmp_path, capacity=1) as it:
        await it.install(handler=Recorder(hang))
        await it.turn("a", "t1")
        await it.worker.run_once()
        failed = fail_once(it)
        await it.turn("a", "t2")
        await it.worker.run_once()
        await it.worker.run_once()
    assert len(failed) == 1
    assert caplog.text.count("its queue is full") == 1


async def test_a_refused_append_leaves_the_queue_to_the_next_turn(tmp_path: Path) -> None:
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        with pytest.raises(IndexConflict):
            await it.log.append("a", "turn.completed", {}, turn_id="t1", expected_index=7)
        await it.log.append("a", "turn.completed", {}, turn_id="t2")
        await it.worker.idle()
        assert recorder.turns == ["t2"]


async def test_turns_that_may_meet_a_damaged_page_ride_no_more(tmp_path: Path) -> None:
    """A transaction that meets one commits nothing; an append must not be the one that meets it."""
    async with idle_bench(tmp_path, recorder := Recorder()) as it:
        it.worker._deliveries._reads_apart = True
        turns = await counted_turns(it)
        await it.log.append("a", "turn.completed", {}, turn_id="t1")
        await it.worker.idle()
        assert (sum(turns), recorder.turns) == (1, ["t1"])


async def test_a_stop_while_a_turn_rides_loses_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(hang))
        await start(it.log, "a")
        await it.worker.idle()
        appending = asyncio.ensure_future(it.log.append("a", "turn.completed", {}, turn_id="t1"))
        while it.worker._ride is None:
            await asyncio.sleep(0)
        await it.worker.stop(grace_s=0)
        event = await appending
        assert [(each.position, each.state) for each in await it.live()] == [(event.position, "pending")]
    async with bench(tmp_path) as it:
        await it.install(handler=(recorder := Recorder()))
        await it.worker.idle()
        assert recorder.turns == ["t1"]
