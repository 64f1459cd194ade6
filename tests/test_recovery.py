"""What a dead owner left unfinished is named at the next start, and nothing of it is run again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog.store.unfinished as unfinished
from eventlog import Event, EventLog, HookContext, NewEvent, Runtime, Session, define_hook
from eventlog.errors import InvalidEvent, LogClosed, LogInUse
from eventlog.inspection import Inspection
from eventlog.recovery import OpenTurn, Recovered, Recovery, UnansweredCall
from eventlog.store.turns import find_job
from eventlog.testing import ManualClock
from tests.log_kit import KILLED, child, crash_copy, damaging, line_of, whole
from tests.test_owner import OWNER

Story = Callable[[EventLog], Awaitable[object]]


async def killed(folder: Path, story: Story, **options: Any) -> Path:
    """A log whose owner did this and was killed."""
    async with EventLog(folder / "agent.db", **options) as log:
        await story(log)
        return crash_copy(log.path, folder / "killed")


async def closed(folder: Path, story: Story, **options: Any) -> Path:
    """The same, of an owner that let the file go: all of it is in the session index."""
    async with EventLog(folder / "agent.db", **options) as log:
        await story(log)
    return folder / "agent.db"


async def started(path: Path, **options: Any) -> Recovered:
    """What a start finds."""
    async with EventLog(path) as log, Runtime(log, **options) as runtime:
        return runtime.recovered


async def turn(session: Session, id: str, *events: tuple[str, dict[str, Any]]) -> None:
    for type_, data in (("turn.started", {}), *events):
        await session.append(type_, data, turn_id=id)


def requested(*calls: tuple[str, Any]) -> tuple[str, dict[str, Any]]:
    return "actions.requested", {"calls": [{"callId": id, "toolName": "pay", "args": args} for id, args in calls]}


def result(call_id: str) -> tuple[str, dict[str, Any]]:
    return "action.result", {"callId": call_id, "toolName": "pay", "isError": False}


def asks(*ids: str) -> tuple[str, dict[str, Any]]:
    return "input.requested", {"requests": [{"requestId": id, "kind": "approval", "prompt": f"{id}?"} for id in ids]}


def answers(*ids: str) -> tuple[str, dict[str, Any]]:
    return "input.resolved", {"resolutions": [{"requestId": id, "outcome": "approved"} for id in ids]}


def ended(type_: str = "turn.completed") -> tuple[str, dict[str, Any]]:
    return type_, {} if type_ == "turn.completed" else {"message": "no"}


# ------------------------------------------------------------------------------------------------------ what is named


async def a_crash(log: EventLog) -> None:
    """Two sessions with open turns, one of them in the middle of a call, and one where all is done."""
    paying, asking, done = [await log.start_session(name) for name in ("paying", "asking", "done")]
    await turn(paying, "t1", requested(("c0", {})), result("c0"), ended())
    await turn(paying, "t2", requested(("c1", {"eur": 5}), ("c2", [1])), result("c1"))
    await turn(asking, "t1", asks("q1", "q2"), answers("q1"))
    await turn(done, "t1", requested(("c1", {})), ended("turn.failed"))


@pytest.mark.parametrize("left", [killed, closed])
async def test_a_start_names_open_turns_unanswered_calls_and_open_inputs(tmp_path: Path, left: Any) -> None:
    """With the tool's name and arguments, so that the server can ask instead of running it twice."""
    found = await started(await left(tmp_path, a_crash))
    assert [(each.session_id, each.turn_id, each.index) for each in found.open_turns] == [
        ("paying", "t2", 5),
        ("asking", "t1", 1),
    ]
    (call,) = found.unanswered_calls
    assert (call.session_id, call.turn_id, call.call_id, call.tool_name, call.args) == (
        "paying",
        "t2",
        "c2",
        "pay",
        [1],
    )
    assert (call.index, call.parent_call_id) == (6, None)
    (asked,) = found.open_inputs
    assert (asked.session_id, asked.turn_id, asked.request_id, asked.kind) == ("asking", "t1", "q2", "approval")
    assert (asked.prompt, asked.index, asked.options, asked.call_id) == ("q2?", 2, None, None)
    assert (found.jobs_unknown, found.damaged, found.not_named, found.failed) == ([], [], 0, 0)
    assert found.duration_s > 0
    assert not found.nothing


@pytest.mark.parametrize(
    ("options", "turns"),
    [({}, "2 open turns (left open)"), ({"interrupt_open_turns": True}, "2 open turns (ended as interrupted)")],
    ids=["left", "ended"],
)
async def test_a_start_sums_up_in_one_line_what_was_cut_short_and_is_silent_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], turns: str
) -> None:
    async def story(log: EventLog) -> None:
        await a_crash(log)
        session = await log.session("done")
        await session.append("job.queued", {"jobId": "j1"})
        await session.append("job.started", {"jobId": "j1"})
        await turn(await log.start_session("waiting"), "t1", asks("q"), ended())

    path = await killed(tmp_path, story)
    _ = await started(path, **options)
    assert caplog.messages == [
        f"the last owner left unfinished: {turns}, 1 call without a result ('pay' 1x), "
        "1 job with an unknown outcome; see Runtime.recovered"
    ]
    _ = await started(path, interrupt_open_turns=True)
    caplog.clear()
    assert (await started(path)).open_inputs != []
    assert caplog.messages == []


def test_the_summary_of_a_start_names_five_tools_and_what_was_resumed() -> None:
    calls = [UnansweredCall("s", "t", f"c{n}", f"tool{n % 6}", None, None, n, n) for n in range(7)]
    summary = Recovered(unanswered_calls=calls, deliveries_resumed=2, gaps=1).summary()
    assert summary == (
        "7 calls without a result ('tool0' 2x, 'tool1' 1x, 'tool2' 1x, 'tool3' 1x, 'tool4' 1x, ...), "
        "2 calls of extensions made again, 1 hook with a gap"
    )
    assert Recovered().summary() == ""
    left = Recovered(open_turns=[OpenTurn("s", "t", 0, 1)])
    assert [left.summary(), left.summary(turns_ended=True)] == [
        "1 open turn (left open)",
        "1 open turn (ended as interrupted)",
    ]


async def test_nothing_is_unfinished_after_an_orderly_life(tmp_path: Path) -> None:
    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        await turn(session, "t", requested(("c", {})), result("c"), asks("q"), answers("q"), ended())

    assert (await started(await closed(tmp_path, story))).nothing
    assert (await started(tmp_path / "new.db")).nothing


async def test_an_open_input_outlives_the_turn_that_completed_and_not_one_that_failed(tmp_path: Path) -> None:
    """The answer may come days later; to a turn that failed, nobody can give one."""

    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        await turn(session, "t1", asks("q1"), ended())
        await turn(session, "t2", asks("q2"), ended("turn.failed"))

    path = await killed(tmp_path, story)
    for _ in range(2):
        found = await started(path)
        assert [each.request_id for each in found.open_inputs] == ["q1"]
        assert found.open_turns == []


async def test_a_result_that_came_in_another_turn_answers_the_call(tmp_path: Path) -> None:
    """Late tool results are facts too."""

    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        await turn(session, "t1", requested(("c1", {}), ("c2", {})))
        await turn(session, "t2", result("c1"), result("of a call that nobody asked for"))

    found = await started(await killed(tmp_path, story))
    assert [each.turn_id for each in found.open_turns] == ["t1", "t2"]
    assert [each.call_id for each in found.unanswered_calls] == ["c2"]


async def test_a_call_is_its_turns_whatever_other_turns_call_theirs(tmp_path: Path) -> None:
    """Models and tests count their calls anew in each turn: a payment would be lost under the next turn's weather."""

    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        await turn(session, "over", requested(("c1", {}), ("c2", {})), ended())
        await turn(session, "t1", requested(("c1", {"eur": 5}), ("c2", {"eur": 6})))
        await turn(session, "t2", requested(("c1", {}), ("c2", {})), result("c1"), result("c1"))
        await turn(session, "t3", requested(("c1", {})), ended())
        await turn(session, "t4", requested(("c3", {})), result("c3"), requested(("c3", {})))

    found = await started(await killed(tmp_path, story))
    named = [(each.turn_id, each.call_id) for each in found.unanswered_calls]
    assert named == [("t1", "c1"), ("t1", "c2"), ("t2", "c2"), ("t4", "c3")]


async def test_what_this_process_began_itself_is_not_unfinished(tmp_path: Path) -> None:
    """A runtime may be started after the first turns, and started again: they are underway."""

    async def story(log: EventLog) -> None:
        await turn(await log.start_session("s"), "old", requested(("c1", {})))

    async with EventLog(await killed(tmp_path, story)) as log:
        session = await log.session("s")
        await turn(session, "new", requested(("c2", {})), asks("q"))
        await session.append("job.started", {"jobId": "j"})
        for _ in range(2):
            async with Runtime(log, interrupt_open_turns=True) as runtime:
                found = runtime.recovered
                assert {each.turn_id for each in found.open_turns} <= {"old"}
                assert {each.call_id for each in found.unanswered_calls} <= {"c1"}
                assert (found.open_inputs, found.jobs_unknown) == ([], [])
        types = [event.type async for event in session.read() if event.turn_id == "new" or event.turn_id is None]
        assert types == [
            "session.started",
            "turn.started",
            "actions.requested",
            "input.requested",
            "job.started",
        ]


async def test_a_turn_that_was_taken_up_again_here_is_left_alone(tmp_path: Path) -> None:
    async def story(log: EventLog) -> None:
        await turn(await log.start_session("s"), "t")

    async with EventLog(await killed(tmp_path, story)) as log:
        await (await log.session("s")).append("turn.started", {}, turn_id="t")
        async with Runtime(log, interrupt_open_turns=True) as runtime:
            assert runtime.recovered.open_turns == []
        assert [event.type async for event in log.read()][-1] == "turn.started"


async def test_a_runtime_recovers_the_sessions_of_its_own_agent_and_of_none(tmp_path: Path) -> None:
    async def story(log: EventLog) -> None:
        for name, agent in (("mine", "agent"), ("nobody's", None), ("theirs", "other")):
            session = await log.start_session(name, agent=agent)
            await turn(session, "t", requested((name, {})), asks(name))
            await session.append("job.started", {"jobId": name})

    found = await started(await killed(tmp_path, story), interrupt_open_turns=True)
    expected = ["mine", "nobody's"]
    assert [each.session_id for each in found.open_turns] == expected
    assert [each.call_id for each in found.unanswered_calls] == expected
    assert [each.request_id for each in found.open_inputs] == expected
    assert [each.job_id for each in found.jobs_unknown] == expected
    async with EventLog(tmp_path / "killed/agent.db") as log:
        rest = await Inspection(log).recovery()
        assert [each.session_id for each in rest.open_turns] == ["theirs"]
        assert [each.job_id for each in rest.jobs_unknown] == ["theirs"]


async def test_imported_history_is_unfinished_for_ever_and_nobody_is_asked(tmp_path: Path) -> None:
    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        await turn(session, "t", requested(("c", {})), asks("q"))
        await session.append("job.started", {"jobId": "j"})

    async with EventLog(await closed(tmp_path, story)) as log:
        lines = [line async for line in log.export()]
    async with EventLog(tmp_path / "other.db") as log:
        assert (await log.import_events(lines)).added == len(lines)
    assert (await started(tmp_path / "other.db", interrupt_open_turns=True)).nothing


# ------------------------------------------------------------------------------------------------------ what is ended


async def test_r14_a_job_that_was_running_becomes_outcome_unknown_and_is_final(tmp_path: Path) -> None:
    """R14: it is not run again by itself; hooks are told like of every end; a late result changes nothing."""

    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        for job in ("runs", "queued", "done"):
            await session.append("job.queued", {"jobId": job, "name": f"to {job}"})
        for job in ("runs", "done"):
            await session.append("job.started", {"jobId": job})
        await session.append("job.completed", {"jobId": "done", "status": "succeeded"})

    path, told = await killed(tmp_path, story), list[tuple[str, str]]()

    async def see(event: Event[Any], ctx: HookContext) -> None:
        told.append((event.data.job_id, event.data.status))

    for unknown in (["runs"], []):
        async with EventLog(path) as log:
            runtime = Runtime(log)
            runtime.add_hook("see", define_hook(events={"job.completed": see}))
            async with runtime:
                assert [each.job_id for each in runtime.recovered.jobs_unknown] == unknown
                await runtime.settled()
            statuses = {name: await status_of(log, name) for name in ("runs", "queued", "done")}
            assert statuses == {"runs": "outcomeUnknown", "queued": "queued", "done": "succeeded"}
            await (await log.session("s")).append("job.completed", {"jobId": "runs", "status": "succeeded"}, key="late")
            assert await status_of(log, "runs") == "outcomeUnknown"
            await whole(log)
    assert told == [("runs", "outcomeUnknown")]


async def status_of(log: EventLog, job_id: str) -> str | None:
    job = await log.store.read(find_job, job_id)
    return None if job is None else job.status


async def test_r95_open_turns_are_interrupted_once_where_the_server_says_so(tmp_path: Path) -> None:
    """R95: the message is exactly `turn interrupted`; a second start adds nothing."""
    path = await killed(tmp_path, a_crash)
    assert len((await started(path)).open_turns) == 2
    assert len((await started(path, interrupt_open_turns=True)).open_turns) == 2
    async with EventLog(path) as log:
        failed = [(e.session_id, e.turn_id, e.data.message) async for e in log.read(types=["turn.failed"])]
        assert failed == [
            ("done", "t1", "no"),
            *[(s, t, "turn interrupted") for s, t in (("paying", "t2"), ("asking", "t1"))],
        ]
        head = log.head
    for _ in range(2):
        assert (await started(path, interrupt_open_turns=True)).nothing
    async with EventLog(path) as log:
        assert log.head == head
        await turn(await log.session("paying"), "t2")  # it is tried again, and again the process dies
        path = crash_copy(path, tmp_path / "again")
    assert len((await started(path, interrupt_open_turns=True)).open_turns) == 1
    async with EventLog(path) as log:
        assert [event.type async for event in log.read(after=head)] == ["turn.started", "turn.failed"]


async def test_a_turn_that_ends_while_it_is_recovered_keeps_its_own_end(tmp_path: Path) -> None:
    """Whichever end is appended first is the only one, however the appends fall."""

    async def story(log: EventLog) -> None:
        for number in range(40):
            session = await log.start_session(f"s{number}")
            await turn(session, "t")
            await session.append("job.started", {"jobId": f"j{number}"})

    async with EventLog(await killed(tmp_path, story)) as log:
        recovery = Recovery(log, "agent")
        found = await recovery.look()
        assert len(found.open_turns) == len(found.jobs_unknown) == 40

        async def end(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            session = await log.session(f"s{number}")
            await session.append("turn.completed", {}, turn_id="t")
            await session.append("job.completed", {"jobId": f"j{number}", "status": "failed"})

        ends = [asyncio.ensure_future(end(number)) for number in range(40)]
        assert await recovery.interrupt_turns() + await recovery.end_jobs() == 0
        await asyncio.gather(*ends)
        for number in range(40):
            types = [event.type async for event in (await log.session(f"s{number}")).read(after=2)]
            assert types.count("job.completed") <= 2
            assert types.index("job.completed") > types.index("turn.completed")
            assert types[0] in ("turn.completed", "turn.failed")
            if types[0] == "turn.completed":
                assert "turn.failed" not in types
        await whole(log)


async def test_a_turn_that_goes_on_while_it_is_recovered_is_ended_all_the_same(tmp_path: Path) -> None:
    """What comes between the look at a turn and its end does not end it: then it is looked at again."""

    async def story(log: EventLog) -> None:
        for number in range(40):
            await turn(await log.start_session(f"s{number}"), "t")

    async with EventLog(await killed(tmp_path, story)) as log:
        recovery = Recovery(log, "agent")
        _ = await recovery.look()

        async def go_on(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            await log.append(f"s{number}", "message.appended", {"delta": "x"}, turn_id="t")

        going_on = [asyncio.ensure_future(go_on(number)) for number in range(40)]
        assert await recovery.interrupt_turns() == 0
        await asyncio.gather(*going_on)
        for number in range(40):
            types = [event.type async for event in (await log.session(f"s{number}")).read(after=1)]
            assert sorted(types) == ["message.appended", "turn.failed"]
        await whole(log)


async def test_a_log_that_is_closed_ends_a_recovery_and_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    """It is no fault of the turns: none of them is counted as one that cannot be ended."""

    async def story(log: EventLog) -> None:
        for number in range(40):
            await turn(await log.start_session(f"s{number}"), "t")

    path = await killed(tmp_path, story)
    async with EventLog(path) as log:
        recovery = Recovery(log, "agent")
        _ = await recovery.look()
        ending = asyncio.ensure_future(recovery.interrupt_turns())
        await asyncio.sleep(0)
        await log.close()
        with pytest.raises(LogClosed):
            await ending
    await started(path, interrupt_open_turns=True)
    async with EventLog(path) as log:
        ended = [event.session_id async for event in log.read(types=["turn.failed"])]
        assert sorted(ended) == sorted(f"s{number}" for number in range(40))


# Recovers, and is killed when so many events were recorded.
RECOVERING = """
from eventlog import Runtime

async def main():
    left = int(sys.argv[2])

    def count(events):
        nonlocal left
        left -= len(events)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async with EventLog(path) as log:
        log.on_recorded(count)
        async with Runtime(log, interrupt_open_turns=True):
            pass
asyncio.run(main())
"""


async def test_a_kill_in_the_middle_of_a_recovery_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    """However often it is killed: every turn and every job ends, and ends once."""

    async def story(log: EventLog) -> None:
        for number in range(300):
            session = await log.start_session(f"s{number}")
            await session.append_many(
                [NewEvent("turn.started", {}, turn_id="t"), NewEvent("job.started", {"jobId": f"j{number}"})]
            )

    path, kills = await killed(tmp_path, story), 0
    for recorded in (1, 40, 130, 200, 300):
        with child(RECOVERING, path, str(recorded)) as server:
            kills += await asyncio.to_thread(server.wait) == KILLED
    assert kills >= 3
    _ = await started(path, interrupt_open_turns=True)
    async with EventLog(path) as log:
        for type_ in ("turn.failed", "job.completed"):
            ended = [event.session_id async for event in log.read(types=[type_])]
            assert sorted(ended) == sorted(f"s{number}" for number in range(300))
        await whole(log)
    assert (await started(path, interrupt_open_turns=True)).nothing


async def test_h8_one_that_cannot_be_ended_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and logged, and the next start tries it again."""

    async def story(log: EventLog) -> None:
        for name in ("a", "bad", "c"):
            await turn(await log.start_session(name), name)

    def refuse(event: NewEvent) -> NewEvent:
        if event.turn_id == "bad":
            raise InvalidEvent("turnId", "no")
        return event

    path = await killed(tmp_path, story)
    async with EventLog(path, redact=refuse) as log, Runtime(log, interrupt_open_turns=True) as runtime:
        assert runtime.recovered.failed == 1
        (said,) = [message for message in caplog.messages if "could not be ended" in message]
        assert "turn_id='bad'" in said
        ended = [event.turn_id async for event in log.read(types=["turn.failed"])]
        assert sorted(map(str, ended)) == ["a", "c"]
    assert [each.turn_id for each in (await started(path, interrupt_open_turns=True)).open_turns] == ["bad"]


# ------------------------------------------------------------------------------------------------- bounds, and damage


async def test_beyond_the_limits_it_is_counted_and_everything_is_still_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unfinished, "MAX_NAMED", 3)

    async def story(log: EventLog) -> None:
        for number in range(5):
            session = await log.start_session(f"s{number}")
            await turn(session, "t", requested((f"c{number}", {})), asks(f"q{number}"))
            await session.append("job.started", {"jobId": f"j{number}"})

    path = await killed(tmp_path, story)
    found = await started(path, interrupt_open_turns=True)
    counts = [len(each) for each in (found.open_turns, found.unanswered_calls, found.open_inputs, found.jobs_unknown)]
    assert (counts, found.not_named) == ([3, 3, 3, 3], 8)
    assert "8 more unfinished turns, calls, inputs and jobs are not named" in caplog.messages
    assert (await started(path)).nothing


@pytest.mark.parametrize(
    ("limit", "unread", "calls"),
    [(100, 0, ["first", "last"]), (8, 0, ["first", "last"]), (7, 1, ["first", "last"]), (6, 2, ["last"])],
)
async def test_of_a_long_turn_the_newest_events_are_looked_through(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    unread: int,
    calls: list[str],
) -> None:
    """A request that is named has no result; one that is too far back is not named, and the number says so."""
    monkeypatch.setattr(unfinished, "MAX_EVENTS_READ", limit)

    async def story(log: EventLog) -> None:
        deltas = [("message.appended", {"delta": "x"})] * 5
        await turn(await log.start_session("s"), "t", requested(("first", {})), *deltas, requested(("last", {})))

    found = await started(await closed(tmp_path, story))
    assert ([each.call_id for each in found.unanswered_calls], found.events_unread) == (calls, unread)
    said = f"{unread} events of open turns were not looked through for calls"
    assert (said in caplog.messages) == (unread > 0)


async def test_damage_that_is_met_is_named_and_hides_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await closed(tmp_path, a_crash)
    with damaging(path) as connection:
        connection.execute("UPDATE log SET data = replace(data, 'q2?', 'q3?') WHERE data LIKE '%q2?%'")
        connection.execute("UPDATE log SET data = '{' WHERE data LIKE '%\"c1\"%' AND turn_id = 't2' AND type = 18")
    found = await started(path)
    assert [(each.session_id, each.index) for each in found.damaged] == [("paying", 7), ("asking", 2)]
    said = [message for message in caplog.messages if "is damaged" in message and "eventlog check" in message]
    assert [message.split(" (")[0] for message in said] == ["event 7 of session paying", "event 2 of session asking"]
    assert len(found.open_turns) == 2
    assert [each.call_id for each in found.unanswered_calls] == ["c1", "c2"], "its result cannot be read"
    assert found.open_inputs == []


async def test_reminders_and_deliveries_that_fell_due_meanwhile_are_counted(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story(log: EventLog) -> None:
        session = await log.start_session("s")
        for id, at in (("soon", "2000-01-01T00:00:00Z"), ("late", "2999-01-01T00:00:00Z")):
            await session.append("reminder.created", {"reminderId": id, "at": at, "text": id})

    path = await killed(tmp_path, story, clock=clock)
    async with EventLog(path) as log, Runtime(log) as runtime:
        assert runtime.recovered.reminders_due == 1
        await runtime.settled()
    assert (await started(path)).nothing


# ------------------------------------------------------------------------------------------------------------ at rest


async def test_a_log_at_rest_tells_the_same_as_the_next_start(tmp_path: Path) -> None:
    """And is not changed by being asked."""

    async def see(event: Event[Any], ctx: HookContext) -> None: ...

    async with EventLog(tmp_path / "agent.db") as log:
        runtime = Runtime(log)
        runtime.add_hook("see", define_hook(events={"*": see}))
        async with runtime:
            await a_crash(log)
            await (await log.session("done")).append("job.started", {"jobId": "j"})
            path = crash_copy(log.path, tmp_path / "killed")
    async with EventLog(path, read_only=True) as log:
        told = await Inspection(log).recovery()
    async with EventLog(path) as log:
        runtime = Runtime(log)
        runtime.add_hook("see", define_hook(events={"*": see}))
        async with runtime:
            found = runtime.recovered
    for name in (*Recovered.__struct_fields__[:7], "damaged"):
        assert getattr(told, name) == getattr(found, name), name
    assert (told.gaps, len(told.jobs_unknown)) == (1, 1)


async def test_what_is_underway_in_another_process_is_not_called_unfinished(tmp_path: Path) -> None:
    path = await closed(tmp_path, a_crash)
    with child(OWNER, path) as owner:
        assert line_of(owner) == "open"
        async with EventLog(path, read_only=True) as log:
            with pytest.raises(LogInUse, match=f"process {owner.pid}"):
                await Inspection(log).recovery()


# ------------------------------------------------------------------------------------------------- without a look back


async def test_what_is_unfinished_is_found_without_a_look_through_the_log(tmp_path: Path) -> None:
    """Every statement goes by an index or through a small table: a long log costs a start nothing."""
    plans: list[str] = []

    async def story(log: EventLog) -> None:
        await a_crash(log)

    async with EventLog(await closed(tmp_path, story)) as log:

        def look(connection: Any) -> None:
            statements: list[str] = []
            connection.set_trace_callback(statements.append)
            unfinished.survey(connection, "agent", log.head, 0)
            unfinished.running_jobs(connection, "agent", log.head, 0, 10)
            connection.set_trace_callback(None)
            for statement in statements:
                if statement.startswith("SELECT"):
                    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
                    plans.extend(row[3] for row in rows)

        await log.store.read(look)
    scanned = {plan.split()[1] for plan in plans if plan.startswith("SCAN")}
    assert scanned <= {"u", "absorbed", "epoch", "era", "CONSTANT", "(subquery-2)", "(subquery-1)"}, plans
    assert not any("SCAN log" in plan or "SCAN l" in plan.split(" USING ")[0].split() for plan in plans)
