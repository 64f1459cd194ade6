"""A SIGKILL at the n-th write, sync, cut or unlink of a server, by strace: it falls where the kernel says it does.

`powercut` replays the kill at each of these calls; this is the real thing, with the lock, the shared memory and the
threads of a real process, and of as many points as there is time for.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random

from eventlog.errors import EventLogError
from eventlog.log import EventLog
from eventlog.store import writer
from tests.torture.drawing import drawn
from tests.torture.forker import Ended, Forker
from tests.torture.ioerrors import files
from tests.torture.powercut import Said, hooks_at_fault, look
from tests.torture.tally import Tally
from tests.torture.workload import BATCHES, make_agent, serve

REACHED = {"pwrite64": 200, "fdatasync": 60, "fsync": 4, "ftruncate": 4, "unlink": 3}
"""The calls that are killed, and about how many of each a life makes."""


async def life(folder: str, appends: str) -> None:
    """Open, append, deliver, close."""
    writer.CHECKPOINT_PAGES = writer.CHECKPOINT_PAGES_AT_LEISURE = 30
    await serve(Path(folder), "full", int(appends), 0)


async def kill_everywhere(forker: Forker, tally: Tally, work: Path, count: int | None, appends: int) -> None:
    """Each call by number; or `count` of these that are reached, drawn by the seed."""
    killed = 0
    for call, number in drawn(Random(tally.seed), [[(call, n + 1) for n in range(REACHED[call])] for call in REACHED]):
        killed += await _kill_once(forker, tally, work / f"{tally.count}", call, number, appends)
        if killed == count:
            return


async def _kill_once(forker: Forker, tally: Tally, folder: Path, call: str, number: int, appends: int) -> bool:
    """One life, and a look at what it left; whether the call was reached."""
    folder.mkdir(parents=True)
    make_agent(folder)
    db = folder / "log" / "agent.db"
    db.parent.mkdir(mode=0o700)
    what = f"{call}:signal=SIGKILL:when={number}"
    ended = await asyncio.to_thread(forker.run, what, files(db), str(folder), str(appends))
    tally.tried[f"kill at {call}" if ended.status else "there were not so many calls"] += 1
    for fault in await _faults(ended, db):
        tally.breach(f"{what}: {fault}")
    return bool(ended.status)


async def _faults(ended: Ended, db: Path) -> list[str]:
    said, told = Said(set(), set(), set()), dict[int, tuple[str, int, str]]()
    for line in ended.said:
        word, *rest = line.split(" ", 5)
        if word == "stored":
            told[int(rest[0])] = (rest[1], int(rest[2]), rest[4])
        said.note(line)
    try:
        async with EventLog(db) as log:
            report = await log.check()
            events = [event async for event in log.read()]
            kept = await log.store.read(look)
            await (await log.start_session("after")).append("own.after", {})
    except EventLogError as error:
        return [f"{type(error).__name__}: {error}"]
    found = {event.position: (event.session_id, event.index, event.raw.decode()) for event in events}
    faults = [] if report.ok else [f"the check finds {report}"]
    if ended.status not in (0, -9):
        faults.append(f"it ended with {ended.status}: {ended.said[-3:]}")
    if list(found) != list(range(1, 1 + len(found))):
        faults.append(f"positions {list(found)} have a hole")
    if not told.items() <= found.items():
        faults.append(f"{sorted(told.items() - found.items())} were acknowledged and are lost")
    batches = Counter(
        json.loads(raw)["of"]
        for (_, _, raw), event in zip(found.values(), events, strict=True)
        if event.type == "own.batch"
    )
    if set(batches.values()) - {BATCHES}:
        faults.append(f"batches are there in part: {batches}")
    return [*faults, *hooks_at_fault(kept, said, True)]
