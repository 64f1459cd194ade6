"""Which events a page takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eventlog.encoding import check_id
from eventlog.errors import CursorExpired, InvalidName

MAX_POSITION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which events a page takes: exclusive bounds, types, direction and length.

    A reader that has a cursor says which floor it has `seen`; it is told when a higher one passes its cursor.
    """

    after: int | None = None
    before: int | None = None
    types: tuple[str, ...] | None = None
    limit: int = 1_000
    reverse: bool = False
    seen_floor: int | None = None

    @property
    def low(self) -> int:
        """The exclusive lower bound, within what SQLite can hold."""
        return -1 if self.after is None else max(-1, min(self.after, MAX_POSITION))

    @property
    def high(self) -> int:
        """The exclusive upper bound, within what SQLite can hold."""
        return MAX_POSITION if self.before is None else max(-1, min(self.before, MAX_POSITION))

    def check(self, floor: int) -> None:
        """Raise CursorExpired when what the reader is owed may have been pruned."""
        if self.seen_floor is not None and floor > max(self.seen_floor, self.low + 1):
            raise CursorExpired(floor)


def wanted(types: Iterable[str] | None) -> tuple[str, ...] | None:
    """The event types that a reader asked for; raises InvalidName when it is one name and not a list of them."""
    if isinstance(types, str):
        raise InvalidName("types", types, "is one name; give a list of event types")
    return None if types is None else tuple(check_id("event type", name) for name in types)
