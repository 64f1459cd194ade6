"""A handler with a business: it notes its calls, and its effects by the event's id, in a SQLite file of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from eventlog.durable import HookCallContext

_TABLES = """
    PRAGMA synchronous = OFF; -- what is written survives the process, which is what is killed here
    CREATE TABLE IF NOT EXISTS call (
        call             INTEGER PRIMARY KEY,
        event_id         TEXT NOT NULL,
        request_id       TEXT NOT NULL UNIQUE,
        conversation_id  TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS effect (event_id TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class Noted(NamedTuple):
    """A call, as the handler noted it before it did anything else."""

    event_id: str
    request_id: str
    conversation_id: str


class Ledger:
    """The file of one handler's business."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "ledger.db", isolation_level=None)
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        self._connection.close()

    def note_call(self, event: Any, context: HookCallContext) -> None:
        row = (event.event_id, context.request_id, event.conversation_id)
        self._connection.execute("INSERT INTO call (event_id, request_id, conversation_id) VALUES (?, ?, ?)", row)

    def do_business(self, event: Any) -> None:
        """The effect, made idempotent as R39 asks for it."""
        self._connection.execute("INSERT OR IGNORE INTO effect VALUES (?)", (event.event_id,))

    @property
    def calls(self) -> list[Noted]:
        """Every call that was ever made, in order."""
        sql = "SELECT event_id, request_id, conversation_id FROM call ORDER BY call"
        return [Noted(*row) for row in self._connection.execute(sql)]

    @property
    def effects(self) -> list[str]:
        """The ids of the events that had their effect."""
        return [event_id for (event_id,) in self._connection.execute("SELECT event_id FROM effect")]


# ------------------------------------------------------------------------------------------- what a handler can do

Step: TypeAlias = Callable[[Ledger, Any], Awaitable[None]]


class Clerk:
    """A handler that notes its call and then takes the next step of its script, or works when there is none left."""

    def __init__(self, ledger: Ledger, script: Sequence[Step] = (), always: Step | None = None) -> None:
        self.ledger = ledger
        self.signals: list[str | None] = []
        """Why each call was aborted, None where it was not; in the order in which they ended."""
        self._script = list(script)
        self._always = always or work

    async def __call__(self, event: Any, context: HookCallContext) -> None:
        self.ledger.note_call(event, context)
        step = self._script.pop(0) if self._script else self._always
        try:
            await step(self.ledger, event)
        finally:
            self.signals.append(context.signal.reason)


async def work(ledger: Ledger, event: Any) -> None:
    """Do the business, and return: the ACK."""
    ledger.do_business(event)


async def fail(ledger: Ledger, event: Any) -> None:
    """Raise before the effect."""
    raise ConnectionError("the bank is closed")


async def work_and_fail(ledger: Ledger, event: Any) -> None:
    """Raise after the effect."""
    ledger.do_business(event)
    raise ConnectionError("the receipt could not be sent")


async def hang(ledger: Ledger, event: Any) -> None:
    """Never return."""
    await asyncio.Event().wait()


async def work_and_hang(ledger: Ledger, event: Any) -> None:
    """Do the business, and never return."""
    ledger.do_business(event)
    await asyncio.Event().wait()


async def die(ledger: Ledger, event: Any) -> None:
    """End the process as nothing can prevent it, before the effect."""
    os.kill(os.getpid(), signal.SIGKILL)


async def work_and_die(ledger: Ledger, event: Any) -> None:
    """End the process between the effect and the return."""
    ledger.do_business(event)
    os.kill(os.getpid(), signal.SIGKILL)
