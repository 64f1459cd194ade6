"""What handlers keep, as it is listed for people, from any process: names, sizes, and what one name stands for."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from eventlog.events import decode_json
from eventlog.store.keep import DEPLOYMENT, extension_of, owner_of_channel, prefix_range


class KeptValue(msgspec.Struct, frozen=True):
    """A value of a kv: of an agent, of an extension, or of what a channel keeps for a session; the others are None."""

    agent: str | None
    extension: str | None
    channel: str | None
    session_id: str | None
    key: str
    size_bytes: int


class KeptFile(msgspec.Struct, frozen=True):
    """A file of a session, or of the whole deployment: then `session_id` is None."""

    agent: str
    session_id: str | None
    path: str
    size_bytes: int
    at_us: int


def kept_values(connection: sqlite3.Connection, prefix: str, place: str | None) -> list[KeptValue]:
    """The keys with a prefix, in their order: of all places, or of one, which is an agent or stands for one."""
    where, bounds = prefix_range("key", prefix)
    rows = connection.execute(
        f"SELECT agent, key, length(CAST(value AS BLOB)) FROM kv WHERE (?1 IS NULL OR agent = ?1){where}"
        " ORDER BY key, agent",
        (place, *bounds),
    )
    return [_value(*row) for row in rows]


def values_under(connection: sqlite3.Connection, key: str, place: str | None) -> list[Any]:
    """The values under a key in the places that have it; at most two, which is one too many."""
    rows = connection.execute(
        "SELECT value FROM kv WHERE key = ?2 AND (?1 IS NULL OR agent = ?1) LIMIT 2", (place, key)
    )
    return [decode_json(text.encode()) for (text,) in rows]


def kept_files(
    connection: sqlite3.Connection, prefix: str, agent: str | None, session_id: str | None
) -> list[KeptFile]:
    """The files whose paths have a prefix, of all sessions, or of one; DEPLOYMENT stands for the whole deployment's."""
    where, bounds = prefix_range("path", prefix)
    rows = connection.execute(
        "SELECT agent, session, path, length(content), at FROM file"
        f" WHERE (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR session = ?2){where} ORDER BY session, path, agent",
        (agent, session_id, *bounds),
    )
    return [KeptFile(of, None if session == DEPLOYMENT else session, *rest) for of, session, *rest in rows]


def kept_contents(connection: sqlite3.Connection, path: str, agent: str | None, session_id: str | None) -> list[bytes]:
    """The contents of a path, of each session and agent that has it; at most two, which is one too many."""
    rows = connection.execute(
        "SELECT content FROM file WHERE path = ?3 AND (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR session = ?2)"
        " LIMIT 2",
        (agent, session_id, path),
    )
    return [content for (content,) in rows]


def _value(place: str, key: str, size_bytes: int) -> KeptValue:
    channel = owner_of_channel(place)
    if channel is not None:
        return KeptValue(None, None, *channel, key, size_bytes)
    extension = extension_of(place)
    return KeptValue(place if extension is None else None, extension, None, None, key, size_bytes)
