"""`jobs`: background jobs, and what became of them."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog import Job, JobStatus
from eventlog.cli.explain import Code
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.inspection import Inspection

COLUMNS = (
    Column("JOB"),
    Column("STATUS"),
    Column("NAME", spare=1),
    Column("SESSION"),
    Column("PROJECT", spare=2),
    Column("ERROR", long=True),
)
_STYLES = {
    JobStatus.SUCCEEDED: "good",
    JobStatus.FAILED: "bad",
    JobStatus.OUTCOME_UNKNOWN: "bad",
    JobStatus.CANCELLED: "dim",
}


@click.command(short_help="background jobs, and what became of them")
@click.option("--session", "session_id", metavar="SESSION", help="Only those of this session.")
@click.option(
    "--status", type=click.Choice([status.value for status in JobStatus]), help="Only those with this status."
)
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many.")
@json_option
@log_options
@asynchronous
async def jobs(db: Path, session_id: str | None, status: str | None, limit: int | None, as_json: bool) -> Code:
    """List background jobs as their events tell, those heard of last first."""
    async with reading(db) as log:
        if session_id is not None:
            await log.session(session_id)
        found = await Inspection(log).jobs(session_id, None if status is None else JobStatus(status), limit)
    if as_json:
        out().json([plain(job) for job in found])
    else:
        table(out(), COLUMNS, [_row(job) for job in found], "no jobs")
    return Code.DONE


def _row(job: Job) -> Row:
    error = "" if job.error is None else str(job.error)
    return (
        Span(job.id, "name"),
        Span(job.status.value, _STYLES.get(job.status, "wait")),
        job.name or "",
        job.session_id,
        job.project,
        error,
    )
