"""`cursors`: how far every subscriber of the log is."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog.cli.explain import Code
from eventlog.cli.human import moment_us
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.inspection import CursorRow, Inspection, ProjectionError

CURSORS = (
    Column("KIND"),
    Column("NAME"),
    Column("AGENT", spare=1),
    Column("CURSOR", right=True, spare=2),
    Column("BEHIND", right=True),
    Column("ERRORS", right=True),
    Column("NOTE", long=True),
)
ERRORS = (
    Column("PROJECTION"),
    Column("VERSION", right=True, spare=2),
    Column("POSITION", right=True),
    Column("AT (UTC)", spare=1),
    Column("WHY", long=True),
)
NAMED = 20


@click.command(short_help="how far each hook, extension and projection is")
@click.option("--errors", "only_errors", is_flag=True, help="Only the events that projections could not fold.")
@json_option
@log_options
@asynchronous
async def cursors(db: Path, only_errors: bool, as_json: bool) -> Code:
    """List every subscriber of the log: hooks, extensions and projections, and what projections could not fold.

    A subscriber is done with everything up to its CURSOR; BEHIND counts the positions of the log after that. ERRORS
    counts calls of a hook that raised, dead letters of an extension, and events that a projection passed.
    """
    async with reading(db) as log:
        inspection = Inspection(log)
        rows = await inspection.cursors()
        errors = await inspection.projection_errors()
    output = out()
    if as_json:
        output.json(plain(errors if only_errors else rows))
        return Code.DONE
    if not only_errors:
        table(output, CURSORS, [_row(row) for row in rows], "no subscribers")
        if errors and (rows or output.is_terminal):
            output.line()
    shown = errors if only_errors else errors[-NAMED:]
    table(output, ERRORS, [_error(error) for error in shown], "no errors" if only_errors else "")
    return Code.DONE


def _row(row: CursorRow) -> Row:
    stuck = row.note is not None and row.note.startswith("stuck")
    return (
        row.kind,
        Span(row.name, "name"),
        row.agent or "",
        f"{row.cursor:,}",
        Span(f"{row.lag:,}", "wait" if row.lag else ""),
        Span(f"{row.errors:,}", "bad" if row.errors else ""),
        Span(row.note or "", "bad" if stuck else "wait"),
    )


def _error(error: ProjectionError) -> Row:
    return (
        Span(error.name, "name"),
        f"{error.version}",
        f"{error.position:,}",
        moment_us(error.at_us),
        error.message,
    )
