"""Time: where it comes from, and how it is written."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from eventlog.errors import InvalidEvent, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


class Clock(Protocol):
    """The only source of time in this library."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` of monotonic time have passed."""
        ...


class AnchoredClock:
    """Another clock's wall time as it was when this one was made, plus its monotonic time since.

    Due times and ages taken from it do not change when the wall clock is stepped. Each owner of a log anchors
    the clock that it is given once, when it opens; the next owner believes the wall clock again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_us = clock.now_us()
        self._start_s = clock.monotonic_s()

    def now_us(self) -> int:
        return self._wall_us + round((self._clock.monotonic_s() - self._start_s) * 1_000_000)

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class SystemClock:
    """The machine's clock: wall time when it was made, plus monotonic time since."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        return (self._offset_ns + time.monotonic_ns()) // 1_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# ------------------------------------------------------------------------------------------------------ written times


def to_datetime(us: int) -> datetime:
    """Microseconds since 1970 UTC as an aware datetime in UTC; raises InvalidEvent outside of the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise InvalidEvent("at", f"{us} microseconds since 1970 is not in the years 1 to 9999") from None


def from_datetime(moment: datetime) -> int:
    """An aware datetime as microseconds since 1970 UTC."""
    return (moment - _EPOCH) // _MICROSECOND


def format_time(us: int) -> str:
    """Microseconds since 1970 UTC as RFC 3339 with `Z`: three digits when whole milliseconds, else six."""
    precision = "microseconds" if us % 1_000 else "milliseconds"
    return f"{to_datetime(us).replace(tzinfo=None).isoformat(timespec=precision)}Z"


def parse_time(text: str) -> int:
    """RFC 3339 with 0 to 6 digits and `Z` or an offset, as microseconds since 1970 UTC; raises InvalidEvent."""
    try:
        matched = _RFC_3339.fullmatch(text)
        us = from_datetime(datetime.fromisoformat(text.upper())) if matched else None
    except (TypeError, ValueError):  # no text, or no day of the calendar
        us = None
    if us is None:
        raise InvalidEvent("at", f"{shown(text)} is not a time such as 2026-01-31T23:59:59.123Z")
    to_datetime(us)
    return us
