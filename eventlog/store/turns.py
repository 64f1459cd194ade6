"""Turns by version and jobs by id, as the log's own tables have them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from eventlog.events import TOMBSTONE, TYPE_KEYS, Cost, JobStatus, TokenUsage, TurnCompleted, decode_json
from eventlog.store.events import as_time

_RECEIVED = TYPE_KEYS["message.received"]
_SAID = TYPE_KEYS["message.completed"]
_decode_turn = msgspec.json.Decoder(TurnCompleted).decode


class TurnSnapshot(msgspec.Struct, frozen=True):
    """A turn as it was at one version: what was received in it, what was said, and what it came to."""

    conversation_id: str
    turn_id: str
    version: int
    completed_at: datetime
    project: str
    received: str | None
    text: str | None
    result: Any
    usage: TokenUsage | None
    cost: Cost | None


class Job(msgspec.Struct, frozen=True):
    """A background job as its events tell; a terminal status is final."""

    id: str
    session_id: str
    project: str
    name: str | None
    status: JobStatus
    result: Any
    error: Any


def find_turn(connection: sqlite3.Connection, conversation_id: str, turn_id: str, version: int) -> TurnSnapshot | None:
    """Exactly this version of a turn; None when it never was, or was pruned or forgotten."""
    row = connection.execute(
        "SELECT v.session, v.position, l.at, CAST(l.data AS BLOB), s.project FROM turn_version AS v"
        " JOIN session AS s ON s.session = v.session JOIN log AS l ON l.position = v.position"
        " WHERE s.id = ? AND v.turn_id = ? AND v.version = ?",
        (conversation_id, turn_id, version),
    ).fetchone()
    if row is None:
        return None
    session, position, at_us, raw, project = row
    if raw == TOMBSTONE:
        return None
    completed = _decode_turn(raw)
    return TurnSnapshot(
        conversation_id=conversation_id,
        turn_id=turn_id,
        version=version,
        completed_at=as_time(at_us),
        project=project,
        received=_last_text(connection, session, turn_id, position, _RECEIVED),
        text=_last_text(connection, session, turn_id, position, _SAID),
        result=completed.result,
        usage=completed.usage,
        cost=completed.cost,
    )


def _last_text(connection: sqlite3.Connection, session: int, turn_id: str, upto: int, type_key: int) -> str | None:
    row = connection.execute(
        "SELECT json_extract(l.data, '$.text') FROM session_index AS i JOIN log AS l ON l.position = i.position"
        " WHERE i.session = :session AND l.turn_id = :turn AND l.type = :type AND l.position <= :upto"
        " UNION ALL"
        " SELECT json_extract(l.data, '$.text') FROM log AS l WHERE l.position > (SELECT position FROM absorbed)"
        " AND l.session = :session AND l.turn_id = :turn AND l.type = :type AND l.position <= :upto",
        {"session": session, "turn": turn_id, "upto": upto, "type": type_key},
    ).fetchall()
    return row[-1][0] if row else None


def find_job(connection: sqlite3.Connection, job_id: str, projects: Sequence[str] | None = None) -> Job | None:
    """The job with this id in one of the projects, in any when None.

    It is the one that was heard of last, should several sessions use the same id.
    """
    row = connection.execute(
        "SELECT j.job_id, s.id, s.project, j.name, j.status, CAST(l.data AS BLOB) FROM job AS j"
        " JOIN session AS s ON s.session = j.session LEFT JOIN log AS l ON l.position = j.position"
        " WHERE j.job_id = :job AND (:projects IS NULL OR s.project IN (SELECT value FROM json_each(:projects)))"
        " ORDER BY j.position DESC LIMIT 1",
        {"job": job_id, "projects": None if projects is None else json.dumps(projects)},
    ).fetchone()
    if row is None:
        return None
    data = {} if row[5] is None else decode_json(row[5])
    return Job(row[0], row[1], row[2], row[3], JobStatus(row[4]), data.get("result"), data.get("error"))


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """The names of a session's jobs; their ids and how they ended stay, and so does how often a turn was completed."""
    done = connection.execute("UPDATE job SET name = NULL WHERE session = ? AND name IS NOT NULL", (session,))
    return {"jobNames": done.rowcount}
