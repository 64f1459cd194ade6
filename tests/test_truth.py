"""The truth of the file: no flipped bit passes for an event, and no lost end of it goes without a word.

Bits are flipped at random, over the database and the WAL; each case names its seed, so that it can be made again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from eventlog import CorruptEvent, Event, EventLog, EventLogError, LogShortened, NewEvent
from eventlog.errors import DamagedFile
from eventlog.store.checking import Report
from tests.cli_kit import run, shell
from tests.log_kit import all_of, child, crash_copy, line_of, tell_child, whole
from tests.torture.counts import Counts

EVENTS, SESSIONS = 120, 4
SEEDS = 5
PAGE_BYTES = 4_096
Row = tuple[Any, ...]
Files = Mapping[str, bytes]
"""What is in the files of a log, by the end of their names."""


class Original(NamedTuple):
    """A log before anything happened to it."""

    files: Files
    rows: dict[int, Row]
    events: dict[int, Event[Any]]


async def fill(log: EventLog) -> None:
    """Events of some sizes, in several sessions and commits, some with keys and turns."""
    sessions = [await log.start_session(f"session-{number}", title="t") for number in range(SESSIONS)]
    for number in range(0, EVENTS, 4):
        session = sessions[number // 4 % SESSIONS]
        text = f"event {number} " + "x" * (number * 37 % 900)
        await session.append("turn.started", {}, turn_id=f"t{number}")
        await session.append("message.received", {"text": text}, turn_id=f"t{number}", key=f"k{number}")
        await session.append_many([NewEvent("acme.note", {"n": number, "m": n}) for n in range(2)])


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A log that was let go: all of it is in the database."""
    return asyncio.run(close_one(tmp_path_factory.mktemp("closed")))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A log whose owner was killed: half of it is in the database, half in the WAL."""
    return asyncio.run(kill_one(tmp_path_factory.mktemp("open")))


async def close_one(folder: Path) -> Original:
    async with EventLog(folder / "agent.db") as log:
        await fill(log)
    return await original(folder / "agent.db")


async def kill_one(folder: Path) -> Original:
    async with EventLog(folder / "agent.db") as log:
        await fill(log)
    async with EventLog(folder / "agent.db") as log:
        for number in range(40):
            await log.append("session-0", "acme.note", {"late": number})
        path = crash_copy(log.path, folder / "killed")
    return await original(path)


async def original(path: Path) -> Original:
    files = {end: file.read_bytes() for end in ("", "-wal", ".head") if (file := with_end(path, end)).exists()}
    async with EventLog(path, read_only=True) as log:
        events = {event.position: event async for event in log.read()}
        await whole(log)
    return Original(files, rows_of(path), events)


def with_end(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def lay_out(files: Files, path: Path) -> None:
    """Write the files of a log, and leave nothing of what was there before."""
    for end in ("", "-wal", "-shm", ".head"):
        with_end(path, end).unlink(missing_ok=True)
    for end, content in files.items():
        with_end(path, end).write_bytes(content)


ROWS = (
    "SELECT l.position, s.id, l.idx, t.name, l.turn_id, l.at, l.data, l.key FROM log AS l NOT INDEXED"
    " LEFT JOIN session AS s ON s.session = l.session LEFT JOIN event_type AS t ON t.type = l.type"
)


def rows_of(path: Path) -> dict[int, Row]:
    """What SQLite itself reads: each event's row, with the names behind its keys."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.text_factory = bytes
        return {row[0]: row for row in connection.execute(ROWS)}


# ------------------------------------------------------------------------------------------------------- flipped bits


def flip(before: Original, random: Random) -> tuple[dict[str, bytes], str]:
    """One bit: in the WAL, anywhere in the database, or in the row of an event."""
    end = random.choice([end for end in before.files if end != ".head"])
    content, bit = bytearray(before.files[end]), random.randrange(8)
    at = random.randrange(len(content))
    data = random.choice(list(before.rows.values()))[6]
    if end == "" and random.random() < 0.5 and (place := content.find(data)) > 0:
        at = random.randrange(place - 40, place + len(data) + 16)
    content[at] ^= 1 << bit
    return {**before.files, end: bytes(content)}, f"bit {bit} of byte {at} of agent.db{end}"


async def look(path: Path) -> tuple[Report | None, dict[int, Event[Any]]]:
    """What a check finds, and what a verifying reader is shown; typed errors alone may keep them from it."""
    report: Report | None = None
    events: dict[int, Event[Any]] = {}
    async with EventLog(path, read_only=True, verify_reads=True) as log:
        with suppress(EventLogError):
            report = await log.check()
        with suppress(EventLogError):
            async for event in log.read():
                events[event.position] = event
    return report, events


def is_corrupt(event: Event[Any]) -> bool:
    try:
        _ = event.data
    except CorruptEvent:
        return True
    return False


def changed_events(path: Path, before: Original) -> set[int] | None:
    """Positions at which SQLite finds something else than before, or nothing; None if it finds nothing at all.

    A page in disorder may also show rows that are not found where they say that they are: whether they pass for events
    is asked elsewhere.
    """
    found: dict[int, Row] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.text_factory = bytes
        for position in before.rows:
            with suppress(sqlite3.Error):
                found.update((row[0], row) for row in connection.execute(f"{ROWS} WHERE l.position = ?", (position,)))
    return {position for position, row in before.rows.items() if found.get(position) != row} if found else None


async def judge(path: Path, before: Original) -> str:
    """What became of a damaged log, after asserting that nothing of it passes for truth."""
    try:
        report, events = await look(path)
    except EventLogError as error:
        return f"refused: {type(error).__name__}"
    (era,) = {event.era for event in before.events.values()}
    eras = {event.era for event in events.values()} - {era}
    for event in events.values():
        shown = replace(event, era=era)
        assert is_corrupt(event) or shown == before.events.get(event.position), f"shown as true: {event}"
    assert not eras or (report is not None and not report.ok), f"no fault, and eras that never were: {eras}"
    if report is None:
        return "no check: the file is damaged"
    changed = changed_events(path, before)
    if changed is None:
        assert not report.ok
        return "found: the database"
    missing = {position for gap in report.missing for position in range(gap.first, gap.last + 1)}
    named = {each.position for each in report.damaged} | missing
    assert changed <= named, f"changed, and not named: {changed - named}"
    if changed:
        return "found: events"
    if report.ok:
        assert events == before.events
        return "harmless"
    return "found: something else"


async def owner_survives(path: Path) -> None:
    """An owner opens it, appends and closes it, or is refused with an error of ours."""
    with suppress(EventLogError):
        async with EventLog(path, accept_loss=True) as log:
            event = await log.append("session-0", "acme.note", {})
            assert event.position == log.head
            _ = await all_of((await log.session("session-0")).read())


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_flipped_bit_passes_for_an_event_and_none_crashes(
    tmp_path: Path, counts: Counts, closed: Original, killed: Original, seed: int
) -> None:
    """`check` names every event that is changed; a verifying reader is shown it as it was, or as corrupt."""
    random, path, outcomes = Random(seed), tmp_path / "agent.db", Counter[str]()
    flips = counts.flipped_bits // SEEDS
    for number in range(flips):
        before = killed if number % 2 else closed
        files, where = flip(before, random)
        lay_out(files, path)
        try:
            outcomes[await judge(path, before)] += 1
            await owner_survives(path)
        except BaseException:
            print(f"seed {seed}: {where}")
            raise
    print(f"\n{flips} bits flipped, seed {seed}: {dict(outcomes)}")
    assert outcomes.total() == flips
    assert outcomes["found: events"] + outcomes["refused: LogShortened"] >= flips // 10


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_bit_flipped_in_the_head_of_a_page_passes_for_an_event_and_none_crashes(
    tmp_path: Path, counts: Counts, closed: Original, seed: int
) -> None:
    """There a bit makes rows of other types, rows in disorder, and pages that SQLite cannot read."""
    random, path, outcomes = Random(seed), tmp_path / "agent.db", Counter[str]()
    pages = sorted({closed.files[""].rfind(row[6]) // PAGE_BYTES for row in closed.rows.values()})
    for _ in range(counts.flipped_bits // SEEDS):
        content, bit = bytearray(closed.files[""]), random.randrange(8)
        at = random.choice(pages) * PAGE_BYTES + random.randrange(64)
        content[at] ^= 1 << bit
        lay_out({**closed.files, "": bytes(content)}, path)
        try:
            outcomes[await judge(path, closed)] += 1
            await owner_survives(path)
        except BaseException:
            print(f"seed {seed}: bit {bit} of byte {at}")
            raise
    print(f"\n{outcomes.total()} bits flipped, seed {seed}: {dict(outcomes)}")
    assert outcomes.total() - outcomes["harmless"] >= outcomes.total() // 4


# ------------------------------------------------------------------------------------------------------- a shorter WAL


@pytest.mark.faults
async def test_a_wal_that_is_cut_anywhere_is_noticed_and_what_is_left_can_be_taken(
    tmp_path: Path, counts: Counts, killed: Original
) -> None:
    """Every 4 kB: LogShortened with the last proven position for owner and reader, and a new era for who accepts it."""
    path, proven, wal = tmp_path / "agent.db", max(killed.rows), killed.files["-wal"]
    last_found = found = 0
    for cut in range(0, len(wal), 4_096 * counts.every):
        lay_out({**killed.files, "-wal": wal[:cut]}, path)
        for read_only in (True, False):
            with pytest.raises(LogShortened) as caught:
                await EventLog(path, read_only=read_only).open()
            assert caught.value.proven == proven
            found = caught.value.found
        assert last_found <= found < proven
        last_found = found
        async with EventLog(path, accept_loss=True) as log:
            assert log.loss is not None
            assert (log.loss.proven, log.loss.found) == (proven, found)
            assert await all_of(log.read()) == [killed.events[position] for position in range(1, found + 1)]
            event = await log.append("session-0", "acme.note", {"after": "the loss"})
            assert (event.position, event.era) == (found + 1, log.store.events.eras.current)
            assert event.era != killed.events[1].era
            await whole(log)
    assert last_found > EVENTS


@pytest.mark.parametrize("cut", [None, 0, 32, 50_000, -4_096, -1])
def test_a_wal_that_is_cut_or_gone_ends_every_command_with_4(tmp_path: Path, killed: Original, cut: int | None) -> None:
    path, proven = tmp_path / "agent.db", max(killed.rows)
    files = {**killed.files, "-wal": killed.files["-wal"][:cut]}
    if cut is None:
        del files["-wal"]
    lay_out(files, path)
    for words in (
        ["check"],
        ["recover"],
        ["export"],
        ["sessions"],
        ["show", "session-0"],
        ["append", "session-0", "x"],
    ):
        done = run(*words, "--db", path)
        assert done.code == 4, words
        assert f"up to position {proven}" in done.stdout + done.stderr
    assert run("check", "--quick", "--json", "--db", path).document["shortened"]["proven"] == proven


# A server whose WAL somebody cuts while it serves.
CUT_ALIVE = """
async def main():
    log = await EventLog(path).open()
    session = await log.start_session("s")
    for n in range(60):
        await session.append("own.type", {"n": n})
    os.truncate(f"{path}-wal", int(sys.argv[2]))
    for attempt in range(3):
        try:
            await session.append("own.type", {"n": "lost"})
        except EventLogError as error:
            say(type(error).__name__, error)
    say("refused")
    sys.stdin.readline()
    await log.close()
    say("closed")
asyncio.run(main())
"""


@pytest.mark.parametrize("size", [0, 32, 40_000, 100_000])
async def test_a_wal_that_is_cut_under_a_living_owner_is_noticed_by_its_next_append(tmp_path: Path, size: int) -> None:
    """It writes nothing more, not even at its end: what is left is what a kill at that moment would have left."""
    path = tmp_path / "agent.db"
    async with EventLog(path):
        pass
    before = path.read_bytes()
    with child(CUT_ALIVE, path, str(size)) as server:
        for _ in range(3):
            assert line_of(server).startswith("DamagedFile")
        assert line_of(server) == "refused"
        with pytest.raises((DamagedFile, LogShortened)):
            async with EventLog(path, read_only=True) as log:
                assert await all_of(log.read()) is None, "a reader cannot see all of it, and must be told so"
        assert (await asyncio.to_thread(shell, f"eventlog check --db {path}")).code == 4
        tell_child(server)
        assert line_of(server) == "closed"
        assert server.wait(20) == 0
    assert path.read_bytes() == before
    with pytest.raises(LogShortened) as caught:
        await EventLog(path).open()
    assert caught.value.proven == 61
    async with EventLog(path, accept_loss=True) as log:
        assert [event.position async for event in log.read()] == list(range(1, caught.value.found + 1))
        await whole(log)


CUT_BEFORE_THE_FIRST = """
async def main():
    log = await EventLog(path).open()
    if sys.argv[2] == "gone":
        os.unlink(f"{path}-wal")
    else:
        os.truncate(f"{path}-wal", int(sys.argv[2]))
    try:
        say(await log.start_session("new"))
    except EventLogError as error:
        say(type(error).__name__, error)
    await log.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("size", ["gone", "0", "32", "40000"])
def test_a_wal_that_a_dead_owner_left_is_watched_from_the_opening_on(
    tmp_path: Path, killed: Original, size: str
) -> None:
    path = tmp_path / "agent.db"
    lay_out(killed.files, path)
    with child(CUT_BEFORE_THE_FIRST, path, size) as server:
        assert line_of(server).startswith("DamagedFile")
        assert server.wait(20) == 0


# -------------------------------------------------------------------------------------------------- what has no event


async def test_a_verifying_owner_hands_no_damaged_event_to_a_reader_either(tmp_path: Path, closed: Original) -> None:
    """The same of an event whose bytes SQLite does not look at: a letter of its text."""
    path = tmp_path / "agent.db"
    content = closed.files[""]
    at = content.index(b'"event 40 ')
    lay_out({**closed.files, "": content[: at + 1] + b"E" + content[at + 2 :]}, path)
    for read_only in (True, False):
        async with EventLog(path, read_only=read_only, verify_reads=True) as log:
            corrupt = [event.position async for event in log.read() if is_corrupt(event)]
            report = await log.check(full=False)
        assert corrupt == [each.position for each in report.damaged]
        assert len(corrupt) == 1
