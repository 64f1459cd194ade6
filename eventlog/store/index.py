"""The session index: how it absorbs the log in sorted slices, off the path of an append.

Owner of the tables `session_index` and `absorbed`. One step is one autocommit statement on the writer's thread
between two groups, so a slice never holds up appends for long; the frontier moves with a slice's last step. A kill in
the middle leaves rows beyond the frontier, which readers allow for and the next slice finds in place.
"""

import sqlite3
from collections.abc import Iterator
from functools import cache

from eventlog.store.events import Events
from eventlog.store.heads import Head, Tail

SLICE_ROWS = 16_384
WIDTH = 3
STEP_ROWS = 2_048  # a power of two: what is left at the end of a slice is cut into smaller ones


class SessionIndex:
    """Absorbs what `Events` keeps as unabsorbed."""

    def __init__(self, events: Events, slice_rows: int = SLICE_ROWS, step_rows: int = STEP_ROWS) -> None:
        self._events = events
        self._slice_rows = slice_rows
        self._step_rows = step_rows
        self._slice: Iterator[list[int]] | None = None
        self._taken: list[tuple[Head, int]] = []
        self._frontier = 0

    @property
    def due(self) -> bool:
        """Whether a step waits: a slice is under way, or enough rows for one are there."""
        return self._slice is not None or self._events.unabsorbed_rows >= self._slice_rows

    def forget_slice(self) -> None:
        """Drop a slice under way: it is made again, from what is unabsorbed then."""
        self._slice = None

    def step(self, connection: sqlite3.Connection) -> None:
        """Absorb the next part of the slice; begins one when none is under way. After an error it begins again."""
        if self._slice is None:
            self._begin()
        try:
            values = next(self._slice, None) if self._slice is not None else None
            if values:
                connection.execute(_insert_statement(len(values) // WIDTH), values)
                return
            connection.execute("UPDATE absorbed SET position = ?", (self._frontier,))
        except BaseException:
            self.forget_slice()  # or the part that failed would be passed over
            raise
        self._end()

    def absorb_all(self, connection: sqlite3.Connection) -> None:
        """Absorb everything, for an orderly close or for work that wants the whole index."""
        while self._slice is not None or self._events.unabsorbed:
            self.step(connection)

    def _begin(self) -> None:
        self._frontier = self._events.position
        heads = sorted(self._events.unabsorbed.items())
        self._taken = [(head, len(head.tail.positions)) for _, head in heads]
        self._slice = self._parts([(key, head, len(head.tail.positions)) for key, head in heads])

    def _parts(self, heads: list[tuple[int, Head, int]]) -> Iterator[list[int]]:
        """The values of as many rows as one step takes, one after the other."""
        values: list[int] = []
        for key, head, count in heads:
            tail = head.tail
            for index, position in enumerate(tail.positions[:count], tail.first):
                if position:  # 0: the event is missing
                    values += (key, index, position)
            while len(values) >= self._step_rows * WIDTH:
                yield values[: self._step_rows * WIDTH]
                del values[: self._step_rows * WIDTH]
        rows = self._step_rows
        while values:
            rows = min(rows, 1 << (len(values) // WIDTH).bit_length() - 1)
            yield values[: rows * WIDTH]
            del values[: rows * WIDTH]

    def _end(self) -> None:
        for head, count in self._taken:
            head.tail = Tail(head.tail.first + count, head.tail.positions[count:])
            self._events.unabsorbed_rows -= count
            if not head.tail.positions and head.key is not None:
                del self._events.unabsorbed[head.key]
        self._taken, self._slice = [], None


@cache
def _insert_statement(rows: int) -> str:
    # OR REPLACE: a slice that was cut short by a kill is absorbed again; and what the log says now is what counts.
    return f"INSERT OR REPLACE INTO session_index VALUES {','.join(['(?,?,?)'] * rows)}"
