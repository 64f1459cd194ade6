"""`host.reminders`: what one session is to be reminded of, and when (R114)."""

from __future__ import annotations

import builtins
import math
from asyncio import Lock
from datetime import datetime
from hashlib import blake2b
from secrets import token_hex
from typing import Any

from eventlog.clock import format_time, from_datetime, to_datetime
from eventlog.errors import InvalidEvent, KeyConflict, LimitExceeded, shown
from eventlog.events import ReminderCancelled
from eventlog.host.limits import ReminderLimits
from eventlog.host.protocols import Reminder
from eventlog.log import EventLog
from eventlog.store.reminders import KeptReminders


class SessionReminders:
    """The reminders of one session. A time is kept in the log's file, so that no restart forgets it.

    At its time a reminder is recorded as `reminder.due`, once: hooks and channels are shown that event like any other.
    What was due while no runtime was up is recorded when one starts.
    """

    __slots__ = ("__weakref__", "_creating", "_kept", "_limits", "_log", "_session_id")

    def __init__(self, log: EventLog, session_id: str, limits: ReminderLimits) -> None:
        self._log = log
        self._kept = KeptReminders(log.store)
        self._session_id = session_id
        self._limits = limits
        self._creating = Lock()  # counted one after the other, or two could take the last place

    async def create(self, text: str, *, at: datetime | None = None, after_s: float | None = None) -> Reminder:
        """Record `reminder.created`, due `at` an aware datetime or `after_s` seconds from now; a past time is due now.

        Raises InvalidEvent for a bad text or time, LimitExceeded for a text over 4,000 characters and over 100
        reminders that wait (see `ReminderLimits`), and as `EventLog.append` does.
        """
        due_at = format_time(self._due_at_us(at, after_s))
        created = {"reminderId": f"r_{token_hex(8)}", "at": due_at, "text": self._checked(text)}
        async with self._creating:
            count = await self._kept.count(self._session_id)
            if count >= self._limits.per_session:
                raise LimitExceeded("reminders that wait in one session", self._limits.per_session, count + 1)
            event = await self._log.append(self._session_id, "reminder.created", created)
        return Reminder(event.data.reminder_id, event.data.text, event.data.at)

    async def list(self) -> builtins.list[Reminder]:
        """Those that wait, the next one first."""
        waiting = await self._kept.of_session(self._session_id)
        return [Reminder(each.id, each.text, to_datetime(each.due_at_us)) for each in waiting]

    async def cancel(self, id: str) -> bool:
        """Record `reminder.cancelled`: it will never be due. False when none of that id waits (any more)."""
        if all(each.id != id for each in await self._kept.of_session(self._session_id)):
            return False
        try:
            await self._log.append(self._session_id, "reminder.cancelled", ReminderCancelled(id), key=end_key(id))
        except KeyConflict:  # it became due meanwhile
            return False
        return True

    def _due_at_us(self, at: Any, after_s: Any) -> int:
        if (at is None) == (after_s is None):
            raise InvalidEvent("at", "give either at=, a datetime with a time zone, or after_s=, seconds from now")
        if at is not None:
            if not isinstance(at, datetime) or at.utcoffset() is None:
                raise InvalidEvent("at", f"{shown(at)} is no datetime with a time zone, as datetime.now(UTC) is")
            return from_datetime(at)
        if isinstance(after_s, bool) or not isinstance(after_s, int | float) or not 0 <= after_s < math.inf:
            raise InvalidEvent("after_s", f"{shown(after_s)} is no finite number of seconds from 0 on")
        return self._log.clock.now_us() + round(after_s * 1_000_000)

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str) or not text:
            raise InvalidEvent("text", "say what to be reminded of, in a text that is not empty")
        if len(text) > self._limits.text_characters:
            raise LimitExceeded("characters of a reminder's text", self._limits.text_characters, len(text))
        return text


def end_key(reminder_id: str) -> str:
    """The key of the event that ends a reminder, whichever it is: of `reminder.due` and `reminder.cancelled` only one
    can be recorded. It is a digest, because an id may be longer than a key."""
    return f"reminder.ended:{blake2b(reminder_id.encode(), digest_size=16).hexdigest()}"
