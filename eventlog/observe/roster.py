"""The hooks and channels that are served, and their rows in the file: where each begins, is, and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from eventlog.errors import InvalidName
from eventlog.observe.channel import ChannelDefinition
from eventlog.observe.failures import Failures
from eventlog.observe.hook import HookDefinition, OnRestart
from eventlog.observe.lanes import Lane
from eventlog.observe.relay import as_async
from eventlog.observe.routes import ContextMaker, Routes, Subscriber
from eventlog.observe.threads import PlainThreads
from eventlog.store.cursors import Counted, Cursors, Finished, Gap, HookToJoin, JoinedHook, SessionGap

log = logging.getLogger("eventlog.observe")


class RunningHook(msgspec.Struct, frozen=True):
    """A row of `runtime.hooks`; `lag` is in positions, `stuck` counts calls that have not returned for long."""

    agent: str
    name: str
    events: list[str]
    source: str
    on_restart: OnRestart
    lag: int
    gaps: int
    calls: int
    errors: int
    stuck: int


class Roster:
    """One agent's hooks, in the order in which they are called, and channels."""

    def __init__(
        self,
        agent: str,
        cursors: Cursors,
        threads: PlainThreads,
        failures: Failures,
        *,
        hook_context: ContextMaker,
        channel_context: ContextMaker,
        stranger: Callable[[str, str], None],
    ) -> None:
        self.routes = Routes(agent, stranger)
        self.newcomers: list[Subscriber] = []
        """Hooks that have not joined yet."""
        self.gaps_found = 0
        """Gaps that were written when hooks joined."""
        self._agent = agent
        self._cursors = cursors
        self._threads = threads
        self._failures = failures
        self._hook_context = hook_context
        self._channel_context = channel_context

    # -- who is served ------------------------------------------------------------------------------------------

    def add_hook(self, name: str, definition: HookDefinition, source: str) -> None:
        """Add a hook behind those that are there, to join soon; raises InvalidName for a name that is taken."""
        if any(hook.name == name for hook in (*self.routes.hooks, *self.newcomers)):
            raise InvalidName("hook name", name, "another hook has it, and names are unique")
        hook = self._subscriber("hook", name, definition.events, self._hook_context)
        hook.on_restart, hook.source = definition.on_restart, source
        self.newcomers.append(hook)

    def add_channel(self, definition: ChannelDefinition, start: int) -> None:
        """Add a channel, to be shown what lies behind `start`; raises InvalidName for an id that is taken."""
        if definition.id in self.routes.channels:
            raise InvalidName("channel id", definition.id, "another channel has it, and ids are unique")
        channel = self._subscriber("channel", definition.id, definition.events, self._channel_context)
        channel.start = start
        self.routes.channels[definition.id] = channel
        self.routes.rebuild()

    def _subscriber(self, kind: str, name: str, events: Mapping[str, Any], make_context: ContextMaker) -> Subscriber:
        handlers = {type_: as_async(handler, self._threads) for type_, handler in events.items()}
        return Subscriber(kind, name, handlers, make_context)

    def rows(self, lag: int) -> list[RunningHook]:
        """A row for each hook that has joined."""
        return [
            RunningHook(
                agent=self._agent,
                name=hook.name,
                events=list(hook.calls_by_type),
                source=hook.source,
                on_restart=hook.on_restart,
                lag=lag,
                gaps=hook.gaps,
                calls=hook.calls,
                errors=hook.errors,
                stuck=hook.stuck,
            )
            for hook in self.routes.hooks
        ]

    @property
    def claimants(self) -> list[int]:
        """The rows of the hooks whose events have to be claimed."""
        return [hook.row for hook in self.routes.hooks if hook.on_restart == "resume"]

    # -- their rows ---------------------------------------------------------------------------------------------

    async def join(self, newcomers: list[Subscriber], *, resume: bool, alone: bool, place: int) -> int | None:
        """Commit where newcomers begin. Returns where to begin again, if one of them resumes before the head.

        Those that are there have been shown everything up to `place`.
        """
        rows = [HookToJoin(hook.name, hook.on_restart, hook.source, tuple(hook.calls_by_type)) for hook in newcomers]
        head, joined = await self._cursors.join(rows, resume=resume, alone=alone)
        begin_again = min((row.start for row in joined), default=head)
        if begin_again < head:
            for older in self.routes.subscribers:
                older.start = max(older.start, place)
        for hook, row in zip(newcomers, joined, strict=True):
            _admit(hook, row)
            self.gaps_found += row.gap is not None
        self.routes.hooks += newcomers
        self.routes.rebuild()
        return begin_again if begin_again < head else None

    async def save(self, finished: int) -> None:
        """Write down that every hook is through up to `finished`, and what was counted and thrown, if that is news."""
        hooks = self.routes.hooks
        counted = _counted(hooks)
        moved = [hook for hook in hooks if hook.cursor < max(finished, hook.start)]
        places = self._finished(moved, finished)
        thrown = self._failures.take()
        if not moved and not counted and not thrown:
            return
        writing = asyncio.ensure_future(self._cursors.advance(places, counted, thrown))
        writing.add_done_callback(lambda written: self._failures.give_back([] if _has_succeeded(written) else thrown))
        await asyncio.shield(writing)  # whoever is cancelled here cannot tell whether the errors are stored
        for hook, place in zip(moved, places, strict=True):
            hook.cursor = max(hook.cursor, place.position)
        by_row = {hook.row: hook for hook in hooks}
        for each in counted:
            by_row[each.hook].calls_saved, by_row[each.hook].errors_saved = each.calls, each.errors

    async def leave(self, lanes: Mapping[str, Lane], *, place: int, seen: int) -> None:
        """At a stop: what the lanes still owe, and what lies between `place` and `seen`, becomes gaps."""
        hooks = self.routes.hooks
        cut = _owed(hooks, lanes)
        await self._cursors.leave(self._finished(hooks, place), seen, cut)
        if cut or place < seen:
            log.warning("observe hooks were stopped before they had seen everything; what is left is in their gaps")

    async def remove(self, names: Collection[str], lanes: Mapping[str, Lane], *, place: int, seen: int) -> None:
        """Begin no more calls of these hooks, at once; what they would still be shown becomes gaps, as at a stop."""
        self.newcomers = [hook for hook in self.newcomers if hook.name not in names]
        gone = [hook for hook in self.routes.hooks if hook.name in names]
        cut = _owed(gone, lanes)
        counted = _counted(gone)
        self.routes.hooks = [hook for hook in self.routes.hooks if hook.name not in names]
        self.routes.rebuild()
        for hook in gone:
            hook.silence()
        await self._cursors.advance((), counted, ())
        await self._cursors.leave(self._finished(gone, place), seen, cut, for_good=True)

    @staticmethod
    def _finished(hooks: Iterable[Subscriber], place: int) -> list[Finished]:
        """Everybody has finished up to `place`, and none is owed what lies before its own start."""
        return [Finished(hook.row, max(place, hook.start)) for hook in hooks]


def _has_succeeded(written: asyncio.Future[None]) -> bool:
    """Whether it ended without an error."""
    return not written.cancelled() and written.exception() is None


def _counted(hooks: Iterable[Subscriber]) -> list[Counted]:
    """What was counted of them and is not in the file yet."""
    return [
        Counted(hook.row, hook.calls, hook.errors)
        for hook in hooks
        if (hook.calls, hook.errors) != (hook.calls_saved, hook.errors_saved)
    ]


def _owed(hooks: Iterable[Subscriber], lanes: Mapping[str, Lane]) -> list[SessionGap]:
    """What the lanes would still show them."""
    return [
        SessionGap(hook.row, session_id, gap)
        for session_id, lane in lanes.items()
        for hook in hooks
        if (gap := lane.owed(hook)) is not None
    ]


def _admit(hook: Subscriber, row: JoinedHook) -> None:
    hook.row, hook.start, hook.cursor, hook.gaps = row.hook, row.start, row.start, row.gaps
    hook.calls_before = hook.calls_saved = row.calls
    hook.errors = hook.errors_saved = row.errors
    if row.gap is not None:
        log.warning(
            'hook "%s" is not shown %s: recorded before, and not known to be finished by it',
            hook.name,
            _told(row.gap),
        )


def _told(gap: Gap) -> str:
    if gap.first == gap.last:
        return f"position {gap.first}"
    events = "1 event" if gap.at_most == 1 else f"{gap.at_most} events"
    return f"positions {gap.first} to {gap.last}, at most {events}"
