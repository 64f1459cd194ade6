"""Keeps the last result of each session: put this file in `agent/hooks/`, and a tool reads it by `host.kv.get`."""

from __future__ import annotations

from eventlog import Event, HookContext, define_hook
from eventlog.events import TurnCompleted, format_time


async def keep(event: Event[TurnCompleted], ctx: HookContext) -> None:
    """Put it under a key of the session; it outlives the process, and a redeployment of the server."""
    await ctx.host.kv.put(
        f"last-result/{ctx.session.id}",
        {"at": format_time(event.at_us), "result": event.data.result},
    )


hook = define_hook(events={"turn.completed": keep})
