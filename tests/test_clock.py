"""Time: real, anchored and by hand, and the way it is written."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventlog.clock import AnchoredClock, Clock, SystemClock, format_time, from_datetime, parse_time, to_datetime
from eventlog.errors import InvalidEvent
from eventlog.testing import ManualClock

FIRST_US = from_datetime(datetime(1, 1, 1, tzinfo=UTC))
LAST_US = from_datetime(datetime.max.replace(tzinfo=UTC))

moments_us = st.integers(FIRST_US, LAST_US)

# --------------------------------------------------------------------------------------------------------- the clocks


@pytest.mark.parametrize(
    "clock", [SystemClock(), ManualClock(), AnchoredClock(ManualClock())], ids=lambda clock: type(clock).__name__
)
def test_every_clock_keeps_the_protocol(clock: Clock) -> None:
    assert isinstance(clock.now_us(), int)
    assert isinstance(clock.monotonic_s(), float)
    assert asyncio.iscoroutinefunction(clock.sleep)


def test_the_system_clock_tells_the_time_of_day() -> None:
    before, now, after = time.time_ns() // 1_000, SystemClock().now_us(), time.time_ns() // 1_000
    assert before - 1_000 <= now <= after + 1_000


async def test_the_system_clock_sleeps() -> None:
    clock = SystemClock()
    before_us, before_s = clock.now_us(), clock.monotonic_s()
    await clock.sleep(0.01)
    assert clock.monotonic_s() - before_s >= 0.009
    assert clock.now_us() - before_us >= 9_000


def test_the_manual_clock_stands_still() -> None:
    clock = ManualClock(start_us=5)
    assert [clock.now_us(), clock.now_us()] == [5, 5]
    assert clock.monotonic_s() == 0.0


def test_advance_moves_both_and_step_moves_the_wall_alone() -> None:
    clock = ManualClock(start_us=0)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_s()) == (1_500_000, 1.5)
    clock.step(-10)
    assert (clock.now_us(), clock.monotonic_s()) == (-8_500_000, 1.5)


def test_time_does_not_advance_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="step"):
        clock.advance(-1)


def test_an_anchored_clock_does_not_see_steps_but_the_next_one_does() -> None:
    manual = ManualClock(start_us=0)
    first = AnchoredClock(manual)
    manual.step(-3_600)
    manual.advance(2)
    second = AnchoredClock(manual)
    assert first.now_us() == 2_000_000
    assert second.now_us() == -3_598_000_000
    assert first.monotonic_s() == second.monotonic_s() == 2.0


async def until_asleep(clock: ManualClock, sleepers: int) -> None:
    while len(clock._sleepers) < sleepers:
        await asyncio.sleep(0)


async def test_sleepers_wake_in_the_order_in_which_they_are_due() -> None:
    clock = ManualClock()
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await AnchoredClock(clock).sleep(seconds)
        woken.append(seconds)

    async with asyncio.TaskGroup() as tasks:
        for seconds in (3, 1, 2, 0.5):
            tasks.create_task(sleep(seconds))
        await until_asleep(clock, 4)
        clock.advance(2)
        await until_woken(woken, 3)
        assert woken == [0.5, 1, 2]
        clock.advance(1)
    assert woken == [0.5, 1, 2, 3]


async def until_woken(woken: list[float], number: int) -> None:
    while len(woken) < number:
        await asyncio.sleep(0)


async def test_sleeping_for_no_time_lets_others_run_and_returns() -> None:
    others: list[float] = []
    for seconds in (0, -1, 1e-9):
        asyncio.get_running_loop().call_soon(others.append, seconds)
        await ManualClock().sleep(seconds)
    assert others == [0, -1, 1e-9]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await until_asleep(clock, 1)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert clock._sleepers == {}


async def test_a_sleeper_that_is_cancelled_while_it_wakes_stays_cancelled() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await until_asleep(clock, 1)
    clock.advance(1)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper


async def test_time_may_be_advanced_from_another_thread() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await until_asleep(clock, 1)
    thread = threading.Thread(target=clock.advance, args=(1,))
    thread.start()
    await sleeper
    thread.join()


def test_a_sleeper_whose_loop_is_gone_does_not_stop_the_clock() -> None:
    clock = ManualClock()
    loop = asyncio.new_event_loop()
    sleeper = clock.sleep(1)
    loop.call_soon(sleeper.send, None)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    clock.advance(1)
    assert clock.monotonic_s() == 1.0
    sleeper.close()


# ------------------------------------------------------------------------------------------------------ written times


@given(moments_us)
@example(FIRST_US)
@example(LAST_US)
@example(-1)
def test_a_written_time_reads_as_the_same_microsecond(us: int) -> None:
    assert parse_time(format_time(us)) == us


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_000, "1970-01-01T00:00:00.001Z"),
        (1_001, "1970-01-01T00:00:00.001001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_765_024_083_008_000, "2025-12-06T12:28:03.008Z"),
    ],
)
def test_a_time_has_three_digits_when_whole_milliseconds_and_else_six(us: int, text: str) -> None:
    assert format_time(us) == text


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T23:59:59Z",
        "2026-01-31T23:59:59.0Z",
        "2026-01-31t23:59:59.000000z",
        "2026-02-01T00:59:59+01:00",
        "2026-01-31T18:29:59.00-05:30",
    ],
)
def test_zero_to_six_digits_and_offsets_are_read(text: str) -> None:
    assert parse_time(text) == from_datetime(datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-01-31",
        "2026-01-31T23:59:59",
        "2026-01-31 23:59:59Z",
        "2026-01-31T23:59:59.1234567Z",
        "2026-01-31T23:59:59.Z",
        "2026-02-30T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T23:59:60Z",
        "2026-01-31T23:59:59+24:00",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "2026-01-31T23:59:59Z\n",
        "٢٠٢٦-01-31T23:59:59Z",
        None,
        5,
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidEvent, match=r"^at: ") as refused:
        parse_time(text)
    assert str(refused.value).isprintable()


def test_a_time_outside_of_the_calendar_is_refused() -> None:
    for us in (FIRST_US - 1, LAST_US + 1, 2**70):
        with pytest.raises(InvalidEvent, match="years 1 to 9999"):
            to_datetime(us)
        with pytest.raises(InvalidEvent, match="years 1 to 9999"):
            format_time(us)


@given(moments_us)
def test_a_datetime_is_aware_and_exact(us: int) -> None:
    assert to_datetime(us).utcoffset() is not None
    assert from_datetime(to_datetime(us)) == us
