"""Dead letters: deliveries that no handler will be called for again, until an operator retries or discards them."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from eventlog.store.attempts import DeliveryKey, FailureKind
from eventlog.store.events import as_time
from eventlog.store.store import Store

RETRIES_PER_COMMIT = 100

Refusal: TypeAlias = Literal["not enabled", "not granted", "too old"]


class FailedAttempt(msgspec.Struct, frozen=True):
    """One call that did not end in an ACK."""

    number: int
    request_id: str
    ended_at: datetime
    outcome: FailureKind
    error: str
    traceback: str | None


class DeadLetter(msgspec.Struct, frozen=True):
    """A buried delivery. `reason` is exhausted, rejected, expired or undecodable; `attempts` counts the calls.

    A listing leaves `failures` out.
    """

    extension: str
    event_id: str
    position: int
    session_id: str
    project: str
    type: str
    version: int | None
    reason: str
    attempts: int
    last_error: str | None
    recorded_at: datetime
    died_at: datetime
    failures: tuple[FailedAttempt, ...] = ()


class Retried(msgspec.Struct, frozen=True):
    """How many dead letters are due again, and how many stay as they are, by the reason why.

    `full` names the extensions whose queue had no place for a letter: that one and all behind it were left alone.
    """

    retried: int
    refused: dict[Refusal, int]
    full: tuple[str, ...] = ()


class Filter(msgspec.Struct, frozen=True):
    """Which dead letters: those of an extension (by its key), of an event (by its position and era), with a reason."""

    extension: int | None = None
    position: int | None = None
    era: str | None = None
    reason: str | None = None


class Buried:
    """The dead letters of one file. Looking at them changes nothing, on a read-only log too."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def letters(self, which: Filter, limit: int | None = None) -> list[DeadLetter]:
        """Those that pass the filter, in the order in which they died."""
        return await self._store.read(list_letters, which, limit)

    async def get(self, extension: int, position: int, era: str) -> DeadLetter | None:
        """One of them with its failed attempts, None if there is no such letter."""
        return await self._store.read(get_letter, Filter(extension, position, era))

    async def retry(self, which: Filter) -> Retried:
        """Make them due again, of each extension a hundred in a commit, by position, until its queue is full."""
        retried, refused, full = 0, Counter[Refusal](), list[str]()
        for extension, name in await self._store.read(_extensions_with_letters, which):
            async for chunk in self._chunks(msgspec.structs.replace(which, extension=extension)):
                retried += chunk.retried
                refused += chunk.refused
                full += [name] if chunk.is_full else []
        return Retried(retried, dict(refused), tuple(full))

    async def _chunks(self, which: Filter) -> AsyncIterator["Chunk"]:
        after: int | None = 0
        while after is not None:
            chunk = await self._store.write(retry_chunk, which, after, self._store.clock.now_us())
            yield chunk
            after = chunk.goes_on_behind

    async def discard(self, which: Filter) -> int:
        """Remove them with their attempts; how many there were."""
        return await self._store.write(discard, which)


# --------------------------------------------------------------------------------------------------- to look at them

_EVENT_ERA = (
    "(SELECT era FROM era WHERE first_position <= d.position ORDER BY first_position DESC, began_at DESC LIMIT 1)"
)
_CHOSEN = f"""
    d.state = 'dead'
    AND (:extension IS NULL OR d.extension = :extension)
    AND (:position IS NULL OR d.position = :position)
    AND (:era IS NULL OR :era = {_EVENT_ERA})
    AND (:reason IS NULL OR d.reason = :reason)
"""
_LETTER = f"""
    SELECT e.name, {_EVENT_ERA} || ':' || d.position, d.position, s.id, d.project, t.name, d.version,
           d.reason, d.attempts, d.last_error, d.recorded_at, d.died_at
    FROM delivery AS d
    JOIN extension AS e ON e.extension = d.extension
    JOIN session AS s ON s.session = d.session
    JOIN event_type AS t ON t.type = d.type
"""


def list_letters(connection: sqlite3.Connection, which: Filter, limit: int | None = None) -> list[DeadLetter]:
    """The dead letters that pass the filter, in the order in which they died."""
    sql = f"{_LETTER} WHERE {_CHOSEN} ORDER BY d.died_at, d.extension, d.position LIMIT :limit"
    rows = connection.execute(sql, {**_parameters(which), "limit": -1 if limit is None else limit})
    return [_letter(row) for row in rows.fetchall()]


def letters_of(connection: sqlite3.Connection, keys: Sequence[DeliveryKey]) -> list[DeadLetter]:
    """The dead letters with these keys."""
    sql = f"{_LETTER} WHERE d.extension = ? AND d.place = -? AND d.state = 'dead'"
    return [_letter(row) for key in keys for row in connection.execute(sql, key).fetchall()]


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    return DeadLetter(*row[:-2], *map(as_time, row[-2:]))


def get_letter(connection: sqlite3.Connection, which: Filter) -> DeadLetter | None:
    """The first letter that passes the filter, with its failed attempts."""
    found = list_letters(connection, which, limit=1)
    if not found:
        return None
    sql = f"""
        SELECT a.number, a.request_id, a.ended_at, a.outcome, a.error, a.traceback
        FROM delivery AS d JOIN attempt AS a ON a.extension = d.extension AND a.position = d.position
        WHERE {_CHOSEN} ORDER BY a.number
    """
    rows = connection.execute(sql, _parameters(which)).fetchall()
    failures = (FailedAttempt(number, request, as_time(at), *rest) for number, request, at, *rest in rows)
    return msgspec.structs.replace(found[0], failures=tuple(failures))


def _parameters(which: Filter) -> dict[str, Any]:
    return {"extension": which.extension, "position": which.position, "era": which.era, "reason": which.reason}


# ----------------------------------------------------------------------------------------------------- to steer them

_EXTENSIONS = f"""
    SELECT e.extension, e.name FROM extension AS e
    WHERE EXISTS (SELECT 1 FROM delivery AS d WHERE d.extension = e.extension AND d.place < 0 AND {_CHOSEN})
    ORDER BY e.name
"""
_CANDIDATES = f"""
    SELECT d.position,
           CASE WHEN e.state <> 'enabled' THEN 'not enabled'
                WHEN NOT EXISTS (
                    SELECT 1 FROM extension_grant AS g
                    WHERE g.extension = d.extension AND g.project = d.project
                      AND g.capability = iif(d.type = 7, 'conversations.turns.read', 'jobs.read')) THEN 'not granted'
                WHEN d.recorded_at <= :now - 1000000 * (SELECT retention_s FROM policy) THEN 'too old' END
    FROM delivery AS d JOIN extension AS e ON e.extension = d.extension
    WHERE {_CHOSEN} AND d.extension = :extension AND d.place < -:after
    ORDER BY d.place DESC LIMIT :limit
"""
_RETRY = """
    UPDATE OR REPLACE delivery
    SET place = (SELECT q.place FROM queue AS q WHERE q.extension = delivery.extension),
        state = 'pending', spent = attempts, due_at = ?, reason = NULL, died_at = NULL,
        generation = (SELECT generation FROM extension WHERE extension = delivery.extension)
    WHERE extension = ? AND place = -? AND state = 'dead'
      AND (SELECT q.place FROM queue AS q WHERE q.extension = delivery.extension) IS NOT NULL
"""
_DISCARD = f"""
    DELETE FROM delivery
    WHERE (extension, place) IN (SELECT d.extension, d.place FROM delivery AS d WHERE {_CHOSEN})
"""
_PURGE = "DELETE FROM delivery WHERE state = 'dead' AND died_at <= ? AND recorded_at <= ?"


def _extensions_with_letters(connection: sqlite3.Connection, which: Filter) -> list[tuple[int, str]]:
    return connection.execute(_EXTENSIONS, _parameters(which)).fetchall()


class Chunk(msgspec.Struct, frozen=True):
    """What one commit of a retry did; the next one `goes_on_behind` a position, if there may be more to retry."""

    retried: int
    refused: Counter[Refusal]
    is_full: bool
    goes_on_behind: int | None


def retry_chunk(connection: sqlite3.Connection, which: Filter, after: int, now_us: int) -> Chunk:
    """Give the next letters of one extension new attempts: their numbers go on, and each keeps its place in its lane.

    It ends with the first letter that finds the queue full.
    """
    parameters = {**_parameters(which), "now": now_us, "after": after, "limit": RETRIES_PER_COMMIT}
    rows: list[tuple[int, Refusal | None]] = connection.execute(_CANDIDATES, parameters).fetchall()
    retried, refused = 0, Counter[Refusal]()
    for position, why in rows:
        if why is not None:
            refused[why] += 1
        elif connection.execute(_RETRY, (now_us, which.extension, position)).rowcount:
            retried += 1
        else:
            return Chunk(retried, refused, is_full=True, goes_on_behind=None)
    more = len(rows) == RETRIES_PER_COMMIT
    return Chunk(retried, refused, is_full=False, goes_on_behind=rows[-1][0] if more else None)


def discard(connection: sqlite3.Connection, which: Filter) -> int:
    """Remove the letters that pass the filter; their attempts go with them."""
    return connection.execute(_DISCARD, _parameters(which)).rowcount


def purge(connection: sqlite3.Connection, retention_us: int, keep_us: int, now_us: int) -> int | None:
    """Remove letters that were kept for `keep_us` beyond the retention, and as long after they died.

    Returns when the next one's time comes, None when there is none.
    """
    connection.execute(_PURGE, (now_us - keep_us, now_us - keep_us - retention_us))
    sql = "SELECT min(max(died_at, recorded_at + ?)) FROM delivery WHERE state = 'dead'"
    (first,) = connection.execute(sql, (retention_us,)).fetchone()
    return None if first is None else int(first) + keep_us
