"""Erasing a session: what was said in it goes, and that it was there stays, index by index.

Each owner of tables has a `forget` for what it keeps of a session, and `OWNERS` lists them; the log itself, whose
events become tombstones, is done here. What was erased is then still in the WAL, and perhaps in copies that SQLite
left in unused parts of pages when it moved rows, which `secure_delete` does not reach: so the file is written anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from msgspec.structs import replace

from eventlog.encoding import TOMBSTONE
from eventlog.store import anew, cursors, deliveries, folded, keep, reminders, turns, unfinished
from eventlog.store.database import in_transaction
from eventlog.store.drafting import checksum
from eventlog.store.events import Events
from eventlog.store.gate import gate
from eventlog.store.reading import find_session

CHUNK_EVENTS = 1_000
"""Overwritten in one transaction, between which appends go on."""

Forget = Callable[[sqlite3.Connection, int, str, int], dict[str, int]]
"""Takes a session's key, its id and the time; says how much of what it erased."""

OWNERS: tuple[Forget, ...] = (
    deliveries.forget,
    cursors.forget,
    reminders.forget,
    turns.forget,
    unfinished.forget,
    folded.forget,
    anew.forget,
    keep.forget,
)


def session_to_forget(connection: sqlite3.Connection, id: str) -> tuple[int, int] | None:
    """A session's key, and the position up to which its events are to be forgotten; None when there is none."""
    found = find_session(connection, id)
    if found is None:
        return None
    (upto,) = connection.execute("SELECT position FROM absorbed").fetchone()
    return found.key, int(upto)


def overwrite(
    connection: sqlite3.Connection, session: int, id: str, after: int, upto: int, now_us: int
) -> tuple[int, int | None]:
    """Make tombstones of a session's next events behind an index: how many, and where to go on (None: at the end).

    In the caller's transaction. A key goes too, so that the event's place can no longer be found by what it was.
    """
    rows = connection.execute(
        "SELECT l.position, l.idx, l.at, t.name, l.turn_id, CAST(l.data AS BLOB), l.key FROM session_index AS i"
        " JOIN log AS l ON l.position = i.position JOIN event_type AS t ON t.type = l.type"
        " WHERE i.session = ? AND i.idx > ? AND l.position <= ? AND l.session = i.session ORDER BY i.idx LIMIT ?",
        (session, after, upto, CHUNK_EVENTS),
    ).fetchall()
    text = TOMBSTONE.decode()
    old = [row for row in rows if row[5] != TOMBSTONE or row[6] is not None]
    cursors.miss(connection, [row[0] for row in old], now_us)
    with gate(connection, "forget"):
        connection.executemany(
            "UPDATE log SET data = ?, key = NULL, checksum = ? WHERE position = ?",
            [
                (text, checksum(position, id, index, at_us, type_, turn_id, None, TOMBSTONE), position)
                for position, index, at_us, type_, turn_id, _, _ in old
            ],
        )
    return len(old), rows[-1][1] if len(rows) == CHUNK_EVENTS else None


def forget_state(connection: sqlite3.Connection, events: Events, session: int, id: str) -> dict[str, int]:
    """Erase what is known of a session beside its events, in one transaction and in the owner's memory."""
    counts = in_transaction(connection, _forget_state, session, id, events.clock.now_us())
    events.removals += 1
    head = events.heads.get(id)
    if head is not None and head.info is not None:
        head.info = replace(head.info, auth=None, title=None, sdk_agent_id=None, abs=None, continuation_token=None)
    return counts


def _forget_state(connection: sqlite3.Connection, session: int, id: str, now_us: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for forget in OWNERS:
        counts.update(forget(connection, session, id, now_us))
    with gate(connection, "forget"):
        connection.execute(
            "UPDATE session SET auth = NULL, title = NULL, sdk_agent_id = NULL, abs = NULL, continuation_token = NULL"
            " WHERE session = ?",
            (session,),
        )
    return counts
