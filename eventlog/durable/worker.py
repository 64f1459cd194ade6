"""Delivers what extensions are owed: due deliveries -> attempt (committed) -> call -> verdict -> settled."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from random import Random
from typing import Any

from eventlog.durable.call import Call, TimedOut, came_to, cut_text
from eventlog.durable.envelope import DURABLE_TYPE_OF, LOG_TYPE_OF, DurableEventType, HookEnvelope, envelope_of
from eventlog.durable.extension import BoundCallback
from eventlog.durable.loading import describe
from eventlog.durable.policy import DeliveryPolicy, judge
from eventlog.durable.threads import Threads
from eventlog.errors import BrokenInvariant, LogClosed, OwnershipLost, escaped, shown
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.store.attempts import Attempt, CutShort, Ended, Failed, Want
from eventlog.store.buried import DeadLetter
from eventlog.store.deliveries import Asked, Deliveries, DeliveryGap, Limits, Ride, TakenUp, Turn
from eventlog.store.drafting import Append

STUCK_AFTER_S = 5.0  # how long a call that was cut short may take to clean up before it is reported
STOP_GRACE_S = 5.0
CANCEL_GRACE_S = 1.0
PAUSE_AFTER_FAULT_S = 1.0
EVERY_TYPE = tuple(LOG_TYPE_OF.values())

logger = logging.getLogger("eventlog.durable")


@dataclass(slots=True)
class Served:
    """An active extension: its handlers by durable type, as they are registered at the moment."""

    name: str
    handlers: Mapping[str, BoundCallback]
    careful: bool = True  # calls that were cut short by a crash may wait, and go first, one at a time

    def types(self) -> tuple[str, ...]:
        """The log's event types that it has handlers for."""
        return tuple(LOG_TYPE_OF[DurableEventType(durable)] for durable in self.handlers)


class Worker:
    """Serves the active extensions of one runtime.

    An attempt is committed before its call, and no handler is ever called inside a transaction. A call keeps its
    lane (one session of one extension) and one of the extension's places until it has really ended.
    """

    def __init__(
        self,
        log: EventLog,
        policy: DeliveryPolicy,
        random: Random,
        *,
        plain_threads: int = 32,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
    ) -> None:
        self._log = log
        self._clock = log.store.clock
        self._policy = policy
        self._limits = Limits(policy.attempts, policy.retention_s, policy.keep_dead_s, policy.capacity)
        self._random = random
        self._threads = Threads(plain_threads)
        self._on_dead_letter = on_dead_letter
        self._deliveries = Deliveries(log.store)
        self._served: dict[int, Served] = {}
        self._calls: set[Call] = set()
        self._ended: list[Ended] = []
        self._time_limits: dict[Call, float] = {}  # in their order, because each call has the same time
        self._reports: dict[Call, float] = {}  # when a call that was cut short is reported, in order too
        self._one_turn = asyncio.Lock()
        self._ride: Ride | None = None  # a turn that is taken in the commit of what was appended
        self._stop_riding: Callable[[], None] = lambda: None
        self._has_orphans = False  # the file may hold attempts of ours that have no call
        self._next_at_us = 0
        self._looked_to = 0  # a turn began what was recorded up to here, as far as it can be begun
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at_s = 0.0
        self._woken = asyncio.Event()
        self._quiet = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._callbacks: set[asyncio.Task[None]] = set()

    # -- what the runtime does ----------------------------------------------------------------------------------

    def serve(self, extension: int, name: str, handlers: Mapping[str, BoundCallback]) -> None:
        """Call an extension's handlers from now on; `handlers` maps durable types and is looked at in every turn."""
        self._served[extension] = Served(name, handlers)
        self._has_orphans = True  # of a worker before this one, whose last commit failed
        self.wake()

    async def withdraw(self, extension: int, reason: str, grace_s: float = STOP_GRACE_S) -> None:
        """Serve an extension no more: its calls get the signal, `grace_s` to return in, and are then cancelled.

        What was cleared needs no grace: a return of it would settle nothing.
        """
        self._served.pop(extension, None)
        calls = [call for call in self._calls if call.attempt.extension == extension and not call.is_settled]
        await self._end_calls(calls, reason, grace_s)
        self.wake()

    def abort(self, extension: int, reason: str, project: str | None = None, types: Sequence[str] = EVERY_TYPE) -> None:
        """Cut short the calls of an extension, or of one project and certain types of it, that were cleared."""
        for call in tuple(self._calls):
            attempt = call.attempt
            if attempt.extension == extension and project in (None, attempt.project) and attempt.type in types:
                call.cut(reason)

    async def start(self) -> TakenUp:
        """Make due again what a dead owner left in flight, and begin to serve."""
        taken_up = await self._deliveries.take_up(self._limits)
        self._report(taken_up.letters, [])
        self._stop_riding = self._log.store.ride(self._offer)
        self._loop_task = asyncio.create_task(self._serve(), name="eventlog-durable")
        return taken_up

    def recorded(self, position: int) -> None:
        """Look at the queue soon, because a durable event was recorded, unless the commit of it did."""
        if position > self._looked_to:
            self.wake()

    def wake(self) -> None:
        """Look at the queue soon: a call ended, an operator changed something."""
        self._quiet.clear()
        self._woken.set()

    async def idle(self) -> None:
        """Return when a look at the queue that began after this call found nothing running and nothing due."""
        self.wake()
        if self._loop_task is not None and not self._loop_task.done():
            await self._quiet.wait()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Begin no more calls, and end those that run: signal, `grace_s` to return in, cancellation.

        A call that returns meanwhile is an ACK; any other is due again at once and does not count as an attempt.
        """
        self._is_stopping = True
        self._stop_riding()
        self.wake()
        if self._loop_task is not None:
            await asyncio.wait({self._loop_task})
        await self._end_calls(list(self._calls), "shutdown", grace_s)
        self._has_orphans = True
        try:
            await self.run_once()
        except Exception as error:  # the next owner will find the rest in flight
            logger.warning("deliveries in flight could not be handed back: %s", describe(error))
        if self._callbacks:
            await asyncio.wait(self._callbacks, timeout=grace_s)

    @property
    def running(self) -> int:
        """Calls that have not ended, stuck ones included."""
        return len(self._calls)

    @property
    def stuck(self) -> int:
        """Calls that were cut short and have not ended; each keeps its lane and its place."""
        return sum(call.is_stuck for call in self._calls)

    # -- the loop -----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while not self._is_stopping:
                self._woken.clear()
                await self._run_once_whatever_happens()
                self._set_alarm()
                await self._woken.wait()
        except LogClosed:
            logger.warning("the log was closed before its deliveries were stopped")
        except (BrokenInvariant, OwnershipLost) as error:
            logger.critical("nothing is delivered any more: %s", error)
        finally:
            self._quiet.set()
            if self._alarm is not None:
                self._alarm.cancel()

    async def _run_once_whatever_happens(self) -> None:
        try:
            await self.run_once()
        except (LogClosed, BrokenInvariant, OwnershipLost):
            raise
        except Exception:
            logger.exception("deliveries wait: the queue could not be read or written")
            self._next_at_us = self._clock.now_us() + round(PAUSE_AFTER_FAULT_S * 1_000_000)
        else:
            self._be_quiet_if_idle()

    async def run_once(self) -> Turn:
        """Settle what has ended and begin what is due, in one commit; then start the calls."""
        async with self._one_turn:
            if self._ride is not None:
                await self._ride.over
            self._end_overdue()
            asked = self._ask()
            try:
                turn = await self._deliveries.turn(asked)
            except BaseException:
                self._take_back(asked)
                raise
            self._took(turn)
            return turn

    def _ask(self) -> Asked:
        ended, self._ended = self._ended, []
        held, self._has_orphans = self._held(), False
        return Asked(ended, self._wants(), self._limits, held)

    def _take_back(self, asked: Asked) -> None:
        """Of a turn whose outcome is not known: the next one finds what it may have begun."""
        self._ended[:0] = asked.ended
        self._has_orphans = True

    def _took(self, turn: Turn) -> None:
        self._next_at_us = turn.next_at_us
        for extension in turn.at_ease:
            if (served := self._served.get(extension)) is not None:
                served.careful = False
        for attempt, event in turn.begun:
            self._begin(attempt, event)
        self._report(turn.letters, turn.gaps)

    def _offer(self, group: Sequence[Append]) -> Ride | None:
        """A turn in the commit of what is appended, where that is owed and nobody else works the queue."""
        if not any(item.type in DURABLE_TYPE_OF for append in group for item in append.items):
            return None
        is_busy = self._ride is not None or self._one_turn.locked() or self._is_stopping
        if is_busy or self._has_orphans or not self._deliveries.may_ride:
            return None
        if not any(want.free > 0 for want in self._wants()):
            return None
        self._quiet.clear()
        self._ride = Ride(self._deliveries, self._ask(), self._rode)
        return self._ride

    def _rode(self, ride: Ride) -> None:
        self._ride = None
        if ride.turn is None:
            self._take_back(ride.asked)
            self.wake()
        else:
            self._looked_to = ride.position
            self._took(ride.turn)
            self._set_alarm()
        ride.over.set_result(None)

    def _wants(self) -> list[Want]:
        calls: dict[int, list[Call]] = {}
        for call in self._calls:
            calls.setdefault(call.attempt.extension, []).append(call)
        return [self._want(extension, served, calls.get(extension, [])) for extension, served in self._served.items()]

    def _want(self, extension: int, served: Served, calls: Sequence[Call]) -> Want:
        must_wait = self._is_stopping or (served.careful and any(not call.is_settled for call in calls))
        free = 0 if must_wait else self._policy.concurrency - len(calls)
        lanes = tuple(call.attempt.session for call in calls)
        return Want(extension, served.types(), free, lanes, served.careful)

    def _held(self) -> list[str] | None:
        if not self._has_orphans:
            return None
        return [call.attempt.request_id for call in self._calls if not call.is_settled]

    def _set_alarm(self) -> None:
        """Look at the queue when the next thing is due, unless it is looked at earlier: an early look costs little."""
        at_s = self._clock.monotonic_s() + self._seconds_to_wait()
        if self._alarm is not None and not self._alarm.done():
            if self._alarm_at_s <= at_s:
                return
            self._alarm.cancel()
        self._alarm_at_s = at_s
        self._alarm = asyncio.create_task(self._ring_at(at_s), name="eventlog-durable-alarm")

    def _seconds_to_wait(self) -> float:
        waits = [(self._next_at_us - self._clock.now_us()) / 1_000_000]
        for deadlines in (self._time_limits, self._reports):
            waits += [at_s - self._clock.monotonic_s() for at_s in islice(deadlines.values(), 1)]
        return max(0.0, min(waits))

    async def _ring_at(self, at_s: float) -> None:
        await self._clock.sleep(max(0.0, at_s - self._clock.monotonic_s()))
        self._woken.set()

    def _be_quiet_if_idle(self) -> None:
        is_busy = self._ended or any(not call.is_stuck for call in self._calls)
        if not is_busy and not self._woken.is_set():
            self._quiet.set()

    # -- calls --------------------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt, event: Event[Any] | None) -> None:
        served = self._served.get(attempt.extension)
        handler = None if served is None else served.handlers.get(DURABLE_TYPE_OF[attempt.type])
        if handler is None or self._is_stopping:  # it stopped while the attempt was committed
            self._end(CutShort(attempt))
            return
        try:
            envelope = _envelope(attempt, event)
        except Exception as error:  # one bad entry must not stop the others (H8)
            self._end(Failed(attempt, None, cut_text(describe(error)), reason="undecodable"))
            return
        call = Call(attempt, handler)
        self._calls.add(call)
        if not call.is_plain:
            self._start_time(call)
        call.task = asyncio.create_task(self._run(call, envelope), name=f"eventlog-durable-{attempt.request_id}")
        call.task.add_done_callback(_take_interrupt)

    async def _run(self, call: Call, envelope: HookEnvelope) -> None:
        try:
            error = await call.make(envelope, self._threads, on_start=self._start_time)
        finally:
            self._calls.discard(call)
            self._time_limits.pop(call, None)
            self._reports.pop(call, None)
        if call.is_settled:
            self.wake()
        elif call.cut_reason is not None and error is not None:
            self._end(CutShort(call.attempt))
        else:
            self._end(self._judged(call.attempt, error))

    def _end(self, ended: Ended) -> None:
        self._ended.append(ended)
        self.wake()

    def _judged(self, attempt: Attempt, error: BaseException | None) -> Ended:
        verdict = judge(attempt.round_number, error, self._policy, self._random)
        if error is not None:
            self._say_that_it_failed(attempt, error)
        return came_to(attempt, error, verdict, self._clock.now_us())

    def _say_that_it_failed(self, attempt: Attempt, error: BaseException) -> None:
        """In a line; the traceback is kept with the attempt, for whoever looks at the delivery."""
        served = self._served.get(attempt.extension)
        name, why = attempt.extension if served is None else served.name, escaped(describe(error))
        logger.warning(
            'extension "%s" call %d for position %d failed (see `eventlog deliveries`): %s',
            *(name, attempt.number, attempt.position, why),
        )

    def _start_time(self, call: Call) -> None:
        self._time_limits[call] = self._clock.monotonic_s() + self._policy.timeout_s
        if len(self._time_limits) == 1:
            self._set_alarm()

    def _end_overdue(self) -> None:
        """Cut short what has had its time (R33), and report what did not end even so."""
        now_s = self._clock.monotonic_s()
        for call in _taken_until(now_s, self._reports):
            self._report_stuck(call)
        for call in _taken_until(now_s, self._time_limits):
            self._reports[call] = now_s + STUCK_AFTER_S
            if not call.is_settled:
                call.cut("timeout")
                call.is_settled = True
                self._end(self._judged(call.attempt, TimedOut(self._policy.timeout_s)))

    async def _end_calls(self, calls: Sequence[Call], reason: str, grace_s: float) -> None:
        """Signal, wait, cancel, wait. It is real time that is waited: a clock that stands still must not keep us."""
        for call in calls:
            call.abort(reason)
        if grace_s:
            await _ended_within(calls, grace_s)
        for call in calls:
            call.cut(reason)
        await _ended_within(calls, CANCEL_GRACE_S)
        for call in calls:
            if call in self._calls and not call.is_settled:
                call.is_settled = True
                self._end(CutShort(call.attempt))

    # -- what people hear of ------------------------------------------------------------------------------------

    def _report(self, letters: Sequence[DeadLetter], gaps: Sequence[DeliveryGap]) -> None:
        for letter in letters:
            logger.error(
                'dead letter: extension "%s", event %s of session %s is %s after %d %s (see `eventlog dead`): %s',
                *(letter.extension, letter.event_id, letter.session_id, letter.reason, letter.attempts),
                "attempt" if letter.attempts == 1 else "attempts",
                shown(letter.last_error),
            )
            callback = asyncio.create_task(self._tell(letter), name="eventlog-durable-dead-letter")
            self._callbacks.add(callback)
            callback.add_done_callback(self._callbacks.discard)
        for gap in gaps:
            logger.error(
                'extension "%s" is refused events of project %s from position %d on: its queue is full',
                *(gap.extension, gap.project, gap.first),
            )

    async def _tell(self, letter: DeadLetter) -> None:
        try:
            result = None if self._on_dead_letter is None else self._on_dead_letter(letter)
            if inspect.isawaitable(result):
                await result
        except (Exception, SystemExit, GeneratorExit):
            logger.exception("on_dead_letter raised")

    def _report_stuck(self, call: Call) -> None:
        call.mark_stuck()
        served = self._served.get(call.attempt.extension)
        logger.error(
            'extension "%s" has a handler that does not end, called with the event at position %d: it keeps its lane'
            " and one of %d places until it does",
            *(
                call.attempt.extension if served is None else served.name,
                call.attempt.position,
                self._policy.concurrency,
            ),
        )
        self.wake()


def _envelope(attempt: Attempt, event: Event[Any] | None) -> HookEnvelope:
    if event is None:
        raise LookupError("the event cannot be read")
    _ = event.data  # raises CorruptEvent: nobody may act on a damaged event, even if its references can be read
    return envelope_of(event, project_id=attempt.project, version=attempt.version)


def _taken_until(now_s: float, deadlines: dict[Call, float]) -> list[Call]:
    """Take out the calls whose time has come."""
    due = list(takewhile(lambda call: deadlines[call] <= now_s, deadlines))
    for call in due:
        del deadlines[call]
    return due


async def _ended_within(calls: Sequence[Call], seconds: float) -> None:
    tasks = [call.task for call in calls if call.task is not None and not call.task.done()]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def _take_interrupt(task: asyncio.Task[None]) -> None:
    """Ask for the KeyboardInterrupt that has left the loop by itself: else the task complains that nobody did."""
    if not task.cancelled():
        task.exception()
