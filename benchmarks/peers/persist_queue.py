"""persist-queue: its SQLite queue with acknowledgements; pickle, WAL and FULL are its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import payload


async def handler(item: Any) -> None:
    """Return at once."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """Its calls block, so each is made on a thread, as an asyncio server has to."""
    queue = import_module("persistqueue").SQLiteAckQueue(str(folder / "peer"), multithreading=True)
    data = payload()

    async def append(number: int) -> None:
        await asyncio.to_thread(queue.put, data)

    async def deliver(count: int) -> None:
        for _ in range(count):
            item = await asyncio.to_thread(queue.get)
            await handler(item)
            await asyncio.to_thread(queue.ack, item)

    yield Opened(append, deliver)
    queue.close()


PEER = Peer(
    "persist-queue", "persistqueue", "on the disk: WAL, FULL; a call on a thread for each", opened, delivers=True
)
