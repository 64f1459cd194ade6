"""Snapshots: a session folded up to an index, by one reducer. Owner of the table `snapshot`."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b

import msgspec

from eventlog.store.database import in_transaction
from eventlog.store.events import Events


class Fold(msgspec.Struct, frozen=True):
    """Which fold a snapshot is of; `initial` is the JSON that it began with. Any other fold ignores it."""

    session: int
    reducer: str
    version: int
    initial: bytes

    @property
    def digest(self) -> bytes:
        """Stands for the initial state."""
        return blake2b(self.initial, digest_size=16).digest()


class Snapshot(msgspec.Struct, frozen=True):
    """The state behind the event at `index`, as JSON."""

    index: int
    state: bytes


def newest(connection: sqlite3.Connection, fold: Fold) -> Snapshot | None:
    """The snapshot of a fold, None when there is none yet, or one that cannot be read: it can be folded again."""
    row = connection.execute(
        "SELECT idx, CAST(state AS BLOB) FROM snapshot"
        " WHERE session = ? AND reducer = ? AND version = ? AND initial = ? AND json_valid(state)",
        (fold.session, fold.reducer, fold.version, fold.digest),
    ).fetchone()
    return None if row is None else Snapshot(row[0], row[1])


def keep(connection: sqlite3.Connection, events: Events, fold: Fold, snapshot: Snapshot, removals: int) -> bool:
    """Keep a snapshot, unless a session was pruned or forgotten since there were so many `removals`.

    Its state may hold what is gone, and nobody would take that out again.
    """
    if events.removals != removals:
        return False
    in_transaction(connection, _keep, fold, snapshot)
    return True


def _keep(connection: sqlite3.Connection, fold: Fold, snapshot: Snapshot) -> None:
    """In place of an older one of its fold, and of lower versions of its reducer."""
    connection.execute(
        "DELETE FROM snapshot WHERE session = ? AND reducer = ? AND version < ?",
        (fold.session, fold.reducer, fold.version),
    )
    connection.execute(
        "INSERT INTO snapshot (session, reducer, version, initial, idx, state) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session, reducer, version)"
        " DO UPDATE SET initial = excluded.initial, idx = excluded.idx, state = excluded.state"
        " WHERE excluded.idx > idx OR excluded.initial <> initial OR NOT json_valid(state)",
        (fold.session, fold.reducer, fold.version, fold.digest, snapshot.index, snapshot.state.decode()),
    )


def forget(connection: sqlite3.Connection, session: int) -> int:
    """Remove all snapshots of a session; how many there were."""
    return connection.execute("DELETE FROM snapshot WHERE session = ?", (session,)).rowcount
