"""When a delivery is called again, and when it is given up."""

from __future__ import annotations

import dataclasses
import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.durable import (
    CONTRACT_VERSION,
    Ack,
    Bury,
    DeliveryPolicy,
    InvalidPolicy,
    Reject,
    Retry,
    RetryAfter,
    capabilities,
    judge,
)
from eventlog.errors import EventLogError

POLICY = DeliveryPolicy()
DEFAULTS = {
    "attempts": 6,
    "timeout_s": 30.0,
    "backoff_first_s": 5.0,
    "backoff_factor": 4.0,
    "backoff_max_s": 900.0,
    "jitter": 0.2,
    "retention_s": 604_800,
    "capacity": 1_000,
    "concurrency": 16,
    "keep_dead_s": 604_800,
}
WHOLE = ["attempts", "retention_s", "capacity", "concurrency", "keep_dead_s"]
BOUNDS = [(each.name, each.metadata["least"], each.metadata["most"]) for each in dataclasses.fields(DeliveryPolicy)]


def with_setting(name: str, value: Any) -> DeliveryPolicy:
    # The first wait must not exceed the longest one, so that bound is moved out of the way of this setting.
    room = {"backoff_first_s": {"backoff_max_s": 315_360_000}, "backoff_max_s": {"backoff_first_s": 0}}.get(name, {})
    return DeliveryPolicy(**{**room, name: value})


def test_r1_hooks_are_a_preview_of_contract_alpha_9() -> None:
    assert CONTRACT_VERSION == "0.1.0-alpha.9"
    assert capabilities()["contract"] == CONTRACT_VERSION
    assert capabilities()["hooks"]["status"] == "preview"
    assert json.loads(json.dumps(capabilities())) == capabilities()


def test_r2_every_chosen_number_has_its_default_and_says_what_it_means() -> None:
    """R33, R34, R42 to R44: the contract's own numbers are among them."""
    assert dataclasses.asdict(POLICY) == DEFAULTS
    assert [each.name for each in dataclasses.fields(POLICY) if not each.metadata["means"]] == []


def test_the_policy_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        POLICY.attempts = 7  # type: ignore[misc]


@pytest.mark.parametrize(("name", "least", "most"), BOUNDS)
def test_each_setting_takes_its_bounds_and_nothing_beyond(name: str, least: float, most: float) -> None:
    for bound in (least, most):
        assert getattr(with_setting(name, bound), name) == bound
    for beyond in (math.nextafter(least, -math.inf), math.nextafter(most, math.inf), least - 1, most + 1):
        with pytest.raises(InvalidPolicy, match=name):
            with_setting(name, beyond)


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("value", [None, True, "6", math.nan, math.inf, -math.inf, [], 1j])
def test_no_setting_takes_what_is_no_number(name: str, value: object) -> None:
    with pytest.raises(InvalidPolicy, match=name):
        with_setting(name, value)


@pytest.mark.parametrize("name", WHOLE)
def test_a_count_takes_no_fraction(name: str) -> None:
    with pytest.raises(InvalidPolicy, match="whole number"):
        with_setting(name, 1.0)


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    assert DeliveryPolicy(backoff_first_s=7, backoff_max_s=7).backoff_max_s == 7
    with pytest.raises(InvalidPolicy, match="at least backoff_first_s"):
        DeliveryPolicy(backoff_first_s=7, backoff_max_s=6.9)


def test_a_wrong_setting_is_an_error_of_ours_and_a_value_error() -> None:
    with pytest.raises(EventLogError):
        DeliveryPolicy(attempts=0)
    with pytest.raises(ValueError, match="attempts"):
        DeliveryPolicy(attempts=0)


@pytest.mark.parametrize("attempt", range(1, 9))
def test_r29_a_return_is_the_ack_at_every_attempt(attempt: int) -> None:
    assert judge(attempt, None, POLICY, Random(1)) == Ack()


@pytest.mark.parametrize(("attempt", "wait_s"), [(1, 5), (2, 20), (3, 80), (4, 320), (5, 900)])
def test_r30_an_error_waits_longer_each_time(attempt: int, wait_s: float) -> None:
    exact = dataclasses.replace(POLICY, jitter=0.0)
    assert judge(attempt, ValueError("x"), exact, Random(1)) == Retry(wait_s)


def test_the_wait_is_changed_by_a_random_fifth_at_most() -> None:
    random = Random(1)
    waits = [judge(1, ValueError("x"), POLICY, random) for _ in range(1_000)]
    seconds = [wait.delay_s for wait in waits if isinstance(wait, Retry)]
    assert len(seconds) == 1_000
    assert 4.0 <= min(seconds) < 4.01
    assert 5.99 < max(seconds) <= 6.0


def test_the_same_seed_gives_the_same_waits() -> None:
    assert judge(3, ValueError("x"), POLICY, Random(7)) == judge(3, ValueError("x"), POLICY, Random(7))


@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError(), SystemExit(1), RetryAfter(1), ExceptionGroup("g", [ValueError()])]
)
def test_r34_the_sixth_failure_is_the_last(error: BaseException) -> None:
    """R35: what follows is a dead letter."""
    verdicts = [judge(attempt, error, POLICY, Random(1)) for attempt in range(1, 7)]
    assert [type(verdict) for verdict in verdicts] == [Retry] * 5 + [Bury]
    assert verdicts[-1] == Bury("exhausted")


def test_one_attempt_means_no_retry() -> None:
    assert judge(1, ValueError("x"), DeliveryPolicy(attempts=1), Random(1)) == Bury("exhausted")


@pytest.mark.parametrize("attempt", [1, 6])
def test_reject_buries_at_once(attempt: int) -> None:
    assert judge(attempt, Reject("no such customer"), POLICY, Random(1)) == Bury("rejected")
    assert str(Reject("no such customer")) == Reject("no such customer").reason == "no such customer"


@pytest.mark.parametrize(("seconds", "delay_s"), [(0, 0), (12.5, 12.5), (-3, 0), (3_600, 3_600), (1e300, 604_800)])
def test_retry_after_sets_the_wait_without_jitter(seconds: float, delay_s: float) -> None:
    assert judge(2, RetryAfter(seconds), POLICY, Random(1)) == Retry(delay_s)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_retry_after_needs_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="give a number of seconds"):
        RetryAfter(seconds)


@given(
    attempt=st.integers(1, 100),
    first=st.floats(0, 1e6),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_no_wait_is_negative_infinite_or_over_its_most(
    attempt: int, first: float, factor: float, jitter: float, seed: int
) -> None:
    policy = DeliveryPolicy(
        attempts=100, backoff_first_s=first, backoff_factor=factor, backoff_max_s=1e6, jitter=jitter
    )
    verdict = judge(attempt, ValueError("x"), policy, Random(seed))
    if attempt < 100:
        assert isinstance(verdict, Retry)
        assert 0 <= verdict.delay_s <= 1e6 * (1 + jitter)
    else:
        assert verdict == Bury("exhausted")
