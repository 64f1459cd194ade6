"""Migrating, rebuilding, pruning, forgetting, copying, vacuuming and importing, cut short at any system call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log_kit import NO_INJECTION, can_inject
from tests.torture import caring
from tests.torture.counts import Counts
from tests.torture.tally import Tally

SEED = 20_261_130

pytestmark = pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)


@pytest.mark.faults
async def test_whatever_cuts_care_short_leaves_the_old_or_the_new_and_the_same_again_ends_it(
    memory: Path, counts: Counts
) -> None:
    """A kill at a write, sync, cut, unlink or link, and a power cut; the long form is `make torture ARGS=care`."""
    tally = Tally("care", SEED)
    await caring.cut_short(tally, memory, counts.care_cuts)
    tally.assert_held()
    assert tally.count == counts.care_cuts
    states = ("old", "between", "new")
    assert min(sum(tally.seen[f"{what}: {state}"] for what in caring.WORKS) for state in states) >= tally.count // 40


@pytest.mark.parametrize(("what", "op"), [("backup", "name"), ("forget", "sync")])
async def test_a_work_that_did_not_do_what_it_says_would_be_found_out(memory: Path, what: str, op: str) -> None:
    """A backup that never gets its name, and tombstones that are never synced."""
    work = await caring.recorded(what, memory / what)
    tally = Tally("care", SEED)
    await caring.cut(work._replace(ops=[each for each in work.ops if each.what != op]), tally, memory / "left", 40)
    assert tally.breaches
