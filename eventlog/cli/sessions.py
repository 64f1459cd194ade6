"""`sessions`: the sessions of a log."""

from __future__ import annotations

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

COLUMNS = (
    Column("SESSION"),
    Column("STATUS"),
    Column("EVENTS", right=True),
    Column("PROJECT", spare=1),
    Column("AGENT", spare=2),
    Column("CHANNEL", spare=3),
    Column("MODE", spare=5),
    Column("PURPOSE", spare=4),
    Column("STARTED (UTC)"),
    Column("LASTED", right=True, spare=6),
    Column("TITLE", long=True),
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
    """List sessions in the order in which they were started, or those whose ids begin with PREFIX."""
    output = out()
    found: list[SessionInfo] = []
    async with reading(db) as log:
        async for info in log.sessions(prefix=prefix, purpose=purpose, project=project, limit=limit):
            if as_json_lines:
                output.json_line(plain(info))
            else:
                found.append(info)
    if as_json:
        output.json(plain(found))
    elif not as_json_lines:
        table(output, COLUMNS, [_row(info) for info in found], "no sessions")
    return Code.DONE


def _row(info: SessionInfo) -> Row:
    return (
        Span(info.id, "name"),
        Span(info.status, STYLES[info.status]),
        f"{info.next_index:,}",
        info.project,
        info.agent or "",
        info.channel_id,
        info.mode,
        "" if info.purpose == "live" else info.purpose,
        moment(info.started_at),
        duration((info.updated_at - info.started_at) / timedelta(seconds=1)),
        info.title or "",
    )
