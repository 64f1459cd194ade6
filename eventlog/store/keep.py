"""What handlers keep: JSON under keys, and files. Owner of the tables `kv` and `file`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from eventlog.encoding import MAX_ID_CHARACTERS
from eventlog.events import decode_json
from eventlog.store.store import Store

DEPLOYMENT = ""
"""In the place of a session's id: files of the whole deployment."""

CHANNEL, EXTENSION = "channel", "extension:"

SEPARATORS = "/:"
"""What parts a session's id from the rest of a key."""


def place_of_channel(channel_id: str, session_id: str) -> str:
    """Stands for an agent in `kv`, for what a channel keeps for a session.

    No id can hold a line feed, so no two of these are equal, and none is an agent's name.
    """
    return f"{CHANNEL}\n{channel_id}\n{session_id}"


def owner_of_channel(place: str) -> tuple[str, str] | None:
    """The channel and the session of such a place; None of another."""
    kind, *ids = place.split("\n")
    return (ids[0], ids[1]) if kind == CHANNEL and len(ids) == 2 else None


def place_of_extension(extension_id: str) -> str:
    """Stands for an agent in `kv`, for what an extension keeps."""
    return f"{EXTENSION}{extension_id}"


def extension_of(place: str) -> str | None:
    """The id of the extension of such a place; None of another."""
    return place.removeprefix(EXTENSION) if place.startswith(EXTENSION) else None


class KeptValues:
    """The JSON values of one agent, by key."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store = store
        self._agent = agent

    async def get(self, key: str, default: Any) -> Any:
        """The value under a key, or `default` when there is none."""
        return await self._store.read(_get_value, self._agent, key, default)

    async def put(self, key: str, text: str) -> None:
        """Set the text under a key."""
        await self._store.write(_put_value, self._agent, key, text)

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return await self._store.write(_delete_value, self._agent, key)

    async def keys(self, prefix: str) -> list[str]:
        """The keys with a prefix, in the order of their code points."""
        return await self._store.read(_keys, self._agent, prefix)


class KeptFiles:
    """The files of one agent, by session (or DEPLOYMENT) and path."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store = store
        self._agent = agent

    async def read(self, session: str, path: str) -> bytes | None:
        """The content of a file; None when there is no such file."""
        return await self._store.read(_read_file, self._agent, session, path)

    async def write(self, session: str, path: str, content: bytes) -> None:
        """Make a file, or replace the whole of it."""
        await self._store.write(_write_file, self._agent, session, path, content, self._store.clock.now_us())

    async def delete(self, session: str, path: str) -> bool:
        """Remove a file; whether it was there."""
        return await self._store.write(_delete_file, self._agent, session, path)

    async def paths(self, session: str, prefix: str) -> list[str]:
        """The paths with a prefix, in the order of their code points."""
        return await self._store.read(_paths, self._agent, session, prefix)


def _get_value(connection: sqlite3.Connection, agent: str, key: str, default: Any) -> Any:
    row = connection.execute("SELECT value FROM kv WHERE agent = ? AND key = ?", (agent, key)).fetchone()
    return default if row is None else decode_json(row[0].encode())


def _put_value(connection: sqlite3.Connection, agent: str, key: str, text: str) -> None:
    connection.execute(
        "INSERT INTO kv (agent, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT (agent, key) DO UPDATE SET value = excluded.value",
        (agent, key, text),
    )


def _delete_value(connection: sqlite3.Connection, agent: str, key: str) -> bool:
    return connection.execute("DELETE FROM kv WHERE agent = ? AND key = ?", (agent, key)).rowcount > 0


def _keys(connection: sqlite3.Connection, agent: str, prefix: str) -> list[str]:
    where, bounds = prefix_range("key", prefix)
    rows = connection.execute(f"SELECT key FROM kv WHERE agent = ?{where} ORDER BY key", (agent, *bounds))
    return [key for (key,) in rows]


def _read_file(connection: sqlite3.Connection, agent: str, session: str, path: str) -> bytes | None:
    row = connection.execute(
        "SELECT content FROM file WHERE agent = ? AND session = ? AND path = ?", (agent, session, path)
    ).fetchone()
    return None if row is None else bytes(row[0])


def _write_file(
    connection: sqlite3.Connection, agent: str, session: str, path: str, content: bytes, now_us: int
) -> None:
    connection.execute(
        "INSERT INTO file (agent, session, path, content, at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (agent, session, path) DO UPDATE SET content = excluded.content, at = excluded.at",
        (agent, session, path, content, now_us),
    )


def _delete_file(connection: sqlite3.Connection, agent: str, session: str, path: str) -> bool:
    cursor = connection.execute("DELETE FROM file WHERE agent = ? AND session = ? AND path = ?", (agent, session, path))
    return cursor.rowcount > 0


def _paths(connection: sqlite3.Connection, agent: str, session: str, prefix: str) -> list[str]:
    where, bounds = prefix_range("path", prefix)
    rows = connection.execute(
        f"SELECT path FROM file WHERE agent = ? AND session = ?{where} ORDER BY path", (agent, session, *bounds)
    )
    return [path for (path,) in rows]


# -- what goes with a session ------------------------------------------------------------------------------------------


def forget_kept(connection: sqlite3.Connection, session_id: str, channel_id: str) -> tuple[int, int]:
    """Remove what is kept for a session, in the caller's transaction: how many values and files.

    That is what its channel keeps for it, its files, and in each agent's `kv` the keys that begin or end with its id:
    `s1/draft`, `last-result/s1`, and the lines of the memory hook. A key of `s1/b` is not one of `s1`, if there is such
    a session.
    """
    place = place_of_channel(channel_id, session_id)
    values = connection.execute("DELETE FROM kv WHERE agent = ?", (place,)).rowcount
    for agent, key in _keys_with(connection, session_id):
        if _is_of(connection, key, session_id):
            values += connection.execute("DELETE FROM kv WHERE agent = ? AND key = ?", (agent, key)).rowcount
    files = connection.execute("DELETE FROM file WHERE session = ?", (session_id,)).rowcount
    return values, files


def _keys_with(connection: sqlite3.Connection, session_id: str) -> list[tuple[str, str]]:
    """The keys of agents that hold the id anywhere; there is no index for that, and no hurry."""
    return connection.execute(
        "SELECT agent, key FROM kv WHERE instr(key, ?) AND NOT instr(agent, char(10))", (session_id,)
    ).fetchall()


def _is_of(connection: sqlite3.Connection, key: str, session_id: str) -> bool:
    """Whether the id is the longest one of a session that the key begins with, or that it ends with."""
    cuts = [place for place, character in enumerate(key) if character in SEPARATORS]
    beginnings = [key, *(key[:cut] for cut in reversed(cuts))]
    ends = [key, *(key[cut + 1 :] for cut in cuts)]
    return any(_first_session(connection, claims, session_id) == session_id for claims in (beginnings, ends))


def _first_session(connection: sqlite3.Connection, claims: Iterable[str], session_id: str) -> str | None:
    for claim in claims:
        if claim == session_id or connection.execute("SELECT 1 FROM session WHERE id = ?", (claim,)).fetchone():
            return claim
    return None


def forget(connection: sqlite3.Connection, session: int, id: str, _now_us: int) -> dict[str, int]:
    """The same, and every key that begins with the id, whatever follows; not one that begins with a longer id."""
    (channel_id,) = connection.execute("SELECT channel_id FROM session WHERE session = ?", (session,)).fetchone()
    values, files = forget_kept(connection, id, channel_id)
    rows = connection.execute(
        "SELECT agent, key FROM kv WHERE substr(key, 1, length(:id)) = :id", {"id": id}
    ).fetchall()
    mine = [row for row in rows if not _is_of_longer(connection, row[1], id)]
    connection.executemany("DELETE FROM kv WHERE agent = ? AND key = ?", mine)
    return {"files": files, "kvKeys": values + len(mine)}


def _is_of_longer(connection: sqlite3.Connection, key: str, id: str) -> bool:
    longer = [key[:length] for length in range(len(id) + 1, min(len(key), MAX_ID_CHARACTERS) + 1)]
    marks = ",".join("?" * len(longer))
    return connection.execute(f"SELECT 1 FROM session WHERE id IN ({marks})", longer).fetchone() is not None


def prefix_range(column: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """A prefix as a range, which the index finds and in which no character means another one."""
    end = after_prefix(prefix)
    if not prefix:
        return "", ()
    if end is None:
        return f" AND {column} >= ?", (prefix,)
    return f" AND {column} >= ? AND {column} < ?", (prefix, end)


def after_prefix(prefix: str) -> str | None:
    """The least text behind all that begin with `prefix`, as SQLite compares text: by code points."""
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1]) + 1
        if code == FIRST_SURROGATE:
            code = LAST_SURROGATE + 1
        if code <= LAST_CODE_POINT:
            return prefix[: length - 1] + chr(code)
    return None


FIRST_SURROGATE, LAST_SURROGATE, LAST_CODE_POINT = 0xD800, 0xDFFF, 0x10FFFF
