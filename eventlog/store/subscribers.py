"""How far every subscriber of the log is: hooks, extensions and projections, as they are listed for people."""

from __future__ import annotations

import sqlite3
from typing import Literal, TypeAlias

import msgspec

from eventlog.store.events import last_position

Kind: TypeAlias = Literal["hook", "extension", "projection"]


class CursorRow(msgspec.Struct, frozen=True):
    """A subscriber: it is done with everything up to `cursor`, and `lag` positions of the log are behind that.

    `errors` counts what it could not do: calls of a hook that raised, dead letters of an extension, events that a
    projection passed. `note` says what is special, such as a projection that is being folded or is stuck.
    """

    kind: Kind
    agent: str | None
    name: str
    cursor: int
    lag: int
    errors: int
    note: str | None


def cursor_rows(connection: sqlite3.Connection) -> list[CursorRow]:
    """All subscribers: hooks that the last runtimes loaded, enabled extensions, projections."""
    head = last_position(connection)
    rows: list[CursorRow] = []
    for sql in (_HOOKS, _EXTENSIONS, _PROJECTIONS):
        for kind, agent, name, cursor, errors, note in connection.execute(sql, {"head": head}).fetchall():
            rows.append(CursorRow(kind, agent, name, cursor, max(0, head - cursor), errors, note))
    return rows


_HOOKS = """
    SELECT 'hook', agent, name, cursor, errors, NULL FROM hook WHERE loaded = 1 ORDER BY agent, name
"""

# What it is owed is in its queue, so it is as far as the oldest of these.
_EXTENSIONS = """
    SELECT 'extension', NULL, e.name,
           coalesce((SELECT min(d.position) - 1 FROM delivery AS d
                     WHERE d.extension = e.extension AND d.state <> 'dead'), :head),
           (SELECT count(*) FROM delivery AS d WHERE d.extension = e.extension AND d.state = 'dead'),
           iif(e.paused, 'paused', NULL)
    FROM extension AS e WHERE e.state = 'enabled' ORDER BY e.name
"""
_PROJECTIONS = """
    SELECT 'projection', NULL, name, cursor, passed,
           CASE WHEN stuck IS NOT NULL THEN 'stuck: ' || stuck
                WHEN serves = 0 THEN 'version ' || version || ' is being folded' END
    FROM projection ORDER BY name, serves DESC
"""
