"""`recover`: what the last owner of a log left unfinished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count
from eventlog.cli.opening import owning, reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, Span, note, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous
from eventlog.cli.table import Column, Row, table
from eventlog.errors import LogInUse, OwnershipLost
from eventlog.inspection import Inspection, Recovered

COLUMNS = (
    Column("UNFINISHED"),
    Column("SESSION"),
    Column("TURN"),
    Column("INDEX", right=True),
    Column("ID"),
    Column("WHAT", long=True),
)


@click.command(short_help="what the last owner left unfinished")
@click.option("--accept-loss", is_flag=True, help="Go on with what is left of a log that lost its end.")
@json_option
@log_options
@asynchronous
async def recover(db: Path, accept_loss: bool, as_json: bool) -> Code:
    """Show what the next start of a server would find unfinished in a log that nobody owns.

    Turns that did not end, calls without a result, questions without an answer, jobs that will be `outcomeUnknown`,
    and what is taken up again. Changes nothing, but with --accept-loss: the log then begins a new era, so that no
    event gets the id of one that is lost. Ends with 4 when it meets a damaged event or a loss.
    """
    try:
        async with owning(db, accept_loss=True) if accept_loss else reading(db, accept_loss=True) as log:
            found, loss = await Inspection(log).recovery(), log.loss
    except OwnershipLost:
        raise
    except LogInUse as error:
        owner = "another process" if error.pid is None else f"process {error.pid}"
        where = "it knows what it found unfinished as `runtime.recovered`"
        raise Stop(Code.REFUSED, f"{error.path} is in use by {owner}; {where}") from None
    output = out()
    if as_json:
        shortened = None if loss is None else {"proven": loss.proven, "found": loss.found}
        output.json({**plain(found), "shortened": shortened})
    else:
        _tell(output, found)
    if loss is not None and not accept_loss:  # one that was accepted, the log itself tells
        note(
            f"the log held events up to position {loss.proven} and now ends at {loss.found}; "
            "take it as it is with --accept-loss"
        )
        return Code.DAMAGED
    return Code.DAMAGED if found.damaged else Code.DONE


def _tell(output: Output, found: Recovered) -> None:
    table(output, COLUMNS, list(_rows(found)), "nothing is unfinished")
    counts = [f"{text} {what}" for number, text, what in _counts(found) if number]
    if counts:
        output.line(f"the next start will go on with {' and '.join(counts)}")
    if found.gaps:
        output.line(f"{count(found.gaps, 'hook')} will not be shown what was recorded before: a gap each")
    if found.not_named or found.events_unread:
        note(f"{found.not_named:,} more are not named, {count(found.events_unread, 'event')} not looked through")


def _counts(found: Recovered) -> Sequence[tuple[int, str, str]]:
    return (
        (found.deliveries_resumed, count(found.deliveries_resumed, "call"), "of extensions"),
        (found.reminders_due, count(found.reminders_due, "reminder"), "that fell due"),
    )


def _rows(found: Recovered) -> Iterator[Row]:
    for turn in found.open_turns:
        yield Span("turn", "wait"), turn.session_id, turn.turn_id, f"{turn.index}", "", ""
    for call in found.unanswered_calls:
        what = f"{call.tool_name} {json.dumps(call.args, ensure_ascii=False)}"
        yield Span("call", "wait"), call.session_id, call.turn_id, f"{call.index}", call.call_id, what
    for asked in found.open_inputs:
        what = f"{asked.kind}: {asked.prompt}"
        yield Span("input", "wait"), asked.session_id, asked.turn_id, f"{asked.index}", asked.request_id, what
    for job in found.jobs_unknown:
        yield Span("job", "wait"), job.session_id, "", "", job.job_id, job.name or ""
    for event in found.damaged:
        yield Span("damaged", "bad"), event.session_id, "", f"{event.index}", "", event.why
