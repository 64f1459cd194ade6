"""What turns used: brought up to date, then read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from eventlog.errors import InvalidName
from eventlog.folding import FoldLimits
from eventlog.store import usage
from eventlog.store.projections import keys_of, page, rows
from eventlog.store.store import Store
from eventlog.store.usage import By, Usage

__all__ = ["By", "Progress", "Usage", "catch_up", "fold_anew", "read_usage"]

Progress: TypeAlias = Callable[[int, int | None], None]
"""Takes the position up to which was folded, and the last one."""

_BY: tuple[By, ...] = ("session", "agent", "model", "day")


async def read_usage(
    store: Store, limits: FoldLimits, by: By, project: str | None = None, purpose: str | None = None
) -> list[Usage]:
    """The sums of every turn that is committed now; see `EventLog.usage`."""
    if by not in _BY:
        raise InvalidName("by", by, f"is one of {', '.join(_BY)}")
    if not store.read_only:
        await catch_up(store, limits)
    return await store.read(usage.summed, store.reading, by, project, purpose)


async def catch_up(store: Store, limits: FoldLimits) -> None:
    """Fold all completed turns that are behind, page by page."""
    serving = [row for row in await store.read(rows, usage.NAME) if row.serves]
    if not serving:
        await store.write(usage.prepare)
    elif serving[0].version != usage.DEFINITION.version:
        await fold_anew(store, limits)
    for key in await store.read(keys_of, usage.NAME, usage.DEFINITION.version):
        await _fold(store, limits, key, None)


async def fold_anew(store: Store, limits: FoldLimits, progress: Progress | None = None) -> tuple[int, int]:
    """Fold all completed turns into new rows and let these serve: (rows that are different, events passed)."""
    key = await store.write(usage.begin_anew)
    passed = await _fold(store, limits, key, progress)
    return await store.write(usage.finish, key, store.clock.now_us()), passed


async def _fold(store: Store, limits: FoldLimits, key: int, progress: Progress | None) -> int:
    passed, is_last = 0, False
    while not is_last:
        found = await store.read(page, store.reading, key, limits.page_events, limits.page_positions)
        if found is None:
            break
        is_last = found.is_last
        tally = usage.tally_of(found)
        if found.upto > found.row.cursor and await store.write(usage.commit, found, tally, store.clock.now_us()):
            passed += len(tally.passed)
        if progress is not None:
            progress(found.upto, store.events.position)
    return passed
