"""How a delivery moves: begun before its call, settled by that call alone, taken up, given back, expired.

An attempt holds its place in the queue by its `request_id`. Every statement that ends an attempt is guarded by it: a
place that was cleared, settled or taken up by somebody else meanwhile is not touched, and zero rows is an answer.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from eventlog.events import TYPE_KEYS

FailureKind = Literal["failed", "timeout", "crashed", "rejected", "retry-after"]
DeliveryKey: TypeAlias = tuple[int, int]  # extension, position

CUT_SHORT_BY_DEATH = "the process ended during the call"
_NAME_OF_TYPE = {key: name for name, key in TYPE_KEYS.items()}


class Attempt(msgspec.Struct, frozen=True):
    """A call that was committed and is about to be made. `round_number` counts from 1 since the last manual retry."""

    extension: int
    place: int
    position: int
    session: int
    project: str
    type: str
    version: int | None
    number: int
    round_number: int
    request_id: str
    generation: int


class Acked(msgspec.Struct, frozen=True):
    """The handler returned: the delivery is done."""

    attempt: Attempt


class Failed(msgspec.Struct, frozen=True):
    """The handler did not return: called again when `due_at_us`, or, where that is None, dead for `reason`.

    `kind` is None when no call could be made at all; then nothing counts as an attempt.
    """

    attempt: Attempt
    kind: FailureKind | None
    error: str
    traceback: str | None = None
    due_at_us: int | None = None
    reason: str | None = None


class CutShort(msgspec.Struct, frozen=True):
    """The call was ended by us and by no fault of its own: due again at once, and it does not count."""

    attempt: Attempt


Ended: TypeAlias = Acked | Failed | CutShort


class Want(msgspec.Struct, frozen=True):
    """What one extension can take now: `free` more calls of these types, in lanes that are not `busy`.

    `careful` says that calls which were cut short by a crash may wait: they go first, and one at a time.
    """

    extension: int
    types: tuple[str, ...]
    free: int
    busy: tuple[int, ...] = ()
    careful: bool = False


# --------------------------------------------------------------------------------------------- attempts: to settle

_HELD = "extension = ? AND place = ? AND request_id = ? AND generation = ?"

FREE = """
    UPDATE delivery
    SET state = NULL, position = NULL, session = NULL, project = NULL, type = NULL, version = NULL, attempts = NULL,
        spent = NULL, due_at = NULL, recorded_at = NULL, generation = NULL, request_id = NULL, last_error = NULL
"""
"""What a delivery that ends leaves: a place for another one."""

_ACK = f"""
    {FREE} WHERE (extension, place, request_id, generation) IN (
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
               json_extract(value, '$[2]'), json_extract(value, '$[3]')
        FROM json_each(?))
"""
_RETRY = f"UPDATE delivery SET state = 'pending', request_id = NULL, due_at = ?, last_error = ? WHERE {_HELD}"
_BURY = f"""
    UPDATE delivery SET state = 'dead', request_id = NULL, reason = ?, died_at = ?, last_error = ?,
                        attempts = attempts - ?
    WHERE {_HELD}
"""
_CUT_SHORT = f"UPDATE delivery SET state = 'pending', request_id = NULL, due_at = ?, spent = spent + 1 WHERE {_HELD}"
_ATTEMPT = """
    INSERT INTO attempt (extension, position, number, request_id, ended_at, outcome, error, traceback)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


def settle(connection: sqlite3.Connection, ended: Iterable[Ended], now_us: int) -> tuple[int, list[DeliveryKey]]:
    """Write what attempts came to, where they still hold their rows: how many did, and which are dead letters now."""
    acks: list[tuple[int, int, str, int]] = []
    settled = 0
    buried: list[DeliveryKey] = []
    for each in ended:
        match each:
            case Acked(attempt):
                acks.append(_hold(attempt))
            case Failed():
                settled += (changed := _fail(connection, each, now_us))
                if changed and each.due_at_us is None:
                    buried.append((each.attempt.extension, each.attempt.position))
            case CutShort(attempt):
                settled += connection.execute(_CUT_SHORT, (now_us, *_hold(attempt))).rowcount
    if acks:
        settled += connection.execute(_ACK, (json.dumps(acks),)).rowcount
    return settled, buried


def _hold(attempt: Attempt) -> tuple[int, int, str, int]:
    return attempt.extension, attempt.place, attempt.request_id, attempt.generation


def _fail(connection: sqlite3.Connection, failed: Failed, now_us: int) -> int:
    attempt = failed.attempt
    if failed.due_at_us is None:
        uncalled = failed.kind is None
        values = (failed.reason, now_us, failed.error, uncalled, *_hold(attempt))
        changed = connection.execute(_BURY, values).rowcount
    else:
        changed = connection.execute(_RETRY, (failed.due_at_us, failed.error, *_hold(attempt))).rowcount
    if changed and failed.kind is not None:
        key = attempt.extension, attempt.position, attempt.number, attempt.request_id
        connection.execute(_ATTEMPT, (*key, now_us, failed.kind, failed.error, failed.traceback))
    return changed


# --------------------------------------------------------------------------------------------- attempts: to begin

_BEGIN = """
    UPDATE delivery
    SET state = 'delivering', attempts = attempts + 1,
        request_id = :owner || extension || '.' || position || '.' || (attempts + 1)
    WHERE (extension, place) IN (
        SELECT d.extension, d.place FROM delivery AS d INDEXED BY delivery_due
        WHERE d.extension = :extension AND d.state = 'pending' AND d.due_at <= :now
          AND d.type IN (SELECT value FROM json_each(:types))
          AND d.session NOT IN (SELECT value FROM json_each(:busy))
          AND NOT EXISTS (
              SELECT 1 FROM delivery AS earlier INDEXED BY delivery_lane
              WHERE earlier.extension = d.extension AND earlier.session = d.session
                AND earlier.position < d.position AND earlier.state <> 'dead')
        ORDER BY {first} d.due_at, d.position LIMIT :free)
    RETURNING place, position, session, project, type, version, attempts, attempts - spent, request_id, generation
"""
_BEGIN_IN_ORDER = _BEGIN.format(first="")
_BEGIN_CRASHED_FIRST = _BEGIN.format(first="d.session IN (SELECT value FROM json_each(:crashed)) DESC,")

_RUNNABLE = """
    SELECT extension FROM extension AS e
    WHERE state = 'enabled' AND paused = 0
      AND EXISTS (SELECT 1 FROM delivery INDEXED BY delivery_lane WHERE extension = e.extension AND state <> 'dead')
"""

_AHEAD = """
    SELECT (SELECT min((SELECT min(due_at) FROM delivery
                        WHERE extension = e.value AND state = 'pending' AND due_at > :now))
            FROM json_each(:extensions) AS e),
           (SELECT min(recorded_at) FROM delivery WHERE state <> 'dead' AND recorded_at > :expired),
           (SELECT coalesce(max(gap), 0) FROM delivery_gap)
"""

_CRASHED_LANES = """
    SELECT d.session FROM delivery AS d
    JOIN attempt AS a ON a.extension = d.extension AND a.position = d.position AND a.number = d.attempts
    WHERE d.extension = ? AND d.state = 'pending' AND a.outcome = 'crashed'
"""


def runnable(connection: sqlite3.Connection, wants: Sequence[Want]) -> list[Want]:
    """Those that have room for a call, and whose extension is enabled, not paused, and owed something."""
    if not wants:
        return []
    owed = {extension for (extension,) in connection.execute(_RUNNABLE)}
    return [want for want in wants if want.free > 0 and want.extension in owed]


def begin(
    connection: sqlite3.Connection, owner: str, want: Want, crashed_lanes: Sequence[int], now_us: int
) -> list[Attempt]:
    """Begin an attempt of what is due and first in its lane; one alone while there are lanes with a crashed call."""
    parameters = {
        "owner": owner,
        "extension": want.extension,
        "types": json.dumps([TYPE_KEYS[name] for name in want.types]),
        "busy": json.dumps(want.busy),
        "free": 1 if crashed_lanes else want.free,
        "crashed": json.dumps(crashed_lanes),
        "now": now_us,
    }
    rows = connection.execute(_BEGIN_CRASHED_FIRST if crashed_lanes else _BEGIN_IN_ORDER, parameters).fetchall()
    attempts = (
        Attempt(want.extension, place, position, session, project, _NAME_OF_TYPE[type_key], *rest)
        for place, position, session, project, type_key, *rest in rows
    )
    return sorted(attempts, key=lambda attempt: attempt.position)


def crashed_lanes(connection: sqlite3.Connection, extension: int) -> list[int]:
    """The lanes whose last call was cut short by the owner's death; their next one may well end the process again."""
    return [session for (session,) in connection.execute(_CRASHED_LANES, (extension,))]


class Ahead(NamedTuple):
    """What comes next if nothing else happens."""

    due_at_us: int | None
    """The end of the first back-off. What is due and was not begun waits for a call, whose end is a wake-up."""
    oldest_us: int | None
    """When the first of what is live was recorded, but for what was looked at for its age already."""
    last_gap: int


def look_ahead(connection: sqlite3.Connection, wants: Sequence[Want], now_us: int, expired_us: int) -> Ahead:
    """Look at the back-offs of these, at the age of everything recorded after `expired_us`, and at the gaps."""
    extensions = json.dumps([want.extension for want in wants])
    parameters = {"extensions": extensions, "now": now_us, "expired": expired_us}
    return Ahead(*connection.execute(_AHEAD, parameters).fetchone())


# --------------------------------------------------------------------- what no call holds: crashed, orphaned, too old

_CRASHED = """
    INSERT INTO attempt (extension, position, number, request_id, ended_at, outcome, error)
    SELECT extension, position, attempts, request_id, :now, 'crashed', :error FROM delivery INDEXED BY delivery_lane
    WHERE state <> 'dead' AND state = 'delivering' AND substr(request_id, 1, length(:owner)) <> :owner
"""
_TAKE_UP = """
    UPDATE delivery INDEXED BY delivery_lane
    SET state = iif(attempts - spent >= :attempts, 'dead', 'pending'), request_id = NULL, due_at = :now,
        last_error = :error,
        reason = iif(attempts - spent >= :attempts, 'exhausted', NULL),
        died_at = iif(attempts - spent >= :attempts, :now, NULL)
    WHERE state <> 'dead' AND state = 'delivering' AND substr(request_id, 1, length(:owner)) <> :owner
    RETURNING extension, position, state
"""
_OF_A_CLOCK_AHEAD = """
    UPDATE delivery SET due_at = :now
    WHERE state <> 'dead' AND state = 'pending' AND recorded_at > :now AND due_at > :now
"""
_GIVE_BACK = """
    UPDATE delivery INDEXED BY delivery_lane
    SET state = 'pending', request_id = NULL, due_at = :now, spent = spent + 1
    WHERE state <> 'dead' AND state = 'delivering' AND extension IN (SELECT value FROM json_each(:extensions))
      AND substr(request_id, 1, length(:owner)) = :owner
      AND request_id NOT IN (SELECT value FROM json_each(:held))
"""
_EXPIRE = """
    UPDATE delivery SET state = 'dead', reason = 'expired', died_at = ?
    WHERE state <> 'dead' AND state = 'pending' AND recorded_at <= ?
    RETURNING extension, position
"""


def take_up(connection: sqlite3.Connection, owner: str, attempts: int, now_us: int) -> tuple[int, list[DeliveryKey]]:
    """End the attempts of dead owners as `crashed`: how many are due again at once, and which are dead letters now.

    What was recorded while the wall clock was ahead is due too: a negative age counts as 0.
    """
    parameters = {"owner": owner, "attempts": attempts, "now": now_us, "error": CUT_SHORT_BY_DEATH}
    connection.execute(_OF_A_CLOCK_AHEAD, parameters)
    connection.execute(_CRASHED, parameters)
    rows = connection.execute(_TAKE_UP, parameters).fetchall()
    dead = [(extension, position) for extension, position, state in rows if state == "dead"]
    return len(rows) - len(dead), dead


def give_back(
    connection: sqlite3.Connection, owner: str, extensions: Sequence[int], held: Sequence[str], now_us: int
) -> int:
    """Make due again what this owner began and has no call for, after a commit whose outcome it did not learn."""
    parameters = {"owner": owner, "extensions": json.dumps(extensions), "held": json.dumps(held), "now": now_us}
    return connection.execute(_GIVE_BACK, parameters).rowcount


def expire(connection: sqlite3.Connection, oldest_us: int, now_us: int) -> list[DeliveryKey]:
    """Bury what was recorded at `oldest_us` or before and is not being delivered (R43)."""
    return connection.execute(_EXPIRE, (now_us, oldest_us)).fetchall()
