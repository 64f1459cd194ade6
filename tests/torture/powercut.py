"""A power cut at every operation of a recorded server, and the kill of its process at every system call.

A kill leaves everything that a system call had done: it is the power cut that keeps all. So the recorded run, replayed
up to each of its operations, is a SIGKILL at each write, sync, cut, rename and unlink, without a process for each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from eventlog.errors import EventLogError
from eventlog.log import EventLog
from eventlog.store.store import Durability
from tests.torture.disk import FATES, Disk, put
from tests.torture.strace import Op, record
from tests.torture.tally import Tally
from tests.torture.workload import make_agent

Place = tuple[str, int, str]  # session, index, data


class Recording(NamedTuple):
    """A run of the workload."""

    durability: Durability
    folder: Path
    ops: list[Op]
    history: dict[int, Place]
    """What is at each position."""
    batches: list[range]
    """The positions of each append."""


class Said(NamedTuple):
    """What the server had told the world at some moment."""

    stored: set[int]
    shown: set[int]
    called: set[int]

    def note(self, text: str) -> None:
        """Read what it said next."""
        for line in text.splitlines():
            word, *rest = line.split(" ", 5)
            if word != "closed":
                {"stored": self.stored, "shown": self.shown, "called": self.called}[word].add(int(rest[0]))


async def recorded(work: Path, durability: Durability, appends: int) -> Recording:
    """Run the workload in a process of its own."""
    work.mkdir()
    make_agent(work)
    folder = work / "log"
    command = ["tests.torture.workload", str(work), durability, str(appends)]
    ops, complaint = record(command, folder, work / "trace")
    assert "Traceback" not in complaint, complaint
    history: dict[int, Place] = {}
    async with EventLog(folder / "agent.db") as log:
        async for event in log.read():
            history[event.position] = (event.session_id, event.index, event.raw.decode())
        assert (await log.check()).ok
    assert list(history) == list(range(1, 1 + len(history)))
    batches = [
        range(int(words[1]), int(words[1]) + int(words[4]))
        for op in ops
        for words in map(str.split, op.data.decode().splitlines() if op.what == "said" else ())
        if words[0] == "stored" and words[4] != "0"
    ]
    return Recording(durability, folder, ops, history, batches)


async def cut(
    recording: Recording, tally: Tally, work: Path, count: int | None, fates: tuple[str, ...] = FATES
) -> None:
    """Cut the power `count` times, at operations and with fates drawn by the seed; None: each operation, each fate."""
    random, disk, said = Random(tally.seed), Disk(), Said(set(), set(), set())
    ops = recording.ops
    times = [0] * len(ops)
    if count is not None:
        for _ in range(count):
            times[random.randrange(len(ops))] += 1
    seen: set[int] = set()
    for number, op in enumerate(ops):
        if op.what == "said":
            said.note(op.data.decode())
        else:
            disk.do(op)
        for fate in fates if count is None else [random.choice(fates) for _ in range(times[number])]:
            seed = random.getrandbits(32)
            files = disk.after(fate, Random(seed))
            tally.tried[f"{recording.durability}: {fate}"] += 1
            tally.seen[f"behind {op.what} {Path(op.path).name}".strip()] += 1
            if (state := hash((*sorted(files.items()), len(said.stored), len(said.called)))) in seen:
                tally.seen["the same state as before"] += 1
                continue
            seen.add(state)
            put(files, recording.folder, work)
            is_durable = recording.durability == "full" or fate == "kept"
            for what in await faults(work / "agent.db", recording, said, is_durable, tally):
                tally.breach(f"{recording.durability}, {fate}, seed {seed}, after operation {number} {op[:3]}: {what}")


async def faults(db: Path, recording: Recording, said: Said, is_durable: bool, tally: Tally) -> list[str]:
    """Open what is left as its next owner would, and hold it against what was said."""
    try:
        async with EventLog(db, slice_rows=20) as log:
            report = await log.check()
            found = {event.position: (event.session_id, event.index, event.raw.decode()) async for event in log.read()}
            kept = await log.store.read(look)
            if (max(found, default=0) + len(said.stored)) % 10 == 0:
                await _go_on(log, found)
                tally.seen["went on appending"] += 1
    except EventLogError as error:
        return [f"{type(error).__name__}: {error}"]
    lost = said.stored - found.keys()
    if lost:
        tally.seen["an acknowledged event is gone, as durability='process' says"] += 1
    told = [] if report.ok else [f"the check finds {report}"]
    told += [f"{sorted(lost)} were acknowledged and are lost"] if lost and is_durable else []
    return [*told, *_log_at_fault(found, recording), *hooks_at_fault(kept, said, is_durable)]


def _log_at_fault(found: dict[int, Place], recording: Recording) -> Iterator[str]:
    if list(found) != list(range(1, 1 + len(found))):
        yield f"positions {list(found)} have a hole"
    if wrong := {position for position in found if found[position] != recording.history.get(position)}:
        yield f"positions {wrong} hold what was not appended there"
    for batch in recording.batches:
        if len(there := found.keys() & set(batch)) not in (0, len(batch)):
            yield f"of the batch {batch} only {there} are there"


class Kept(NamedTuple):
    """What the file says of hooks and deliveries."""

    turns: set[int]
    owed: set[int]
    claimed: int


def look(connection: sqlite3.Connection) -> Kept:
    """What is to be held against what was said."""

    def numbers(sql: str) -> set[int]:
        return {number for (number,) in connection.execute(sql)}

    return Kept(
        numbers("SELECT position FROM log WHERE type = 7 AND EXISTS (SELECT 1 FROM extension_grant)"),
        numbers("SELECT position FROM delivery WHERE state IS NOT NULL"),
        max(numbers("SELECT claimed FROM hook"), default=0),
    )


def hooks_at_fault(kept: Kept, said: Said, is_durable: bool) -> Iterator[str]:
    """Turns that nobody will be called for, and shows that nobody will know of."""
    if missed := kept.turns - kept.owed - said.called:
        yield f"the turns at {missed} are neither owed to the extension nor were they shown to it"
    if never := kept.owed - kept.turns:
        yield f"{never} are owed to the extension, and no such turns are there"
    if is_durable and said.shown and max(said.shown) > kept.claimed:
        yield f"position {max(said.shown)} was shown, and only {kept.claimed} is claimed"


async def _go_on(log: EventLog, found: dict[int, Place]) -> None:
    session = await log.start_session("after")
    event = await session.append("own.after", {})
    assert (event.index, event.position) == (1, len(found) + 2)
