"""Counts, sizes and settings of an opened file, for people."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from eventlog.store.events import last_position
from eventlog.store.owner import owner_of

if TYPE_CHECKING:  # the store is what is described
    from eventlog.store.store import Store

_COUNTED = {
    "sessions": "session",
    "deliveries": "delivery WHERE state <> 'dead'",
    "deadLetters": "delivery WHERE state = 'dead'",
    "hooks": "hook WHERE loaded = 1",
    "hookGaps": "hook_gap",
    "kvKeys": "kv",
    "files": "file",
}


def collect(connection: sqlite3.Connection, store: Store) -> dict[str, Any]:
    """The statistics as plain JSON; reads only, and in one snapshot."""
    (events,) = connection.execute("SELECT count(*) FROM log").fetchone()
    (absorbed,) = connection.execute("SELECT position FROM absorbed").fetchone()
    (epoch,) = connection.execute("SELECT epoch FROM epoch").fetchone()
    head = last_position(connection)
    counts = {
        name: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for name, table in _COUNTED.items()
    }
    return {
        "path": str(store.path),
        "events": events,
        "lastPosition": head,
        **counts,
        "notInSessionIndex": head - absorbed,
        "eras": [era for (era,) in connection.execute("SELECT era FROM era ORDER BY first_position, began_at")],
        "epoch": epoch,
        "durability": None if store.read_only else store.durability,
        "ownerPid": owner_of(store.path),
        "checkpointsSuspended": None if store.read_only else bool(store.writer.checkpoints_suspended),
        "databaseBytes": _size(store, ""),
        "walBytes": _size(store, "-wal"),
        "sqlite": sqlite3.sqlite_version,
    }


def _size(store: Store, suffix: str) -> int:
    try:
        return store.path.with_name(store.path.name + suffix).stat().st_size
    except FileNotFoundError:
        return 0
