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

    async def get(self, key: str, default: Any = ...) -> Any: ...

    async def put(self, key: str, value: Any) -> None: ...

    async def delete(self, key: str) -> Any: ...

    async def list(self, prefix: str = ...) -> list[str]: ...


class Files(Protocol):
    """Durable text and bytes under relative paths (R109, R110)."""

    async def read(self, path: str, *, scope: FileScope = ...) -> str: ...

    async def read_bytes(self, path: str, *, scope: FileScope = ...) -> bytes: ...

    async def write(self, path: str, content: str | bytes, *, scope: FileScope = ...) -> None: ...

    async def delete(self, path: str, *, scope: FileScope = ...) -> Any: ...

    async def list(self, prefix: str = ..., *, scope: FileScope = ...) -> list[str]: ...


class Reminder(msgspec.Struct, frozen=True):
    """What a session is to be reminded of, and when; `at` is an aware datetime in UTC."""

    id: str
    text: str
    at: datetime


class Reminders(Protocol):
    """What one session is to be reminded of (R114)."""

    async def create(self, text: str, *, at: datetime | None = ..., after_s: float | None = ...) -> Reminder: ...

    async def list(self) -> list[Reminder]: ...

    async def cancel(self, id: str) -> Any: ...
