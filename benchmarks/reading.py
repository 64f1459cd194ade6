"""Reading: the whole log, one session of a large log, the last events of a short and of a long session.

Each is read to its end and every payload is decoded. The limit is Python's own sqlite3 that fetches the same rows from
our own file and decodes them with msgspec, in pages of 1,000 for the log and in one statement for a session. Not
measured: other processes that read, `verify_reads`, filters by type.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from eventlog import EventLog, NewEvent
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.workload import SESSIONS, TURN_ID, TYPE, payload, session_ids

LOG_EVENTS = 200_000
LONG_SESSION, SHORT_SESSION = 100_000, 1_000
LAST = 50
BATCH = 500
PAGE = 1_000
REPEATED = 20

RAW, RAW_SESSION, RAW_LAST = "raw fetch", "raw fetch of a session", "last 50 of 1,000"

FIGURES = (
    Figure(RAW, "events/s", "sqlite3 alone: the same rows from the same file, decoded"),
    Figure("the whole log", "events/s", "log.read, every payload decoded", RAW, at_least=0.6),
    Figure(RAW_SESSION, "ms", "sqlite3 alone: one session of 1,000 by the session index"),
    Figure("one session", "ms", "one session of 1,000, decoded", RAW_SESSION),
    Figure(RAW_LAST, "us", "the last 50 events of a session of 1,000"),
    Figure("last 50 of 100,000", "us", "the same of a session of 100,000", RAW_LAST, at_most=1.5),
)

SELECT_PAGE = (
    "SELECT l.position, l.session, l.idx, l.type, l.turn_id, l.at, CAST(l.data AS BLOB), l.key, l.checksum"
    " FROM log AS l WHERE l.position > ? ORDER BY l.position LIMIT ?"
)
SELECT_SESSION = (
    "SELECT l.position, l.session, l.idx, l.type, l.turn_id, l.at, CAST(l.data AS BLOB), l.key, l.checksum"
    " FROM session_index AS i CROSS JOIN log AS l ON l.position = i.position WHERE i.session = ? ORDER BY i.idx"
)


async def filled(log: EventLog, id: str, events: int) -> None:
    """A session with so many events."""
    session = await log.start_session(id)
    batch = [NewEvent(TYPE, payload(), TURN_ID)] * BATCH
    for _ in range(max(1, events // BATCH)):
        await session.append_many(batch)


async def fill_in_turn(log: EventLog, events: int, count: int) -> None:
    """Many sessions, each event in another one than that before: the worst order for reading one of them."""
    sessions = await asyncio.gather(*[log.start_session(id) for id in session_ids(count)])
    rounds = iter(range(events))

    async def produce() -> None:
        for number in rounds:
            await sessions[number % count].append(TYPE, payload(), turn_id=TURN_ID)

    await asyncio.gather(*[produce() for _ in range(256)])


async def measure(run: Run) -> None:
    """One round."""
    with run.a_folder() as folder:
        path = folder / "log.db"
        async with EventLog(path) as log:
            await fill_in_turn(log, run.scaled(LOG_EVENTS, SESSIONS), run.sessions)
            await filled(log, "short", SHORT_SESSION)
            await filled(log, "long", run.scaled(LONG_SESSION, SHORT_SESSION))
        async with EventLog(path) as log:  # closing brought everything into the session index
            run.note(RAW, _raw_rate(path))
            run.note("the whole log", await _rate(log))
            run.note(RAW_SESSION, _median_s(lambda: _raw_session(path)) * 1e3)
            run.note("one session", await _session_s(log) * 1e3)
            run.note(RAW_LAST, await _last_s(log, "short") * 1e6)
            run.note("last 50 of 100,000", await _last_s(log, "long") * 1e6)


def _raw_rate(path: Path) -> float:
    decode = msgspec.json.Decoder().decode
    after, count, began_s = 0, 0, perf_counter()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        while rows := connection.execute(SELECT_PAGE, (after, PAGE)).fetchall():
            for row in rows:
                decode(row[6])
            count, after = count + len(rows), rows[-1][0]
    return count / (perf_counter() - began_s)


def _raw_session(path: Path) -> None:
    decode = msgspec.json.Decoder().decode
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        [(key,)] = connection.execute("SELECT session FROM session WHERE id = 'short'").fetchall()
        for row in connection.execute(SELECT_SESSION, (key,)).fetchall():
            decode(row[6])


def _median_s(work: Callable[[], None]) -> float:
    took_s = []
    for _ in range(REPEATED):
        began_s = perf_counter()
        work()
        took_s.append(perf_counter() - began_s)
    return median(took_s)


async def _rate(log: EventLog) -> float:
    began_s = perf_counter()
    count = await _decoded(log.read())
    return count / (perf_counter() - began_s)


async def _session_s(log: EventLog) -> float:
    session, took_s = await log.session("short"), []
    for _ in range(REPEATED):
        began_s = perf_counter()
        await _decoded(session.read())
        took_s.append(perf_counter() - began_s)
    return median(took_s)


async def _last_s(log: EventLog, id: str) -> float:
    session, took_s = await log.session(id), []
    for _ in range(REPEATED):
        began_s = perf_counter()
        await _decoded(session.read(reverse=True, limit=LAST))
        took_s.append(perf_counter() - began_s)
    return median(took_s)


async def _decoded(events: AsyncIterator[Any]) -> int:
    count = 0
    async for event in events:
        _ = event.data
        count += 1
    return count


READING = Subject("reading", __doc__, FIGURES, measure)
