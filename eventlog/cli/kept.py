"""`kv` and `files`: what handlers keep in the log's file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import click

from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import moment_us, size
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, Span, escaped_lines, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.errors import shown
from eventlog.inspection import DEPLOYMENT, Inspection, KeptFile, KeptValue

T = TypeVar("T")

VALUES = (Column("KEY"), Column("SIZE", right=True), Column("OF"))
FILES = (
    Column("PATH"),
    Column("SIZE", right=True),
    Column("SESSION"),
    Column("AGENT", spare=2),
    Column("WRITTEN (UTC)", spare=1),
)

agent_option = click.option("--agent", metavar="NAME", help="Only what this agent keeps.")


@click.command(short_help="the keys that handlers keep, and what is under them")
@click.argument("prefix", default="", metavar="[PREFIX]")
@agent_option
@click.option("--extension", metavar="EXTENSION", help="Only what this extension keeps.")
@click.option("--session", "session_id", metavar="SESSION", help="Only what the channel of this session keeps for it.")
@click.option("--get", "key", metavar="KEY", help="Write what is kept under this key, as JSON.")
@json_option
@log_options
@asynchronous
async def kv(
    db: Path,
    prefix: str,
    agent: str | None,
    extension: str | None,
    session_id: str | None,
    key: str | None,
    as_json: bool,
) -> Code:
    """List the keys of host.kv, or those that begin with PREFIX, with the sizes of their values as JSON.

    Also what extensions have in their storage, and channels in their state of a session.
    """
    if sum(each is not None for each in (agent, extension, session_id)) > 1:
        raise click.UsageError("give one of --agent, --extension and --session")
    output = out()
    async with reading(db) as log:
        inspection = Inspection(log)
        place = agent
        if extension is not None:
            place = await inspection.place_of_extension(extension)
        if session_id is not None:
            place = await inspection.place_of_session(session_id)
        if key is not None:
            values = await inspection.values_of(key, place)
            options = "--agent, --extension or --session"
            output.json(_only(values, f"key {shown(key)}", "`eventlog kv` lists them", options))
            return Code.DONE
        found = await inspection.values(prefix, place)
    if as_json:
        output.json(plain(found))
    else:
        table(output, VALUES, [_value(each) for each in found], "no keys")
    return Code.DONE


def _value(kept: KeptValue) -> Row:
    return Span(kept.key, "name"), size(kept.size_bytes), _owner(kept)


def _owner(kept: KeptValue) -> str:
    if kept.channel is not None:
        return f"channel {kept.channel} in session {kept.session_id}"
    return f"agent {kept.agent}" if kept.extension is None else f"extension {kept.extension}"


@click.command(short_help="the files that handlers keep, and what is in them")
@click.argument("prefix", default="", metavar="[PREFIX]")
@click.option("--session", "session_id", metavar="SESSION", help="Only files of this session.")
@click.option("--deployment", is_flag=True, help="Only files of the whole deployment.")
@agent_option
@click.option("--get", "path", metavar="PATH", help="Write what is in this file, as it is.")
@json_option
@log_options
@asynchronous
async def files(
    db: Path,
    prefix: str,
    session_id: str | None,
    deployment: bool,
    agent: str | None,
    path: str | None,
    as_json: bool,
) -> Code:
    """List the files of host.files, or those whose paths begin with PREFIX.

    They are in the log, and in no folder.
    """
    if deployment and session_id is not None:
        raise click.UsageError("give --session or --deployment")
    output = out()
    async with reading(db) as log:
        if session_id is not None:
            await log.session(session_id)
        scope = DEPLOYMENT if deployment else session_id
        if path is not None:
            contents = await Inspection(log).contents_of(path, agent, scope)
            content = _only(
                contents, f"file {shown(path)}", "`eventlog files` lists them", "--session, --deployment or --agent"
            )
            _write(output, content, path)
            return Code.DONE
        found = await Inspection(log).files(prefix, agent, scope)
    if as_json:
        output.json(plain(found))
    else:
        table(output, FILES, [_file(each) for each in found], "no files")
    return Code.DONE


def _file(kept: KeptFile) -> Row:
    session = Span("(all)", "dim") if kept.session_id is None else kept.session_id
    return Span(kept.path, "name"), size(kept.size_bytes), session, kept.agent, moment_us(kept.at_us)


def _write(output: Output, content: bytes, path: str) -> None:
    """As it is into a pipe or a file; on a terminal as harmless lines."""
    if not output.is_terminal:
        output.raw(content)
        return
    try:
        lines = escaped_lines(content.decode())
    except UnicodeDecodeError:
        step = "write it into a file, with > FILE behind the command"
        raise Stop(Code.USAGE, f"{shown(path)} is no text; {step}") from None
    for line in lines if content else ():
        output.line(line)


def _only(found: list[T], what: str, step: str, option: str) -> T:
    if not found:
        raise Stop(Code.NOT_FOUND, f"no {what}; {step}")
    if len(found) > 1:
        raise Stop(Code.USAGE, f"there is more than one {what}; say which with {option}")
    return found[0]
