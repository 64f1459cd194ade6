"""Meters tokens: put this file in `agent/hooks/`, and what turns use goes to the counters of the host."""

from __future__ import annotations

from eventlog import Event, HookContext, define_hook
from eventlog.events import TurnCompleted, TurnFailed


async def meter(event: Event[TurnCompleted], ctx: HookContext) -> None:
    """Add up what a turn used; evals are not metered."""
    if ctx.session.purpose == "eval" or event.data.usage is None:
        return
    ctx.host.otel.increment("acme.tokens.input", event.data.usage.input_tokens)
    ctx.host.otel.increment("acme.tokens.output", event.data.usage.output_tokens)


async def count_failure(_event: Event[TurnFailed], ctx: HookContext) -> None:
    """Count a turn that failed, by channel."""
    ctx.host.otel.increment("acme.turn.failed", {"channel": ctx.channel.id})


hook = define_hook(events={"turn.completed": meter, "turn.failed": count_failure})
