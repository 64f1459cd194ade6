"""Counts what handlers measure: counters, histograms and tags, attributed to agent and session."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, Literal, Protocol, TypeAlias, overload

import msgspec

from eventlog.errors import InvalidName, LimitExceeded

TagValue: TypeAlias = str | int | float | bool
Tags: TypeAlias = Mapping[str, TagValue]

MAX_INSTRUMENTS = 1_000
"""Different counters and histograms of one meter; one more is refused."""
MAX_SERIES = 2_000
"""Attributed sums of one instrument; past it the longest unused one goes into a sum without session and tags."""
MAX_SESSION_TAGS = 10_000
"""Tags of sessions that one meter keeps; past it the longest unchanged one goes."""
MAX_TAGS = 32
"""Tags of one measurement."""
MAX_NAME_CHARACTERS = 256

Kind: TypeAlias = Literal["counter", "histogram"]
_Series: TypeAlias = tuple[str | None, tuple[tuple[str, type, TagValue], ...]]  # the type, because 1 == 1.0 == True
_REST: _Series = (None, ())


class Amount(msgspec.Struct):
    """What was measured: how often, and the sum; the extremes are of single measurements."""

    count: int = 0
    total: int | float = 0
    minimum: int | float = math.inf
    maximum: int | float = -math.inf

    def add(self, other: Amount) -> None:
        """Take in what the other one holds."""
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)


class Measurement(msgspec.Struct, frozen=True):
    """One row of a meter; a tag's value is in `tags`.

    `session_id` is None for the sum of what is no longer attributed.
    """

    kind: Literal["counter", "histogram", "tag"]
    name: str
    agent: str
    session_id: str | None
    tags: dict[str, TagValue]
    amount: Amount | None = None


class Export(Protocol):
    """Where measurements go beside the meter; called from any thread, with what the meter has accepted."""

    def measure(self, kind: Kind, name: str, value: int | float, agent: str, session_id: str, tags: Tags) -> None: ...

    def tag(self, name: str, value: TagValue) -> None: ...


class Meter:
    """Everything that the handlers of one agent measured since the start; safe to use from any thread."""

    def __init__(
        self,
        agent: str,
        *,
        max_instruments: int = MAX_INSTRUMENTS,
        max_series: int = MAX_SERIES,
        export: Export | None = None,
    ) -> None:
        self.agent = agent
        self._export = export
        self._max_instruments = max_instruments
        self._max_series = max_series
        self._lock = Lock()
        self._instruments: dict[tuple[Kind, str], dict[_Series, Amount]] = {}
        self._tags: dict[tuple[str, str], TagValue] = {}

    def of(self, session_id: str) -> Otel:
        """What a handler is given: this meter, attributing to that session."""
        return Otel(self, session_id)

    def measure(self, kind: Kind, name: str, value: int | float, session_id: str, tags: Tags | None) -> None:
        """Add one measurement.

        Raises InvalidName for a bad name or tag, LimitExceeded for more names or tags than a meter keeps.
        """
        series: _Series = (session_id, _checked_tags(tags) if tags else ())
        measured = Amount(1, value, value, value)
        with self._lock:
            amounts = self._instruments.get((kind, name))
            if amounts is None:
                amounts = self._new_instrument(kind, name)
            known = amounts.pop(series, None)  # and in again at the end: the first one is the longest unused
            if known is not None:
                measured.add(known)
            amounts[series] = measured
            if len(amounts) > self._max_series:
                _fold_the_longest_unused(amounts)
        if self._export is not None:
            self._export.measure(kind, name, value, self.agent, session_id, tags or {})

    def tag(self, name: str, value: TagValue, session_id: str) -> None:
        """Say something of a session; the last value of a name stands. Raises InvalidName."""
        _checked_tags({name: value})
        with self._lock:
            self._tags.pop((session_id, name), None)
            self._tags[session_id, name] = value
            if len(self._tags) > MAX_SESSION_TAGS:
                del self._tags[next(iter(self._tags))]
        if self._export is not None:
            self._export.tag(name, value)

    def measurements(self) -> list[Measurement]:
        """Return all of it as it is now, a copy."""
        with self._lock:
            return [*self._measured(), *self._tagged()]

    def _new_instrument(self, kind: Kind, name: str) -> dict[_Series, Amount]:
        _check_name(kind, name)
        if len(self._instruments) >= self._max_instruments:
            raise LimitExceeded("names of counters and histograms", self._max_instruments, len(self._instruments) + 1)
        return self._instruments.setdefault((kind, name), {})

    def _measured(self) -> Iterator[Measurement]:
        for (kind, name), amounts in self._instruments.items():
            for (session_id, tags), amount in amounts.items():
                named = {tag: value for tag, _, value in tags}
                yield Measurement(kind, name, self.agent, session_id, named, msgspec.structs.replace(amount))

    def _tagged(self) -> Iterator[Measurement]:
        for (session_id, name), value in self._tags.items():
            yield Measurement("tag", name, self.agent, session_id, {name: value})


class Otel:
    """Counters, histograms and tags of one session (R111); plain functions may use it from their own threads."""

    __slots__ = ("_meter", "_session_id")

    def __init__(self, meter: Meter, session_id: str) -> None:
        self._meter = meter
        self._session_id = session_id

    @overload
    def increment(self, name: str, value: int | float = 1, tags: Tags | None = None) -> None: ...
    @overload
    def increment(self, name: str, value: Tags) -> None: ...
    def increment(self, name: str, value: int | float | Tags = 1, tags: Tags | None = None) -> None:
        """Add to a counter: `increment(name, 3)`, `increment(name, 3, tags)`, or 1 by `increment(name, tags)` (R112).

        Raises InvalidName for a value that is negative or no finite number, and as `Meter.measure` does.
        """
        if isinstance(value, Mapping):
            tags, value = value, 1
        if _checked_number("counter", name, value) < 0:
            raise InvalidName("counter value", value, f'the counter "{name}" only goes up')
        self._meter.measure("counter", name, value, self._session_id, tags)

    def histogram(self, name: str, value: int | float, tags: Tags | None = None) -> None:
        """Add to a histogram. Raises InvalidName for what is no finite number, and as `Meter.measure` does."""
        self._meter.measure("histogram", name, _checked_number("histogram", name, value), self._session_id, tags)

    def tag(self, name: str, value: TagValue) -> None:
        """Say something of this session; the last value of a name stands. Raises InvalidName."""
        self._meter.tag(name, value, self._session_id)


def _fold_the_longest_unused(amounts: dict[_Series, Amount]) -> None:
    """The sums stay exact, only the attribution of the longest unused series goes."""
    rest = amounts.pop(_REST, None) or Amount()
    rest.add(amounts.pop(next(iter(amounts))))
    amounts[_REST] = rest


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidName(f"{what} name", name, f"use 1 to {MAX_NAME_CHARACTERS} printable characters")


def _checked_number(what: str, name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidName(f"{what} value", value, f'"{name}" takes a finite int or float')
    return value


def _checked_tags(tags: Mapping[str, Any]) -> tuple[tuple[str, type, TagValue], ...]:
    if len(tags) > MAX_TAGS:
        raise LimitExceeded("tags of one measurement", MAX_TAGS, len(tags))
    for name, value in tags.items():
        _check_name("tag", name)
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | int | float | bool) or not finite:
            raise InvalidName("tag value", value, f'the tag "{name}" takes text, a finite number or a bool')
    return tuple((name, type(tags[name]), tags[name]) for name in sorted(tags))
