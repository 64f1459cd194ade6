"""The signal that tells a handler to stop, and the hand that gives it."""

from __future__ import annotations

import asyncio
import contextlib

from eventlog.errors import EventLogError


class Aborted(EventLogError):
    """A handler asked `throw_if_aborted` after its call was aborted for `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the call was aborted ({reason}); stop and return")


class Signal:
    """Tells one call whether it should still go on; any thread may poll it.

    It aborts at most once, with one reason: `timeout`, `stopped`, `disabled`, `uninstalled` or `revoked`.
    """

    __slots__ = ("_reason", "_waiters")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def aborted(self) -> bool:
        """Whether the call should stop."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why it should stop; `None` while it should not."""
        return self._reason

    def throw_if_aborted(self) -> None:
        """Raise `Aborted` if the call should stop, else do nothing."""
        if self._reason is not None:
            raise Aborted(self._reason)

    async def wait(self) -> str:
        """Return the reason as soon as the call is aborted; works on any running loop."""
        waiter = asyncio.get_running_loop().create_future()
        # First join the waiters, then look: an abort from another thread does it the other way round.
        self._waiters.append(waiter)
        try:
            if self._reason is None:
                await waiter
        finally:
            self._waiters.remove(waiter)
        assert self._reason is not None
        return self._reason


class AbortController:
    """Holds the one `Signal` of a call, and the right to abort it."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = Signal()

    def abort(self, reason: str) -> None:
        """Abort the signal; a second abort changes nothing, so the first reason stands."""
        signal = self.signal
        if signal._reason is not None:
            return
        signal._reason = reason
        for waiter in tuple(signal._waiters):
            # A waiter whose loop has ended needs no waking.
            with contextlib.suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
