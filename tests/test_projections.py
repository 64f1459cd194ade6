"""Projections of one's own: folded behind the log, each event once, and replaced as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from eventlog import Event, EventLog, InvalidEvent, Projection, Runtime, TurnReference, VersionUnavailable
from eventlog.errors import CorruptEvent, InvalidName
from eventlog.folding import FoldLimits
from eventlog.inspection import Inspection
from eventlog.projections import Projector
from eventlog.store import projections
from eventlog.testing import ManualClock
from tests.folding_kit import COUNTS, LIMITS
from tests.log_kit import damaging, fill, until


def sum_n(state: int, event: Event[Any]) -> int:
    return state + int(event.data["n"])


def own(fold: Any = sum_n, initial: Any = 0, version: int = 1, events: Any = ("*",), name: str = "own") -> Projection:
    return Projection(name=name, events=events, fold=fold, initial=initial, version=version)


def only_notes(state: int, event: Event[Any]) -> int:
    return sum_n(state, event) if event.type == "test.noted" else state


async def rows(log: EventLog, name: str = "own") -> list[tuple[int, bool, int, bytes]]:
    found = await log.store.read(projections.rows, name)
    return [(row.version, row.serves, row.cursor, row.state) for row in found]


async def make(path: Path, events: int = 10) -> None:
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), events)


# -- what it gives -----------------------------------------------------------------------------------------------------


async def test_r97_a_projection_is_behind_the_log_with_a_lag_that_shows_and_catches_up_when_asked(
    tmp_path: Path,
) -> None:
    """R97: it is folded from the log alone, what was there before it included."""
    path = tmp_path / "agent.db"
    await make(path, 5)
    clock = ManualClock()
    async with EventLog(path, clock=clock) as log, Runtime(log, projections=[COUNTS]) as runtime:
        for _ in range(2):  # it has begun by itself, too, and is done with that
            assert (await runtime.projection("counts")).state == {"session.started": 1, "test.noted": 5}
        await fill(await log.session("s"), 3)
        for reader in (log, await EventLog(path, read_only=True).open()):
            behind = await reader.projection("counts")
            assert (behind.cursor, behind.lag, behind.state["test.noted"]) == (6, 3, 5)
        await reader.close()
        there = await runtime.projection("counts")
        assert (there.cursor, there.lag, there.state["test.noted"]) == (9, 0, 8)


async def test_a_running_projection_folds_by_itself_after_its_rest(tmp_path: Path) -> None:
    """The rest is the setting `rest_s`, on the log's clock."""
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock, fold_limits=FoldLimits(rest_s=5.0)) as log:
        projector = Projector(log, [COUNTS])
        await projector.start()
        for _ in range(2):  # it has begun by itself, too, and is done with that
            await projector.catch_up()
        await fill(await log.start_session("s"), 4)
        await until(lambda: clock._sleepers)
        clock.advance(4.9)
        for _ in range(50):  # it would have folded by now
            await log.store.read(projections.rows)
        assert (await log.projection("counts")).lag == 5
        clock.advance(0.2)
        while (await log.projection("counts")).lag:
            await asyncio.sleep(0)
        await projector.stop()


async def test_imports_are_folded_too_and_wake_it(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "one.db") as log:
        await fill(await log.start_session("s"), 3)
        lines = [line async for line in log.export()]
    async with EventLog(tmp_path / "two.db", fold_limits=LIMITS) as log, Runtime(log, projections=[COUNTS]):
        await log.import_events(lines)
        while (await log.projection("counts")).lag:
            await asyncio.sleep(0)
        assert (await log.projection("counts")).state == {"session.started": 1, "test.noted": 3}


async def test_it_folds_only_its_types_and_in_the_order_of_the_log(tmp_path: Path) -> None:
    def order(state: list[int], event: Event[Any]) -> list[int]:
        return [*state, event.position]

    projection = Projection(name="order", events=["turn.started", "turn.completed"], fold=order, initial=[])
    async with (
        EventLog(tmp_path / "agent.db", fold_limits=LIMITS) as log,
        Runtime(log, projections=[projection]) as runtime,
    ):
        sessions = [await log.start_session(f"s{number}") for number in range(3)]
        expected = []
        for number in range(30):
            type_ = ("turn.started", "message.received", "turn.completed")[number % 3]
            data = {"text": "hi"} if type_ == "message.received" else {}
            event = await sessions[number % 2].append(type_, data, turn_id="t")
            if data == {}:
                expected.append(event.position)
        assert (await runtime.projection("order")).state == expected


async def test_state_and_cursor_are_one_commit_and_a_late_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    await make(path)
    async with EventLog(path) as log:
        first, second = Projector(log, [COUNTS]), Projector(log, [COUNTS])
        await first.start()
        await second.start()
        await asyncio.gather(*[each.catch_up() for each in (first, second) for _ in range(3)])
        assert (await log.projection("counts")).state == {"session.started": 1, "test.noted": 10}
        for each in (first, second):
            await each.stop()


@pytest.mark.parametrize(("limit", "pages"), [("page_events", 11), ("page_positions", 11)])
async def test_the_size_of_a_page_is_a_setting(tmp_path: Path, limit: str, pages: int) -> None:
    path = tmp_path / "agent.db"
    await make(path)
    for size, expected in ((1, pages), (11, 1)):
        async with EventLog(path, fold_limits=FoldLimits(**{limit: size})) as log:
            projection = own(only_notes, name=f"{limit}-{size}")
            await log.store.write(projections.join, projection.definition)
            (key,) = await log.store.read(projections.keys_of, projection.name, 1)
            projector, done = Projector(log, [projection]), 1
            while not await projector.fold_once(projection, key):
                done += 1
            assert done == expected
            assert (await log.projection(projection.name)).state == sum(range(10))


# -- versions ----------------------------------------------------------------------------------------------------------


async def test_a_new_version_is_folded_beside_the_old_one_which_serves_until_it_is_done(tmp_path: Path) -> None:
    """Stopped in the middle it goes on there; an older version that comes back is a new one."""
    path = tmp_path / "agent.db"
    await make(path)
    async with EventLog(path, fold_limits=LIMITS) as log:
        async with Runtime(log, projections=[own(only_notes)]) as runtime:
            assert (await runtime.projection("own")).state == 45
        second = own(lambda state, event: state + 1, version=2)
        await log.store.write(projections.join, second.definition)
        (key,) = await log.store.read(projections.keys_of, "own", 2)
        projector = Projector(log, [second])
        for cursor in (2, 4):
            assert not await projector.fold_once(second, key)
            assert await rows(log) == [(1, True, 11, b"45"), (2, False, cursor, str(cursor).encode())]
            assert (await log.projection("own")).state == 45
        async with Runtime(log, projections=[second]) as runtime:
            assert (await runtime.projection("own")).state == 11
            assert await rows(log) == [(2, True, 11, b"11")]
        async with Runtime(log, projections=[own(only_notes)]) as runtime:
            assert (await runtime.projection("own")).state == 45
            assert await rows(log) == [(1, True, 11, b"45")]


async def test_a_version_that_was_given_up_half_way_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    await make(path)
    async with EventLog(path, fold_limits=LIMITS) as log:
        for version in (1, 2, 3):
            await log.store.write(projections.join, own(version=version).definition)
        assert [row[:2] for row in await rows(log)] == [(1, True), (3, False)]


@pytest.mark.parametrize("changed", [own(initial=1), own(events=["turn.started"])], ids=["initial", "events"])
async def test_a_change_without_a_new_version_is_refused(tmp_path: Path, changed: Projection) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        async with Runtime(log, projections=[own()]):
            pass
        with pytest.raises(InvalidName, match="raise its version"):
            await Runtime(log, projections=[changed]).start()
        assert log.agents_served == set()


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_corrupt_event_is_passed_with_a_record_and_the_projection_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    await make(path)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = '{' WHERE position IN (4, 7)")
    async with EventLog(path, fold_limits=LIMITS) as log, Runtime(log, projections=[own(only_notes)]) as runtime:
        state = await runtime.projection("own")
        assert (state.state, state.cursor, state.passed, state.stuck) == (45 - 2 - 5, 11, 2, None)
        errors = await Inspection(log).projection_errors("own")
        assert [(each.position, each.name, each.version) for each in errors] == [(4, "own", 1), (7, "own", 1)]
        assert "corrupt" in errors[0].message


async def test_a_fold_that_raises_stops_before_the_event_until_it_is_put_right(tmp_path: Path) -> None:
    """The log keeps the event: passing it would make a wrong number that nobody notices."""
    path = tmp_path / "agent.db"
    await make(path)

    def broken(state: int, event: Event[Any]) -> int:
        if event.position == 8:
            raise ZeroDivisionError("of the fold")
        return only_notes(state, event)

    async with EventLog(path, fold_limits=FoldLimits(page_events=100)) as log:
        async with Runtime(log, projections=[own(broken), COUNTS]) as runtime:
            state = await runtime.projection("own")
            assert (state.state, state.cursor, state.lag) == (sum(range(6)), 7, 4)
            assert state.stuck == "ZeroDivisionError: of the fold"
            assert (await runtime.projection("counts")).lag == 0
            await fill(await log.session("s"), 1)
            await runtime.settled()
            assert (await log.projection("own")).cursor == 7
            assert [each.position for each in await Inspection(log).projection_errors()] == [8]
        async with Runtime(log, projections=[own(only_notes)]) as runtime:
            state = await runtime.projection("own")
            assert (state.state, state.lag, state.stuck) == (45, 0, None)


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit: "),
        (asyncio.CancelledError(), "CancelledError: "),
        (BaseExceptionGroup("both", [SystemExit(1)]), "BaseExceptionGroup: both (1 sub-exception)"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("\ud800\0\n"), r"ValueError: \ud800\x00\n"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_nothing_that_a_fold_raises_ends_the_process_or_keeps_other_projections_from_being_folded(
    tmp_path: Path, error: BaseException, why: str
) -> None:
    """G1: as for handlers. SystemExit would tear through the loop, and CancelledError end the task that folds."""
    path = tmp_path / "agent.db"
    await make(path)

    def rude(state: int, event: Event[Any]) -> int:
        if event.position == 8:
            raise error
        return only_notes(state, event)

    async with EventLog(path) as log, Runtime(log, projections=[own(rude), COUNTS]) as runtime:
        state = await runtime.projection("own")
        assert (state.state, state.cursor, state.stuck) == (sum(range(6)), 7, why)
        await fill(await log.session("s"), 1)
        assert (await runtime.projection("counts")).lag == 0


@pytest.mark.parametrize(
    ("value", "why"),
    [(float("nan"), "InvalidEvent: state.n: nan is not"), ({1: 2}, "JSON keys are strings"), (b"x", "is not JSON")],
    ids=["nan", "keys", "bytes"],
)
async def test_a_state_that_json_would_change_is_not_kept(tmp_path: Path, value: Any, why: str) -> None:
    path = tmp_path / "agent.db"
    await make(path)

    def fold(state: Any, event: Event[Any]) -> Any:
        return {"n": value} if event.position >= 3 else {"n": event.position}

    async with EventLog(path) as log, Runtime(log, projections=[own(fold, None)]) as runtime:
        state = await runtime.projection("own")
        assert (state.state, state.cursor) == ({"n": 2}, 2)
        assert why in str(state.stuck)


async def test_the_size_of_a_state_is_a_setting(tmp_path: Path) -> None:
    """At the limit it is kept, one past it is not; with a higher one it goes on."""
    path = tmp_path / "agent.db"
    await make(path)
    for limit, cursor in ((8, 6), (9, 7), (100, 11)):
        async with EventLog(path, fold_limits=FoldLimits(state_bytes=limit)) as log:
            projection = own(lambda state, event: state + "x", "")
            async with Runtime(log, projections=[projection]) as runtime:
                state = await runtime.projection("own")
                assert (state.cursor, state.state) == (cursor, "x" * cursor)
                assert (state.stuck is None) == (cursor == 11)


async def test_a_fold_that_changes_the_state_in_place_and_then_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    await make(path)

    def fold(state: list[int], event: Event[Any]) -> list[int]:
        state.append(event.position)
        if event.position == 5:
            raise RuntimeError
        return state

    async with EventLog(path) as log, Runtime(log, projections=[own(fold, [])]) as runtime:
        assert (await runtime.projection("own")).state == [1, 2, 3, 4]


async def test_only_the_newest_records_of_errors_are_kept(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        many = [projections.Passed(position, "x" * 3_000) for position in range(projections.KEPT_ERRORS + 1)]
        await log.store.write(projections.note, "own", 1, many, 0)
        errors = await log.store.read(projections.errors, None, 10_000)
        assert [each.position for each in errors] == list(range(1, projections.KEPT_ERRORS + 1))
        assert {len(each.message) for each in errors} == {projections.ERROR_CHARACTERS}


# -- what is refused ---------------------------------------------------------------------------------------------------


half: Any = 1.5
text: Any = "1"


async def acts(state: int, event: Event[Any]) -> int:
    return state


@pytest.mark.parametrize(
    ("make_it", "why"),
    [
        (lambda: own(name="usage"), "the log has one of this name"),
        (lambda: own(name="turns"), "the log has one of this name"),
        (lambda: own(version=0), "whole number from 1"),
        (lambda: own(version=half), "whole number from 1"),
        (lambda: own(version=text), "whole number from 1"),
        (lambda: own(version=2**63), "whole number from 1"),
        (lambda: own(7), "plain function"),
        (lambda: own(acts), "plain function"),
        (lambda: own(events=["turn.complete"]), "turn.completed"),
        (lambda: own(events="turn.completed"), "list of event types"),
        (lambda: own(events=[]), "list of event types"),
    ],
    ids=[
        "usage",
        "turns",
        "version",
        "half",
        "version as text",
        "too high",
        "no function",
        "coroutine",
        "typo",
        "text",
        "none",
    ],
)
def test_a_projection_that_cannot_be_folded_is_refused_where_it_is_made(make_it: Any, why: str) -> None:
    with pytest.raises(InvalidName, match=why):
        make_it()


def test_names_and_initial_states_are_checked() -> None:
    with pytest.raises(InvalidEvent, match="projection"):
        own(name="")
    with pytest.raises(InvalidEvent, match="initial"):
        own(initial=float("nan"))


async def test_two_of_one_name_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(InvalidName, match="twice"):
            Runtime(log, projections=[own(), own(version=2)])
        with pytest.raises(InvalidName, match="no process has folded"):
            await log.projection("nothing")


# -- turns and jobs ----------------------------------------------------------------------------------------------------


async def test_a_turn_is_read_by_its_exact_version_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        for number in (1, 2):
            await session.append("message.received", {"text": f"asks {number}"}, turn_id="t")
            await session.append("turn.completed", {"result": number}, turn_id="t")
        for version in (1, 2):
            turn = await log.turn(TurnReference("s", "t", version))
            assert (turn.version, turn.result, turn.received) == (version, version, f"asks {version}")
        for wrong in (TurnReference("s", "t", 3), TurnReference("s", "u", 1), TurnReference("x", "t", 1)):
            with pytest.raises(VersionUnavailable):
                await log.turn(wrong)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = '{' WHERE position IN (2, 3)")
    async with EventLog(path, read_only=True) as log:
        with pytest.raises(CorruptEvent, match="position 3"):
            await log.turn(TurnReference("s", "t", 1))
        assert (await log.turn(TurnReference("s", "t", 2))).received == "asks 2"


async def test_a_job_is_what_its_events_tell_and_its_end_is_final(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        await session.append("job.queued", {"jobId": "j", "name": "mail"})
        assert (await log.job("j")).status == "queued"
        await session.append("job.completed", {"jobId": "j", "status": "failed", "error": "no"})
        await session.append("job.completed", {"jobId": "j", "status": "succeeded"})
        job = await log.job("j")
        assert (job.status, job.error, job.name, job.session_id) == ("failed", "no", "mail", "s")
        with pytest.raises(InvalidName, match="no event told"):
            await log.job("k")
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = '{' WHERE position = 3")
    async with EventLog(path, read_only=True) as log:
        with pytest.raises(CorruptEvent):
            await log.job("j")
        assert [(job.id, job.status) for job in await Inspection(log).jobs()] == [("j", "failed")]
