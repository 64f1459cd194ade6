"""What the tests of durable hooks share: a log on a clock that stands still, an extension, a handler with a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from eventlog.durable import DeliveryPolicy, HookCallContext
from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.worker import Worker
from eventlog.errors import SessionExists
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.store.buried import DeadLetter
from eventlog.store.deliveries import Deliveries, Delivery
from eventlog.store.extensions import Extensions, Installation, InstalledExtension
from eventlog.testing import ManualClock

TURN = "conversation.turn.completed"
JOB = "background.job.completed"
BOTH = {"turn.completed": "on_turn", "job.completed": "on_job"}
DAY_S = 86_400

Act = Callable[[Any, HookCallContext], Awaitable[None] | None]


def installation(name: str, handlers: Mapping[str, str] = BOTH, **changes: str) -> Installation:
    """What an extension in the folder `name` says of itself."""
    asks = [{"capability": each, "scope": "project"} for each in ("conversations.turns.read", "jobs.read")]
    fields = {
        "id": f"test.{name}",
        "version": "1.0.0",
        "path": f"/{name}",
        "manifest": json.dumps({"permissions": asks}),
    }
    return Installation(name=name, handlers=handlers, **{**fields, **changes})


class Recorder:
    """A handler that notes its calls, and does to each what its script says: raise, wait, return."""

    def __init__(self, *script: BaseException | Act | None, always: BaseException | Act | None = None) -> None:
        self.events: list[Any] = []
        self.contexts: list[HookCallContext] = []
        self.started = asyncio.Event()
        self._script = list(script)
        self._always = always

    async def __call__(self, event: Any, context: HookCallContext) -> None:
        self.events.append(event)
        self.contexts.append(context)
        self.started.set()
        act = self._script.pop(0) if self._script else self._always
        if isinstance(act, BaseException):
            raise act
        if act is not None and (result := act(event, context)) is not None:
            await result

    @property
    def turns(self) -> list[str]:
        """The turns of the calls, in the order of the calls."""
        return [event.turn_id for event in self.events]


async def hang(event: Any, context: HookCallContext) -> None:
    """Wait for ever, or until cancelled."""
    await asyncio.Event().wait()


class Bench:
    """A log with a worker that is running."""

    def __init__(self, log: EventLog, clock: Any, policy: DeliveryPolicy) -> None:
        self.log = log
        self.clock = clock
        self.letters: list[DeadLetter] = []
        self.worker = Worker(log, policy, Random(7), on_dead_letter=self.letters.append)
        self.extensions = Extensions(log.store)
        self.deliveries = Deliveries(log.store)
        self.dead_letters = DeadLetters(log, self.worker.wake)

    async def install(self, name: str = "acme", handler: Any = None, **handlers: Any) -> InstalledExtension:
        """Install an extension for project "p" and serve it: one handler for both types, or `turn` and `job`."""
        installed = await self.extensions.install(installation(name), ["p"])
        self.worker.serve(installed.key, name, {TURN: handler, JOB: handler} if handler else _by_type(handlers))
        return installed

    async def turn(self, session_id: str, turn_id: str, project: str = "p") -> Event[Any]:
        """Complete a turn of a session, which is started if need be."""
        return await complete_turn(self.log, session_id, turn_id, project)

    async def live(self) -> list[Delivery]:
        """What is in the queue."""
        return await self.deliveries.live()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and wait until nothing is running or due any more."""
        self.clock.advance(seconds)
        await self.worker.idle()


def _by_type(handlers: Mapping[str, Any]) -> dict[str, Any]:
    return {{"turn": TURN, "job": JOB}[kind]: handler for kind, handler in handlers.items()}


async def complete_turn(log: EventLog, session_id: str, turn_id: str, project: str = "p") -> Event[Any]:
    """Complete a turn of a session, which is started if need be."""
    await start(log, session_id, project)
    return await log.append(session_id, "turn.completed", {}, turn_id=turn_id)


async def start(log: EventLog, session_id: str, project: str = "p") -> None:
    """Start a session, unless that was done, by this owner or one before."""
    with suppress(SessionExists):
        if log.info_of(session_id) is None:
            await log.start_session(session_id, project=project)


@asynccontextmanager
async def bench(
    path: Path, clock: Any = None, *, start: bool = True, dies: bool = False, **policy: Any
) -> AsyncIterator[Bench]:
    """Open a log with a worker. At the end the worker stops in order, or `dies`: what is in flight stays so."""
    clock = clock or ManualClock()
    async with EventLog(path / "agent.db", clock=clock) as log:
        it = Bench(log, clock, DeliveryPolicy(**policy))
        remove = log.on_recorded(lambda events: it.worker.recorded(events[-1].position))
        if start:
            await it.worker.start()
        yield it
        remove()
        if dies:
            await end_all_other_tasks()
        else:
            await it.worker.stop(grace_s=0.05)


async def end_all_other_tasks() -> None:
    """Do to the loop what the end of its process does, so far as a test can."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
