"""Turns by version and jobs by id, as the log's own tables have them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from eventlog.errors import CorruptEvent, printable
from eventlog.events import TOMBSTONE, TYPE_KEYS, Cost, JobStatus, TokenUsage, TurnCompleted, decode_json
from eventlog.store.bounds import MAX_POSITION
from eventlog.store.events import as_time

_RECEIVED = TYPE_KEYS["message.received"]
_SAID = TYPE_KEYS["message.completed"]
T = TypeVar("T")

_decode_turn = msgspec.json.Decoder(TurnCompleted).decode


class TurnReference(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Names one version of one turn: `version` counts the `turn.completed` events of `turn_id`, from 1."""

    conversation_id: str
    turn_id: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form: `{conversationId, turnId, version}`."""
        return {"conversationId": self.conversation_id, "turnId": self.turn_id, "version": self.version}


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
    """Exactly this version of a turn; None when it never was, or was pruned or forgotten.

    Raises CorruptEvent when what is stored of it cannot be read.
    """
    row = connection.execute(
        "SELECT v.session, v.position, l.idx, l.at, CAST(l.data AS BLOB), s.project FROM turn_version AS v"
        " JOIN session AS s ON s.session = v.session JOIN log AS l ON l.position = v.position"
        " WHERE s.id = ? AND v.turn_id = ? AND v.version = ?",
        (conversation_id, turn_id, version),
    ).fetchone()
    if row is None:
        return None
    session, position, index, at_us, raw, project = row
    if raw == TOMBSTONE:
        return None
    completed = _read(_decode_turn, raw, conversation_id, index, position)
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


def _read(decode: Callable[[bytes], T], raw: bytes, session_id: str, index: int, position: int) -> T:
    try:
        return decode(raw)
    except Exception as error:
        raise CorruptEvent(session_id, index, position, f"it cannot be read ({printable(str(error))})") from error


def _last_text(connection: sqlite3.Connection, session: int, turn_id: str, upto: int, type_key: int) -> str | None:
    """The last text of a turn, of one type; one that is corrupt is passed."""
    data = "iif(json_valid(l.data), json_extract(l.data, '$.text'), NULL)"
    row = connection.execute(
        f"SELECT {data} FROM session_index AS i JOIN log AS l ON l.position = i.position"
        " WHERE i.session = :session AND l.turn_id = :turn AND l.type = :type AND l.position <= :upto"
        " UNION ALL"
        f" SELECT {data} FROM log AS l WHERE l.position > (SELECT position FROM absorbed)"
        " AND l.session = :session AND l.turn_id = :turn AND l.type = :type AND l.position <= :upto",
        {"session": session, "turn": turn_id, "upto": upto, "type": type_key},
    ).fetchall()
    return row[-1][0] if row else None


_JOBS = (
    "SELECT j.job_id, s.id, s.project, j.name, j.status, CAST(l.data AS BLOB), l.idx, j.position FROM job AS j"
    " JOIN session AS s ON s.session = j.session LEFT JOIN log AS l ON l.position = j.position"
)


def find_job(connection: sqlite3.Connection, job_id: str, projects: Sequence[str] | None = None) -> Job | None:
    """The job with this id in one of the projects, in any when None; raises CorruptEvent as `find_turn` does.

    It is the one that was heard of last, should several sessions use the same id.
    """
    row = connection.execute(
        f"{_JOBS} WHERE j.job_id = :job"
        " AND (:projects IS NULL OR s.project IN (SELECT value FROM json_each(:projects)))"
        " ORDER BY j.position DESC LIMIT 1",
        {"job": job_id, "projects": None if projects is None else json.dumps(projects)},
    ).fetchone()
    return None if row is None else _job(row)


def jobs(
    connection: sqlite3.Connection, session_id: str | None = None, status: str | None = None, limit: int = MAX_POSITION
) -> list[Job]:
    """Jobs, those heard of last first; what a corrupt event said of a job's end is left out."""
    rows = connection.execute(
        f"{_JOBS} WHERE (:session IS NULL OR s.id = :session) AND (:status IS NULL OR j.status = :status)"
        " ORDER BY j.position DESC LIMIT :limit",
        {"session": session_id, "status": status, "limit": min(limit, MAX_POSITION)},
    ).fetchall()
    return [_job(row, corrupt_raises=False) for row in rows]


def _job(row: tuple[Any, ...], *, corrupt_raises: bool = True) -> Job:
    job_id, session_id, project, name, status, raw, index, position = row
    data: Any = {}
    if raw is not None:
        try:
            data = _read(decode_json, raw, session_id, index, position)
        except CorruptEvent:
            if corrupt_raises:
                raise
    result, error = (data.get("result"), data.get("error")) if isinstance(data, dict) else (None, None)
    return Job(job_id, session_id, project, name, JobStatus(status), result, error)


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """The names of a session's jobs; their ids and how they ended stay, and so does how often a turn was completed."""
    done = connection.execute("UPDATE job SET name = NULL WHERE session = ? AND name IS NOT NULL", (session,))
    return {"jobNames": done.rowcount}
