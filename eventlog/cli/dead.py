"""`dead`: the dead letters of extensions, one by one with every attempt; and to retry or discard them."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from eventlog.cli.explain import Code, Stop
from eventlog.cli.groups import DefaultGroup
from eventlog.cli.human import count, moment
from eventlog.cli.opening import reading, steered
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, Span, escaped_lines, note, out, unsaid
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.control import Retried
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
    """Look at dead letters, deliveries that no handler is called for any more; retry and discard them.

    Without a command: list.
    """


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
    """Show the dead letter of EVENT, an id such as 1f0c9a3e:57, with the error of every attempt, each but once.

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
    meant = await _meant(inspection, event_id, extension)
    if len(meant) > 1:
        names = ", ".join(letter.extension for letter in meant)
        raise Stop(Code.USAGE, f"several extensions have buried this event: name one of {names} after it")
    letter = await inspection.dead_letter(meant[0].event_id, meant[0].extension)
    if letter is None:
        raise _absent(event_id)
    return letter


async def _meant(inspection: Inspection, event_id: str, extension: str | None) -> list[DeadLetter]:
    letters = await inspection.dead_letters(extension)
    meant = [letter for letter in letters if event_id in (letter.event_id, str(letter.position))]
    if not meant:
        raise _absent(event_id)
    return meant


def _absent(event_id: str) -> Stop:
    return Stop(Code.FINDINGS, f"no dead letter of event {shown(event_id)}; `eventlog dead` lists them")


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
    first_with: dict[str, int] = {}
    for attempt in letter.failures:
        output.line()
        output.line(
            f"attempt {attempt.number} ",
            Span(attempt.outcome, "bad"),
            f" {moment(attempt.ended_at)} UTC, request {attempt.request_id}",
        )
        error = attempt.traceback or attempt.error
        if (first := first_with.setdefault(error, attempt.number)) != attempt.number:
            output.line(f"  the same as of attempt {first}")
            continue
        for line in escaped_lines(error):
            output.harmless(f"  {line}".rstrip() + "\n")


# ------------------------------------------------------------------------------------------------------------ to steer


@dead.command(short_help="give dead letters new attempts")
@click.argument("event_id", required=False, metavar="[EVENT]")
@click.option("--extension", metavar="NAME", help="Only those of this extension.")
@click.option("--reason", metavar="REASON", help="Only those that were buried for this reason.")
@click.option("--all", "every", is_flag=True, help="All of them, where neither EVENT nor a filter is given.")
@json_option
@log_options
@asynchronous
async def retry(
    db: Path, event_id: str | None, extension: str | None, reason: str | None, every: bool, as_json: bool
) -> Code:
    """Give the dead letters of EVENT, or those that pass the filters, new attempts, due at once.

    A letter stays dead while its extension is not enabled or not granted, and when its event is too old. Where the
    queue of an extension is full, retrying stops for that extension, and says so.
    """
    if not (event_id or extension or reason or every):
        raise click.UsageError("name an EVENT, filter with --extension or --reason, or retry --all")
    if event_id is not None:
        async with reading(db) as log:
            event_id = (await _meant(Inspection(log), event_id, extension))[0].event_id
    answer = await steered(db, "dead.retry", event_id=event_id, extension=extension, reason=reason)
    retried = msgspec.convert(answer, Retried)
    if as_json:
        out().json(answer)
    else:
        out().line(f"queued {count(retried.retried, 'dead letter')} again")
    if not (retried.refused or retried.full):
        return Code.DONE
    out().flush()
    _say_what_stays(retried)
    return Code.FINDINGS if retried.retried else Code.REFUSED


def _say_what_stays(retried: Retried) -> None:
    if retried.refused:
        why = ", ".join(f"{number:,} {reason}" for reason, number in retried.refused.items())
        note(f"{count(sum(retried.refused.values()), 'dead letter')} cannot be retried now: {why}")
    for name in retried.full:
        note(f"stopped at extension {shown(name)}: its queue is full; retry the rest when there is room")


@dead.command(short_help="remove a dead letter for good")
@click.argument("event_id", metavar="EVENT")
@click.argument("extension", required=False, metavar="[EXTENSION]")
@click.option(
    "--reason", required=True, metavar="TEXT", help="Why nobody needs it any more; the server's log lines keep it."
)
@json_option
@log_options
@asynchronous
async def discard(db: Path, event_id: str, extension: str | None, reason: str, as_json: bool) -> Code:
    """Remove the dead letter of EVENT with its attempts.

    The reason stands in the log lines of the server, or without one in what this command writes.
    EXTENSION is needed only where several extensions have buried the same event.
    """
    async with reading(db) as log:
        letter = await _find(Inspection(log), event_id, extension)
    meant = {"event_id": letter.event_id, "extension": letter.extension}
    with unsaid("eventlog.durable"):
        discarded = await steered(db, "dead.discard", **meant, reason=reason)
    if not discarded:
        raise _absent(event_id)
    if as_json:
        out().json({"eventId": letter.event_id, "extension": letter.extension, "reason": reason})
    else:
        name = Span(letter.extension, "name")
        out().line(f"discarded the dead letter of event {letter.event_id} for ", name, f": {reason}")
    return Code.DONE
