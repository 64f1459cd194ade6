"""The gate: what one transaction may do beyond appending. Owner of the table `gate`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from eventlog.errors import BrokenInvariant

Purpose = Literal["import", "prune", "forget", "rebuild"]


@contextmanager
def gate(connection: sqlite3.Connection, purpose: Purpose) -> Iterator[None]:
    """Let the triggers of the schema pass what this work needs. Whoever rolls the transaction back shuts it, too."""
    if not connection.in_transaction:
        raise BrokenInvariant("the gate was to be opened outside of a transaction")
    connection.execute("INSERT INTO gate VALUES (1, ?)", (purpose,))
    yield
    connection.execute("DELETE FROM gate")
