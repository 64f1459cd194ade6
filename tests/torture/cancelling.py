"""Everything that can be awaited is cancelled after k turns of the loop: it is wholly there or wholly absent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from eventlog.durable.policy import DeliveryPolicy
from eventlog.durable.worker import Worker
from eventlog.events import NewEvent
from eventlog.host.kv import Kv
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.extensions import Extensions
from tests.extension_kit import TURN, installation
from tests.log_kit import can_be_written
from tests.torture.tally import Tally

TURNS = 61
NEXT_WITHIN_S = 1.0
BATCH = 150  # more than one statement takes


async def cancel_everywhere(tally: Tally, work: Path, count: int | None) -> None:
    """So many cancellations, by the seed: of appends of every kind, of kv, of acks, of the runtime's end, of close."""
    random = Random(tally.seed)
    done = 0
    while done < (count or TURNS):
        path = work / f"{done}.db"
        victim = Victim(path, random, tally)
        done += await victim.live(min(40, (count or TURNS) - done))


class Victim:
    """One log, until it is closed by a close that is cancelled too."""

    def __init__(self, path: Path, random: Random, tally: Tally) -> None:
        self.path = path
        self.random = random
        self.tally = tally
        self.calls = 0
        self.held: asyncio.Event | None = None

    async def live(self, times: int) -> int:
        """Cancel so often; how often it was."""
        self.log = await EventLog(self.path, slice_rows=self.random.choice([20, 1_000])).open()
        self.session = await self.log.start_session("s", project="p")
        self.kv = Kv(self.log.store, "agent")
        installed = await Extensions(self.log.store).install(installation("acme"), ["p"])
        self.worker = Worker(self.log, DeliveryPolicy(backoff_first_s=0.001, backoff_max_s=0.001), self.random)
        self.worker.serve(installed.key, "acme", {TURN: self._handle})
        remove = self.log.on_recorded(lambda _: self.worker.wake())
        await self.worker.start()
        for _ in range(times - 1):
            await self._cancel_one(self.random.choice(KINDS))
        await asyncio.wait_for(self.worker.idle(), 20)
        remove()
        await self._cancel_the_end()
        return times

    async def _handle(self, event: Any, context: Any) -> None:
        self.calls += 1
        await asyncio.sleep(0)

    async def _cancel_one(self, kind: Callable[[Victim, int], Awaitable[object]]) -> None:
        turns, number = self.random.randrange(TURNS), self.random.randrange(1_000_000)
        before = self.session.next_index
        task = asyncio.ensure_future(kind(self, number))
        others = [
            asyncio.ensure_future(self.session.append("own.other", {})) for _ in range(self.random.choice([0, 3]))
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = task.cancel()
        self.tally.tried[f"{kind.__name__} cancelled" if was_cancelled else f"{kind.__name__} was through"] += 1
        await asyncio.wait([task])
        around = {event.index for event in await asyncio.gather(*others)}
        stored = [event async for event in self.session.read(after=before - 1) if event.index not in around]
        size = SIZES.get(kind.__name__, 0)
        if len(stored) not in ((0, size) if was_cancelled and task.cancelled() else (size,)):
            self._breach(f"{kind.__name__} cancelled after {turns} turns left {len(stored)} events of {size}")
        await self._next_append(f"{kind.__name__} cancelled after {turns} turns", before + len(stored) + len(around))

    async def _next_append(self, what: str, index: int) -> None:
        async with asyncio.timeout(NEXT_WITHIN_S):
            event = await self.session.append("own.next", {})
        if event.index != index:
            self._breach(f"{what}: the next append got {event.index} and not {index}")
        if not self.random.randrange(8):
            await asyncio.wait_for(self.worker.idle(), 20)  # else it may be writing at this moment
            inside = await self.log.store.with_writer(lambda connection, _: connection.in_transaction)
            if inside or not can_be_written(self.path):
                self._breach(f"{what}: a transaction is left open")

    async def _cancel_the_end(self) -> None:
        """The worker's stop and the close, each cancelled; the second close always ends it."""
        turns = self.random.randrange(TURNS)
        appends = [asyncio.ensure_future(self.session.append("own.late", {})) for _ in range(20)]
        for end in (self.worker.stop(0.01), self.log.close()):
            task = asyncio.ensure_future(end)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        self.tally.tried["close cancelled"] += 1
        async with asyncio.timeout(NEXT_WITHIN_S * 5):
            await self.log.close()
        if pending := sum(not each.done() for each in appends):
            self._breach(f"close cancelled after {turns} turns: {pending} appends are not settled")
        acknowledged = {each.result().index for each in appends if each.done() and not each.exception()}
        async with EventLog(self.path) as log:
            report = await log.check()
            indexes = [event.index async for event in (await log.session("s")).read()]
            if not report.ok or indexes != list(range(len(indexes))) or not acknowledged <= set(indexes):
                self._breach(f"close cancelled after {turns} turns: {report}")

    def _breach(self, what: str) -> None:
        self.tally.breach(f"seed {self.tally.seed}: {what}")


async def append(victim: Victim, number: int) -> object:
    """One event."""
    return await victim.session.append("own.type", {"n": number})


async def append_by_id(victim: Victim, number: int) -> object:
    """One event by the session's id."""
    return await victim.log.append("s", "own.type", {"n": number})


async def append_with_key(victim: Victim, number: int) -> object:
    """One event with a key."""
    return await victim.session.append("own.type", {"n": number}, key=f"k{number}")


async def append_batch(victim: Victim, number: int) -> object:
    """A batch that takes two statements."""
    return await victim.session.append_many([NewEvent("own.type", {"n": number})] * BATCH)


async def append_new_type(victim: Victim, number: int) -> object:
    """An event whose type the file does not know."""
    return await victim.session.append(f"own.new-{number}", {})


async def append_turn(victim: Victim, number: int) -> object:
    """An event that is owed to the extension."""
    return await victim.session.append("turn.completed", {}, turn_id=f"t{number}")


async def start_session(victim: Victim, number: int) -> Session:
    """A session, which has no event in ours."""
    return await victim.log.start_session(f"new-{number}-{victim.random.random()}")


async def put(victim: Victim, number: int) -> None:
    """A value."""
    await victim.kv.put(f"k{number}", number)


async def ack(victim: Victim, number: int) -> object:
    """A turn of the worker, which begins and settles deliveries."""
    return await victim.worker.run_once()


async def absorb(victim: Victim, number: int) -> None:
    """Everything into the session index."""
    await victim.log.store.absorb()


async def read(victim: Victim, number: int) -> object:
    """A few pages."""
    return [event async for event in victim.log.read(limit=100)]


KINDS = (
    append, append_by_id, append_with_key, append_batch, append_new_type, append_turn, start_session, put, ack, absorb,
    read,
)  # fmt: skip
SIZES = {
    "append": 1, "append_by_id": 1, "append_with_key": 1, "append_batch": BATCH, "append_new_type": 1, "append_turn": 1,
}  # fmt: skip
