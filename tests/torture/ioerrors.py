"""The n-th call of a kind fails, once or from then on: an answer is right or a typed error, and the log goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from eventlog import EventLog, EventLogError, NewEvent
from eventlog.errors import LogClosed, StorageFull
from eventlog.store import writer
from tests.torture.forker import Ended, Forker, say
from tests.torture.tally import Tally

CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "openat", "unlink")
ERRORS = ("EIO", "ENOSPC")
APPENDS = 12
ATTEMPTS = 4
NEVER_CALLED = 3  # numbers in a row that were not reached: there are no more of these calls


def files(db: Path) -> list[Path]:
    """Where errors are injected: everything that belongs to the log, and its folder."""
    return [db, *(db.with_name(db.name + end) for end in ("-wal", "-journal", "-shm", ".head", ".lock")), db.parent]


# ------------------------------------------------------------------------------------------------- the child's side


async def life(path: str) -> None:
    """Open, append with keys until each outcome is known or all attempts are used up, close. Says what it was told."""
    logging.getLogger("eventlog").addHandler(logging.NullHandler())
    writer.CHECKPOINT_PAGES = writer.CHECKPOINT_PAGES_AT_LEISURE = 30
    log = EventLog(path, slice_rows=8)
    for _ in range(ATTEMPTS):
        if await _said("open", log.open):
            break
    else:
        return
    for number in range(APPENDS):
        for _ in range(ATTEMPTS):
            if await _said(f"append {number}", lambda number=number: _append(log, number)):  # type: ignore[misc]
                break
    await _said("close", log.close)


async def _append(log: EventLog, number: int) -> list[Any]:
    try:
        session = await log.session("s")
    except LogClosed:
        raise
    except EventLogError:
        session = await log.start_session("s", project="p")
    if number % 3 == 2:
        batch = [NewEvent("own.batch", {"n": number, "v": "x" * 9_000}, key=f"k{number}.{part}") for part in range(4)]
        return await session.append_many(batch)
    return [await session.append("own.type", {"n": number}, key=f"k{number}")]


async def _said(what: str, work: Callable[[], Awaitable[Any]]) -> bool:
    try:
        done = await asyncio.wait_for(work(), 10)
    except EventLogError as error:
        say(f"{what} {type(error).__name__}")
    except OSError as error:  # of a file that could not be opened at all
        say(f"{what} OSError {error.errno} {error.filename}")
    except BaseException as error:
        say(f"{what} UNTYPED {error!r}")
    else:
        indexes = ",".join(str(event.index) for event in done) if isinstance(done, list) else "-"
        say(f"{what} done {indexes}")
        return True
    return False


# ------------------------------------------------------------------------------------------------ the parent's side


async def fail_everywhere(forker: Forker, tally: Tally, work: Path, count: int | None) -> None:
    """Each call by number, once and for ever, with each error; or `count` of these drawn by the seed."""
    random = Random(tally.seed)
    for kind, whens in (("once", "{}"), ("for ever", "{}+")):
        for call in CALLS:
            for error in ERRORS:
                number, unreached = 0, 0
                while unreached < NEVER_CALLED:
                    number += 1 if count is None else random.randrange(1, STEP[call])
                    what = f"{call}:error={error}:when={whens.format(number)}"
                    ended = await fail_once(forker, tally, work, what, f"{call} fails {kind}")
                    unreached = 0 if ended.injected else unreached + 1
                    if count is not None and tally.count >= count:
                        return
                    if count is not None and tally.tried[f"{call} fails {kind}"] >= count / len(CALLS) / 2:
                        break


STEP = {"pwrite64": 30, "fdatasync": 8, "fsync": 6, "ftruncate": 3, "openat": 6, "unlink": 2}


async def fail_once(forker: Forker, tally: Tally, work: Path, what: str, kind: str) -> Ended:
    """One life with this injected, and a look at what it left."""
    folder = work / f"{tally.count}"
    folder.mkdir(parents=True)
    db = folder / "agent.db"
    ended = await asyncio.to_thread(forker.run, what, files(db), str(db))
    tally.tried[kind if ended.injected else f"{kind}, but there were not so many calls"] += 1
    for line in ended.said:
        words = line.split()
        outcome = words[1] if words[0] in ("open", "close") else words[2]
        tally.seen[f"{words[0]}: {outcome}"] += 1
    async for fault in faults(db, ended):
        tally.breach(f"{what}: {fault}; it said {ended.said}")
    return ended


async def faults(db: Path, ended: Ended) -> Any:
    """What the child was told is true, and its log can be used."""
    if ended.status:
        yield f"it ended with {ended.status}"
    for line in ended.said:
        if "UNTYPED" in line or line.startswith(("append", "close")) and " OSError " in line:
            yield f"no typed error: {line}"
    told: dict[int, list[str]] = {}
    for words in (line.split() for line in ended.said if line.startswith("append")):
        told.setdefault(int(words[1]), []).append(words[2])
    stored = {
        int(index): int(words[1])
        for words in (line.split() for line in ended.said)
        if words[0] == "append" and words[2] == "done"
        for index in words[3].split(",")
    }
    try:
        async with EventLog(db) as log:
            report = await log.check()
            events = [event async for event in log.read()]
            session = await log.start_session("after")
            if (await session.append("own.after", {})).index != 1:
                yield "it does not go on"
    except EventLogError as error:
        yield f"its log cannot be used: {type(error).__name__} {error}"
        return
    if not report.ok:
        yield f"the check finds {report}"
    if [event.index for event in events] != list(range(len(events))):
        yield f"the indexes are {[event.index for event in events]}"
    found = {event.index: event.data["n"] for event in events[1:]}
    if not stored.items() <= found.items():
        yield f"{stored} was acknowledged, {found} is there"
    for number, outcomes in told.items():
        size = 4 if number % 3 == 2 else 1
        there = sum(n == number for n in found.values())
        if there not in ({size} if "done" in outcomes else {0, size}):
            yield f"append {number} is there {there} times"
        if there and set(outcomes) <= {StorageFull.__name__}:
            yield f"append {number} was not stored, it was said, and it is there"
