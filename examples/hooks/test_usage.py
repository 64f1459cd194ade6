"""A hook is a plain object: its functions are called with an event and a stub of the context."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eventlog import Event
from examples.hooks.usage import hook

USAGE = b'{"usage":{"inputTokens":120,"outputTokens":30,"cacheReadTokens":0,"cacheWriteTokens":0}}'


async def counted(type: str, data: bytes, purpose: str = "live") -> list[tuple[Any, ...]]:
    """What the hook increments for one event of a session on the channel "slack"."""
    calls: list[tuple[Any, ...]] = []
    ctx = SimpleNamespace(
        session=SimpleNamespace(id="s1", purpose=purpose),
        channel=SimpleNamespace(id="slack"),
        host=SimpleNamespace(otel=SimpleNamespace(increment=lambda *measured: calls.append(measured))),
    )
    event: Event[Any] = Event(type, 7, "s1", "t1", at_us=0, position=8, era="test", raw=data)
    await hook.events[type](event, ctx)
    return calls


async def test_r150_r151_the_tokens_of_a_turn_are_added_up() -> None:
    assert await counted("turn.completed", USAGE) == [("acme.tokens.input", 120), ("acme.tokens.output", 30)]


@pytest.mark.parametrize(("data", "purpose"), [(USAGE, "eval"), (b'{"result":"done"}', "live")])
async def test_r125_evals_and_turns_of_unknown_usage_are_not_metered(data: bytes, purpose: str) -> None:
    assert await counted("turn.completed", data, purpose) == []


async def test_r112_a_failed_turn_is_counted_under_its_channel() -> None:
    assert await counted("turn.failed", b'{"message":"no model"}') == [("acme.turn.failed", {"channel": "slack"})]
