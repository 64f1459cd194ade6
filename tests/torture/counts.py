"""How often each fault is tried: a taste by a plain `pytest`, what a change must stand by `make faults`, hours of it by
`make torture`. Nothing else says how often.
"""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """The numbers of one run; None is all that there is."""

    kills: int
    """SIGKILLs of a server with a hook, five extensions and fifty conversations, at random."""
    kills_in_each_phase: int
    """At least so many of them fell into an append, a handler, between return and ACK, absorbing, a checkpoint."""
    hook_kills: int
    """Of a server with six hooks and a channel."""
    append_kills: int
    """Of a process that does nothing but append."""
    care_kills: int
    """In pruning, in forgetting, in a backup, in each kind of vacuum."""
    care_cuts: int | None
    """Kills and power cuts in care for the file, its migrations, rebuilds and imports too."""
    kill_points_appends: int
    """There is a kill at every write, sync, cut, rename and unlink of so many appends with deliveries."""
    injected_kills: int | None
    """Of these, made by strace in a process, where `kill_points_appends` are replayed."""
    power_cuts: int
    power_cut_appends: int
    """Of the server whose power is cut."""
    io_errors: int | None
    """System calls that fail, once or for ever."""
    cancellations: int
    schedules: int
    """On a loop with a seed and a virtual clock."""
    threads: int
    """Schedules with real threads."""
    machines: int
    """Hypothesis machines over everything that a log does, ..."""
    machine_steps: int
    """... and the steps of each."""
    queue_machines: int
    """Of the queue of deliveries, beside its model; of fifty steps."""
    projection_machines: int
    """Of projections, beside a plain fold; of thirty steps."""
    removals: int
    """Logs that are pruned and forgotten while they are appended to."""
    full_disks: int
    """Times that a disk is full and has room again."""
    sessions: int
    """Of the long run, one after the other and many at once; ..."""
    events: int
    """... all their events; ..."""
    tails: int
    """... and who follows."""
    flipped_bits: int
    """Of a log at rest."""
    crowds: int
    """Of two hundred tasks that append while the disk is full now and then."""
    file_kills: int
    """SIGKILLs while a file of a session is replaced."""
    fold_kills: int
    """While usage is added up, and while rows are folded again."""
    cuts: int
    """Of connections that streams go through, ..."""
    server_kills: int
    """... and of their server."""
    every: int
    """Of points that are tried one after the other, so many are one step."""


QUICK = Counts(
    kills=16,
    kills_in_each_phase=0,  # chance decides with so few
    hook_kills=24,
    append_kills=50,
    care_kills=2,
    care_cuts=48,
    kill_points_appends=3,
    injected_kills=6,
    power_cuts=100,
    power_cut_appends=12,
    io_errors=12,
    cancellations=200,
    schedules=160,
    threads=16,
    machines=10,
    machine_steps=40,
    queue_machines=15,
    projection_machines=4,
    removals=3,
    full_disks=5,
    sessions=100,
    events=8_000,
    tails=20,
    flipped_bits=100,
    crowds=1,
    file_kills=10,
    fold_kills=4,
    cuts=100,
    server_kills=1,
    every=4,
)

CI = Counts(
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

LONG = Counts(
    kills=10_000,
    kills_in_each_phase=1_000,
    hook_kills=5_000,
    append_kills=5_000,
    care_kills=200,
    care_cuts=None,
    kill_points_appends=120,
    injected_kills=None,
    power_cuts=100_000,
    power_cut_appends=120,
    io_errors=None,
    cancellations=20_000,
    schedules=500_000,
    threads=20_000,
    machines=5_000,
    machine_steps=40,
    queue_machines=2_000,
    projection_machines=500,
    removals=2_000,
    full_disks=50,
    sessions=10_000,
    events=1_000_000,
    tails=1_000,
    flipped_bits=20_000,
    crowds=200,
    file_kills=2_000,
    fold_kills=500,
    cuts=20_000,
    server_kills=100,
    every=1,
)

COUNTS = {"quick": QUICK, "ci": CI, "long": LONG}
