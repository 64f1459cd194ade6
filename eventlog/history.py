"""Import of JSONL envelopes: as history that keeps its indexes and times, or live, as new events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from eventlog.errors import EventLogError, InvalidEvent, SessionExists
from eventlog.events import TOMBSTONE, Envelope, SessionStarted, decode_json, parse_envelope
from eventlog.store.history import Taken, import_batch

if TYPE_CHECKING:  # the log offers these functions as its methods
    from eventlog.log import EventLog

BATCH_LINES = 500
MAX_LINE_BYTES = 8 * 1_048_576  # an event of 1 MiB, every character of it escaped
MAX_NAMED = 1_000  # bad lines named one by one; beyond that they are only counted

Numbered = tuple[int, Envelope]
Read = Callable[[bytes], Envelope]
Take = Callable[[Sequence[Numbered]], Awaitable[Taken]]


@dataclass(frozen=True)
class BadLine:
    """A line that was not imported; `number` counts from 1."""

    number: int
    why: str


@dataclass
class ImportReport:
    """What an import did."""

    added: int = 0
    known: int = 0
    sessions: int = 0
    bad: list[BadLine] = field(default_factory=list)
    bad_count: int = 0
    forgotten: list[str] = field(default_factory=list)
    """New sessions that had been forgotten before: their agent, project and channel are not known any more."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file with bounded memory: of a line without an end only its beginning is given, as a bad one."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


async def import_lines(
    log: EventLog, lines: Iterable[bytes], *, live: bool, strict: bool, progress: Callable[[int], None] | None
) -> ImportReport:
    """Import into a log that is open here."""
    first_new = log.head + 1
    if live:  # a live append redacts by itself
        return await take_lines(lines, parse_envelope, partial(play, log, first_new), strict, progress)
    return await take_lines(lines, log.read_envelope, partial(_store, log), strict, progress)


async def take_lines(
    lines: Iterable[bytes], read: Read, take: Take, strict: bool, progress: Callable[[int], None] | None
) -> ImportReport:
    """Import in batches, so that memory stays bounded and the loop is not held."""
    report, sessions = ImportReport(), set[str]()
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, BATCH_LINES)):
        batch, faults = _parse(read, chunk, strict)
        taken = await take(batch)
        for number, why in sorted([*faults, *taken.refused]):
            _name(report, number, why, strict)
        report.added += taken.added
        report.known += taken.known
        sessions |= taken.sessions
        report.forgotten += taken.forgotten
        if progress is not None:
            progress(chunk[-1][0])
    report.sessions = len(sessions)
    return report


def _parse(read: Read, chunk: list[tuple[int, bytes]], strict: bool) -> tuple[list[Numbered], list[tuple[int, str]]]:
    """The envelopes of a chunk, and what is wrong with its other lines; with `strict` up to the first of these."""
    batch: list[Numbered] = []
    faults: list[tuple[int, str]] = []
    for number, line in chunk:
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE_BYTES:
                raise InvalidEvent("event", f"the line is longer than {MAX_LINE_BYTES} bytes")
            batch.append((number, read(line)))
        except InvalidEvent as error:
            faults.append((number, str(error)))
            if strict:
                break
    return batch, faults


def _name(report: ImportReport, number: int, why: str, strict: bool) -> None:
    if strict:
        raise InvalidEvent(f"line {number}", why)
    report.bad_count += 1
    if len(report.bad) < MAX_NAMED:
        report.bad.append(BadLine(number, why))


async def _store(log: EventLog, batch: Sequence[Numbered]) -> Taken:
    try:
        return await log.store.with_writer(import_batch, list(batch))
    finally:  # a cancellation comes after the batch is stored
        log.wake_tails({envelope.session_id for _, envelope in batch})


async def play(log: EventLog, first_new: int, batch: Sequence[Numbered]) -> Taken:
    """Append a batch live: in order within each session, the sessions beside each other.

    What is found at a position before `first_new` was known when the import began.
    """
    taken = Taken()
    by_session: dict[str, list[Numbered]] = {}
    for number, envelope in batch:
        by_session.setdefault(envelope.session_id, []).append((number, envelope))
    taken.sessions.update(by_session)

    async def play_session(lines: list[Numbered]) -> None:
        for number, envelope in lines:
            try:
                position = await _append(log, envelope)
            except EventLogError as error:
                taken.refused.append((number, str(error)))
            else:
                taken.added += position >= first_new
                taken.known += position < first_new

    await asyncio.gather(*[play_session(lines) for lines in by_session.values()])
    taken.refused.sort()
    return taken


async def _append(log: EventLog, envelope: Envelope) -> int:
    """Append under a key made from the line's own place, so that the same line again changes nothing."""
    key = f"import:{envelope.index}"
    encoded = envelope.encoded
    if encoded.raw == TOMBSTONE:
        raise InvalidEvent("data", "was forgotten; it can be imported as history, and not as a new event")
    if isinstance(encoded.payload, SessionStarted):
        try:
            return (await log.record_start(envelope.session_id, encoded.payload, key)).position
        except SessionExists:
            pass  # then its start is known by the key, or is another one's
    data = decode_json(encoded.raw)  # not the payload: fields that its struct does not know are kept
    event = await log.append(envelope.session_id, encoded.type, data, turn_id=encoded.turn_id, key=key)
    return event.position
