"""The n-th call of a kind fails, once or from then on: an answer is right or a typed error, and the log goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eventlog import EventLog, EventLogError, NewEvent
from eventlog.errors import LogClosed, StorageFull
from eventlog.store import writer
from tests.torture.drawing import drawn
from tests.torture.forker import Ended, Forker, say
from tests.torture.tally import Tally

REACHED = {"pwrite64": 150, "fdatasync": 16, "fsync": 6, "ftruncate": 3, "openat": 4, "unlink": 2}
"""The calls that fail, and about how many of each one thread makes."""
ERRORS = ("EIO", "ENOSPC")
HOW = {"once": "", "for ever": "+"}
APPENDS = 12
EVENTS = (1, 1, 4)  # of the first, second and third append, and so on
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
        if await _said("open 0", log.open):
            break
    else:
        return
    for number in range(APPENDS):
        for _ in range(ATTEMPTS):
            if await _said(f"append {number}", partial(_append, log, number)):
                break
    await _said("close 0", log.close)


async def _append(log: EventLog, number: int) -> list[Any]:
    try:
        session = await log.session("s")
    except LogClosed:
        raise
    except EventLogError:
        session = await log.start_session("s", project="p")
    if (size := EVENTS[number % len(EVENTS)]) > 1:
        data = {"n": number, "v": "x" * 9_000}
        batch = [NewEvent("own.batch", data, key=f"k{number}.{part}") for part in range(size)]
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
        indexes = ",".join(str(event.index) for event in done) if isinstance(done, list) else ""
        say(f"{what} done {indexes}")
        return True
    return False


# ------------------------------------------------------------------------------------------------ the parent's side


async def fail_everywhere(forker: Forker, tally: Tally, work: Path, count: int | None) -> None:
    """Each call by number, once and for ever, with each error; or `count` that do fail, drawn by the seed."""
    if count is None:
        for call, error, how in product(REACHED, ERRORS, HOW):
            number, unreached = 0, 0
            while unreached < NEVER_CALLED:
                number += 1
                is_reached = await fail_once(forker, tally, work, call, error, how, number)
                unreached = 0 if is_reached else unreached + 1
        return
    failed = 0
    kinds = [[*product([call], ERRORS, HOW, range(1, 1 + reached))] for call, reached in REACHED.items()]
    for point in drawn(Random(tally.seed), kinds):
        failed += await fail_once(forker, tally, work, *point)
        if failed == count:
            return


async def fail_once(forker: Forker, tally: Tally, work: Path, call: str, error: str, how: str, number: int) -> bool:
    """One life in which this fails, and a look at what it left; whether the call was reached."""
    folder = work / f"{tally.count}"
    folder.mkdir(parents=True)
    db = folder / "agent.db"
    what = f"{call}:error={error}:when={number}{HOW[how]}"
    ended = await asyncio.to_thread(forker.run, what, files(db), str(db))
    tally.tried[f"{call} fails {how}" if ended.injected else "there were not so many calls"] += 1
    answers = [Answer.of(line) for line in ended.said]
    tally.seen.update(f"{answer.work}: {answer.outcome}" for answer in answers)
    for fault in [*untrue(answers, ended), *await unlike(answers, db)]:
        tally.breach(f"{what}: {fault}; it said {' '.join(ended.said)[:400]}")
    return ended.injected > 0


class Answer(NamedTuple):
    """What the child was told of one piece of work."""

    work: str
    number: int
    outcome: str
    indexes: list[int]

    @classmethod
    def of(cls, line: str) -> Answer:
        work, number, outcome, *rest = line.split()
        found = [int(index) for index in rest[0].split(",")] if outcome == "done" and rest else []
        return cls(work, int(number), outcome, found)


def untrue(answers: list[Answer], ended: Ended) -> Iterator[str]:
    """What must not be said, whatever is on the disk."""
    if ended.status:
        yield f"it ended with {ended.status}"
    for answer in answers:
        if answer.outcome == "UNTYPED" or (answer.outcome == "OSError" and answer.work != "open"):
            yield f"no typed error: {answer}"
        if answer.outcome == "LogInUse":
            yield "the lock was kept by an opening that failed"


async def unlike(answers: list[Answer], db: Path) -> list[str]:
    """Where the log is unlike what was said of it, or cannot be used any more."""
    try:
        async with EventLog(db) as log:
            report = await log.check()
            events = [event async for event in log.read()]
            after = await (await log.start_session("after")).append("own.after", {})
    except EventLogError as error:
        return [f"its log cannot be used: {type(error).__name__} {error}"]
    faults = [] if report.ok else [f"the check finds {report}"]
    if [event.index for event in events] != list(range(len(events))) or after.index != 1:
        faults.append(f"the indexes are {[event.index for event in events]}")
    found = {event.index: event.data["n"] for event in events[1:]}
    for number in range(APPENDS):
        told = [answer for answer in answers if answer.work == "append" and answer.number == number]
        there = [index for index in found if found[index] == number]
        done = [answer.indexes for answer in told if answer.outcome == "done"]
        if done and there != done[0]:
            faults.append(f"append {number} was acknowledged at {done[0]} and is at {there}")
        if len(there) not in (0, EVENTS[number % len(EVENTS)]):
            faults.append(f"append {number} is there in part, or twice: {there}")
        if there and {answer.outcome for answer in told} <= {StorageFull.__name__}:
            faults.append(f"append {number} was not stored, it was said, and it is there")
    return faults
