"""What a delivery costs the file: rows that change, statements, and how each statement finds its rows."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog.events import NewEvent
from eventlog.store import attempts, buried, extensions
from eventlog.store.attempts import Acked, Want
from eventlog.store.deliveries import list_gaps
from eventlog.store.writer import CHECKPOINT_PAGES, PAGE_BYTES
from tests.extension_kit import BOTH, DAY_S, Bench, Recorder, bench, start
from tests.test_deliveries import SCHEMA, SECOND, Queue

# ----------------------------------------------------------------------------------------------------- rows changed


async def count_changes(it: Bench) -> Counter[str]:
    """Count from now on, by triggers on the writer's own connection, each row of the queue's tables that changes."""
    found: Counter[str] = Counter()

    def watch(connection: sqlite3.Connection) -> None:
        connection.create_function("changed", 1, lambda what: found.update([what]))
        for table in ("delivery", "attempt", "delivery_gap", "extension"):
            for what in ("INSERT", "UPDATE", "DELETE"):
                connection.execute(
                    f"CREATE TEMP TRIGGER {table}_{what} AFTER {what} ON main.{table}"
                    f" BEGIN SELECT changed('{table} {what}'); END"
                )

    await it.log.store.write(watch)
    return found


async def one_at_a_time(it: Bench) -> int:
    for number in range(20):
        await it.turn("s0", f"t{number}")
        await it.worker.idle()
    return 20


async def at_full_speed(it: Bench) -> int:
    async def talk(session_id: str) -> None:
        for number in range(10):
            await it.turn(session_id, f"t{number}")

    await asyncio.gather(*[talk(f"s{number}") for number in range(20)])
    await it.worker.idle()
    return 200


@pytest.mark.parametrize("work", [one_at_a_time, at_full_speed])
async def test_a_delivery_that_succeeds_at_once_costs_three_row_changes(
    tmp_path: Path, work: Callable[[Bench], Awaitable[int]]
) -> None:
    """Counted by triggers and by SQLite itself: it takes a place, is begun, and leaves it; nothing else is written."""
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder())
        for number in range(20):
            await start(it.log, f"s{number}")
        await it.worker.idle()
        found = await count_changes(it)
        before = await it.log.store.write(lambda connection: connection.total_changes)
        deliveries = await work(it)
        total = await it.log.store.write(lambda connection: connection.total_changes) - before
        assert await it.live() == []
    assert found["delivery INSERT"] + found["delivery UPDATE"] == sum(found.values()) == 3 * deliveries
    assert total == (3 + 2) * deliveries  # and the event, and its turn's version


async def test_only_failures_leave_attempt_rows_and_an_ack_takes_them_along(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(None, ValueError("one"), ValueError("two")))
        found = await count_changes(it)
        await it.turn("a", "t1")
        await it.worker.idle()
        assert not [what for what in found if what.startswith("attempt")]
        await it.turn("a", "t2")
        await it.worker.idle()
        await it.pass_time(6)
        assert (found["attempt INSERT"], found["attempt DELETE"]) == (2, 0)
        await it.pass_time(24)
        assert await it.live() == []
    assert (found["attempt INSERT"], found["attempt DELETE"]) == (2, 2)
    # The second takes the place of the first one, is begun three times, fails twice and leaves it.
    assert found["delivery UPDATE"] == 2 + 7


# ------------------------------------------------------------------------------------------------------- statements


@asynccontextmanager
async def traced(it: Bench) -> AsyncIterator[dict[str, None]]:
    """The statements that the writer's connection runs in the block, each text once.

    A statement runs a trigger's program once a row, which a trace shows as the same text again; a statement per
    event would show as a text of its own, with the event's values in it.
    """
    seen: dict[str, None] = {}

    def note(sql: str) -> None:
        if not sql.startswith("--"):
            seen[" ".join(sql.split())] = None

    await it.log.store.write(lambda connection: connection.set_trace_callback(note))
    yield seen
    await it.log.store.write(lambda connection: connection.set_trace_callback(None))


async def test_a_turn_of_the_queue_runs_as_many_statements_for_sixteen_deliveries_as_for_one(tmp_path: Path) -> None:
    counts: dict[int, tuple[int, int]] = {}
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=Recorder())
        for lanes in (16, 1, 16):  # the first round learns the names of the sessions, once for all
            for number in range(lanes):
                await it.turn(f"s{number}", "t")
            async with traced(it) as begin:
                assert len((await it.worker.run_once()).begun) == lanes
            while it.worker.running:
                await asyncio.sleep(0)
            async with traced(it) as settle:
                assert (await it.worker.run_once()).settled == lanes
            counts[lanes] = (len(begin), len(settle))
        assert await it.live() == []
    assert counts[16] == counts[1]
    assert max(counts[1]) <= 16
    print(f"statements of a turn that begins: {counts[1][0]}, that settles: {counts[1][1]}")


async def test_a_group_of_turns_becomes_deliveries_in_the_one_statement_that_records_them(tmp_path: Path) -> None:
    async with bench(tmp_path, start=False) as it:
        await it.install("one", handler=Recorder())
        await it.install("two", handler=Recorder())
        await start(it.log, "a")
        session = await it.log.session("a")
        async with traced(it) as statements:
            await session.append_many([NewEvent("turn.completed", {}, turn_id=f"t{number}") for number in range(64)])
        assert len(await it.live()) == 128
    inserts = [sql for sql in statements if sql.startswith("INSERT INTO log")]
    assert [sql for sql in statements if "delivery" in sql or sql.startswith("INSERT")] == inserts
    assert len(inserts) == 1


# ------------------------------------------------------------------------------------------------------------- plans

PLAN = re.compile(r"(SEARCH|SCAN) (\w+)(?: USING (?:COVERING )?(?:INDEX )?(\w+))?")
SMALL = {"gate", "policy", "CONSTANT"}  # of one row at most


def steps(connection: sqlite3.Connection, sql: str) -> set[str]:
    """How a statement finds its rows, without lists that are bound to it and tables of one row."""
    count = sql.count("?")
    parameters: Any = [None] * count if count else dict.fromkeys(re.findall(r":(\w+)", sql))
    found = set[str]()
    for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters):
        matched = PLAN.match(detail)
        if matched and matched[2] != "json_each" and matched[2] not in SMALL:
            found.add(" ".join(filter(None, matched.groups())))
        elif "TEMP B-TREE" in detail:
            found.add("sorts")
    return found


BY_PLACE = {"SEARCH delivery PRIMARY"}
ROOM = {"SEARCH e INTEGER", "SEARCH delivery delivery_free", "SEARCH delivery PRIMARY", "SEARCH delivery delivery_lane"}
PLANS: dict[str, tuple[str, set[str]]] = {
    "due": (attempts._BEGIN_IN_ORDER, {*BY_PLACE, "SEARCH d delivery_due", "SEARCH earlier delivery_lane"}),
    "due, after a crash": (
        attempts._BEGIN_CRASHED_FIRST,
        {*BY_PLACE, "SEARCH d delivery_due", "SEARCH earlier delivery_lane", "sorts"},
    ),
    # Of the extensions, which are few; and it ends with the first live delivery of each.
    "runnable": (attempts._RUNNABLE, {"SCAN e", "SEARCH delivery delivery_lane"}),
    "crashed lanes": (attempts._CRASHED_LANES, {"SEARCH a PRIMARY", "SEARCH d PRIMARY"}),
    "ahead": (
        attempts._AHEAD,
        {"SEARCH e", "SEARCH delivery delivery_due", "SEARCH delivery delivery_age", "SEARCH delivery_gap"},
    ),
    "settle: ack": (attempts._ACK, BY_PLACE),
    "settle: retry": (attempts._RETRY, BY_PLACE),
    "settle: bury": (attempts._BURY, BY_PLACE),
    "settle: cut short": (attempts._CUT_SHORT, BY_PLACE),
    "sweep: expire": (attempts._EXPIRE, {"SEARCH delivery delivery_age"}),
    "sweep: purge": (buried._PURGE, {"SEARCH delivery delivery_dead"}),
    "sweep: given back": (attempts._GIVE_BACK, {"SEARCH delivery delivery_lane"}),
    "retry": (buried._RETRY, {*BY_PLACE, *ROOM, "SEARCH extension INTEGER"}),
    # The eras of a file are few, and looked at only for a letter that is asked for by its id.
    "retry: the next": (
        buried._CANDIDATES,
        {"SEARCH e INTEGER", "SEARCH d PRIMARY", "SEARCH g PRIMARY", "SCAN era", "sorts"},
    ),
    # Of that index, which holds what is live and nothing else: a capacity for each extension at most.
    "start: attempts of the dead": (attempts._CRASHED, {"SCAN delivery delivery_lane"}),
    "start: take up": (attempts._TAKE_UP, {"SCAN delivery delivery_lane"}),
    "start: clock ahead": (attempts._OF_A_CLOCK_AHEAD, {"SEARCH delivery delivery_age"}),
}


@pytest.fixture
def queue() -> Iterator[Queue]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.executescript(SCHEMA)
    yield Queue(connection)
    connection.close()


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_of_each_statement_of_the_queue_is_pinned(queue: Queue, name: str) -> None:
    sql, expected = PLANS[name]
    assert steps(queue.connection, sql) == expected


@pytest.mark.parametrize(("trigger", "statements"), [("log_makes_deliveries", 2), ("delivery_ends_gap", 1)])
def test_recording_a_durable_event_scans_nothing(queue: Queue, trigger: str, statements: int) -> None:
    """The trigger's own statements, with an event's values in the place of NEW."""
    body = re.search(rf"CREATE TRIGGER {trigger} .*?\nBEGIN\n(.*?)\nEND;", SCHEMA, re.DOTALL)
    assert body
    text = re.sub(r"NEW\.\w+", "1", body[1])
    found = [steps(queue.connection, statement) for statement in text.split(";") if statement.strip()]
    assert len(found) == statements
    assert not {step for each in found for step in each if not step.startswith("SEARCH")}


# ---------------------------------------------------------------------------------------- what others in the queue cost


@contextmanager
def counting(queue: Queue, at_once: int) -> Iterator[list[int]]:
    """Count SQLite's own steps in the block, so many at once."""
    steps = [0]

    def count() -> None:
        steps[0] += 1

    queue.connection.set_progress_handler(count, at_once)
    yield steps
    queue.connection.set_progress_handler(None, 0)


def steps_of_a_turn(queue: Queue, extension: int) -> int:
    """What it takes to look for what is too old, due and next, when nothing is."""
    oldest_us, wants = queue.now - 7 * DAY_S * SECOND, [Want(extension, tuple(BOTH), 16)]
    with counting(queue, at_once=1) as steps:
        assert attempts.expire(queue.connection, oldest_us, queue.now) == []
        for ready in attempts.runnable(queue.connection, wants):
            assert attempts.begin(queue.connection, "era.1.", ready, [], queue.now) == []
        attempts.look_ahead(queue.connection, wants, queue.now, oldest_us)
    return steps[0]


def steps_of_an_event(queue: Queue) -> int:
    """What it takes to record a durable event, in hundreds."""
    with counting(queue, at_once=100) as steps:
        queue.record("a")
    return steps[0]


def test_a_turn_costs_the_same_with_a_thousand_in_back_off_and_a_thousand_dead_letters(queue: Queue) -> None:
    acme = queue.install()
    queue.record("first")
    queue.fail(queue.begin(acme)[0], after_s=60)
    alone = steps_of_a_turn(queue, acme)
    queue.connection.execute("UPDATE policy SET capacity = 10000")
    for number in range(1_000):
        queue.record(f"waits {number}")
        queue.record(f"dies {number}")
        waits, dies = queue.begin(acme)
        queue.fail(waits, after_s=60)
        queue.bury(dies)
    assert extensions.find(queue.connection, "acme").live == 1_001
    assert steps_of_a_turn(queue, acme) == alone


def test_a_durable_event_costs_the_same_with_a_thousand_gaps(queue: Queue) -> None:
    queue.install()
    queue.record("a")
    before = steps_of_an_event(queue)
    queue.connection.executemany(
        "INSERT INTO delivery_gap (extension, project, reason, first, last, count, at)"
        " VALUES (1, 'p', 'capacity', ?, ?, 1, 0)",
        [(-number, -number) for number in range(1_000)],
    )
    assert steps_of_an_event(queue) <= before + 1


def test_r44_whether_there_is_room_costs_the_same_however_long_the_queue_is_and_wherever_its_places_are_free(
    queue: Queue,
) -> None:
    acme = queue.install()
    stuck = queue.record("stuck")
    empty = steps_of_an_event(queue)
    for _ in range(997):
        queue.record("a")
    last_place = steps_of_an_event(queue)
    assert extensions.find(queue.connection, "acme").live == 1_000
    refused = steps_of_an_event(queue)
    for attempt in queue.begin(acme):
        if attempt.position != stuck:
            queue.settle(Acked(attempt))
    freed_place = steps_of_an_event(queue)
    assert extensions.find(queue.connection, "acme").live == 1_000
    queue.record("a")
    assert [gap.count for gap in list_gaps(queue.connection)] == [1, 1]
    assert max(last_place, refused, freed_place) <= empty + 3  # one opens a gap, one closes it


def test_r44_a_queue_whose_capacity_was_lowered_under_it_takes_an_event_when_less_than_that_is_live(
    queue: Queue,
) -> None:
    """It is counted until a start finds its last places free; then it costs again what an empty one does."""
    acme = queue.install()
    empty = steps_of_an_event(queue)
    for number in range(999):
        queue.record(f"s{number}")
    queue.connection.execute("UPDATE policy SET capacity = 500")
    begun = queue.begin(acme, free=600)
    queue.settle(*map(Acked, begun[:499]))
    queue.record("is one too many")
    assert extensions.find(queue.connection, "acme").live == 501
    queue.settle(*map(Acked, begun[499:501]))
    assert steps_of_an_event(queue) > empty + 10
    assert (extensions.find(queue.connection, "acme").live, len(list_gaps(queue.connection))) == (500, 1)
    queue.record("is one too many")
    assert (extensions.find(queue.connection, "acme").live, len(list_gaps(queue.connection))) == (500, 2)
    queue.settle(*map(Acked, queue.begin(acme, free=1_000)))
    queue.settle(*map(Acked, begun[501:]))
    queue.connection.execute("UPDATE policy SET capacity = capacity")
    assert queue.row("SELECT count(*) FROM delivery") == (0,)
    assert steps_of_an_event(queue) <= empty + 3  # it closes a gap


# --------------------------------------------------------------------------------------------------------- the WAL


async def test_deliveries_count_for_the_next_checkpoint_as_appends_do(tmp_path: Path) -> None:
    """Their commits write more pages than the events themselves: the WAL grew ten times beyond its bound."""
    async with bench(tmp_path, capacity=100_000) as it:
        for number in range(5):
            await it.install(f"ext{number}", handler=Recorder())

        async def talk(session_id: str) -> None:
            for number in range(40):
                await it.turn(session_id, f"t{number}")

        await asyncio.gather(*[talk(f"s{number}") for number in range(50)])
        await it.worker.idle()
        wal_bytes = Path(f"{it.log.path}-wal").stat().st_size
    assert wal_bytes < 1.5 * CHECKPOINT_PAGES * PAGE_BYTES
