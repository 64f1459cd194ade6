"""The contract's numbers, with the policy as it is by default: at each limit, one before it and one past it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventlog.durable import DeliveryPolicy, HookCallContext
from eventlog.durable.readers import GrantedTurns
from eventlog.errors import VersionUnavailable
from eventlog.events import NewEvent
from eventlog.store.turns import TurnReference
from eventlog.testing import ManualClock
from tests.extension_kit import DAY_S, Bench, Recorder, bench, hang, start

SEVEN_DAYS_S = 7 * DAY_S
LONGEST_BACKOFF_S = 900 * 1.2
AROUND_SEVEN_DAYS = pytest.mark.parametrize(
    ("age_s", "is_over"),
    [(SEVEN_DAYS_S - 1, False), (SEVEN_DAYS_S, True), (SEVEN_DAYS_S + 1, True)],
    ids=["a second before", "to the second", "a second past"],
)


def test_r2_the_defaults_are_the_contracts_numbers() -> None:
    """R33, R34, R42, R43, R44."""
    policy = DeliveryPolicy()
    numbers = (policy.attempts, policy.timeout_s, policy.capacity, policy.retention_s)
    assert numbers == (6, 30.0, 1_000, SEVEN_DAYS_S)


# ---------------------------------------------------------------------------------------------- attempt six, 30 seconds


async def test_r34_r35_the_sixth_attempt_can_still_succeed_and_there_is_no_seventh(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        lucky, unlucky = Recorder(*[ValueError("no")] * 5), Recorder(*[ValueError("no")] * 6)
        await it.install("lucky", handler=lucky)
        await it.install("unlucky", handler=unlucky)
        await it.turn("a", "t1")
        await it.worker.idle()
        for _ in range(5):
            assert it.letters == []
            await it.pass_time(LONGEST_BACKOFF_S)
        await it.pass_time(SEVEN_DAYS_S - 6 * LONGEST_BACKOFF_S)
        assert await it.live() == []
        (letter,) = it.letters
        assert (letter.extension, letter.reason, letter.attempts) == ("unlucky", "exhausted", 6)
    assert (len(lucky.events), len(unlucky.events)) == (6, 6)


@pytest.mark.parametrize(
    ("after_s", "acked"), [(29.999_999, True), (30.0, False), (30.000_001, False)], ids=["before", "at", "past"]
)
async def test_r33_a_return_counts_until_thirty_seconds_have_passed(
    tmp_path: Path, after_s: float, acked: bool
) -> None:
    ready = asyncio.Event()

    async def wait(event: Any, context: HookCallContext) -> None:
        await ready.wait()

    async with bench(tmp_path) as it:
        handler = Recorder(wait)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await handler.started.wait()
        it.clock.advance(after_s)
        await it.worker.run_once()  # it looks at the clock before the handler has a chance to return
        ready.set()
        await it.worker.idle()
        assert [(row.state, row.attempts) for row in await it.live()] == ([] if acked else [("pending", 1)])
        assert handler.contexts[0].signal.reason == (None if acked else "timeout")


# ------------------------------------------------------------------------------------------------------ event 1,001


async def fill(it: Bench, count: int, session_ids: str = "abcdefghij") -> None:
    """Complete so many turns, over ten conversations."""
    for session_id in session_ids:
        await start(it.log, session_id)
    each, rest = divmod(count, len(session_ids))
    for number, session_id in enumerate(session_ids):
        turns = [NewEvent("turn.completed", {}, turn_id=f"t{turn}") for turn in range(each + (number < rest))]
        await (await it.log.session(session_id)).append_many(turns)


async def live_of(it: Bench, name: str) -> int:
    """How many live deliveries there are, counted; the counter that the queue keeps has to say the same."""
    found = await it.extensions.find(name)
    rows = [row for row in await it.live() if row.extension == name]
    assert found.live == len(rows)
    return found.live


async def test_r44_event_1000_is_queued_event_1001_is_a_gap_and_one_ack_frees_one_place(tmp_path: Path) -> None:
    """H7: nothing that was refused is without a trace, nothing that was taken is lost, and no other is affected."""
    go = asyncio.Semaphore(0)

    async def wait(event: Any, context: HookCallContext) -> None:
        await go.acquire()

    async with bench(tmp_path) as it:
        full, other = Recorder(always=wait), Recorder()
        await it.install("full", handler=full)
        await it.install("other", handler=other)
        await fill(it, 999)
        assert (await live_of(it, "full"), await it.deliveries.gaps()) == (999, [])
        await it.turn("a", "the 1,000th")
        assert (await live_of(it, "full"), await it.deliveries.gaps()) == (1_000, [])
        refused = await it.turn("a", "the 1,001st")
        (gap,) = await it.deliveries.gaps()
        assert (gap.first, gap.last, gap.count, gap.reason) == (refused.position, refused.position, 1, "capacity")
        assert await live_of(it, "full") == 1_000
        go.release()
        while (await it.extensions.find("full")).live == 1_000:  # one look: the ACK may be committed between two
            await it.worker.run_once()
        taken = await it.turn("a", "one place is free")
        assert await live_of(it, "full") == 1_000
        also_refused = await it.turn("a", "and now none is")
        assert [(gap.first, gap.count) for gap in await it.deliveries.gaps()] == [
            (refused.position, 1),
            (also_refused.position, 1),
        ]
        for _ in range(2_000):
            go.release()
        await it.worker.idle()
        assert await it.live() == []
    assert len(other.events) == 1_003
    called = [event.event_id for event in full.events]
    assert len(called) == len(set(called)) == 1_001
    assert taken.id in called
    assert {refused.id, also_refused.id}.isdisjoint(called)


async def test_r44_of_64_tasks_that_race_for_the_last_place_one_gets_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler, other = Recorder(), Recorder()
        await it.install("full", handler=handler)
        await it.extensions.pause("full")
        await fill(it, 999)
        await it.install("other", handler=other)
        sessions = [f"racer {number}" for number in range(64)]
        for session_id in sessions:
            await start(it.log, session_id)
        racing = [it.log.append(session_id, "turn.completed", {}, turn_id="t1") for session_id in sessions]
        events = await asyncio.gather(*racing)
        assert await live_of(it, "full") == 1_000
        (gap,) = await it.deliveries.gaps()
        assert gap.count == 63
        await it.extensions.resume("full")
        await it.worker.idle()
        assert await it.live() == []
    winners = {event.id for event in events} & {event.event_id for event in handler.events}
    assert len(winners) == 1
    assert {event.event_id for event in other.events} == {event.id for event in events}
    assert all(not gap.first <= event.position <= gap.last for event in events if event.id in winners)


async def test_r44_what_is_taken_and_what_is_refused_while_others_are_acked_is_everything(tmp_path: Path) -> None:
    """64 tasks race at 999 while a handler frees places: each event is called, or in a gap, and never both."""
    async with bench(tmp_path) as it:
        handler = Recorder()
        await it.install("full", handler=handler)
        await it.extensions.pause("full")
        await fill(it, 999)
        sessions = [f"racer {number}" for number in range(64)]
        for session_id in sessions:
            await start(it.log, session_id)

        async def complete(session_id: str) -> list[str]:
            return [
                (await it.log.append(session_id, "turn.completed", {}, turn_id=f"t{number}")).id for number in range(10)
            ]

        await it.extensions.resume("full")
        it.worker.wake()
        raced = {event_id for ids in await asyncio.gather(*map(complete, sessions)) for event_id in ids}
        await it.worker.idle()
        assert await it.live() == []
        refused = sum(gap.count for gap in await it.deliveries.gaps())
    called = [event.event_id for event in handler.events]
    assert len(called) == len(set(called)) == 999 + 640 - refused
    assert len(raced - set(called)) == refused


# ------------------------------------------------------------------------------------------------------- seven days


@AROUND_SEVEN_DAYS
async def test_r43_an_event_that_waits_for_a_call_leaves_the_queue_at_seven_days(
    tmp_path: Path, age_s: int, is_over: bool
) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder()
        await it.install(handler=handler)
        await it.extensions.pause("acme")
        event = await it.turn("a", "t1")
        await it.worker.idle()
        await it.pass_time(age_s)
        assert [(row.event_id, row.state) for row in await it.live()] == ([] if is_over else [(event.id, "pending")])
        await it.extensions.resume("acme")
        await it.worker.idle()
        assert [(each.reason, each.attempts) for each in it.letters] == ([("expired", 0)] if is_over else [])
    assert len(handler.events) == (0 if is_over else 1)


@AROUND_SEVEN_DAYS
async def test_r43_a_retry_that_is_due_at_seven_days_is_not_made(tmp_path: Path, age_s: int, is_over: bool) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(ValueError("no"))
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.worker.idle()
        await it.extensions.pause("acme")
        it.clock.advance(age_s)
        await it.extensions.resume("acme")
        await it.worker.idle()
        assert [(each.reason, each.attempts) for each in it.letters] == ([("expired", 1)] if is_over else [])
    assert len(handler.events) == (1 if is_over else 2)


@pytest.mark.parametrize("failing", [False, True], ids=["returns", "raises"])
async def test_r43_a_call_that_runs_at_seven_days_may_end(tmp_path: Path, failing: bool) -> None:
    """Its return is an ACK; when it raises it is an expired dead letter in the same commit, and never pending."""
    ready = asyncio.Event()

    async def wait(event: Any, context: HookCallContext) -> None:
        await ready.wait()
        if failing:
            raise ValueError("too late")

    async with bench(tmp_path) as it:
        handler = Recorder(wait)
        await it.install(handler=handler)
        await it.extensions.pause("acme")
        await it.turn("a", "t1")
        await it.worker.idle()
        it.clock.advance(SEVEN_DAYS_S - 1)
        await it.extensions.resume("acme")
        it.worker.wake()
        await handler.started.wait()
        it.clock.advance(2)
        await it.worker.run_once()
        assert [row.state for row in await it.live()] == ["delivering"]
        ready.set()
        await it.worker.idle()
        assert await it.live() == []
        assert [(each.reason, each.attempts) for each in it.letters] == ([("expired", 1)] if failing else [])


@AROUND_SEVEN_DAYS
async def test_r43_seven_days_pass_while_nothing_is_up(tmp_path: Path, age_s: int, is_over: bool) -> None:
    clock, handler = ManualClock(), Recorder()
    async with bench(tmp_path, clock, start=False) as it:
        await it.install(handler=handler)
        await it.turn("a", "t1")
    clock.advance(age_s)
    async with bench(tmp_path, clock) as it:
        await it.install(handler=handler)
        await it.worker.idle()
        assert [each.reason for each in it.letters] == (["expired"] if is_over else [])
    assert len(handler.events) == (0 if is_over else 1)


@AROUND_SEVEN_DAYS
async def test_r43_a_call_that_was_cut_short_by_a_kill_is_not_made_again_at_seven_days(
    tmp_path: Path, age_s: int, is_over: bool
) -> None:
    clock, handler = ManualClock(), Recorder(hang)
    async with bench(tmp_path, clock, dies=True) as it:
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await handler.started.wait()
    clock.advance(age_s)
    async with bench(tmp_path, clock) as it:
        await it.install(handler=handler)
        await it.worker.idle()
        assert [(each.reason, each.attempts) for each in it.letters] == ([("expired", 1)] if is_over else [])
    assert len(handler.events) == (1 if is_over else 2)


@AROUND_SEVEN_DAYS
async def test_r42_a_snapshot_ends_at_seven_days(tmp_path: Path, age_s: int, is_over: bool) -> None:
    async with bench(tmp_path) as it:
        installed = await it.install(handler=Recorder())
        await it.turn("a", "t1")
        it.clock.advance(age_s)
        turns = GrantedTurns(it.log, installed, DeliveryPolicy().retention_s)
        reference = TurnReference("a", "t1", 1)
        if is_over:
            with pytest.raises(VersionUnavailable, match="kept for 604800 s"):
                await turns.get(reference)
        else:
            assert (await turns.get(reference)).version == 1


async def test_r42_a_snapshot_is_of_a_version_that_is_there_in_a_project_that_is_granted(tmp_path: Path) -> None:
    """Never another version, and nothing any more from the moment when the project is taken back."""
    async with bench(tmp_path) as it:
        installed = await it.install(handler=Recorder())
        await it.turn("a", "t1")
        await it.turn("other", "t1", project="q")
        turns = GrantedTurns(it.log, installed, DeliveryPolicy().retention_s)
        for reference in (TurnReference("a", "t1", 2), TurnReference("a", "t2", 1), TurnReference("b", "t1", 1)):
            with pytest.raises(VersionUnavailable, match="there is no such version"):
                await turns.get(reference)
        with pytest.raises(VersionUnavailable, match=r"acme is not granted conversations\.turns\.read in its project"):
            await turns.get(TurnReference("other", "t1", 1))
        assert (await turns.get(TurnReference("a", "t1", 1))).turn_id == "t1"
        await it.extensions.revoke("acme", "p")
        with pytest.raises(VersionUnavailable, match="is not granted"):
            await turns.get(TurnReference("a", "t1", 1))


@AROUND_SEVEN_DAYS
async def test_a_dead_letter_goes_seven_days_after_it_died(tmp_path: Path, age_s: int, is_over: bool) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder())
        await it.extensions.pause("acme")
        event = await it.turn("a", "t1")
        await it.pass_time(SEVEN_DAYS_S)
        await it.pass_time(age_s)
        assert [each.event_id for each in await it.dead_letters.list()] == ([] if is_over else [event.id])
        assert len([each async for each in it.log.read()]) == 2  # H7: the log keeps its event


async def test_a_wall_clock_that_was_set_back_between_two_owners_holds_no_event_up(tmp_path: Path) -> None:
    """Across a restart the wall clock is believed, and a negative age counts as 0."""
    clock, handler = ManualClock(), Recorder()
    async with bench(tmp_path, clock, start=False) as it:
        await it.install(handler=handler)
        await it.turn("a", "t1")
    clock.step(-DAY_S)
    async with bench(tmp_path, clock) as it:
        await it.install(handler=handler)
        await it.worker.idle()
        assert await it.live() == []
    assert len(handler.events) == 1
