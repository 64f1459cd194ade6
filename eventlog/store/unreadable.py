"""Reads past pages that SQLite cannot read: each event that was there comes as a corrupt one, and hides no other."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from eventlog.events import Event
from eventlog.store.bounds import Bounds

Page = Callable[[Bounds], list[Event[Any]]]
One = Callable[[int], list[Event[Any]]]
"""What stands at one place: its event, a corrupt one where that cannot be read, or nothing."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite found a page that is not as it was written."""
    return str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def past_damage(
    page: Page, one: One, place: Callable[[Event[Any]], int], bounds: Bounds, last: int
) -> list[Event[Any]]:
    """A page of events, of which some cannot be read; `last` is the last place that may have one.

    What is read at once becomes less near to the damage, and at last a single place is passed.
    """
    events: list[Event[Any]] = []
    at = replace(bounds, after=bounds.low, before=min(bounds.high, last + 1))
    size = bounds.limit
    while len(events) < bounds.limit and at.low + 1 < at.high:
        size = min(size, bounds.limit - len(events))
        try:
            found = page(replace(at, limit=size))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            if size > 1:
                size = max(1, size // 8)
                continue
            passed = at.high - 1 if at.reverse else at.low + 1
            events += one(passed)
        else:
            events += found
            if len(found) < size:
                break
            passed, size = place(found[-1]), 2 * size
        passed = min(passed, at.high - 1) if at.reverse else max(passed, at.low + 1)  # damage may put rows in disorder
        at = replace(at, before=passed) if at.reverse else replace(at, after=passed)
    return events
