"""Gives out indexes and positions: a group of appends becomes rows before anything of it is stored.

Groups are drafted ahead, on the loop, while those before them are still on their way to the disk: so the writer's
thread has little to do but write. A draft is right only if all before it ends as it was drafted. It says what it
follows, and the thread drafts anew what does not follow what it committed last.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from eventlog.encoding import Encoded, encode_json
from eventlog.errors import IndexConflict, KeyConflict, LimitExceeded, SessionExists, SessionNotFound
from eventlog.events import Event, SessionInfo, decode_json
from eventlog.store.database import Outcome
from eventlog.store.heads import Head

FIRST_OWN_TYPE = 1000
MAX_OWN_TYPES = 10_000
END_OF_OWN_TYPES = FIRST_OWN_TYPE + MAX_OWN_TYPES
MAX_SESSION_TYPE = 6  # types up to this key move the session's own state

COLUMNS: tuple[str, ...] = ("position", "at", "session", "idx", "type", "turn_id", "data", "checksum", "key")

KnownKeys = dict[tuple[Head, str], Event[Any]]


class Append(msgspec.Struct, eq=False):
    """One call of append: its events before, and what became of them after."""

    head: Head
    items: list[Encoded]
    landed: asyncio.Future[None]
    """Done when it is stored or refused; what came of it is in `events` or in `error`."""
    expected_index: int | None = None
    start: SessionInfo | None = None
    events: list[Event[Any]] = []
    error: BaseException | None = None
    is_settled: bool = False
    size_bytes: int = 0
    """What it counts for in the queue."""

    async def settled(self) -> None:
        """Return when it is stored or refused, however often the waiter is cancelled."""
        if not self.is_settled:
            self.landed = Outcome(loop=self.landed.get_loop())
            await self.landed


class Start(NamedTuple):
    """A session that a group begins: its integer key, and its info but for the times."""

    key: int
    info: SessionInfo


class File(Protocol):
    """What a draft has to know of the file; `Events` is it."""

    last: object
    """What was committed last: a draft, or whatever else moved the file. Set when all of the rest has moved."""
    position: int
    last_session_key: int
    types: dict[str, int]

    @property
    def era(self) -> str: ...

    def own_types(self) -> int: ...


class Base:
    """What the next group is drafted on: how things will stand when all drafts before it are committed.

    Drafting moves it on, so that one base carries a row of drafts.
    """

    __slots__ = ("follows", "indexes", "last_session_key", "next_type", "position", "started", "types")

    def __init__(self, file: File) -> None:
        self.follows = file.last  # read first: when it is right, so is what is read after it
        self.position = file.position
        self.last_session_key = file.last_session_key
        self.next_type = FIRST_OWN_TYPE + file.own_types()
        self.types: dict[str, int] = {}  # new ones
        self.started: dict[Head, int] = {}  # the integer keys of sessions that are begun
        self.indexes: dict[Head, int] = {}  # of sessions that moved: the next index


class Draft:
    """A group as rows: nothing of it is believed until its commit succeeded."""

    __slots__ = (
        "columns",
        "follows",
        "known",
        "last_session_key",
        "moves_sessions",
        "new_types",
        "now_us",
        "position",
        "repeats",
        "started",
        "values",
    )

    def __init__(self, group: list[Append], base: Base, file: File, now_us: int, known: KnownKeys) -> None:
        self.follows: object = base.follows
        self.now_us = now_us
        self.known = known
        self.moves_sessions = False
        self.columns = (
            COLUMNS if has_keys(group) else COLUMNS[:-1]
        )  # few events have a key, and NULL takes long to bind
        self.values: list[Any] = []  # of the rows, one after the other
        self.new_types: dict[str, int] = {}
        self.started: dict[Head, Start] = {}  # heads that get their key when it is committed
        self.repeats: set[Append] = set()  # of what is stored already, or earlier in this group
        self._add(group, base, file)
        self.position = base.position
        self.last_session_key = base.last_session_key
        base.follows = self

    def _add(self, group: list[Append], base: Base, file: File) -> None:
        now_us, values, era, types = self.now_us, self.values, file.era, file.types
        position, indexes, with_keys = base.position, base.indexes, self.columns is COLUMNS
        for append in group:
            head = append.head
            index = indexes.get(head)
            if index is None:
                index = head.next_index
            can_be_refused = (
                append.start
                or append.expected_index is not None
                or append.items[0].key
                or head.key is None
                or base.next_type + len(append.items) > END_OF_OWN_TYPES
            )
            if can_be_refused and not (_has_types_left(append, base, types) and self._accept(append, index, base)):
                continue
            events, session, session_id = append.events, head.key or base.started[head], head.id
            for item in append.items:
                position += 1
                type_, turn_id, key, raw = item.type, item.turn_id, item.key, item.raw
                type_key = types.get(type_) or self._new_type(type_, base)
                if type_key <= MAX_SESSION_TYPE:
                    self.moves_sessions = True
                digest = checksum(position, session_id, index, now_us, type_, turn_id, key, raw)
                # A bytearray is bound at once; for bytes, Python 3.11 looks for an adapter first.
                values += (position, now_us, session, index, type_key, turn_id, raw.decode(), bytearray(digest))
                if with_keys:
                    values.append(key)
                events.append(Event(type_, index, session_id, turn_id, now_us, position, era, raw, key, item.payload))
                index += 1
            indexes[head] = index
            if with_keys and events[0].key is not None:
                self.known.update({(head, event.key): event for event in events if event.key is not None})
        base.position = position

    # -- what can be refused ------------------------------------------------------------------------------------

    def _accept(self, append: Append, index: int, base: Base) -> bool:
        head = append.head
        if append.start is not None:
            if head.key is not None:  # an import was quicker
                append.error = SessionExists(head.id)
                return False
            base.last_session_key += 1
            base.started[head] = base.last_session_key
            self.started[head] = Start(base.last_session_key, append.start)
        if head.key is None and head not in base.started:
            append.error = SessionNotFound(head.id)
            return False
        if append.items[0].key is not None:
            hits = [self.known.get((head, item.key or "")) for item in append.items]
            if any(hit is not None for hit in hits):
                self.repeats.add(append)
                _repeat(append, hits)
                return False
        if append.expected_index is not None and append.expected_index != index:
            append.error = IndexConflict(head.id, append.expected_index, index)
            return False
        return True

    def _new_type(self, name: str, base: Base) -> int:
        known = base.types.get(name)
        if known is None:
            known = base.types[name] = self.new_types[name] = base.next_type
            base.next_type += 1
        return known


def forget_draft(group: list[Append]) -> None:
    """Before it is drafted anew: take back what a draft said of each append."""
    for append in group:
        append.events, append.error = [], None


def has_keys(group: list[Append]) -> bool:
    """Whether an event of a group may be stored already."""
    for append in group:  # noqa: SIM110  any() makes a generator for each group
        if append.items[0].key is not None:
            return True
    return False


def _has_types_left(append: Append, base: Base, types: dict[str, int]) -> bool:
    """Refuses a whole append before a row of it is made: what is refused takes no type either."""
    if base.next_type + len(append.items) <= END_OF_OWN_TYPES:
        return True
    new = {item.type for item in append.items if item.type not in types and item.type not in base.types}
    if not new or base.next_type + len(new) <= END_OF_OWN_TYPES:
        return True
    known = base.next_type - FIRST_OWN_TYPE
    append.error = LimitExceeded("event types of your own", MAX_OWN_TYPES, known + len(new))
    return False


def _repeat(append: Append, hits: list[Event[Any] | None]) -> None:
    for item, hit in zip(append.items, hits, strict=True):
        if hit is None:
            append.error = KeyConflict(
                append.head.id, item.key or "", "other keys of the same batch are already stored"
            )
            return
        if (hit.type, hit.turn_id) != (item.type, item.turn_id) or not same_json(hit.raw, item.raw):
            append.error = KeyConflict(append.head.id, item.key or "", "it was stored with another type, turn or data")
            return
    append.events = [hit for hit in hits if hit is not None]


_BLAKE2B_128 = blake2b(digest_size=16)


def checksum(
    position: int, session_id: str, index: int, at_us: int, type_: str, turn_id: str | None, key: str | None, raw: bytes
) -> bytes:
    """blake2b-128 over everything that makes an event: a JSON array of all the rest, then the data as it is stored."""
    digest = _BLAKE2B_128.copy()  # cheaper than to set it up again
    digest.update(encode_json((position, session_id, index, at_us, type_, turn_id, key)))
    digest.update(raw)
    return digest.digest()


_canonical = msgspec.json.Encoder(order="sorted").encode


def same_json(one: bytes, other: bytes) -> bool:
    """Whether both hold the same JSON value, in whatever order the keys are. 1, 1.0 and true are three values."""
    if one == other:
        return True
    try:
        return _canonical(decode_json(one)) == _canonical(decode_json(other))
    except Exception:  # damaged bytes are the same as nothing
        return False
