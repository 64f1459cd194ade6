"""`policy`: the numbers that were decided, with what they mean."""

from __future__ import annotations

from typing import Any

import click

from eventlog import CONTRACT_VERSION, capabilities
from eventlog.cli.explain import Code
from eventlog.cli.options import json_option
from eventlog.cli.output import Span, out
from eventlog.cli.table import Column, Row, table
from eventlog.settings import SECTIONS, Number, Numbers


@click.command(short_help="the numbers that were decided, and the limits")
@json_option
def policy(as_json: bool) -> Code:
    """Show every default that can be set, and every limit that is fixed, with what it means.

    Defaults are those of EventLog, DeliveryPolicy, ObserveLimits, ReminderLimits, FoldLimits, and of the hooks that are
    ready.
    """
    output = out()
    if as_json:
        sections = {name: _document(numbers) for name, numbers in SECTIONS.items()}
        output.json({"contract": CONTRACT_VERSION, **sections, "capabilities": capabilities()})
        return Code.DONE
    output.line(f"durable hooks follow contract {CONTRACT_VERSION}, as a {capabilities()['hooks']['status']}")
    for section, numbers in SECTIONS.items():
        output.line()
        columns = (Column(section.upper()), Column("VALUE", right=True), Column("MEANS"))
        table(output, columns, [_row(name, number) for name, number in numbers.items()])
    return Code.DONE


def _row(name: str, number: Number) -> Row:
    value = number.value if isinstance(number.value, str) else f"{number.value:,}"
    return Span(name, "name"), value, number.means


def _document(numbers: Numbers) -> dict[str, Any]:
    return {name: number._asdict() for name, number in numbers.items()}
