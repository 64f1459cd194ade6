"""`rebuild`: folds what is kept beside the log again from it."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count
from eventlog.cli.opening import owning
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, note, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.progress import progress
from eventlog.errors import InvalidName, shown
from eventlog.projections import Rebuilt
from eventlog.projections import rebuild as rebuild_in


@click.command(short_help="fold what is kept beside the log again from it")
@click.argument("name", required=False, metavar="[NAME]")
@json_option
@log_options
@asynchronous
async def rebuild(db: Path, name: str | None, as_json: bool) -> Code:
    """Fold sessions, turns, jobs and usage again from the log, or only NAME, and put the new rows in place of the old.

    The log has to be at rest. Killed at any moment, it leaves all of the old rows or all of the new ones. A projection
    of your own is marked, and folded again by the next server that has it; until then its old state serves.
    """
    async with owning(db) as log:
        try:
            with progress(f"rebuilding {name or 'all'}", "positions") as update:
                done = await rebuild_in(log, name, update)
        except InvalidName as error:
            raise Stop(
                Code.NOT_FOUND, f"there is no projection {shown(name)}; `eventlog cursors` lists them"
            ) from error
    output = out()
    if as_json:
        output.json(plain(done))
        return Code.DONE
    for each in done:
        output.line(Span(each.name, "name"), f": {_told(each)}")
    if any(each.passed for each in done):
        note("events that cannot be read were passed; `eventlog cursors --errors` names them")
    return Code.DONE


def _told(each: Rebuilt) -> str:
    if each.waits:
        return "will be folded again by the next server that has it; its old state serves until then"
    what = f"{count(each.different, 'row')} had been different" if each.different else "as it was"
    return f"{what}; {count(each.passed, 'event')} passed" if each.passed else what
