"""`show`: the events of a session, or its turns as people read them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from eventlog.cli.events import EventList, JsonEventList
from eventlog.cli.explain import Code, Stop
from eventlog.cli.opening import reading
from eventlog.cli.options import json_lines_option, json_option, log_options
from eventlog.cli.output import Output, note, out
from eventlog.cli.process import asynchronous
from eventlog.cli.selection import Selection, selection_options
from eventlog.cli.transcript import Transcript
from eventlog.errors import shown

EVERY_TURN = "*"  # no turn of a log can be told from it by accident: it is only the value of a bare --turn


@click.command(short_help="the events of a session, or a turn as a transcript")
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--turn",
    is_flag=False,
    flag_value=EVERY_TURN,
    metavar="[TURN]",
    help="Draw a turn, or all of them, as people read them.",
)
@selection_options
@click.option("--before", type=int, metavar="N", help="Only what comes before this index.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many events.")
@click.option("--full", is_flag=True, help="With --turn: do not shorten arguments and outputs.")
@json_lines_option
@json_option
@log_options
@asynchronous
async def show(
    db: Path,
    session_id: str,
    turn: str | None,
    selection: Selection,
    before: int | None,
    limit: int | None,
    full: bool,
    as_json: bool,
    as_json_lines: bool,
) -> Code:
    """Show the events of SESSION, oldest first.

    With --turn the turn is drawn as a transcript: text, tool calls with arguments and outputs, tokens, cost,
    durations. With --json or --jsonl it is only a filter.
    """
    output = out()
    if turn not in (None, EVERY_TURN):
        selection = dataclasses.replace(selection, turn=turn)
    events = _writer(output, turn, full=full, as_json=as_json, as_json_lines=as_json_lines)
    async with reading(db) as log:
        session = await log.session(session_id)
        now_us = log.clock.now_us()
        async for event in session.read(after=selection.after, before=before, types=selection.types):
            if limit is not None and events.shown >= limit:
                break
            if selection.wants(event, now_us):
                events.add(event)
    events.end()
    return ended(events, selection, session_id)


def _writer(
    output: Output, turn: str | None, *, full: bool, as_json: bool, as_json_lines: bool
) -> EventList | Transcript:
    if as_json or as_json_lines:
        return JsonEventList(output, as_lines=as_json_lines)
    return EventList(output, of_session=True) if turn is None else Transcript(output, whole=full)


def ended(events: EventList | Transcript, selection: Selection, session_id: str | None) -> Code:
    """The exit code of a command that wrote these events; says what is missing or corrupt."""
    if events.corrupt:
        note(f"{events.corrupt} corrupt; `eventlog check` names each damaged event of the log")
        return Code.DAMAGED
    if not events.shown and selection.turn is not None and session_id is not None:
        raise Stop(
            Code.NOT_FOUND, f"no turn {shown(selection.turn)} in session {shown(session_id)} (with these filters)"
        )
    if not events.shown and (hint := selection.hint()):
        note(hint)
    return Code.DONE
