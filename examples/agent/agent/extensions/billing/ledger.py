"""The extension's own SQLite file: what it was called with, and what it billed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

TABLES = """
CREATE TABLE IF NOT EXISTS call (      -- one row a call: the same event may come again
    number      INTEGER PRIMARY KEY,
    event_id    TEXT NOT NULL,
    request_id  TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE IF NOT EXISTS entry (     -- one row an event, however often it comes
    event_id  TEXT NOT NULL PRIMARY KEY,
    what      TEXT NOT NULL,
    usd       REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Call:
    """One call of a handler, in the order in which they began."""

    event_id: str
    request_id: str


@dataclass(frozen=True)
class Entry:
    """One thing that was billed."""

    event_id: str
    what: str
    usd: float


class Ledger:
    """Opens the file for each piece of work, so that it can be used from any thread and left at any moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._transaction() as connection:
            connection.executescript(TABLES)

    def note_call(self, call: Call) -> int:
        """Note a call before it does anything, and return how many there were for its event, this one included."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO call (event_id, request_id) VALUES (?, ?)", (call.event_id, call.request_id)
            )
            [count] = connection.execute("SELECT count(*) FROM call WHERE event_id = ?", (call.event_id,)).fetchone()
            return int(count)

    def enter(self, entry: Entry) -> None:
        """Bill an event. Its id is the key, so a second time changes nothing: this is what makes it idempotent."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO entry (event_id, what, usd) VALUES (?, ?, ?) ON CONFLICT (event_id) DO NOTHING",
                (entry.event_id, entry.what, entry.usd),
            )

    def calls(self) -> list[Call]:
        """All calls, the first one first."""
        with self._transaction() as connection:
            return [Call(*row) for row in connection.execute("SELECT event_id, request_id FROM call ORDER BY number")]

    def entries(self) -> list[Entry]:
        """Everything that was billed."""
        with self._transaction() as connection:
            return [Entry(*row) for row in connection.execute("SELECT event_id, what, usd FROM entry ORDER BY what")]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            yield connection
