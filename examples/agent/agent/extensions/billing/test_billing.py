"""Delivers events more than once, as a host may, and counts what was billed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventlog import ExtensionContext, HookCallContext, JobCompletedEnvelope, JobStatus, TurnCompletedEnvelope
from examples.agent.agent.extensions.billing.ledger import Entry, Ledger
from examples.agent.agent.extensions.billing.main import Billing
from examples.agent.agent.extensions.billing.rehearsal import Rehearsal, ServiceDown


class Finds:
    """Stands in for `context.turns` and `context.jobs`: finds the same, whatever is asked for."""

    def __init__(self, found: Any) -> None:
        self._found = found

    async def get(self, _reference: object) -> Any:
        return self._found


def billing(ledger: Ledger, **environment: str) -> Billing:
    turns = Finds(SimpleNamespace(cost=SimpleNamespace(total_usd=0.25)))
    context = SimpleNamespace(turns=turns, jobs=Finds(SimpleNamespace(status=JobStatus.SUCCEEDED)))
    return Billing(cast(ExtensionContext, context), ledger, Rehearsal(environment))


def call(request_id: str) -> HookCallContext:
    return cast(HookCallContext, SimpleNamespace(request_id=request_id))


TURN = TurnCompletedEnvelope(
    event_id="00000000:9",
    project_id="acme",
    occurred_at="2026-01-12T09:00:00.000Z",
    conversation_id="s1",
    turn_id="t1",
    version=1,
)
JOB = JobCompletedEnvelope(
    event_id="00000000:12",
    project_id="acme",
    occurred_at="2026-01-12T09:00:01.000Z",
    job_id="j1",
    status=JobStatus.SUCCEEDED,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


async def test_r39_an_event_that_is_delivered_twice_is_billed_once(ledger: Ledger) -> None:
    extension = billing(ledger)
    for number in range(2):
        await extension.bill_turn(TURN, call(f"turn-{number}"))
        await extension.bill_job(JOB, call(f"job-{number}"))
    assert [each.event_id for each in ledger.calls()] == ["00000000:9", "00000000:12"] * 2
    assert ledger.entries() == [Entry("00000000:12", "job j1", 0.05), Entry("00000000:9", "turn s1/t1", 0.25)]


async def test_a_turn_that_is_to_be_refused_fails_twice_and_is_billed_then(ledger: Ledger) -> None:
    extension = billing(ledger, BILLING_REFUSES="s1/t1")
    for number in range(2):
        with pytest.raises(ServiceDown, match=rf"does not answer \(call {number + 1}\)"):
            await extension.bill_turn(TURN, call(f"{number}"))
    assert ledger.entries() == []
    await extension.bill_turn(TURN, call("2"))
    assert len(ledger.entries()) == 1
