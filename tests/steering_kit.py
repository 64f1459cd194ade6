"""What the tests of operators share: an extension whose handlers the test gives, and a runtime that serves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from eventlog.clock import Clock
from eventlog.control import Steered, ask
from eventlog.durable import DeliveryPolicy
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.runtime import Runtime
from eventlog.store.deliveries import Delivery
from eventlog.testing import ManualClock
from tests.extension_kit import BOTH, JOB, TURN, complete_turn, start

HANDLERS: dict[str, Callable[..., Any]] = {}
"""What an extension made here registers, by the name of its folder: looked up when it is activated."""

MAIN = """
from tests.steering_kit import HANDLERS

def activate(context):
    for handler in {handlers}:
        context.subscriptions.append(context.hooks.register(handler, HANDLERS["{name}"]))
"""


def extension(root: Path, name: str = "acme", handler: Callable[..., Any] | None = None, **changes: Any) -> Path:
    """Write an extension's folder; its handler gets both events."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "publisher": "test",
        "name": name,
        "version": "1.0.0",
        "displayName": name,
        "engines": {"api": "1"},
        "main": "main.py",
        "permissions": [
            {"capability": "conversations.turns.read", "scope": "project"},
            {"capability": "jobs.read", "scope": "project"},
        ],
        "hooks": [{"event": TURN, "handler": "on_turn"}, {"event": JOB, "handler": "on_job"}],
        **changes,
    }
    (folder / "extension.json").write_text(json.dumps(manifest))
    (folder / "main.py").write_text(MAIN.format(name=name, handlers=tuple(BOTH.values())))
    if handler is not None:
        HANDLERS[name] = handler
    return folder


class Served:
    """A log with a runtime, which is steered as an operator steers it: over the control socket."""

    def __init__(self, log: EventLog, runtime: Runtime, clock: Any) -> None:
        self.log = log
        self.runtime = runtime
        self.clock = clock

    async def do(self, command: str, **arguments: Any) -> Steered:
        """Ask for a command about an extension."""
        return msgspec.convert(await ask(self.log.path, f"extensions.{command}", **arguments), Steered)

    async def install(self, folder: Path, *projects: str) -> Steered:
        """Install an extension."""
        return await self.do("install", path=str(folder), grants=projects)

    async def turn(self, session_id: str, turn_id: str, project: str = "p") -> Event[Any]:
        """Complete a turn."""
        return await complete_turn(self.log, session_id, turn_id, project)

    async def job(self, session_id: str, job_id: str, project: str = "p") -> Event[Any]:
        """End a job."""
        await start(self.log, session_id, project)
        return await self.log.append(session_id, "job.completed", {"jobId": job_id, "status": "succeeded"})

    async def live(self, name: str | None = None) -> list[Delivery]:
        """What is pending or being delivered."""
        return list(await self.runtime.extensions.deliveries(name))

    async def rows(self) -> list[tuple[Any, ...]]:
        """Every delivery and dead letter, as the file has it."""
        sql = "SELECT e.name, d.project, d.position, d.state FROM delivery AS d JOIN extension AS e USING (extension)"
        rows = f"{sql} WHERE d.state IS NOT NULL ORDER BY 1, 2, 3"
        return await self.log.store.read(lambda c: c.execute(rows).fetchall())

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and wait until nothing is running or due."""
        self.clock.advance(seconds)
        await self.runtime.settled()


@asynccontextmanager
async def serving(folder: Path, clock: Clock | None = None, **policy: Any) -> AsyncIterator[Served]:
    """A log with a runtime on a clock that stands still."""
    clock = clock or ManualClock()
    async with (
        EventLog(folder / "agent.db", clock=clock) as log,
        Runtime(log, policy=DeliveryPolicy(**policy), seed=7) as runtime,
    ):
        yield Served(log, runtime, clock)
