"""Retention: what goes, what has to stay, and how every reader finds what is left."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import CursorExpired, InvalidName, ReadOnlyLog
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.runtime import Runtime
from eventlog.session import Session
from eventlog.store import pruning
from eventlog.store.extensions import Extensions
from eventlog.store.pruning import ranges_of
from eventlog.testing import ManualClock
from tests.extension_kit import installation
from tests.log_kit import all_of, fill, indexes, whole
from tests.observing import NOTE, NOTED, hook_of

DAY_S = 86_400


async def ended(log: EventLog, session_id: str, events: int = 3, **data: Any) -> Session:
    """A session that was completed; it has `events` and two more."""
    session = await log.start_session(session_id)
    await fill(session, events, **data)
    await session.append("session.completed", {})
    return session


async def session_ids(log: EventLog) -> list[str]:
    """The sessions that have an event."""
    return sorted({event.session_id async for event in log.read()})


async def rows(log: EventLog, sql: str) -> list[Any]:
    """What a statement finds."""
    return await log.store.read(lambda connection: connection.execute(sql).fetchall())


# ---------------------------------------------------------------------------------------------------------- the rules


async def test_sessions_that_ended_long_ago_go_whole_and_the_others_stay(tmp_path: Path) -> None:
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        await ended(log, "old")
        await fill(await log.start_session("open"), 3)
        failed = await log.start_session("failed")
        await failed.append("session.failed", {"message": "no"})
        clock.advance(DAY_S)
        await ended(log, "new")
        done = await log.prune(older_than_s=DAY_S - 1)
        assert (done.sessions, done.events, done.deltas, done.owed) == (2, 7, 0, 0)
        assert await session_ids(log) == ["new", "open"]
        await whole(log)
        again = await log.prune(older_than_s=DAY_S - 1)
        assert (again.sessions, again.events) == (0, 0)


@pytest.mark.parametrize(("keep", "left"), [(20, 4), (15, 3), (14, 2), (6, 1), (5, 1), (4, 0), (0, 0)])
async def test_the_oldest_sessions_go_until_so_many_events_are_left(tmp_path: Path, keep: int, left: int) -> None:
    """Four sessions of five events; the last rule that takes one is that there are still more than are kept."""
    async with EventLog(tmp_path / "agent.db") as log:
        for n in range(4):
            await ended(log, f"s{n}")
        done = await log.prune(keep_events=keep)
        assert (done.sessions, done.events) == (4 - left, 5 * (4 - left))
        assert await session_ids(log) == [f"s{n}" for n in range(4 - left, 4)]
        await whole(log)


async def test_the_oldest_sessions_go_until_the_file_is_small_enough_and_it_shrinks(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        for n in range(20):
            await ended(log, f"s{n:02}", 4, text="x" * 20_000)
        await log.vacuum()
        before = log.path.stat().st_size
        keep = before // 2
        done = await log.prune(keep_bytes=keep)
        after = log.path.stat().st_size
        assert after <= keep < after + 200_000, "and no more went than had to"
        assert done.freed_bytes == before - after
        left = await session_ids(log)
        assert left == [f"s{n:02}" for n in range(20 - len(left), 20)]
        assert (await log.prune(keep_bytes=keep)).sessions == 0
        await whole(log)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        *({"older_than_s": age} for age in (-1, -1e-9, 1e308, 10**400, float("nan"), float("inf"), "1", True)),
        {"older_than_s": 1e12 + 1, "deltas": True},
        *({name: number} for name in ("keep_events", "keep_bytes") for number in (-1, 2**63, 1.5, "1", True)),
    ],
)
async def test_a_prune_without_a_rule_or_with_one_that_cannot_be_is_refused(
    tmp_path: Path, rule: dict[str, Any]
) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(InvalidName):
            await log.prune(**rule)
    async with EventLog(tmp_path / "agent.db", read_only=True) as log:
        with pytest.raises(ReadOnlyLog):
            await log.prune(deltas=True)


async def test_the_largest_rules_are_taken_and_nothing_is_so_old(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a")
        assert (await log.prune(older_than_s=1e12, keep_events=2**63 - 1, keep_bytes=2**63 - 1)).sessions == 0


async def test_a_session_goes_in_bounded_transactions_and_its_beginning_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short it is still a log: the session begins later, check finds nothing, and the next run does the rest."""
    monkeypatch.setattr(pruning, "CHUNK_EVENTS", 10)
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a", 33)
        await ended(log, "b", 3)
        seen: list[tuple[int, int]] = []

        def cut_short(done: int, total: int) -> None:
            seen.append((done, total))
            if done >= 20:
                pruning_task.cancel()

        pruning_task = asyncio.ensure_future(log.prune(older_than_s=0, progress=cut_short))
        with pytest.raises(asyncio.CancelledError):
            await pruning_task
        assert seen == [(10, 40), (20, 40)]
        session = await log.session("a")
        assert indexes(await all_of(session.read())) == list(range(30, 35)) or session.next_index == 35
        await whole(log)
        await log.prune(older_than_s=0)
        assert await session_ids(log) == []
        await whole(log)


# ------------------------------------------------------------------------------------------------------- what is owed


async def test_h7_a_session_with_a_delivery_stays_until_it_is_settled(tmp_path: Path) -> None:
    """H7: neither age nor a cap takes what an extension was not given; nor a dead letter, which may be retried."""
    async with EventLog(tmp_path / "agent.db") as log:
        await Extensions(log.store).install(installation("acme"), ["default"])
        for id in ("live", "dead"):
            session = await log.start_session(id)
            await session.append("turn.completed", {"result": "x"}, turn_id="t")
            await session.append("session.completed", {})
        await log.store.write(bury_the_second)
        await ended(log, "free")
        done = await log.prune(older_than_s=0, keep_events=0, keep_bytes=0)
        assert (done.sessions, done.owed) == (1, 2)
        assert await session_ids(log) == ["dead", "live"]
        await log.store.write(lambda connection: connection.execute("DELETE FROM delivery").rowcount)
        assert (await log.prune(older_than_s=0)).sessions == 2
        await whole(log)


def bury_the_second(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE delivery SET state = 'dead', died_at = 0, reason = 'x'"
        " WHERE position > (SELECT min(position) FROM delivery)"
    )


async def test_a_session_with_a_job_or_a_reminder_that_is_not_over_stays(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        job = await log.start_session("job")
        await job.append("job.queued", {"jobId": "j"})
        reminded = await log.start_session("reminded")
        await reminded.append("reminder.created", {"reminderId": "r", "at": "2999-01-01T00:00:00Z", "text": "x"})
        for session in (job, reminded):
            await session.append("session.completed", {})
        assert (await log.prune(older_than_s=0)).owed == 2
        await job.append("job.completed", {"jobId": "j", "status": "succeeded"})
        await reminded.append("reminder.cancelled", {"reminderId": "r"})
        assert (await log.prune(older_than_s=0)).sessions == 2
        assert await rows(log, "SELECT * FROM reminder") == []
        assert (await rows(log, "SELECT status FROM job")) == [("succeeded",)], "a terminal status is final"


async def test_what_a_running_hook_has_not_finished_stays(tmp_path: Path) -> None:
    free = asyncio.Event()

    async def slow(event: Event[Any], _context: Any) -> None:
        await free.wait()

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("slow", hook_of({"session.completed": slow}))
        await ended(log, "s")
        assert (await log.prune(older_than_s=0)).owed == 1
        free.set()
        await runtime.settled(timeout_s=10)
        await runtime.stop()
        assert (await log.prune(older_than_s=0)).sessions == 1
        assert await rows(log, "SELECT * FROM hook_gap") == []


async def test_what_a_hook_that_is_not_up_was_not_shown_is_a_gap_of_it(tmp_path: Path) -> None:
    """It is never missing without a sign: the gap is in the commit that removes the events."""
    shown: list[Event[Any]] = []

    async def note(event: Event[Any], _context: Any) -> None:
        shown.append(event)

    hook = hook_of({NOTE: note}, "resume")
    async with EventLog(tmp_path / "agent.db") as log:
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook)
        for id, events in (("pruned", 4), ("kept", 2)):
            session = await log.start_session(id)
            for _ in range(events):
                await session.append(NOTE, NOTED)
        await log.append("pruned", "session.completed", {})
        await log.prune(older_than_s=0)
        assert await rows(log, "SELECT first, last, at_most FROM hook_gap") == [(2, 5, 4)]
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook)
            await runtime.settled(timeout_s=10)
        assert [event.session_id for event in shown] == ["kept", "kept"]
        assert len(await rows(log, "SELECT * FROM hook_gap")) == 1


async def test_turns_and_questions_that_a_finished_session_left_open_go_with_it(tmp_path: Path) -> None:
    """A start that looks for what is unfinished would find nothing behind them."""
    asked = {"requests": [{"requestId": "r", "kind": "approval", "prompt": "?"}]}
    async with EventLog(tmp_path / "agent.db") as log:
        for id in ("pruned", "forgotten"):
            session = await log.start_session(id)
            await session.append("turn.started", {}, turn_id="t")
            await session.append("input.requested", asked, turn_id="t")
        await log.append("pruned", "session.completed", {})
        assert (await log.prune(older_than_s=0)).sessions == 1
        more = (await log.forget("forgotten")).more
        assert (more["openTurns"], more["openInputs"]) == (1, 1)
        assert await rows(log, "SELECT 1 FROM open_turn UNION ALL SELECT 1 FROM open_input") == []
        async with Runtime(log) as runtime:
            assert (runtime.recovered.open_turns, runtime.recovered.open_inputs) == ([], [])
        await whole(log)


async def test_a_session_that_was_appended_to_meanwhile_stays(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await ended(log, "s")
        await log.store.absorb()
        (key,) = (await rows(log, "SELECT session FROM session"))[0]
        await session.append("test.noted", {})
        removed = await log.store.with_writer(pruning.remove_sessions, [key], None, [])
        assert (removed.sessions, removed.events) == (0, 0)
        await session.append("session.started", {"channelId": "c", "mode": "chat", "purpose": "live", "projectId": "p"})
        await log.store.absorb()
        removed = await log.store.with_writer(pruning.remove_sessions, [key], None, [])
        assert (removed.sessions, removed.events) == (0, 0)


# ----------------------------------------------------------------------------------------------------- how it is read


async def test_a_reader_whose_cursor_is_below_the_floor_is_told_so(tmp_path: Path) -> None:
    """Never a history that is shorter without a sign; without a cursor, what is left is read."""
    async with EventLog(tmp_path / "agent.db") as log, EventLog(log.path, read_only=True) as other:
        await ended(log, "a")
        open_ = await log.start_session("b")
        await fill(open_, 2)
        await log.prune(older_than_s=0)
        for reader in (log, other):
            for after in (0, 4):
                with pytest.raises(CursorExpired) as told:
                    await all_of(reader.read(after=after))
                assert told.value.floor == 6
                with pytest.raises(CursorExpired):
                    await anext(reader.tail(after=after))
            assert [event.position async for event in reader.read(after=5)] == [6, 7, 8]
            assert [event.position async for event in reader.read()] == [6, 7, 8]
            assert [event.position async for event in reader.read(reverse=True, limit=2)] == [8, 7]
            assert (await anext(reader.tail())).position == 6
            a = await reader.session("a")
            assert (a.next_index, await all_of(a.read())) == (5, [])
            with pytest.raises(CursorExpired) as told:
                await all_of(a.read(after=3))
            assert told.value.floor == 5
            with pytest.raises(CursorExpired):
                await anext(a.tail(after=0))
            assert await all_of(a.read(after=4)) == []
            assert indexes(await all_of((await reader.session("b")).read(after=0))) == [1, 2]


async def test_a_tail_that_pruning_overtakes_is_told_and_one_that_waits_goes_on(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a", 100)
        a, b = await log.session("a"), await log.start_session("b")
        behind, of_session = log.tail(), a.tail()
        assert (await anext(behind)).position == 1
        assert (await anext(of_session)).index == 0
        at_the_end = log.tail(after=log.head)
        waiting = asyncio.ensure_future(anext(at_the_end))
        while not log.tails_waiting():
            await asyncio.sleep(0)
        await log.prune(older_than_s=0)
        for tail in (behind, of_session):
            with pytest.raises(CursorExpired):
                await all_of(tail)
        await b.append("test.noted", {})
        assert (await waiting).session_id == "b"


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_pruned_session_goes_on_where_it_was(tmp_path: Path, reopened: bool) -> None:
    """Its indexes go on, and so does the count of a turn's versions, in this process and after a restart."""
    path = tmp_path / "agent.db"
    log = await EventLog(path).open()
    session = await log.start_session("s", title="T")
    await session.append("turn.completed", {}, turn_id="t")
    await session.append("session.completed", {}, key="k")
    assert (await log.prune(older_than_s=0)).events == 3
    if reopened:
        await log.close()
        log = await EventLog(path).open()
    session = await log.session("s")
    assert (session.next_index, session.info.status, session.info.title) == (3, "completed", "T")
    assert (await session.append("turn.completed", {}, turn_id="t", key="k")).index == 3
    assert await rows(log, "SELECT version FROM turn_version ORDER BY 1") == [(1,), (2,)]
    assert indexes(await all_of(session.read())) == [3]
    await whole(log)
    await log.close()
    async with EventLog(path) as log:
        assert (await log.session("s")).next_index == 4
        assert (await log.append("s", "session.completed", {})).index == 4
        assert (await log.prune(older_than_s=0)).events == 2
        assert (await log.append("s", "test.noted", {})).position == 6
        await whole(log)


async def test_what_was_pruned_is_not_imported_again(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a")
        await ended(log, "b")
        lines = [line async for line in log.export()]
        await log.prune(keep_events=5)
        report = await log.import_events(lines)
        assert (report.added, report.known, report.bad_count) == (0, 5, 5)
        assert "pruned" in report.bad[0].why
        assert [line async for line in log.export()] == lines[5:]


# ------------------------------------------------------------------------------------------------------------- deltas


def turn(n: int, deltas: int) -> Iterable[NewEvent]:
    """The events of a turn that streams."""
    id = f"t{n}"
    yield NewEvent("turn.started", {}, id)
    yield NewEvent("message.received", {"text": f"question {n}"}, id)
    for d in range(deltas):
        yield NewEvent("message.appended", {"delta": f"piece {d} of {deltas} of turn {n} of a long answer"}, id)
    yield NewEvent("message.completed", {"text": f"answer {n}"}, id)
    yield NewEvent("turn.completed", {"result": f"answer {n}"}, id)


async def append_all(session: Session, events: Iterable[NewEvent]) -> None:
    batch: list[NewEvent] = []
    for event in events:
        batch.append(event)
        if len(batch) == 1_000:
            await session.append_many(batch)
            batch = []
    await session.append_many(batch)


async def test_deltas_go_when_their_turn_is_over_and_their_text_stands_behind_them(tmp_path: Path) -> None:
    """What an interrupted answer had said so far stands nowhere else, and stays."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        d, r = NewEvent("message.appended", {"delta": "x"}, "t1"), NewEvent("reasoning.appended", {"delta": "y"}, "t1")
        await session.append_many([d, r, d])
        assert (await log.prune(deltas=True)).deltas == 0, "it runs"
        await session.append("message.completed", {"text": "xx"}, turn_id="t1")
        assert (await log.prune(deltas=True)).deltas == 0
        await session.append_many([d, NewEvent("message.appended", {"delta": "z"}, "t2")])
        await session.append("turn.failed", {"message": "no"}, turn_id="t1")
        await session.append_many([d])
        assert (await log.prune(deltas=True)).deltas == 2
        assert indexes(await all_of(session.read())) == [0, 2, 4, 5, 6, 7, 8]
        assert await rows(log, "SELECT first, last FROM removed") == [(2, 2), (4, 4)]
        await session.append("reasoning.completed", {"text": "y"}, turn_id="t1")
        await session.append("turn.completed", {}, turn_id="t1")
        assert (await log.prune(deltas=True)).deltas == 1
        await whole(log)
    async with EventLog(tmp_path / "agent.db") as log:
        assert (await log.append("s", "test.noted", {})).index == 11
        await whole(log)


TURNS, DELTAS = 100, 1_000


@pytest.mark.timeout(60)
async def test_a_log_whose_deltas_were_pruned_is_as_small_as_one_that_never_had_them(tmp_path: Path) -> None:
    """And every reader still works: by session, by position, tails, export, check, and hooks after a restart."""
    async with EventLog(tmp_path / "plain.db") as plain:
        session = await plain.start_session("s")
        for n in range(TURNS):
            await append_all(session, turn(n, 0))
    shown: list[Event[Any]] = []

    async def note(event: Event[Any], _context: Any) -> None:
        shown.append(event)

    path = tmp_path / "pruned.db"
    async with EventLog(path) as log:
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook_of({"turn.completed": note}, "resume"))
        session = await log.start_session("s")
        for n in range(TURNS):
            await append_all(session, turn(n, DELTAS))
        full = [event.index for event in await all_of(session.read()) if event.type != "message.appended"]
        seen: list[tuple[int, int]] = []
        done = await log.prune(deltas=True, progress=lambda done, total: seen.append((done, total)))
        assert (done.deltas, done.sessions) == (TURNS * DELTAS, 0)
        assert seen[-1] == (log.head, log.head)
    assert path.stat().st_size <= 1.2 * (tmp_path / "plain.db").stat().st_size
    async with EventLog(path) as log, EventLog(path, read_only=True) as other:
        assert len(await rows(log, "SELECT * FROM removed")) == TURNS
        for reader in (log, other):
            session = await reader.session("s")
            assert indexes(await all_of(session.read())) == full
            assert indexes(await all_of(session.read(reverse=True))) == full[::-1]
            assert indexes(await all_of(session.read(after=500, limit=3))) == [i for i in full if i > 500][:3]
            assert [event.index async for event in reader.read()] == full
            assert [event.index async for event in reader.read(after=1)] == full[1:], "no cursor is expired by deltas"
            tail = session.tail(after=full[-3])
            assert [(await anext(tail)).index for _ in range(2)] == full[-2:]
            tail = reader.tail(after=5)
            assert (await anext(tail)).index == full[3]
            assert [line async for line in reader.export()]
            await whole(reader)
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook_of({"turn.completed": note}, "resume"))
            await runtime.settled(timeout_s=10)
            assert len(shown) == TURNS
            assert (await log.append("s", "test.noted", {})).index == full[-1] + 1


async def test_a_delta_that_a_running_hook_has_not_finished_stays(tmp_path: Path) -> None:
    free = asyncio.Event()

    async def slow(event: Event[Any], _context: Any) -> None:
        await free.wait()

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("slow", hook_of({"message.appended": slow}))
        await append_all(await log.start_session("s"), turn(1, 5))
        assert (await log.prune(deltas=True)).deltas == 0
        free.set()
        await runtime.settled(timeout_s=10)
        await runtime.stop()
        assert (await log.prune(deltas=True)).deltas == 5


async def test_removed_ranges_that_meet_are_one(tmp_path: Path) -> None:
    """Whatever the order in which they go; else a log of many sessions would keep a row for each of its deltas."""
    async with EventLog(tmp_path / "agent.db") as log:
        for start in range(0, 9, 3):
            await ended(log, f"s{start}", 1)
        keys = [key for (key,) in await rows(log, "SELECT session FROM session")]
        await log.store.absorb()
        for key, expected in zip((keys[0], keys[2], keys[1]), ([(1, 3)], [(1, 3), (7, 9)], [(1, 9)]), strict=True):
            await log.store.with_writer(pruning.remove_sessions, [key], None, [])
            assert await rows(log, "SELECT first, last FROM removed") == expected
        await whole(log)
    assert ranges_of([1, 2, 3, 5, 7, 8]) == [(1, 3), (5, 5), (7, 8)]
    assert ranges_of([]) == []


# ---------------------------------------------------------------------------------------------- what check makes of it


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE removed SET last = last - 1",
        "UPDATE session SET first_index = 4 WHERE id = 'a'",
        "UPDATE removed SET last = 9",
    ],
)
async def test_check_counts_what_was_pruned_against_what_sessions_leave_out(tmp_path: Path, sql: str) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a")
        await fill(await log.start_session("b"), 3)
        await log.prune(older_than_s=0)
        await whole(log)

        def lie(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO gate VALUES (1, 'prune')")
            connection.execute(sql)
            connection.execute("DELETE FROM gate")

        await log.store.write(lie)
        report = await log.check()
        assert report.ok == (sql == "UPDATE removed SET last = 9"), report  # no event of it is gone


async def test_an_event_that_is_lost_beside_pruned_ones_is_missed(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await ended(log, "a")
        await fill(await log.start_session("b"), 3)
        await log.prune(older_than_s=0)

        def lose(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO gate VALUES (1, 'prune')")
            connection.execute("DELETE FROM log WHERE position = 7")
            connection.execute("DELETE FROM gate")

        await log.store.write(lose)
        report = await log.check()
        assert [(gap.first, gap.last) for gap in report.missing] == [(7, 7)]
