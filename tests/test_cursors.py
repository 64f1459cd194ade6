"""What is written down of hooks: where they are, what they will never be shown, and what they threw."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import LogClosed, StorageFull
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.hook import HookDefinition
from eventlog.observe.limits import ObserveLimits
from eventlog.store import cursors
from eventlog.store.cursors import Cursors, Finished, HookToJoin, Thrown
from eventlog.store.hook_lists import hook_errors, hook_gaps, hook_rows
from eventlog.testing import ManualClock
from tests.observing import (
    NOTE,
    Gate,
    Trace,
    append,
    channel_of,
    dispatcher_of,
    hook_of,
    served,
    shown,
)


async def gaps_of(log: EventLog, name: str | None = None) -> list[tuple[str | None, int, int, int]]:
    return [(gap.session_id, gap.first, gap.last, gap.at_most) for gap in await hook_gaps(log.store, name)]


async def cursor_of(log: EventLog, name: str) -> int:
    (row,) = [row for row in await hook_rows(log.store) if row.name == name]
    return row.cursor


@asynccontextmanager
async def abandoned(path: Path, hooks: dict[str, HookDefinition]) -> AsyncIterator[tuple[EventLog, Dispatcher]]:
    """As `served`, but ended as by a kill: nothing is written down at the end."""
    async with EventLog(path) as log:
        dispatcher = dispatcher_of(log, hooks, limits=ObserveLimits(cursor_every_s=3_600))
        await dispatcher.start()
        yield log, dispatcher
        assert dispatcher._unsubscribe is not None
        dispatcher._unsubscribe()
        await dispatcher._cut_off()


# ------------------------------------------------------------------------------------------------------- restarts


async def test_a_new_hook_starts_at_the_head(tmp_path: Path) -> None:
    trace = Trace()
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        await append(log, "s1", 5)
    hooks = {"skips": trace.hook("skips"), "resumes": trace.hook("resumes", "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert await gaps_of(log) == []
        assert [await cursor_of(log, name) for name in hooks] == [6, 6]
    assert trace.calls == []


async def test_r127_an_orderly_restart_replays_nothing_and_leaves_no_gap(tmp_path: Path) -> None:
    trace = Trace()
    hooks = {"skips": trace.hook("skips"), "resumes": trace.hook("resumes", "resume")}
    for n in range(3):
        async with served(tmp_path / "a.db", hooks) as (log, _):
            await log.start_session(f"s{n}")
            await append(log, f"s{n}", 3)
    async with EventLog(tmp_path / "a.db", read_only=True) as log:
        assert await gaps_of(log) == []
        assert [(row.cursor, row.lag, row.calls) for row in await hook_rows(log.store)] == [(12, 0, 12)] * 2
    assert Counter(trace.calls).most_common(1)[0][1] == 1


async def test_r127_after_a_kill_what_no_handler_is_known_to_have_finished_is_one_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = Trace()
    hooks = {"all": trace.hook("all"), "notes": hook_of({NOTE: trace.handler("notes")})}
    async with abandoned(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await append(log, "s1", 2, "own.type")
        await shown(dispatcher)
    caplog.clear()
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        assert await gaps_of(log, "all") == [(None, 1, 6, 6)]
        assert await gaps_of(log, "notes") == [(None, 2, 4, 3)]
        assert [hook.gaps for hook in dispatcher.hooks] == [1, 1]
        assert dispatcher.gaps_found == 2
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            f'hook "{name}" is not shown positions {places} events: recorded before, and not known to be finished by it'
            for name, places in (("all", "1 to 6, at most 6"), ("notes", "2 to 4, at most 3"))
        ]
        await append(log, "s1", 1)
    assert len(trace.calls) == 9 + 2


async def test_a_gap_is_written_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace()
    async with abandoned(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, _):
        await log.start_session("s1")
    for _ in range(3):
        async with abandoned(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, _):
            assert await gaps_of(log) == [(None, 1, 1, 1)]
    told = "is not shown position 1: recorded before, and not known to be finished by it"
    assert [record.getMessage() for record in caplog.records] == [f'hook "h" {told}']


async def test_imported_events_are_in_no_gap_and_not_shown(tmp_path: Path) -> None:
    trace = Trace()
    lines = [
        json.dumps(
            {"type": "own.type", "index": n, "sessionId": "old", "at": "2026-01-01T00:00:00Z", "data": {}}
        ).encode()
        for n in range(5)
    ]
    hooks = {"skips": trace.hook("skips"), "resumes": trace.hook("resumes", "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 1)  # 2
        assert (await log.import_events(lines)).added == 5  # 3 to 7
        await append(log, "s1", 1)  # 8
    trace.calls.clear()
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert await gaps_of(log, "skips") == [(None, 2, 8, 2)]
        assert await gaps_of(log, "resumes") == []
    assert trace.calls == [("resumes", "s1", 1), ("resumes", "s1", 2)]
    async with EventLog(tmp_path / "a.db") as log:
        more = [line.replace(b'"old"', b'"older"') for line in lines]
        assert (await log.import_events(more)).added == 5
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert len(await gaps_of(log)) == 1


async def test_the_sessions_of_other_agents_are_in_no_gap(tmp_path: Path) -> None:
    trace = Trace()
    async with abandoned(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, _):
        for name in ("agent", "other", None):
            await log.start_session(f"of {name}", agent=name)
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, _):
        assert await gaps_of(log) == [(None, 1, 3, 2)]


async def test_a_long_gap_is_not_counted_event_by_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "COUNTED_POSITIONS", 3)
    hooks = {"h": hook_of({"session.started": Trace().handler("h")})}
    async with abandoned(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
        await append(log, "s1", 3)
    async with served(tmp_path / "a.db", hooks) as (log, _):
        assert await gaps_of(log) == [(None, 1, 4, 4)]


async def test_hooks_that_are_not_served_any_more_are_listed_as_not_loaded(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"a": trace.hook("a"), "b": trace.hook("b", "resume")}) as (log, _):
        await log.start_session("s1")
    async with served(tmp_path / "a.db", {"b": trace.hook("b")}) as (log, _):
        rows = {row.name: (row.loaded, row.on_restart, row.source) for row in await hook_rows(log.store, "agent")}
        assert rows == {"a": (False, "skip", "tests"), "b": (True, "skip", "tests")}
        assert await hook_rows(log.store, "other") == []


# --------------------------------------------------------------------------------------------------------- resume


async def test_a_resume_hook_is_shown_what_was_recorded_while_nobody_served(tmp_path: Path) -> None:
    trace = Trace()
    hooks = {"skips": trace.hook("skips"), "resumes": trace.hook("resumes", "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s2")
        await append(log, "s1", 600)
        await append(log, "s2", 600)
    channel = channel_of("api", {"*": trace.handler("channel")})
    async with served(tmp_path / "a.db", hooks, (channel,)) as (log, dispatcher):
        await append(log, "s1", 1)
        await shown(dispatcher)
        assert await gaps_of(log, "resumes") == []
        assert await gaps_of(log, "skips") == [(None, 2, 1202, 1201)]
    assert trace.indexes("resumes", "s1") == list(range(602))
    assert trace.indexes("resumes", "s2") == list(range(601))
    assert trace.indexes("skips", "s1") == [0, 601]
    assert trace.indexes("channel", "s1") == [601]
    assert trace.calls[-3:] == [("channel", "s1", 601), ("skips", "s1", 601), ("resumes", "s1", 601)]


async def test_a_resume_hook_goes_on_behind_its_claim_and_what_was_claimed_is_a_gap(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_in_the_middle(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.index == 3:
            await gate.wait()

    hooks = {"h": hook_of({NOTE: stop_in_the_middle}, "resume")}
    async with abandoned(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
        await append(log, "s1", 5)
        await gate.reached.wait()
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 4)
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert await gaps_of(log) == [(None, 2, 6, 5)]
    assert trace.indexes("h", "s1") == [1, 2, 3, 6, 7, 8, 9]


async def test_a_claim_is_committed_before_the_first_call(tmp_path: Path) -> None:
    path, claims = tmp_path / "a.db", []

    async def look(event: Event[Any], _context: Any) -> None:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        claims.append((event.position, *connection.execute("SELECT claimed FROM hook").fetchone()))
        connection.close()

    async with served(path, {"h": hook_of({"*": look}, "resume")}) as (log, dispatcher):
        await log.start_session("s1")
        for _ in range(5):
            await append(log, "s1", 3)
        await shown(dispatcher)
        assert dispatcher.hooks[0].errors == 0
    assert len(claims) == 16
    assert all(position <= claimed for position, claimed in claims)


async def test_nothing_is_shown_to_a_resume_hook_while_its_claim_cannot_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, trace, tried, claim = ManualClock(), Trace(), asyncio.Event(), Cursors.claim

    async def no_room(self: Cursors, hooks: Any, upto: int) -> None:
        tried.set()
        raise StorageFull("the disk is full")

    async with served(tmp_path / "a.db", {"h": trace.hook("h", "resume")}, clock=clock) as (log, dispatcher):
        monkeypatch.setattr(Cursors, "claim", no_room)
        await log.start_session("s1")
        await tried.wait()
        await append(log, "s1", 2)
        assert trace.calls == []
        monkeypatch.setattr(Cursors, "claim", claim)
        while not dispatcher.is_settled:
            clock.advance(1)
            await asyncio.sleep(0)
    assert trace.indexes("h", "s1") == [0, 1, 2]
    assert any("tried again" in record.getMessage() for record in caplog.records)


async def test_a_resume_hook_that_joins_late_catches_up_and_the_others_see_nothing_twice(tmp_path: Path) -> None:
    trace = Trace()
    hooks = {"h": trace.hook("h", "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 4)
    channel = channel_of("api", {"*": trace.handler("channel")})
    async with served(tmp_path / "a.db", {"old": trace.hook("old")}, (channel,)) as (log, dispatcher):
        await append(log, "s1", 2)
        dispatcher.add_hook("h", trace.hook("h", "resume"), "tests")
        await append(log, "s1", 2)
        await shown(dispatcher)
        assert await gaps_of(log) == []
    assert trace.indexes("h", "s1") == list(range(9))
    assert trace.indexes("old", "s1") == trace.indexes("channel", "s1") == [5, 6, 7, 8]


async def test_a_stop_while_a_hook_catches_up_leaves_no_gap_of_the_others(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_at_2(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.index == 2:
            await gate.wait()

    hooks = {"h": hook_of({NOTE: stop_at_2}, "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")  # 1
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 3)  # 2 to 4
    limits = ObserveLimits(drain_s=0.01, queue_events=1)
    async with served(tmp_path / "a.db", {"old": trace.hook("old")}, limits=limits) as (log, dispatcher):
        await append(log, "s1", 2)  # 5 to 6
        await shown(dispatcher)
        dispatcher.add_hook("h", hooks["h"], "tests")
        await gate.reached.wait()
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log, "old") == []
        assert await gaps_of(log, "h") == [("s1", 3, 6, 4)]
        assert [row.cursor for row in await hook_rows(log.store)] == [6, 6]
    assert trace.indexes("old", "s1") == [4, 5]
    assert trace.indexes("h", "s1") == [1, 2]


async def test_the_cursor_of_a_hook_that_catches_up_is_written_too(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"h": trace.hook("h", "resume")}) as (log, _):
        await log.start_session("s1")
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 4)
    limits = ObserveLimits(cursor_every_s=0.001)
    async with served(tmp_path / "a.db", {"old": trace.hook("old")}, limits=limits) as (log, dispatcher):
        dispatcher.add_hook("h", trace.hook("h", "resume"), "tests")
        await shown(dispatcher)
        while await cursor_of(log, "h") < 5:
            await asyncio.sleep(0.001)


async def test_a_resume_hook_that_joins_while_others_are_stuck_has_a_gap_instead(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_in_s2(event: Event[Any], _context: Any) -> None:
        if event.session_id == "s2":
            await gate.wait()

    hooks = {"h": trace.hook("h", "resume")}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        await log.start_session("s1")
    async with EventLog(tmp_path / "a.db") as log:
        await append(log, "s1", 4)
    limits = ObserveLimits(drain_s=0.01)
    stuck = {"stuck": hook_of({NOTE: stop_in_s2})}
    async with served(tmp_path / "a.db", stuck, limits=limits) as (log, dispatcher):
        await log.start_session("s2")
        await append(log, "s2", 1)
        await gate.reached.wait()
        dispatcher.add_hook("h", trace.hook("h", "resume"), "tests")
        while len(dispatcher.hooks) < 2:
            await asyncio.sleep(0.001)
        await append(log, "s1", 1)
        while not trace.indexes("h", "s1")[1:]:
            await asyncio.sleep(0)
        assert await gaps_of(log, "h") == [(None, 2, 7, 6)]
        gate.opened.set()
    assert trace.indexes("h", "s1") == [0, 5]


# ---------------------------------------------------------------------------------------------------- an orderly stop


async def test_an_orderly_stop_shows_what_waits(tmp_path: Path) -> None:
    trace = Trace()

    async def slow(event: Event[Any], _context: Any) -> None:
        await asyncio.sleep(0.001)
        trace.note("h", event)

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: slow})}) as (log, _):
        await log.start_session("s1")
        await append(log, "s1", 20)
    assert trace.indexes("h", "s1") == list(range(1, 21))
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log) == []
        assert await cursor_of(log, "h") == 21


async def test_what_an_orderly_stop_cuts_off_is_in_exact_gaps(tmp_path: Path) -> None:
    """The stuck session's call that was cut and what waits behind it; nothing of other sessions, nothing finished."""
    gate, trace = Gate(), Trace()

    async def stop_in_s1(event: Event[Any], _context: Any) -> None:
        if (event.session_id, event.index) == ("s1", 2):
            await gate.wait()

    hooks = {
        "first": hook_of({NOTE: trace.handler("first")}),
        "stops": hook_of({NOTE: stop_in_s1}),
        "third": hook_of({"*": trace.handler("third")}),
        "resumes": hook_of({NOTE: trace.handler("resumes")}, "resume"),
        "other": hook_of({"session.completed": trace.handler("other")}),
    }
    limits = ObserveLimits(drain_s=0.01, lane_events=2)
    async with served(tmp_path / "a.db", hooks, limits=limits) as (log, _):
        await log.start_session("s1")  # 1
        await log.start_session("s2")  # 2
        await append(log, "s1", 3)  # 3 to 5, with the index 2 at 4
        await append(log, "s2", 3)  # 6 to 8
        await append(log, "s1", 5)  # 9 to 13
        await append(log, "s1", 1, "own.type")  # 14
        await gate.reached.wait()
        while len(trace.indexes("resumes", "s2")) < 3:
            await asyncio.sleep(0)
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert await gaps_of(log, "first") == [("s1", 5, 13, 6)]
        assert await gaps_of(log, "stops") == [("s1", 4, 13, 7)]
        assert await gaps_of(log, "third") == [("s1", 4, 14, 8)]
        assert await gaps_of(log, "resumes") == [("s1", 4, 13, 7)]
        assert await gaps_of(log, "other") == []
    assert trace.indexes("first", "s1") == [1, 2]
    assert trace.indexes("third", "s1") == [0, 1]
    assert trace.indexes("resumes", "s1") == [1]


async def test_the_gap_of_a_lane_that_has_caught_up_in_part_is_exact(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_twice(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.index == 1:
            await gate.wait()
        if event.index == 20:
            gate.reached.clear()
            gate.opened.clear()
            await gate.wait()

    limits = ObserveLimits(drain_s=0.01, lane_events=3, page_events=10)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: stop_twice})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await log.start_session("s2")
        for _ in range(25):
            await append(log, "s1", 2)
            await append(log, "s2", 1, "own.type")
        await gate.reached.wait()
        while dispatcher._inbox.ready:
            await asyncio.sleep(0)
        gate.opened.set()
        while gate.opened.is_set():
            await asyncio.sleep(0)
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log) == [("s1", 31, 76, 31)]
    assert trace.indexes("h", "s1") == list(range(1, 21))


async def test_a_call_that_ends_when_it_is_cut_off_is_in_no_gap(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def end_quickly(event: Event[Any], _context: Any) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            trace.note("h", event)

    hooks = {"h": hook_of({NOTE: end_quickly}), "next": hook_of({NOTE: trace.handler("next")})}
    async with served(tmp_path / "a.db", hooks, limits=ObserveLimits(drain_s=0.01)) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await gate.reached.wait()
        await asyncio.gather(dispatcher.stop(), dispatcher.stop())
        assert await gaps_of(log, "h") == [("s1", 3, 3, 1)]
        assert await gaps_of(log, "next") == [("s1", 2, 3, 2)]
    assert trace.calls == [("h", "s1", 1)]


async def test_what_was_not_taken_up_before_a_stop_is_a_gap_or_is_resumed(tmp_path: Path) -> None:
    trace = Trace()
    hooks = {"skips": trace.hook("skips"), "resumes": trace.hook("resumes", "resume")}
    async with EventLog(tmp_path / "a.db") as log:
        dispatcher = dispatcher_of(log, hooks, limits=ObserveLimits(drain_s=0))
        await dispatcher.start()
        await dispatcher._inbox.hold()
        await log.start_session("s1")
        await append(log, "s1", 3)
        await dispatcher.stop()
        assert await gaps_of(log) == [(None, 1, 4, 4)]
    assert trace.calls == []
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await shown(dispatcher)
        assert await gaps_of(log) == [(None, 1, 4, 4)]
    assert trace.calls == [("resumes", "s1", n) for n in range(4)]


async def test_g3_a_stop_returns_although_a_handler_refuses_to_end(tmp_path: Path) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def refuse(_event: Event[Any], _context: Any) -> None:
        reached.set()
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    limits = ObserveLimits(drain_s=0.01, cancel_s=0.01)
    async with asyncio.timeout(5), served(tmp_path / "a.db", {"h": hook_of({NOTE: refuse})}, limits=limits) as (log, _):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await reached.wait()
    async with EventLog(tmp_path / "a.db") as log:
        assert await gaps_of(log) == [("s1", 2, 4, 3)]
    ended.set()
    await asyncio.sleep(0)


# ------------------------------------------------------------------------------------------------------ now and then


async def test_cursors_are_written_now_and_then_and_only_when_they_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written, advance = ManualClock(), list[int](), Cursors.advance

    async def count(self: Cursors, finished: list[Finished], counted: Any, thrown: Any) -> None:
        await advance(self, finished, counted, thrown)
        written.extend(each.position for each in finished)

    monkeypatch.setattr(Cursors, "advance", count)
    trace = Trace()
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}, clock=clock) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 10)
        await shown(dispatcher)
        assert written == []
        for _ in range(3):
            clock.advance(1)
            for _ in range(100):
                await asyncio.sleep(0.0001)
                if written:
                    break
        assert written == [11]
        assert await cursor_of(log, "h") == 11
        assert [(row.calls, row.lag) for row in await hook_rows(log.store)] == [(11, 0)]


async def test_a_cursor_stays_before_what_a_handler_has_not_finished(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_in_s1(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.session_id == "s1":
            await gate.wait()

    limits = ObserveLimits(cursor_every_s=0.001)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: stop_in_s1})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")  # 1
        await log.start_session("s2")  # 2
        await append(log, "s1", 1)  # 3
        await append(log, "s2", 5)  # 4 to 8
        while len(trace.calls) < 6 or await cursor_of(log, "h") < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # longer than it takes to write, had it moved
        assert await cursor_of(log, "h") == 2
        assert [hook.lag for hook in dispatcher.hooks] == [6]
        gate.opened.set()
        while await cursor_of(log, "h") < 8:
            await asyncio.sleep(0.001)


async def test_a_call_that_does_not_return_is_reported_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, gate = ManualClock(), Gate()
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: gate.handler})}, clock=clock) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await gate.reached.wait()
        for seconds in (28, 1):
            clock.advance(seconds)
            await asyncio.sleep(0.01)
            assert dispatcher.hooks[0].stuck == 0
        clock.advance(1)
        dispatcher._watch()
        assert dispatcher.hooks[0].stuck == 1, "exactly at its time"
        for seconds in (1, 1, 40):
            clock.advance(seconds)
            while not dispatcher.hooks[0].stuck:
                await asyncio.sleep(0)
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert lines == [f"hook \"h\" handler for {NOTE} has not returned for 30 s; session 's1' waits for it"]
        gate.opened.set()
        while not dispatcher.is_settled:
            await asyncio.sleep(0)
        assert dispatcher.hooks[0].stuck == 0


async def test_the_time_in_which_the_log_was_read_is_not_the_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, gates, failed, read = ManualClock(), [Gate(), Gate()], asyncio.Event(), Cursors.recorded_here

    async def wait(event: Event[Any], _context: Any) -> None:
        await gates[event.index - 1].wait()

    async def fail_once(self: Cursors, events: list[Event[Any]]) -> list[Event[Any]]:
        if not failed.is_set():
            failed.set()
            raise StorageFull("the disk is full")
        return await read(self, events)

    monkeypatch.setattr(Cursors, "recorded_here", fail_once)
    limits = ObserveLimits(lane_events=0)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: wait})}, limits=limits, clock=clock) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await gates[0].reached.wait()
        gates[0].opened.set()
        await failed.wait()
        clock.advance(60)
        await gates[1].reached.wait()
        assert caplog.messages[0].startswith("observe hooks wait, and it is tried again in 1 s: ")
        for _ in range(5):
            clock.advance(1)
            await asyncio.sleep(0.01)  # longer than a look at the handlers takes
        assert dispatcher.hooks[0].stuck == 0
        gates[1].opened.set()
        while not dispatcher.is_settled:
            await asyncio.sleep(0)


async def test_r157_errors_are_stored_and_can_be_read_by_another_process(tmp_path: Path) -> None:
    async def fail(event: Event[Any], _context: Any) -> None:
        raise ValueError(f"\ud800 {event.index}")

    channel = channel_of("api", {NOTE: fail})
    async with served(tmp_path / "a.db", {"a": hook_of({NOTE: fail}), "b": hook_of({NOTE: fail})}, (channel,)) as (
        log,
        _,
    ):
        await log.start_session("s1")
        await append(log, "s1", 2)
    async with EventLog(tmp_path / "a.db", read_only=True) as log:
        errors = await hook_errors(log.store)
        assert [(error.agent, error.name, error.position) for error in errors] == [
            ("agent", name, position) for position in (2, 3) for name in ("channel:api", "a", "b")
        ]
        assert errors[1].message == f'hook "a" handler for {NOTE} threw: ValueError: \\ud800 1'
        assert [error.position for error in await hook_errors(log.store, "a")] == [2, 3]
        assert [error.position for error in await hook_errors(log.store, after=errors[3].number)] == [3, 3]
        assert len(await hook_errors(log.store, limit=1)) == 1
        assert [row.errors for row in await hook_rows(log.store)] == [2, 2]


async def test_the_newest_10_000_errors_are_kept(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "a.db") as log:
        kept = Cursors(log.store, "agent")
        for start in range(0, 10_003, 3_000):
            thrown = [Thrown("h", n, "message", 0) for n in range(start, min(start + 3_000, 10_003))]
            await kept.advance([], [], thrown)
        positions = [error.position for error in await hook_errors(log.store, limit=20_000)]
        assert positions == list(range(3, 10_003))


async def test_errors_and_counts_that_could_not_be_stored_are_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_event: Event[Any], _context: Any) -> None:
        raise ValueError

    async def no_room(*_: Any) -> None:
        tried.set()
        raise StorageFull("the disk is full")

    tried, advance = asyncio.Event(), Cursors.advance
    limits = ObserveLimits(cursor_every_s=0.001)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: fail})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        monkeypatch.setattr(Cursors, "advance", no_room)
        await append(log, "s1", 3)
        await shown(dispatcher)
        for _ in range(2):  # the first one may have begun before the errors
            tried.clear()
            await tried.wait()
        monkeypatch.setattr(Cursors, "advance", advance)
    async with EventLog(tmp_path / "a.db") as log:
        assert len(await hook_errors(log.store)) == 3
        assert [(row.calls, row.errors) for row in await hook_rows(log.store)] == [(3, 3)]


async def test_a_log_that_is_closed_too_early_ends_the_dispatcher_quietly(tmp_path: Path) -> None:
    trace = Trace()
    log = await EventLog(tmp_path / "a.db").open()
    dispatcher = dispatcher_of(log, {"h": trace.hook("h", "resume")}, limits=ObserveLimits(drain_s=0.05, cancel_s=0.05))
    await dispatcher.start()
    await log.start_session("s1")
    await log.close()
    dispatcher.recorded([Event(NOTE, 1, "s1", None, 0, 2, "era", b"{}")])
    while dispatcher._inbox._feeder is not None:  # it tries no more
        await asyncio.sleep(0)
    with pytest.raises(LogClosed):
        await dispatcher.stop()
    assert trace.indexes("h", "s1") in ([], [0])


# ------------------------------------------------------------------------------------------------------------- rules


async def test_no_position_is_in_two_gaps_after_any_order_of_joins(tmp_path: Path) -> None:
    """Hooks come and go and change their minds; each time some events are recorded that nobody is shown."""
    random = Random(5)
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        joined = Cursors(log.store, "agent")
        for _ in range(40):
            await append(log, "s1", random.randint(0, 3))
            hooks = [
                HookToJoin(name, random.choice(("skip", "resume")), "tests", random.choice((("*",), (NOTE,))))
                for name in random.sample("abcde", random.randint(1, 5))
            ]
            await joined.join(hooks, resume=random.random() < 0.5, alone=random.random() < 0.5)
            keys = [row.hook for row in (await joined.join(hooks, resume=True, alone=False))[1]]
            if random.random() < 0.5:
                await joined.claim(keys, log.head)
        for name in "abcde":
            spans = sorted((gap.first, gap.last) for gap in await hook_gaps(log.store, name))
            assert all(last < following for (_, last), (following, _) in pairwise(spans))
