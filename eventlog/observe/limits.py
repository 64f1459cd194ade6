"""The numbers that the documents leave open for observe hooks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from eventlog.errors import InvalidName


def _limit(default: float, least: float, means: str) -> Any:
    return field(default=default, metadata={"least": least, "means": means})


@dataclass(frozen=True, slots=True)
class ObserveLimits:
    """How much is held in memory, how long is waited, and how often is looked.

    The fields' metadata says what each `means`, and the `least` that it can be. Raises InvalidName for less.
    """

    queue_events: int = _limit(10_000, 0, "events recorded and not taken up; what comes on top is read from the log")
    lane_events: int = _limit(1_000, 0, "events behind a handler that waits, in one session; others stay in the log")
    lanes_events: int = _limit(10_000, 0, "the same, in all sessions together")
    page_events: int = _limit(256, 1, "events read from the log at once for a session that catches up")
    batch_events: int = _limit(256, 1, "events shown at most before the loop has its turn")
    batch_s: float = _limit(0.002, 0, "seconds after which no further event is begun before that")
    cursor_every_s: float = _limit(
        1.0, 0.001, "seconds between two looks at cursors and at handlers that do not return"
    )
    stuck_after_s: float = _limit(30.0, 0, "seconds after which a call that has not returned is reported")
    drain_s: float = _limit(5.0, 0, 'seconds for events underway, at a stop and before a "resume" hook joins late')
    cancel_s: float = _limit(1.0, 0, "seconds for cancelled handlers to end, at a stop")
    plain_threads: int = _limit(32, 1, "threads for handlers that are plain functions")
    max_plain_threads: int = _limit(256, 1, "the same with those that stuck handlers hold")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata["least"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise InvalidName(f"ObserveLimits {each.name}", value, f"give a number from {least:g} on")
