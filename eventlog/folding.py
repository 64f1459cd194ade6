"""Folds a session into a state, from the newest snapshot; and the limits of everything that folds."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """How much is folded at once, how large a state may be, and how often it is written down."""

    page_events: int = 500
    """Folded by a projection before its state is committed and the loop has its turn."""
    page_positions: int = 20_000
    """Of the log, looked through for these."""
    state_bytes: int = 1_048_576
    """Of a state's JSON. A projection gets stuck at it; of a session's fold there is no snapshot then."""
    snapshot_every_events: int = 500
    """Events of a session that are folded since its last snapshot when a new one is kept."""
    rest_s: float = 1.0
    """Waited for more to come before projections are brought up to date, so that it is done at once."""

    def __post_init__(self) -> None:
        for name in ("page_events", "page_positions", "state_bytes", "snapshot_every_events"):
            if getattr(self, name) < 1:
                raise InvalidName("limit", name, "must be 1 or more")


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
        if version < 1:
            raise InvalidName("version", version, "is 1 or more")
        name = check_id("reducer", name) if name is not None else name_of(reducer)
        begun = encode_value(initial, "initial")
        fold = None if name is None else Fold(self.session_key, name, version, begun)
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
            await self._keep(fold, Snapshot(last, raw))
        result: S = decode_json(raw)
        return result

    async def _keep(self, fold: Fold, snapshot: Snapshot) -> None:
        size, limit = len(snapshot.state), self.limits.state_bytes
        if size > limit:
            why = "no snapshot of %s in session %s: its state is %d bytes, over the limit of %d; it is folded whole"
            logger.warning(why, fold.reducer, self.session_id, size, limit)
            return
        await self.store.write(keep, fold, snapshot)
