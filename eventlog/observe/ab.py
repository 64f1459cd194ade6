"""Defines an A/B experiment: its arms, and who is given a sample of each turn."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from eventlog.errors import InvalidName
from eventlog.events import MAX_ID_CHARACTERS, Cost, SessionInfo, TokenUsage
from eventlog.observe.handlers import is_id
from eventlog.session import Session

EXPERIMENT = "experiment"
ARMS = "arms"
ARM = "arm"
"""What the InvalidName of a bad definition says it is about."""


class Sample(msgspec.Struct, frozen=True):
    """What one turn in one arm came to (R137).

    `duration_s` is from its `turn.started` to its end, None when there is none. `message` says why it failed;
    `turn interrupted` is a preemption rather than a failure of the arm.
    """

    experiment: str
    arm: str
    session_id: str
    turn_id: str
    at: datetime
    duration_s: float | None
    failed: bool
    message: str | None = None
    usage: TokenUsage | None = None
    cost: Cost | None = None


OnSample: TypeAlias = Callable[[Sample], Awaitable[None] | None]
"""A function or coroutine function that takes a sample; it is called as a hook's handler is, so at most once."""


class AbDefinition(msgspec.Struct, frozen=True, eq=False):
    """An experiment as it is authored; raises InvalidName for names, weights and functions that cannot be used."""

    name: str
    arms: Mapping[str, float]
    on_sample: OnSample | None = None
    instructions: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not is_id(self.name):
            raise InvalidName(EXPERIMENT, self.name, f"use 1 to {MAX_ID_CHARACTERS} printable characters")
        _check_arms(self.arms)
        _check_instructions(self.instructions, self.arms)
        if self.on_sample is not None and not callable(self.on_sample):
            raise InvalidName("on_sample", self.on_sample, "must be a function of (sample)")
        msgspec.structs.force_setattr(self, "arms", MappingProxyType(dict(self.arms)))
        msgspec.structs.force_setattr(self, "instructions", MappingProxyType(dict(self.instructions)))

    def arm_for(self, session_id: str) -> str:
        """The arm of a session by its id alone: a digest, the same in every process; arms have their weight's share."""
        digest = blake2b(f"{self.name}\n{session_id}".encode(), digest_size=8).digest()
        left = int.from_bytes(digest) / 2**64 * math.fsum(self.arms.values())
        weighted = [(arm, weight) for arm, weight in sorted(self.arms.items()) if weight > 0]
        for arm, weight in weighted:
            left -= weight
            if left < 0:
                return arm
        return weighted[-1][0]  # by rounding


def define_ab(
    name: str,
    arms: Mapping[str, float],
    *,
    on_sample: OnSample | None = None,
    instructions: Mapping[str, str] | None = None,
) -> AbDefinition:
    """Define what `agent/ab.py`, or a file of `agent/ab/`, exports as its `ab` (R139).

    `arms` maps each arm to its weight, at least two of them; one of weight 0 gets no new sessions. A live session is
    put in an arm by the commit that starts it, while the experiment is served, and stays there (R135, R136):
    `ab.assigned` and the session's `abs` say so. Who updates `abs` later replaces all of it: keep the arms in it.
    `on_sample` gets a `Sample` of each of its turns, completed or failed. `instructions` has, by arm, what a server
    adds to its prompt (see `Runtime.arm_instructions`). Raises InvalidName.
    """
    return AbDefinition(name, arms, on_sample, {} if instructions is None else instructions)


def arm_of(session: Session | SessionInfo, experiment: str) -> str | None:
    """The arm that a session is in, None when it is in none; `ctx.session` is a session to ask for (R138)."""
    info = session.info if isinstance(session, Session) else session
    arm = info.abs.get(experiment) if isinstance(info.abs, dict) else None
    return arm if isinstance(arm, str) else None


def _check_arms(arms: Any) -> None:
    if not isinstance(arms, Mapping) or len(arms) < 2:
        raise InvalidName(ARMS, arms, 'must map at least two arms to their weights, as in {"short": 1, "long": 1}')
    for arm, weight in arms.items():
        if not is_id(arm):
            raise InvalidName(ARM, arm, f"use 1 to {MAX_ID_CHARACTERS} printable characters")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise InvalidName(ARM, arm, f"its weight must be a finite number from 0 on, not {weight!r}")
    if not 0 < _total(arms.values()) < math.inf:
        raise InvalidName(ARMS, dict(arms), "their weights together must be a finite number over 0")


def _total(weights: Iterable[float]) -> float:
    try:
        return math.fsum(weights)
    except OverflowError:  # each is a number that can be used, all of them together are not
        return math.inf


def _check_instructions(instructions: Any, arms: Mapping[str, float]) -> None:
    if not isinstance(instructions, Mapping):
        raise InvalidName("instructions", instructions, 'must map arms to texts, as in {"short": "Answer briefly."}')
    for arm, text in instructions.items():
        if arm not in arms:
            raise InvalidName(ARM, arm, "it has instructions, but is no arm of this experiment")
        if not isinstance(text, str):
            raise InvalidName(ARM, arm, "its instructions must be a text")
