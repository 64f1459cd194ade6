"""The numbers and verdicts of delivery: what the contract fixes, and what it leaves open, decided in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, TypeAlias

from eventlog.durable.envelope import DurableEventType
from eventlog.errors import EventLogError, shown

CONTRACT_VERSION = "0.1.0-alpha.9"
"""The contract that durable hooks follow (R1)."""


def capabilities() -> dict[str, Any]:
    """Return what this host offers to extensions, as plain JSON; hooks are a preview (R1, R3)."""
    return {
        "contract": CONTRACT_VERSION,
        "hooks": {
            "status": "preview",
            "delivery": "at-least-once",
            "events": [event.value for event in DurableEventType],
        },
    }


# ----------------------------------------------------------------------------------------------------- the numbers


class InvalidPolicy(EventLogError, ValueError):
    """A setting of `DeliveryPolicy` has a value that it cannot have."""

    def __init__(self, setting: str, value: object, why: str) -> None:
        self.setting, self.value, self.why = setting, value, why
        super().__init__(f"DeliveryPolicy({setting}={shown(value)}): {why}")


def _setting(default: Any, least: float, most: float, means: str) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "means": means})


_DAY_S = 86_400
_TEN_YEARS_S = 3_650 * _DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Every number of durable delivery (R2); each field's metadata says what it `means` and its `least` and `most`.

    Fixed by the contract: `attempts` (R34), `timeout_s` (R33), `retention_s` (R42, R43), `capacity` (R44). The
    contract leaves the others open; these are our choices. Raises `InvalidPolicy` for a value out of its bounds.
    """

    attempts: int = _setting(6, 1, 100, "calls at most in one round, the first one included")
    timeout_s: float = _setting(30.0, 0.001, _DAY_S, "seconds that one call may take")
    backoff_first_s: float = _setting(5.0, 0.0, _TEN_YEARS_S, "seconds before the first retry")
    backoff_factor: float = _setting(4.0, 1.0, 100.0, "each wait is this many times the one before")
    backoff_max_s: float = _setting(900.0, 0.0, _TEN_YEARS_S, "seconds that no wait exceeds, before jitter")
    jitter: float = _setting(0.2, 0.0, 1.0, "each wait is changed at random by up to this share of it")
    retention_s: int = _setting(
        7 * _DAY_S, 1, _TEN_YEARS_S, "seconds that an unacknowledged event and a snapshot are kept"
    )
    capacity: int = _setting(1_000, 1, 1_000_000, "pending and delivering events of one extension at most")
    concurrency: int = _setting(16, 1, 1_000, "calls into one extension at the same time at most")
    keep_dead_s: int = _setting(7 * _DAY_S, 0, _TEN_YEARS_S, "seconds that a dead letter is kept after it died")

    def __post_init__(self) -> None:
        for each in fields(self):
            whole = type(each.default) is int
            value, least, most = getattr(self, each.name), each.metadata["least"], each.metadata["most"]
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise InvalidPolicy(each.name, value, f"give {'a whole number' if whole else 'a number'}")
            if not least <= value <= most:  # false for NaN, too
                raise InvalidPolicy(each.name, value, f"give a value from {least:,} to {most:,}")
        if self.backoff_max_s < self.backoff_first_s:
            raise InvalidPolicy(
                "backoff_max_s", self.backoff_max_s, f"give at least backoff_first_s, {self.backoff_first_s}"
            )

    def backoff_s(self, attempt: int, random: Random) -> float:
        """Return the seconds to wait after the `attempt`-th failed call of a round."""
        wait_s = min(self.backoff_max_s, self.backoff_first_s * self.backoff_factor ** (attempt - 1))
        return wait_s * random.uniform(1 - self.jitter, 1 + self.jitter)


# ---------------------------------------------------------------------------------------- what a handler can raise


class Reject(Exception):
    """Raised by a handler that will never accept this event: it becomes a dead letter at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RetryAfter(Exception):
    """Raised by a handler that knows when to be called again: in `seconds` from now, at once if that is past."""

    def __init__(self, seconds: float) -> None:
        if not math.isfinite(seconds):
            raise ValueError(f"RetryAfter({seconds}): give a number of seconds")
        self.seconds = max(0.0, float(seconds))
        super().__init__(f"retry after {self.seconds:g} s")


# ---------------------------------------------------------------------------------------------------- the verdicts


@dataclass(frozen=True, slots=True)
class Ack:
    """The handler returned: the obligation is met (R29)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The handler is to be called again, `delay_s` seconds from now."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Bury:
    """The event becomes a dead letter; `reason` is `exhausted` or `rejected`."""

    reason: str


Outcome: TypeAlias = Ack | Retry | Bury


def judge(attempt: int, error: BaseException | None, policy: DeliveryPolicy, random: Random) -> Outcome:
    """Return what follows from one call (R29, R30, R34, R35); decides only, and does nothing.

    `attempt` counts the calls of the current round from 1, this one included: a manual retry begins a new round.
    `error` is what the call ended with, `None` if the handler returned.
    """
    match error:
        case None:
            return Ack()
        case Reject():
            return Bury("rejected")
        case _ if attempt >= policy.attempts:
            return Bury("exhausted")
        case RetryAfter():
            # Later than the event is kept is never; and the due time must stay a number that can be stored.
            return Retry(min(error.seconds, float(policy.retention_s)))
        case _:
            return Retry(policy.backoff_s(attempt, random))
