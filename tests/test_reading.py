"""Reading: both ways, with all bounds and types, by index and by position, page by page."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import (
    InvalidEvent,
    InvalidName,
)
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.session import Session
from tests.log_kit import all_of, fill, indexes


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s1")


async def session_of_three_types(log: EventLog) -> list[Event[Any]]:
    session = await log.start_session("s", project="p")
    other = await log.start_session("other", project="q")
    events = await all_of(session.read())
    for n in range(400):  # several pages
        events.append(await session.append(f"own.{'abc'[n % 3]}", {"n": n}))
        if n % 7 == 0:
            await other.append("own.a", {"n": n})
        if n == 250:
            await log.store.absorb()
    return events


def expected(events: list[Event[Any]], place: Callable[[Event[Any]], int], arguments: dict[str, Any]) -> list[Any]:
    after, before, types = arguments["after"], arguments["before"], arguments["types"]
    chosen = [
        event
        for event in (reversed(events) if arguments["reverse"] else events)
        if (after is None or place(event) > after)
        and (before is None or place(event) < before)
        and (types is None or event.type in types)
    ]
    return chosen[: arguments["limit"]]


async def test_read_gives_what_its_bounds_say_both_ways(log: EventLog) -> None:
    """Every combination that a seed picks, of the owner and of a reader, half absorbed: as a list would be cut."""
    events = await session_of_three_types(log)
    everything = await all_of(log.read())
    random = Random(7)
    places = [None, -1, 0, 1, 63, 64, 65, 249, 250, 251, 252, 399, 400, 401, 2**63, 2**70, -(2**70)]
    kinds = [None, [], ["own.a"], ["own.b", "own.c"], ["session.started"], ["never.seen"]]
    async with EventLog(log.path, read_only=True) as reader:
        for _ in range(150):
            arguments: dict[str, Any] = {
                "after": random.choice(places),
                "before": random.choice(places),
                "limit": random.choice([None, None, 0, 1, 63, 64, 65, 1000]),
                "types": random.choice(kinds),
                "reverse": random.random() < 0.5,
            }
            for opened in (log, reader):
                session = await opened.session("s")
                assert await all_of(session.read(**arguments)) == expected(events, index_of, arguments), arguments
                project = random.choice([None, "p", "r"])
                mine = [e for e in everything if project is None or (project == "p" and e.session_id == "s")]
                of_log = await all_of(opened.read(**arguments, project=project))
                assert of_log == expected(mine, position_of, arguments), (arguments, project)


def index_of(event: Event[Any]) -> int:
    return event.index


def position_of(event: Event[Any]) -> int:
    return event.position


async def test_a_negative_limit_reads_nothing(session: Session) -> None:
    assert await all_of(session.read(limit=-1)) == []


async def test_types_must_be_a_list_of_names(log: EventLog, session: Session) -> None:
    with pytest.raises(InvalidName, match="give a list of event types"):
        await all_of(session.read(types="own.type"))
    for bad in ("\ud800", "", 7):
        with pytest.raises(InvalidEvent):
            await all_of(log.read(types=[bad]))  # type: ignore[list-item]
        with pytest.raises(InvalidEvent):
            await all_of(log.tail(types=[bad]))  # type: ignore[list-item]
    with pytest.raises(InvalidEvent):
        await all_of(log.read(project="\ud800"))
    with pytest.raises(InvalidEvent):
        await all_of(log.sessions(prefix="\ud800"))


async def test_a_read_is_released_between_pages(log: EventLog, session: Session) -> None:
    """What is appended while a reader stands still is appended, and the WAL can be emptied meanwhile."""
    await session.append_many([NewEvent("own.type", {"n": n}) for n in range(500)])
    reading = session.read()
    assert (await anext(reading)).index == 0
    await session.append_many([NewEvent("own.type", {"n": n}) for n in range(500, 700)])
    busy, _, _ = await log.store.with_writer(truncate)
    assert busy == 0
    assert indexes([event async for event in reading]) == list(range(1, 701))


def truncate(connection: sqlite3.Connection, _events: object) -> tuple[int, int, int]:
    row: tuple[int, int, int] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return row


async def test_events_can_be_had_by_their_positions(log: EventLog, session: Session) -> None:
    events = [*(await all_of(session.read())), *(await fill(session, 600))]
    wanted = [600, 3, 1, 3, 99_999, 601]
    assert await log.events_at(wanted) == [events[0], events[2], events[599], events[600]]
    assert await log.events_at(list(range(1, 602))) == events
