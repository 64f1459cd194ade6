"""`dead`: the dead letters of extensions, one by one with every attempt."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog.cli.explain import Code, Stop
from eventlog.cli.groups import DefaultGroup
from eventlog.cli.human import count, moment
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, Span, escaped_lines, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.errors import shown
from eventlog.inspection import DeadLetter, Inspection

COLUMNS = (
    Column("EXTENSION"),
    Column("EVENT"),
    Column("REASON"),
    Column("ATTEMPTS", right=True),
    Column("SESSION"),
    Column("TYPE", spare=2),
    Column("PROJECT", spare=3),
    Column("DIED (UTC)", spare=1),
    Column("LAST ERROR", long=True),
)


@click.group(cls=DefaultGroup, short_help="deliveries that were given up")
def dead() -> None:
    """Look at dead letters: deliveries that no handler is called for any more. Without a command: list."""


@dead.command("list", short_help="the dead letters of a log")
@click.option("--extension", metavar="NAME", help="Only those of this extension.")
@click.option("--reason", metavar="REASON", help="Only those that were buried for this reason.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most so many.")
@json_option
@log_options
@asynchronous
async def list_(db: Path, extension: str | None, reason: str | None, limit: int | None, as_json: bool) -> Code:
    """List dead letters in the order in which they died."""
    async with reading(db) as log:
        letters = await Inspection(log).dead_letters(extension, reason, limit)
    if as_json:
        out().json([_without_attempts(letter) for letter in letters])
    else:
        table(out(), COLUMNS, [_row(letter) for letter in letters], "no dead letters")
    return Code.DONE


@dead.command(short_help="one dead letter with every attempt")
@click.argument("event_id", metavar="EVENT")
@click.argument("extension", required=False, metavar="[EXTENSION]")
@json_option
@log_options
@asynchronous
async def show(db: Path, event_id: str, extension: str | None, as_json: bool) -> Code:
    """Show the dead letter of EVENT, an id such as 1f0c9a3e:57, with the error of every attempt.

    EXTENSION is needed only where several extensions have buried the same event.
    """
    async with reading(db) as log:
        letter = await _find(Inspection(log), event_id, extension)
    if as_json:
        out().json(plain(letter))
    else:
        _draw(out(), letter)
    return Code.DONE


async def _find(inspection: Inspection, event_id: str, extension: str | None) -> DeadLetter:
    """The one letter that is meant, with its attempts; the event's bare position will do."""
    letters = await inspection.dead_letters(extension)
    meant = [letter for letter in letters if event_id in (letter.event_id, str(letter.position))]
    if len(meant) > 1:
        names = ", ".join(letter.extension for letter in meant)
        raise Stop(Code.USAGE, f"several extensions have buried this event: name one of {names} after it")
    letter = await inspection.dead_letter(meant[0].event_id, meant[0].extension) if meant else None
    if letter is None:
        raise Stop(Code.FINDINGS, f"no dead letter of event {shown(event_id)}; `eventlog dead` lists them")
    return letter


def _without_attempts(letter: DeadLetter) -> dict[str, object]:
    """As JSON. A listing does not read the attempts: an empty list of them would say that there were none."""
    document = plain(letter)
    del document["failures"]
    return dict(document)


def _row(letter: DeadLetter) -> Row:
    return (
        Span(letter.extension, "name"),
        letter.event_id,
        Span(letter.reason, "bad"),
        f"{letter.attempts:,}",
        letter.session_id,
        letter.type,
        letter.project,
        moment(letter.died_at),
        letter.last_error or "",
    )


def _draw(output: Output, letter: DeadLetter) -> None:
    turn = "" if letter.version is None else f", version {letter.version} of its turn"
    output.line(Span(f"event {letter.event_id}", "title"), " for extension ", Span(letter.extension, "name"))
    output.line(
        "  ",
        Span(letter.reason, "bad"),
        f" after {count(letter.attempts, 'attempt')}, died {moment(letter.died_at)} UTC",
    )
    output.line(f"  {letter.type}{turn}, recorded {moment(letter.recorded_at)} UTC")
    output.line(f"  session {letter.session_id}, project {letter.project}")
    for attempt in letter.failures:
        output.line()
        output.line(
            f"attempt {attempt.number} ",
            Span(attempt.outcome, "bad"),
            f" {moment(attempt.ended_at)} UTC, request {attempt.request_id}",
        )
        for line in escaped_lines(attempt.traceback or attempt.error):
            output.harmless(f"  {line}".rstrip() + "\n")
