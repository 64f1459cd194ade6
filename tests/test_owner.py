"""Who may write: one owner at a time, whatever dies or forks; its files are its own; nothing foreign is touched."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import (
    DamagedFile,
    EventLogError,
    LogInUse,
    NetworkFileSystem,
    NotALog,
    UnsupportedSchema,
)
from eventlog.log import EventLog
from eventlog.store.owner import NETWORK_FILE_SYSTEMS, file_system_of, owner_of, refuse_network_file_system
from tests.log_kit import (
    KILLED,
    all_of,
    child,
    crash_copy,
    everything_in,
    fill,
    indexes,
    line_of,
    mode_of,
    start_child,
    tell_child,
    whole,
)

OWNER = """
async def main():
    async with EventLog(path) as log:
        session = await log.start_session(f"by{os.getpid()}")
        await session.append("own.type", {})
        say("open")
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


# ------------------------------------------------------------------------------------------------------ one owner


async def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    """From another process and from the same one, at once; and it can have the log when the first is done."""
    path = tmp_path / "agent.db"
    with child(OWNER, path) as owner:
        assert line_of(owner) == "open"
        fastest_s = 1.0
        for _ in range(3):
            began_s = time.perf_counter()
            with pytest.raises(LogInUse, match=f"in use by process {owner.pid}") as caught:
                await EventLog(path).open()
            fastest_s = min(fastest_s, time.perf_counter() - began_s)
            assert caught.value.pid == owner.pid
        assert fastest_s < 0.1
        tell_child(owner)
        assert owner.wait() == 0
    async with EventLog(path):
        with pytest.raises(LogInUse, match=f"in use by process {os.getpid()}"):
            await EventLog(path).open()


async def test_a_killed_owner_hinders_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with child(OWNER, path) as owner:
        line_of(owner)
        owner.kill()
        assert owner.wait() == KILLED
    async with EventLog(path) as log:
        assert indexes(await all_of((await log.session(f"by{owner.pid}")).read())) == [0, 1]
        await whole(log)


@pytest.mark.parametrize("make_name", [Path.symlink_to, lambda link, path: link.symlink_to(path.name)])
async def test_a_link_is_the_same_file_with_the_same_owner(
    tmp_path: Path, make_name: Callable[[Path, Path], None]
) -> None:
    path, link = tmp_path / "agent.db", tmp_path / "link.db"
    make_name(link, path)
    async with EventLog(path) as log:
        with pytest.raises(LogInUse):
            await EventLog(link).open()
        session = await log.start_session("s")
        async with EventLog(link, read_only=True) as reader:
            assert len(await all_of(reader.read())) == 1
    async with EventLog(link) as log:
        assert await log.session_info("s") == session.info
        with pytest.raises(LogInUse):
            await EventLog(path).open()
    assert {file.name for file in tmp_path.iterdir()} == {"agent.db", "agent.db.head", "agent.db.lock", "link.db"}


RACER = """
async def race(target):
    log = EventLog(target)
    try:
        await log.open()
    except LogInUse as error:
        return say("in use", error.pid)
    except BaseException as error:
        return say("error", type(error).__name__, error)
    await log.start_session(f"by{os.getpid()}")
    say("open", os.getpid())
    await asyncio.to_thread(sys.stdin.readline)
    await log.close()

async def main():
    say("ready")
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await race(Path(line))
        say("done")
asyncio.run(main())
"""


async def test_of_eight_that_open_a_fresh_path_at_once_one_gets_it(tmp_path: Path) -> None:
    """C4: 20 rounds: one opens, the others are told that it is in use, and by whom; nobody sees a raw lock error."""
    racers = [start_child(RACER, tmp_path / "x", stdin=-1) for _ in range(8)]
    try:
        for racer in racers:
            assert line_of(racer) == "ready"
        for number in range(20):
            path = tmp_path / f"{number}.db"
            for racer in racers:
                tell_child(racer, str(path))
            said = [line_of(racer).split() for racer in racers]
            winners = [racer for racer, words in zip(racers, said, strict=True) if words[0] == "open"]
            assert len(winners) == 1, said
            assert all(words[:2] == ["in", "use"] for words in said if words[0] != "open"), said
            assert {words[2] for words in said if words[0] == "in"} <= {str(winners[0].pid), "None"}
            tell_child(winners[0])
            for racer in racers:
                assert line_of(racer) == "done"
            async with EventLog(path) as log:
                assert [info.id async for info in log.sessions()] == [f"by{winners[0].pid}"]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


async def test_wait_for_owner_s_waits_for_the_owner_to_leave(tmp_path: Path) -> None:
    first = await EventLog(tmp_path / "agent.db").open()
    with pytest.raises(LogInUse):
        await EventLog(first.path, wait_for_owner_s=0.05).open()
    second = EventLog(first.path, wait_for_owner_s=30)
    opening = asyncio.ensure_future(second.open())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not opening.done()
    await first.close()
    await opening
    await second.start_session("s")
    await second.close()


async def test_whoever_stops_waiting_for_the_owner_takes_nothing(tmp_path: Path) -> None:
    """A cancelled opening does not get the lock later, when nobody knows of it any more."""
    async with EventLog(tmp_path / "agent.db") as first:
        opening = asyncio.ensure_future(EventLog(first.path, wait_for_owner_s=30).open())
        for _ in range(5):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    for _ in range(3):
        async with EventLog(first.path):
            await asyncio.sleep(0)


async def test_a_cancelled_opening_leaves_the_file_to_others(tmp_path: Path) -> None:
    for turns in range(0, 60, 3):
        opening = asyncio.ensure_future(EventLog(tmp_path / "agent.db").open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
        async with EventLog(tmp_path / "agent.db") as log:
            await log.start_session(f"s{turns}")


async def test_asking_for_the_owner_hinders_nobody_from_becoming_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path):
        assert owner_of(path) == os.getpid()
    assert owner_of(path) is None
    assert owner_of(tmp_path / "missing.db") is None
    asker = "from eventlog.store.owner import owner_of\nsay('ready')\nwhile True: owner_of(path)\n"
    with child(asker, path) as process:
        assert line_of(process) == "ready"
        for _ in range(25):
            async with EventLog(path):
                pass


async def test_any_number_may_read_meanwhile(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        readers = [await EventLog(log.path, read_only=True).open() for _ in range(5)]
        await fill(session, 5)
        for reader in readers:
            assert len(await all_of(reader.read())) == 6
            assert (await reader.stats())["ownerPid"] == os.getpid()
            await reader.close()
        await fill(session, 5)
        await whole(log)


async def test_a_reader_of_a_killed_owners_log_leaves_its_files_as_they_are(tmp_path: Path) -> None:
    """It sees what is in the WAL, and brings nothing of it into the database: that is an owner's work."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        await fill(session, 30)
        path = crash_copy(log.path, tmp_path / "killed")
    before = everything_in(path.parent)
    async with EventLog(path, read_only=True) as reader:
        assert indexes(await all_of((await reader.session("s")).read())) == list(range(31))
        assert (await reader.check()).ok
        assert (await reader.stats())["ownerPid"] is None
    after = {name: content for name, content in everything_in(path.parent).items() if not name.endswith("-shm")}
    assert after == before
    await a_second_owner(path)


async def a_second_owner(path: Path) -> None:
    async with EventLog(path) as log:
        assert (await log.session("s")).next_index == 31


async def test_opening_a_file_again_here_does_not_drop_the_owners_locks(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the locks that this process has on it; so nobody opens it as a file."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        async with EventLog(log.path, read_only=True):
            await fill(session, 1)
        with suppress(LogInUse):
            await EventLog(log.path).open()
        await log.check()
        steal = "import sqlite3\nc = sqlite3.connect(path, timeout=0)\nc.execute('PRAGMA journal_mode = DELETE')\n"
        with start_child(steal, log.path) as thief:
            _, complaint = thief.communicate()
        assert "database is locked" in complaint
        await fill(session, 1)
        await whole(log)


async def test_each_owner_raises_the_epoch(tmp_path: Path) -> None:
    for number in range(1, 4):
        async with EventLog(tmp_path / "agent.db") as log:
            assert (await log.stats())["epoch"] == number


# ------------------------------------------------------------------------------------------------------------ fork

FORKER = """
READ_ONLY = sys.argv[2] == "reader"

async def refused(name, attempt):
    try:
        await asyncio.wait_for(attempt(), 3)
    except ForkedProcess:
        return
    except BaseException as error:
        say("wrong", name, type(error).__name__, error)
    else:
        say("wrong", name, "was not refused")

async def everything(iterator):
    return [each async for each in iterator]

async def in_child(log, session):
    await refused("session.append", lambda: session.append("own.type", {}))
    await refused("log.append", lambda: log.append("s", "own.type", {}))
    await refused("start", lambda: log.start_session("t"))
    await refused("session", lambda: log.session("unknown"))
    await refused("session.read", lambda: everything(session.read()))
    await refused("log.read", lambda: everything(log.read()))
    await refused("session.tail", lambda: everything(session.tail()))
    await refused("log.tail", lambda: everything(log.tail()))
    await refused("sessions", lambda: everything(log.sessions()))
    await refused("stats", log.stats)
    await refused("check", log.check)
    await refused("import", lambda: log.import_events([b"{}"]))
    await refused("absorb", log.store.absorb)
    await refused("write", lambda: log.store.write(lambda c: c.execute("DELETE FROM kv")))
    await refused("another one", EventLog(path, read_only=True).open)
    await log.close()

def fork(work):
    sys.stdout.flush()
    with warnings.catch_warnings(action="ignore"):  # of Python 3.12: the process has threads, which is the point
        pid = os.fork()
    if pid == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    return pid

async def main():
    owner = await EventLog(path).open()
    session = await owner.start_session("s")
    log = owner
    if READ_ONLY:
        log = await EventLog(path, read_only=True).open()
        session = await log.session("s")
    os.waitpid(fork(lambda: asyncio.run(in_child(log, session))), 0)
    for n in range(3):
        await owner.append("s", "own.type", {"n": n})
    say("still", (await owner.session("s")).next_index)
    await owner.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["owner", "reader"])
async def test_every_call_in_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path, kind: str) -> None:
    with start_child(FORKER, tmp_path / "agent.db", kind) as parent:
        said, complaint = await asyncio.to_thread(parent.communicate)
    if kind == "reader":  # what a reader may not do in the parent either
        said = "".join(f"{line}\n" for line in said.splitlines() if "ReadOnlyLog" not in line)
    assert (said, complaint) == ("still 4\n", "")
    async with EventLog(tmp_path / "agent.db") as log:
        await whole(log)


OUTLIVED = """
async def main():
    log = await EventLog(path).open()
    session = await log.start_session("s")
    await session.append("own.type", {})
    inner, outer = os.pipe()
    with warnings.catch_warnings(action="ignore"):
        pid = os.fork()
    if pid == 0:
        os.close(outer)
        os.read(inner, 1)  # until the file is somebody else's
        sys.exit(0)        # an orderly end, which drops everything that the child inherited
    say("forked", pid)
    os.kill(os.getpid(), signal.SIGSTOP)
asyncio.run(main())
"""


async def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    """The next owner has the log at once, and nothing that the child does at its end harms it."""
    path = tmp_path / "agent.db"
    with child(OUTLIVED, path) as parent:
        words = line_of(parent).split()
        orphan = int(words[1])
        parent.kill()  # the pipe's other end dies with it
        parent.wait()
        async with EventLog(path) as log:
            session = await log.session("s")
            await fill(session, 5)
            while is_alive(orphan):
                await asyncio.sleep(0)
            await fill(session, 5)
            assert indexes(await all_of(session.read())) == list(range(12))
            await whole(log)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# ------------------------------------------------------------------------------------------------------ files, modes


async def test_every_file_is_the_owners_alone(tmp_path: Path) -> None:
    """Folders 0700 and files 0600, under the widest umask there is, and while they are in use."""
    path = tmp_path / "made" / "for it" / "agent.db"
    old = os.umask(0)
    try:
        async with EventLog(path) as log:
            await fill(await log.start_session("s"), 5)
            async with EventLog(path, read_only=True):
                modes = {file.name: mode_of(file) for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes.keys() >= {f"agent.db{suffix}" for suffix in ("", "-wal", "-shm", ".head", ".lock")}
    assert set(modes.values()) == {0o600}
    assert (mode_of(path.parent), mode_of(path.parent.parent)) == (0o700, 0o700)


async def test_the_mode_of_a_folder_that_was_there_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    async with EventLog(tmp_path / "agent.db"):
        assert mode_of(tmp_path) == 0o750


# ------------------------------------------------------------------------------------------------- what is no log


async def a_log(path: Path) -> None:
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 5)


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES (1)")
        connection.commit()


def altered(*statements: str) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return alter


FOREIGN: dict[str, tuple[Callable[[Path], object], type[EventLogError]]] = {
    "a text file": (lambda path: path.write_text("not a database\n" * 500), NotALog),
    "a short text": (lambda path: path.write_text("x"), NotALog),
    "random bytes": (lambda path: path.write_bytes(bytes(range(256)) * 64), NotALog),
    "a folder": (lambda path: path.mkdir(), NotALog),
    "a socket": (lambda path: bind(path), NotALog),
    "a pipe": (lambda path: os.mkfifo(path), NotALog),
    "only SQLite's first bytes": (lambda path: path.write_bytes(b"SQLite format 3\0"), NotALog),
    "another application's database": (other_database, NotALog),
}

ALTERED: dict[str, tuple[Callable[[Path], object], type[EventLogError]]] = {
    "cut to 100 bytes": (lambda path: os.truncate(path, 100), DamagedFile),
    "cut in half": (lambda path: os.truncate(path, path.stat().st_size // 2), DamagedFile),
    "of a newer version": (altered("PRAGMA user_version = 2"), UnsupportedSchema),
    "of version 0": (altered("PRAGMA user_version = 0"), UnsupportedSchema),
    "of another application": (altered("PRAGMA application_id = 7"), NotALog),
    "with a foreign table": (altered("CREATE TABLE mine (x)"), NotALog),
    "with a foreign view": (altered("CREATE VIEW mine AS SELECT 1"), NotALog),
    "with a foreign trigger": (
        altered(
            "CREATE TRIGGER mine AFTER UPDATE ON epoch BEGIN INSERT INTO kv VALUES ('a', 'hit', '1'); END",
        ),
        NotALog,
    ),
    "without a trigger": (altered("DROP TRIGGER log_is_append_only_delete"), NotALog),
    "with another trigger of that name": (
        altered(
            "DROP TRIGGER log_is_append_only_delete",
            "CREATE TRIGGER log_is_append_only_delete BEFORE DELETE ON log BEGIN SELECT 1; END",
        ),
        NotALog,
    ),
    "without an index": (altered("DROP INDEX log_by_key"), NotALog),
    "with another view of that name": (
        altered("DROP VIEW hooks", "CREATE VIEW hooks AS SELECT load_extension('x') AS agent"),
        NotALog,
    ),
}


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def look(path: Path) -> Any:
    status = path.stat()
    content = path.read_bytes() if path.is_file() else None
    return status.st_mode, status.st_size, status.st_mtime_ns, content


async def assert_refused(path: Path, error: type[EventLogError]) -> None:
    """Refused by owner and reader with this error, which names the path; the file is not touched, and not kept."""
    before = look(path)
    for options in ({}, {"read_only": True}, {"accept_loss": True}):
        with pytest.raises(error) as caught:
            await EventLog(path, **options).open()  # type: ignore[arg-type]
        assert str(path) in str(caught.value)
        assert look(path) == before
    assert [file.name for file in path.parent.iterdir() if file.name.endswith(("-wal", "-shm", "-journal"))] == []
    assert owner_of(path) is None


@pytest.mark.parametrize("name", FOREIGN)
async def test_what_is_no_log_is_refused_and_not_touched(tmp_path: Path, name: str) -> None:
    make, error = FOREIGN[name]
    path = tmp_path / "agent.db"
    make(path)
    await assert_refused(path, error)


@pytest.mark.parametrize("name", ALTERED)
async def test_a_log_that_is_not_as_it_was_made_is_refused_and_not_touched(tmp_path: Path, name: str) -> None:
    """A crafted file cannot make a trigger or view of its own run, and a damaged one is not damaged further."""
    alter, error = ALTERED[name]
    path = tmp_path / "agent.db"
    await a_log(path)
    alter(path)
    await assert_refused(path, error)


async def test_statistics_that_an_operator_made_do_no_harm(tmp_path: Path) -> None:
    await a_log(tmp_path / "agent.db")
    altered("ANALYZE")(tmp_path / "agent.db")
    async with EventLog(tmp_path / "agent.db") as log:
        await whole(log)


async def test_an_empty_file_is_a_log_to_be_for_its_owner_and_none_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.touch()
    with pytest.raises(NotALog, match="is empty"):
        await EventLog(path, read_only=True).open()
    assert everything_in(tmp_path) == {"agent.db": b""}
    await a_log(path)


async def test_an_opening_that_failed_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_text("a text")
    with pytest.raises(NotALog):
        await EventLog(path).open()
    path.unlink()
    await a_log(path)


# --------------------------------------------------------------------------------------------- network file systems

MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:20 / /proc rw,nosuid - proc proc rw
40 22 0:41 / /home rw - nfs4 server:/export rw,vers=4.2
41 40 259:9 / /home/fast rw - xfs /dev/nvme1 rw
42 22 0:44 / /mnt/with\\040space rw master:3 - cifs //server/share rw
43 22 0:45 / /mnt/twice rw - ext4 /dev/sda1 rw
44 22 0:46 / /mnt/twice rw - virtiofs share rw
45 22 0:47 / /mnt/back\\134slash rw - 9p host rw
46 22 0:48 / /mntx rw - smb3 //server/x rw
a line that means nothing

47 22 0:49 / /mnt/no-type rw -
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/agent", "nfs4"),
        ("/homer", "ext4"),
        ("/home/fast", "xfs"),
        ("/home/fast/agent", "xfs"),
        ("/home/faster", "nfs4"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/twice", "virtiofs"),
        ("/mnt/back\\slash", "9p"),
        ("/mnt", "ext4"),
        ("/mntx/a", "smb3"),
        ("/mnt/no-type", "ext4"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


def test_nothing_is_known_without_a_table() -> None:
    assert file_system_of(Path("/home"), "") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:1 / / rw - {kind} server:/x rw\n")
    with pytest.raises(NetworkFileSystem, match=f"is on {kind}") as caught:
        refuse_network_file_system(tmp_path / "agent.db", mounts)
    assert caught.value.fs_type == kind
    assert kind in NETWORK_FILE_SYSTEMS
    refuse_network_file_system(tmp_path / "agent.db", tmp_path / "missing")


async def test_a_local_file_system_is_not_refused_and_the_check_can_be_left_out(tmp_path: Path) -> None:
    for allow in (False, True):
        async with EventLog(tmp_path / "agent.db", allow_network_fs=allow):
            pass
