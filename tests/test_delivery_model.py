"""The queue and its worker against a plain model: whatever happens in whatever order, both hold the same rows."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from eventlog.durable import HookCallContext, Reject, RetryAfter
from eventlog.durable.worker import Worker
from eventlog.events import NewEvent
from eventlog.log import EventLog
from eventlog.store.buried import Buried, Filter
from eventlog.store.deliveries import Deliveries, Limits
from eventlog.store.extensions import Extensions
from eventlog.testing import ManualClock
from tests.delivery_model import CAPABILITY_OF, EXTENSIONS, POLICY, PROJECT_OF, TYPE_OF, US, Key, Model, Standing
from tests.extension_kit import JOB, TURN, end_all_other_tasks, installation
from tests.torture.counts import Counts

SEED = int(os.environ.get("EVENTLOG_SEED", "20261130"))
STEPS = 50
LIMITS = Limits(POLICY.attempts, POLICY.retention_s, POLICY.keep_dead_s, POLICY.capacity)

ENDS: dict[str, Exception | None] = {
    "ack": None,
    "fail": ValueError("no"),
    "reject": Reject("no"),
    "retry at once": RetryAfter(0.0),
    "retry later": RetryAfter(90.0),
    "retry never": RetryAfter(1e9),
}

T = TypeVar("T")


# ---------------------------------------------------------------------------------------------------- the real queue


class Server:
    """A log with a worker that is turned by hand, and handlers that wait to be told how they end."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.calls: dict[Key, asyncio.Future[None]] = {}
        self.begun: list[Key] = []
        self.letters: Counter[tuple[Key, str]] = Counter()
        self.keys: dict[str, int] = {}
        self._path = folder / "agent.db"

    async def open(self) -> None:
        self.log = EventLog(self._path, durability="process", clock=self.clock)
        await self.log.open()
        self.extensions, self.buried = Extensions(self.log.store), Buried(self.log.store)
        self.worker = Worker(self.log, POLICY, Random(0), on_dead_letter=self._note_letter)
        for name in EXTENSIONS:
            self.keys[name] = (await self.extensions.install(installation(name), ["p"])).key
            self.serve(name)
        for letter in (await Deliveries(self.log.store).take_up(LIMITS)).letters:
            self._note_letter(letter)

    def serve(self, name: str) -> None:
        async def handle(event: Any, context: HookCallContext) -> None:
            key = Key(name, int(event.event_id.partition(":")[2]))
            self.begun.append(key)
            self.calls[key] = asyncio.get_running_loop().create_future()
            try:
                await self.calls[key]
            finally:
                del self.calls[key]

        self.worker.serve(self.keys[name], name, {TURN: handle, JOB: handle})

    def _note_letter(self, letter: Any) -> None:
        self.letters[Key(letter.extension, letter.position), letter.reason] += 1

    async def end(self, key: Key, error: Exception | None) -> None:
        call = self.calls[key]
        if error is None:
            call.set_result(None)
        else:
            call.set_exception(error)
        await _turns_of_the_loop()

    async def until_quiet(self) -> None:
        while True:
            turn = await self.worker.run_once()
            await _turns_of_the_loop()
            if not (turn.begun or turn.settled or self.worker._ended):
                return

    async def close(self, *, dies: bool) -> None:
        if dies:
            await end_all_other_tasks()
        else:
            await self.worker.stop(grace_s=0)
        await self.log.close()
        assert self.calls == {}

    async def rows(self) -> dict[Key, tuple[object, ...]]:
        """Every delivery, with how its attempts ended."""
        sql = """
            SELECT e.name, d.position, s.id, d.project, d.type, d.recorded_at, d.due_at, d.state, d.attempts, d.spent,
                   d.reason, d.died_at,
                   (SELECT json_group_array(number || outcome) FROM (SELECT number, outcome FROM attempt AS a
                    WHERE a.extension = d.extension AND a.position = d.position ORDER BY number))
            FROM delivery AS d
            JOIN extension AS e ON e.extension = d.extension JOIN session AS s ON s.session = d.session
        """
        found = await self.log.store.read(lambda connection: connection.execute(sql).fetchall())
        return {Key(name, position): tuple(rest) for name, position, *rest in found}

    async def gaps(self) -> list[tuple[object, ...]]:
        found = await Deliveries(self.log.store).gaps()
        return [(gap.extension, gap.project, gap.first, gap.last, gap.count) for gap in found]


async def _turns_of_the_loop() -> None:
    """Enough for a call to begin, and to end, be it by cancellation."""
    for _ in range(12):
        await asyncio.sleep(0)


# -------------------------------------------------------------------------------------------------- both, side by side


class Queues(RuleBasedStateMachine):
    """Does the same to the model and to the real queue, and compares."""

    steps: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="eventlog-model-"))
        self.model, self.server = Model(), Server(self.folder)
        self.run(self.server.open())
        for session, project in PROJECT_OF.items():
            self.run(self.server.log.start_session(session, project=project))
        self.model.position = self.server.log.head
        self.tell_time()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            self.run(self.server.close(dies=True))
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)

    def tell_time(self) -> None:
        self.model.now = self.server.log.store.clock.now_us()
        self.model.monotonic_s = self.server.clock.monotonic_s()

    def settle(self, what: str) -> None:
        """Let both come to rest, and hold what the worker chose to call against what it may."""
        Queues.steps[what] += 1
        self.model.pass_time()
        self.run(self.server.until_quiet())
        begun, self.server.begun = self.server.begun, []
        for key in begun:
            self.model.begin(key)
        assert self.model.left_waiting() == []

    # -- events and calls -----------------------------------------------------------------------------------------

    @rule(session=st.sampled_from(sorted(PROJECT_OF)))
    def append_turn(self, session: str) -> None:
        self.run(self._append(session, ["turn"]))
        self.settle("turn")

    @rule(session=st.sampled_from(sorted(PROJECT_OF)))
    def append_job(self, session: str) -> None:
        self.run(self._append(session, ["job"]))
        self.settle("job")

    @rule(session=st.sampled_from(sorted(PROJECT_OF)), count=st.integers(2, 9))
    def overflow(self, session: str, count: int) -> None:
        self.run(self._append(session, ["turn"] * count))
        self.settle("overflow")

    async def _append(self, session: str, kinds: list[str]) -> None:
        data = {"turn": {}, "job": {"jobId": "j", "status": "failed"}}
        events = [NewEvent(TYPE_OF[kind], data[kind], turn_id="t" if kind == "turn" else None) for kind in kinds]
        await (await self.server.log.session(session)).append_many(events)
        for kind in kinds:
            self.model.append(session, kind)

    @precondition(lambda self: self.model.running)
    @rule(ends=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(ENDS))), min_size=1, max_size=4))
    def end_calls(self, ends: list[tuple[int, str]]) -> None:
        for number, outcome in ends:
            if running := sorted(self.model.running):
                self._end(running[number % len(running)], outcome)
                self.settle(outcome)

    def _end(self, key: Key, outcome: str) -> None:
        error = ENDS[outcome]
        self.run(self.server.end(key, error))
        if error is None:
            self.model.ack(key)
        elif isinstance(error, RetryAfter):
            self.model.fail(key, "retry-after", round(min(error.seconds, POLICY.retention_s) * US))
        else:
            self.model.fail(key, "rejected" if isinstance(error, Reject) else "failed")

    # -- time and death -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.000_001, 1.0, 4.999_999, 5.0, 20.0, 29.999_999, 30.0, 80.0, 300.0, 599.0]))
    def clock(self, seconds: float) -> None:
        self._advance(seconds)
        self.settle("clock")

    @rule(short_by_us=st.sampled_from([0, 1]))
    def clock_to_what_is_next(self, short_by_us: int) -> None:
        seconds = self.model.next_at_s()
        if seconds is not None:
            self._advance(max(0.0, seconds - short_by_us / US))
        self.settle("clock to what is next")

    def _advance(self, seconds: float) -> None:
        self.server.clock.advance(seconds)
        self.tell_time()

    @rule(seconds=st.sampled_from([-700, -1, 1, 100]))
    def step_of_the_wall_clock(self, seconds: int) -> None:
        """It is believed by the next owner, and changes nothing before."""
        self.server.clock.step(seconds)
        self.settle("step of the wall clock")

    @precondition(lambda self: self.model.rows)
    @rule(orderly=st.booleans())
    def open_again(self, orderly: bool) -> None:
        self.run(self.server.close(dies=not orderly))
        if orderly:
            self.model.cut_short(self.model.running)
        self.run(self.server.open())
        self.tell_time()
        self.model.taken_up()
        self.settle("restart" if orderly else "crash")

    # -- operators ------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(EXTENSIONS), what=st.sampled_from(["pause", "disable", "activate anew"]))
    def steer(self, name: str, what: str) -> None:
        """Do it, or undo it where it is done."""
        standing = self.model.extensions[name]
        if what == "pause":
            what = "resume" if standing.paused else what
        elif what == "disable" or not standing.enabled:
            what = "disable" if standing.enabled else "enable"
        {
            "pause": self._pause,
            "resume": self._resume,
            "disable": self._disable,
            "enable": self._enable,
            "activate anew": self._activate_anew,
        }[what](name, standing)
        self.settle(what)

    def _pause(self, name: str, standing: Standing) -> None:
        self.run(self.server.extensions.pause(name))
        standing.paused = True

    def _resume(self, name: str, standing: Standing) -> None:
        self.run(self.server.extensions.resume(name))
        standing.paused = False

    def _disable(self, name: str, standing: Standing) -> None:
        cleared = self.run(self.server.extensions.disable(name))
        self.run(self.server.worker.withdraw(self.server.keys[name], "disabled", grace_s=0))
        assert (cleared.live, cleared.dead) == self.model.clear(name)
        standing.enabled = False

    def _enable(self, name: str, standing: Standing) -> None:
        self.run(self.server.extensions.enable(name))
        self.server.serve(name)
        standing.enabled = standing.careful = True

    def _activate_anew(self, name: str, standing: Standing) -> None:
        """It is taken out of service and put back, and loses nothing."""
        self.run(self.server.worker.withdraw(self.server.keys[name], "reinstalled", grace_s=0))
        self.model.cut_short(key for key in self.model.running if key.extension == name)
        self.server.serve(name)
        standing.careful = True

    @rule(
        name=st.sampled_from(EXTENSIONS),
        kind=st.sampled_from([*TYPE_OF, None]),
        project=st.sampled_from(["p", "q"]),
        grant=st.sampled_from([True, True, False]),
    )
    def grant_or_revoke(self, name: str, kind: str | None, project: str, grant: bool) -> None:
        kinds = [kind] if kind else list(TYPE_OF)
        capability = CAPABILITY_OF[kind] if kind else None
        rights = {(name, each, project) for each in kinds}
        if grant:
            self.run(self.server.extensions.grant(name, project, capability))
            self.model.grants |= rights
        else:
            cleared = self.run(self.server.extensions.revoke(name, project, capability))
            types = [TYPE_OF[each] for each in kinds]
            self.server.worker.abort(self.server.keys[name], "revoked", project, types)
            held = [each for _, each, _ in self.model.grants & rights]
            assert (cleared.live, cleared.dead) == self.model.clear(name, project, held)
            self.model.grants -= rights
        self.settle("grant" if grant else "revoke")

    @precondition(lambda self: self.model.dead)
    @rule(name=st.sampled_from([*EXTENSIONS, None]))
    def retry(self, name: str | None) -> None:
        retried = self.run(self.server.buried.retry(Filter(self.server.keys[name] if name else None)))
        assert (retried.retried, retried.refused, retried.full) == self.model.retry(name)
        self.settle("retry")

    @precondition(lambda self: self.model.dead)
    @rule(number=st.integers(0, 7))
    def discard(self, number: int) -> None:
        key = self.model.dead[number % len(self.model.dead)]
        assert self.run(self.server.buried.discard(Filter(self.server.keys[key.extension], key.position))) == 1
        del self.model.rows[key]
        self.settle("discard")

    # -- what must be equal ---------------------------------------------------------------------------------------

    @invariant()
    def the_rows_are_equal(self) -> None:
        expected = {
            key: (
                *(row.session, row.project, {"turn": 7, "job": 11}[row.kind], row.recorded, row.due, row.state),
                *(row.attempts, row.spent, row.reason, row.died),
                "[" + ",".join(f'"{number}{outcome}"' for number, outcome in row.failures) + "]",
            )
            for key, row in self.model.rows.items()
        }
        assert self.run(self.server.rows()) == expected
        gaps = [(gap.extension, gap.project, gap.first, gap.last, gap.count) for gap in self.model.gaps]
        assert sorted(self.run(self.server.gaps())) == sorted(gaps)

    @invariant()
    def the_calls_are_equal(self) -> None:
        delivering = {key for key, row in self.model.rows.items() if row.state == "delivering"}
        assert set(self.server.calls) == set(self.model.running) == delivering

    @invariant()
    def the_counter_of_live_rows_is_right(self) -> None:
        counted = {each.name: each.live for each in self.run(self.server.extensions.all())}
        assert counted == {name: len(self.model.live(name)) for name in EXTENSIONS}

    @invariant()
    def a_queue_skips_no_place_and_has_one_more_while_less_than_its_capacity_is_live(self) -> None:
        sql = """
            SELECT q.extension, q.place IS NOT NULL, group_concat(d.place) FROM queue AS q
            LEFT JOIN (SELECT extension, place FROM delivery WHERE place > 0 ORDER BY place) AS d USING (extension)
            GROUP BY q.extension
        """
        found = self.run(self.server.log.store.read(lambda connection: connection.execute(sql).fetchall()))
        names = {key: name for name, key in self.server.keys.items()}
        for extension, has_room, places in found:
            numbers = [int(place) for place in (places or "").split(",") if place]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) <= POLICY.capacity
            assert has_room == (len(self.model.live(names[extension])) < POLICY.capacity)

    @invariant()
    def each_dead_letter_was_reported_once(self) -> None:
        assert self.server.letters == self.model.letters

    @invariant()
    def the_worker_wakes_for_what_is_next(self) -> None:
        expected, alarm = self.model.next_at_s(), self.server.worker._seconds_to_wait()
        assert expected is None or alarm <= max(0.0, expected) + 1e-6


@pytest.mark.faults
def test_r29_r48_the_queue_does_what_a_plain_model_does(counts: Counts) -> None:
    """R29 to R38, R43 to R48, H4, H7: thousands of steps in random order."""
    print(f"\n{counts.queue_machines} machines, seed {SEED}")
    Queues.steps.clear()
    run_state_machine_as_test(
        seed(SEED)(Queues),
        settings=settings(
            max_examples=counts.queue_machines,
            stateful_step_count=STEPS,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            database=None,
        ),
    )
    print(f"{Queues.steps.total():,} steps: {', '.join(f'{n} {what}' for what, n in Queues.steps.most_common())}")
    assert Queues.steps.total() > 12 * counts.queue_machines
