"""Which events a command shows: the filters that `show`, `tail` and their like share."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from eventlog import Event
from eventlog.cli.quantities import age_us
from eventlog.errors import InvalidEvent
from eventlog.events import VOCABULARY, parse_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Since:
    """A moment in microseconds since 1970, or how long before now it is."""

    at_us: int | None = None
    age_us: int = 0

    def moment_us(self, now_us: int) -> int:
        """The moment, seen from now."""
        return now_us - self.age_us if self.at_us is None else self.at_us


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for. Reads select by `types` and `after` themselves; `wants` is for the rest, and for tails."""

    types: tuple[str, ...] | None
    after: int | None
    turn: str | None = None
    since: Since | None = None

    def wants(self, event: Event[Any], now_us: int) -> bool:
        """Whether the event is of a type, a turn and a time that were asked for."""
        if self.types is not None and event.type not in self.types:
            return False
        if self.turn is not None and event.turn_id != self.turn:
            return False
        return self.since is None or event.at_us >= self.since.moment_us(now_us)

    def hint(self) -> str | None:
        """What may be wrong when nothing was found: a type that is not in the vocabulary."""
        for name in self.types or ():
            near = difflib.get_close_matches(name, VOCABULARY, 1)
            if name not in VOCABULARY and near:
                return f"no event of type {name!r}; did you mean {near[0]!r}?"
        return None


def selection_options(command: Callable[..., T]) -> Callable[..., T]:
    """`--type`, `--after` and `--since`; the command gets a `selection`, without a turn."""

    @functools.wraps(command)
    def selecting(*args: Any, types: tuple[str, ...], after: int | None, since: Since | None, **kwargs: Any) -> T:
        return command(*args, selection=Selection(types or None, after, None, since), **kwargs)

    for option in (_since, _after, _type):
        selecting = option(selecting)
    return selecting


def _read_since(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Since | None:
    if text is None:
        return None
    age = age_us(text)
    if age is not None:
        return Since(age_us=age)
    try:
        return Since(at_us=parse_time(f"{text}T00:00:00Z" if len(text) == len("2026-01-31") else text))
    except InvalidEvent:
        raise click.BadParameter(
            f"{text!r} is neither an age such as 90s, 15min, 2h, 7d nor a time such as 2026-01-31T23:59:59Z"
        ) from None


_type = click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only events of this type; may be repeated."
)
_after = click.option(
    "--after", type=int, metavar="N", help="Only what comes after this index (of the whole log: position)."
)
_since = click.option(
    "--since", callback=_read_since, metavar="TIME", help="Only what was recorded since then: 15min, 2h, 7d, or a time."
)
