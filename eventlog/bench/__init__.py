"""Measures the log on this machine: appending, observe hooks and durable hooks, as ratios to what SQLite itself does.

Every figure is a ratio to a limit that was measured in the same round, a moment before: absolute figures say more about
a disk than about a program, and both change while others use the machine. A `Subject` is one thing to measure, with its
figures and what they mean; `measure` runs some of them round after round, and `table` and `document` tell what came of
it. `eventlog bench` runs those that are here; `benchmarks/` in the checkout adds more, and the peers.
"""

from __future__ import annotations

from eventlog.bench.append import APPEND
from eventlog.bench.durable import DURABLE
from eventlog.bench.observe import OBSERVE
from eventlog.bench.report import Figure, Measured, document, heading, table
from eventlog.bench.rounds import QUICK_SHARE, Run, Subject, measure

SUBJECTS = (APPEND, OBSERVE, DURABLE)
"""What can be measured with nothing but this package."""

__all__ = [
    "APPEND",
    "DURABLE",
    "OBSERVE",
    "QUICK_SHARE",
    "SUBJECTS",
    "Figure",
    "Measured",
    "Run",
    "Subject",
    "document",
    "heading",
    "measure",
    "table",
]
