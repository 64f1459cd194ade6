"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import asyncio
import threading

_START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


class ManualClock:
    """A clock that moves only by `advance` and `step`; it begins at 2026-01-01 unless told otherwise.

    Both may be called from any thread. Sleepers wake in the order of their due times, each once: one that goes
    to sleep again counts from the new time.
    """

    def __init__(self, start_us: int = _START_US) -> None:
        self._wall_us = start_us
        self._monotonic_us = 0
        self._sleepers: dict[asyncio.Future[None], int] = {}  # and when each is due
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._wall_us

    def monotonic_s(self) -> float:
        """Seconds that were advanced so far."""
        return self._monotonic_us / 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` were advanced; at once, after letting others run, when they are not positive."""
        left_us = round(seconds * 1_000_000)
        if left_us <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        with self._lock:
            self._sleepers[woken] = self._monotonic_us + left_us
        try:
            await woken
        finally:
            with self._lock:
                self._sleepers.pop(woken, None)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and wake whoever is due by then."""
        if seconds < 0:
            raise ValueError("time does not run backwards; step() moves the wall clock alone")
        passed_us = round(seconds * 1_000_000)
        with self._lock:
            self._wall_us += passed_us
            self._monotonic_us += passed_us
            due = [pair for pair in self._sleepers.items() if pair[1] <= self._monotonic_us]
        for sleeper, _ in sorted(due, key=lambda pair: pair[1]):
            if not sleeper.get_loop().is_closed():
                sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back when negative, without any time passing."""
        with self._lock:
            self._wall_us += round(seconds * 1_000_000)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
