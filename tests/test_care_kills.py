"""SIGKILL in the midst of pruning, forgetting, copying and vacuuming: the log is whole, and the same again ends it."""

from __future__ import annotations

import asyncio
import shutil
import time
from multiprocessing import Pipe
from pathlib import Path
from random import Random

import pytest

from eventlog.log import EventLog
from tests.care_victim import care
from tests.log_kit import all_of, everything_in, fill, whole
from tests.test_backup import lines_of
from tests.test_prune import append_all, ended, turn
from tests.torture.counts import QUICK, Counts
from tests.victims import ended as victim_ended
from tests.victims import start

SEED = 7
SECRET = "to-be-forgotten"


def secret_of(id: str) -> str:
    """What stands in the events of a session, and of no other."""
    return f"{SECRET}-by-{id}-"


async def grown(path: Path) -> Path:
    """A closed log of sessions that ended, that stream and that are secret, with room in it that is not in use."""
    async with EventLog(path) as log:
        for n in range(3):
            await ended(log, f"a{n}", 60, text=secret_of(f"a{n}") + "x" * 200)
            session = await log.start_session(f"b{n}")
            for t in range(3):
                await append_all(session, turn(t, 60))
            await fill(session, 20, text=secret_of(f"b{n}") + "y" * 2_000)
        await log.store.write(
            lambda c: c.execute("INSERT INTO kv VALUES ('a', 'k', json_quote(hex(zeroblob(100000))))")
        )
        await log.store.write(lambda c: c.execute("DELETE FROM kv"))
    return path


async def killed_within(what: str, path: Path, after_s: float) -> tuple[bool, float]:
    """Care for a log in a process, and kill it so long after it began: whether it was done before, and its time."""
    ours, theirs = Pipe()
    process = start(care, what, path, theirs)
    theirs.close()
    assert await asyncio.to_thread(ours.recv) == "begin"
    began = time.perf_counter()
    done = await asyncio.to_thread(ours.poll, after_s)
    took_s = time.perf_counter() - began
    process.kill()
    await victim_ended(process)
    ours.close()
    return done, took_s


@pytest.mark.faults
@pytest.mark.parametrize("what", ["prune", "forget", "backup", "vacuum", "full vacuum"])
async def test_after_a_kill_at_any_moment_the_log_is_whole_and_the_same_again_ends_the_work(
    tmp_path: Path, counts: Counts, what: str
) -> None:
    original = await grown(tmp_path / "original" / "agent.db")
    lines = await lines_of(original)
    killed = unfinished = 0
    longest_s, random = 0.0, Random(SEED)
    for number in range(1 + 4 * counts.care_kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "agent.db"
        for suffix in ("", ".head"):
            shutil.copyfile(original.with_name(f"agent.db{suffix}"), path.with_name(f"agent.db{suffix}"))
        if number == 0:
            done, longest_s = await killed_within(what, path, 60.0)
            assert done
        else:
            done, _ = await killed_within(what, path, random.uniform(0.0, longest_s))
            killed += not done
            unfinished += await is_unfinished(what, path)
        await finish(what, path, lines)
        shutil.rmtree(folder)
        if killed >= counts.care_kills:
            break
    assert killed >= counts.care_kills
    print(f"\n{killed} kills in {what}, {unfinished} left something to do, seed {SEED}: all held")
    assert unfinished >= 1 or counts == QUICK, "some kill fell into the midst of it"


async def is_unfinished(what: str, path: Path) -> bool:
    """Whether a kill left something to do; the log is whole in any case, and no backup is half of one."""
    copy = path.with_name("backup.db")
    if copy.exists():
        async with EventLog(copy, read_only=True) as made:
            await whole(made)
    async with EventLog(path) as log:
        await whole(log)
        if what == "prune":
            return bool((await log.prune(older_than_s=0.0, deltas=True)).events)
        if what == "forget":
            events = [event for id in ("a0", "b0") for event in await all_of((await log.session(id)).read())]
            return not all(event.is_forgotten for event in events)
        if what == "backup":
            return not copy.exists()
        return bool(await log.store.read(lambda c: c.execute("PRAGMA freelist_count").fetchone()[0]))


async def finish(what: str, path: Path, lines: list[bytes]) -> None:
    """Do it (again), and look whether it is done."""
    async with EventLog(path) as log:
        if what == "prune":
            await log.prune(older_than_s=0.0, deltas=True)
            left = [line async for line in log.export()]
            assert left == [line for line in lines if b'"sessionId":"b' in line and b".appended" not in line]
        elif what == "forget":
            await log.forget("a0", "b0")
            assert sum(event.is_forgotten for event in await all_of(log.read())) == 62 + 213
            assert not any(
                event.is_forgotten for event in await all_of(log.read()) if event.session_id not in ("a0", "b0")
            )
            content = b"".join(everything_in(path.parent).values())
            found = {id for id in ("a0", "a1", "b0", "b1") if secret_of(id).encode() in content}
            assert found == {"a1", "b1"}, "what the kill had left half erased is off the disk"
        elif what == "backup":
            path.with_name("backup.db").unlink(missing_ok=True)
            await log.backup(path.with_name("backup.db"))
            assert sorted(name for name in everything_in(path.parent) if "backup" in name) == ["backup.db"]
            assert await lines_of(path.with_name("backup.db")) == lines
        else:
            await log.vacuum(full=what == "full vacuum")
            assert await log.store.read(lambda c: c.execute("PRAGMA freelist_count").fetchone()[0]) == 0
            assert [line async for line in log.export()] == lines
        await whole(log)
        assert (await log.append("b2", "own.type", {})).index == 213
