"""Opens the log of a command: to look at it, to own it for a moment, or to ask its owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from eventlog import EventLog, NotALog
from eventlog.cli.explain import Code, Stop
from eventlog.control import steer


@asynccontextmanager
async def reading(path: Path, *, accept_loss: bool = False) -> AsyncIterator[EventLog]:
    """The log, read-only; damaged events are noticed. Ends the command when there is none.

    A log that lost its end ends the command too, unless it says what is lost by itself (`accept_loss`).
    """
    _must_exist(path)
    async with EventLog(path, read_only=True, verify_reads=True, accept_loss=accept_loss) as log:
        yield log


async def steered(path: Path, command: str, /, **arguments: Any) -> Any:
    """What the log's owner answers to a command; where there is none, this process is the owner for a moment."""
    must_be_there(path)
    return await steer(path, command, **arguments)


@asynccontextmanager
async def owning(path: Path, *, create: bool = False, accept_loss: bool = False) -> AsyncIterator[EventLog]:
    """The log, with this process as its owner; it has to be there unless `create`."""
    if not create:
        must_be_there(path)
    async with EventLog(path, accept_loss=accept_loss) as log:
        yield log


def must_be_there(path: Path) -> None:
    """End the command when there is no log, or an empty file of which an owner would make one."""
    _must_exist(path)
    _must_not_be_empty(path)


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise Stop(
            Code.NOT_FOUND,
            f"there is no log at {path}; name one with --db or EVENTLOG_DB, or its agent's folder with --dir",
        )


def _must_not_be_empty(path: Path) -> None:
    """An owner would make a log of it."""
    if path.stat().st_size == 0:
        raise NotALog(path, "the file is empty")
