"""Imported history: events that keep their own index and time, and that no hook is owed.

Writes the tables of `events`, whose rules it shares, and owns `imported`. Runs on the writer's thread.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Any

from eventlog.events import TOMBSTONE, Envelope, SessionStarted
from eventlog.store.database import in_transaction
from eventlog.store.drafting import COLUMNS, FIRST_OWN_TYPE, MAX_OWN_TYPES, checksum, same_json
from eventlog.store.events import Events, info_at_start, insert_rows, insert_session
from eventlog.store.gate import gate
from eventlog.store.heads import Head
from eventlog.store.reading import find_session

UNKNOWN_START = SessionStarted(channel_id="import", mode="chat", purpose="live", project_id="default")


@dataclass
class Taken:
    """What became of a batch: events that were new or known, and the numbers of refused lines with the reason."""

    added: int = 0
    known: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)
    """New sessions whose start is a tombstone, which does not say whose they were."""


def import_batch(connection: sqlite3.Connection, events: Events, batch: list[tuple[int, Envelope]]) -> Taken:
    """Store a batch of numbered envelopes in one transaction; a line that cannot stand is refused alone."""
    work = _Import(connection, events)
    in_transaction(connection, work.run, batch)
    work.believe()
    return work.taken


class _Import:
    def __init__(self, connection: sqlite3.Connection, events: Events) -> None:
        self.taken = Taken()
        self._connection = connection
        self._events = events
        self._heads: dict[str, Head] = {}
        self._next: dict[str, int] = {}
        self._new: dict[tuple[str, int], Envelope] = {}
        self._new_types: dict[str, int] = {}

    def run(self, _connection: sqlite3.Connection, batch: list[tuple[int, Envelope]]) -> None:
        for number, envelope in batch:
            refused = self._take(envelope)
            if refused is not None:
                place = f"session {envelope.session_id!r}, index {envelope.index}"
                self.taken.refused.append((number, f"{place}: {refused}"))
            else:
                self.taken.sessions.add(envelope.session_id)
        if self._new:
            self._write()

    def believe(self) -> None:
        """After the commit: move the heads over what was written."""
        for (session_id, index), envelope in self._new.items():
            imported = self._heads[session_id]
            head = self._events.heads.setdefault(session_id, imported)
            if head.key is None:  # a start of the same session waits behind us, and will find it there
                head.key, head.next_index = imported.key, imported.next_index
            self._events.position += 1
            self._events.note(head, index, self._events.position, 1, envelope.at_us)
            self._heads[session_id] = head
        for head in self._heads.values():
            if head.info is not None and (found := find_session(self._connection, head.id, absorbed=True)):
                head.info = found.info
        self._events.types.update(self._new_types)
        keys = [head.key or 0 for head in self._heads.values()]
        self._events.last_session_key = max([self._events.last_session_key, *keys])
        self._events.imports += 1
        self._events.last = object()  # the groups that were drafted on what was there before are drafted anew

    # -- one line -----------------------------------------------------------------------------------------------

    def _take(self, envelope: Envelope) -> str | None:
        if not self._has_room_for(envelope.type):
            return f"there are {MAX_OWN_TYPES} event types of your own already"
        head = self._head(envelope)
        if head is None:
            return "a session begins with index 0"
        upcoming = self._next[head.id]
        if envelope.index > upcoming:
            return f"leaves a hole, the next index is {upcoming}"
        if envelope.index < upcoming:
            return self._compare(head, envelope)
        self._new[(head.id, envelope.index)] = envelope
        self._next[head.id] = upcoming + 1
        self._type_key(envelope.type)
        self.taken.added += 1
        return None

    def _has_room_for(self, name: str) -> bool:
        if name in self._events.types or name in self._new_types:
            return True
        return self._events.own_types() + len(self._new_types) < MAX_OWN_TYPES

    def _head(self, envelope: Envelope) -> Head | None:
        session_id = envelope.session_id
        head = self._heads.get(session_id) or self._events.heads.get(session_id)
        if head is None or head.key is None:
            found = find_session(self._connection, session_id, absorbed=True)
            if found is None and envelope.index != 0:
                return None
            head = Head(session_id)
            head.key = self._start(envelope) if found is None else found.key
            head.next_index = 0 if found is None else found.info.next_index
        self._heads[session_id] = head
        self._next.setdefault(session_id, head.next_index)
        return head

    def _start(self, envelope: Envelope) -> int:
        payload = envelope.encoded.payload
        started = payload if isinstance(payload, SessionStarted) else UNKNOWN_START
        new = sum(1 for head in self._heads.values() if (head.key or 0) > self._events.last_session_key)
        key = self._events.last_session_key + new + 1
        if envelope.data == TOMBSTONE:
            self.taken.forgotten.append(envelope.session_id)
        insert_session(self._connection, key, info_at_start(envelope.session_id, started), envelope.at_us)
        return key

    def _compare(self, head: Head, envelope: Envelope) -> str | None:
        stored = self._new.get((head.id, envelope.index))
        if stored is not None:
            same = (stored.type, stored.turn_id, stored.at_us) == (envelope.type, envelope.turn_id, envelope.at_us)
            equal = same and same_json(stored.data, envelope.data)
        else:
            row = self._stored(head, envelope.index)
            if row is None:
                return "is not in this log any more: it was pruned, or lost"
            same = row[:3] == (envelope.type, envelope.turn_id, envelope.at_us)
            equal = same and same_json(row[3], envelope.data)
        if not equal:
            return "differs from the event that is stored there"
        self.taken.known += 1
        return None

    def _stored(self, head: Head, index: int) -> tuple[Any, ...] | None:
        offset = index - head.tail.first
        if head.tail.positions and offset >= 0:
            position: int | None = head.tail.positions[offset]
        else:
            found = self._connection.execute(
                "SELECT position FROM session_index WHERE session = ? AND idx = ?", (head.key, index)
            ).fetchone()
            position = found[0] if found else None
        row: tuple[Any, ...] | None = self._connection.execute(
            "SELECT t.name, l.turn_id, l.at, CAST(l.data AS BLOB) FROM log AS l"
            " JOIN event_type AS t ON t.type = l.type WHERE l.position = ?",
            (position,),
        ).fetchone()
        return row

    # -- the batch ----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        connection, position = self._connection, self._events.position
        values: list[Any] = []
        for (session_id, index), envelope in self._new.items():
            type_, turn_id, text = envelope.type, envelope.turn_id, envelope.data.decode()
            session, type_key, at_us = self._heads[session_id].key, self._type_key(type_), envelope.at_us
            position += 1
            digest = checksum(position, session_id, index, at_us, type_, turn_id, None, envelope.data)
            values += (position, at_us, session, index, type_key, turn_id, text, bytearray(digest))
        with gate(connection, "import"):  # the trigger makes no deliveries of these
            insert_rows(connection, COLUMNS[:-1], values)
            first = self._events.position + 1
            joined = connection.execute("SELECT first FROM imported WHERE last = ?", (first - 1,)).fetchone()
            connection.execute(
                "INSERT INTO imported VALUES (?, ?) ON CONFLICT (first) DO UPDATE SET last = excluded.last",
                (joined[0] if joined else first, position),
            )

    def _type_key(self, name: str) -> int:
        known = self._events.types.get(name) or self._new_types.get(name)
        if known is None:
            known = self._new_types[name] = FIRST_OWN_TYPE + self._events.own_types() + len(self._new_types)
            self._connection.execute("INSERT INTO event_type (type, name) VALUES (?, ?)", (known, name))
        return known
