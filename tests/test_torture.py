"""Everything that `make torture` tries, as often as --counts says: nothing lost, nothing twice, nothing in disorder."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.log_kit import NO_INJECTION, can_inject
from tests.torture import cancelling, endurance, face, fulldisk, parts, powercut, removing, schedules
from tests.torture.counts import QUICK, Counts
from tests.torture.disk import Disk
from tests.torture.strace import Op
from tests.torture.tally import Tally

SEED = 20_261_130
SHARES = 4
"""The schedules are tried in so many tests, for as many processors."""
CALLS_OF_EVERY_APPEND = ("write agent.db", "write agent.db-wal", "sync agent.db-wal")


needs_strace = pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)


@pytest.mark.faults
@needs_strace
async def test_a_power_cut_at_any_operation_takes_nothing_that_was_promised(memory: Path, counts: Counts) -> None:
    """FULL: what was acknowledged is there. NORMAL: a beginning of the log is. The check finds nothing."""
    tally = Tally("power-cut", SEED)
    await parts.power_cut(tally, memory, counts.power_cuts, appends=counts.power_cut_appends)
    tally.assert_held()
    assert tally.count == counts.power_cuts
    assert tally.seen["an acknowledged event is gone, as durability='process' says"] > 0


@pytest.mark.faults
@needs_strace
async def test_a_kill_at_any_system_call_of_appends_with_deliveries_loses_nothing(memory: Path, counts: Counts) -> None:
    """D4, H2: at each write, sync, cut and unlink from the opening to the close, checkpoints and absorbing too."""
    tally = Tally("kill-points", SEED)
    await parts.kill_points(tally, memory, None, appends=counts.kill_points_appends)
    tally.assert_held()
    assert min(tally.seen[f"behind {what}"] for what in CALLS_OF_EVERY_APPEND) >= counts.kill_points_appends


@pytest.mark.faults
@needs_strace
async def test_a_process_that_is_killed_at_a_system_call_loses_nothing(memory: Path, counts: Counts) -> None:
    """The same with real processes, at some of the calls."""
    tally = Tally("injected-kills", SEED)
    await parts.injected_kills(tally, memory, counts.injected_kills, appends=counts.kill_points_appends)
    tally.assert_held()
    assert sum(tried for what, tried in tally.tried.items() if what.startswith("kill at")) == counts.injected_kills


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


@pytest.mark.faults
@needs_strace
async def test_the_n_th_failing_system_call_is_a_typed_error_or_nothing_at_all(memory: Path, counts: Counts) -> None:
    """EIO and ENOSPC, once and for ever: no wrong answer, the same key makes one event, the log goes on or says why."""
    tally = Tally("io-errors", SEED)
    await parts.io_errors(tally, memory, counts.io_errors)
    tally.assert_held()
    assert sum(tried for what, tried in tally.tried.items() if "fails" in what) == counts.io_errors


@pytest.mark.faults
@pytest.mark.parametrize("share", range(SHARES))
def test_no_schedule_loses_an_event_or_a_wake_up(memory: Path, counts: Counts, share: int) -> None:
    """F1, F5, G3, H4: appends, tails, hooks, deliveries, imports, full disks and closes, on a loop with a seed."""
    tally = Tally("schedules", SEED + share * counts.schedules)
    schedules.explore(tally, memory, counts.schedules // SHARES)
    tally.assert_held()
    assert tally.count >= counts.schedules // SHARES


@pytest.mark.faults
def test_no_order_of_threads_loses_an_event_or_a_wake_up(memory: Path, counts: Counts) -> None:
    """The same with the threads of the machine, which change places as often as they can."""
    tally = Tally("threads", SEED)
    schedules.explore(tally, memory, counts.threads, threads=True)
    tally.assert_held()


@pytest.mark.faults
async def test_whatever_is_cancelled_is_wholly_there_or_wholly_absent(memory: Path, counts: Counts) -> None:
    """After 0 to 60 turns of the loop: no transaction stays open, and the next append takes less than a second."""
    tally = Tally("cancel", SEED)
    await cancelling.cancel_everywhere(tally, memory, counts.cancellations)
    tally.assert_held()
    assert tally.count >= counts.cancellations


@pytest.mark.faults
def test_the_log_is_equal_to_a_list_whatever_is_done_in_whatever_order(memory: Path, counts: Counts) -> None:
    """Every way to write and to read, kills and reopenings between."""
    tally = Tally("model", SEED)
    face.explore(tally, memory, counts.machines, counts.machine_steps)
    tally.assert_held()
    assert tally.tried["machines"] >= counts.machines
    assert tally.tried["steps"] > counts.machines * counts.machine_steps // 2


@pytest.mark.faults
async def test_a_disk_that_is_full_again_and_again_loses_nothing_and_is_used_when_it_has_room(
    memory: Path, counts: Counts
) -> None:
    """Reading and following go on; appends resume within a second of room, without another opening."""
    tally = Tally("full-disk", SEED)
    await fulldisk.fill_up(tally, memory, counts.full_disks)
    tally.assert_held()


@pytest.mark.faults
async def test_nothing_grows_while_sessions_come_and_go(memory: Path, counts: Counts) -> None:
    """Memory, descriptors, the WAL, and in a run of some length p99: tails, pruning and backups beside the appends."""
    tally = Tally("long", SEED)
    await endurance.endure(tally, memory, counts.events, counts.sessions, counts.tails, timed=counts != QUICK)
    tally.assert_held()
    assert tally.count >= counts.events
    assert tally.seen["tails that waited at the end"] >= counts.tails * 9 // 10


@pytest.mark.faults
async def test_what_pruning_and_forgetting_leave_is_whole_while_appends_go_on(memory: Path, counts: Counts) -> None:
    """Sessions end, are removed, and are appended to again: no index twice, and the check finds nothing."""
    tally = Tally("removing", SEED)
    await removing.remove_and_append(tally, memory, counts.removals)
    tally.assert_held()
    assert tally.seen["events pruned"] > 0
