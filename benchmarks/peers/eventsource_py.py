"""eventsource-py: its SQLite event store, on aiosqlite; WAL and FULL are its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import new_class
from uuid import UUID

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import SESSIONS, payload


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """One event for each append, whatever version its stream has."""
    package, positions = import_module("eventsource"), import_module("eventsource.ports.positions")
    streams = import_module("eventsource.domain.stream_id").StreamId
    fields: dict[str, object] = {"__annotations__": {"aggregate_type": str, "data": dict}, "aggregate_type": "Session"}
    fields["__module__"] = __name__
    result = new_class("Result", (package.DomainEvent,), exec_body=lambda space: space.update(fields))
    store = import_module("eventsource.adapters.sqlite.store").SQLiteEventStore(str(folder / "peer.db"))
    ids, data = [UUID(int=number + 1) for number in range(SESSIONS)], payload()
    expected = positions.ExpectedVersion("any")

    async def append(number: int) -> None:
        id = ids[number % SESSIONS]
        await store.append(streams(id, "Session"), [result(aggregate_id=id, data=data)], expected)

    yield Opened(append)
    await store.close()


PEER = Peer("eventsource-py", "eventsource", "on the disk: WAL, FULL; its version is looked up for each", opened)
