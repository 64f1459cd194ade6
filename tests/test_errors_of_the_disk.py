"""A full or failing disk: what was not stored is said so, what may be stored too, and appends go on afterwards."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import DamagedFile, EventLogError, OutcomeUnknown, SessionNotFound, StorageFull, StoreError
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.database import map_error
from eventlog.store.deliveries import Deliveries
from eventlog.store.extensions import Extensions
from eventlog.store.owner import HeadFile
from tests.extension_kit import installation
from tests.log_kit import (
    NO_INJECTION,
    all_of,
    assert_unlocked,
    can_inject,
    fill,
    first_of,
    indexes,
    run_injected,
    start_child,
    until,
    whole,
)

LARGE = {"v": "x" * 200_000}


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s", project="p")


def pragma(connection: sqlite3.Connection, text: str) -> int:
    return int(connection.execute(f"PRAGMA {text}").fetchone()[0])


async def no_more_room(log: EventLog, pages: int = 2) -> None:
    """Let the file grow by so many pages and no more: SQLite then reports a full disk."""
    await log.store.write(pragma, f"max_page_count = {await log.store.write(pragma, 'page_count') + pages}")


async def room(log: EventLog) -> None:
    await log.store.write(pragma, "max_page_count = 1000000")


# --------------------------------------------------------------------------------------------------------- a full disk


async def test_a_full_disk_stores_nothing_and_appends_resume_when_there_is_room(
    log: EventLog, session: Session
) -> None:
    """B1."""
    await no_more_room(log)
    for _ in range(3):
        with pytest.raises(StorageFull, match="nothing was stored"):
            await session.append("own.type", LARGE, key="k")
        with pytest.raises(StorageFull):
            await session.append_many([NewEvent("own.type", LARGE)] * 5)
        await assert_unlocked(log)
    assert indexes(await all_of(session.read())) == [0]
    assert (log.head, HeadFile(log.path).read()[3]) == (1, 1)  # type: ignore[index]
    await room(log)
    event = await session.append("own.type", LARGE, key="k")
    assert event == await session.append("own.type", LARGE, key="k")
    assert event.index == 1
    assert await all_of(session.read(after=0)) == [event]
    await whole(log)


async def test_f5_nobody_is_told_of_what_was_not_stored(log: EventLog, session: Session) -> None:
    """R120: no tail, nobody who is told of commits, which feeds the hooks, and no delivery; afterwards one each."""
    await Extensions(log.store).install(installation("acme"), ["p"])
    deliveries = Deliveries(log.store)
    told: list[Event[Any]] = []
    log.on_recorded(told.extend)

    following = asyncio.ensure_future(first_of(session.tail(after=0), 1))
    await no_more_room(log)
    for _ in range(3):
        with pytest.raises(StorageFull):
            await session.append("turn.completed", {"result": LARGE}, turn_id="t")
    await room(log)
    assert (told, following.done(), await deliveries.live()) == ([], False, [])
    event = await session.append("turn.completed", {}, turn_id="t")
    assert told == await following == [event]
    assert [delivery.position for delivery in await deliveries.live()] == [event.position]


async def test_a_start_that_found_no_room_can_be_made_again(log: EventLog, session: Session) -> None:
    """Whoever had appended to it meanwhile was refused, and can append then."""
    await no_more_room(log, pages=0)
    starting = asyncio.ensure_future(log.start_session("new", auth=LARGE))
    while log.store.events.heads.get("new") is None and not starting.done():
        await asyncio.sleep(0)
    early = asyncio.ensure_future(log.append("new", "own.type", {}))
    waiting = asyncio.ensure_future(log.session("new"))
    with pytest.raises(StorageFull):
        await starting
    with pytest.raises(SessionNotFound):
        await waiting
    with pytest.raises((SessionNotFound, StorageFull)):
        await early
    with pytest.raises(SessionNotFound):
        await log.append("new", "own.type", {})
    await room(log)
    assert (await log.start_session("new", auth=LARGE)).next_index == 1
    assert (await log.append("new", "own.type", {})).index == 1
    await whole(log)


async def test_an_import_that_found_no_room_can_be_made_again(log: EventLog, session: Session) -> None:
    lines = [
        b'{"type":"own.t%d","index":%d,"sessionId":"%b","at":"2026-01-01T00:00:00Z","data":{"v":"%b"}}'
        % (n, n, id, b"x" * 5_000)
        for id in (b"a", b"b")
        for n in range(40)
    ]
    await no_more_room(log)
    with pytest.raises(StorageFull):
        await log.import_events(lines)
    await assert_unlocked(log)
    assert [info.id async for info in log.sessions()] == ["s"]
    assert (await session.append("own.type", {})).index == 1
    await room(log)
    assert (await log.import_events(lines)).added == 80
    assert indexes(await all_of((await log.session("b")).read())) == list(range(40))
    await whole(log)


# --------------------------------------------------------------------------------------------------- a failing write

# The kernel refuses to let any file grow beyond a size: a write behind it fails with EFBIG, which SQLite calls an
# I/O error. The limit is one of the whole process, so it is a child's.
FAILING = """
import resource

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def wal_size():
    return path.with_name(path.name + "-wal").stat().st_size

async def outcome(appending):
    try:
        return (await appending).index
    except EventLogError as error:
        return type(error).__name__

LARGE = {"v": "x" * 300_000}
"""


def run(code: str, *arguments: str | Path) -> str:
    """What a child says; it must end well and complain of nothing but what it logs."""
    with start_child(FAILING + code, *arguments) as process:
        said, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert "Traceback" not in complaint
    return said


async def test_after_a_failed_write_only_the_group_in_flight_is_unknown(tmp_path: Path) -> None:
    """The ones that wait are stored, the same key makes one event, indexes stay contiguous, the file is whole."""
    said = run(
        """
async def main():
    async with EventLog(path) as log:
        session = await log.start_session("s")
        await session.append_many([NewEvent("own.type", {"n": n}) for n in range(500)])
        opened = []
        limit(wal_size() + 100_000)
        for n in range(5):
            failing = asyncio.ensure_future(outcome(session.append("own.type", LARGE, key="large")))
            await asyncio.sleep(0)
            waiting = [asyncio.ensure_future(outcome(session.append("own.type", {"w": n}))) for _ in range(3)]
            say(await failing, *[await each for each in waiting])
            opened.append(await log.store.with_writer(lambda connection, events: connection))
        say(len({id(connection) for connection in opened}))
        limit(resource.RLIM_INFINITY)
        say(*[await outcome(session.append("own.type", LARGE, key="large")) for _ in range(2)])
        say(*[event.index async for event in session.read(after=500)])
        say((await log.check()).ok)
asyncio.run(main())
""",
        tmp_path / "agent.db",
    )
    *rounds, opened, large, read, ok = said.splitlines()
    assert opened == "5", "what SQLite has in memory is not believed any more: it is opened again each time"
    assert rounds == [f"OutcomeUnknown {n} {n + 1} {n + 2}" for n in range(501, 516, 3)]
    assert large == "516 516"
    assert read == " ".join(map(str, range(501, 517)))
    assert ok == "True"
    async with EventLog(tmp_path / "agent.db") as log:
        assert indexes(await all_of((await log.session("s")).read())) == list(range(517))
        await whole(log)


async def test_other_work_that_failed_to_write_has_the_file_opened_again_too(tmp_path: Path) -> None:
    said = run(
        """
def put(connection):
    connection.execute("INSERT INTO kv VALUES ('a', 'k', ?)", ('"' + "x" * 300_000 + '"',))

async def main():
    async with EventLog(path) as log:
        session = await log.start_session("s")
        limit(wal_size() + 100_000)
        say(await outcome(log.store.write(put)))
        say(await outcome(log.import_events([b'{"type":"own.type","index":1,"sessionId":"s",'
            b'"at":"2026-01-01T00:00:00Z","data":{"v":"%b"}}' % (b"x" * 300_000)])))
        say(await outcome(session.append("own.type", {})))
        limit(resource.RLIM_INFINITY)
        await log.store.write(put)
        say((await log.check()).ok, session.next_index)
asyncio.run(main())
""",
        tmp_path / "agent.db",
    )
    assert said.split() == ["OutcomeUnknown", "OutcomeUnknown", "1", "True", "2"]


async def test_a_log_that_could_not_be_made_can_be_made_later(tmp_path: Path) -> None:
    """At every size that stops its making: a typed error, nothing half made, and no lock that is left."""
    said = run(
        """
async def main():
    for size in (0, 100, 4_096, 20_000, 100_000, 200_000):
        limit(size)
        target = path.with_name(f"{size}.db")
        try:
            async with EventLog(target) as log:
                pass
        except (EventLogError, OSError) as error:
            say(size, type(error).__name__)
        else:
            say(size, "made")
        limit(resource.RLIM_INFINITY)
        async with EventLog(target) as log:
            await log.start_session("s")
            assert (await log.check()).ok
asyncio.run(main())
""",
        tmp_path / "agent.db",
    )
    outcomes = dict(line.split() for line in said.splitlines())
    assert set(outcomes) == {"0", "100", "4096", "20000", "100000", "200000"}
    assert set(outcomes.values()) <= {"OutcomeUnknown", "StorageFull", "StoreError", "OSError", "made"}
    assert outcomes["4096"] != "made"


# Each append is made again with its key until its outcome is known; says what was acknowledged.
STUBBORN = """
async def main():
    async with EventLog(path) as log:
        session = await log.start_session("s")
        for n in range(12):
            for attempt in range(50):
                try:
                    event = await session.append("own.type", {"n": n}, key=f"k{n}")
                except OutcomeUnknown:
                    say("unknown", n)
                else:
                    say("stored", event.index, n)
                    break
asyncio.run(main())
"""


@pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)
@pytest.mark.parametrize(("call", "when"), [("fdatasync", "7+3"), ("fdatasync", "9..14"), ("pwrite64", "70+9")])
async def test_a_failed_sync_is_unknown_and_the_same_key_makes_one_event(tmp_path: Path, call: str, when: str) -> None:
    """The kernel says EIO to the n-th call and to later ones: what is acknowledged is there, each key once."""
    path = tmp_path / "agent.db"
    async with EventLog(path):
        pass
    done = await asyncio.to_thread(run_injected, f"{call}:error=EIO:when={when}", STUBBORN, path)
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert any(word[0] == "unknown" for word in words)
    stored = {int(word[1]): int(word[2]) for word in words if word[0] == "stored"}
    async with EventLog(path) as log:
        events = await all_of((await log.session("s")).read(after=0))
        assert {event.index: event.data["n"] for event in events} == stored
        assert indexes(events) == list(range(1, 13))
        await whole(log)


@contextmanager
def no_file_longer_than(size_bytes: int) -> Iterator[None]:
    """The same limit in this process, for what is not told to a caller."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("count", "said"),
    [(90, "a chore of the writer failed and will be tried again"), (10, "a checkpoint failed and will be tried again")],
    ids=["behind an append", "when idle"],
)
async def test_a_failed_checkpoint_is_nobodys_error_and_is_made_later(
    log: EventLog, session: Session, caplog: pytest.LogCaptureFixture, count: int, said: str
) -> None:
    """What was acknowledged is in the WAL: only the file itself cannot be made longer."""
    writer = log.store.writer
    await session.append_many([NewEvent("own.type", {"v": "x" * 50_000}) for _ in range(150)])
    await until(lambda: writer.wal_pages > 1_500 and writer._pages_since_checkpoint == 0)
    with no_file_longer_than(log.path.stat().st_size):
        await session.append_many([NewEvent("own.type", {"v": "y" * 50_000}) for _ in range(count)])
        await until(lambda: said in caplog.text)
        assert (await session.append("own.type", {})).index == 151 + count
    assert writer._pages_since_checkpoint > 0
    await session.append("own.type", {})
    await until(lambda: writer._pages_since_checkpoint == 0)
    assert log.path.stat().st_size > 50_000 * (150 + count)
    assert indexes(await all_of(session.read())) == list(range(153 + count))
    await whole(log)


# -------------------------------------------------------------------------------------------------- a damaged disk


async def test_a_lost_page_is_a_typed_error_or_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        session = await log.start_session("s")
        await session.append_many([NewEvent("own.type", {"v": "x" * 200}) for _ in range(300)])
    content = path.read_bytes()
    for page in range(1, len(content) // 4_096, 5):
        path.write_bytes(content[: page * 4_096] + bytes(4_096) + content[(page + 1) * 4_096 :])
        for use in (check, read_all):
            try:
                fine = await use(path)
            except EventLogError:
                fine = False
            assert isinstance(fine, bool)


async def check(path: Path) -> bool:
    async with EventLog(path, read_only=True) as log:
        return (await log.check()).ok


async def read_all(path: Path) -> bool:
    async with EventLog(path, read_only=True) as log:
        return len(await all_of((await log.session("s")).read())) == 301


# ------------------------------------------------------------------------------------------------------- the mapping


async def test_an_error_is_ours_and_each_caller_has_its_own(log: EventLog, session: Session) -> None:
    """SQLite's error is its cause; a copy for each, or their tracebacks would grow into each other."""
    await no_more_room(log, pages=0)
    work: list[Awaitable[object]] = [session.append("own.type", LARGE) for _ in range(5)]
    errors = await asyncio.gather(*work, return_exceptions=True)
    assert all(isinstance(error, StorageFull) for error in errors)
    assert len({id(error) for error in errors}) == 5
    assert all(isinstance(error.__cause__, sqlite3.Error) for error in errors if isinstance(error, StorageFull))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("SQLITE_FULL", StorageFull),
        ("SQLITE_IOERR_FSYNC", OutcomeUnknown),
        ("SQLITE_IOERR_WRITE", OutcomeUnknown),
        ("SQLITE_ERROR", StoreError),
        ("SQLITE_NOMEM", StoreError),
    ],
)
def test_sqlites_errors_are_mapped_by_name(name: str, ours: type[EventLogError]) -> None:
    error = sqlite3.OperationalError("said by SQLite")
    error.sqlite_errorname = name
    assert type(map_error(error, Path("agent.db"))) is ours


def test_text_that_is_no_utf_8_is_damage() -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(sqlite3.Error) as caught:
        connection.execute("SELECT CAST(x'ff' AS TEXT)").fetchone()
    assert type(map_error(caught.value, Path("agent.db"))) is DamagedFile


async def test_reading_goes_on_while_the_disk_is_full(log: EventLog, session: Session) -> None:
    await fill(session, 5)
    await no_more_room(log, pages=0)
    with pytest.raises(StorageFull):
        await session.append("own.type", LARGE)
    assert indexes(await all_of(session.read())) == list(range(6))
