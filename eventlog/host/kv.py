"""`host.kv`: durable JSON that all sessions of an agent share (R105, R106)."""

from __future__ import annotations

import builtins
from typing import Any

from eventlog.encoding import encode_json, plain
from eventlog.errors import InvalidEvent, InvalidName, LimitExceeded
from eventlog.events import SessionInfo, decode_json
from eventlog.store.keep import KeptValues, place_of_channel, place_of_extension
from eventlog.store.store import Store

MAX_KEY_CHARACTERS = 512
MAX_VALUE_BYTES = 1_048_576
"""Of a value's JSON."""


class Kv:
    """JSON values under keys of 1 to 512 printable characters, in the log's file: they survive a restart (R107).

    Keys are an agent's own. Nothing is scoped by session: begin a key with `ctx.session.id` to keep sessions apart, and
    list them by that prefix (R108). A put or delete that was awaited is committed.
    """

    __slots__ = ("_kept",)

    def __init__(self, store: Store, agent: str) -> None:
        self._kept = KeptValues(store, agent)

    async def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, or `default` when there is none; a stored null is a value. Raises InvalidName."""
        return await self._kept.get(_checked(key), default)

    async def put(self, key: str, value: Any) -> None:
        """Set the value under a key, at most 1 MiB of JSON, whatever was there.

        Raises InvalidEvent, naming the place, for what JSON cannot hold; LimitExceeded, InvalidName.
        """
        await self._kept.put(_checked(key), _encoded(value))

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there. Raises InvalidName."""
        return await self._kept.delete(_checked(key))

    async def list(self, prefix: str = "") -> builtins.list[str]:
        """The keys that begin with `prefix`, sorted; no character in it stands for another one. Raises InvalidName."""
        return await self._kept.keys(_checked(prefix) if prefix != "" else "")


def channel_state(store: Store, session: SessionInfo) -> Kv:
    """What the channel of a session keeps for that session (R130), apart from the keys of every agent."""
    return Kv(store, place_of_channel(session.channel_id, session.id))


def extension_storage(store: Store, extension_id: str) -> Kv:
    """What an extension keeps, apart from the keys of every agent."""
    return Kv(store, place_of_extension(extension_id))


def _checked(key: object) -> str:
    if not isinstance(key, str) or not key or not key.isprintable():
        raise InvalidName("kv key", key, f"use 1 to {MAX_KEY_CHARACTERS} printable characters")
    if len(key) > MAX_KEY_CHARACTERS:
        raise LimitExceeded("characters of a kv key", MAX_KEY_CHARACTERS, len(key))
    return key


def _encoded(value: Any) -> str:
    unchanged = plain(value, "value")
    raw = encode_json(unchanged)
    if len(raw) > MAX_VALUE_BYTES:
        raise LimitExceeded("bytes of a kv value", MAX_VALUE_BYTES, len(raw))
    if decode_json(raw) != unchanged:
        raise InvalidEvent("value", "would be changed by writing it as JSON")
    return raw.decode()
