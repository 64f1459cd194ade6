"""`import` and `export`: envelopes as lines of JSON, into a log and out of it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from eventlog import CorruptEvent, EventLog, Session
from eventlog.cli.explain import Code
from eventlog.cli.human import count
from eventlog.cli.opening import owning, reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, note, out
from eventlog.cli.process import asynchronous, blocking
from eventlog.cli.progress import progress
from eventlog.control import import_live
from eventlog.history import BadLine, ImportReport, lines_of

NAMED = 10  # bad lines named one by one; --json has more of them
PROGRESS_EVENTS = 1_000
STDIN = "-"


# --------------------------------------------------------------------------------------------------------------- import


@click.command("import", short_help="envelopes from a file of JSON lines into the log")
@click.argument("file", metavar="FILE")
@click.option("--live", is_flag=True, help="Append them as new events, which hooks and extensions get.")
@click.option("--strict", is_flag=True, help="Stop at the first bad line.")
@json_option
@log_options
@asynchronous
async def import_(db: Path, file: str, live: bool, strict: bool, as_json: bool) -> Code:
    """Import envelopes from FILE, one JSON object a line; - is stdin. A log that is not there is made.

    They are history: they keep their indexes and times, and neither hooks nor extensions get them, unless --live.
    History is imported into a log that no process owns; with --live the log's owner appends the events. Importing a
    file again adds nothing, but what the log has as history, --live appends once more. Bad lines are counted and
    named, and the others are imported. Of a pipe the first line is waited for before the log is opened; from then on
    the log is owned until the input ends.
    """
    with _input(file) as (stream, size), progress("importing", "bytes") as update:
        tell = None if size is None else lambda _lines: update(stream.tell(), size)
        lines = _begun(_interruptible(stream))
        if live:
            report = await import_live(db, lines, strict=strict, progress=tell)
        else:
            async with owning(db, create=True) as log:
                report = await log.import_events(lines, strict=strict, progress=tell)
    if as_json:
        out().json(_report(report))
    else:
        _tell(out(), report)
    return Code.FINDINGS if report.bad_count else Code.DONE


def _interruptible(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file that may let the loop wait for long: a pipe, a device, a line without an end."""
    lines = lines_of(file)
    while True:
        with blocking():
            line = next(lines, None)
        if line is None:
            return
        yield line


def _begun(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same lines, when the first of them, or the end, has come: who writes them may take long to begin."""
    first = list(islice(lines, 1))
    return chain(first, lines)


@contextmanager
def _input(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """What is imported, and its size where that is known."""
    if file == STDIN:
        yield sys.stdin.buffer, None
        return
    with Path(file).open("rb") as lines:
        status = os.fstat(lines.fileno())
        yield lines, status.st_size if stat.S_ISREG(status.st_mode) else None


def _report(report: ImportReport) -> dict[str, Any]:
    return {
        "added": report.added,
        "known": report.known,
        "sessions": report.sessions,
        "bad": report.bad_count,
        "forgotten": report.forgotten,
        "badLines": [{"line": line.number, "why": line.why} for line in _in_order(report)],
    }


def _in_order(report: ImportReport) -> list[BadLine]:
    return sorted(report.bad, key=lambda line: line.number)


def _tell(output: Output, report: ImportReport) -> None:
    known = f"; {count(report.known, 'event')} known before" if report.known else ""
    if report.added:
        output.line(f"added {count(report.added, 'event')} in {count(report.sessions, 'session')}{known}")
    else:
        output.line(f"nothing was added{known}")
    output.flush()
    if report.forgotten:
        note(_told_forgotten(report.forgotten))
    for line in _in_order(report)[:NAMED]:
        note(f"line {line.number} was not imported: {line.why}")
    if report.bad_count > NAMED:
        note(f"{count(report.bad_count, 'bad line')} in all, of which these are the first; --json names more")


def _told_forgotten(sessions: list[str]) -> str:
    """A tombstone says of a session's start no more than of the rest."""
    named = ", ".join(sessions[:NAMED]) + (", ..." if len(sessions) > NAMED else "")
    those, their, have = ("it", "its", "it has") if len(sessions) == 1 else ("they", "their", "they have")
    were = "was" if len(sessions) == 1 else "were"
    return (
        f"{count(len(sessions), 'session')} {were} forgotten before {those} {were} exported ({named}): nobody knows any"
        f" more {their} agent, project and channel; {have} no agent, project default and channel import here"
    )


# --------------------------------------------------------------------------------------------------------------- export


@click.command(short_help="envelopes of the log as lines of JSON")
@click.option("--session", "session_id", metavar="SESSION", help="Only the events of this session.")
@click.option(
    "--output",
    "-o",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file, which only you can read.",
)
@click.option(
    "--json", "--jsonl", is_flag=True, expose_value=False, help="What it writes anyway: one JSON object a line."
)
@log_options
@asynchronous
async def export(db: Path, session_id: str | None, file: Path | None) -> Code:
    """Write envelopes, one JSON object a line, in the order in which they were recorded.

    `eventlog import` reads them again. Events that are corrupt are named and left out; of a log that lost its end,
    what is left is written. Both end with 4.
    """
    async with reading(db, accept_loss=True) as log:
        source = log if session_id is None else await log.session(session_id)
        last, loss = await log.committed(), log.loss
        with _output(file) as output, progress("exporting" if file else None, "events") as update:
            written, corrupt = await _export(source, output, lambda position: update(position, last))
            output.flush()
    if file is not None:
        out().line(f"{file} has {count(written, 'event')}")
        out().flush()
    if corrupt > NAMED:
        note(f"{count(corrupt, 'corrupt event')} in all; `eventlog check` names them")
    if loss is not None:
        note(f"the log held events up to position {loss.proven} and now ends at {loss.found}; the rest is not in this")
    return Code.DAMAGED if corrupt or loss is not None else Code.DONE


async def _export(source: EventLog | Session, output: Output, update: Callable[[int], None]) -> tuple[int, int]:
    """Write what can be read; returns how many events that are, and how many cannot."""
    corrupt = done = 0
    async for event in source.read():
        done += 1
        try:
            output.json_text(event.to_json().decode())
        except CorruptEvent as error:
            corrupt += 1
            if corrupt <= NAMED:
                note(f"left out: {error}")
        if done % PROGRESS_EVENTS == 0:
            update(event.position)
    return done - corrupt, corrupt


@contextmanager
def _output(file: Path | None) -> Iterator[Output]:
    """Stdout, or a new file that is gone again if it does not become whole."""
    if file is None:
        yield out()
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yield Output(stream)
    except BaseException:
        file.unlink()
        raise
