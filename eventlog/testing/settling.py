"""Waiting until everything was done, retries that are due later included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from eventlog import Runtime
from eventlog.testing.clock import ManualClock


async def settled(runtime: Runtime, clock: ManualClock | None = None, *, timeout_s: float = 10.0) -> None:
    """Return when nothing is running or due; with the log's clock, when nothing will be due either.

    The clock is then moved from retry to retry, until every delivery was acknowledged or buried. Raises TimeoutError
    when one step takes longer than `timeout_s`, which are real seconds.
    """
    await runtime.settled(timeout_s)
    while clock is not None and (wait_us := await _until_next_us(runtime)) is not None:
        clock.advance(wait_us / 1_000_000)
        await runtime.settled(timeout_s)


async def _until_next_us(runtime: Runtime) -> int | None:
    """How long until a delivery is due that is not due now; those that are due and still there are held back."""
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=runtime.log.clock.now_us())
    waits = [each.due_at - now for each in await runtime.extensions.deliveries() if each.due_at > now]
    return min(waits) // timedelta(microseconds=1) if waits else None
