"""`append`: one event."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any

import click

from eventlog import InvalidEvent
from eventlog.cli.explain import Code
from eventlog.cli.opening import steered
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import note, out
from eventlog.cli.process import asynchronous, blocking
from eventlog.events import MAX_EVENT_BYTES, VOCABULARY

FROM_STDIN = "-"
NEAR = 0.8
"""How alike a built-in type has to be, of 1, to be what was meant."""


@click.command(short_help="append one event to a session")
@click.argument("session_id", metavar="SESSION")
@click.argument("event_type", metavar="TYPE")
@click.argument("data", default="{}", metavar="[DATA]")
@click.option("--turn", metavar="TURN", help="The turn that it belongs to.")
@click.option("--key", metavar="KEY", help="Store it once, however often this is repeated with the same key.")
@click.option("--expected-index", type=int, metavar="N", help="Store it only if it gets this index.")
@click.option("--start", is_flag=True, help="Start the session if it is not there.")
@json_option
@log_options
@asynchronous
async def append(
    db: Path,
    session_id: str,
    event_type: str,
    data: str,
    turn: str | None,
    key: str | None,
    expected_index: int | None,
    start: bool,
    as_json: bool,
) -> Code:
    """Append one event to SESSION. DATA is a JSON object, or - to read it from stdin.

    The process that owns the log appends it; where there is none, this one owns the log for a moment.
    """
    text: str | bytes = data
    if data == FROM_STDIN:
        with blocking():
            text = sys.stdin.buffer.read(6 * MAX_EVENT_BYTES)
    content = _object(text)
    output = out()
    try:
        appended = await steered(
            db,
            "append",
            session_id=session_id,
            type=event_type,
            data=content,
            turn_id=turn,
            key=key,
            expected_index=expected_index,
            start_in="cli" if start else None,
        )
    except InvalidEvent as error:
        if error.path == "turnId" and turn is None:
            raise click.UsageError(f"{event_type} belongs to a turn; name it with --turn") from None
        raise
    event = appended["event"]
    if as_json:
        output.json(event)
    else:
        place = f"event {event['index']} of session {event['sessionId']}, position {appended['position']}"
        output.line(f"{event['type']} is {place}")
    output.flush()
    _doubt(event["type"])
    return Code.DONE


def _doubt(event_type: str) -> None:
    """The log takes any type, so that one that was misspelled would never be noticed."""
    if event_type in VOCABULARY:
        return
    near = difflib.get_close_matches(event_type, VOCABULARY, 1, NEAR)
    if near:
        note(f"{event_type} is a type of your own and was stored as one; did you mean the built-in {near[0]}?")


def _object(text: str | bytes) -> dict[str, Any]:
    """DATA as it was written: a decoder that drops the first of two equal keys would change it."""
    try:
        data = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent("data", f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidEvent("data", 'must be a JSON object, such as \'{"text": "hi"}\'')
    return data


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")
