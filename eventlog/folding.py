"""Folds a session into a state, from the newest snapshot; and the limits of everything that folds."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, fields
from inspect import iscoroutinefunction
from typing import Any, TypeAlias, TypeVar

from eventlog.encoding import check_id, encode_value
from eventlog.errors import InvalidName
from eventlog.events import Event, decode_json
from eventlog.store.projections import readable
from eventlog.store.snapshots import Fold, Snapshot, keep, newest
from eventlog.store.store import Store

S = TypeVar("S")

Reducer: TypeAlias = Callable[[S, Event[Any]], S]
"""Takes a state and the next event, and returns the state after it; plain JSON, and a plain function."""

logger = logging.getLogger("eventlog.projections")

MAX_VERSION = 2**63 - 1


def _limit(default: float, least: float, means: str) -> Any:
    return field(default=default, metadata={"least": least, "means": means})


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """How much is folded at once, how large a state may be, and how often it is written down.

    The fields' metadata says what each `means`, and the `least` that it can be. Raises InvalidName for less.
    """

    page_events: int = _limit(500, 1, "events folded by a projection before its state is committed")
    page_positions: int = _limit(20_000, 1, "positions of the log that are looked through for these")
    state_bytes: int = _limit(1_048_576, 1, "bytes of a state's JSON: a projection is stuck at it, a fold not kept")
    snapshot_every_events: int = _limit(500, 1, "events of a session folded since its last snapshot for a new one")
    rest_s: float = _limit(1.0, 0, "seconds for more to come before projections are brought up to date")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata["least"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise InvalidName(f"FoldLimits {each.name}", value, f"give a number from {least:g} on")


def check_fold(kind: str, function: object, version: object) -> None:
    """Raise InvalidName unless it can be called, at once, and its version be kept."""
    if not callable(function) or iscoroutinefunction(function):
        raise InvalidName(kind, function, "must be a plain function of a state and an event")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= MAX_VERSION:
        raise InvalidName("version", version, f"must be a whole number from 1 to {MAX_VERSION}")


def name_of(reducer: Callable[..., Any]) -> str | None:
    """A reducer's name if it stands for one function alone: that of a lambda or of an inner function does not."""
    module, name = getattr(reducer, "__module__", None), getattr(reducer, "__qualname__", "<")
    return None if module is None or "<" in name else f"{module}.{name}"


@dataclass(frozen=True, slots=True)
class SessionFold:
    """One fold of one session of an opened file."""

    store: Store
    limits: FoldLimits
    session_id: str
    session_key: int

    async def run(
        self,
        read: Callable[[int | None], AsyncIterator[Event[Any]]],
        reducer: Reducer[S],
        initial: S,
        version: int,
        name: str | None,
    ) -> S:
        """The state after all events that `read(after_index)` gives; see `Session.fold`."""
        check_fold("reducer", reducer, version)
        name = check_id("reducer", name) if name is not None else name_of(reducer)
        begun = encode_value(initial, "initial")
        fold = None if name is None else Fold(self.session_key, name, version, begun)
        removals = self.store.events.removals
        found = None if fold is None else await self.store.read(newest, fold)
        index = -1 if found is None else found.index
        state: S = decode_json(begun if found is None else found.state)
        last = index
        async for event in read(None if index < 0 else index):
            last = event.index
            good, corrupt = readable([event])
            for each in good:
                state = reducer(state, each)
            for passed in corrupt:
                logger.error("a fold of session %s passed an event: %s", self.session_id, passed.why)
        raw = encode_value(state, "state")
        if fold is not None and last - index >= self.limits.snapshot_every_events and not self.store.read_only:
            await self._keep(fold, Snapshot(last, raw), removals)
        result: S = decode_json(raw)
        return result

    async def _keep(self, fold: Fold, snapshot: Snapshot, removals: int) -> None:
        size, limit = len(snapshot.state), self.limits.state_bytes
        if size > limit:
            why = "no snapshot of %s in session %s: its state is %d bytes, over the limit of %d; it is folded whole"
            logger.warning(why, fold.reducer, self.session_id, size, limit)
            return
        await self.store.with_writer(keep, fold, snapshot, removals)
