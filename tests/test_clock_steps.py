"""The wall clock is stepped while a log is open: order, retries and due times do not notice, and nothing is too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.clock import from_datetime, parse_time
from eventlog.log import EventLog
from eventlog.testing import ManualClock
from tests.extension_kit import DAY_S, Recorder, bench
from tests.log_kit import all_of, indexes, whole

HOUR_S = 3_600
STEPS_S = [HOUR_S, -HOUR_S, 8 * DAY_S, -8 * DAY_S, -50 * 365 * DAY_S]
MOMENTS = {
    "the last second of 32 bits": "2038-01-19T03:14:07Z",
    "a leap second that POSIX repeats": "2016-12-31T23:59:59Z",
    "the end of a leap day": "2028-02-29T23:59:59.999999Z",
    "the first second of all": "1970-01-01T00:00:00Z",
}


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_step_between_appends_changes_no_order_and_no_time_goes_back(tmp_path: Path, step_s: int) -> None:
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s")
        for n in range(10):
            clock.step(step_s)
            clock.advance(0.001)
            await session.append("own.type", {"n": n})
        events = await all_of(session.read())
        assert [event.at_us for event in events] == sorted(event.at_us for event in events)
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:  # now the wall clock is believed, as it is
        session = await log.session("s")
        assert (await session.append("own.type", {"n": 10})).index == 11
        assert indexes(await all_of(session.read())) == indexes(await all_of(log.read())) == list(range(12))
        await whole(log)


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_step_between_retries_makes_none_early_late_or_too_old(tmp_path: Path, step_s: int) -> None:
    clock = ManualClock()
    handler = Recorder(ConnectionError("not now"), ConnectionError("not now"))
    async with bench(tmp_path, clock, jitter=0.0) as it:
        await it.install(handler=handler)
        await it.turn("s", "t")
        await it.worker.idle()
        for due_s, calls in ((5.0, 2), (20.0, 3)):
            clock.step(step_s)
            await it.pass_time(due_s - 0.1)
            assert len(handler.events) == calls - 1, "called too early"
            await it.pass_time(0.2)
            assert len(handler.events) == calls, "not called when it was due"
        assert await it.live() == []
        assert await it.dead_letters.list() == []


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_log_lives_through_special_moments(tmp_path: Path, moment: str) -> None:
    start_us = parse_time(MOMENTS[moment])
    clock = ManualClock(start_us)
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        session = await log.start_session("s")
        for _ in range(4):
            clock.advance(0.5)
            await session.append("own.type")
        events = await all_of(session.read())
    assert [event.at_us - start_us for event in events] == [0, 500_000, 1_000_000, 1_500_000, 2_000_000]
    assert [from_datetime(event.at) for event in events] == [event.at_us for event in events]
    async with EventLog(tmp_path / "agent.db", read_only=True) as log:
        assert await all_of((await log.session("s")).read()) == events
        await whole(log)
