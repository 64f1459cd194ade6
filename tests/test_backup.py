"""Backups: one moment of the log, proven, in a file that was not there before; or nothing at all."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import DamagedFile, EventLogError, InvalidName, LogShortened, StorageFull, StoreError
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.store import backup
from tests.log_kit import all_of, damaging, everything_in, files_end_at, fill, mode_of, whole

BACKUPS = 30


async def lines_of(path: Path) -> list[bytes]:
    """What a log holds."""
    async with EventLog(path, read_only=True) as log:
        return [line async for line in log.export()]


async def test_every_one_of_thirty_backups_under_load_is_a_prefix_of_the_log_and_opens_as_one(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        sessions = [await log.start_session(f"s{n}") for n in range(8)]
        stop = asyncio.Event()

        async def load(n: int) -> None:
            while not stop.is_set():
                await sessions[n].append("own.type", {"text": "x" * 300})

        loads = [asyncio.ensure_future(load(n)) for n in range(len(sessions))]
        done, heads = [], []
        for n in range(BACKUPS):
            before = log.head
            done.append(await log.backup(tmp_path / f"backup{n}.db"))
            heads.append((before, done[-1].last_position, log.head))
        stop.set()
        await asyncio.gather(*loads)
        lines = [line async for line in log.export()]
    assert all(before <= copied < after for before, copied, after in heads), "appends went on"
    for n, made in enumerate(done):
        path = tmp_path / f"backup{n}.db"
        assert (made.path, made.events, made.size_bytes) == (str(path), made.last_position, path.stat().st_size)
        assert await lines_of(path) == lines[: made.events]
        async with EventLog(path) as copy:
            await whole(copy)
            assert (await copy.append("s0", "own.type", {})).position == made.last_position + 1
            await whole(copy)


async def test_a_backup_is_one_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 10)
        await log.backup(folder / "b.db")
        await log.backup(str(folder / "[b]*.db"))
        assert sorted(everything_in(folder)) == ["[b]*.db", "b.db"]
        assert mode_of(folder / "b.db") == 0o600
    assert len(await lines_of(folder / "b.db")) == 11


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", ".head"])
async def test_nothing_that_is_there_is_written_over_or_believed(tmp_path: Path, suffix: str) -> None:
    """Not the file, and nothing beside it that SQLite or the owner of the copy would read."""
    (tmp_path / f"b.db{suffix}").write_bytes(b"mine")
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(FileExistsError) as refused:
            await log.backup(tmp_path / "b.db")
        assert refused.value.filename == str(tmp_path / f"b.db{suffix}")
    assert (tmp_path / f"b.db{suffix}").read_bytes() == b"mine"
    assert [name for name in everything_in(tmp_path) if "partial" in name] == []


async def test_a_file_that_comes_there_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    target = tmp_path / "b.db"

    def come(done: int, total: int) -> None:
        target.write_bytes(b"mine")

    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(FileExistsError):
            await log.backup(target, progress=come)
    assert target.read_bytes() == b"mine"
    assert [name for name in everything_in(tmp_path) if "partial" in name] == []


@pytest.mark.parametrize("path", ["/", "//", "a\0b", "\0", "\ud800", "\udc80.db"])
async def test_what_names_no_file_is_refused_before_anything_runs(tmp_path: Path, path: str) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        before = everything_in(tmp_path)
        with pytest.raises(InvalidName, match="names no file"):
            await log.backup(path)
        assert everything_in(tmp_path) == before


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(FileNotFoundError):
            await log.backup(tmp_path / "none" / "b.db")


async def test_progress_is_told_of_the_copy_and_of_the_proof(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 20, text="x" * 100_000)
        seen: list[tuple[int, int]] = []
        made = await log.backup(tmp_path / "b.db", progress=lambda done, total: seen.append((done, total)))
        assert seen == sorted(seen)
        assert {total for _, total in seen} == {2 * made.size_bytes}
        assert (made.size_bytes, 2 * made.size_bytes) in seen
        assert seen[-1] == (2 * made.size_bytes, 2 * made.size_bytes)
        assert len(seen) >= 3


async def test_the_wal_may_grow_while_the_copy_is_made_and_the_statistics_say_so(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        await fill(session, 20, text="x" * 100_000)
        assert (await log.stats())["checkpointsSuspended"] is False
        told: list[asyncio.Task[dict[str, object]]] = []

        def ask(done: int, total: int) -> None:
            if not told:
                told.append(asyncio.ensure_future(log.stats()))

        await log.backup(tmp_path / "b.db", progress=ask)
        assert (await told[0])["checkpointsSuspended"] is True
        assert (await log.stats())["checkpointsSuspended"] is False


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
async def test_a_backup_that_is_cancelled_leaves_nothing(tmp_path: Path, share: float) -> None:
    """While it is copied, and while it is proven; and the log goes on as before."""
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 20, text="x" * 100_000)

        def cancel(done: int, total: int) -> None:
            if done >= share * total:
                backing_up.cancel()

        backing_up = asyncio.ensure_future(log.backup(tmp_path / "b.db", progress=cancel))
        with pytest.raises(asyncio.CancelledError):
            await backing_up
        assert [name for name in everything_in(tmp_path) if not name.startswith("agent.db")] == []
        assert (await log.stats())["checkpointsSuspended"] is False
        await log.backup(tmp_path / "b.db")
        await whole(log)


async def test_what_a_killed_backup_left_is_removed_by_the_next_one_and_what_another_makes_is_not(
    tmp_path: Path,
) -> None:
    left = tmp_path / ".b.db.0123abcd.eventlog-partial"
    left.write_bytes(b"half of it")
    left.with_name(left.name + "-journal").write_bytes(b"its journal")
    mine = tmp_path / ".b.db.mine.eventlog-partial"
    mine.write_bytes(b"not of a backup")
    seen: list[list[str]] = []
    async with EventLog(tmp_path / "agent.db") as log:

        def look(done: int, total: int) -> None:
            seen.append([name for name in everything_in(tmp_path) if name.startswith(".b.db")])
            if len(seen) == 1:
                second.append(asyncio.ensure_future(log.backup(tmp_path / "b.db")))

        second: list[asyncio.Task[object]] = []
        first = log.backup(tmp_path / "b.db", progress=look)
        results: list[object] = [*await asyncio.gather(first, return_exceptions=True)]
        results += await asyncio.gather(*second, return_exceptions=True)
    assert not any("0123abcd" in name for names in seen for name in names)
    told = [isinstance(result, FileExistsError) for result in results]
    assert sorted(told) == [False, True], "of two for one name one has it, and the other is told"
    assert sorted(name for name in everything_in(tmp_path) if name.startswith(".b.db")) == [mine.name]
    assert len(await lines_of(tmp_path / "b.db")) == 0


async def test_what_killed_backups_of_other_names_left_is_removed_after_a_day(tmp_path: Path) -> None:
    """Whoever names each backup by its date never uses a name again; what was forgotten would stay in there."""
    names = {name: tmp_path / f".{name}.db.0123abcd.eventlog-partial" for name in ("old", "new", "held", "other")}
    names["other"] = tmp_path / ".other.db.0123abcd.partial"  # of another program
    for path in names.values():
        path.write_bytes(b"half of it")
        age_s = backup.LEFT_ALONE_S * (0.99 if path is names["new"] else 1.01)
        changed_s = time.time() - age_s
        os.utime(path, (changed_s, changed_s))
    async with EventLog(tmp_path / "agent.db") as log:
        with names["held"].open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            await log.backup(tmp_path / "b.db")
    assert {name for name, path in names.items() if path.exists()} == {"new", "held", "other"}


def test_a_copy_is_not_taken_for_one_that_was_left_before_it_is_locked(tmp_path: Path) -> None:
    """By another backup of the same name, at the same time."""
    target, done = tmp_path / "b.db", threading.Event()

    def clean() -> None:
        while not done.is_set():
            backup._remove_what_was_left(target)

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for _ in range(3000):
            with backup._partial(target) as path:
                assert path.exists()
    finally:
        done.set()
        cleaner.join()


async def test_a_damaged_log_gives_no_backup_that_calls_itself_whole(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 5)
    with damaging(tmp_path / "agent.db") as connection:
        connection.execute("UPDATE log SET data = '{}' WHERE position = 3")
    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(DamagedFile, match="event 2 of session 's'"):
            await log.backup(tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


@pytest.mark.parametrize("size_bytes", [0, 4_096, 100_000])
async def test_a_copy_that_cannot_be_written_is_no_damage_of_the_log(tmp_path: Path, size_bytes: int) -> None:
    target = tmp_path / "b.db"
    async with EventLog(tmp_path / "agent.db") as log:
        await fill(await log.start_session("s"), 500)
        with files_end_at(size_bytes), pytest.raises(StoreError) as refused:
            await log.backup(target)
        assert str(target) in str(refused.value)
        assert str(log.path) not in str(refused.value)
        assert [name for name in everything_in(tmp_path) if "b.db" in name] == []
        await whole(log)
        assert (await log.backup(target)).events == log.head


def _os_full(_: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sqlite_full(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA max_page_count = 1")
        connection.execute("CREATE TABLE t (x)")


def _os_fault(_: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("fail", "kind"), [(_os_full, StorageFull), (_sqlite_full, StorageFull), (_os_fault, StoreError)]
)
def test_what_keeps_a_copy_from_being_written_is_told_with_its_name(
    tmp_path: Path, fail: Any, kind: type[EventLogError]
) -> None:
    with pytest.raises(kind, match=r"the backup /place/b\.db"), backup._writing(Path("/place/b.db")):
        fail(tmp_path / "full.db")


def test_what_keeps_the_log_from_being_read_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "noise.db").write_bytes(b"noise" * 1_000)
    with (
        closing(sqlite3.connect(tmp_path / "noise.db")) as source,
        closing(sqlite3.connect(tmp_path / "b.db")) as copy,
        pytest.raises(sqlite3.DatabaseError, match="not a database"),
        backup._writing(tmp_path / "b.db"),
    ):
        source.backup(copy)


async def test_a_backup_begins_an_era_of_its_own_and_a_restored_one_is_noticed(tmp_path: Path) -> None:
    """Else an id that the log has given out since would be given to another event."""
    path, copy = tmp_path / "agent.db", tmp_path / "b.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        await log.backup(copy)
        original = await session.append("own.type", {"n": 1})
    async with EventLog(copy) as restored:
        (start,) = await all_of(restored.read())
        other = await restored.append("s", "own.type", {"n": 2})
        assert start.era == original.era
        assert (other.position, other.era != original.era) == (original.position, True)
        await whole(restored)
    fresh = tmp_path / "fresh.db"
    async with EventLog(path) as log:
        await log.backup(fresh)
        await log.append("s", "own.type", {})
    path.unlink()
    fresh.rename(path)
    with pytest.raises(LogShortened):
        await EventLog(path).open()
    path.with_name("agent.db.head").unlink()
    async with EventLog(path) as log:
        assert (await log.append("s", "own.type", {})).era not in (original.era, other.era)


async def test_a_reader_in_another_process_can_make_a_backup_too(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, EventLog(log.path, read_only=True) as other:
        await fill(await log.start_session("s"), 3)
        assert (await other.backup(tmp_path / "b.db")).events == 4


async def test_a_backup_holds_one_snapshot_and_is_not_begun_again_by_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "STEP_PAGES", 1)
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        await fill(session, 20, text="x" * 10_000)
        done: list[int] = []
        appends: list[asyncio.Task[Event[Any]]] = []

        def append(copied: int, total: int) -> None:
            done.append(copied)
            appends.append(asyncio.ensure_future(session.append("own.type", {"text": "y" * 1_000})))

        made = await log.backup(tmp_path / "b.db", progress=append)
        await asyncio.gather(*appends)
        assert made.events == 21
        assert done == sorted(set(done)) or done == sorted(done)
        assert made.last_position == 21 < log.head


def test_the_copy_has_a_rollback_journal_so_that_all_of_it_is_in_one_file(tmp_path: Path) -> None:
    async def make() -> None:
        async with EventLog(tmp_path / "agent.db") as log:
            await log.backup(tmp_path / "b.db")

    asyncio.run(make())
    os.chmod(tmp_path / "b.db", 0o400)  # noqa: PTH101
    connection = sqlite3.connect(f"file:{tmp_path / 'b.db'}?mode=ro", uri=True)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()
