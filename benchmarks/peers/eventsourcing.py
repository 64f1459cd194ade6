"""eventsourcing: its SQLite recorder, the layer below its applications; WAL and FULL are its defaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.peers.peer import Opened, Peer
from eventlog.bench.workload import SESSIONS, TYPE, as_json, payload, session_ids


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    """Its calls block, so each is made on a thread, as an asyncio server has to."""
    sqlite, persistence = import_module("eventsourcing.sqlite"), import_module("eventsourcing.persistence")
    datastore = sqlite.SQLiteDatastore(str(folder / "peer.db"), originator_id_type="text")
    recorder = sqlite.SQLiteApplicationRecorder(datastore)
    recorder.create_table()
    sessions, state = session_ids(), as_json(payload()).encode()

    async def append(number: int) -> None:
        event = persistence.StoredEvent(sessions[number % SESSIONS], number // SESSIONS, TYPE, state)
        await asyncio.to_thread(recorder.insert_events, [event])

    yield Opened(append)
    datastore.close()


PEER = Peer("eventsourcing", "eventsourcing", "on the disk: WAL, FULL; a call on a thread for each", opened)
