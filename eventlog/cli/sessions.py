"""`sessions`: the sessions of a log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import click

from eventlog import SessionInfo
from eventlog.cli.explain import Code
from eventlog.cli.human import duration, moment
from eventlog.cli.opening import reading
from eventlog.cli.options import json_lines_option, json_option, log_options
from eventlog.cli.output import Span, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.inspection import Inspection

COLUMNS = (
    Column("SESSION"),
    Column("STATUS"),
    Column("EVENTS", right=True),
    Column("PRUNED", right=True),
    Column("PROJECT", spare=1),
    Column("AGENT", spare=2),
    Column("CHANNEL", spare=3),
    Column("MODE", spare=5),
    Column("PURPOSE", spare=4),
    Column("STARTED (UTC)"),
    Column("LASTED", right=True, spare=6),
    Column("TITLE", long=True, least=20),
)
STYLES = {"active": "good", "waiting": "wait", "failed": "bad", "completed": ""}


@click.command(short_help="the sessions of a log")
@click.argument("prefix", required=False, metavar="[PREFIX]")
@click.option("--project", metavar="NAME", help="Only sessions of this project.")
@click.option("--purpose", type=click.Choice(["live", "eval"]), help="Only sessions with this purpose.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many sessions.")
@json_lines_option
@json_option
@log_options
@asynchronous
async def sessions(
    db: Path,
    prefix: str | None,
    project: str | None,
    purpose: str | None,
    limit: int | None,
    as_json: bool,
    as_json_lines: bool,
) -> Code:
    """List sessions in the order in which they were started, or those whose ids begin with PREFIX.

    PRUNED counts the events that were at the beginning of a session and went; without any left, how long it lasted is
    not known any more.
    """
    output = out()
    found: list[SessionInfo] = []
    async with reading(db) as log:
        pruned = await Inspection(log).pruned_sessions()
        async for info in log.sessions(prefix=prefix, purpose=purpose, project=project, limit=limit):
            if as_json_lines:
                output.json_line(_document(info, pruned))
            else:
                found.append(info)
    if as_json:
        output.json([_document(info, pruned) for info in found])
    elif not as_json_lines:
        table(output, COLUMNS, [_row(info, pruned.get(info.id, 0)) for info in found], "no sessions")
    return Code.DONE


def _document(info: SessionInfo, pruned: Mapping[str, int]) -> dict[str, object]:
    return {**plain(info), "firstIndex": pruned.get(info.id, 0)}


def _row(info: SessionInfo, pruned: int) -> Row:
    left = max(0, info.next_index - pruned)
    return (
        Span(info.id, "name"),
        Span(info.status, STYLES[info.status]),
        f"{left:,}",
        Span(f"{pruned:,}" if pruned else "", "dim"),
        info.project,
        info.agent or "",
        info.channel_id,
        info.mode,
        "" if info.purpose == "live" else info.purpose,
        moment(info.started_at),
        duration((info.updated_at - info.started_at) / timedelta(seconds=1)) if left else "",
        info.title or "",
    )
