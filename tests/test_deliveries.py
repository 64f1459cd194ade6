"""The queue in the file: what is due, who holds it, what is cleared, and that every statement finds it by an index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventlog.errors import InvalidEvent, InvalidName
from eventlog.log import EventLog
from eventlog.store import attempts, buried, extensions
from eventlog.store.attempts import Acked, Attempt, CutShort, Failed, Want
from eventlog.store.buried import Filter, letters_of, purge
from eventlog.store.deliveries import Asked, Deliveries, list_deliveries, list_gaps
from eventlog.store.extensions import Cleared, Extensions
from tests.extension_kit import BOTH, DAY_S, Bench, bench, complete_turn, installation, start

SCHEMA = (Path(__file__).parents[1] / "schema.sql").read_text()
NOW = 1_000_000_000_000_000
SECOND = 1_000_000
OWNER = "era.1."
TYPES = tuple(BOTH)


class Queue:
    """A queue in a plain connection, with short words for what tests do to it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.now = NOW
        self.owner = OWNER
        connection.execute("INSERT INTO era VALUES ('aaaaaaaa', 1, 0, 'created')")

    def install(self, name: str = "acme", *projects: str) -> int:
        return extensions.install(self.connection, installation(name), projects or ("p",), False, self.now).key

    def record(self, session: str, *, project: str = "p", type: int = 7, turn: str | None = "t") -> int:
        """Record a durable event; its position."""
        execute = self.connection.execute
        execute(
            "INSERT OR IGNORE INTO session (id, project, channel_id, mode, purpose, started_at)"
            " VALUES (?, ?, 'api', 'chat', 'live', 0)",
            (session, project),
        )
        ((key,),) = execute("SELECT session FROM session WHERE id = ?", (session,)).fetchall()
        data = json.dumps({"jobId": f"j{self.now}", "status": "succeeded"} if type == 11 else {})
        return int(
            execute(
                "INSERT INTO log (session, idx, type, turn_id, at, data, checksum)"
                " VALUES (?, 0, ?, ?, ?, ?, zeroblob(16))",
                (key, type, turn if type == 7 else None, self.now, data),
            ).lastrowid
            or 0
        )

    def begin(
        self, extension: int = 1, free: int = 16, busy: tuple[int, ...] = (), careful: bool = False
    ) -> list[Attempt]:
        want = Want(extension, TYPES, free, busy)
        lanes = attempts.crashed_lanes(self.connection, extension) if careful else []
        return [each for ready in attempts.runnable(self.connection, [want]) for each in self._begin(ready, lanes)]

    def _begin(self, want: Want, lanes: list[int]) -> list[Attempt]:
        return attempts.begin(self.connection, self.owner, want, lanes, self.now)

    def settle(self, *ended: attempts.Ended) -> int:
        return attempts.settle(self.connection, ended, self.now)[0]

    def fail(self, attempt: Attempt, after_s: float = 5, kind: attempts.FailureKind = "failed") -> int:
        return self.settle(Failed(attempt, kind, "ValueError: no", "trace", self.now + round(after_s * SECOND)))

    def bury(self, attempt: Attempt, reason: str = "exhausted") -> int:
        return self.settle(Failed(attempt, "failed", "ValueError: no", "trace", reason=reason))

    def restart(self, attempts_allowed: int = 6) -> tuple[int, list[attempts.DeliveryKey]]:
        """Let another owner take the queue up."""
        self.owner = f"era.{int(self.owner.split('.')[1]) + 1}."
        return attempts.take_up(self.connection, self.owner, attempts_allowed, self.now)

    def row(self, sql: str, *values: object) -> tuple[object, ...]:
        found = self.connection.execute(sql, values).fetchone()
        return tuple(found)

    def positions(self) -> list[int]:
        return [each.position for each in list_deliveries(self.connection)]


@pytest.fixture
def queue() -> Iterator[Queue]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.executescript(SCHEMA)
    yield Queue(connection)
    connection.close()


def positions(begun: list[Attempt]) -> list[int]:
    return [attempt.position for attempt in begun]


# ------------------------------------------------------------------------------------------------ lanes and attempts


def test_r36_only_the_first_of_each_lane_is_begun_and_r38_lanes_do_not_wait_for_each_other(queue: Queue) -> None:
    queue.install()
    first, _, other = queue.record("a"), queue.record("a", turn="u"), queue.record("b")
    assert positions(queue.begin()) == [first, other]
    assert queue.begin() == []


def test_r36_a_lane_waits_during_the_back_off_of_its_first(queue: Queue) -> None:
    queue.install()
    first, second = queue.record("a"), queue.record("a", turn="u")
    queue.fail(queue.begin()[0], after_s=5)
    queue.now += 5 * SECOND - 1
    assert queue.begin() == []
    queue.now += 1
    (again,) = queue.begin()
    assert (again.position, again.number, again.round_number) == (first, 2, 2)
    queue.settle(Acked(again))
    assert positions(queue.begin()) == [second]


def test_r37_a_dead_letter_frees_its_lane(queue: Queue) -> None:
    queue.install()
    _, second = queue.record("a"), queue.record("a", turn="u")
    queue.bury(queue.begin()[0])
    assert positions(queue.begin()) == [second]


def test_a_job_waits_in_the_lane_of_its_session(queue: Queue) -> None:
    queue.install()
    turn, job = queue.record("a"), queue.record("a", type=11)
    (first,) = queue.begin()
    assert (first.position, first.type, first.version) == (turn, "turn.completed", 1)
    queue.settle(Acked(first))
    (second,) = queue.begin()
    assert (second.position, second.type, second.version) == (job, "job.completed", None)


def test_extensions_do_not_wait_for_each_other(queue: Queue) -> None:
    one, other = queue.install("one"), queue.install("other")
    position = queue.record("a")
    assert positions(queue.begin(one)) == positions(queue.begin(other)) == [position]


def test_a_lane_whose_last_call_has_not_ended_is_left_alone(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    other = queue.record("b")
    (lane_of_a,) = queue.row("SELECT session FROM session WHERE id = 'a'")
    assert isinstance(lane_of_a, int)
    assert positions(queue.begin(busy=(lane_of_a,))) == [other]


def test_no_more_is_begun_than_there_are_places(queue: Queue) -> None:
    queue.install()
    recorded = [queue.record(f"s{number}") for number in range(5)]
    assert positions(queue.begin(free=3)) == recorded[:3]
    assert queue.begin(free=0) == []


def test_r32_each_attempt_has_a_request_id_of_its_own(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    seen: list[str] = []
    for number in range(1, 4):
        (attempt,) = queue.begin()
        seen.append(attempt.request_id)
        assert attempt.number == number
        queue.fail(attempt, after_s=0)
    queue.begin()
    queue.restart()
    seen += [attempt.request_id for attempt in queue.begin()]
    assert len(set(seen)) == 4


# --------------------------------------------------------------------------------------------------------- settling


def test_an_ack_deletes_the_row_and_leaves_no_attempt(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    (attempt,) = queue.begin()
    assert queue.settle(Acked(attempt)) == 1
    assert queue.row("SELECT (SELECT count(state) FROM delivery), (SELECT count(*) FROM attempt)") == (0, 0)


def test_r30_a_failure_stores_its_due_time_and_its_error(queue: Queue) -> None:
    queue.install()
    position = queue.record("a")
    (attempt,) = queue.begin()
    assert queue.fail(attempt, after_s=5) == 1
    assert queue.row("SELECT state, due_at, last_error, request_id FROM delivery") == (
        *("pending", NOW + 5 * SECOND, "ValueError: no", None),
    )
    assert queue.row("SELECT position, number, request_id, outcome, error, traceback FROM attempt") == (
        *(position, 1, attempt.request_id, "failed", "ValueError: no", "trace"),
    )


def test_what_failed_before_its_ack_takes_its_attempts_along(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    queue.fail(queue.begin()[0], after_s=0)
    queue.settle(Acked(queue.begin()[0]))
    assert queue.row("SELECT count(*) FROM attempt") == (0,)


@pytest.mark.parametrize("kind", ["ack", "retry", "bury", "cut short"])
def test_an_attempt_that_no_longer_holds_its_row_changes_nothing(queue: Queue, kind: str) -> None:
    queue.install()
    queue.record("a")
    (old,) = queue.begin()
    queue.fail(old, after_s=0)
    (held,) = queue.begin()
    late: dict[str, attempts.Ended] = {
        "ack": Acked(old),
        "retry": Failed(old, "failed", "late", None, NOW),
        "bury": Failed(old, "failed", "late", None, reason="rejected"),
        "cut short": CutShort(old),
    }
    before = list(queue.connection.iterdump())
    assert queue.settle(late[kind]) == 0
    assert list(queue.connection.iterdump()) == before
    assert queue.settle(Acked(held)) == 1


def test_a_call_that_we_cut_short_is_due_at_once_and_does_not_count(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    (cut,) = queue.begin()
    queue.settle(CutShort(cut))
    (again,) = queue.begin()
    assert (again.number, again.round_number) == (2, 1)
    assert again.request_id != cut.request_id


def test_what_could_not_be_called_counts_no_attempt(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    queue.settle(Failed(queue.begin()[0], None, "CorruptEvent: it is damaged", reason="undecodable"))
    assert queue.row("SELECT state, reason, attempts FROM delivery") == ("dead", "undecodable", 0)
    assert queue.row("SELECT count(*) FROM attempt") == (0,)


# --------------------------------------------------------------------------------------------------- after a crash


def test_r31_what_a_dead_owner_left_in_flight_is_due_at_once(queue: Queue) -> None:
    queue.install()
    position = queue.record("a")
    (lost,) = queue.begin()
    assert queue.restart() == (1, [])
    assert queue.row("SELECT number, outcome, request_id FROM attempt") == (1, "crashed", lost.request_id)
    (again,) = queue.begin()
    assert (again.position, again.number, again.round_number) == (position, 2, 2)


def test_what_this_owner_has_in_flight_is_not_taken_up(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    (attempt,) = queue.begin()
    assert attempts.take_up(queue.connection, queue.owner, 6, NOW) == (0, [])
    assert queue.settle(Acked(attempt)) == 1


def test_h1_an_event_that_ends_the_process_is_a_dead_letter_after_six_calls(queue: Queue) -> None:
    extension = queue.install()
    position = queue.record("a")
    calls = len(queue.begin(careful=True))
    while not (dead := queue.restart()[1]):
        calls += len(queue.begin(careful=True))
    assert (calls, dead) == (6, [(extension, position)])
    (letter,) = letters_of(queue.connection, dead)
    assert (letter.reason, letter.attempts, letter.last_error) == ("exhausted", 6, attempts.CUT_SHORT_BY_DEATH)


@pytest.mark.parametrize("killers", [1, 7])
def test_a_killer_buries_only_itself_and_not_those_in_flight_beside_it(queue: Queue, killers: int) -> None:
    """What was in flight at a crash is called alone, and is remembered over further crashes (H1)."""
    queue.install()
    recorded = [queue.record(f"s{number}") for number in range(16)]
    deadly = set(recorded[3 : 3 + killers])
    delivered: set[int] = set()
    buried_positions: set[int] = set()
    for _ in range(100):
        while begun := queue.begin(careful=True):
            if deadly.intersection(positions(begun)):
                break
            queue.settle(*map(Acked, begun))
            delivered.update(positions(begun))
        _, dead = queue.restart()
        buried_positions.update(position for _, position in dead)
    assert buried_positions == deadly
    assert delivered == set(recorded) - deadly


def test_a_crashed_call_goes_first_and_alone(queue: Queue) -> None:
    queue.install()
    old = [queue.record("a"), queue.record("b")]
    queue.begin()
    queue.restart()
    fresh = queue.record("c")
    order = []
    while begun := queue.begin(careful=True):
        order.append(positions(begun))
        queue.settle(*map(Acked, begun))
    assert order == [[old[0]], [old[1]], [fresh]]


def test_what_was_begun_and_has_no_call_is_given_back(queue: Queue) -> None:
    extension = queue.install()
    for name in "abc":
        queue.record(name)
    held, *lost = queue.begin()
    assert attempts.give_back(queue.connection, OWNER, [extension], [held.request_id], NOW) == 2
    again = queue.begin()
    assert positions(again) == positions(lost)
    assert {attempt.round_number for attempt in again} == {1}
    assert queue.settle(Acked(held)) == 1


# --------------------------------------------------------------------------------------------- age and capacity


@pytest.mark.parametrize(("age_s", "expired"), [(7 * DAY_S - 1, False), (7 * DAY_S, True), (7 * DAY_S + 1, True)])
def test_r43_at_seven_days_it_leaves_the_queue_to_the_second(queue: Queue, age_s: int, expired: bool) -> None:
    queue.install()
    position = queue.record("a")
    queue.now += age_s * SECOND
    dead = attempts.expire(queue.connection, queue.now - 7 * DAY_S * SECOND, queue.now)
    assert dead == ([(1, position)] if expired else [])
    assert positions(queue.begin()) == ([] if expired else [position])


def test_r43_a_running_call_does_not_expire(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    (attempt,) = queue.begin()
    queue.now += 8 * DAY_S * SECOND
    assert attempts.expire(queue.connection, queue.now - 7 * DAY_S * SECOND, queue.now) == []
    assert queue.settle(Acked(attempt)) == 1


def test_the_queue_knows_when_something_is_due_or_expires_next(queue: Queue) -> None:
    extension = queue.install()
    want = [Want(extension, TYPES, 16)]
    retention_us = 7 * DAY_S * SECOND
    assert attempts.look_ahead(queue.connection, want, NOW, NOW - retention_us) == (None, None, 0)
    queue.record("a")
    queue.fail(queue.begin()[0], after_s=20)
    assert attempts.look_ahead(queue.connection, want, NOW, NOW - retention_us) == (NOW + 20 * SECOND, NOW, 0)
    assert attempts.look_ahead(queue.connection, want, NOW, NOW) == (NOW + 20 * SECOND, None, 0)


@pytest.mark.parametrize(("after_s", "gone"), [(14 * DAY_S - 1, False), (14 * DAY_S, True)])
def test_a_dead_letter_goes_seven_days_after_the_contracts_seven(queue: Queue, after_s: int, gone: bool) -> None:
    queue.install()
    queue.record("a")
    queue.bury(queue.begin()[0])
    week = 7 * DAY_S * SECOND
    due = purge(queue.connection, week, week, NOW + after_s * SECOND)
    assert due == (None if gone else NOW + 2 * week)
    assert queue.row("SELECT count(state) FROM delivery") == (0 if gone else 1,)
    assert queue.row("SELECT count(*) FROM attempt") == (0 if gone else 1,)


def test_a_letter_that_was_found_late_is_kept_seven_days_from_then(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    week = 7 * DAY_S * SECOND
    queue.now += 30 * DAY_S * SECOND
    attempts.expire(queue.connection, queue.now - week, queue.now)
    assert purge(queue.connection, week, week, queue.now) == queue.now + week


def test_r44_event_1001_is_a_gap_and_an_ack_frees_one_place(queue: Queue) -> None:
    """R44: the newest is refused and named (H7); another extension is not affected."""
    full, other = queue.install("full"), queue.install("other")
    recorded = [queue.record(f"s{number}") for number in range(1_000)]
    queue.settle(*map(Acked, queue.begin(other, free=1_000)))
    refused = [queue.record("one too many"), queue.record("and another")]

    assert [each.position for each in list_deliveries(queue.connection, full)] == recorded
    assert [each.position for each in list_deliveries(queue.connection, other)] == refused
    (gap,) = list_gaps(queue.connection)
    assert (gap.extension, gap.project, gap.reason) == ("full", "p", "capacity")
    assert (gap.first, gap.last, gap.count) == (*refused, 2)

    queue.settle(*map(Acked, queue.begin(full, free=1)))
    taken, refused_again = queue.record("later"), queue.record("too late")
    assert queue.row("SELECT max(position) FROM delivery WHERE extension = ?", full) == (taken,)
    assert [(each.first, each.last) for each in list_gaps(queue.connection, full)] == [
        (refused[0], refused[1]),
        (refused_again, refused_again),
    ]


def test_r44_dead_letters_take_no_place(queue: Queue) -> None:
    queue.install()
    queue.connection.execute("UPDATE policy SET capacity = 1")
    queue.record("a")
    queue.bury(queue.begin()[0])
    position = queue.record("b")
    assert queue.positions() == [position]
    assert list_gaps(queue.connection) == []


# ------------------------------------------------------------------------------------------------- what operators do


def test_r45_revoking_clears_that_project_of_that_extension_and_nothing_else(queue: Queue) -> None:
    acme, other = queue.install("acme", "p", "q"), queue.install("other", "p")
    in_p, dead_in_p, in_q = queue.record("a"), queue.record("b"), queue.record("c", project="q")
    queue.bury(queue.begin(acme)[1])
    assert extensions.revoke(queue.connection, "acme", "p", None) == Cleared(live=1, dead=1)
    assert [each.position for each in list_deliveries(queue.connection, acme)] == [in_q]
    assert [each.position for each in list_deliveries(queue.connection, other)] == [in_p, dead_in_p]
    assert extensions.find(queue.connection, "acme").generation == 2
    assert extensions.revoke(queue.connection, "acme", "p", None) == Cleared(0, 0)
    assert extensions.find(queue.connection, "acme").generation == 2


def test_r45_revoking_one_capability_leaves_the_other(queue: Queue) -> None:
    queue.install()
    _, job = queue.record("a"), queue.record("b", type=11)
    assert extensions.revoke(queue.connection, "acme", "p", "conversations.turns.read") == Cleared(live=1, dead=0)
    assert queue.positions() == [job]


@pytest.mark.parametrize("project", ["", "p" * 257, "a\nb"])
def test_what_no_session_can_have_as_its_project_is_not_granted(queue: Queue, project: str) -> None:
    queue.install()
    with pytest.raises(InvalidEvent, match="project"):
        extensions.grant(queue.connection, "acme", project, None, NOW)
    with pytest.raises(InvalidEvent, match="project"):
        extensions.install(queue.connection, installation("other"), [project], False, NOW)
    with pytest.raises(InvalidName, match="a list of projects"):
        extensions.install(queue.connection, installation("other"), "default", False, NOW)


def test_r46_r48_disabling_clears_and_enabling_backfills_nothing(queue: Queue) -> None:
    queue.install()
    queue.bury([queue.record("a"), *queue.begin()][1])  # type: ignore[arg-type]
    queue.record("b")
    (running,) = queue.begin()
    assert extensions.disable(queue.connection, "acme") == Cleared(live=1, dead=1)
    stopped = extensions.find(queue.connection, "acme")
    assert (stopped.state, stopped.live, stopped.cursor) == ("disabled", 0, running.position)
    assert queue.row("SELECT count(*) FROM attempt") == (0,)
    queue.record("b", turn="while it is disabled")
    enabled = extensions.enable(queue.connection, "test.acme")
    assert (enabled.state, enabled.live) == ("enabled", 0)
    assert enabled.cursor == queue.row("SELECT max(position) FROM log")[0]
    fresh = queue.record("b", turn="afterwards")
    assert queue.positions() == [fresh]
    assert queue.settle(Acked(running)) == 0  # an ACK of before is nobody's


def test_r47_uninstalling_clears_and_is_remembered(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    assert extensions.uninstall(queue.connection, "acme") == Cleared(live=1, dead=0)
    found = extensions.install(queue.connection, installation("acme"), ["p"], False, NOW)
    assert (found.state, found.grants, found.handlers) == ("uninstalled", (), {})
    with pytest.raises(InvalidName, match="was uninstalled; install it again"):
        extensions.enable(queue.connection, "acme")
    queue.record("a")
    again = extensions.install(queue.connection, installation("acme"), ["p"], True, NOW)
    assert (again.state, again.live, again.generation) == ("enabled", 0, 2)
    fresh = queue.record("a")
    assert queue.positions() == [fresh]


def test_r48_a_new_grant_starts_at_the_head(queue: Queue) -> None:
    queue.install()
    queue.record("a", project="q")
    extensions.grant(queue.connection, "acme", "q", None, NOW)
    fresh = queue.record("a", project="q")
    assert queue.positions() == [fresh]


def test_a_capability_that_was_not_asked_for_is_not_granted(queue: Queue) -> None:
    manifest = json.dumps({"permissions": [{"capability": "jobs.read", "scope": "project"}]})
    extensions.install(queue.connection, installation("jobs", manifest=manifest), ["p"], False, NOW)
    with pytest.raises(InvalidName, match="does not ask for it"):
        extensions.grant(queue.connection, "jobs", "p", "conversations.turns.read", NOW)
    assert [each.capability for each in extensions.find(queue.connection, "jobs").grants] == ["jobs.read"]


def test_a_paused_extension_keeps_its_queue_and_burns_no_attempts(queue: Queue) -> None:
    queue.install()
    first = queue.record("a")
    extensions.set_paused(queue.connection, "acme", True)
    second = queue.record("b")
    assert queue.begin() == []
    extensions.set_paused(queue.connection, "acme", False)
    assert [(each.position, each.number) for each in queue.begin()] == [(first, 1), (second, 1)]


def test_h10_a_new_extension_starts_at_the_head_and_a_known_one_goes_on(queue: Queue) -> None:
    for number in range(100):
        queue.record(f"s{number}")
    installed = extensions.install(queue.connection, installation("acme"), ["p"], False, NOW)
    assert (installed.live, installed.cursor) == (0, 100)
    position = queue.record("a")
    renewed = extensions.install(queue.connection, installation("acme", version="2.0.0"), ["other"], False, NOW)
    assert (renewed.version, renewed.live, renewed.generation) == ("2.0.0", 1, 1)
    assert {each.project for each in renewed.grants} == {"p"}  # afterwards the operator's word stands
    assert queue.positions() == [position]


def test_h10_two_folders_cannot_have_one_manifest_id(queue: Queue) -> None:
    queue.install()
    with pytest.raises(InvalidName, match=r"test\.acme is installed already, as acme"):
        extensions.install(queue.connection, installation("renamed", id="test.acme"), [], False, NOW)


def test_an_unknown_extension_is_named(queue: Queue) -> None:
    with pytest.raises(InvalidName, match="'acne': is not installed"):
        extensions.find(queue.connection, "acne")


def test_an_event_of_a_project_that_was_not_granted_is_nobodys(queue: Queue) -> None:
    queue.install()
    queue.record("a", project="q")
    assert queue.positions() == []


# ------------------------------------------------------------------------------------------- on a real file, and plans


async def test_a_turn_settles_and_begins_in_one_commit_and_hands_out_the_events(tmp_path: Path) -> None:
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=print)
        event = await it.turn("a", "t1")
        await it.turn("a", "t2")
        turn = await _turn(it)
        ((attempt, found),) = turn
        assert found == event
        assert [each.position for each in await it.live()] == [event.position, event.position + 1]
        ((second, _),) = await _turn(it, Acked(attempt))
        assert second.position == event.position + 1


async def _turn(it: Bench, *ended: attempts.Ended) -> list[tuple[Attempt, object]]:
    extension = (await it.extensions.find("acme")).key
    return list((await it.deliveries.turn(Asked(ended, [Want(extension, TYPES, 16)], it.worker._limits))).begun)


async def test_a_read_only_log_shows_the_queue_and_changes_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=print)
        first, second = await it.turn("a", "t1"), await it.turn("a", "t2")
        async with EventLog(it.log.path, read_only=True) as reader:
            listed = await Deliveries(reader.store).live()
            (extension,) = await Extensions(reader.store).all()
            gaps = await Deliveries(reader.store).gaps()
    assert [(each.event_id, each.waits_for, each.session_id) for each in listed] == [
        (first.id, None, "a"),
        (second.id, first.position, "a"),
    ]
    assert (extension.name, extension.live, extension.asks) == ("acme", 2, ("conversations.turns.read", "jobs.read"))
    assert gaps == []


async def test_the_policys_numbers_hold_while_no_worker_is_up(tmp_path: Path) -> None:
    async with bench(tmp_path, capacity=2) as it:
        await it.install(handler=print)
    async with EventLog(tmp_path / "agent.db") as log:
        await start(log, "a")
        for number in range(3):
            await complete_turn(log, "a", f"t{number}")
        (gap,) = await Deliveries(log.store).gaps()
        assert (gap.count, len(await Deliveries(log.store).live())) == (1, 2)


def plan(queue: Queue, sql: str, parameters: object) -> str:
    rows = queue.connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()  # type: ignore[arg-type]
    return "\n".join(str(row[3]) for row in rows)


NO_TABLE = ("SCAN CONSTANT ROW", "SCAN json_each")
BEGIN_PARAMETERS = {"owner": "", "extension": 1, "now": 0, "types": "[]", "busy": "[]", "free": 1, "crashed": "[]"}
HELD = (1, 1, "r", 1)


@pytest.mark.parametrize(
    ("sql", "parameters", "indexes"),
    [
        (attempts._BEGIN_IN_ORDER, BEGIN_PARAMETERS, ["delivery_due", "delivery_lane", "PRIMARY KEY"]),
        (attempts._ACK, ("[]",), ["PRIMARY KEY"]),
        (attempts._RETRY, (0, "", *HELD), ["PRIMARY KEY"]),
        (attempts._BURY, ("", 0, "", 0, *HELD), ["PRIMARY KEY"]),
        (attempts._CUT_SHORT, (0, *HELD), ["PRIMARY KEY"]),
        (attempts._EXPIRE, (0, 0), ["delivery_age"]),
        (attempts._AHEAD, {"extensions": "[]", "now": 0, "expired": 0}, ["delivery_due", "delivery_age"]),
        (buried._PURGE, (0, 0), ["delivery_dead"]),
    ],
)
def test_what_every_turn_runs_finds_its_rows_by_an_index(
    queue: Queue, sql: str, parameters: object, indexes: list[str]
) -> None:
    found = plan(queue, sql, parameters)
    assert [line for line in found.splitlines() if line.startswith("SCAN") and not line.startswith(NO_TABLE)] == []
    assert "TEMP B-TREE" not in found
    for index in indexes:
        assert index in found


def test_a_filter_of_dead_letters_is_bound_and_never_spliced(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    queue.bury(queue.begin()[0])
    assert buried.list_letters(queue.connection, Filter(reason="' OR 1 = 1 --")) == []
