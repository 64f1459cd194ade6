"""Everything that `make torture` tries, for a few seconds each: nothing lost, nothing twice, nothing in disorder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tests.log_kit import NO_INJECTION, can_inject
from tests.torture import cancelling, endurance, fulldisk, model, parts, powercut, removing, schedules
from tests.torture.disk import Disk
from tests.torture.strace import Op
from tests.torture.tally import Tally

SEED = 20_261_130


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where a disk that is only replayed takes no time."""
    if not (shared := Path("/dev/shm")).is_dir():  # noqa: S108 (the folder in it has a name of its own)
        yield tmp_path
        return
    with TemporaryDirectory(dir=shared, prefix="eventlog-torture-") as folder:
        yield Path(folder)


needs_strace = pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)


@needs_strace
async def test_a_power_cut_at_any_operation_takes_nothing_that_was_promised(memory: Path) -> None:
    """FULL: what was acknowledged is there. NORMAL: a beginning of the log is. The check finds nothing."""
    tally = Tally("power-cut", SEED)
    await parts.power_cut(tally, memory, 400, appends=30)
    tally.assert_held()
    assert tally.count == 400
    assert tally.seen["an acknowledged event is gone, as durability='process' says"] > 0


@needs_strace
async def test_a_kill_at_any_system_call_of_twelve_appends_with_deliveries_loses_nothing(memory: Path) -> None:
    """D4, H2: at each write, sync, cut and unlink from the opening to the close, checkpoints and absorbing too."""
    tally = Tally("kill-points", SEED)
    await parts.kill_points(tally, memory, None, appends=12)
    tally.assert_held()
    assert (
        min(tally.seen[f"behind {what}"] for what in ("write agent.db", "write agent.db-wal", "sync agent.db-wal"))
        >= 20
    )


@needs_strace
async def test_the_power_cut_would_notice_a_promise_that_is_not_kept(memory: Path) -> None:
    """What is held to "full" and only does what "process" does is found out."""
    recording = await powercut.recorded(memory / "recorded", "process", 12)
    tally = Tally("power-cut", SEED)
    await powercut.cut(recording._replace(durability="full"), tally, memory / "left", 100, fates=("dropped",))
    assert any("were acknowledged and are lost" in breach for breach in tally.breaches)


def test_a_power_cut_leaves_what_was_synced_and_of_the_rest_what_chance_says() -> None:
    disk, name = Disk(), "/d/file"
    for op in (
        Op("create", name),
        Op("write", name, 0, b"a" * 2_000),
        Op("sync", name),
        Op("write", name, 0, b"b" * 2_000),
    ):
        disk.do(op)
    assert disk.after("dropped", Random(1)) == {}  # nobody has synced its name
    assert disk.after("kept", Random(1)) == {name: b"b" * 2_000}
    disk.do(Op("sync", "/d"))
    assert disk.after("dropped", Random(1)) == {name: b"a" * 2_000}
    torn = {disk.after("torn", Random(seed))[name] for seed in range(100)}
    assert {content.count(b"b") % 512 for content in torn} <= {0, 2_000 % 512}
    assert len(torn) > 4
    disk.do(Op("remove", name))
    assert disk.after("dropped", Random(1)) == {name: b"a" * 2_000}
    assert disk.after("kept", Random(1)) == {}


@needs_strace
async def test_the_n_th_failing_system_call_is_a_typed_error_or_nothing_at_all(memory: Path) -> None:
    """EIO and ENOSPC, once and for ever: no wrong answer, the same key makes one event, the log goes on or says why."""
    tally = Tally("io-errors", SEED)
    await parts.io_errors(tally, memory, 60)
    tally.assert_held()
    assert sum(tried for what, tried in tally.tried.items() if "fails" in what) >= 30


def test_no_schedule_loses_an_event_or_a_wake_up(memory: Path) -> None:
    """F1, F5, G3, H4: appends, tails, hooks, deliveries, imports, full disks and closes, on a loop with a seed."""
    tally = Tally("schedules", SEED)
    schedules.explore(tally, memory, 500)
    tally.assert_held()


async def test_whatever_is_cancelled_is_wholly_there_or_wholly_absent(memory: Path) -> None:
    """After 0 to 60 turns of the loop: no transaction stays open, and the next append takes less than a second."""
    tally = Tally("cancel", SEED)
    await cancelling.cancel_everywhere(tally, memory, 1_500)
    tally.assert_held()


def test_the_log_is_equal_to_a_list_whatever_is_done_in_whatever_order(memory: Path) -> None:
    """Every way to write and to read, kills and reopenings between: 40 machines of 40 steps."""
    tally = Tally("model", SEED)
    model.explore(tally, memory, 40)
    tally.assert_held()
    assert tally.tried["steps"] > 800


async def test_a_disk_that_is_full_again_and_again_loses_nothing_and_is_used_when_it_has_room(memory: Path) -> None:
    """Reading and following go on; appends resume within a second of room, without another opening."""
    tally = Tally("full-disk", SEED)
    await fulldisk.fill_up(tally, memory, 10)
    tally.assert_held()


async def test_nothing_grows_while_sessions_come_and_go(memory: Path) -> None:
    """Memory, descriptors, the WAL: with tails, pruning and backups beside the appends. Time is no test."""
    tally = Tally("long", SEED)
    await endurance.endure(tally, memory, 20_000, timed=False)
    tally.assert_held()


async def test_what_pruning_and_forgetting_leave_is_whole_while_appends_go_on(memory: Path) -> None:
    """Sessions end, are removed, and are appended to again: no index twice, and the check finds nothing."""
    tally = Tally("removing", SEED)
    await removing.remove_and_append(tally, memory, 12)
    tally.assert_held()
    assert tally.seen["events pruned"] > 0
