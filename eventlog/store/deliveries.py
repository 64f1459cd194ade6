"""The queue of what extensions are owed, as its owner works it and as readers see it."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from eventlog.errors import DamagedFile
from eventlog.events import Event
from eventlog.store.attempts import (
    FREE,
    Acked,
    Attempt,
    DeliveryKey,
    Ended,
    Want,
    begin,
    crashed_lanes,
    expire,
    give_back,
    look_ahead,
    runnable,
    settle,
    take_up,
)
from eventlog.store.buried import DeadLetter, letters_of, purge
from eventlog.store.database import Outcome
from eventlog.store.events import as_time
from eventlog.store.reading import Reading
from eventlog.store.store import Store

_US = 1_000_000


class Limits(msgspec.Struct, frozen=True):
    """The numbers of the policy that the queue needs."""

    attempts: int
    retention_s: int
    keep_dead_s: int
    capacity: int


Begun: TypeAlias = tuple[Attempt, Event[Any] | None]
"""An attempt, and its event, None where that cannot be read."""


class Asked(msgspec.Struct, frozen=True):
    """What a turn of the queue is to do: settle what `ended`, bury what is too old, begin what is due and wanted.

    `held` names the attempts that still have a call, where others may be in the file without one; else None.
    """

    ended: Sequence[Ended]
    wants: Sequence[Want]
    limits: Limits
    held: Sequence[str] | None = None


class Turn(msgspec.Struct):
    """What one turn of the queue did. `next_at_us` is when something is due or expires, if nothing else happens."""

    begun: list[Begun]
    settled: int
    letters: list[DeadLetter]
    at_ease: list[int]  # extensions that need no care any more
    gaps: list["DeliveryGap"]  # new ones
    last_gap: int
    next_at_us: int


class TakenUp(msgspec.Struct, frozen=True):
    """What the death of the last owner left behind: calls that are made again, and those that were its last chance."""

    resumed: int
    letters: list[DeadLetter]


class Delivery(msgspec.Struct, frozen=True):
    """A live delivery, as people look at it. It `waits_for` the position before it in its lane, if there is one."""

    extension: str
    event_id: str
    position: int
    session_id: str
    project: str
    type: str
    version: int | None
    state: Literal["pending", "delivering"]
    attempts: int
    due_at: datetime
    recorded_at: datetime
    waits_for: int | None
    last_error: str | None


class DeliveryGap(msgspec.Struct, frozen=True):
    """Events that an extension will never get: `count` of them, from position `first` to `last`."""

    extension: str
    project: str
    reason: str
    first: int
    last: int
    count: int
    at: datetime


# ---------------------------------------------------------------------------------------------------- the queue


class Deliveries:
    """The queue of one file, as its owner works it and as readers see it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = Reading(verify=True)  # an extension never acts on a damaged event
        self._reads_apart = False  # events, outside of the transaction that begins their attempts
        self._owner: str | None = None
        self.last_gap: int | None = None
        """Of the last turn that was committed."""
        self._expired_us = 0  # what was recorded until then and was due is dead
        self._expire_at_us = 0  # nothing becomes too old before
        self._purge_at_us = 0

    async def take_up(self, limits: Limits) -> TakenUp:
        """Keep the policy's numbers in the file, and make what a dead owner left in flight due again (H1, R31)."""
        return await self._store.write(self._take_up, limits, self._store.clock.now_us())

    async def turn(self, asked: Asked) -> Turn:
        """One turn, in one commit of its own."""
        if not self._reads_apart:
            try:
                turn = await self._store.write(self.within, asked)
                self.last_gap = turn.last_gap
                return turn
            except DamagedFile:  # SQLite commits nothing more in a transaction that met a damaged page, of an event say
                self._reads_apart = True
        turn = await self._store.write(self.within, asked)
        self.last_gap = turn.last_gap
        turn.begun = await self._store.read(self._with_readable_events, [attempt for attempt, _ in turn.begun])
        return turn

    async def live(self, extension: int | None = None) -> list[Delivery]:
        """Every live delivery, by extension and position."""
        return await self._store.read(list_deliveries, extension)

    async def gaps(self, extension: int | None = None) -> list[DeliveryGap]:
        """The events that extensions were refused, oldest first."""
        return await self._store.read(list_gaps, extension)

    @property
    def may_ride(self) -> bool:
        """Whether a turn may be taken inside of another transaction: not while it might meet a damaged page."""
        return not self._reads_apart

    # -- on the writer's thread ---------------------------------------------------------------------------------

    def within(self, connection: sqlite3.Connection, asked: Asked) -> Turn:
        """One turn, inside of a transaction."""
        now_us, limits = self._store.clock.now_us(), asked.limits
        owner = self._owner_of(connection)
        settled, buried = settle(connection, asked.ended, now_us)
        if asked.held is not None:
            give_back(connection, owner, [want.extension for want in asked.wants], asked.held, now_us)
        buried += self._expire(connection, asked, now_us)
        ready = runnable(connection, asked.wants)
        at_ease, begun = self._begin(connection, owner, ready, now_us)
        purge_at_us = self._purge(connection, limits, now_us)
        ahead = look_ahead(connection, ready, now_us, self._expired_us)
        self._expire_at_us = (now_us if ahead.oldest_us is None else ahead.oldest_us) + limits.retention_s * _US
        return Turn(
            begun=[(attempt, None) for attempt in begun] if self._reads_apart else self._with_events(connection, begun),
            settled=settled,
            letters=letters_of(connection, buried),
            at_ease=at_ease,
            gaps=self._new_gaps(connection, ahead.last_gap),
            last_gap=ahead.last_gap,
            next_at_us=min(at for at in (ahead.due_at_us, self._expire_at_us, purge_at_us) if at is not None),
        )

    def _begin(
        self, connection: sqlite3.Connection, owner: str, ready: Sequence[Want], now_us: int
    ) -> tuple[list[int], list[Attempt]]:
        """Which extensions need no care any more, and what is begun."""
        at_ease: list[int] = []
        begun: list[Attempt] = []
        for want in ready:
            lanes = crashed_lanes(connection, want.extension) if want.careful else []
            if want.careful and not lanes:
                at_ease.append(want.extension)
            begun += begin(connection, owner, want, lanes, now_us)
        return at_ease, begun

    def _expire(self, connection: sqlite3.Connection, asked: Asked, now_us: int) -> list[DeliveryKey]:
        """Bury what is too old, when the first one's time has come, or something is due again that was being called."""
        comes_back = asked.held is not None or not all(isinstance(each, Acked) for each in asked.ended)
        if now_us < self._expire_at_us and not comes_back:
            return []
        self._expired_us = now_us - asked.limits.retention_s * _US
        return expire(connection, self._expired_us, now_us)

    def _take_up(self, connection: sqlite3.Connection, limits: Limits, now_us: int) -> TakenUp:
        connection.execute("UPDATE policy SET capacity = ?, retention_s = ?", (limits.capacity, limits.retention_s))
        resumed, dead = take_up(connection, self._owner_of(connection), limits.attempts, now_us)
        return TakenUp(resumed, letters_of(connection, dead))

    def _owner_of(self, connection: sqlite3.Connection) -> str:
        """What the request ids of this owner begin with; no other owner's of this file do."""
        if self._owner is None:
            (self._owner,) = connection.execute(_OWNER).fetchone()
        return str(self._owner)

    def _with_events(self, connection: sqlite3.Connection, attempts: Sequence[Attempt]) -> list[Begun]:
        positions = sorted({attempt.position for attempt in attempts})
        by_position = {event.position: event for event in self._reading.at_positions(connection, positions)}
        return [(attempt, by_position.get(attempt.position)) for attempt in attempts]

    def _with_readable_events(self, connection: sqlite3.Connection, attempts: Sequence[Attempt]) -> list[Begun]:
        """One by one: a damaged page must not keep the others waiting."""
        return [self._with_readable_event(connection, attempt) for attempt in attempts]

    def _with_readable_event(self, connection: sqlite3.Connection, attempt: Attempt) -> Begun:
        try:
            (begun,) = self._with_events(connection, [attempt])
        except sqlite3.DatabaseError:
            return attempt, None
        return begun

    def _new_gaps(self, connection: sqlite3.Connection, last: int) -> list[DeliveryGap]:
        seen = self.last_gap
        new = [] if seen is None or seen == last else list_gaps(connection, after=seen)
        return [gap for gap in new if gap.reason == "capacity"]  # what was forgotten, somebody asked for

    def _purge(self, connection: sqlite3.Connection, limits: Limits, now_us: int) -> int:
        """Remove old dead letters when the first one's time has come; looking for it costs a scan, so look seldom."""
        if now_us >= self._purge_at_us:
            first_at_us = purge(connection, limits.retention_s * _US, limits.keep_dead_s * _US, now_us)
            look_again_us = now_us + max(1, min(3_600, limits.keep_dead_s)) * _US
            self._purge_at_us = look_again_us if first_at_us is None else min(first_at_us, look_again_us)
        return self._purge_at_us


class Ride:
    """A turn of the queue in the commit of a group, which begins what that group is owed: one commit instead of two."""

    def __init__(self, deliveries: Deliveries, asked: Asked, landed: Callable[["Ride"], None]) -> None:
        self._deliveries = deliveries
        self._landed = landed
        self.asked = asked
        self.over: Outcome[None] = Outcome(loop=asyncio.get_running_loop())
        self.position = 0  # of the last event that it saw
        self.turn: Turn | None = None  # that was taken; None when it was not

    def ride(self, connection: sqlite3.Connection, position: int) -> None:
        """Take the turn."""
        self.position = position
        self.turn = self._deliveries.within(connection, self.asked)

    def landed(self, is_stored: bool) -> None:
        """Let its calls begin, if it was committed."""
        if not is_stored:
            self.turn = None
        elif self.turn is not None:
            self._deliveries.last_gap = self.turn.last_gap
        self._landed(self)


_OWNER = """
    SELECT (SELECT era FROM era ORDER BY first_position DESC, began_at DESC LIMIT 1)
           || '.' || (SELECT epoch FROM epoch) || '.'
"""


# --------------------------------------------------------------------------------------------------- to look at it

_LIST = """
    SELECT e.name,
           (SELECT era FROM era WHERE first_position <= d.position ORDER BY first_position DESC, began_at DESC LIMIT 1)
           || ':' || d.position,
           d.position, s.id, d.project, t.name, d.version, d.state, d.attempts, d.due_at, d.recorded_at,
           (SELECT max(earlier.position) FROM delivery AS earlier INDEXED BY delivery_lane
            WHERE earlier.extension = d.extension AND earlier.session = d.session
              AND earlier.position < d.position AND earlier.state <> 'dead'),
           d.last_error
    FROM delivery AS d
    JOIN extension AS e ON e.extension = d.extension
    JOIN session AS s ON s.session = d.session
    JOIN event_type AS t ON t.type = d.type
    WHERE d.state <> 'dead' AND (:extension IS NULL OR d.extension = :extension)
    ORDER BY e.name, d.position
"""
_GAPS = """
    SELECT e.name, g.project, g.reason, g.first, g.last, g.count, g.at
    FROM delivery_gap AS g JOIN extension AS e ON e.extension = g.extension
    WHERE g.gap > :after AND (:extension IS NULL OR g.extension = :extension)
    ORDER BY g.gap
"""


def list_deliveries(connection: sqlite3.Connection, extension: int | None = None) -> list[Delivery]:
    """Every live delivery, by extension and position."""
    rows = connection.execute(_LIST, {"extension": extension}).fetchall()
    return [_delivery(*row) for row in rows]


def _delivery(*row: Any) -> Delivery:
    return Delivery(*row[:9], *map(as_time, row[9:11]), *row[11:])


def list_gaps(connection: sqlite3.Connection, extension: int | None = None, after: int = 0) -> list[DeliveryGap]:
    """The gaps that were opened after the gap with this key, oldest first."""
    rows = connection.execute(_GAPS, {"after": after, "extension": extension}).fetchall()
    return [DeliveryGap(*row[:-1], *map(as_time, row[-1:])) for row in rows]


# ------------------------------------------------------------------------------------------------------- forgetting


def forget(connection: sqlite3.Connection, session: int, _id: str, now_us: int) -> dict[str, int]:
    """What is owed of a session, its dead letters, and what handlers said of them; what was live is a gap then."""
    connection.execute(_FORGOTTEN, (now_us, session))
    dead = connection.execute("DELETE FROM delivery WHERE session = ? AND state = 'dead'", (session,)).rowcount
    return {"deliveries": dead + connection.execute(f"{FREE} WHERE session = ?", (session,)).rowcount}


_FORGOTTEN = """
    INSERT INTO delivery_gap (extension, project, reason, first, last, count, at)
    SELECT extension, project, 'forgotten', min(position), max(position), count(*), ?
    FROM delivery WHERE session = ? AND state <> 'dead' GROUP BY extension, project
"""
