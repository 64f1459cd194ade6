"""Bills every completed turn and every ended job, once, however often it is told of it.

`BILLING_LEDGER` names the file that it writes to; without it that is `billing.db` where the server runs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from eventlog import ExtensionContext, HookCallContext, JobCompletedEnvelope, TurnCompletedEnvelope

from .ledger import Call, Entry, Ledger  # noqa: TID252 (an extension's folder can stand anywhere)
from .rehearsal import Rehearsal  # noqa: TID252


def activate(context: ExtensionContext) -> None:
    """Bind the two handlers that the manifest declares."""
    billing = Billing(context, Ledger(Path(os.environ.get("BILLING_LEDGER", "billing.db"))), Rehearsal(os.environ))
    context.subscriptions.append(context.hooks.register("billTurn", billing.bill_turn))
    context.subscriptions.append(context.hooks.register("billJob", billing.bill_job))


class Billing:
    """The handlers. Each reads what the event refers to, then writes one entry under the event's id."""

    def __init__(self, context: ExtensionContext, ledger: Ledger, rehearsal: Rehearsal) -> None:
        self._context = context
        self._ledger = ledger
        self._rehearsal = rehearsal

    async def bill_turn(self, event: TurnCompletedEnvelope, call: HookCallContext) -> None:
        """Bill what the turn cost."""
        turn = f"{event.conversation_id}/{event.turn_id}"
        calls = await asyncio.to_thread(self._ledger.note_call, Call(event.event_id, call.request_id))
        self._rehearsal.refuse(turn, calls)
        snapshot = await self._context.turns.get(event.turn)
        usd = 0.0 if snapshot.cost is None else snapshot.cost.total_usd
        await self._rehearsal.before_the_effect(turn)
        await asyncio.to_thread(self._ledger.enter, Entry(event.event_id, f"turn {turn}", usd))
        self._rehearsal.after_the_effect(turn)

    async def bill_job(self, event: JobCompletedEnvelope, call: HookCallContext) -> None:
        """Bill a flat price for a job that succeeded, and nothing for one that did not."""
        await asyncio.to_thread(self._ledger.note_call, Call(event.event_id, call.request_id))
        job = await self._context.jobs.get(event.job_id)
        usd = 0.05 if job.status == "succeeded" else 0.0
        await asyncio.to_thread(self._ledger.enter, Entry(event.event_id, f"job {event.job_id}", usd))
