"""Sessions are appended to, end, and are pruned and forgotten, all at once: what is left is whole, and goes on."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random

from eventlog.errors import EventLogError, SessionNotFound
from eventlog.log import EventLog
from eventlog.session import Session
from tests.torture.tally import Tally

SESSIONS = 6
APPENDS = 20


async def remove_and_append(tally: Tally, work: Path, count: int | None) -> None:
    """So many logs, each by its own seed."""
    for seed in range(tally.seed, tally.seed + (count or 1)):
        path, random = work / f"{seed}.db", Random(seed)
        returned: set[tuple[str, int]] = set()
        async with EventLog(path, slice_rows=random.choice([3, 1_000])) as log:
            sessions = [await log.start_session(f"s{number}") for number in range(SESSIONS)]
            appenders = [_append(session, random, returned, tally) for session in sessions]
            await asyncio.gather(_remove(log, random, tally), *appenders)
            breaches = await _unlike(log)
        async with EventLog(path) as log:
            breaches += await _unlike(log)
        for what in breaches:
            tally.breach(f"seed {seed}: {what}")
        tally.tried["logs"] += 1


async def _append(session: Session, random: Random, returned: set[tuple[str, int]], tally: Tally) -> None:
    for number in range(APPENDS):
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        chance = random.random()
        try:
            if chance < 0.7:
                event = await session.append("own.type", {"n": number})
            elif chance < 0.88:
                event = await session.append("session.completed", {})
            else:
                event = await session.append("own.keyed", {"n": number}, key=f"k{number}")
        except EventLogError as error:
            tally.seen[f"append: {type(error).__name__}"] += 1
            continue
        if (event.session_id, event.index) in returned:
            tally.breach(f"index {event.index} of {event.session_id} was given out twice")
        returned.add((event.session_id, event.index))
        tally.seen["appends"] += 1


async def _remove(log: EventLog, random: Random, tally: Tally) -> None:
    for _ in range(6):
        for _ in range(random.randrange(30)):
            await asyncio.sleep(0)
        if random.random() < 0.8:
            tally.seen["events pruned"] += (await log.prune(keep_events=random.randrange(20))).events
        else:
            await log.forget(f"s{random.randrange(SESSIONS)}")
            tally.seen["sessions forgotten"] += 1


async def _unlike(log: EventLog) -> list[str]:
    """Where what is left has a hole, or is not found, or would go on at another index."""
    breaches = [] if (report := await log.check()).ok else [f"the check finds {report}"]
    indexes: dict[str, list[int]] = defaultdict(list)
    async for event in log.read():
        indexes[event.session_id].append(event.index)
    for id, left in indexes.items():
        if left != list(range(left[0], left[0] + len(left))):
            breaches.append(f"{id} has a hole in {left}")
        try:
            session = await log.session(id)
        except SessionNotFound:
            breaches.append(f"{id} is not found")
            continue
        read = [event.index async for event in session.read(after=left[0] - 1 if left[0] else None)]
        if (read, session.next_index) != (left, left[-1] + 1):
            breaches.append(f"{id} reads {read} and goes on at {session.next_index}, in the log are {left}")
    return breaches
