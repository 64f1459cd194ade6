"""`policy`: the numbers that were decided, with what they mean."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import click

from eventlog import CONTRACT_VERSION, DeliveryPolicy, capabilities
from eventlog.cli.explain import Code
from eventlog.cli.options import json_option
from eventlog.cli.output import Span, out
from eventlog.cli.table import Column, table
from eventlog.events import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_DEPTH, MAX_EVENT_BYTES, MAX_ID_CHARACTERS


class Number(NamedTuple):
    """A setting or a limit: its value, and what it means."""

    value: Any
    means: str


LIMITS = {
    "event_bytes": Number(MAX_EVENT_BYTES, "bytes of the JSON of one event's data"),
    "depth": Number(MAX_DEPTH, "objects and lists inside each other"),
    "batch_events": Number(MAX_BATCH_EVENTS, "events of one append_many"),
    "batch_bytes": Number(MAX_BATCH_BYTES, "bytes of one append_many"),
    "id_characters": Number(MAX_ID_CHARACTERS, "characters of the id of a session or a turn, or of a key"),
}


@click.command(short_help="the numbers of delivery, and the limits")
@json_option
def policy(as_json: bool) -> Code:
    """Show the defaults of DeliveryPolicy, which a Runtime is given, and the limits of the log, which are fixed."""
    settings = {each.name: Number(each.default, each.metadata["means"]) for each in fields(DeliveryPolicy)}
    output = out()
    if as_json:
        document = {"contract": CONTRACT_VERSION, "delivery": _document(settings), "limits": _document(LIMITS)}
        output.json({**document, "capabilities": capabilities()})
        return Code.DONE
    output.line(f"durable hooks follow contract {CONTRACT_VERSION}, as a {capabilities()['hooks']['status']}")
    for title, numbers in (("DELIVERY", settings), ("LIMIT", LIMITS)):
        output.line()
        columns = (Column(title), Column("VALUE", right=True), Column("MEANS"))
        table(
            output,
            columns,
            [(Span(name, "name"), f"{number.value:,}", number.means) for name, number in numbers.items()],
        )
    return Code.DONE


def _document(numbers: dict[str, Number]) -> dict[str, Any]:
    return {name: number._asdict() for name, number in numbers.items()}
