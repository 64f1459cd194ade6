"""Records reminders as due when their time has come, and wakes up for nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from eventlog.errors import ForkedProcess, KeyConflict, LogClosed
from eventlog.events import Event, ReminderDue
from eventlog.host.limits import ReminderLimits
from eventlog.host.reminders import SessionReminders, end_key
from eventlog.log import EventLog
from eventlog.store.reminders import KeptReminders, PendingReminder

PAGE = 100
RETRY_S = 1.0

logger = logging.getLogger("eventlog.reminders")


class Reminding:
    """The reminders of one agent's sessions, and of sessions without an agent: hands them out, and keeps their time.

    Due times follow the log's clock, which a step of the wall clock does not move.
    """

    def __init__(self, log: EventLog, agent: str, limits: ReminderLimits | None = None) -> None:
        self._log = log
        self._clock = log.clock
        self._kept = KeptReminders(log.store)
        self._agent = agent
        self._limits = limits or ReminderLimits()
        self._of_session: WeakValueDictionary[str, SessionReminders] = WeakValueDictionary()
        self._next_at_us: int | None = None
        self._woken = asyncio.Event()
        self._quiet = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def of(self, session_id: str) -> SessionReminders:
        """A session's reminders: one and the same object as long as anybody has it."""
        reminders = self._of_session.get(session_id)
        if reminders is None:
            reminders = self._of_session[session_id] = SessionReminders(self._log, session_id, self._limits)
        return reminders

    # -- from start to stop -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with what became due while nobody looked."""
        self._unsubscribe = self._log.on_recorded(self._recorded)
        self._task = asyncio.create_task(self._keep(), name="eventlog-reminders")

    async def idle(self) -> None:
        """Return when what was due at this call is recorded, or is to be tried again later."""
        self._quiet.clear()
        self._woken.set()
        if self._task is not None and not self._task.done():
            await self._quiet.wait()

    async def stop(self) -> None:
        """Keep no time any more; what becomes due now is found at the next start. Again: nothing."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # -- the loop -----------------------------------------------------------------------------------------------

    def _recorded(self, events: list[Event[Any]]) -> None:
        for event in events:
            if event.type == "reminder.created":  # by whomever
                self._woken.set()
                return

    async def _keep(self) -> None:
        try:
            while True:
                self._woken.clear()
                await self._fire_whatever_happens()
                await self._until_woken()
        except (LogClosed, ForkedProcess):
            logger.warning("the log was closed before its reminders were stopped")
        finally:
            self._quiet.set()

    async def _fire_whatever_happens(self) -> None:
        try:
            left = await self.fire_once()
        except (LogClosed, ForkedProcess):
            raise
        except Exception as error:  # a full disk, say
            logger.warning("reminders wait, and it is tried again in %g s: %s", RETRY_S, error)
            left = 1
        if left:
            self._next_at_us = self._clock.now_us() + round(RETRY_S * 1_000_000)
        if not self._woken.is_set():
            self._quiet.set()

    async def fire_once(self) -> int:
        """Record everything that is due now; returns how many could not be recorded."""
        while True:
            due = await self._kept.due(self._agent, self._clock.now_us(), PAGE)
            recorded = [await self._fire(reminder) for reminder in due.reminders]
            self._next_at_us = due.next_at_us
            if len(recorded) < PAGE or not any(recorded):
                return recorded.count(False)

    async def _fire(self, reminder: PendingReminder) -> bool:
        due = ReminderDue(reminder.id, reminder.text)
        try:
            await self._log.append(reminder.session_id, "reminder.due", due, key=end_key(reminder.id))
        except (LogClosed, ForkedProcess):
            raise
        except KeyConflict:  # it was cancelled since it was read, and waits no more
            return True
        except Exception as error:  # `redact` refuses it, say: the others are due all the same
            logger.warning("a reminder of session %s is due and could not be recorded: %s", reminder.session_id, error)
            return False
        return True

    async def _until_woken(self) -> None:
        alarm = None if self._next_at_us is None else asyncio.create_task(self._ring_at(self._next_at_us))
        try:
            await self._woken.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    async def _ring_at(self, at_us: int) -> None:
        await self._clock.sleep(max(0.0, (at_us - self._clock.now_us()) / 1_000_000))
        self._woken.set()
