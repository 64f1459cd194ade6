"""What may be written in an `events` map: a handler for each known type, checked when the map is made."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from eventlog.errors import InvalidName
from eventlog.events import MAX_ID_CHARACTERS, VOCABULARY

EVERY = "*"
"""The key of the handler for every event, of own types too."""

EVENT_KEY = "event key"
HANDLER = "handler"
"""What the InvalidName of a bad map says it is about."""

CheckedHandlers: TypeAlias = Mapping[str, Callable[[Any, Any], Any]]
"""An `events` map as it is kept: read-only, with the very functions that were given (R150).

They are typed for whoever calls them: the dispatcher with the real event and context, a unit test with stubs.
"""


def checked_handlers(events: Mapping[str, Callable[..., Any]]) -> CheckedHandlers:
    """A read-only copy of the map.

    Raises InvalidName for unknown keys, naming the nearest known type (R66), and for what is no handler.
    """
    if not isinstance(events, Mapping):
        raise InvalidName("events", events, 'must map event types to handlers, as in {"turn.completed": on_turn}')
    unknown = [key for key in events if key != EVERY and key not in VOCABULARY]
    if unknown:
        raise InvalidName(EVENT_KEY, unknown[0] if len(unknown) == 1 else unknown, _why_unknown(unknown))
    for key, handler in events.items():
        _check_handler(key, handler)
    return MappingProxyType(dict(events))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`; None where nothing is known."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)), None)


def is_id(value: object) -> bool:
    """Whether it is 1 to 256 printable characters, as every id is."""
    return isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MAX_ID_CHARACTERS


def _why_unknown(keys: list[Any]) -> str:
    known = ", ".join(f'"{nearest(str(key).lower(), VOCABULARY)}"' for key in keys)
    are = "type is" if len(keys) == 1 else "types are"
    return f'unknown; the nearest known {are} {known}. Own types need define_event first, and "*" takes every event'


def _check_handler(key: str, handler: Any) -> None:
    if not callable(handler):
        raise InvalidName(HANDLER, handler, f'"{key}" needs a function of (event, ctx)')
    for function in (handler, getattr(handler, "__call__", None)):  # noqa: B004
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidName(HANDLER, handler, f'"{key}" has a yield in it, so calling it would run nothing of it')
    try:
        inspect.signature(handler, follow_wrapped=False).bind("event", "ctx")
    except ValueError:  # some built-in functions do not tell
        return
    except TypeError as error:
        raise InvalidName(HANDLER, handler, f'"{key}" needs a function of (event, ctx), but: {error}') from None
