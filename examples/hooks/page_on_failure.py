"""Pages someone when a turn fails: put this file in `agent/hooks/`, and set PAGER_WEBHOOK_URL where the server runs.

The call is made with the server's own HTTP client, which it passes to its runtime, as it does for its tools:
`Runtime(log, agent_dir=".", services={"http": httpx.AsyncClient()})`.
"""

from __future__ import annotations

import asyncio
import os

from eventlog import Event, HookContext, define_hook
from eventlog.events import TURN_INTERRUPTED, TurnFailed

TIMEOUT_S = 5.0


async def page(event: Event[TurnFailed], ctx: HookContext) -> None:
    """Post what failed where, so that whoever is paged finds the session; an interruption is no failure."""
    pager_url = os.environ.get("PAGER_WEBHOOK_URL")  # here and not above: it may be bound after the process started
    if pager_url is None or ctx.session.purpose == "eval" or event.data.message == TURN_INTERRUPTED:
        return
    async with asyncio.timeout(TIMEOUT_S):  # a call that stalls holds up the later handlers of this session
        await ctx.host.http.post(
            pager_url,
            json={
                "agent": ctx.agent.name,
                "session": ctx.session.id,
                "channel": ctx.channel.id,
                "message": event.data.message,
            },
        )


hook = define_hook(events={"turn.failed": page})
