"""Shows recorded events to channel handlers and hooks: each at most once, in the order of its session.

The relay (see `relay`) shows an event as soon as it is recorded. A handler that waits makes its session a lane: later
events of that session queue up there, and all other sessions go on. Nothing is written for an event: the cursors of
the hooks follow now and then, and what lies between them and the head becomes a gap if the process dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextvars import copy_context
from typing import Any

from eventlog.errors import ForkedProcess, LogClosed
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.logs import harmless_logger
from eventlog.observe.channel import ChannelDefinition
from eventlog.observe.failures import Failures, rendered
from eventlog.observe.hook import HookDefinition
from eventlog.observe.inbox import Inbox
from eventlog.observe.lanes import Lane, Lanes
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.relay import FRESH_CONTEXT, InContexts, is_cancelled_from_outside, new_task, runs_in
from eventlog.observe.roster import Roster, RunningHook
from eventlog.observe.routes import Call, ContextMaker
from eventlog.observe.strangers import Strangers
from eventlog.observe.threads import PlainThreads
from eventlog.store.cursors import Cursors

__all__ = ["Dispatcher", "ObserveLimits", "RunningHook"]

EVENTS_PER_LOOK = 16
"""Between two looks at the clock."""

log = harmless_logger("eventlog.observe")


class Dispatcher:
    """Shows the events of one agent's sessions, and of sessions without an agent, to its channels and hooks."""

    def __init__(
        self,
        event_log: EventLog,
        *,
        agent: str,
        hook_context: ContextMaker,
        channel_context: ContextMaker,
        limits: ObserveLimits | None = None,
    ) -> None:
        self._limits = limits = limits or ObserveLimits()
        self._log = event_log
        self._clock = clock = event_log.clock
        self._threads = PlainThreads(clock, limits.plain_threads, limits.max_plain_threads, limits.stuck_after_s)
        self._failures = Failures(clock)
        self._cursors = Cursors(event_log.store, agent)
        self._roster = Roster(
            agent,
            self._cursors,
            self._threads,
            self._failures,
            hook_context=hook_context,
            channel_context=channel_context,
            stranger=Strangers(agent, event_log.agents_served).note,
        )
        self._routes = self._roster.routes
        self._inbox = Inbox(self._cursors, clock, limits.queue_events, self._fed)
        self._lanes = Lanes(event_log, self._cursors, limits)
        self._blank = copy_context()  # every call runs in a copy of its own
        self._relay: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] | None = None
        self._joining = asyncio.Lock()
        self._unsubscribe: Callable[[], None] | None = None
        self._cut = False

    # -- who is served ------------------------------------------------------------------------------------------

    def add_hook(self, name: str, definition: HookDefinition, source: str = "") -> None:
        """Add a hook behind those that are there; raises InvalidName for a name that is taken.

        Once started, the hook joins in the background, and is shown what is recorded from then on.
        """
        self._roster.add_hook(name, definition, source)
        if self._unsubscribe is not None:
            self._spawn(self._join())

    async def joined(self) -> None:
        """Return when every hook that was added is shown what is recorded from then on."""
        await self._join()

    async def remove_hooks(self, names: Collection[str]) -> None:
        """Call these hooks no more, from now on; what they were not shown, or did not finish, becomes gaps."""
        async with self._joining:
            place, seen = self._inbox.place, self._inbox.seen
            await self._roster.remove(names, self._lanes.by_session, place=place, seen=seen)
            self._inbox.claimants = self._roster.claimants
        self._tell()

    def add_channel(self, definition: ChannelDefinition) -> None:
        """Add a channel, to be shown what is recorded from now on; raises InvalidName for an id that is taken."""
        self._roster.add_channel(definition, self._inbox.seen)

    @property
    def hooks(self) -> list[RunningHook]:
        """A row for each hook, in the order in which they are called."""
        return self._roster.rows(self._inbox.seen - self._finished)

    @property
    def gaps_found(self) -> int:
        """How many gaps earlier owners left, as was found when hooks joined."""
        return self._roster.gaps_found

    # -- from start to stop -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Commit where each hook begins, then show what is recorded. What was recorded before becomes gaps."""
        self._inbox.seen = self._log.head
        for channel in self._routes.channels.values():
            channel.start = self._inbox.seen
        self._unsubscribe = self._log.on_recorded(self.recorded)
        try:
            await self._join(alone=True)
        except BaseException:
            self._unsubscribe()
            self._unsubscribe = None
            raise
        self._start_keeping()

    async def stop(self, drain_s: float | None = None) -> None:
        """Show what waits, for at most `drain_s`; what then is left becomes exact gaps. Again: nothing."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is None:
            return
        try:
            if self._log.is_open:
                await self.settled(self._limits.drain_s if drain_s is None else drain_s)
        finally:
            unsubscribe()
            await self._cut_off()
            self._threads.close()
            await self._roster.save(self._finished)
            await self._roster.leave(self._lanes.by_session, place=self._inbox.place, seen=self._inbox.seen)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was recorded was shown, to every hook that was added."""
        joined = not self._roster.newcomers and not self._joining.locked()
        return joined and self._is_quiet and self._inbox.is_empty

    @property
    def _is_quiet(self) -> bool:
        return not self._lanes.by_session and not self._inbox.ready

    async def settled(self, within_s: float) -> bool:
        """Wait until everything that was recorded was shown, for at most `within_s`; whether it was."""
        return await self._until(lambda: self.is_settled, within_s)

    async def _until(self, reached: Callable[[], bool], within_s: float) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(within_s))
        try:
            while not reached() and not timer.done():
                if self._changed is None:
                    self._changed = asyncio.get_running_loop().create_future()
                await asyncio.wait([self._changed, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return reached()

    async def _join(self, *, alone: bool = False) -> None:
        """Let newcomers join. `alone`: hooks that are not among them are not served any more."""
        async with self._joining:
            newcomers, self._roster.newcomers = self._roster.newcomers, []
            if not newcomers and not alone:
                return
            try:
                await self._inbox.hold()  # so that nothing is shown which a newcomer would miss
                # What one that resumes has to catch up with is shown anew: nothing may be underway then.
                resumes = any(hook.on_restart == "resume" for hook in newcomers)
                quiet = resumes and await self._until(lambda: self._is_quiet, self._limits.drain_s)
                again = await self._roster.join(newcomers, resume=quiet, alone=alone, place=self._inbox.place)
                if again is not None:
                    self._inbox.rewind(again)
                self._inbox.claimants = self._roster.claimants
            except BaseException:
                self._roster.newcomers[:0] = newcomers
                raise
            finally:
                self._inbox.release()

    async def _cut_off(self) -> None:
        """Call nothing any more: cancel what is underway, and give it a moment to end."""
        self._cut = True
        feeder = self._inbox.close()
        underway = {*self._tasks, *([feeder] if feeder else [])} - {asyncio.current_task()}
        for task in underway:
            task.cancel()
        timer = asyncio.ensure_future(self._clock.sleep(self._limits.cancel_s))
        while underway and not timer.done():
            ended, _ = await asyncio.wait({*underway, timer}, return_when=asyncio.FIRST_COMPLETED)
            underway -= ended
        timer.cancel()

    # -- the relay ----------------------------------------------------------------------------------------------

    def recorded(self, events: list[Event[Any]]) -> None:
        """Take what the log has recorded, in order. Neither raises nor blocks."""
        self._inbox.put(events)
        self._wake()

    async def dispatch_once(self) -> None:
        """Show some of the events that wait.

        When a handler waits, a new task shows the others; this one stays with its session until that has caught up.
        """
        await self._run(Lane(), self._relay_on)

    def _wake(self) -> None:
        self._inbox.taken()
        if self._relay is None and self._inbox.ready and not self._cut:
            self._relay = new_task(self.dispatch_once())
            self._tend(self._relay)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tend(new_task(work))

    def _tend(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task is self._relay:
            self._relay = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, KeyboardInterrupt):
            self._replace(task)
        elif error is not None and not isinstance(error, LogClosed):
            log.error("observe hooks: %s", rendered(error), exc_info=error)
        self._fed()

    def _replace(self, task: asyncio.Task[None]) -> None:
        """Let another task go on with what somebody has cancelled or interrupted."""
        if self._cut:
            return
        if task is self._keeper:
            self._start_keeping()
        for lane in list(self._lanes.by_session.values()):
            if lane.task is task:
                lane.task = new_task(self._run(lane, self._follow))  # noted here: it may never come to its first step
                self._tend(lane.task)
        if self._roster.newcomers:
            self._spawn(self._join())

    def _fed(self) -> None:
        self._wake()
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    async def _run(self, lane: Lane, work: Callable[[Lane], Coroutine[Any, Any, None]]) -> None:
        lane.task = asyncio.current_task()
        await InContexts(self._blank, work(lane), lambda: self._hold(lane))

    def _hold(self, lane: Lane) -> None:
        """A handler waits: from now on it holds up its session, and nobody else."""
        lane.waits(self._clock.monotonic_s())
        if not lane.held:
            self._lanes.hold(lane)
            self._relay = None
            self._wake()

    async def _relay_on(self, lane: Lane) -> None:
        for event in self._take():
            lane.event, lane.calls = event, None
            try:
                await self._show(lane)
            except LogClosed:  # before its runtime was stopped: the event keeps its place, and cursors stay before it
                self._lanes.hold(lane)
                raise
            if lane.held:
                await self._catch_up(lane)
                return

    async def _follow(self, lane: Lane) -> None:
        await self._show(lane)
        await self._catch_up(lane)

    async def _catch_up(self, lane: Lane) -> None:
        """Show what waits in a lane, until its session needs none."""
        while not self._cut and await self._lanes.advance(lane, self._routes.types):
            await self._show(lane)

    def _take(self) -> Iterator[Event[Any]]:
        """Events that can be shown, until the batch is full or its time is over; those of other lanes wait there."""
        ready, lanes, types = self._inbox.ready, self._lanes, self._routes.types
        held, most, monotonic_s = lanes.by_session, self._limits.batch_events, self._clock.monotonic_s
        until_s = monotonic_s() + self._limits.batch_s
        for taken in range(1, most + 1):
            if not ready or self._cut or (taken % EVENTS_PER_LOOK == 0 and monotonic_s() > until_s):
                return
            event = ready.popleft()
            if types is not None and event.type not in types:
                continue
            if event.session_id in held:
                lanes.put(event)
            else:
                yield event

    async def _show(self, lane: Lane) -> None:
        """Call the handlers of an event, one after the other.

        A context is the state at the call. Nothing changes while nobody waits, so calls that do not wait share one.
        """
        event = lane.event
        info = self._log.info_of(event.session_id) or await self._lanes.info(lane)
        if info is None:  # the session is gone, and its events with it
            lane.calls = ()
            return
        calls = lane.calls
        if calls is None:
            calls = lane.calls = self._routes.calls(info, event)
        blank, make_context, context = self._blank, None, None
        lane.waited = False
        for call in calls:
            lane.call = call
            try:
                if call.make_context is not make_context:
                    context = call.make_context(info, event.turn_id)
                    make_context = call.make_context
                call.count += 1
                await call.handler(event, context)
            except BaseException as error:
                self._threw(lane, call, error)
            if lane.waited:
                if self._cut:
                    lane.drop_call()
                    return
                lane.goes_on()
                info, make_context = self._log.info_of(event.session_id) or info, None
            try:
                has_changed = copy_context() != blank
            except Exception:  # of a value that somebody has set
                has_changed = True
            if has_changed:
                await FRESH_CONTEXT
        lane.calls, lane.call = (), None

    def _threw(self, lane: Lane, call: Call, error: BaseException) -> None:
        """Note what a handler threw. Raises it if it must pass: what is left of the lane is then another task's, see
        `_replace`."""
        if not runs_in(lane.task):
            raise error  # nobody runs this any more, its coroutine is closed
        from_outside = isinstance(error, asyncio.CancelledError) and is_cancelled_from_outside()
        if from_outside and self._cut:
            raise error  # the call stays unfinished
        passes = from_outside or isinstance(error, KeyboardInterrupt)
        if not isinstance(error, KeyboardInterrupt):
            self._failures.note(call.subscriber, lane.event, error)
        if passes:
            lane.drop_call()
            self._lanes.hold(lane)
            raise error

    # -- now and then -------------------------------------------------------------------------------------------

    @property
    def _finished(self) -> int:
        """Up to here every handler is through."""
        return min(self._lanes.places, default=self._inbox.place)

    def _start_keeping(self) -> None:
        self._keeper = new_task(self._keep())
        self._tend(self._keeper)

    async def _keep(self) -> None:
        """Write the cursors down now and then, and look for handlers that do not return."""
        while True:
            await self._clock.sleep(self._limits.cursor_every_s)
            self._watch()
            try:
                await self._roster.save(self._finished)
            except (LogClosed, ForkedProcess):
                return
            except Exception as error:
                log.warning("the cursors of observe hooks were not written, and it is tried again: %s", error)

    def _watch(self) -> None:
        """Report calls that do not return, each once, and replace the threads that they hold."""
        since_s = self._clock.monotonic_s() - self._limits.stuck_after_s
        for session_id, lane in self._lanes.by_session.items():
            if lane.call is not None and not lane.reported and lane.since_s <= since_s:
                lane.reported = True
                stuck = lane.call.subscriber
                stuck.stuck += 1
                log.error(
                    '%s "%s" handler for %s has not returned for %g s; session %r waits for it',
                    stuck.kind,
                    stuck.name,
                    lane.event.type,
                    self._limits.stuck_after_s,
                    session_id,
                )
        self._threads.relieve()
