"""The owner's memory of each session: where it stands, and which of its events the index has not absorbed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventlog.events import Event, SessionInfo


class Tail:
    """The unabsorbed events of one session: positions, gapless from the index `first` on.

    It only grows; when the index has absorbed its beginning, a new one takes its place, so that the loop may read it
    while the writer's thread works.
    """

    __slots__ = ("first", "positions")

    def __init__(self, first: int, positions: list[int]) -> None:
        self.first = first
        self.positions = positions


class Head:
    """One session in the owner's memory: where it stands, and which of its events the index has not absorbed."""

    __slots__ = (
        "__weakref__",
        "id",
        "info",
        "key",
        "next_index",
        "tail",
        "updated_at_us",
        "waiters",
    )

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.key: int | None = None  # the session's integer key; None until its start is committed
        self.next_index = 0
        self.tail = Tail(0, [])
        self.info: SessionInfo | None = None
        self.updated_at_us = 0
        self.waiters: set[asyncio.Future[list[Event[Any]]]] = set()

    def retire(self) -> None:
        """The file was closed: whoever still holds this must not go on from it."""
        self.key = None

    def tail_copy(self) -> list[tuple[int, int]]:
        """(index, position) of each unabsorbed event; a copy that the writer's thread cannot change."""
        tail = self.tail
        return list(enumerate(tail.positions[:], tail.first))
