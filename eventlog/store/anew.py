"""Folds sessions, turns and jobs again, by the rules of the triggers in schema.sql that keep them while events come.

Owner of the tables `session_anew`, `turn_version_anew` and `job_anew`, which nobody reads. What is different in them
is brought over in one transaction, so that a kill leaves the old rows or the new ones.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from eventlog.store.events import last_position
from eventlog.store.gate import gate
from eventlog.store.projections import Passed, note

NOT_READABLE = "its data cannot be read"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One table that triggers keep: how a page of the log is folded, and how what is different is brought over."""

    name: str
    anew: str
    fold: str
    passed: str
    different: str
    over: tuple[str, ...]
    version: int = 1


_PAGE = "l.position > :after AND l.position <= :upto"
_COMPLETE = "session NOT IN (SELECT session FROM incomplete_session)"

_FOLD_SESSIONS = f"""
    INSERT INTO session_anew (session, title, sdk_agent_id, abs, continuation_token, status)
    SELECT session, iif(type > 2, NULL, json_extract(data, '$.title')),
           iif(type > 2, NULL, json_extract(data, '$.sdkAgentId')),
           iif(type > 2 OR json_type(data, '$.abs') IS NULL, NULL, substr(abs_twice, 2, (length(abs_twice) - 3) / 2)),
           iif(type > 3, NULL, json_extract(data, '$.continuationToken')),
           CASE type WHEN 3 THEN 'waiting' WHEN 4 THEN 'completed' WHEN 5 THEN 'failed'
                     WHEN 2 THEN NULL ELSE 'active' END
    FROM (SELECT *, json_extract(data, '$.abs', '$.abs') AS abs_twice
          FROM (SELECT position, session, type, iif(json_valid(data), data, 'null') AS data FROM log AS l
                WHERE {_PAGE} AND type <= 6))
    WHERE true ORDER BY position
    ON CONFLICT (session) DO UPDATE SET
        title = coalesce(excluded.title, title), sdk_agent_id = coalesce(excluded.sdk_agent_id, sdk_agent_id),
        abs = coalesce(excluded.abs, abs),
        continuation_token = coalesce(excluded.continuation_token, continuation_token),
        status = coalesce(excluded.status, status)
"""
_PASSED_SESSIONS = f"SELECT position FROM log AS l WHERE {_PAGE} AND type <= 6 AND NOT json_valid(data)"

_STATE_ANEW = """
    SELECT s.session, n.title, n.sdk_agent_id, n.abs, n.continuation_token, coalesce(n.status, 'active') AS status
    FROM session AS s LEFT JOIN session_anew AS n ON n.session = s.session
"""
_CHANGED_SESSIONS = f"""
    SELECT count(*) FROM session AS s JOIN ({_STATE_ANEW}) AS n USING (session)
    WHERE {_COMPLETE} AND (n.title, n.sdk_agent_id, n.abs, n.continuation_token, n.status)
        IS NOT (s.title, s.sdk_agent_id, s.abs, s.continuation_token, s.status)
"""
_BRING_SESSIONS = f"""
    UPDATE session SET (title, sdk_agent_id, abs, continuation_token, status) = (
        SELECT title, sdk_agent_id, abs, continuation_token, status FROM ({_STATE_ANEW}) AS n
        WHERE n.session = session.session
    ) WHERE {_COMPLETE}
"""

_FOLD_TURNS = f"""
    INSERT INTO turn_version_anew (session, turn_id, version, position)
    SELECT session, turn_id,
           (SELECT coalesce(max(version), 0) FROM turn_version_anew AS v
            WHERE v.session = l.session AND v.turn_id = l.turn_id)
           + row_number() OVER (PARTITION BY session, turn_id ORDER BY position), position
    FROM log AS l WHERE {_PAGE} AND type = 7 AND turn_id IS NOT NULL
"""
_PASSED_TURNS = f"SELECT position FROM log AS l WHERE {_PAGE} AND type = 7 AND turn_id IS NULL"

# A job's event is as it was appended only if it names its job, and its status where it ends it.
_JOBS = f"""
    SELECT position, session, type, json_extract(data, '$.jobId') AS job_id,
           iif(type = 9, json_extract(data, '$.name'), NULL) AS name,
           CASE type WHEN 9 THEN 'queued' WHEN 10 THEN 'running' ELSE json_extract(data, '$.status') END AS status
    FROM (SELECT position, session, type, iif(json_valid(data), data, 'null') AS data FROM log AS l
          WHERE {_PAGE} AND type BETWEEN 9 AND 11)
"""
_IS_JOB = """
    typeof(job_id) = 'text' AND typeof(status) = 'text'
    AND status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'outcomeUnknown')
"""
_FOLD_JOBS = f"""
    INSERT INTO job_anew (session, job_id, name, status, position)
    SELECT session, job_id, name, status, position FROM ({_JOBS}) WHERE {_IS_JOB} ORDER BY position
    ON CONFLICT (session, job_id) DO UPDATE
    SET status = excluded.status, name = coalesce(excluded.name, name), position = excluded.position
    WHERE status IN ('queued', 'running')
"""
_PASSED_JOBS = f"SELECT position FROM ({_JOBS}) WHERE NOT ({_IS_JOB})"


def _rows(table: str, keys: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """How rows of a table with such columns are compared with their new ones, and brought over."""
    columns = (*keys, *values)
    same_key = " AND ".join(f"n.{key} = o.{key}" for key in keys)
    same = " AND ".join([same_key, *(f"n.{value} IS o.{value}" for value in values)])
    old = f"o.{_COMPLETE} AND NOT EXISTS (SELECT 1 FROM {table}_anew AS n WHERE {same})"
    new = f"n.{_COMPLETE} AND NOT EXISTS (SELECT 1 FROM {table} AS o WHERE {same})"
    key_of = ", ".join(keys)
    different = (
        f"SELECT count(*) FROM (SELECT {key_of} FROM {table} AS o WHERE {old}"
        f" UNION SELECT {key_of} FROM {table}_anew AS n WHERE {new})"
    )
    bring = (
        f"DELETE FROM {table} AS o WHERE {old}",
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns)} FROM {table}_anew AS n WHERE {new}",
    )
    return different, bring


_CHANGED_TURNS, _BRING_TURNS = _rows("turn_version", ("session", "turn_id", "version"), ("position",))
_CHANGED_JOBS, _BRING_JOBS = _rows("job", ("session", "job_id"), ("name", "status", "position"))

BUILT_IN = {
    each.name: each
    for each in (
        BuiltIn("sessions", "session_anew", _FOLD_SESSIONS, _PASSED_SESSIONS, _CHANGED_SESSIONS, (_BRING_SESSIONS,)),
        BuiltIn("turns", "turn_version_anew", _FOLD_TURNS, _PASSED_TURNS, _CHANGED_TURNS, _BRING_TURNS),
        BuiltIn("jobs", "job_anew", _FOLD_JOBS, _PASSED_JOBS, _CHANGED_JOBS, _BRING_JOBS),
    )
}


def begin(connection: sqlite3.Connection, name: str) -> int:
    """Take away what a rebuild that was cut short has left; the position up to which the log goes now."""
    connection.execute(f"DELETE FROM {BUILT_IN[name].anew}")
    return last_position(connection)


def fold(connection: sqlite3.Connection, name: str, after: int, upto: int, now_us: int) -> int:
    """Fold the events behind a position, up to another one; how many had to be passed."""
    built_in, bounds = BUILT_IN[name], {"after": after, "upto": upto}
    passed = [Passed(position, NOT_READABLE) for (position,) in connection.execute(built_in.passed, bounds).fetchall()]
    note(connection, name, built_in.version, passed, now_us)
    connection.execute(built_in.fold, bounds)
    return len(passed)


def finish(connection: sqlite3.Connection, name: str, after: int, now_us: int) -> tuple[int, int]:
    """Fold what has come meanwhile and bring over what is different: (rows that are, events passed)."""
    built_in = BUILT_IN[name]
    passed = fold(connection, name, after, last_position(connection), now_us)
    (different,) = connection.execute(built_in.different).fetchone()
    if different:
        with gate(connection, "rebuild"):
            for statement in built_in.over:
                connection.execute(statement)
    connection.execute(f"DELETE FROM {built_in.anew}")
    return int(different), passed


def forget(connection: sqlite3.Connection, session: int, _id: str, _now_us: int) -> dict[str, int]:
    """What a rebuild that was cut short, or is underway, has folded of a session; nobody reads it, nobody counts it."""
    for built_in in BUILT_IN.values():
        connection.execute(f"DELETE FROM {built_in.anew} WHERE session = ?", (session,))
    return {}
