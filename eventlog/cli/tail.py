"""`tail`: the last events of a session or of the whole log, and those that come."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from eventlog import Event, EventLog, Session
from eventlog.cli.events import EventList, JsonEventList
from eventlog.cli.explain import Code
from eventlog.cli.opening import reading
from eventlog.cli.options import json_lines_option, log_options
from eventlog.cli.output import out
from eventlog.cli.process import asynchronous, while_read
from eventlog.cli.selection import Selection, selection_options
from eventlog.cli.show import ended

LAST = 10


@click.command(short_help="the last events, and those that come")
@click.argument("session_id", required=False, metavar="[SESSION]")
@click.option("--follow", "-f", is_flag=True, help="Go on with events as they are recorded, until interrupted.")
@click.option(
    "--last",
    "-n",
    type=click.IntRange(min=0),
    default=LAST,
    show_default=True,
    metavar="N",
    help="Begin with the last N.",
)
@click.option("--turn", metavar="TURN", help="Only events of this turn.")
@selection_options
@json_lines_option
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document; with --follow the same as --jsonl.")
@log_options
@asynchronous
async def tail(
    db: Path,
    session_id: str | None,
    follow: bool,
    last: int,
    turn: str | None,
    selection: Selection,
    as_json: bool,
    as_json_lines: bool,
) -> Code:
    """Show the last events of SESSION, or of the whole log.

    With --after everything behind that place is shown, however much it is. --follow sees what other processes
    record, and ends when nobody reads its output any more.
    """
    output = out()
    events = (
        JsonEventList(output, as_lines=as_json_lines or follow)  # a document has an end
        if as_json or as_json_lines
        else EventList(output, of_session=session_id is not None)
    )
    selection = dataclasses.replace(selection, turn=turn)

    async def show() -> None:
        async for event in _events(log, session_id, selection, last, follow=follow):
            events.add(event)
            if follow:
                output.flush()

    async with reading(db) as log:
        await (while_read(show()) if follow else show())
    events.end()
    return ended(events, selection, None)


async def _events(
    log: EventLog, session_id: str | None, selection: Selection, last: int, *, follow: bool
) -> AsyncIterator[Event[Any]]:
    """What is there, and then what comes: the second begins exactly behind the first."""
    now_us = log.clock.now_us()
    session = None if session_id is None else await log.session(session_id)
    source: EventLog | Session = log if session is None else session
    seen = await log.committed() if session is None else session.next_index - 1
    if selection.after is None:
        for event in await _last(source, seen, selection, last, now_us):
            yield event
    else:
        async for event in source.read(after=selection.after, before=seen + 1, types=selection.types):
            if selection.wants(event, now_us):
                yield event
        seen = max(seen, selection.after)
    if follow:
        async for event in source.tail(after=seen):
            if selection.wants(event, now_us):
                yield event


async def _last(
    source: EventLog | Session, seen: int, selection: Selection, last: int, now_us: int
) -> list[Event[Any]]:
    found: list[Event[Any]] = []
    if last:
        async for event in source.read(before=seen + 1, types=selection.types, reverse=True):
            if selection.wants(event, now_us):
                found.append(event)
            if len(found) == last:
                break
    return found[::-1]
