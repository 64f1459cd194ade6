"""The hook is a plain object, so its functions are called with an event and a stub of the context."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventlog import Event, HookContext
from examples.agent.agent.hooks.usage import hook


class Counters:
    """Stands in for `ctx.host.otel`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def increment(self, *arguments: Any) -> None:
        self.calls.append(arguments)


def stub(counters: Counters, purpose: str = "live") -> HookContext:
    session = SimpleNamespace(id="s1", purpose=purpose)
    stubbed = SimpleNamespace(session=session, channel=SimpleNamespace(id="cli"), host=SimpleNamespace(otel=counters))
    return cast(HookContext, stubbed)


def event(type: str, data: bytes) -> Event[Any]:
    return Event(type, 7, "s1", "t1", at_us=0, position=8, era="00000000", raw=data)


USAGE = b'{"usage":{"inputTokens":120,"outputTokens":30,"cacheReadTokens":0,"cacheWriteTokens":0}}'


async def test_r150_r151_it_adds_up_what_a_turn_took() -> None:
    counters = Counters()
    await hook.events["turn.completed"](event("turn.completed", USAGE), stub(counters))
    assert counters.calls == [("acme.tokens.input", 120), ("acme.tokens.output", 30)]


@pytest.mark.parametrize(("data", "purpose"), [(USAGE, "eval"), (b'{"result":"done"}', "live")])
async def test_r125_it_skips_eval_sessions_and_turns_of_unknown_usage(data: bytes, purpose: str) -> None:
    counters = Counters()
    await hook.events["turn.completed"](event("turn.completed", data), stub(counters, purpose))
    assert counters.calls == []


async def test_r112_it_counts_a_failed_turn_under_its_channel() -> None:
    counters = Counters()
    await hook.events["turn.failed"](event("turn.failed", b'{"message":"turn interrupted"}'), stub(counters))
    assert counters.calls == [("acme.turn.failed", {"channel": "cli"})]
