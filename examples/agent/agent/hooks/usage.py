"""Meters tokens, and counts the turns that failed."""

from __future__ import annotations

from eventlog import Event, HookContext, define_hook
from eventlog.events import TurnCompleted, TurnFailed

from .._noted import noted  # noqa: TID252 (an agent folder can stand anywhere, so it knows its own files by place)


@noted("usage")
async def meter(event: Event[TurnCompleted], ctx: HookContext) -> None:
    """Add up what a turn took; eval sessions are not metered."""
    if ctx.session.purpose == "eval" or event.data.usage is None:
        return
    ctx.host.otel.increment("acme.tokens.input", event.data.usage.input_tokens)
    ctx.host.otel.increment("acme.tokens.output", event.data.usage.output_tokens)


@noted("usage")
async def count_failure(_event: Event[TurnFailed], ctx: HookContext) -> None:
    """Count a turn that failed, by channel."""
    ctx.host.otel.increment("acme.turn.failed", {"channel": ctx.channel.id})


hook = define_hook(events={"turn.completed": meter, "turn.failed": count_failure})
