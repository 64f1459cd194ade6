"""`extensions`: what is installed, what it may read, and what it is owed."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog.cli.explain import Code
from eventlog.cli.groups import DefaultGroup
from eventlog.cli.human import moment
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.inspection import Inspection, InstalledExtension

COLUMNS = (
    Column("EXTENSION"),
    Column("STATE"),
    Column("VERSION", spare=2),
    Column("OWED", right=True),
    Column("DEAD", right=True),
    Column("EVENTS", spare=1),
    Column("MAY READ", long=True),
    Column("ID", spare=3),
    Column("INSTALLED (UTC)", spare=4),
    Column("FOLDER", long=True, spare=5),
)
STYLES = {"enabled": "good", "paused": "wait", "disabled": "wait", "uninstalled": "dim"}


@click.group(cls=DefaultGroup, short_help="what is installed, what it may read, what it is owed")
def extensions() -> None:
    """Look at the extensions of a log. Without a command: list."""


@extensions.command("list", short_help="the extensions of a log")
@click.option("--all", "every", is_flag=True, help="Also those that were uninstalled.")
@json_option
@log_options
@asynchronous
async def list_(db: Path, every: bool, as_json: bool) -> Code:
    """List extensions with what they are owed: deliveries that are not acknowledged, and dead letters."""
    async with reading(db) as log:
        found = await Inspection(log).extensions()
    rows = [each for each in found if every or each.state != "uninstalled"]
    if as_json:
        out().json([_document(each) for each in rows])
    else:
        table(out(), COLUMNS, [_row(each) for each in rows], "no extensions")
    return Code.DONE


def _document(extension: InstalledExtension) -> dict[str, object]:
    document = plain(extension)
    del document["key"]  # of a table; means nothing outside
    return dict(document)


def _row(extension: InstalledExtension) -> Row:
    state = "paused" if extension.paused and extension.state == "enabled" else extension.state
    return (
        Span(extension.name, "name"),
        Span(state, STYLES[state]),
        extension.version,
        Span(f"{extension.live:,}", "wait" if extension.live else ""),
        Span(f"{extension.dead:,}", "bad" if extension.dead else ""),
        " ".join(sorted(extension.handlers)),
        ", ".join(f"{grant.capability} of {grant.project}" for grant in extension.grants) or "nothing",
        extension.id,
        moment(extension.installed_at),
        extension.path,
    )
