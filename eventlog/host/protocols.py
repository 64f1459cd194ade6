"""The shapes of what handlers are handed, so that a test's stand-in is as good as the real thing."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from eventlog.events import Event

FileScope: TypeAlias = Literal["session", "deployment"]
"""Whose files: this session's own, or those that all sessions of the agent share."""


class Append(Protocol):
    """Records one event; `EventLog.append` is one."""

    async def __call__(
        self, session_id: str, type: str, data: Any = ..., *, turn_id: str | None = ...
    ) -> Event[Any]: ...  # fmt: skip


class KeyValue(Protocol):
    """Durable JSON under text keys (R105)."""

    async def get(self, key: str, default: Any = ...) -> Any:
        """The value under a key, or `default` when there is none."""
        ...

    async def put(self, key: str, value: Any) -> None:
        """Set the value under a key, at most 1 MiB of JSON; it is committed when this returns."""
        ...

    async def delete(self, key: str) -> Any:
        """Remove a key; whether it was there."""
        ...

    async def list(self, prefix: str = ...) -> list[str]:
        """The keys that begin with `prefix`, sorted."""
        ...


class Files(Protocol):
    """Durable text and bytes under relative paths (R109, R110)."""

    async def read(self, path: str, *, scope: FileScope = ...) -> str:
        """The text of a file; raises FileNotFoundError, and InvalidName when it is no UTF-8."""
        ...

    async def read_bytes(self, path: str, *, scope: FileScope = ...) -> bytes:
        """The content of a file; raises FileNotFoundError."""
        ...

    async def write(self, path: str, content: str | bytes, *, scope: FileScope = ...) -> None:
        """Make a file of at most 8 MiB, or replace it; it is committed when this returns."""
        ...

    async def delete(self, path: str, *, scope: FileScope = ...) -> Any:
        """Remove a file; whether it was there."""
        ...

    async def list(self, prefix: str = ..., *, scope: FileScope = ...) -> list[str]:
        """The paths that begin with `prefix` ("transcript/", say), sorted."""
        ...


class Reminder(msgspec.Struct, frozen=True):
    """What a session is to be reminded of, and when; `at` is an aware datetime in UTC."""

    id: str
    text: str
    at: datetime


class Reminders(Protocol):
    """What one session is to be reminded of (R114)."""

    async def create(self, text: str, *, at: datetime | None = ..., after_s: float | None = ...) -> Reminder:
        """Have a `reminder.due` recorded at that time, or after so many seconds: give one of the two."""
        ...

    async def list(self) -> list[Reminder]:
        """What is pending, the next first."""
        ...

    async def cancel(self, id: str) -> Any:
        """Take a reminder back; whether it was pending."""
        ...
