"""Care for the file, cut short at every system call: `python -m tests.torture.caring WORK DATABASE` does one of them.

Each is run once and recorded. Replayed up to each of its operations it is what a SIGKILL leaves there, and by the other
fates of a disk what a power cut does: the log is whole, the old state or the new one, and the same again ends the work.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eventlog.clock import SystemClock
from eventlog.errors import EventLogError
from eventlog.log import EventLog
from eventlog.projections import BUILT_IN, rebuild
from eventlog.store import backup, erasure, pruning, space
from eventlog.store.schema import Schema
from eventlog.store.store import Store
from tests.folding_kit import LIMITS, PAGES, fill_randomly, tables
from tests.log_kit import fill
from tests.test_migrations import LAST, content, next_schemas, opened
from tests.test_prune import append_all, ended, turn
from tests.test_rebuild import wreck
from tests.torture.disk import FATES, Disk, put
from tests.torture.strace import Op, record
from tests.torture.tally import Tally

SECRET = "to-be-forgotten"
HISTORY = "history.jsonl"
BACKUP = "backup.db"
CLOSING = 10
"""Operations that are looked at after a work was done; the rest is a close like any other."""
WORKS = ("migrate", "rebuild", "prune", "forget", "backup", "vacuum", "full vacuum", "import")


# ------------------------------------------------------------------------------------------------------- the works


async def care(what: str, path: Path) -> None:
    """Do one of them, in small steps, and say so when it is done: before the log is closed."""
    pruning.CHUNK_EVENTS = erasure.CHUNK_EVENTS = 20
    pruning.SCANNED_ROWS = 200
    backup.STEP_PAGES = space.PAGES_PER_STEP = 8
    if what == "migrate":
        await migrated(path)
        say_done()
        return
    async with EventLog(path, fold_limits=PAGES) as log:
        await on(log, what)
        say_done()


def say_done() -> None:
    """One write."""
    os.write(1, b"done\n")


async def on(log: EventLog, what: str) -> None:
    """The same on an open log."""
    path = Path(log.path)
    match what:
        case "rebuild":
            await rebuild(log)
        case "prune":
            await log.prune(older_than_s=0.0, deltas=True)
        case "forget":
            await log.forget("a0", "b0")
        case "backup":
            await log.backup(path.with_name(BACKUP))
        case "import":
            with path.with_name(HISTORY).open("rb") as lines:
                await log.import_events(lines)
        case _:
            await log.vacuum(full=what == "full vacuum")


async def migrated(path: Path) -> None:
    """Open it by a later schema, whose folder is beside the log's, and close it."""
    store = Store(path, SystemClock(), made_of=Schema(path.parent.with_name("later")))
    await store.open(lambda recorded, appends: None)
    await store.close()


# ------------------------------------------------------------------------------------------- what they are done to


async def grown(path: Path) -> None:
    """A closed log of sessions that ended, that stream and that are secret, with pages in it that are not in use."""
    async with EventLog(path) as log:
        for n in range(2):
            await ended(log, f"a{n}", 30, text=f"{SECRET}-{n}" + "x" * 200)
            session = await log.start_session(f"b{n}")
            await append_all(session, turn(n, 30))
            await fill(session, 5, text=f"{SECRET}+{n}" + "y" * 2_000)
        await log.usage()
        spare = "INSERT INTO kv VALUES ('a', 'k', json_quote(hex(zeroblob(100000))))"
        await log.store.write(lambda connection: connection.execute(spare).rowcount)
        await log.store.write(lambda connection: connection.execute("DELETE FROM kv").rowcount)


async def prepared(what: str, path: Path) -> None:
    """The closed log that a work is done to, and what it needs beside it."""
    path.parent.mkdir()
    if what == "rebuild":
        async with EventLog(path, fold_limits=LIMITS) as log:
            await fill_randomly(log, Random(3), 40)
            await log.usage()
        wreck(path, *BUILT_IN)
        return
    await grown(path)
    if what == "migrate":
        later = path.parent.with_name("later")
        later.mkdir()
        next_schemas(later)
    if what == "import":
        await grown(path.with_name("other.db"))
        async with EventLog(path.with_name("other.db")) as other:
            lines = [line.replace(b'"sessionId":"', b'"sessionId":"other-') async for line in other.export()]
        for left in path.parent.glob("other.db*"):
            left.unlink()
        path.with_name(HISTORY).write_bytes(b"\n".join(lines) + b"\n")


class Facts(NamedTuple):
    """What a log says, in whatever shape it is compared."""

    events: dict[tuple[str, int], bytes]
    rows: dict[str, list[Any]]


async def facts(path: Path, *, read_only: bool = False) -> Facts:
    """Of a log that is opened as its next owner would; it has to be whole."""
    async with EventLog(path, read_only=read_only) as log:
        report = await log.check()
        if not report.ok:
            raise AssertionError(f"the check finds {report}")
        events = {(event.session_id, event.index): event.raw async for event in log.read()}
        return Facts(events, await tables(log))


# --------------------------------------------------------------------------------------------------- how it is judged


class Work(NamedTuple):
    """One work: the log before it, after it, and how it was done."""

    what: str
    path: Path
    disk: Disk
    ops: list[Op]
    old: Facts
    new: Facts


async def recorded(what: str, folder: Path) -> Work:
    """Do a work in a process of its own, and look at both ends."""
    path, before = folder / "log" / "agent.db", folder / "before"
    folder.mkdir()
    await prepared(what, path)
    shutil.copytree(path.parent, before)
    disk = Disk()
    disk.hold(path.parent)
    ops, complaint = record(["tests.torture.caring", what, str(path)], path.parent, folder / "trace")
    assert "Traceback" not in complaint, complaint
    done = [op.what for op in ops].index("said")
    ops = ops[: done + CLOSING]
    if what == "migrate":
        return Work(what, path, disk, ops, Facts({}, content(before / path.name)), Facts({}, content(path)))
    return Work(what, path, disk, ops, await facts(before / path.name), await facts(path))


async def at_fault(work: Work, path: Path, *, is_done: bool) -> tuple[str, list[str]]:
    """What is left, held against both ends: how far it was, and what does not hold."""
    try:
        state, faults = await (_migration if work.what == "migrate" else _left)(work, path)
    except (EventLogError, AssertionError) as error:
        return "broken", [f"{type(error).__name__}: {error}"]
    return state, [*faults, *(["it was done, and is not"] if is_done and state != "new" else [])]


async def _migration(work: Work, path: Path) -> tuple[str, list[str]]:
    found = await asyncio.to_thread(content, path)
    state = "new" if found["version"] == LAST else "old"
    faults = [] if found == (work.new if state == "new" else work.old).rows else [f"the rows of neither: {found}"]
    again = await opened(path, work.path.parent.with_name("later"))
    return state, faults + ([] if again == work.new.rows else ["migrated again, it has other rows"])


async def _left(work: Work, path: Path) -> tuple[str, list[str]]:
    found, faults = await facts(path), []
    copied = path.with_name(BACKUP)
    if work.what == "rebuild":
        are_new = {name: found.rows[name] == work.new.rows[name] for name in BUILT_IN}
        state = _how_far(list(are_new.values()))
        for name, is_new in are_new.items():
            if not is_new and found.rows[name] != work.old.rows[name]:
                faults.append(f"{name} has neither the old rows nor the new ones")
    elif work.what == "backup":
        state = "new" if copied.exists() else "old"
        if copied.exists() and (await facts(copied, read_only=True)).events != work.old.events:
            faults.append("the backup is not what the log was")
    else:
        state = _state(work, found)
        faults += _strange(work, found)
    copied.unlink(missing_ok=True)
    async with EventLog(path, fold_limits=PAGES) as log:
        await on(log, work.what)
    if await facts(path) != work.new:
        faults.append("done again, it is not what it was when it was done at once")
    return state, faults


def _state(work: Work, found: Facts) -> str:
    old, new = work.old.events, work.new.events
    changed = [place for place in old | new if old.get(place) != new.get(place)]
    return _how_far([found.events.get(place) == new.get(place) for place in changed])


def _how_far(news: list[bool]) -> str:
    """Whether each that is to change has changed; of a vacuum there is nothing to be seen."""
    return "new" if all(news) else "between" if any(news) else "old"


def _strange(work: Work, found: Facts) -> Iterator[str]:
    for place in work.old.events | work.new.events | found.events:
        if found.events.get(place) not in (work.old.events.get(place), work.new.events.get(place)):
            yield f"the event at {place} is neither what it was nor what it is to be"


# ------------------------------------------------------------------------------------------------------- the part


async def cut_short(tally: Tally, folder: Path, count: int | None) -> None:
    """So many times in all, at operations and with fates drawn by the seed; None: each operation, with each fate."""
    for number, what in enumerate(WORKS):
        share = None if count is None else count // len(WORKS) + (number < count % len(WORKS))
        await cut(await recorded(what, folder / what), tally, folder / "left", share)


async def cut(work: Work, tally: Tally, left: Path, count: int | None) -> None:
    """The same of one work."""
    random, times = Random(f"{tally.seed} {work.what}"), [0] * len(work.ops)
    for _ in range(count or 0):
        times[random.randrange(len(work.ops))] += 1
    is_done, seen = False, set[int]()
    for number, op in enumerate(work.ops):
        if op.what == "said":
            is_done = True
        else:
            work.disk.do(op)
        for fate in FATES if count is None else random.choices(FATES, (2, 6, 1, 1), k=times[number]):
            seed = random.getrandbits(32)
            files = work.disk.after(fate, Random(seed))
            tally.tried[f"{work.what}: {fate}"] += 1
            if (image := hash((is_done, *sorted(files.items())))) in seen:
                tally.seen["the same state as before"] += 1
                continue
            seen.add(image)
            put(files, work.path.parent, left)
            secret = _told(work, files) if is_done and fate == "kept" else []
            state, faults = await at_fault(work, left / work.path.name, is_done=is_done)
            tally.seen[f"{work.what}: {state}"] += 1
            for fault in faults + secret:
                tally.breach(f"{work.what}, {fate}, seed {seed}, after operation {number} {op[:3]}: {fault}")


def _told(work: Work, files: dict[str, bytes]) -> list[str]:
    """The files that still have what was forgotten in them."""
    if work.what != "forget":
        return []
    secrets = (f"{SECRET}-0".encode(), f"{SECRET}+0".encode())
    return [f"{path} still has a secret in it" for path, content in files.items() if any(map(content.count, secrets))]


if __name__ == "__main__":
    asyncio.run(care(sys.argv[1], Path(sys.argv[2])))
