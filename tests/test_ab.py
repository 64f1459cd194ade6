"""A/B experiments: who takes part, in which arm, how a server sees it, and what is collected."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog import (
    DiscoveryError,
    Event,
    EventLog,
    HookContext,
    Runtime,
    Session,
    SessionNotFound,
    define_ab,
    define_hook,
)
from eventlog.errors import InvalidName
from eventlog.events import Cost, TokenUsage
from eventlog.observe import AbDefinition, Sample, arm_of, discover
from eventlog.observe.experiments import TURNS_LOOKED_AT
from eventlog.testing import ManualClock

ARMS = {"short": 1, "long": 1}
USAGE = {"inputTokens": 12, "outputTokens": 3, "cacheReadTokens": 0, "cacheWriteTokens": 0}
COST = {"totalUsd": 0.25, "model": "m-1"}

# The arms of s0 to s7 in an experiment of weights 1, 1 and 2. Another list would move sessions between versions.
PINNED = ["none", "none", "none", "short", "long", "short", "short", "long"]


@asynccontextmanager
async def trying(
    path: Path, *experiments: AbDefinition, clock: ManualClock | None = None, agent_dir: Path | None = None
) -> AsyncIterator[tuple[EventLog, Runtime]]:
    """A runtime with experiments, until an orderly stop."""
    async with EventLog(path / "agent.db", clock=clock or ManualClock()) as log:
        runtime = Runtime(log, agent_dir)
        for experiment in experiments:
            runtime.add_ab(experiment)
        async with runtime:
            yield log, runtime


async def assigned(log: EventLog, session_id: str | None = None) -> dict[str, dict[str, str]]:
    """What the log says of arms: by session, then by experiment."""
    arms: dict[str, dict[str, str]] = {}
    async for event in log.read(types=["ab.assigned"]):
        of_session = arms.setdefault(event.session_id, {})
        assert event.data.experiment not in of_session, "assigned twice"
        of_session[event.data.experiment] = event.data.arm
    return arms


# ------------------------------------------------------------------------------------------------------ who takes part


async def test_r98_r135_a_live_session_is_put_in_an_arm_by_the_commit_that_starts_it(tmp_path: Path) -> None:
    seen: list[tuple[int, str, str]] = []

    async def note(event: Event[Any], _ctx: HookContext) -> None:
        seen.append((event.index, event.data.experiment, event.data.arm))

    async with trying(tmp_path, define_ab("tone", ARMS), define_ab("model", {"a": 1, "b": 0})) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"ab.assigned": note}))
        await runtime.settled()
        session = await log.start_session("s1")
        tone = session.info.abs["tone"]
        first, *others = [event async for event in session.read()]
        assert first.data.abs == {"tone": tone, "model": "a"}
        assert [(event.type, event.index, event.turn_id) for event in others] == [
            ("ab.assigned", 1, None),
            ("ab.assigned", 2, None),
        ]
        assert {event.at_us for event in others} == {first.at_us}
        await runtime.settled()
        assert seen == [(1, "tone", tone), (2, "model", "a")]


async def test_r135_evals_and_the_sessions_of_other_agents_take_no_part(tmp_path: Path) -> None:
    samples: list[Sample] = []
    async with trying(tmp_path, define_ab("tone", ARMS, on_sample=samples.append)) as (log, runtime):
        for id, others in (("s1", {"purpose": "eval"}), ("s2", {"agent": "billing"}), ("s3", {"agent": "agent"})):
            session = await log.start_session(id, **others)  # type: ignore[arg-type]
            await session.append("turn.completed", {}, turn_id="t1")
        given = await log.start_session("s4", purpose="eval", abs={"tone": "short"})
        await given.append("turn.completed", {}, turn_id="t1")
        await runtime.settled()
        assert list(await assigned(log)) == ["s3"] == [sample.session_id for sample in samples]
        assert [runtime.arms(id) for id in ("s1", "s2")] == [{}, {}]


async def test_r135_sessions_from_before_an_experiment_or_after_it_take_no_part(tmp_path: Path) -> None:
    async with trying(tmp_path) as (log, runtime):
        await log.start_session("before")
        runtime.add_ab(define_ab("tone", ARMS))
        await log.start_session("while it runs")
        await runtime.stop()
        await log.start_session("after")
        assert list(await assigned(log)) == ["while it runs"]


# --------------------------------------------------------------------------------------------------- in which arm, ever


def test_r136_the_arm_of_an_id_is_the_same_in_every_process_and_version() -> None:
    experiment = define_ab("tone", {"short": 1, "long": 1, "none": 2})
    assert [experiment.arm_for(f"s{n}") for n in range(8)] == PINNED
    reordered = define_ab("tone", {"none": 2, "long": 1, "short": 1})
    assert [reordered.arm_for(f"s{n}") for n in range(8)] == PINNED


def test_arms_get_the_share_of_their_weight_and_one_of_weight_0_gets_nobody() -> None:
    experiment = define_ab("tone", {"a": 1, "b": 3, "c": 0, "d": 0.5})
    counts = Counter(experiment.arm_for(f"s_{n}") for n in range(9_000))
    assert counts["c"] == 0
    for arm, share in (("a", 2_000), ("b", 6_000), ("d", 1_000)):
        assert abs(counts[arm] - share) < 200


def test_every_session_has_an_arm_however_weights_are_rounded() -> None:
    """The smallest numbers that there are cannot be divided: shares are lost in rounding, sessions are not."""
    experiment = define_ab("tone", {"a": 5e-324, "b": 5e-324, "c": 0})
    assert {experiment.arm_for(f"s_{n}") for n in range(1_000)} == {"a", "b"}


def test_experiments_divide_sessions_independently_of_each_other() -> None:
    one, two = define_ab("one", ARMS), define_ab("two", ARMS)
    counts = Counter((one.arm_for(f"s_{n}"), two.arm_for(f"s_{n}")) for n in range(4_000))
    assert len(counts) == 4
    assert all(abs(count - 1_000) < 150 for count in counts.values())


async def test_r136_a_session_stays_in_its_arm_over_restarts_and_new_weights(tmp_path: Path) -> None:
    async with trying(tmp_path, define_ab("tone", ARMS)) as (log, runtime):
        for n in range(20):
            await log.start_session(f"s{n}")
        before = await assigned(log)
        assert {arms["tone"] for arms in before.values()} == {"short", "long"}
    for weights in (ARMS, {"short": 0, "long": 1}, {"other": 1, "long": 1}):
        async with trying(tmp_path, define_ab("tone", weights)) as (log, runtime):
            for n in range(20):
                session = await log.session(f"s{n}")
                await session.append("turn.started", {}, turn_id="t")
                assert runtime.arms(session.id) == before[session.id] == {"tone": arm_of(session, "tone")}
            assert await assigned(log) == before


# ------------------------------------------------------------------------------------------------- how a server sees it


async def test_r138_the_arm_shows_in_the_sessions_abs_and_in_its_instructions(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def note(_event: Event[Any], ctx: HookContext) -> None:
        seen.append((ctx.session.abs, arm_of(ctx.session, "tone")))

    told = {"short": "Answer in one sentence."}
    tone, model = define_ab("tone", {"short": 1, "long": 0}, instructions=told), define_ab("model", {"a": 1, "b": 0})
    async with trying(tmp_path, tone, model) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"session.started": note}))
        await runtime.settled()
        session = await log.start_session("s1", abs={"mine": [1]})
        await runtime.settled()
        assert seen == [({"mine": [1], "tone": "short", "model": "a"}, "short")]
        assert arm_of(session, "tone") == arm_of(session.info, "tone") == "short"
        assert arm_of(session, "mine") is None is arm_of(session, "other")
        assert runtime.arms("s1") == {"tone": "short", "model": "a"}
        assert runtime.arm_instructions("s1") == ["Answer in one sentence."]
        with pytest.raises(SessionNotFound):
            runtime.arms("nobody")


async def test_an_arm_that_the_server_names_is_the_sessions_arm(tmp_path: Path) -> None:
    async with trying(tmp_path, define_ab("tone", {"short": 1, "long": 0})) as (log, runtime):
        await log.start_session("s1", abs={"tone": "long"})
        await log.start_session("s2", abs={"tone": "by hand"})
        await log.start_session("s3", abs={"tone": {"a": 1}})
        assert await assigned(log) == {"s1": {"tone": "long"}, "s2": {"tone": "by hand"}}
        assert [runtime.arms(id) for id in ("s1", "s2")] == [{"tone": "long"}, {"tone": "by hand"}]
        assert (await log.session_info("s3")).abs == {"tone": {"a": 1}}
        assert runtime.arms("s3") == {}


async def test_a_session_whose_abs_is_no_mapping_takes_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trying(tmp_path, define_ab("tone", ARMS)) as (log, runtime):
        session = await log.start_session("s1", abs=["mine"])
        assert session.info.abs == ["mine"]
        assert (await assigned(log), runtime.arms("s1")) == ({}, {})
        assert "session s1 is in no experiment: its abs is a list" in caplog.text


@pytest.mark.parametrize("id", ["", "a\nb", "\ud800", 5], ids=repr)
async def test_a_bad_session_id_is_refused_as_without_an_experiment(tmp_path: Path, id: Any) -> None:
    async with trying(tmp_path, define_ab("tone", ARMS)) as (log, _):
        with pytest.raises(Exception, match="sessionId"):
            await log.start_session(id)


# ------------------------------------------------------------------------------------------------- what is collected


async def play(session: Session, clock: ManualClock, turn_id: str, seconds: float, **data: Any) -> None:
    """A turn that takes so many seconds."""
    await session.append("turn.started", {}, turn_id=turn_id)
    clock.advance(seconds)
    await session.append("turn.failed" if "message" in data else "turn.completed", data, turn_id=turn_id)


async def test_r135_r137_each_turn_of_a_live_session_is_a_sample(tmp_path: Path) -> None:
    samples: list[Sample] = []
    clock = ManualClock()
    experiment = define_ab("tone", {"short": 1, "long": 0}, on_sample=samples.append)
    async with trying(tmp_path, experiment, clock=clock) as (log, runtime):
        session = await log.start_session("s1")
        await play(session, clock, "t1", 2.5, usage=USAGE, cost=COST)
        await play(session, clock, "t2", 0.25, message="turn interrupted")
        ended = await session.append("turn.completed", {}, turn_id="t3")
        await runtime.settled()
        common: dict[str, Any] = {"experiment": "tone", "arm": "short", "session_id": "s1"}
        first, second, third = samples
        assert first == Sample(
            **common,
            turn_id="t1",
            at=first.at,
            duration_s=2.5,
            failed=False,
            usage=TokenUsage(12, 3, 0, 0),
            cost=Cost(0.25, "m-1"),
        )
        assert second == Sample(
            **common, turn_id="t2", at=second.at, duration_s=0.25, failed=True, message="turn interrupted"
        )
        assert third == Sample(**common, turn_id="t3", at=ended.at, duration_s=None, failed=False)
        assert [(hook.name, hook.events, hook.calls, hook.source) for hook in runtime.hooks] == [
            ("ab:tone", ["turn.completed", "turn.failed"], 3, "code")
        ]


async def test_r137_a_coroutine_function_is_awaited_for_each_sample(tmp_path: Path) -> None:
    samples: list[tuple[str, str]] = []

    async def take(sample: Sample) -> None:
        await asyncio.sleep(0)
        samples.append((sample.turn_id, threading.current_thread().name))

    async with trying(tmp_path, define_ab("tone", ARMS, on_sample=take)) as (log, runtime):
        session = await log.start_session("s1")
        for turn_id in ("t1", "t2"):
            await session.append("turn.completed", {}, turn_id=turn_id)
        await runtime.settled()
    here = threading.current_thread().name
    assert samples == [("t1", here), ("t2", here)]


async def test_r137_a_fold_of_the_log_equals_the_samples(tmp_path: Path) -> None:
    """Over sessions that take turns by turns, and a restart in the midst of a turn: each turn once, none again."""
    clock = ManualClock()
    samples: list[Sample] = []
    experiment = define_ab("tone", ARMS, on_sample=samples.append)
    async with trying(tmp_path, experiment, clock=clock) as (log, runtime):
        sessions = [await log.start_session(f"s{n}") for n in range(10)]
        for n in range(3):
            for session in sessions:
                await session.append("turn.started", {}, turn_id=f"t{n}")
                clock.advance(0.5)
            for session in sessions:
                clock.advance(0.25)
                await session.append("turn.completed", {"cost": COST} if n else {}, turn_id=f"t{n}")
        for session in sessions:
            await session.append("turn.started", {}, turn_id="over the restart")
        await runtime.settled()
    clock.advance(60)
    async with trying(tmp_path, experiment, clock=clock) as (log, runtime):
        for n in range(10):
            await log.append(f"s{n}", "turn.failed", {"message": "late"}, turn_id="over the restart")
        await runtime.settled()
        assert sorted(map(_facts, samples)) == sorted([_facts(each) async for each in folded(log)])
        assert len(samples) == 40


def _facts(sample: Sample) -> tuple[Any, ...]:
    return (
        sample.session_id,
        sample.turn_id,
        sample.arm,
        sample.at,
        sample.duration_s,
        sample.failed,
        repr(sample.cost),
    )


async def folded(log: EventLog) -> AsyncIterator[Sample]:
    """The samples of the experiment `tone`, from the log alone."""
    arms, begun = await assigned(log), {}
    async for event in log.read(types=["turn.started", "turn.completed", "turn.failed"]):
        turn = (event.session_id, event.turn_id)
        if event.type == "turn.started":
            begun[turn] = event.at_us
            continue
        yield Sample(
            experiment="tone",
            arm=arms[event.session_id]["tone"],
            session_id=event.session_id,
            turn_id=event.turn_id or "",
            at=event.at,
            duration_s=(event.at_us - begun[turn]) / 1_000_000,
            failed=event.type == "turn.failed",
            cost=getattr(event.data, "cost", None),
        )


async def test_a_turn_is_found_behind_many_that_began_later_but_not_behind_any_number(tmp_path: Path) -> None:
    samples: list[Sample] = []
    clock = ManualClock()
    async with trying(tmp_path, define_ab("tone", ARMS, on_sample=samples.append), clock=clock) as (log, runtime):
        session = await log.start_session("s1")
        for n in range(TURNS_LOOKED_AT + 1):
            await session.append("turn.started", {}, turn_id=f"t{n}")
        clock.advance(1)
        for turn_id in ("t1", "t0"):
            await session.append("turn.completed", {}, turn_id=turn_id)
        await runtime.settled()
        assert [(sample.turn_id, sample.duration_s) for sample in samples] == [("t1", 1.0), ("t0", None)]


async def test_r137_collection_is_observe_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What `on_sample` raises is logged and skipped as a hook's error is, and nothing it does reaches the log."""

    async def fails(sample: Sample) -> None:
        with pytest.raises(AttributeError):
            sample.failed = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError("no metrics today")

    async with trying(tmp_path, define_ab("tone", ARMS, on_sample=fails)) as (log, runtime):
        session = await log.start_session("s1")
        for turn_id in ("t1", "t2"):
            await session.append("turn.completed", {}, turn_id=turn_id)
        await runtime.settled()
        assert caplog.text.count('hook "ab:tone" handler for turn.completed threw: RuntimeError: no metrics today') == 2
        assert [event.type async for event in session.read()] == [
            *("session.started", "ab.assigned", "turn.completed", "turn.completed")
        ]


async def test_a_plain_on_sample_runs_off_the_loop_and_one_that_is_stuck_holds_up_its_session_alone(
    tmp_path: Path,
) -> None:
    opened, stuck, threads = threading.Event(), threading.Event(), set[str]()

    def plain(sample: Sample) -> None:
        threads.add(threading.current_thread().name)
        if sample.session_id == "stuck":
            stuck.set()
            assert opened.wait(20)

    taken: list[str] = []

    def passes_a_coroutine_on(sample: Sample) -> Any:
        async def take() -> None:
            taken.append(sample.session_id)

        return take()

    experiments = define_ab("one", ARMS, on_sample=plain), define_ab("two", ARMS, on_sample=passes_a_coroutine_on)
    async with trying(tmp_path, *experiments) as (log, runtime):
        for id in ("stuck", "free"):
            session = await log.start_session(id)
            await session.append("turn.completed", {}, turn_id="t1")
        while "free" not in taken:
            await log.append("free", "test.noted", {})
        assert stuck.is_set()
        assert taken == ["free"]
        opened.set()
        await runtime.settled()
        assert taken == ["free", "stuck"]
        assert threading.main_thread().name not in threads


# --------------------------------------------------------------------------------------------------------- how authored


def a_file(name: str, more: str = "") -> str:
    return f"from eventlog import define_ab\n\nab = define_ab({name!r}, arms={{'short': 1, 'long': 1}}{more})\n"


@pytest.fixture
def author(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes files below `agent/`."""

    def write(path: str, source: str) -> Path:
        file = tmp_path / "agent" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return file

    return write


async def test_r139_experiments_are_authored_in_agent_ab(tmp_path: Path, author: Callable[[str, str], Path]) -> None:
    alone = author("ab.py", a_file("tone"))
    among = author("ab/model.py", a_file("model").replace("ab =", "default ="))
    author("ab/test_model.py", "raise RuntimeError")
    author("ab/_shared.py", "raise RuntimeError")
    found = discover(tmp_path)
    assert found.findings == ()
    assert [(each.definition.name, each.source) for each in found.experiments] == [("tone", alone), ("model", among)]
    async with trying(tmp_path, agent_dir=tmp_path) as (log, runtime):
        await log.start_session("s1")
        assert list(runtime.arms("s1")) == ["tone", "model"]


BAD_FILES = [
    ("ab.py", "raise RuntimeError('no')", "ab-import-failed"),
    ("ab.py", "experiment = 1", "ab-export-invalid"),
    ("ab.py", "ab = {'short': 1}", "ab-export-invalid"),
    ("ab.py", a_file("tone") + a_file("model").replace("ab =", "default ="), "ab-export-invalid"),
    ("ab/tone.py", a_file("tone").replace("'long': 1", ""), "ab-arms-invalid"),
    ("ab/tone.py", a_file("tone").replace("'long': 1", "'long': -1"), "ab-arms-invalid"),
    ("ab/tone.py", a_file("tone", ", instructions={'other': 'x'}"), "ab-arms-invalid"),
    ("ab/tone.py", a_file(""), "ab-name-invalid"),
    ("ab/tone.py", a_file("tone", ", on_sample=5"), "ab-import-failed"),
]


@pytest.mark.parametrize(("path", "source", "code"), BAD_FILES)
async def test_r139_what_is_wrong_with_an_experiment_is_a_finding(
    tmp_path: Path, author: Callable[[str, str], Path], path: str, source: str, code: str
) -> None:
    author(path, source)
    author("ab/other.py", a_file("other"))
    found = discover(tmp_path)
    (finding,) = found.findings
    assert (finding.severity, finding.code, finding.path) == ("error", code, f"agent/{path}")
    assert [each.definition.name for each in found.experiments] == ["other"]
    with pytest.raises(DiscoveryError):
        async with trying(tmp_path, agent_dir=tmp_path):
            pass


async def test_two_experiments_of_one_name_are_refused(tmp_path: Path, author: Callable[[str, str], Path]) -> None:
    author("ab.py", a_file("tone"))
    author("ab/tone.py", a_file("tone"))
    (finding,) = discover(tmp_path).findings
    assert (finding.code, finding.path) == ("ab-name-clash", "agent/ab/tone.py")
    assert 'agent/ab.py has "tone" too' in finding.message
    async with trying(tmp_path / "other", define_ab("tone", ARMS)) as (_, runtime):
        with pytest.raises(InvalidName, match="another experiment has it"):
            runtime.add_ab(define_ab("tone", ARMS))


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": 5},
        {"arms": {}},
        {"arms": {"only": 1}},
        {"arms": ["short", "long"]},
        {"arms": {"short": 0, "long": 0}},
        {"arms": {"short": "1", "long": 1}},
        {"arms": {"short": True, "long": 1}},
        {"arms": {"short": float("nan"), "long": 1}},
        {"arms": {"short": float("inf"), "long": 1}},
        {"arms": {"short": 1e308, "long": 1e308}},
        {"arms": {"short": 10**400, "long": 1}},
        {"arms": {"": 1, "long": 1}},
        {"arms": {1: 1, "long": 1}},
        {"instructions": {"other": "x"}},
        {"instructions": {"short": 5}},
        {"instructions": ["x"]},
        {"on_sample": "print"},
    ],
    ids=repr,
)
def test_a_bad_definition_is_refused(bad: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "tone", "arms": ARMS}
    define_ab(**good)
    with pytest.raises(InvalidName):
        define_ab(**(good | bad))


def test_a_definition_does_not_follow_what_it_was_made_from() -> None:
    arms, told = {"short": 1, "long": 1}, {"short": "x"}
    experiment = define_ab("tone", arms, instructions=told)
    arms["third"] = told["long"] = 5  # type: ignore[assignment]
    assert dict(experiment.arms) == ARMS
    assert dict(experiment.instructions) == {"short": "x"}
