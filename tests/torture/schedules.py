"""Many schedules of the same few actors on a loop with a seed: appenders, tails, hooks, deliveries, faults, a close.

A schedule ends in one of two ways: everything comes to rest, and then nobody may wait for what is there; or the log is
closed in the middle of it all. Either way what anybody was told has to be what the file says.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from eventlog.durable.policy import DeliveryPolicy
from eventlog.durable.worker import Worker
from eventlog.errors import IndexConflict, LogClosed, StorageFull
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.hook import HookDefinition, OnRestart
from eventlog.observe.limits import ObserveLimits
from eventlog.session import Session
from eventlog.store.extensions import Extensions
from eventlog.store.hook_lists import GapRow, hook_gaps
from tests.extension_kit import TURN, installation
from tests.observing import dispatcher_of, hook_of
from tests.torture import seeded
from tests.torture.tally import Tally

SESSIONS = 3
HOOKS: tuple[OnRestart, ...] = ("skip", "resume")
ROUNDS_PER_LOG = 8  # schedules; the last one ends with a close in the middle
REAL_PATIENCE_S = 60.0
PATIENCE_S = 1_000.0  # of virtual time: whoever waits so long waits for ever
NEVER = -1
GONE = "gone-"  # how sessions are called that are forgotten
POLICY = DeliveryPolicy(backoff_first_s=0.01, backoff_max_s=0.05, timeout_s=5.0)
LIMITS = ObserveLimits(cursor_every_s=0.01, queue_events=8, lane_events=4, lanes_events=6, page_events=3, drain_s=0.1)


def explore(tally: Tally, work: Path, count: int, *, threads: bool = False) -> None:
    """So many schedules, one seed after the other; a breach names its seed, which brings it back alone.

    With `threads` they are the machine's: real ones, which change at every step of the interpreter that they can.
    """
    logging.getLogger("eventlog").addHandler(logging.NullHandler())
    work.mkdir(parents=True, exist_ok=True)
    template = work / "template.db"
    asyncio.run(_make_template(template))
    seed = tally.seed
    while tally.count < count:
        life = Life(work / "agent.db", seed, tally)
        for old in work.glob("agent.db*"):
            old.unlink()
        shutil.copy(template, life.path)
        try:
            if threads:
                _run_with_threads(life)
            else:
                seeded.run(seed, life.live)
        except Exception as error:
            tally.breach(f"seed {seed}: {type(error).__name__}: {error}")
            life.rounds += 1
        tally.tried["schedules"] += life.rounds
        seed += 1


def _run_with_threads(life: Life) -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        asyncio.run(asyncio.wait_for(life.live(), REAL_PATIENCE_S))
    finally:
        sys.setswitchinterval(interval_s)


async def _make_template(path: Path) -> None:
    path.unlink(missing_ok=True)
    async with EventLog(path) as log:
        await Extensions(log.store).install(installation("acme"), ["p"])


class Life:
    """One log, from its opening to its close, with all who use it."""

    def __init__(self, path: Path, seed: int, tally: Tally) -> None:
        self.path = path
        self.tally = tally
        self.random = Random(seed)
        self.rounds = 0
        self.gone = 0
        self.returned: dict[tuple[str, int], Event[Any]] = {}
        self.followed: dict[int, list[int]] = {}
        self.shown: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.delivered: list[tuple[int, str]] = []
        self.returned_from: set[int] = set()

    async def live(self) -> None:
        """Open, some rounds, close, and look."""
        self.log = EventLog(self.path, clock=seeded.LoopClock(), slice_rows=self.random.choice([3, 10, 1_000]))
        async with self.log:
            self.worker, self.dispatcher = await self._serve()
            self.sessions = [await self.log.start_session(f"s{n}", project="p") for n in range(SESSIONS)]
            for _ in range(ROUNDS_PER_LOG - 1):
                await asyncio.wait_for(self._round(), PATIENCE_S)
                self.rounds += 1
            await asyncio.wait_for(self._end(), PATIENCE_S)
            self.rounds += 1
        await self._look_again()

    async def _serve(self) -> tuple[Worker, Dispatcher]:
        dispatcher = self._dispatcher(self.log)
        worker = Worker(self.log, POLICY, self.random)
        (installed,) = await Extensions(self.log.store).all()
        worker.serve(installed.key, "acme", {TURN: self._deliver})
        await dispatcher.start()
        await worker.start()
        self.log.on_recorded(lambda _: worker.wake())
        return worker, dispatcher

    def _dispatcher(self, log: EventLog) -> Dispatcher:
        hooks: dict[str, HookDefinition] = {}
        for name in HOOKS:
            hooks[name] = hook_of({"*": self._shower(name)}, name)
        return dispatcher_of(log, hooks, limits=LIMITS)

    # -- who is told ---------------------------------------------------------------------------------------------

    def _shower(self, name: str) -> Any:
        async def show(event: Event[Any], _context: Any) -> None:
            self.shown[name][event.session_id].append(event.index)
            await self._pause()
            if self.random.random() < 0.1:
                raise LookupError("of the hook")

        return show

    async def _deliver(self, event: Any, _context: Any) -> None:
        position = int(event.event_id.partition(":")[2])
        self.delivered.append((position, event.conversation_id))
        await self._pause()
        if self.random.random() < 0.2:
            raise ConnectionError("not now")
        self.returned_from.add(position)

    async def _follow(self, number: int, tail: Any, lasts: int) -> None:
        """Follow until so many last events were seen."""
        seen = self.followed[number] = []
        async for event in tail:
            if not event.session_id.startswith(GONE):
                seen.append(event.position)
            if self.random.random() < 0.2:
                await self._pause()
            lasts -= event.type == "own.last"
            if not lasts:
                return

    async def _pause(self) -> None:
        for _ in range(self.random.choice([0, 0, 0, 1, 2, 5])):
            await asyncio.sleep(0)
        if self.random.random() < 0.2:
            await asyncio.sleep(self.random.choice([0.000_1, 0.001, 0.02]))

    # -- who does something ---------------------------------------------------------------------------------------

    async def _append(self, times: int) -> None:
        for _ in range(times):
            await self._pause()
            session = self.random.choice(self.sessions)
            with suppress(StorageFull, IndexConflict):
                for event in await self._append_once(session):
                    known = self.returned.setdefault((event.session_id, event.index), event)
                    assert known == event, f"{known} and {event} were both acknowledged"

    async def _append_once(self, session: Session) -> list[Event[Any]]:
        chance, number = self.random.random(), self.random.randrange(1_000_000)
        if chance < 0.3:
            return [await session.append("turn.completed", {}, turn_id=f"t{number}")]
        if chance < 0.5:
            return await session.append_many([NewEvent("own.batch", {"n": number})] * self.random.randrange(1, 5))
        if chance < 0.6:
            return [await session.append("own.keyed", {"k": number % 5}, key=f"k{number % 5}")]
        if chance < 0.7:
            return [await session.append("own.expected", {}, expected_index=session.next_index)]
        if chance < 0.75:
            return [await session.append(f"own.new-{number}", {"n": number})]
        return [await session.append("own.type", {"n": number, "v": "x" * self.random.choice([0, 0, 3_000])})]

    async def _trouble(self) -> None:
        """Fill the disk for a while; import; absorb; forget; cancel somebody."""
        await self._pause()
        with suppress(StorageFull):
            match self.random.randrange(5):
                case 0:
                    await self.log.store.write(_limit_pages, 1)
                    await self._pause()
                    await self.log.store.write(_limit_pages, 100_000)
                case 1:
                    await self.log.store.absorb()
                case 2:
                    id, at = f"i{self.random.randrange(3)}", "2026-01-01T00:00:00Z"
                    line = '{"type":"own.old","index":%d,"sessionId":"%s","at":"%s","data":{}}'
                    await self.log.import_events([(line % (n, id, at)).encode() for n in range(3)])
                case 3:
                    await self._remove_one()
                case _:
                    victim = asyncio.ensure_future(self._append(3))
                    await self._pause()
                    victim.cancel()
                    await asyncio.wait([victim])

    async def _remove_one(self) -> None:
        """A session is forgotten, while the others go on; pruning moves cursors of readers, and has its own tests."""
        if self.random.random() < 0.8:  # the whole file is written anew for it
            return
        self.gone += 1
        session = await self.log.start_session(f"{GONE}{self.gone}", project="p")
        await session.append("own.type", {})
        await self._pause()
        await self.log.forget(session.id)

    # -- how a schedule goes ----------------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Everything at once, and then rest: whoever follows has to come to the end without another append."""
        start, ids = self.log.head, [None, *(session.id for session in self.sessions[:2])]
        tails = [self.log.tail(after=start), *(each.tail(after=each.next_index - 1) for each in self.sessions[:2])]
        lasts = (2, 1, 1)
        following = [
            asyncio.ensure_future(self._follow(n, *each)) for n, each in enumerate(zip(tails, lasts, strict=True))
        ]
        await self._work()
        for session in self.sessions[:2]:
            event = await session.append("own.last", {})
            self.returned[event.session_id, event.index] = event
        done, waiting = await asyncio.wait(following, timeout=PATIENCE_S / 4)
        assert not waiting, f"{len(waiting)} tails wait, and what they wait for is there"
        for each in done:
            each.result()
        events = [event async for event in self.log.read(after=start)]
        for number, id in enumerate(ids):
            there = [e.position for e in events if id in (None, e.session_id) and not e.session_id.startswith(GONE)]
            seen = self.followed[number]
            assert seen == there[: len(seen)], f"the tail of {id} gave {seen}, in the log are {there}"
        assert await self.dispatcher.settled(PATIENCE_S / 4), "the hooks do not come to rest"
        await asyncio.wait_for(self.worker.idle(), PATIENCE_S / 4)

    async def _work(self) -> None:
        actors = [self._append(self.random.randrange(1, 6)) for _ in range(self.random.randrange(2, 6))]
        actors += [self._trouble() for _ in range(self.random.randrange(3))]
        self.random.shuffle(actors)
        await asyncio.gather(*actors)

    async def _end(self) -> None:
        """Close the log while everybody is at it; some stop the runtime first."""
        working = asyncio.ensure_future(self._work())
        following = asyncio.ensure_future(self._follow(9, self.log.tail(), NEVER))
        await self._pause()
        if self.random.random() < 0.7:
            await asyncio.gather(self.worker.stop(0.05), self.dispatcher.stop(0.05))
        closes = [asyncio.ensure_future(self.log.close()) for _ in range(self.random.randrange(1, 4))]
        await self._pause()
        if self.random.random() < 0.3:
            closes[0].cancel()
        await asyncio.wait(closes)
        await self.log.close()
        await asyncio.wait([working, following])
        for each in (working, following):
            with suppress(LogClosed):
                each.result()
        with suppress(LogClosed):
            await self.worker.stop(0.05)
        with suppress(LogClosed):
            await self.dispatcher.stop(0.05)

    # -- what is there afterwards -----------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        async with EventLog(self.path, clock=seeded.LoopClock()) as log:
            report = await log.check(full=False)
            assert report.ok, report
            everything = [event async for event in log.read()]
            stored = {(e.session_id, e.index): e for e in everything if not e.session_id.startswith(GONE)}
            assert self.returned.items() <= stored.items(), "what was acknowledged is not there"
            positions = [event.position for event in stored.values()]
            assert positions == sorted(set(positions)), "positions are in disorder"  # the check looks for holes
            for id in {id for id, _ in stored}:
                indexes = [index for session, index in stored if session == id]
                assert indexes == list(range(len(indexes))), f"the indexes of {id} are {indexes}"
                read = [event.index async for event in (await log.session(id)).read()]
                assert read == indexes, f"{id} reads {read}"
            assert self.followed[9] == positions[: len(self.followed[9])], "the last tail is not the log"
            self._look_at_deliveries(stored, await log.store.read(_owed))
            dispatcher = self._dispatcher(log)
            await dispatcher.start()
            assert await dispatcher.settled(PATIENCE_S)
            await dispatcher.stop()
            self._look_at_hooks(stored, await hook_gaps(log.store))

    def _look_at_hooks(self, stored: dict[tuple[str, int], Event[Any]], gaps: list[GapRow]) -> None:
        self.tally.seen["gaps of hooks after a close in the middle"] += len(gaps)
        for name in HOOKS:
            for (id, index), event in stored.items():
                times = self.shown[name][id].count(index)
                holes = [g for g in gaps if g.name == name and g.session_id in (None, id)]
                is_in_a_gap = any(gap.first <= event.position <= gap.last for gap in holes)
                assert times <= 1, f"hook {name} was shown {id} {index} {times} times"
                is_history = event.type == "own.old"
                assert times or is_in_a_gap or is_history, f"hook {name} never heard of {id} {index}"
                assert not (times and is_history), f"hook {name} was shown history"
            for id, indexes in self.shown[name].items():
                assert indexes == sorted(indexes), f"hook {name} was shown {indexes} of {id}"

    def _look_at_deliveries(self, stored: dict[tuple[str, int], Event[Any]], owed: set[int]) -> None:
        turns = {event.position for event in stored.values() if event.type == "turn.completed"}
        called = {position for position, _ in self.delivered}
        assert turns - called <= owed, f"{turns - called - owed} are neither owed nor were they delivered"
        assert owed <= turns, f"{owed - turns} are owed, and no such turns are there"
        lanes: dict[str, list[int]] = defaultdict(list)
        for position, id in self.delivered:
            lanes[id].append(position)
        for id, lane in lanes.items():
            assert lane == sorted(lane), f"session {id} was delivered as {lane}"


def _limit_pages(connection: sqlite3.Connection, more: int) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + more}")


def _owed(connection: sqlite3.Connection) -> set[int]:
    return {position for (position,) in connection.execute("SELECT position FROM delivery WHERE state IS NOT NULL")}
