"""Hooks, their gaps and what their handlers threw, as they are listed for people, from any process."""

from __future__ import annotations

import sqlite3

import msgspec

from eventlog.store.bounds import MAX_POSITION
from eventlog.store.cursors import OnRestart
from eventlog.store.events import last_position
from eventlog.store.store import Store

MAX_UNSERVED = 100
"""Agents of `unserved_agents`."""


class HookRow(msgspec.Struct, frozen=True):
    """What the file knows of a hook; `lag` is in positions."""

    agent: str
    name: str
    events: list[str]
    source: str
    on_restart: OnRestart
    cursor: int
    lag: int
    gaps: int
    calls: int
    errors: int
    loaded: bool


class GapRow(msgspec.Struct, frozen=True):
    """A gap as it is listed; `session_id` is None when it is of every session."""

    agent: str
    name: str
    session_id: str | None
    first: int
    last: int
    at_most: int
    at_us: int


class ErrorRow(msgspec.Struct, frozen=True):
    """An error of a handler as it is listed; `number` grows with each."""

    number: int
    agent: str
    name: str
    position: int
    message: str
    at_us: int


class Unserved(msgspec.Struct, frozen=True):
    """An agent that has `sessions` here, and no hook that a runtime loaded."""

    agent: str
    sessions: int


async def hook_rows(store: Store, agent: str | None = None) -> list[HookRow]:
    """The hooks that the last runtime of each agent loaded, and those before them, by agent and name."""
    return await store.read(_rows, agent)


async def hook_gaps(store: Store, name: str | None = None, limit: int = 1_000) -> list[GapRow]:
    """Gaps, the newest first, of all hooks or of the one with this name."""
    return await store.read(_gaps, name, limit)


async def hook_errors(store: Store, name: str | None = None, after: int = 0, limit: int = 1_000) -> list[ErrorRow]:
    """The newest errors behind the number `after`, oldest first, of all hooks or of the one with this name."""
    return await store.read(_errors, name, after, limit)


async def unserved_agents(store: Store) -> list[Unserved]:
    """The agents of sessions that no loaded hook is of; none as long as no hook was ever loaded."""
    return await store.read(_unserved)


def _rows(connection: sqlite3.Connection, agent: str | None) -> list[HookRow]:
    head = last_position(connection)
    rows = connection.execute(
        "SELECT h.agent, h.name, h.events, h.source, h.on_restart, h.cursor,"
        " (SELECT count(*) FROM hook_gap AS g WHERE g.hook = h.hook), h.calls, h.errors, h.loaded"
        " FROM hook AS h WHERE ? IS NULL OR h.agent = ? ORDER BY h.agent, h.name",
        (agent, agent),
    )
    return [
        HookRow(
            agent=name_of_agent,
            name=name,
            events=msgspec.json.decode(events),
            source=source,
            on_restart=on_restart,
            cursor=cursor,
            lag=max(0, head - cursor),
            gaps=gaps,
            calls=calls,
            errors=errors,
            loaded=bool(loaded),
        )
        for name_of_agent, name, events, source, on_restart, cursor, gaps, calls, errors, loaded in rows
    ]


def _gaps(connection: sqlite3.Connection, name: str | None, limit: int) -> list[GapRow]:
    rows = connection.execute(
        "SELECT h.agent, h.name, s.id, g.first, g.last, g.at_most, g.at FROM hook_gap AS g"
        " JOIN hook AS h ON h.hook = g.hook LEFT JOIN session AS s ON s.session = g.session"
        " WHERE ? IS NULL OR h.name = ? ORDER BY g.gap DESC LIMIT ?",
        (name, name, min(limit, MAX_POSITION)),
    )
    return [GapRow(*row) for row in rows]


def _errors(connection: sqlite3.Connection, name: str | None, after: int, limit: int) -> list[ErrorRow]:
    rows = connection.execute(
        "SELECT error, agent, name, position, message, at FROM hook_error"
        " WHERE error > ? AND (? IS NULL OR name = ?) ORDER BY error DESC LIMIT ?",
        (after, name, name, min(limit, MAX_POSITION)),
    ).fetchall()
    return [ErrorRow(*row) for row in reversed(rows)]


def _unserved(connection: sqlite3.Connection) -> list[Unserved]:
    rows = connection.execute(
        "SELECT agent, count(*) FROM session WHERE agent NOT IN (SELECT agent FROM hook WHERE loaded)"
        " AND EXISTS (SELECT 1 FROM hook WHERE loaded) GROUP BY agent ORDER BY agent LIMIT ?",
        (MAX_UNSERVED,),
    )
    return [Unserved(*row) for row in rows]
