"""`deliveries`: what extensions are owed, and when they are called next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from eventlog.cli.explain import Code
from eventlog.cli.human import moment, span, until
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.inspection import Delivery, DeliveryGap, Inspection

DELIVERIES = (
    Column("EXTENSION"),
    Column("EVENT"),
    Column("STATE"),
    Column("ATTEMPTS", right=True),
    Column("NEXT CALL"),
    Column("SESSION"),
    Column("TYPE", spare=2),
    Column("PROJECT", spare=3),
    Column("RECORDED (UTC)", spare=4),
    Column("LAST ERROR", long=True, spare=1),
)
GAPS = (
    Column("GAP OF EXTENSION"),
    Column("REASON"),
    Column("POSITIONS"),
    Column("EVENTS", right=True),
    Column("PROJECT", spare=1),
    Column("SINCE (UTC)", spare=2),
)
STYLES = {"running": "good", "due": "", "retrying": "wait", "waiting": "dim", "paused": "wait"}


@click.command(short_help="what extensions are owed, and when they are called next")
@click.argument("extension", required=False, metavar="[EXTENSION]")
@click.option("--gaps", "only_gaps", is_flag=True, help="Only the gaps: events that an extension will never get.")
@json_option
@log_options
@asynchronous
async def deliveries(db: Path, extension: str | None, only_gaps: bool, as_json: bool) -> Code:
    """List deliveries that are not acknowledged, of all extensions or of EXTENSION, and the gaps.

    running: it is being called. due: it will be. retrying: it failed, and is called again. waiting: an earlier event
    of its session comes first. paused: its extension is not called.
    """
    async with reading(db) as log:
        inspection = Inspection(log)
        owed = [] if only_gaps else await inspection.deliveries(extension)
        gaps = await inspection.delivery_gaps(extension)
        paused = {each.name for each in await inspection.extensions() if each.paused}
        now = datetime.fromtimestamp(log.clock.now_us() / 1_000_000, UTC)
    output = out()
    if as_json:
        output.json(plain(gaps if only_gaps else owed))
        return Code.DONE
    if not only_gaps:
        events = {each.position: each.event_id for each in owed}
        table(output, DELIVERIES, [_delivery(each, events, paused, now) for each in owed], "nothing is owed")
        if gaps and (owed or output.is_terminal):
            output.line()
    table(output, GAPS, [_gap(gap) for gap in gaps], "no gaps" if only_gaps else "")
    return Code.DONE


def _state(delivery: Delivery, paused: set[str]) -> str:
    if delivery.state == "delivering":
        return "running"
    if delivery.extension in paused:
        return "paused"
    if delivery.waits_for is not None:
        return "waiting"
    return "retrying" if delivery.attempts else "due"


def _delivery(delivery: Delivery, events: Mapping[int, str], paused: set[str], now: datetime) -> Row:
    state = _state(delivery, paused)
    upcoming = {"running": "", "paused": "", "waiting": f"after {events.get(delivery.waits_for or 0, 'others')}"}
    return (
        Span(delivery.extension, "name"),
        delivery.event_id,
        Span(state, STYLES[state]),
        f"{delivery.attempts:,}",
        upcoming[state] if state in upcoming else until(delivery.due_at, now),
        delivery.session_id,
        delivery.type,
        delivery.project,
        moment(delivery.recorded_at),
        delivery.last_error or "",
    )


def _gap(gap: DeliveryGap) -> Row:
    return (
        Span(gap.extension, "name"),
        gap.reason,
        span(gap.first, gap.last),
        f"{gap.count:,}",
        gap.project,
        moment(gap.at),
    )
