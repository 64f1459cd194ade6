"""Reminders as their events tell: which ones a session waits for, and which are due. Owner of the table `reminder`.

A trigger of the schema follows the events, in the commit that records them; here they are read, and forgotten.
"""

from __future__ import annotations

import sqlite3

import msgspec

from eventlog.store.store import Store


class PendingReminder(msgspec.Struct, frozen=True):
    """A reminder that is neither recorded as due nor cancelled; `due_at_us` is in microseconds since 1970 UTC."""

    session_id: str
    id: str
    text: str
    due_at_us: int


class Due(msgspec.Struct, frozen=True):
    """What is due, the longest overdue first, and when the next one will be: None when none waits."""

    reminders: list[PendingReminder]
    next_at_us: int | None


class KeptReminders:
    """The reminders of one file."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of_session(self, session_id: str) -> list[PendingReminder]:
        """What a session waits for, the next one first."""
        return await self._store.read(_of_session, session_id)

    async def count(self, session_id: str) -> int:
        """How many a session waits for."""
        return await self._store.read(_count, session_id)

    async def due(self, agent: str, now_us: int, limit: int) -> Due:
        """Up to `limit` reminders that are due, of this agent's sessions and of sessions without an agent."""
        return await self._store.read(_due, agent, now_us, limit)


_PENDING = (
    "SELECT s.id, r.id, r.text, r.due_at FROM reminder AS r JOIN session AS s ON s.session = r.session"
    " WHERE r.state = 'pending'"
)
_OF_AGENT = " AND (s.agent IS NULL OR s.agent = ?)"


def _of_session(connection: sqlite3.Connection, session_id: str) -> list[PendingReminder]:
    rows = connection.execute(f"{_PENDING} AND s.id = ? ORDER BY r.due_at, r.reminder", (session_id,))
    return [PendingReminder(*row) for row in rows]


def _count(connection: sqlite3.Connection, session_id: str) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM reminder"
        " WHERE state = 'pending' AND session = (SELECT session FROM session WHERE id = ?)",
        (session_id,),
    ).fetchone()
    return int(count)


def _due(connection: sqlite3.Connection, agent: str, now_us: int, limit: int) -> Due:
    rows = connection.execute(
        f"{_PENDING}{_OF_AGENT} AND r.due_at <= ? ORDER BY r.due_at, r.reminder LIMIT ?", (agent, now_us, limit)
    ).fetchall()
    next_row = connection.execute(
        f"{_PENDING}{_OF_AGENT} AND r.due_at > ? ORDER BY r.due_at LIMIT 1", (agent, now_us)
    ).fetchone()
    return Due([PendingReminder(*row) for row in rows], None if next_row is None else int(next_row[3]))


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """The reminders of a session; what was pending is not due any more."""
    return {"reminders": connection.execute("DELETE FROM reminder WHERE session = ?", (session,)).rowcount}
