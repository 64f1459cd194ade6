"""Reminders: created by code, kept in the file, due at their time, recorded once, and never after a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from eventlog import Event, EventLog, HookContext, InvalidEvent, NewEvent, Runtime, Session, define_channel, define_hook
from eventlog.errors import LimitExceeded
from eventlog.events import ReminderCreated, ReminderDue
from eventlog.host import ReminderLimits
from eventlog.host.reminding import PAGE, RETRY_S, Reminding
from eventlog.observe import ChannelContext
from eventlog.testing import ManualClock
from tests.log_kit import crash_copy

REMINDERS = ["reminder.created", "reminder.cancelled", "reminder.due"]
START = datetime(2026, 1, 1, tzinfo=UTC)
WHEN = "2026-01-01T00:00:00Z"


@asynccontextmanager
async def serving(path: Path, clock: ManualClock, **settings: Any) -> AsyncIterator[tuple[EventLog, Runtime]]:
    """A log and its runtime, until an orderly stop."""
    async with EventLog(path / "agent.db", clock=clock) as log, Runtime(log, **settings) as runtime:
        yield log, runtime


async def recorded(session: Session, *types: str) -> list[Event[Any]]:
    """Its reminder events, or those of some types."""
    return [event async for event in session.read(types=types or REMINDERS)]


async def due(session: Session) -> list[str]:
    """The texts of what was recorded as due, in order."""
    return [event.data.text for event in await recorded(session, "reminder.due")]


# ------------------------------------------------------------------------------------------------------ what it does


async def test_r114_a_hook_a_channel_and_a_tool_have_the_same_reminders_of_a_session(tmp_path: Path) -> None:
    had: list[object] = []

    async def of_hook(_event: Event[Any], ctx: HookContext) -> None:
        had.append(ctx.host.reminders)
        await ctx.host.reminders.create("look again", after_s=60)

    async def of_channel(_event: Event[Any], ctx: ChannelContext) -> None:
        had.append(ctx.host.reminders)

    async with serving(tmp_path, ManualClock()) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"session.started": of_hook}))
        runtime.add_channel(define_channel(id="api", events={"session.started": of_channel}))
        await runtime.settled()
        session = await log.start_session("s1")
        await runtime.settled()
        of_tool = runtime.host_for("s1").reminders
        assert [each is of_tool for each in had] == [True, True]
        (reminder,) = await of_tool.list()
        assert (reminder.text, reminder.at) == ("look again", START + timedelta(seconds=60))
        (event,) = await recorded(session)
        assert event.data == ReminderCreated(reminder.id, reminder.at, "look again")
        assert (event.type, event.turn_id) == ("reminder.created", None)


async def test_r114_reminders_are_those_of_their_session(tmp_path: Path) -> None:
    async with serving(tmp_path, ManualClock()) as (log, runtime):
        for id in ("s1", "s2"):
            await log.start_session(id)
            await runtime.host_for(id).reminders.create(f"of {id}", after_s=5)
        one, two = (runtime.host_for(id).reminders for id in ("s1", "s2"))
        (of_one,) = await one.list()
        assert of_one.text == "of s1"
        assert not await two.cancel(of_one.id)
        assert await one.list() == [of_one]


async def test_a_reminder_is_due_at_its_time_and_not_a_microsecond_before(tmp_path: Path) -> None:
    clock, shown = ManualClock(), []

    async def note(event: Event[ReminderDue], _ctx: HookContext) -> None:
        shown.append((event.data.reminder_id, event.data.text))

    async with serving(tmp_path, clock) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"reminder.due": note}))
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        reminder = await reminders.create("call back", at=START + timedelta(days=40))
        clock.advance(40 * 86_400 - 0.000_001)
        await runtime.settled()
        assert await recorded(session, "reminder.due") == []
        clock.advance(0.000_001)
        await runtime.settled()
        assert shown == [(reminder.id, "call back")]
        assert await reminders.list() == []
        assert not await reminders.cancel(reminder.id)
        assert [event.type for event in await recorded(session)] == ["reminder.created", "reminder.due"]


async def test_a_reminder_that_is_created_later_and_due_earlier_is_due_first(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        for text, after_s in (("third", 30), ("first", 10), ("second", 20), ("now", 0)):
            await reminders.create(text, after_s=after_s)
        await runtime.settled()
        assert [each.text for each in await reminders.list()] == ["first", "second", "third"]
        for passed in (10, 10, 10):
            clock.advance(passed)
            await runtime.settled()
        assert await due(session) == ["now", "first", "second", "third"]


async def test_what_is_due_at_once_is_recorded_in_the_order_of_the_due_times(tmp_path: Path) -> None:
    clock, count = ManualClock(), 2 * PAGE + 10
    async with serving(tmp_path, clock, reminder_limits=ReminderLimits(per_session=count)) as (log, runtime):
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        for n in reversed(range(count)):
            await reminders.create(str(n), after_s=n + 1)
        clock.advance(count)
        await runtime.settled()
        assert await due(session) == [str(n) for n in range(count)]


async def test_a_session_that_ended_is_reminded_all_the_same(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        session = await log.start_session("s1", purpose="eval")
        await runtime.host_for("s1").reminders.create("check on it", at=START + timedelta(seconds=9))
        await session.append("session.completed", {})
        clock.advance(9)
        await runtime.settled()
        assert await due(session) == ["check on it"]


async def test_only_the_sessions_of_its_agent_and_of_none_are_a_runtimes_to_remind(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        ours, theirs = await log.start_session("s1", agent="agent"), await log.start_session("s2", agent="billing")
        nobodys = await log.start_session("s3")
        for id in ("s1", "s2", "s3"):
            await runtime.host_for(id).reminders.create("it is time", after_s=1)
        clock.advance(1)
        await runtime.settled()
        assert [await due(session) for session in (ours, theirs, nobodys)] == [["it is time"], [], ["it is time"]]


# ---------------------------------------------------------------------------------------------- restarts and clocks


async def test_what_became_due_while_no_runtime_was_up_is_recorded_once_at_the_next_start(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        await log.start_session("s1")
        await runtime.host_for("s1").reminders.create("renew", after_s=3_600)
        await runtime.host_for("s1").reminders.create("much later", after_s=90_000)
    for passed, expected in ((1_800, []), (1_800, ["renew"]), (3_600, ["renew"])):
        clock.advance(passed)
        async with serving(tmp_path, clock) as (log, runtime):
            await runtime.settled()
            assert await due(await log.session("s1")) == expected
    clock.advance(90_000)
    async with serving(tmp_path, clock) as (log, runtime):
        await runtime.settled()
        assert await due(await log.session("s1")) == ["renew", "much later"]


async def test_a_kill_forgets_no_reminder_and_repeats_none(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        await log.start_session("s1")
        for text, after_s in (("before", 5), ("after", 60)):
            await runtime.host_for("s1").reminders.create(text, after_s=after_s)
        clock.advance(5)
        await runtime.settled()
        crash_copy(log.path, tmp_path / "killed")
    clock.advance(55)
    async with serving(tmp_path / "killed", clock) as (log, runtime):
        await runtime.settled()
        assert await due(await log.session("s1")) == ["before", "after"]


async def test_two_that_remind_at_once_record_it_once(tmp_path: Path) -> None:
    """As at a hand-over, or when two runtimes serve sessions without an agent: the key lets one event in."""
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s1")
        both = [Reminding(log, "agent"), Reminding(log, "billing")]
        for n in range(20):
            await both[0].of("s1").create(str(n), after_s=1)
        clock.advance(1)
        assert await asyncio.gather(*(reminding.fire_once() for reminding in both)) == [0, 0]
        assert sorted(await due(session), key=int) == [str(n) for n in range(20)]


async def test_a_step_of_the_wall_clock_changes_no_due_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        session = await log.start_session("s1")
        await runtime.host_for("s1").reminders.create("tea", after_s=240)
        clock.step(86_400)
        await runtime.settled()
        assert await due(session) == []
        clock.step(-2 * 86_400)
        await runtime.host_for("s1").reminders.create("later", after_s=300)
        clock.advance(240)
        await runtime.settled()
        assert await due(session) == ["tea"]
        clock.advance(60)
        await runtime.settled()
        assert await due(session) == ["tea", "later"]


async def test_the_machines_own_clock_keeps_the_time_too(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        session = await log.start_session("s1")
        reminder = await runtime.host_for("s1").reminders.create("soon", after_s=0.02)
        async for event in session.tail():
            if event.type == "reminder.due":
                assert event.data == ReminderDue(reminder.id, "soon")
                assert event.at >= reminder.at
                break


async def test_across_a_restart_the_wall_clock_is_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        await log.start_session("s1")
        await runtime.host_for("s1").reminders.create("tea", after_s=240)
    clock.step(240)
    async with serving(tmp_path, clock) as (log, runtime):
        await runtime.settled()
        assert await due(await log.session("s1")) == ["tea"]


# --------------------------------------------------------------------------------------------------------- cancelling


async def test_a_cancelled_reminder_is_never_due_after_a_restart_either(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        reminder = await reminders.create("no more", after_s=10)
        assert await reminders.cancel(reminder.id)
        assert [event.type for event in await recorded(session)] == ["reminder.created", "reminder.cancelled"]
        assert await reminders.list() == []
        assert not await reminders.cancel(reminder.id)
        assert not await reminders.cancel("of nobody")
        clock.advance(20)
        await runtime.settled()
    async with serving(tmp_path, clock) as (log, runtime):
        await runtime.settled()
        assert await due(await log.session("s1")) == []


async def test_of_due_and_cancelled_only_one_is_ever_recorded(tmp_path: Path) -> None:
    """Both at the same moment, in a session that is busy meanwhile: whichever came first, `cancel` tells the truth."""
    clock, random = ManualClock(), Random(4)
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s1")
        reminding = Reminding(log, "agent")
        reminders = [await reminding.of("s1").create(str(n), after_s=1) for n in range(60)]
        clock.advance(1)
        cancelled = dict.fromkeys((each.id for each in reminders), False)

        async def cancel(id: str) -> None:
            cancelled[id] = await reminding.of("s1").cancel(id)

        work = [cancel(each.id) for each in random.sample(reminders, 40)]
        await asyncio.gather(reminding.fire_once(), *work, *(session.append("test.noted", {}) for _ in range(200)))
        ends: dict[str, list[str]] = {each.id: [] for each in reminders}
        for event in await recorded(session, "reminder.due", "reminder.cancelled"):
            ends[event.data.reminder_id].append(event.type)
        assert {len(types) for types in ends.values()} == {1}
        assert {id: types == ["reminder.cancelled"] for id, types in ends.items()} == cancelled
        assert len(set(cancelled.values())) == 2, "both happened, or the test says nothing"


# ------------------------------------------------------------------------------------------------------------- limits


def test_the_limits_are_these_unless_told_otherwise() -> None:
    assert ReminderLimits() == ReminderLimits(text_characters=4_000, per_session=100)


async def test_a_text_is_taken_at_its_limit_and_refused_past_it(tmp_path: Path) -> None:
    async with serving(tmp_path, ManualClock(), reminder_limits=ReminderLimits(text_characters=10)) as (log, runtime):
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        await reminders.create("é" * 10, after_s=1)
        with pytest.raises(LimitExceeded, match="text: 11 is over the limit of 10"):
            await reminders.create("é" * 11, after_s=1)
        assert len(await recorded(session)) == 1


async def test_so_many_reminders_wait_in_a_session_and_not_one_more(tmp_path: Path) -> None:
    """What was due or cancelled makes room, and other sessions have room of their own."""
    clock = ManualClock()
    async with serving(tmp_path, clock, reminder_limits=ReminderLimits(per_session=3)) as (log, runtime):
        for id in ("s1", "s2"):
            await log.start_session(id)
        reminders = runtime.host_for("s1").reminders
        made = [await reminders.create("x", after_s=1 + n) for n in range(3)]
        with pytest.raises(LimitExceeded, match="wait in one session: 4 is over the limit of 3"):
            await reminders.create("x", after_s=9)
        await runtime.host_for("s2").reminders.create("x", after_s=9)
        assert await reminders.cancel(made[2].id)
        await reminders.create("x", after_s=9)
        clock.advance(1)
        await runtime.settled()
        await reminders.create("x", after_s=9)
        with pytest.raises(LimitExceeded):
            await reminders.create("x", after_s=9)


async def test_the_last_place_is_taken_once(tmp_path: Path) -> None:
    async with serving(tmp_path, ManualClock(), reminder_limits=ReminderLimits(per_session=5)) as (log, runtime):
        await log.start_session("s1")
        creating = (runtime.host_for("s1").reminders.create(str(n), after_s=60) for n in range(20))
        results = await asyncio.gather(*creating, return_exceptions=True)
        assert sum(isinstance(result, LimitExceeded) for result in results) == 15
        assert len(await runtime.host_for("s1").reminders.list()) == 5


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("when", "path"),
    [
        ({}, "at"),
        ({"at": START, "after_s": 1}, "at"),
        ({"at": datetime(2026, 1, 1)}, "at"),  # noqa: DTZ001
        ({"at": "2026-01-01T00:00:00Z"}, "at"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "at"),
        ({"after_s": -0.001}, "after_s"),
        ({"after_s": float("nan")}, "after_s"),
        ({"after_s": float("inf")}, "after_s"),
        ({"after_s": True}, "after_s"),
        ({"after_s": "60"}, "after_s"),
        ({"after_s": 1e12}, "at"),
        ({"after_s": 1e300}, "at"),
    ],
    ids=repr,
)
async def test_a_bad_time_is_refused_and_nothing_recorded(tmp_path: Path, when: dict[str, Any], path: str) -> None:
    async with serving(tmp_path, ManualClock()) as (log, runtime):
        session = await log.start_session("s1")
        with pytest.raises(InvalidEvent) as refused:
            await runtime.host_for("s1").reminders.create("x", **when)
        assert refused.value.path == path
        assert await recorded(session) == []


@pytest.mark.parametrize("text", ["", None, 5, b"x", "\ud800"], ids=repr)
async def test_a_bad_text_is_refused(tmp_path: Path, text: Any) -> None:
    async with serving(tmp_path, ManualClock()) as (log, runtime):
        session = await log.start_session("s1")
        with pytest.raises(InvalidEvent, match="text"):
            await runtime.host_for("s1").reminders.create(text, after_s=1)
        assert await recorded(session) == []


async def test_a_time_in_the_past_is_due_now(tmp_path: Path) -> None:
    async with serving(tmp_path, ManualClock()) as (log, runtime):
        session = await log.start_session("s1")
        await runtime.host_for("s1").reminders.create("at last", at=datetime(1, 1, 1, tzinfo=UTC))
        await runtime.settled()
        assert await due(session) == ["at last"]


# ------------------------------------------------------------------------------------------- the events are the truth


async def test_a_reminder_is_what_its_events_say_whoever_appends_them(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock) as (log, runtime):
        session = await log.start_session("s1")
        for id, at in (
            ("r1", "2026-01-01T02:00:05+02:00"),
            ("r 2" * 500, "2026-01-01t00:00:05z"),
            ("r3", "2026-01-01T00:00:05Z"),
        ):
            await session.append("reminder.created", {"reminderId": id, "at": at, "text": id[:2]})
        await session.append("reminder.cancelled", {"reminderId": "r3"})
        await session.append("reminder.created", {"reminderId": "r1", "at": WHEN, "text": "the same id again"})
        assert [each.id for each in await runtime.host_for("s1").reminders.list()] == ["r1", "r 2" * 500]
        clock.advance(5)
        await runtime.settled()
        assert await due(session) == ["r1", "r "]


async def test_imported_reminders_are_history(tmp_path: Path) -> None:
    clock = ManualClock()
    source, target = tmp_path / "a", tmp_path / "b"
    async with EventLog(source / "agent.db", clock=clock) as log:
        session = await log.start_session("s1")
        await session.append("reminder.created", {"reminderId": "r1", "at": WHEN, "text": "long ago"})
        lines = [line async for line in log.export()]
    async with serving(target, clock) as (log, runtime):
        assert (await log.import_events(lines)).added == 2
        clock.advance(60)
        await runtime.settled()
        assert await due(await log.session("s1")) == []
        assert await runtime.host_for("s1").reminders.list() == []


async def test_every_written_form_of_a_time_is_the_same_moment_in_the_file(tmp_path: Path) -> None:
    """A trigger reads the time in SQL: years 1 to 9999, any offset, with and without a fraction, as Python reads it."""
    random, limits = Random(7), ReminderLimits(per_session=10_000)
    moments = []
    for _ in range(900):
        zone = timezone(timedelta(minutes=random.randint(-1_439, 1_439)))
        moment = datetime(1, 1, 3, tzinfo=zone) + timedelta(microseconds=random.randrange(9_990 * 365 * 86_400 * 10**6))
        moments.append(moment.replace(microsecond=random.choice([0, moment.microsecond, moment.microsecond // 1_000])))
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        created = [{"reminderId": str(n), "at": each.isoformat(), "text": "x"} for n, each in enumerate(moments)]
        await session.append_many([NewEvent("reminder.created", data) for data in created])
        kept = {each.id: each.at for each in await Reminding(log, "agent", limits).of("s1").list()}
        assert kept == {str(n): moment for n, moment in enumerate(moments)}


async def test_what_redact_makes_of_a_text_is_what_is_kept(tmp_path: Path) -> None:
    def redact(event: NewEvent) -> NewEvent:
        if event.type == "reminder.created":
            assert isinstance(event.data, dict)
            return replace(event, data={**event.data, "text": "pay ####"})
        return event

    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock, redact=redact) as log, Runtime(log) as runtime:
        session = await log.start_session("s1")
        reminder = await runtime.host_for("s1").reminders.create("pay 4711", after_s=1)
        assert reminder.text == "pay ####"
        assert await runtime.host_for("s1").reminders.list() == [reminder]
        clock.advance(1)
        await runtime.settled()
        assert await due(session) == ["pay ####"]


# -------------------------------------------------------------------------------------------------- and what goes wrong


async def test_one_that_cannot_be_recorded_holds_up_no_other_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ["poison"]

    def redact(event: NewEvent) -> NewEvent:
        if isinstance(event.data, ReminderDue) and event.data.text in refused:
            raise RuntimeError("not this one")
        return event

    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock, redact=redact) as log, Runtime(log) as runtime:
        session = await log.start_session("s1")
        for text in ("poison", "fine"):
            await runtime.host_for("s1").reminders.create(text, after_s=1)
        clock.advance(1)
        await runtime.settled()
        assert await due(session) == ["fine"]
        assert "a reminder of session s1 is due and could not be recorded: not this one" in caplog.text
        refused.clear()
        clock.advance(RETRY_S)
        await runtime.settled()
        assert await due(session) == ["fine", "poison"]


async def test_a_log_that_is_closed_first_ends_it_quietly(tmp_path: Path) -> None:
    clock = ManualClock()
    log = await EventLog(tmp_path / "agent.db", clock=clock).open()
    reminding = Reminding(log, "agent")
    reminding.start()
    await log.start_session("s1")
    await reminding.of("s1").create("x", after_s=1)
    await reminding.idle()
    await log.close()
    clock.advance(1)
    await reminding.idle()
    await reminding.stop()
    await reminding.stop()


async def test_r114_a_reminder_whose_text_sqlite_would_cut_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db", ManualClock()) as (log, runtime):
        session = await log.start_session("s1")
        reminders = runtime.host_for("s1").reminders
        with pytest.raises(InvalidEvent, match=r"data\.text: has the character U\+0000"):
            await reminders.create("call\0 Bob", after_s=0)
        assert (session.next_index, await reminders.list()) == (1, [])
