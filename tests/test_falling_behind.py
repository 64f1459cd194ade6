"""What hooks fall behind with stays in the log: how much the dispatcher holds does not depend on how far that is."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from pathlib import Path
from typing import Any

from eventlog.events import Event, NewEvent
from eventlog.observe.limits import ObserveLimits
from eventlog.session import Session
from eventlog.testing import ManualClock
from tests.log_kit import until
from tests.observing import PATIENCE_S, Gate, hook_of, served, shown

FAR_BEHIND = 100_000
FEW_BYTES = 6_000_000
"""Held by the log itself, for the most part: the events alone would be over 60 million."""


async def test_a_lane_that_is_100_000_events_behind_holds_little(tmp_path: Path) -> None:
    """With the defaults: at most its 1,000 events, however many there are; then all are shown, each once, in order."""
    gate, count, limits = Gate(), 0, ObserveLimits()

    async def handler(event: Event[Any], _context: Any) -> None:
        nonlocal count
        assert event.index == count
        count += 1
        await gate.wait()

    async with served(tmp_path / "a.db", {"h": hook_of({"*": handler})}) as (log, dispatcher):
        session = await log.start_session("s1")
        await gate.reached.wait()
        await append_many(session, 2_000)
        (lane,) = dispatcher._lanes.by_session.values()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await append_many(session, FAR_BEHIND)
            await until(lambda: not dispatcher._inbox.ready)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(lane.queue) == dispatcher._lanes._events == limits.lane_events
        assert lane.missed is not None
        assert after - before < FEW_BYTES
        gate.opened.set()
        while not dispatcher.is_settled:
            await dispatcher.settled(PATIENCE_S)
            assert len(lane.queue) <= limits.lane_events
        assert (count, dispatcher.hooks[0].errors) == (2_001 + FAR_BEHIND, 0)


async def append_many(session: Session, count: int) -> None:
    """Append that many events of 300 bytes, and let the dispatcher have them."""
    for _ in range(0, count, 1_000):
        await session.append_many([NewEvent("test.noted", {"text": "x" * 300})] * 1_000)
        await asyncio.sleep(0)


async def test_many_lanes_behind_stuck_threads_hold_little(tmp_path: Path) -> None:
    """All threads are stuck, are replaced, and the new ones are stuck too: 20 sessions, 40,000 events behind them."""
    clock, released, limits = ManualClock(), threading.Event(), ObserveLimits(plain_threads=2, max_plain_threads=6)
    begun = threading.Semaphore(0)

    def block(_event: Event[Any], _context: Any) -> None:
        begun.release()
        released.wait(60)

    async with served(tmp_path / "a.db", {"h": hook_of({"*": block})}, limits=limits, clock=clock) as (log, dispatcher):
        sessions = [await log.start_session(f"s{n}") for n in range(20)]
        for threads in (2, 2, 2):  # begin, and get stuck
            for _ in range(threads):
                assert await asyncio.to_thread(begun.acquire, timeout=10)
            for session in sessions:
                await append_many(session, 1_000)
            clock.advance(limits.stuck_after_s + 1)
        lanes = dispatcher._lanes
        assert len(lanes.by_session) == 20
        assert sum(len(lane.queue) for lane in lanes.by_session.values()) == lanes._events <= limits.lanes_events
        assert len(dispatcher._threads._unfinished) == 20, "one call a session, and not one more"
        assert dispatcher._threads._threads == limits.max_plain_threads
        released.set()
        await shown(dispatcher)
        assert [(hook.calls, hook.errors, hook.stuck) for hook in dispatcher.hooks] == [(20 * 3_001, 0, 0)]
        assert lanes._events == 0
