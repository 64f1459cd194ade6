"""Care for the file of a log that is open: back it up, prune it, forget sessions, give room back.

All of it is done in bounded pieces beside the appends that go on, but for writing the whole file anew, during which
they wait. Whatever is cut short, by a cancellation or by a kill, is done by doing the same again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from eventlog.encoding import check_id
from eventlog.errors import ErasureIncomplete, InvalidName, OutcomeUnknown, SessionNotFound, StorageFull
from eventlog.store.backup import BackedUp, back_up
from eventlog.store.erasure import forget_state, overwrite, session_to_forget
from eventlog.store.pruning import DeltaScan, Rules, deltas_upto, remove_deltas, remove_sessions, sessions_due
from eventlog.store.space import free_pages, give_back, size_bytes, used_bytes, write_anew

if TYPE_CHECKING:  # the log offers these functions as its methods
    from eventlog.log import EventLog
    from eventlog.store.store import Store

__all__ = ["BackedUp", "Forgot", "Prunable", "Pruned", "Vacuumed", "back_up", "forget", "prunable", "prune", "vacuum"]

SESSIONS_PER_UNIT = 200
READERS_LIMIT_S = 5.0
"""How long readers may keep what was forgotten in the WAL before that is an error."""
LOOK_AGAIN_S = 0.05
MAX_AGE_S = 1_000_000_000_000
"""Thirty thousand years: any time of the log, less that, is still one that SQLite can compare."""
MAX_COUNT = 2**63 - 1

Progress = Callable[[int, int], None]


class Pruned(msgspec.Struct, frozen=True):
    """What pruning removed: `events` of `sessions`, and `deltas`. `owed` sessions were due and had to stay."""

    sessions: int
    events: int
    deltas: int
    owed: int
    freed_bytes: int


class Prunable(msgspec.Struct, frozen=True):
    """What pruning would remove now: `events` of `sessions`, and `deltas`, those in such sessions among them.

    Of `more` sessions the oldest would go too, as long as more than `keep_bytes` is in use. `owed` ones would stay.
    """

    sessions: int
    events: int
    deltas: int
    more: int
    owed: int


class Forgot(msgspec.Struct, frozen=True):
    """What forgetting erased: how many `events`, and by name how much `more` that was kept for the sessions."""

    sessions: int
    events: int
    more: dict[str, int]


class Vacuumed(msgspec.Struct, frozen=True):
    """What a vacuum did to the size of the database."""

    before_bytes: int
    after_bytes: int


# -------------------------------------------------------------------------------------------------------- pruning


async def prune(
    log: EventLog,
    older_than_s: float | None,
    keep_events: int | None,
    keep_bytes: int | None,
    deltas: bool,
    progress: Progress | None,
) -> Pruned:
    """See `EventLog.prune`."""
    rules = _rules(log, older_than_s, keep_events, keep_bytes, deltas)
    store = log.store
    _ = store.writer  # or why there is none
    before_bytes = await store.read(size_bytes)
    await store.absorb()
    work = _Pruning(log, progress)
    if deltas:
        await work.remove_deltas()
    if rules is not None:
        await work.remove_sessions(rules)
    if work.events or work.deltas:
        await _give_back_pages(log)
    freed_bytes = max(0, before_bytes - await store.read(size_bytes))
    return Pruned(work.sessions, work.events, work.deltas, work.owed, freed_bytes)


async def prunable(
    log: EventLog,
    older_than_s: float | None = None,
    keep_events: int | None = None,
    keep_bytes: int | None = None,
    deltas: bool = False,
) -> Prunable:
    """What `EventLog.prune` would remove now, by each rule for itself; nothing is. Raises InvalidName as it does.

    To a reader, events that a killed owner left behind are not finished yet: the next owner may find a little more.
    """
    rules = _rules(log, older_than_s, keep_events, keep_bytes, deltas)
    store, agents = log.store, sorted(log.agents_served)
    if not store.read_only:
        await store.absorb()
    found = await _count_deltas(store, agents) if deltas else 0
    if rules is None:
        return Prunable(0, 0, found, 0, 0)
    due = await store.read_aside(sessions_due, rules, agents)
    too_large = keep_bytes is not None and await store.read(used_bytes) > keep_bytes
    return Prunable(len(due.must), due.events, found, len(due.may) if too_large else 0, due.owed)


async def _count_deltas(store: Store, agents: list[str]) -> int:
    scan, found, more = DeltaScan(), 0, True
    upto = await store.read(deltas_upto, agents)
    while more:
        more = await store.read(scan.look, upto)
        found += sum(map(len, scan.chunks(last=not more)))
    return found


def _rules(
    log: EventLog, older_than_s: float | None, keep_events: int | None, keep_bytes: int | None, deltas: bool
) -> Rules | None:
    """Those of whole sessions, None without any."""
    _check_rule("older_than_s", older_than_s, float, MAX_AGE_S)
    _check_rule("keep_events", keep_events, int, MAX_COUNT)
    _check_rule("keep_bytes", keep_bytes, int, MAX_COUNT)
    if older_than_s is keep_events is keep_bytes is None:
        if not deltas:
            raise InvalidName("prune", None, "says nothing of what is to go; give an age, a number, a size or deltas")
        return None
    cutoff_us = None if older_than_s is None else log.store.clock.now_us() - round(older_than_s * 1_000_000)
    return Rules(cutoff_us, keep_events, keep_bytes)


def _check_rule(name: str, value: float | None, kind: type, most: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, kind)) or not 0 <= value <= most:  # NaN is neither
        raise InvalidName(name, value, f"must be a number from 0 to {most:,}{'' if kind is float else ', a whole one'}")


class _Pruning:
    """Finds what is to go and removes it, a transaction at a time."""

    def __init__(self, log: EventLog, progress: Progress | None) -> None:
        self.sessions = self.events = self.deltas = self.owed = 0
        self._store = log.store
        self._agents = sorted(log.agents_served)
        self._progress = progress

    async def remove_deltas(self) -> None:
        scan, store = DeltaScan(), self._store
        upto = await store.read(deltas_upto, self._agents)
        more = True
        while more:
            more = await store.read(scan.look, upto)
            for chunk in scan.chunks(last=not more):
                self.deltas += await store.write(remove_deltas, chunk, store.clock.now_us())
            self._tell(min(scan.position, upto), upto)

    async def remove_sessions(self, rules: Rules) -> None:
        due = await self._store.read_aside(sessions_due, rules, self._agents)
        self.owed = due.owed
        await self._remove(due.must, None, due.events)
        if rules.keep_bytes is not None:
            await self._remove(due.must + due.may, rules.keep_bytes, None)

    async def _remove(self, keys: list[int], keep_bytes: int | None, total: int | None) -> None:
        enough = False
        while keys and not enough:
            now = keys[:SESSIONS_PER_UNIT]
            removed = await self._store.with_writer(remove_sessions, now, keep_bytes, self._agents)
            keys = removed.left + keys[SESSIONS_PER_UNIT:]
            enough = removed.enough
            self.sessions += removed.sessions
            self.events += removed.events
            if total is not None:
                self._tell(min(self.events, total), total)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


# ------------------------------------------------------------------------------------------------------ forgetting


async def forget(log: EventLog, session_ids: Iterable[str], progress: Progress | None) -> Forgot:
    """See `EventLog.forget`."""
    store, found = log.store, dict[str, tuple[int, int]]()
    _ = store.writer  # or why there is none
    await store.absorb()
    for session_id in session_ids:
        known = await store.read(session_to_forget, check_id("sessionId", session_id))
        if known is None:
            raise SessionNotFound(session_id)
        found[session_id] = known
    events, more = 0, Counter[str]()
    for done, (session_id, (key, upto)) in enumerate(found.items()):
        if progress is not None:
            progress(done, len(found))
        events += await _overwrite(log, key, session_id, upto)
        more.update(await store.with_writer(forget_state, key, session_id))
    if found:
        await _take_off_the_disk(log)
    return Forgot(len(found), events, dict(more))


async def _overwrite(log: EventLog, key: int, session_id: str, upto: int) -> int:
    store, total = log.store, 0
    after: int | None = -1
    while after is not None:
        done, after = await store.write(overwrite, key, session_id, after, upto, store.clock.now_us())
        total += done
    return total


async def _take_off_the_disk(log: EventLog) -> None:
    store = log.store
    try:
        await store.with_writer(write_anew)
    except (StorageFull, OutcomeUnknown) as error:  # for these it would be the session that is not forgotten
        why = f"the file cannot be written anew, which takes as much room again: {error.why}"
        raise ErasureIncomplete(log.path, why) from error
    looks = round(READERS_LIMIT_S / LOOK_AGAIN_S)
    for _ in range(looks):
        if await store.cut_wal():
            return
        await store.clock.sleep(LOOK_AGAIN_S)
    raise ErasureIncomplete(log.path, "a reader, or a backup, holds on to what the log was before")


# ---------------------------------------------------------------------------------------------------------- room


async def vacuum(log: EventLog, full: bool) -> Vacuumed:
    """See `EventLog.vacuum`."""
    store = log.store
    _ = store.writer  # or why there is none
    before_bytes = await store.read(size_bytes)
    if full:
        await store.absorb()
        await store.with_writer(write_anew)
        await store.cut_wal()
    else:
        await _give_back_pages(log)
    return Vacuumed(before_bytes, await store.read(size_bytes))


async def _give_back_pages(log: EventLog) -> None:
    """Also the file gets shorter, unless a reader holds the WAL: then it does with a later checkpoint."""
    store = log.store
    left = await store.read(free_pages)
    while left and left > (left := await store.with_writer(give_back)):
        pass
    if not store.writer.checkpoints_suspended:
        await store.cut_wal()
