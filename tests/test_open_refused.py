"""What opening does where the disk is full, a permission is missing, or the path names something else.

What the file system refuses is an OSError with the path, as everywhere in Python; a full disk is StorageFull; what is
no log is NotALog (see test_owner). Nothing is changed, and with the cause away the log opens.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (while the place that it is in may be read)
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from eventlog.errors import NotALog, StorageFull, StoreError
from eventlog.log import EventLog
from tests.log_kit import NO_INJECTION, all_of, can_inject, fill, run_injected, whole

NOBODY = 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can reach: those of pytest are its owner's alone."""
    made = Path(mkdtemp(prefix="eventlog-open-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@contextmanager
def without_rights(*paths: Path) -> Iterator[None]:
    """Be somebody to whom permissions apply. Root gives the paths away and becomes nobody for a while."""
    if os.geteuid():
        yield
        return
    for path in paths:
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for path in paths:
            os.chown(path, 0, 0)


async def a_log(path: Path) -> Path:
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 3)
    return path


def look(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir() if file.is_file()}


# ------------------------------------------------------------------------------------------------------- permissions


async def test_a_folder_that_may_not_be_written_is_an_os_error_with_the_path(folder: Path) -> None:
    path = folder / "agent.db"
    folder.chmod(0o555)
    with without_rights(folder), pytest.raises(PermissionError) as caught:
        await EventLog(path).open()
    assert str(path) in str(caught.value.filename)
    assert look(folder) == {}
    with without_rights(folder), pytest.raises(FileNotFoundError):
        await EventLog(path, read_only=True).open()
    folder.chmod(0o755)
    await a_log(path)


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400])
async def test_a_file_that_may_not_be_read_or_written_is_an_os_error_with_the_path(folder: Path, mode: int) -> None:
    """And not one that comes with the first append."""
    path = await a_log(folder / "agent.db")
    files = list(folder.iterdir())
    before = look(folder)
    path.chmod(mode)
    with without_rights(folder, *files), pytest.raises(PermissionError) as caught:
        await EventLog(path).open()
    assert caught.value.filename == str(path)
    assert {name: found for name, found in look(folder).items() if name != "agent.db.lock"} == {
        name: found for name, found in before.items() if name != "agent.db.lock"
    }
    path.chmod(0o600)
    async with EventLog(path) as log:
        await whole(log)


async def test_a_reader_of_a_read_only_folder_is_told_what_sqlite_needs(folder: Path) -> None:
    """SQLite reads a WAL database with a file beside it that readers share; where it cannot make one, it says so."""
    path = await a_log(folder / "agent.db")
    files = list(folder.iterdir())
    folder.chmod(0o555)
    with without_rights(folder, *files), pytest.raises(StoreError, match="may be written"):
        async with EventLog(path, read_only=True) as log:
            await all_of(log.read())
    folder.chmod(0o755)
    async with EventLog(path, read_only=True) as log:
        assert len(await all_of(log.read())) == 4


async def test_a_head_file_that_may_not_be_written_is_an_os_error_with_the_path(folder: Path) -> None:
    path = await a_log(folder / "agent.db")
    files = list(folder.iterdir())
    head = path.with_name("agent.db.head")
    head.chmod(0o444)
    with without_rights(folder, *files), pytest.raises(PermissionError) as caught:
        await EventLog(path).open()
    assert str(caught.value.filename) == str(head)
    head.chmod(0o600)
    async with EventLog(path) as log:
        assert len((await log.stats())["eras"]) == 1


# -------------------------------------------------------------------------------------------------------- other things


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_link_to_nothing_and_a_link_to_itself(folder: Path, read_only: bool) -> None:
    """The first is a log to be, where it points to; the second is refused by the file system."""
    (folder / "loop.db").symlink_to(folder / "loop.db")
    with pytest.raises(OSError, match="loop"):
        await EventLog(folder / "loop.db", read_only=read_only).open()
    (folder / "link.db").symlink_to(folder / "there.db")
    if read_only:
        with pytest.raises(FileNotFoundError):
            await EventLog(folder / "link.db", read_only=True).open()
    else:
        await a_log(folder / "link.db")
        assert (folder / "there.db").is_file()


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_folder_a_pipe_and_a_path_through_a_file_are_refused(folder: Path, read_only: bool) -> None:
    """At once: opening a pipe would wait for its writer."""
    (folder / "folder.db").mkdir()
    os.mkfifo(folder / "pipe.db")
    (folder / "file").write_text("x")
    for name in ("folder.db", "pipe.db"):
        with pytest.raises(NotALog):
            await EventLog(folder / name, read_only=read_only).open()
    with pytest.raises(OSError, match=r"file"):
        await EventLog(folder / "file/agent.db", read_only=read_only).open()
    assert (folder / "file").read_text() == "x"


# --------------------------------------------------------------------------------------------------------- a full disk


OPEN = """
async def main():
    try:
        async with EventLog(path) as log:
            say("opened")
    except EventLogError as error:
        say(type(error).__name__)
asyncio.run(main())
"""


@pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)
@pytest.mark.parametrize("known", [True, False])
async def test_a_full_disk_at_any_write_of_an_opening_is_an_error_of_ours(folder: Path, known: bool) -> None:
    """Of the lock, of the database, of the head file; afterwards it opens, and holds what it held."""
    outcomes = set()
    for number in (1, 2, 3, 5, 8, 13):
        path = folder / f"{number}.db"
        if known:
            await a_log(path)
        done = run_injected(f"pwrite64:error=ENOSPC:when={number}", OPEN, path)
        assert done.returncode == 0, done.stderr
        outcomes.add(done.stdout.split()[0])
        async with EventLog(path) as log:
            await whole(log)
            assert log.head == (4 if known else 0)
    assert outcomes <= {"opened", "StorageFull", "StoreError"}
    assert "StorageFull" in outcomes


async def test_a_disk_that_is_really_full_is_storage_full(folder: Path) -> None:
    """A file system in memory that has room for less than a new log, where the tests may mount one."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    small = folder / "small"
    small.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=128k", "eventlog-test", str(small)]
    if mount is None or umount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the permission to mount a file system")
    try:
        with pytest.raises(StorageFull):
            await EventLog(small / "agent.db").open()
        assert (small / "agent.db").stat().st_size == 0
    finally:
        subprocess.run([umount, str(small)], check=True)
