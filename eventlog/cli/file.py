"""`stats` and `check`: how large the log is, and whether all of it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from eventlog import EventLogError
from eventlog.cli.explain import Code
from eventlog.cli.human import count, size
from eventlog.cli.opening import reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import Output, Span, out
from eventlog.cli.process import asynchronous
from eventlog.cli.progress import progress
from eventlog.control import ask
from eventlog.inspection import Report

LABELS = {
    "path": "log",
    "lastPosition": "last position",
    "deadLetters": "dead letters",
    "hooks": "observe hooks",
    "hookGaps": "gaps of observe hooks",
    "kvKeys": "keys that handlers keep",
    "files": "files that handlers keep",
    "epoch": "owners so far",
    "ownerPid": "owned by process",
    "durability": "durability of appends",
    "checkpointsSuspended": "held by a backup",
    "databaseBytes": "size of the file",
    "walBytes": "size of its -wal",
    "sqlite": "SQLite",
}
UNTOLD = {"notInSessionIndex"}
"""What says something to nobody but who works on the store; it is in the JSON."""
OWNERS_WORD = ("durability", "checkpointsSuspended")
ANSWER_WITHIN_S = 2.0
"""A server whose loop is blocked does not keep anybody from looking at its log."""


@click.command(short_help="how large the log is")
@json_option
@log_options
@asynchronous
async def stats(db: Path, as_json: bool) -> Code:
    """Show counts, sizes and settings of the log.

    The owner alone knows how durable its appends are, and whether a backup holds the write-ahead log, which grows
    meanwhile; where none answers, that is left out (null as JSON).
    """
    async with reading(db, accept_loss=True) as log:
        found = await log.stats()
    found |= await _word_of_the_owner(db)
    output = out()
    if as_json:
        output.json(found)
        return Code.DONE
    labels = {name: LABELS.get(name, name) for name, value in found.items() if value is not None and name not in UNTOLD}
    width = max(map(len, labels.values()))
    for name, label in labels.items():
        output.line(Span(f"{label:<{width}}", "dim"), f"  {_told(name, found[name])}")
    return Code.DONE


async def _word_of_the_owner(db: Path) -> dict[str, Any]:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            told = await ask(db, "stats")
    except (EventLogError, OSError, TimeoutError):
        return {}
    return {name: told[name] for name in OWNERS_WORD}


def _told(name: str, value: Any) -> str:
    if name.endswith("Bytes"):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "ownerPid" or not isinstance(value, int | list):
        return str(value)
    return " ".join(map(str, value)) if isinstance(value, list) else f"{value:,}"


@click.command(short_help="whether all of the log is there, and undamaged")
@click.option("--quick", is_flag=True, help="Leave out SQLite's own check of every page.")
@json_option
@log_options
@asynchronous
async def check(db: Path, quick: bool, as_json: bool) -> Code:
    """Prove the log: the checksum of every event, no hole in positions and indexes, SQLite's own check.

    Names every damaged event. Ends with 1 when there is any fault, with 4 when the log is shorter than it was.
    """
    async with reading(db, accept_loss=True) as log:
        with progress("checking", "events") as update:
            report = await log.check(full=not quick, progress=update)
    if as_json:
        out().json(_document(report))
    else:
        _tell(out(), report)
    if report.head is not None:
        return Code.DAMAGED
    return Code.DONE if report.ok else Code.FINDINGS


def _document(report: Report) -> dict[str, Any]:
    damaged = [
        {"sessionId": each.session_id, "index": each.index, "position": each.position, "why": each.why}
        for each in report.damaged
    ]
    return {
        "ok": report.ok,
        "events": report.events,
        "sessions": report.sessions,
        "damaged": damaged,
        "damagedCount": report.damaged_count,
        "missing": [{"first": each.first, "last": each.last} for each in report.missing],
        "faults": report.faults,
        "shortened": None if report.head is None else {"proven": report.head[0], "found": report.head[1]},
    }


def _tell(output: Output, report: Report) -> None:
    for fault in _faults(report):
        output.line(Span("fault", "bad"), f"  {fault}")
    checked = f"{count(report.events, 'event')} in {count(report.sessions, 'session')}"
    if report.ok:
        output.line(Span("ok", "good"), f": {checked}, nothing damaged and nothing missing")
        return
    unnamed = report.damaged_count - len(report.damaged)
    more = f"; {unnamed:,} more damaged events are not named" if unnamed else ""
    output.line(f"checked {checked}{more}; restore a backup, or export what can be read")


def _faults(report: Report) -> Iterator[str]:
    for event in report.damaged:
        place = f"event {event.index} of session {event.session_id} (position {event.position})"
        yield f"{place} is damaged: {event.why}"
    for gap in report.missing:
        yield f"positions {gap.first} to {gap.last} are missing"
    yield from report.faults
    if report.head is not None:
        proven, found = report.head
        yield f"the log held events up to position {proven}, and now ends at {found}"
