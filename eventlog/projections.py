"""Projections: states that are folded from the whole log, each event exactly once, and kept beside it."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from eventlog.encoding import check_id, encode_value
from eventlog.errors import ForkedProcess, InvalidName, LimitExceeded, LogClosed
from eventlog.events import VOCABULARY, Event, decode_json
from eventlog.folding import FoldLimits, check_fold
from eventlog.log import EventLog
from eventlog.logs import harmless_text
from eventlog.store import anew, projections, usage
from eventlog.store.projections import EVERY, Definition, Page, Passed, ProjectionError, Step
from eventlog.usage import Progress, Usage, catch_up, fold_anew

__all__ = ["BUILT_IN", "FoldLimits", "Projection", "ProjectionError", "Projector", "Rebuilt", "Usage", "rebuild"]

BUILT_IN = (*anew.BUILT_IN, usage.NAME)
"""The projections that every log has."""

Fold: TypeAlias = Callable[[Any, Event[Any]], Any]

logger = logging.getLogger("eventlog.projections")


class Projection(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A state of your own, folded from every event of these types in the log, in the order of their positions.

    `fold(state, event)` is a plain function that returns the next state, plain JSON, and depends on nothing else.
    `events` are types of the vocabulary or of your own, or `"*"`. Raise `version` whenever the fold, its events or the
    `initial` state change: then the state is folded again, and the old one serves until the new one is there. Imported
    events are folded like all others. Raises InvalidName for a bad name, version or event type, and InvalidEvent for
    an initial state that is not JSON.
    """

    name: str
    events: Sequence[str]
    fold: Fold
    initial: Any = None
    version: int = 1

    def __post_init__(self) -> None:
        check_id("projection", self.name)
        if self.name in BUILT_IN:
            raise InvalidName("projection", self.name, "the log has one of this name; choose another")
        check_fold("fold", self.fold, self.version)
        _check_types(self.events)
        encode_value(self.initial, "initial")

    @property
    def definition(self) -> Definition:
        """What the file has to know of it."""
        return Definition(self.name, self.version, tuple(self.events), encode_value(self.initial, "initial"))


def _check_types(events: Sequence[str]) -> None:
    if isinstance(events, str) or not events:
        raise InvalidName("events", events, 'must be a list of event types, or ["*"]')
    for type_ in events:
        if type_ == EVERY or type_ in VOCABULARY:
            continue
        near = difflib.get_close_matches(str(type_), VOCABULARY, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidName("event type", type_, f"is not known; {hint}Own types are made known by define_event")


def by_name(projections: Sequence[Projection]) -> dict[str, Projection]:
    """Projections by their names; raises InvalidName for one that is there twice."""
    named: dict[str, Projection] = {}
    for projection in projections:
        if named.setdefault(projection.name, projection) is not projection:
            raise InvalidName("projection", projection.name, "is given twice")
    return named


# --------------------------------------------------------------------------------------------------- folding a page


def fold_page(projection: Projection, page: Page, limits: FoldLimits) -> Step:
    """Fold a page. What cannot be read is passed; at an error of the fold it stops, before the event that met it."""
    good, passed = projections.readable(page.events)
    try:
        state = decode_json(page.row.state)
        for event in good:
            state = projection.fold(state, event)
        return Step(page.upto, _encoded(state, limits), passed)
    except KeyboardInterrupt:
        raise
    except BaseException:  # of the fold, SystemExit too, or of a state that cannot be kept: looked for one by one
        return _fold_carefully(projection, page, limits)


def _fold_carefully(projection: Projection, page: Page, limits: FoldLimits) -> Step:
    raw, cursor = page.row.state, page.row.cursor
    passed: list[Passed] = []
    for event in page.events:
        good, corrupt = projections.readable([event])
        passed += corrupt
        try:
            for each in good:
                raw = _encoded(projection.fold(decode_json(raw), each), limits)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as for handlers: nothing that a fold raises ends the process
            return Step(cursor, raw, passed, Passed(event.position, harmless_text(error)))
        cursor = event.position
    return Step(page.upto, raw, passed)


def _encoded(state: Any, limits: FoldLimits) -> bytes:
    raw = encode_value(state, "state")
    if len(raw) > limits.state_bytes:
        raise LimitExceeded("bytes of a projection's state", limits.state_bytes, len(raw))
    return raw


# --------------------------------------------------------------------------------------------------- keeping them


class Projector:
    """Keeps projections behind the log: page after page, while the process serves.

    Nothing of it is on the way of an append: it reads what is committed, and how far it is behind shows in `cursors`.
    """

    def __init__(self, log: EventLog, own: Sequence[Projection] = ()) -> None:
        self._log = log
        self._own = by_name(own)
        self._stuck: set[int] = set()
        self._alone = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin where the file says that they are; raises InvalidName as for a version that was changed."""
        for projection in self._own.values():
            await self._log.store.write(projections.join, projection.definition)
        self._task = asyncio.create_task(self._keep(), name="eventlog-projections")

    async def stop(self) -> None:
        """Fold no more; what is behind is folded after the next start. Again: nothing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def catch_up(self) -> None:
        """Fold everything that is committed now."""
        async with self._alone:
            await catch_up(self._log.store, self._log.fold_limits)
            for projection in self._own.values():
                for key in await self._log.store.read(projections.keys_of, projection.name, projection.version):
                    await self._fold(projection, key)

    async def _fold(self, projection: Projection, key: int) -> None:
        while key not in self._stuck:
            if await self.fold_once(projection, key):
                return

    async def fold_once(self, projection: Projection, key: int) -> bool:
        """Fold one page of one projection and commit it; whether there is no other behind it."""
        store, limits = self._log.store, self._log.fold_limits
        page = await store.read(projections.page, store.reading, key, limits.page_events, limits.page_positions)
        if page is None:
            return True
        step = fold_page(projection, page, limits)
        if not await store.write(_commit, page, step, store.clock.now_us()):
            return False
        for passed in step.passed:
            logger.error('projection "%s" passed the event at position %d: %s', projection.name, *_told(passed))
        if step.stuck is not None:
            self._stuck.add(key)
            why = 'projection "%s" is stuck before position %d until its fold is put right: %s'
            logger.error(why, projection.name, *_told(step.stuck))
        return page.is_last or step.stuck is not None

    async def _keep(self) -> None:
        try:
            while True:
                seen = self._log.head
                await self._catch_up_whatever_happens()
                await self._log.beyond(seen)
                await self._log.clock.sleep(self._log.fold_limits.rest_s)
        except (LogClosed, ForkedProcess):
            logger.debug("the log was closed: what its projections are behind is folded after the next start")

    async def _catch_up_whatever_happens(self) -> None:
        try:
            await self.catch_up()
        except (LogClosed, ForkedProcess):
            raise
        except Exception as error:  # a full disk, say
            logger.warning("projections wait, and it is tried again when more is recorded: %s", error)


def _commit(connection: Any, page: Page, step: Step, now_us: int) -> bool:
    """State and cursor, and perhaps the place of the row that serves, in one transaction."""
    done = projections.advance(connection, page, step, now_us)
    if done:
        projections.take_place_if_done(connection, page, step)
    return done


def _told(passed: Passed) -> tuple[int, str]:
    return passed.position, passed.why


# --------------------------------------------------------------------------------------------------- folding again


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild came to: rows that were `different`, and events that had to be `passed`.

    With `waits` nothing was folded yet: the runtime that has the projection's fold does it, while the old state serves.
    """

    name: str
    different: int = 0
    passed: int = 0
    waits: bool = False


async def rebuild(log: EventLog, name: str | None = None, progress: Progress | None = None) -> list[Rebuilt]:
    """Fold the built-in projections again from the log, or only one, and put the new rows in place of the old ones.

    A kill at any moment leaves all of the old ones or all of the new ones of each. What pruning and erasing took from
    the log cannot be folded again: rows of such sessions stay as they are. A projection of yours is marked, and folded
    again by the next Runtime that has it. Of several at once one waits for the other. `progress(position, last)` is
    called on the loop. Raises InvalidName for a name that nobody has folded, and ReadOnlyLog.
    """
    if name is not None and name not in BUILT_IN:
        await log.store.write(projections.begin_anew, name)
        return [Rebuilt(name, waits=True)]
    async with log.store.rebuilding:
        return [await _rebuild_built_in(log, each, progress) for each in BUILT_IN if name in (None, each)]


async def _rebuild_built_in(log: EventLog, name: str, progress: Progress | None) -> Rebuilt:
    store, limits = log.store, log.fold_limits
    if name == usage.NAME:
        different, passed = await fold_anew(store, limits, progress)
        return Rebuilt(name, different, passed)
    head, after, passed = await store.write(anew.begin, name), 0, 0
    while after < head:
        upto = min(head, after + limits.page_positions)
        passed += await store.write(anew.fold, name, after, upto, store.clock.now_us())
        after = upto
        if progress is not None:
            progress(after, head)
    different, passed_late = await store.write(anew.finish, name, after, store.clock.now_us())
    return Rebuilt(name, different, passed + passed_late)
