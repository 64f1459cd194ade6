"""How often faults are tried: what a change must stand is not made less by chance."""

from __future__ import annotations

import re

from tests.log_kit import CHECKOUT
from tests.torture import parts
from tests.torture.counts import CI, LONG, QUICK, Counts

ALL = float("inf")


def test_what_a_change_must_stand_is_this_much() -> None:
    assert (
        Counts(
            kills=200,
            kills_in_each_phase=20,
            hook_kills=200,
            append_kills=200,
            care_kills=10,
            care_cuts=800,
            kill_points_appends=12,
            injected_kills=60,
            power_cuts=2_500,
            power_cut_appends=120,
            io_errors=100,
            cancellations=2_000,
            schedules=5_000,
            threads=200,
            machines=150,
            machine_steps=40,
            queue_machines=80,
            projection_machines=20,
            removals=40,
            full_disks=20,
            sessions=10_000,
            events=200_000,
            tails=1_000,
            flipped_bits=500,
            crowds=8,
            file_kills=100,
            fold_kills=24,
            cuts=1_000,
            server_kills=5,
            every=1,
        )
        == CI
    )


def test_a_long_run_tries_everything_at_least_as_often_and_a_quick_one_tries_everything() -> None:
    for name, quick, ci, long in zip(Counts._fields, QUICK, CI, LONG, strict=True):
        assert name == "every" or (quick or 0) <= (ci or 0) <= (ALL if long is None else long), name
        assert quick or name == "kills_in_each_phase"
    assert (LONG.sessions, LONG.events, LONG.tails) == (10_000, 1_000_000, 1_000)


def test_make_faults_asks_for_these_counts_and_make_torture_for_the_long_ones() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    (recipe,) = re.findall(r"^faults:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "-m faults --counts ci" in recipe
    assert re.search(r"^check: .*\btest faults\b", makefile, re.MULTILINE)
    assert {part.long_run for part in parts.PARTS.values()} <= {*LONG}
