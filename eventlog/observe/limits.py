"""The numbers that the documents leave open for observe hooks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObserveLimits:
    """How much is held in memory, how long is waited, and how often is looked."""

    queue_events: int = 10_000
    """Recorded and not taken up yet; what comes on top is read from the log."""
    lane_events: int = 1_000
    """Behind a handler that waits, in one session; what comes on top is read from the log."""
    lanes_events: int = 10_000
    """The same, in all sessions together."""
    page_events: int = 256
    """Read from the log at once for a session that catches up."""
    batch_events: int = 256
    """Shown at most before the loop has its turn."""
    batch_s: float = 0.002
    """The same in time: after this long no further event is begun."""
    cursor_every_s: float = 1.0
    """Between two looks at the cursors and at handlers that do not return."""
    stuck_after_s: float = 30.0
    """A call that has not returned for this long is reported."""
    drain_s: float = 5.0
    """Waited for events that are underway, at a stop and before a "resume" hook joins late."""
    cancel_s: float = 1.0
    """Waited for cancelled handlers to end, at a stop."""
    plain_threads: int = 32
    """Threads for handlers that are plain functions."""
    max_plain_threads: int = 256
    """The same with those that stuck handlers hold."""
