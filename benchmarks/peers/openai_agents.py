"""openai-agents: its SQLite session, which keeps the items of a conversation; WAL and FULL are its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import payload, session_ids

SESSIONS = 100  # each opens a connection for each thread that it is used on


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """It makes its calls on threads by itself."""
    made = import_module("agents.memory.sqlite_session").SQLiteSession
    sessions = [made(id, folder / "peer.db") for id in session_ids(SESSIONS)]
    item = {"role": "user", "content": payload()["output"]}

    async def append(number: int) -> None:
        await sessions[number % SESSIONS].add_items([item])

    yield Opened(append)
    for session in sessions:
        session.close()


PEER = Peer("openai-agents", "agents", "on the disk: WAL, FULL; 100 sessions instead of 1,000", opened)
