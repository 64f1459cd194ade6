"""`search`: the events of the log that say something."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click

from eventlog import CorruptEvent, Event, EventLog
from eventlog.cli.events import EventList, JsonEventList, text_of
from eventlog.cli.explain import Code
from eventlog.cli.opening import reading
from eventlog.cli.options import json_lines_option, json_option, log_options
from eventlog.cli.output import Output, note, out
from eventlog.cli.process import asynchronous
from eventlog.cli.selection import Selection, selection_options
from eventlog.cli.show import ended
from eventlog.errors import shown
from eventlog.events import decode_json

CONTEXT_CHARACTERS = 40
"""Shown at most before what was found; behind it is what fits."""


@click.command(short_help="the events that say something")
@click.argument("text", metavar="TEXT")
@click.option("--session", "session_id", metavar="SESSION", help="Only events of this session.")
@click.option("--turn", metavar="TURN", help="Only events of this turn.")
@selection_options
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many events.")
@click.option("--case-sensitive", is_flag=True, help="Tell capital letters from small ones.")
@json_lines_option
@json_option
@log_options
@asynchronous
async def search(
    db: Path,
    text: str,
    session_id: str | None,
    turn: str | None,
    selection: Selection,
    limit: int | None,
    case_sensitive: bool,
    as_json: bool,
    as_json_lines: bool,
) -> Code:
    """Show the events with TEXT in a text or a number of their data, oldest first.

    TEXT is taken as it is: no character of it is special. What a model streams word by word is found in the
    message.completed that follows it.
    """
    if not text:
        raise click.BadParameter("it is empty; `eventlog tail` shows events without looking for one", param_hint="TEXT")
    looked_for = Needle(text, case_sensitive=case_sensitive)
    selection = dataclasses.replace(selection, turn=turn)
    output = out()
    events = JsonEventList(output, as_lines=as_json_lines) if as_json or as_json_lines else Found(output, looked_for)
    async with reading(db) as log:
        async for event in _selected(log, session_id, selection):
            if limit is not None and events.shown >= limit:
                break
            if looked_for.is_in(event):
                events.add(event)
    events.end()
    if not events.shown and selection.hint() is None:
        note(f"nothing says {shown(text)}" + ("" if case_sensitive else ", in capital or small letters"))
    return ended(events, selection, None)


async def _selected(log: EventLog, session_id: str | None, selection: Selection) -> AsyncIterator[Event[Any]]:
    """A page of the log is in memory at a time."""
    now_us = log.clock.now_us()
    source = log if session_id is None else await log.session(session_id)
    async for event in source.read(after=selection.after, types=selection.types):
        if selection.wants(event, now_us):
            yield event


class Needle:
    """A text that is looked for."""

    def __init__(self, text: str, *, case_sensitive: bool) -> None:
        self._case_sensitive = case_sensitive
        self._text = self._folded(text)

    def is_in(self, event: Event[Any]) -> bool:
        """Whether a text or a number of the event's data has it. A damaged event may have."""
        try:
            return self.excerpt(event) is not None
        except CorruptEvent:
            return True

    def excerpt(self, event: Event[Any], context: int = CONTEXT_CHARACTERS) -> str | None:
        """The text that has it, from `context` characters before it on; None without one. Raises CorruptEvent."""
        _ = event.data
        if b"\\" not in event.raw and self._text not in self._folded(event.raw.decode()):
            return None  # JSON without an escape has every text as it is
        for text in _texts(decode_json(event.raw)):
            place = self._folded(text).find(self._text)
            if place >= 0:
                return _from(text, place, context)
        return None

    def _folded(self, text: str) -> str:
        return text if self._case_sensitive else text.casefold()


def _from(text: str, place: int, context: int) -> str:
    start = max(0, place - context)
    return text if start == 0 else f"...{text[start:]}"


def _texts(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, in their order; names of fields are none."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif value is not None and not isinstance(value, bool):
            yield text_of(value)


class Found(EventList):
    """Writes events with what was found in each."""

    def __init__(self, output: Output, looked_for: Needle) -> None:
        super().__init__(output, of_session=False)
        self._looked_for = looked_for

    def _told(self, event: Event[Any], room: int) -> str:
        context = min(CONTEXT_CHARACTERS, room // 4)  # what was found has to be seen on a narrow terminal too
        return " ".join((self._looked_for.excerpt(event, context) or "").split())
