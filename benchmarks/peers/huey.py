"""huey: tasks in SQLite; WAL and FULL are its defaults. A task is deleted before it runs: at most once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import payload


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """Its calls block, so each is made on a thread, as an asyncio server has to. Nothing is acknowledged."""
    huey = import_module("huey").SqliteHuey(filename=str(folder / "peer.db"), results=False, fsync=True)
    data = payload()

    def returns(data: Any) -> None:
        return None

    task = huey.task()(returns)

    async def append(number: int) -> None:
        await asyncio.to_thread(task, data)

    def run_one() -> None:
        huey.execute(huey.dequeue())

    async def deliver(count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(run_one)

    yield Opened(append, deliver)
    huey.storage.close()


PEER = Peer(
    "huey", "huey", "on the disk: WAL, FULL; at most once: the task is deleted before it runs", opened, delivers=True
)
