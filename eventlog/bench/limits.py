"""What SQLite itself can do from Python: the two limits that everything else is held against.

R: the standard library's sqlite3 on its own, no asyncio, no second thread, `executemany` in groups of 256 rows that
were made before. H: one bare INSERT on aiosqlite, awaited. Both write the workload into a new file, into the one table
that a plain event log would have, and do nothing else: no validation, no checksum, no limits, no events in return.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TypeAlias

import aiosqlite

from eventlog.bench.workload import SESSIONS, TURN_ID, TYPE, Durability, as_json, payload, session_ids

GROUP_ROWS = 256
AT = "2026-01-12T09:00:00.375125Z"

TABLE = """
    CREATE TABLE events (
        pos INTEGER PRIMARY KEY, session_id TEXT, idx INT, type TEXT, turn_id TEXT, at TEXT, data TEXT,
        UNIQUE (session_id, idx))
"""
INSERT = "INSERT INTO events (session_id, idx, type, turn_id, at, data) VALUES (?, ?, ?, ?, ?, ?)"
SYNCHRONOUS = {"full": "FULL", "process": "NORMAL"}

Row: TypeAlias = tuple[str, int, str, str, str, str]


def rows() -> Iterator[Row]:
    """The workload as rows, without end."""
    sessions, data = session_ids(), as_json(payload())
    for number in count():
        yield sessions[number % SESSIONS], number // SESSIONS, TYPE, TURN_ID, AT, data


def statements(durability: Durability) -> tuple[str, ...]:
    """What makes the file; all else is as SQLite has it by default, its checkpoints included."""
    return "PRAGMA journal_mode = WAL", f"PRAGMA synchronous = {SYNCHRONOUS[durability]}", TABLE


def append_rate(folder: Path, events: int, durability: Durability) -> float:
    """R, in events a second."""
    left = islice(rows(), events)
    groups = list(iter(lambda: list(islice(left, GROUP_ROWS)), []))
    with (
        TemporaryDirectory(dir=folder) as inside,
        closing(sqlite3.connect(Path(inside) / "r.db", isolation_level=None)) as connection,
    ):
        for statement in statements(durability):
            connection.execute(statement)
        began_s = perf_counter()
        for group in groups:
            connection.execute("BEGIN")
            connection.executemany(INSERT, group)
            connection.execute("COMMIT")
        return events / (perf_counter() - began_s)


class BareInsert:
    """H: awaits one INSERT after the other."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._rows = rows()

    async def one(self) -> None:
        """Insert the next event."""
        await self._connection.execute(INSERT, next(self._rows))


@asynccontextmanager
async def bare_insert(folder: Path, durability: Durability = "full") -> AsyncIterator[BareInsert]:
    """A new file in a folder of its own; it is gone afterwards."""
    with TemporaryDirectory(dir=folder) as inside:
        async with aiosqlite.connect(Path(inside) / "h.db", isolation_level=None) as connection:
            for statement in statements(durability):
                await connection.execute(statement)
            yield BareInsert(connection)
