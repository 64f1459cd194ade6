"""How a process steers a log: its owner is asked, and where no owner lives it is done here.

Both are the same commands, see `serving` and `durable.operators`, met with the same errors. This stands above the
runtime, because at rest a process does for a moment what a runtime does while it serves: it changes extensions and
dead letters, in the file alone, and answers others that ask meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from eventlog import upkeep
from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.operators import OperatorCommands, Steered
from eventlog.errors import EventLogError, LogClosed, LogInUse, NotServed, OutcomeUnknown, OwnerUnreachable
from eventlog.events import Envelope, format_time, parse_envelope
from eventlog.history import ImportReport, Numbered, take_lines
from eventlog.log import EventLog
from eventlog.messages import decode_answer, encode_request, receive, send
from eventlog.store.buried import Retried
from eventlog.store.endpoint import connect
from eventlog.store.history import Taken
from eventlog.store.owner import holder_of, owner_of
from eventlog.upkeep import BackedUp, Forgot, Prunable, Pruned

__all__ = [
    "BackedUp",
    "Forgot",
    "Prunable",
    "Pruned",
    "Retried",
    "Steered",
    "ask",
    "back_up",
    "forget",
    "import_live",
    "prunable",
    "prune",
    "steer",
]

Update = Callable[[int, int], None]

# Of real time, since another process is waited for.
CONNECT_LIMIT_S = 5.0
ANSWER_LIMIT_S = 60.0
HANDOVER_S = 3.0  # for an owner that cannot be asked: a busy machine may take so long to end it
STEP_S = 0.02

LINES_BYTES = 262_144  # of an import in one request, unless a line is longer


async def ask(path: str | Path, command: str, /, **arguments: Any) -> Any:
    """Ask the owner of a log; its answer is plain JSON.

    Raises what the command raises there, NotServed for one that it does not do, OwnerUnreachable when there is no owner
    or it cannot be asked (nothing was done then), OutcomeUnknown when it ended before it answered.
    """
    return await _answer(Path(path), encode_request(command, arguments))


async def steer(path: str | Path, command: str, /, **arguments: Any) -> Any:
    """Ask the owner of a log, or do it here where there is none: own the log for a moment, then let it go.

    At rest only the file changes: nothing is activated and nobody is called. Raises as `ask` and `EventLog` do.
    """
    path, request = Path(path), encode_request(command, arguments)
    met = await _owned_or(path, partial(_answer, path, request))
    if not isinstance(met, EventLog):
        return met
    async with met as log:
        return decode_answer(await log.commands.answer(request))


async def back_up(path: str | Path, target: str | Path, progress: Update | None = None) -> BackedUp:
    """Let the owner of a log make a backup, or make it here as any reader can; see `EventLog.backup`."""
    target = _absolute(target)
    try:
        errand = await ask(path, "backup", path=str(target))
    except (OwnerUnreachable, NotServed):
        async with EventLog(path, read_only=True) as log:
            return await log.backup(target, progress)
    return msgspec.convert(await _ended(partial(ask, path), errand, progress), BackedUp)


async def prune(path: str | Path, progress: Update | None = None, **rules: Any) -> Pruned:
    """Let the owner of a log prune it, or own it here for as long; see `EventLog.prune`."""
    return msgspec.convert(await _tended(Path(path), "prune", rules, progress), Pruned)


async def prunable(path: str | Path, **rules: Any) -> Prunable:
    """Let the owner of a log say what pruning would remove, or count it here as any reader can; nothing is changed.

    Takes the same rules as `prune`. See `Prunable`.
    """
    try:
        errand = await ask(path, "prune.preview", **rules)
    except (OwnerUnreachable, NotServed):
        async with EventLog(path, read_only=True) as log:
            return await upkeep.prunable(log, **rules)
    return msgspec.convert(await _ended(partial(ask, path), errand, None), Prunable)


async def forget(path: str | Path, session_ids: Sequence[str], progress: Update | None = None) -> Forgot:
    """Let the owner of a log forget sessions, or own it here for as long; see `EventLog.forget`."""
    return msgspec.convert(await _tended(Path(path), "forget", {"session_ids": session_ids}, progress), Forgot)


async def import_live(
    path: str | Path,
    lines: Iterable[bytes],
    *,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Append envelopes as new events, by the owner of a log or here; see `EventLog.import_events`."""
    path = Path(path)
    met = await _owned_or(path, partial(ask, path, "ping"))
    if not isinstance(met, EventLog):
        take = partial(_sent, path, met["head"] + 1)
        return await take_lines(lines, parse_envelope, take, strict, progress)
    async with met as log:
        return await log.import_events(lines, live=True, strict=strict, progress=progress)


# ------------------------------------------------------------------------------------------------- what takes longer


async def _tended(path: Path, command: str, arguments: Mapping[str, Any], progress: Update | None) -> Any:
    met = await _owned_or(path, partial(ask, path, command, **arguments))
    if not isinstance(met, EventLog):
        return await _ended(partial(ask, path), met, progress)
    async with met as log:

        async def asked(command: str, /, **arguments: Any) -> Any:
            return decode_answer(await log.commands.answer(encode_request(command, arguments)))

        return await _ended(asked, await asked(command, **arguments), progress)


async def _ended(ask: Callable[..., Awaitable[Any]], errand: int, progress: Update | None) -> Any:
    """What an errand came to; it ends with us, if we are cancelled."""
    try:
        while not (seen := await ask("errand", errand=errand))["ended"]:
            if progress is not None and seen["total"] is not None:
                progress(seen["done"], seen["total"])
    except asyncio.CancelledError:
        with suppress(EventLogError):
            await ask("errand.cancel", errand=errand)
        raise
    return seen["result"]


# -------------------------------------------------------------------------------------------------- without an owner


async def _owned_or(path: Path, asked: Callable[[], Awaitable[Any]]) -> EventLog | Any:
    """The log, owned by this process and open, or what its owner says to what is `asked`.

    An owner that cannot be asked may be about to end, or have just begun: then both are tried again, for a moment.
    """
    deadline_s = time.monotonic() + HANDOVER_S
    while True:
        with suppress(LogInUse):
            log = await EventLog(path).open()
            _ = log.commands.add(OperatorCommands(log, None, DeadLetters(log)).all())
            return log
        try:
            return await asked()
        except (OwnerUnreachable, LogClosed):
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(STEP_S)


# ----------------------------------------------------------------------------------------------------- with an owner


async def _answer(path: Path, request: bytes) -> Any:
    path = _real(path)
    pid, place = holder_of(path)
    try:
        connection = await _connected(place)
    except OSError as error:
        raise _unreachable(path, pid, error) from None
    with connection:
        with suppress(OSError):  # it refuses before it has read all: then the answer is there
            await send(connection, request)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer = await receive(connection)
        except TimeoutError:
            raise OutcomeUnknown(f"process {pid} did not answer within {ANSWER_LIMIT_S:g} s") from None
        except (EOFError, OSError):
            raise OutcomeUnknown(f"process {pid} ended before it answered") from None
    return decode_answer(answer)


def _absolute(path: str | Path) -> Path:
    """For an owner that stands in another folder."""
    return Path(path).absolute()


def _real(path: Path) -> Path:
    """As its owner names it."""
    return Path(os.path.realpath(path))


async def _connected(place: Path | None) -> socket.socket:
    if place is None:
        raise FileNotFoundError("it has none, or is just opening the log")
    deadline_s = time.monotonic() + CONNECT_LIMIT_S
    while (connection := connect(place)) is None:
        if time.monotonic() >= deadline_s:
            raise TimeoutError("too many others ask")
        await asyncio.sleep(STEP_S)
    return connection


def _unreachable(path: Path, pid: int | None, error: OSError) -> OwnerUnreachable:
    if owner_of(path) is None:
        return OwnerUnreachable(path, None, "no process owns it; do this at rest")
    why = (error.strerror or str(error)).lower()
    return OwnerUnreachable(path, pid, f"its control socket does not answer ({why}); try again, or stop it first")


async def _sent(path: Path, first_new: int, batch: Sequence[Numbered]) -> Taken:
    """Let the owner append a batch of a live import."""
    taken = Taken()
    for lines in _requests(batch):
        raw = msgspec.Raw(msgspec.json.encode(lines))
        part = msgspec.convert(await ask(path, "import", lines=raw, first_new=first_new), Taken)
        taken.added += part.added
        taken.known += part.known
        taken.refused += part.refused
        taken.sessions |= part.sessions
    return taken


def _requests(batch: Sequence[Numbered]) -> Iterator[list[tuple[int, msgspec.Raw]]]:
    """A batch in parts that fit a message."""
    part: list[tuple[int, msgspec.Raw]] = []
    size_bytes = 0
    for number, envelope in batch:
        line = _line(envelope)
        if part and size_bytes + len(line) > LINES_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append((number, msgspec.Raw(line)))
        size_bytes += len(line)
    if part:
        yield part


def _line(envelope: Envelope) -> bytes:
    encoded = envelope.encoded
    turn = {} if encoded.turn_id is None else {"turnId": encoded.turn_id}
    wire = {"type": encoded.type, "index": envelope.index, "sessionId": envelope.session_id, **turn}
    return msgspec.json.encode({**wire, "at": format_time(envelope.at_us), "data": msgspec.Raw(encoded.raw)})
