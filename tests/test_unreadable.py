"""A page that SQLite cannot read: whoever reads goes on behind it, and is shown each event of it as a corrupt one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventlog.errors import CorruptEvent, DamagedFile
from eventlog.events import Event
from eventlog.log import EventLog
from tests.cli_kit import shell
from tests.log_kit import all_of, crash_copy, damaging, first_of, whole
from tests.test_check import can_be_read


class Torn(NamedTuple):
    """A log of three sessions with a page of zeros in it, and what was in it before."""

    path: Path
    events: list[Event[Any]]
    lost: list[Event[Any]]


@pytest.fixture
async def torn(tmp_path: Path) -> Torn:
    return await make_torn(tmp_path, absorbed=True)


async def make_torn(tmp_path: Path, *, absorbed: bool) -> Torn:
    async with EventLog(tmp_path / "agent.db") as log:
        sessions = [await log.start_session(f"s{number}") for number in range(3)]
        for number in range(200):
            type_ = "turn.completed" if number % 4 == 0 else "acme.note"
            turn_id = f"t{number}" if type_ == "turn.completed" else None
            data = {"result": f"<{number}>{'x' * 100}"}
            await sessions[number % 3].append(type_, data, turn_id=turn_id)
        if absorbed:
            await log.store.absorb()
        events = await all_of(log.read())
        path = crash_copy(log.path, tmp_path / "copy")
    with damaging(path) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    content = bytearray(path.read_bytes())
    page = content.rfind(b"<100>") // size
    content[page * size : (page + 1) * size] = bytes(size)
    path.write_bytes(content)
    lost = [event for event in events if not can_be_read(path, event.position)]
    assert 10 < len(lost) < 50
    return Torn(path, events, lost)


def corrupt(events: list[Event[Any]]) -> list[Event[Any]]:
    """Those that cannot be read, which raise when they are looked at."""
    found = [event for event in events if event.type == "unknown"]
    for event in found:
        with pytest.raises(CorruptEvent, match="cannot be read") as caught:
            _ = event.data
        assert (caught.value.session_id, caught.value.index) == (event.session_id, event.index)
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
async def test_the_log_is_read_on_behind_what_cannot_be_read(torn: Torn, reverse: bool, read_only: bool) -> None:
    """Each lost event keeps its position, and its session and index, which the session index has."""
    async with EventLog(torn.path, read_only=read_only) as log:
        events = await all_of(log.read(reverse=reverse))
    if reverse:
        events.reverse()
    assert [event.position for event in events] == [event.position for event in torn.events]
    found = corrupt(events)
    assert [place(event) for event in found] == [place(event) for event in torn.lost]
    whole = [event for event in torn.events if event not in torn.lost]
    assert [event for event in events if event not in found] == whole


def place(event: Event[Any]) -> tuple[int, str, int]:
    return event.position, event.session_id, event.index


async def test_what_no_index_has_yet_is_known_by_its_position_alone_and_refused_to_an_owner(tmp_path: Path) -> None:
    """An owner would give out its indexes again."""
    torn = await make_torn(tmp_path, absorbed=False)
    async with EventLog(torn.path, read_only=True) as log:
        events = await all_of(log.read())
    assert [event.position for event in events] == [event.position for event in torn.events]
    assert [place(event) for event in corrupt(events)] == [(event.position, "unknown", -1) for event in torn.lost]
    with pytest.raises(DamagedFile):
        await EventLog(torn.path).open()


@pytest.mark.parametrize("size", [1, 7])
async def test_a_read_that_begins_or_ends_in_it_has_as_many_events_as_it_asked_for(torn: Torn, size: int) -> None:
    async with EventLog(torn.path, read_only=True) as log:
        for first in range(torn.lost[0].position - 10, torn.lost[-1].position + 10):
            events = await all_of(log.read(after=first, limit=size))
            assert [event.position for event in events] == list(range(first + 1, first + 1 + size))
            events = await all_of(log.read(before=first, limit=size, reverse=True))
            assert [event.position for event in events] == list(range(first - 1, first - 1 - size, -1))


async def test_a_filter_shows_what_may_be_of_its_types(torn: Torn) -> None:
    async with EventLog(torn.path, read_only=True) as log:
        events = await all_of(log.read(types=["turn.completed"]))
    lost = {event.position for event in torn.lost}
    turns = {event.position for event in torn.events if event.type == "turn.completed"}
    assert [event.position for event in events] == sorted(lost | turns)
    assert {event.type for event in events} == {"turn.completed", "unknown"}


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_session_is_read_on_behind_what_cannot_be_read(torn: Torn, reverse: bool) -> None:
    async with EventLog(torn.path, read_only=True) as log:
        for number in range(3):
            session = await log.session(f"s{number}")
            events = await all_of(session.read(reverse=reverse))
            if reverse:
                events.reverse()
            mine = [event for event in torn.events if event.session_id == session.id]
            assert [event.index for event in events] == [event.index for event in mine]
            lost = [event.index for event in torn.lost if event.session_id == session.id]
            assert [event.index for event in corrupt(events)] == lost
            assert {event.session_id for event in events} == {session.id}


async def test_a_tail_goes_on_behind_it_and_hears_of_what_comes(torn: Torn) -> None:
    async with EventLog(torn.path) as log:
        following = asyncio.ensure_future(first_of(log.tail(after=0), len(torn.events) + 1))
        event = await log.append("s0", "acme.note", {})
        events = await following
    assert events[-1] == event
    assert len(corrupt(events)) == len(torn.lost)


async def test_an_export_writes_the_rest_and_names_what_it_leaves_out(torn: Torn) -> None:
    file = torn.path.with_name("rest.jsonl")
    done = await asyncio.to_thread(shell, f"eventlog export --db {torn.path} -o {file}")
    assert done.code == 4
    assert done.stderr.count("left out: ") == min(10, len(torn.lost))
    assert len(file.read_text().splitlines()) == len(torn.events) - len(torn.lost)
    new = torn.path.with_name("new.db")
    done = await asyncio.to_thread(shell, f"eventlog import --live {file} --db {new}")
    assert done.code == 0
    async with EventLog(new, read_only=True) as log:
        assert len(await all_of(log.read())) == len(torn.events) - len(torn.lost)
        await whole(log)


async def test_a_fold_and_sums_go_on_behind_it(torn: Torn) -> None:
    async with EventLog(torn.path) as log:
        usage = await log.usage(by="session")
    turns = [event for event in torn.events if event.type == "turn.completed" and event not in torn.lost]
    assert sum(each.turns for each in usage) == len(turns)
