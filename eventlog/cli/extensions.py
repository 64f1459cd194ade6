"""`extensions`: what is installed, what it may read, what it is owed; and to steer it, on a running server too."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from eventlog.cli.explain import Code
from eventlog.cli.groups import DefaultGroup
from eventlog.cli.human import count, moment
from eventlog.cli.opening import reading, steered
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Span, note, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.control import Steered
from eventlog.inspection import Inspection, InstalledExtension

COLUMNS = (
    Column("EXTENSION"),
    Column("STATE"),
    Column("VERSION", spare=2),
    Column("OWED", right=True),
    Column("DEAD", right=True),
    Column("REFUSED", right=True),
    Column("EVENTS", spare=1),
    Column("MAY READ", long=True, least=35),
    Column("ID", spare=3),
    Column("INSTALLED (UTC)", spare=4),
    Column("FOLDER", long=True, path=True, spare=5),
)
STYLES = {"enabled": "good", "disabled": "wait", "uninstalled": "dim"}


@click.group(cls=DefaultGroup, short_help="what is installed, what it may read, what it is owed")
def extensions() -> None:
    """Look at the extensions of a log, and steer them. Without a command: list.

    The process that serves them does it at once: it aborts calls, activates and deactivates. Where no process owns the
    log, only the file changes, and the next server follows it.
    """


@extensions.command("list", short_help="the extensions of a log")
@click.option("--all", "every", is_flag=True, help="Also those that were uninstalled.")
@json_option
@log_options
@asynchronous
async def list_(db: Path, every: bool, as_json: bool) -> Code:
    """List extensions with what they are owed: deliveries that are not acknowledged, and dead letters.

    REFUSED are events that came while its queue was full; it will never get them. One that failed could not be
    activated by the server that tried last, which is told below: its deliveries wait.
    """
    async with reading(db) as log:
        found = await Inspection(log).extensions()
    rows = [each for each in found if every or each.state != "uninstalled"]
    if as_json:
        out().json([_document(each) for each in rows])
    else:
        table(out(), COLUMNS, [_row(each) for each in rows], "no extensions")
        for each in rows:
            if each.failure is not None:
                out().line(Span(each.name, "name"), Span(" failed: ", "bad"), each.failure)
    return Code.DONE


def _document(extension: InstalledExtension) -> dict[str, object]:
    document = plain(extension)
    del document["key"]  # of a table; means nothing outside
    return dict(document)


def _row(extension: InstalledExtension) -> Row:
    return (
        Span(extension.name, "name"),
        _state(extension),
        extension.version,
        Span(f"{extension.live:,}", "wait" if extension.live else ""),
        Span(f"{extension.dead:,}", "bad" if extension.dead else ""),
        Span(f"{extension.refused:,}" if extension.refused else "", "bad"),
        " ".join(sorted(extension.handlers)),
        ", ".join(f"{grant.capability} of {grant.project}" for grant in extension.grants) or "nothing",
        extension.id,
        moment(extension.installed_at),
        extension.path,
    )


def _state(extension: InstalledExtension) -> Span:
    """What keeps it from being called, if anything does."""
    if extension.state == "enabled" and extension.failure is not None:
        return Span("failed", "bad")
    if extension.state == "enabled" and extension.paused:
        return Span("paused", "wait")
    return Span(extension.state, STYLES[extension.state])


# ------------------------------------------------------------------------------------------------------------ to steer

_VERBS = {
    "uninstall": (
        "stop it for good, and clear what it is owed",
        "Stop EXTENSION for good: take back its grants, clear its deliveries and dead letters, and abort its calls.",
    ),
    "enable": (
        "let it get what is recorded from now on",
        "Enable EXTENSION again. It gets what is recorded from now on, and nothing of what it missed.",
    ),
    "disable": (
        "stop it, and clear what it is owed",
        "Disable EXTENSION: clear its deliveries and dead letters, and abort its calls. Its grants stay.",
    ),
    "pause": (
        "call it no more, and keep what it is owed",
        "Begin no more calls of EXTENSION. Its queue goes on filling, and no attempt is spent.",
    ),
    "resume": ("call it again", "Begin calls of EXTENSION again."),
}


def _add(verb: str, short: str, text: str) -> None:
    @extensions.command(verb, short_help=short, help=text)
    @click.argument("name", metavar="EXTENSION")
    @json_option
    @log_options
    @asynchronous
    async def by_name(db: Path, name: str, as_json: bool) -> Code:
        return _tell(verb, await steered(db, f"extensions.{verb}", name=name), as_json)


@extensions.command(short_help="add an extension, or bring it up to date")
@click.argument("path", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("--grant", "grants", multiple=True, metavar="PROJECT", help="Grant it all it asks for in this project.")
@json_option
@log_options
@asynchronous
async def install(db: Path, path: Path, grants: tuple[str, ...], as_json: bool) -> Code:
    """Install the extension in FOLDER, or bring an installed one up to date. A new one begins at the end of the log."""
    answer = await steered(db, "extensions.install", path=_absolute(path), grants=grants)
    return _tell("install", answer, as_json)


def _absolute(path: Path) -> str:
    """As its owner finds it, which runs elsewhere."""
    return str(path.absolute())


for _verb, (_short, _text) in _VERBS.items():
    _add(_verb, _short, _text)


@extensions.command(short_help="let it read a project from now on")
@click.argument("name", metavar="EXTENSION")
@click.argument("project", metavar="PROJECT")
@click.argument("capability", required=False, metavar="[CAPABILITY]")
@json_option
@log_options
@asynchronous
async def grant(db: Path, name: str, project: str, capability: str | None, as_json: bool) -> Code:
    """Grant EXTENSION one CAPABILITY in PROJECT, or all that its manifest asks for, from now on."""
    answer = await steered(db, "extensions.grant", name=name, project=project, capability=capability)
    return _tell("grant", answer, as_json)


@extensions.command(short_help="take a project back, and clear what it is owed of it")
@click.argument("name", metavar="EXTENSION")
@click.argument("project", metavar="PROJECT")
@click.argument("capability", required=False, metavar="[CAPABILITY]")
@json_option
@log_options
@asynchronous
async def revoke(db: Path, name: str, project: str, capability: str | None, as_json: bool) -> Code:
    """Take back one CAPABILITY of EXTENSION in PROJECT, or all; clear what it is owed by that, and abort such calls."""
    answer = await steered(db, "extensions.revoke", name=name, project=project, capability=capability)
    return _tell("revoke", answer, as_json)


def _tell(verb: str, answer: object, as_json: bool) -> Code:
    if as_json:
        out().json(answer)
    steered_one = msgspec.convert(answer, Steered)
    if not as_json:
        out().line(Span(steered_one.extension, "name"), f" {_SAID[verb]}", *_done(verb, steered_one))
    if steered_one.inactive is None:
        return Code.DONE
    out().flush()
    note(f"{steered_one.extension} is not active, and its deliveries wait: {steered_one.inactive}")
    return Code.FINDINGS


_SAID = {
    "install": "is installed",
    "uninstall": "is uninstalled",
    "enable": "is enabled, and gets what is recorded from now on",
    "disable": "is disabled",
    "pause": "is paused",
    "resume": "is called again",
    "grant": "may read from now on:",
    "revoke": "may still read:",
}


def _done(verb: str, it: Steered) -> list[str]:
    """What there is to say behind that."""
    told = []
    if verb == "install":
        told.append(f" in version {it.version}, and {it.state}; it may read: {_granted(it)}")
    if verb in ("grant", "revoke"):
        told.append(f" {_granted(it)}")
    if verb in ("pause", "resume"):
        told.append(f"; it is owed {count(it.live, 'delivery')}")
    if verb == "enable" and it.paused:
        told.append("; it is paused still, and called when it is resumed")
    if it.cleared is not None:
        told.append(f"; cleared {count(it.cleared.live, 'delivery')} and {count(it.cleared.dead, 'dead letter')}")
    return told


def _granted(it: Steered) -> str:
    return ", ".join(f"{grant.capability} of {grant.project}" for grant in it.grants) or "nothing"
