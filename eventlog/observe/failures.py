"""What handlers threw: logged at once, and kept until it is stored for `eventlog logs`."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from eventlog.clock import Clock
from eventlog.errors import escaped
from eventlog.events import Event
from eventlog.logs import harmless_logger
from eventlog.observe.routes import Subscriber
from eventlog.store.cursors import KEPT_ERRORS, Thrown

MAX_CHARACTERS = 4_096

log = harmless_logger("eventlog.observe")


class Failures:
    """The errors that are not stored yet, the newest ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thrown: deque[Thrown] = deque(maxlen=KEPT_ERRORS)

    def note(self, subscriber: Subscriber, event: Event[Any], error: BaseException) -> None:
        """Keep an error, and log it in the form that operators search for (R58, R155)."""
        subscriber.errors += 1
        message = threw(subscriber.kind, subscriber.name, event, error)
        name = subscriber.name if subscriber.kind == "hook" else f"{subscriber.kind}:{subscriber.name}"
        self._thrown.append(Thrown(name, event.position, message, self._clock.now_us()))
        with suppress(Exception):  # a filter of the server's that raises does not cost the next hook its call
            log.error("%s", message, exc_info=error)

    def take(self) -> list[Thrown]:
        """Hand over what is kept."""
        taken = list(self._thrown)
        self._thrown.clear()
        return taken

    def give_back(self, thrown: list[Thrown]) -> None:
        """They could not be stored; they go before those that came since, as far as there is room."""
        self._thrown.extendleft(
            reversed(thrown[-(KEPT_ERRORS - len(self._thrown)) :] if len(self._thrown) < KEPT_ERRORS else [])
        )


def threw(kind: str, name: str, event: Event[Any], error: BaseException) -> str:
    """The form that operators search for (R155)."""
    return f'{kind} "{name}" handler for {event.type} threw: {rendered(error)}'


def rendered(error: BaseException) -> str:
    """The type of an error and its text, whatever that text does; as something that can be stored."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException as worse:  # it is the handler's own class, so its text may raise anything
        text = f"<its text cannot be rendered: {type(worse).__name__}>"
    shown = f"{kind}: {text}" if text else kind
    return escaped(shown[:MAX_CHARACTERS])
