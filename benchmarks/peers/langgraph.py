"""langgraph: the writes of its SQLite checkpointer, on aiosqlite; WAL and FULL are its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import SESSIONS, payload, session_ids


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """One write for each event, which is less than a whole checkpoint."""
    saver = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
    sessions, data = session_ids(), payload()

    async with saver.from_conn_string(str(folder / "peer.db")) as opened_saver:
        await opened_saver.setup()

        async def append(number: int) -> None:
            place = {"thread_id": sessions[number % SESSIONS], "checkpoint_ns": "", "checkpoint_id": str(number)}
            await opened_saver.aput_writes({"configurable": place}, [("event", data)], "task")

        yield Opened(append)


PEER = Peer("langgraph", "langgraph.checkpoint.sqlite", "on the disk: WAL, FULL; a write, no checkpoint", opened)
