"""litequeue: a queue of messages with `pop` and `done`; WAL, and FULL instead of its NORMAL, as all others have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import as_json, payload


async def handler(message: Any) -> None:
    """Return at once."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """Its one connection takes one call at a time; each is made on a thread, as an asyncio server has to."""
    queue = import_module("litequeue").LiteQueue(str(folder / "peer.db"))
    queue.conn.execute("PRAGMA synchronous = FULL")
    data, one_at_a_time = as_json(payload()), Lock()

    def put() -> None:
        with one_at_a_time:
            queue.put(data)

    async def append(number: int) -> None:
        await asyncio.to_thread(put)

    async def deliver(count: int) -> None:
        for _ in range(count):
            message = await asyncio.to_thread(queue.pop)
            await handler(message)
            await asyncio.to_thread(queue.done, message.message_id)

    yield Opened(append, deliver)
    queue.close()


PEER = Peer("litequeue", "litequeue", "on the disk: WAL, FULL set; a call on a thread for each", opened, delivers=True)
