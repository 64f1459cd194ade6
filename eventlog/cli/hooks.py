"""`hooks` and `logs`: how far each observe hook is, what it missed, and what its handlers threw."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from eventlog import EventLogError
from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count, moment_us, span, wrapped
from eventlog.cli.opening import reading, steered
from eventlog.cli.options import json_lines_option, json_option, log_options
from eventlog.cli.output import Output, Span, escaped, note, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.control import ask
from eventlog.errors import shown
from eventlog.inspection import ErrorRow, GapRow, HookRow, Inspection

HOOKS = (
    Column("HOOK"),
    Column("AGENT", spare=2),
    Column("BEHIND", right=True),
    Column("GAPS", right=True),
    Column("CALLS", right=True),
    Column("ERRORS", right=True),
    Column("STUCK", right=True),
    Column("RESTART", spare=3),
    Column("EVENTS", long=True, least=27),
    Column("SOURCE", long=True, path=True, spare=1, least=24),
)
GAPS = (
    Column("GAP OF HOOK"),
    Column("AGENT", spare=2),
    Column("POSITIONS"),
    Column("EVENTS", right=True),
    Column("SESSION"),
    Column("SINCE (UTC)", spare=1),
)
LINES = 100
INDENT = "    "
ANSWER_WITHIN_S = 2.0
"""A server whose loop is blocked does not keep anybody from looking at its log."""


@click.command(short_help="how far each observe hook is, and what it missed")
@click.argument("name", required=False, metavar="[HOOK]")
@click.option("--gaps", "only_gaps", is_flag=True, help="Only the gaps: events that a hook will never be shown.")
@click.option("--all", "every", is_flag=True, help="Also hooks that the last runtime did not load, and their gaps.")
@click.option("--unload", metavar="AGENT", help="List the hooks of AGENT no more, until a runtime loads them again.")
@json_option
@log_options
@asynchronous
async def hooks(db: Path, name: str | None, only_gaps: bool, every: bool, unload: str | None, as_json: bool) -> Code:
    """List the hooks that the last runtime of each agent loaded, or only HOOK, and the gaps of what they were shown.

    BEHIND counts positions of the log that a hook has not finished, as it was last written down, or says that the
    running server has not mounted it. STUCK counts calls that have not returned for long, as that server says; - (null
    as JSON) where none runs or answers.
    """
    if unload is not None:
        return await _unload(db, unload, as_json)
    async with reading(db) as log:
        inspection = Inspection(log)
        rows = [row for row in await inspection.hooks() if name in (None, row.name) and (row.loaded or every or name)]
        gaps = await inspection.hook_gaps(name)
        if not every and name is None:
            loaded = {(row.agent, row.name) for row in rows}
            gaps = [gap for gap in gaps if (gap.agent, gap.name) in loaded]
        unserved = await inspection.unserved_agents()
    if name is not None and not rows:
        raise Stop(
            Code.NOT_FOUND, f"no hook {shown(name)} has been served from this log; `eventlog hooks --all` lists them"
        )
    server = _Server() if only_gaps else await _asked(db)
    output = out()
    if as_json:
        listed = [{**plain(row), "mounted": server.mounts(row), "stuck": server.stuck_in(row)} for row in rows]
        output.json(plain(gaps) if only_gaps else listed)
    else:
        if not only_gaps:
            table(output, HOOKS, [_hook(row, server) for row in rows], "no hooks")
            if gaps and (rows or output.is_terminal):
                output.line()
        table(output, GAPS, [_gap(gap) for gap in gaps], "no gaps" if only_gaps else "")
    output.flush()
    for each in unserved:
        note(f"agent {shown(each.agent)} has {count(each.sessions, 'session')} here, and none of the loaded hooks")
    for agent in sorted({row.agent for row in rows if row.loaded and server.mounts(row) is False}):
        step = f"`eventlog hooks --unload {shlex.quote(agent)}`"
        note(f"agent {shown(agent)} is not served by the running process; where it is gone for good: {step}")
    return Code.DONE


async def _unload(db: Path, agent: str, as_json: bool) -> Code:
    unloaded = await steered(db, "hooks.unload", agent=agent)
    if not unloaded:
        raise Stop(Code.NOT_FOUND, f"no hook of an agent {shown(agent)} is loaded; `eventlog hooks` lists them")
    if as_json:
        out().json({"agent": agent, "unloaded": unloaded})
    else:
        out().line(f"{count(unloaded, 'hook')} of agent ", Span(agent, "name"), " unloaded; --all still lists them")
    return Code.DONE


@dataclass(frozen=True, slots=True)
class _Server:
    """What the owner of the log says: which agents it serves, and by agent and hook how many calls are stuck."""

    agents: frozenset[str] = frozenset()
    stuck: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def mounts(self, row: HookRow) -> bool | None:
        """Whether it calls the hook; None where no agent is served, so that nothing is unusual."""
        return row.agent in self.agents if self.agents else None

    def stuck_in(self, row: HookRow) -> int | None:
        """Calls of the hook that have not returned for long; None where nobody says."""
        return self.stuck.get((row.agent, row.name))


async def _asked(db: Path) -> _Server:
    """The server, if one runs and answers."""
    server = _Server()
    with suppress(EventLogError, OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_WITHIN_S):
            server = _Server(frozenset((await ask(db, "ping"))["agents"]))
            stuck = {(hook["agent"], hook["name"]): hook["stuck"] for hook in await ask(db, "hooks")}
            return _Server(server.agents, stuck)
    return server


def _hook(row: HookRow, server: _Server) -> Row:
    stuck = server.stuck_in(row)
    return (
        Span(row.name, "name" if row.loaded else "dim"),
        row.agent,
        Span("not mounted", "dim") if server.mounts(row) is False else Span(f"{row.lag:,}", "wait" if row.lag else ""),
        Span(f"{row.gaps:,}", "wait" if row.gaps else ""),
        f"{row.calls:,}",
        Span(f"{row.errors:,}", "bad" if row.errors else ""),
        Span("-", "dim") if stuck is None else Span(f"{stuck:,}", "bad" if stuck else ""),
        row.on_restart,
        " ".join(row.events),
        row.source,
    )


def _gap(gap: GapRow) -> Row:
    return (
        Span(gap.name, "name"),
        gap.agent,
        span(gap.first, gap.last),
        f"at most {gap.at_most:,}",
        gap.session_id or "all",
        moment_us(gap.at_us),
    )


@click.command(short_help="what handlers of observe hooks threw")
@click.argument("name", required=False, metavar="[HOOK]")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only errors with a larger number.")
@click.option(
    "--limit", "-n", type=click.IntRange(min=0), default=LINES, show_default=True, metavar="N", help="The newest N."
)
@json_lines_option
@json_option
@log_options
@asynchronous
async def logs(db: Path, name: str | None, after: int, limit: int, as_json: bool, as_json_lines: bool) -> Code:
    """Show the stored errors of all hooks, or of HOOK, oldest first."""
    async with reading(db) as log:
        inspection = Inspection(log)
        errors = await inspection.hook_errors(name, after, limit)
        if not errors and name is not None and not any(row.name == name for row in await inspection.hooks()):
            raise Stop(
                Code.NOT_FOUND,
                f"no hook {shown(name)} has been served from this log; `eventlog hooks --all` lists them",
            )
    output = out()
    if as_json:
        output.json(plain(errors))
    elif as_json_lines:
        for error in errors:
            output.json_line(plain(error))
    else:
        for error in errors:
            _tell(output, error)
        if not errors and output.is_terminal:
            output.line(Span("no errors", "dim"))
    return Code.DONE


def _tell(output: Output, error: ErrorRow) -> None:
    """On a terminal what does not fit goes on in lines of its own, set in."""
    head = f"{moment_us(error.at_us)} UTC  position {error.position}  "
    room = None if output.width is None else max(output.width, 2 * len(head)) - len(INDENT)
    first, *more = wrapped(escaped(head + error.message), room)
    output.line(Span(head, "dim"), first[len(head) :])
    for line in more:
        output.line(INDENT, line)
