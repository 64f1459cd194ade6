"""What ends the right to write, for good: a rule of the log that does not hold, a lock that is not ours any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.errors import BrokenInvariant, LogInUse, OwnershipLost, StoreError
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store import extensions
from eventlog.store.events import Events
from tests.extension_kit import Recorder, bench, complete_turn, installation
from tests.log_kit import all_of, child, indexes, line_of, tell_child, whole
from tests.test_owner import OWNER

Break = Callable[[sqlite3.Connection], object]


def install(connection: sqlite3.Connection) -> None:
    extensions.install(connection, installation("acme"), ["p"], False, 0)


# ------------------------------------------------------------------------------------------------- rules of the log

DELIVER_AGAIN = """
    INSERT INTO delivery (extension, place, state, position, session, project, type, attempts, spent, due_at,
                          recorded_at, generation)
    SELECT 1, 9, 'pending', position, session, 'p', 7, 0, 0, 0, 0, 1 FROM log WHERE type = 7 ORDER BY position LIMIT 1
"""


def follow_nothing(connection: sqlite3.Connection, events: Events) -> None:
    head = next(iter(events.unabsorbed.values()))
    events.note(head, head.next_index + 1, events.position + 1, 1, 0)


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda connection: connection.execute(DELIVER_AGAIN), "a delivery is made with its event and never again"),
        (lambda connection: connection.execute("UPDATE extension SET generation = 0"), "generation"),
        (lambda connection: connection.execute("INSERT INTO log SELECT * FROM log LIMIT 1"), "log.position"),
    ],
)
async def test_nothing_more_is_written_after_a_rule_of_the_log_was_broken(
    tmp_path: Path, break_it: Break, told: str
) -> None:
    """The unit leaves nothing, whoever writes next is told the same, reading goes on, and the next owner writes."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        await log.store.write(install)
        await complete_turn(log, "a", "t1")
        await complete_turn(log, "a", "t2")
        with pytest.raises(BrokenInvariant, match=told):
            await log.store.write(break_it)
        for _ in range(2):
            with pytest.raises(BrokenInvariant, match=told):
                await complete_turn(log, "a", "t3")
            with pytest.raises(BrokenInvariant, match=told):
                await log.store.write(install)
        assert indexes(await all_of((await log.session("a")).read())) == [0, 1, 2]
    async with EventLog(path) as log:
        await complete_turn(log, "a", "t3")
        await whole(log)


async def test_an_index_that_does_not_follow_ends_it_too(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("a")
        with pytest.raises(BrokenInvariant, match="index 2 does not follow 1"):
            await log.store.with_writer(follow_nothing)
        with pytest.raises(BrokenInvariant, match="index 2 does not follow 1"):
            await session.append("own.type", {})


async def test_what_is_only_refused_ends_nothing(tmp_path: Path) -> None:
    """A constraint that what somebody gave does not meet is no rule of the log."""
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(StoreError, match="CHECK"):
            await log.store.write(lambda connection: connection.execute("UPDATE policy SET capacity = 0"))
        await log.start_session("a")


async def test_deliveries_stop_with_the_writer_and_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Recorder()
    async with bench(tmp_path) as it:
        await it.install(handler=handler)
        await it.worker.idle()
        with pytest.raises(BrokenInvariant):
            await it.log.store.write(lambda connection: connection.execute("UPDATE extension SET generation = 0"))
        await it.worker.idle()
        await it.worker.idle()
    said = [record.message for record in caplog.records if record.levelname == "CRITICAL"]
    assert [message.partition(":")[0] for message in said] == [
        "nothing more is written",
        "nothing is delivered any more",
    ]


# --------------------------------------------------------------------------------------------------------- the lock


async def test_an_owner_whose_lock_file_was_removed_stops_when_another_one_writes(tmp_path: Path) -> None:
    """It is told who that is, for good; nothing is lost, and the other one goes on."""
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("a")
        lock = Path(f"{path}.lock")
        lock.unlink()
        with child(OWNER, path) as other:
            assert line_of(other) == "open"
            for _ in range(2):
                with pytest.raises(LogInUse, match=f"lock file was removed .* process {other.pid} ") as caught:
                    await session.append("own.type", {})
                assert isinstance(caught.value, OwnershipLost)
                assert caught.value.pid == other.pid
            assert len(await all_of(log.read())) == 3
            tell_child(other)
            assert other.wait() == 0
        with pytest.raises(OwnershipLost):
            await log.start_session("b")
    assert lock.exists()
    async with EventLog(path) as log:
        await log.start_session("b")
        await whole(log)


@pytest.mark.parametrize("replaced", [False, True])
async def test_an_owner_whose_lock_file_was_removed_notices_at_its_next_checkpoint(
    tmp_path: Path, replaced: bool
) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("a")
        lock = Path(f"{path}.lock")
        lock.unlink()
        if replaced:
            lock.touch()
        with pytest.raises(OwnershipLost, match="another process may write it now"):
            await append_megabytes(session, 20)
        assert (await log.session_info("a")).next_index < 20


async def append_megabytes(session: Session, count: int) -> None:
    """So much that the writer makes a checkpoint on the way."""
    for _ in range(count):
        await session.append("own.type", {"text": "x" * 1_000_000})
