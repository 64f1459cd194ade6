"""One call of a durable handler: made on the loop or on a thread, cut short where it must be, and what it came to."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from eventlog.durable.envelope import HookEnvelope
from eventlog.durable.extension import BoundCallback, HookCallContext
from eventlog.durable.loading import describe
from eventlog.durable.policy import Ack, Bury, Outcome, Reject, Retry, RetryAfter
from eventlog.durable.signal import AbortController
from eventlog.durable.threads import Place, Threads
from eventlog.store.attempts import Acked, Attempt, Ended, Failed, FailureKind

MAX_TEXT_BYTES = 8_192
TURNS_BEFORE_CANCEL = 5
"""Turns of the loop between a signal and the cancellation, in which a handler that waits for it can wake and see it."""


class TimedOut(TimeoutError):
    """A handler did not return in time."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the handler did not return within {limit_s:g} s")


class Call:
    """A call, from before its handler is called until it has really ended, which may be after it was settled."""

    def __init__(self, attempt: Attempt, handler: BoundCallback) -> None:
        self.attempt = attempt
        self.task: asyncio.Task[None] | None = None
        self.is_settled = False  # what it came to is known: its end will change nothing
        self.is_stuck = False  # it was cut short long ago and has not ended
        self.is_plain = _is_plain(handler)
        self._handler = handler
        self._controller = AbortController()
        self._place: Place | None = None

    @property
    def cut_reason(self) -> str | None:
        """Why it was cut short; None while it was not."""
        return self._controller.signal.reason

    async def make(
        self, envelope: HookEnvelope, threads: Threads, on_start: Callable[[Call], None]
    ) -> BaseException | None:
        """Call the handler: what it raised, None if it returned. `on_start` tells when a plain function got a thread.

        Passes on KeyboardInterrupt alone. A CancelledError is an end like others, whoever caused it: a handler that
        cancels its own task must not keep its delivery for ever.
        """
        attempt = self.attempt
        context = HookCallContext(self._controller.signal, attempt.project, attempt.request_id)
        try:
            if self.is_plain:
                result = await self._make_on_a_thread(threads, on_start, envelope, context)
            else:
                result = self._handler(envelope, context)
            if inspect.isawaitable(result):
                await result
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and GeneratorExit of a handler are failures like others
            return error
        return None

    async def _make_on_a_thread(self, threads: Threads, on_start: Callable[[Call], None], *args: object) -> Any:
        async with await threads.take_place() as place:
            on_start(self)
            self._place = place
            try:
                return await place.run(self._handler, *args)
            finally:
                self._place = None

    def abort(self, reason: str) -> None:
        """Give the signal; the first reason stands."""
        self._controller.abort(reason)

    def cut(self, reason: str) -> None:
        """Give the signal, and cancel the task a few turns of the loop later."""
        self.abort(reason)
        self._cancel_after(TURNS_BEFORE_CANCEL)

    def cancel(self) -> None:
        """Cancel the task, unless it waits for a thread: that cannot be cancelled, and counts until it ends."""
        if self.task is not None and self._place is None:
            self.task.cancel()

    def mark_stuck(self) -> None:
        """Note that it does not end; a thread that it holds is replaced."""
        self.is_stuck = True
        if self._place is not None:
            self._place.replace()

    def _cancel_after(self, turns: int) -> None:
        if turns == 0:
            self.cancel()
        elif self.task is not None and not self.task.done():
            self.task.get_loop().call_soon(self._cancel_after, turns - 1)


def _is_plain(handler: BoundCallback) -> bool:
    return not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)))  # noqa: B004


# ------------------------------------------------------------------------------------------------ what it came to


def came_to(attempt: Attempt, error: BaseException | None, verdict: Outcome, now_us: int) -> Ended:
    """What the store is to write for a verdict."""
    if error is None or isinstance(verdict, Ack):
        return Acked(attempt)
    trace = cut_text("".join(traceback.format_exception(error)), keep_end=True)
    failed = Failed(attempt, kind_of(error), cut_text(describe(error)), trace)
    match verdict:
        case Retry(delay_s):
            return replace(failed, due_at_us=now_us + round(delay_s * 1_000_000))
        case Bury(reason):
            return replace(failed, reason=reason)


def kind_of(error: BaseException) -> FailureKind:
    """How an attempt failed, as its row says it."""
    match error:
        case TimedOut():
            return "timeout"
        case Reject():
            return "rejected"
        case RetryAfter():
            return "retry-after"
        case _:
            return "failed"


def cut_text(text: str, *, keep_end: bool = False) -> str:
    """At most 8 KiB of a text that may hold anything, in a form that can be stored; the beginning, or the end."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) > MAX_TEXT_BYTES:
        raw = raw[-MAX_TEXT_BYTES:] if keep_end else raw[:MAX_TEXT_BYTES]
    return raw.decode(errors="ignore")
