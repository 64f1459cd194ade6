"""A server with durable hooks is killed at every point of a delivery: what was promised of that, counted."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import pytest

from eventlog import EventLog, HookCallContext
from eventlog.durable.dead_letters import DeadLetters
from eventlog.store.deliveries import Deliveries
from eventlog.store.hook_lists import hook_gaps
from tests import victims
from tests.delivery_victim import ABSORB, CHECKPOINT, CONVERSATIONS, EXTENSIONS, HOOK, make_agent, serve
from tests.extension_kit import bench
from tests.ledger import Clerk, Ledger
from tests.notes import read_notes
from tests.torture.counts import Counts

SEED = int(os.environ.get("EVENTLOG_SEED", "20261130"))
LANES = 2  # victims beside each other
LONGEST_LIFE_S = 0.25
AIMED_WITHIN_S = 2.0
AIMS = (None, None, None, ABSORB, ABSORB, CHECKPOINT)
REDELIVERED_WITHIN_S = 1.0
AT_MOST_S = 3.0  # for a single one, where more processes want a processor than there are; timeouts are ten times that
PHASES = (
    "in an append", "before a handler", "in a handler", "between return and ACK", "in absorbing", "in a checkpoint",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- what was journalled


class Call(NamedTuple):
    """One call of a handler."""

    extension: str
    event_id: str
    request: str
    conversation: str
    at_ns: int

    @property
    def position(self) -> int:
        return int(self.event_id.partition(":")[2])


@dataclass
class Life:
    """What one process noted."""

    open_ns: int
    ready: bool = False
    found: list[str] = field(default_factory=list)
    appending: set[str] = field(default_factory=set)
    appended: set[str] = field(default_factory=set)
    calls: dict[str, Call] = field(default_factory=dict)
    raised: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    shown: list[tuple[str, int]] = field(default_factory=list)
    chores: set[str] = field(default_factory=set)
    """Those that were under way at its end."""
    left: set[str] = field(default_factory=set)
    """Its calls that the file held when it was dead, as a later life found them."""

    def note(self, word: str, *rest: str) -> None:
        match word:
            case "ready":
                self.ready = True
            case "found":
                self.found.append(rest[0])
            case "append":
                self.appending.add(rest[0])
            case "appended":
                self.appended.add(rest[0])
            case "call":
                extension, event_id, request, conversation, at_ns = rest
                self.calls[request] = Call(extension, event_id, request, conversation, int(at_ns))
            case "raise":
                self.raised.add(rest[0])
            case "return":
                self.returned.add(rest[0])
            case "shown":
                self.shown.append((rest[0], int(rest[1])))
            case _:
                assert word in ("begin", "end"), word
                self.chores ^= {rest[0]}

    @property
    def phases(self) -> Iterator[str]:
        """Where its end fell; several things are going on at any moment."""
        if self.appending - self.appended:
            yield PHASES[0]
        if self.left - set(self.calls):
            yield PHASES[1]
        if (self.left & set(self.calls)) - self.returned - self.raised:
            yield PHASES[2]
        if self.left & self.returned:
            yield PHASES[3]
        if ABSORB in self.chores:
            yield PHASES[4]
        if CHECKPOINT in self.chores:
            yield PHASES[5]


def read_journal(folder: Path) -> list[Life]:
    lives: list[Life] = []
    for line in read_notes(folder / "journal.txt"):
        word, *rest = line.split(" ")
        if word == "open":
            lives.append(Life(int(rest[0])))
        else:
            lives[-1].note(word, *rest)
    last_ready: Life | None = None
    known: set[str] = set()
    for life in lives:
        for request in set(life.found) - known:
            assert last_ready is not None
            last_ready.left.add(request)
        known |= set(life.found)
        last_ready = life if life.ready else last_ready
    return lives


# ------------------------------------------------------------------------------------------------------ what was kept


@dataclass
class Verdict:
    """The numbers of one server's lives."""

    phases: Counter[str]
    somewhere: int
    events: int
    dead: int
    calls: int
    raised: int
    in_flight: int
    redelivered_s: list[float]


async def verdict(folder: Path) -> Verdict:
    """Check what was promised of one server that was killed again and again."""
    lives = read_journal(folder)
    async with EventLog(folder / "agent.db", read_only=True) as log:
        assert (await log.check()).ok
        assert await Deliveries(log.store).live() == []
        assert await Deliveries(log.store).gaps() == []
        gaps = await hook_gaps(log.store, limit=100_000)
        places = {event.position: (event.session_id, event.index) async for event in log.read()}
        letters = await DeadLetters(log).list()
        turns = [event async for event in log.read(types=["turn.completed"])]
    said = {turn for life in lives for turn in life.appended}
    assert said <= {event.turn_id for event in turns}, "an append that returned is not there"

    shown = Counter(place for life in lives for place in life.shown)
    assert [place for place, times in shown.items() if times > 1] == [], "the hook was shown it twice"
    in_gaps = {places[at] for gap in gaps if gap.name == HOOK for at in range(gap.first, gap.last + 1)}
    assert set(places.values()) - set(shown) <= in_gaps, "neither shown to the hook nor in a gap"

    calls = [call for life in lives for call in life.calls.values()]
    assert len({call.request for call in calls}) == len(calls), "a request id came twice"
    left = {request for life in lives for request in life.left}
    raised = {request for life in lives for request in life.raised}
    returned = {request for life in lives for request in life.returned}

    by_event: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        by_event[call.extension, call.event_id].append(call)
    # What six kills in a row cut short is a dead letter: improbable here, and no miss.
    assert all((letter.reason, letter.attempts) == ("exhausted", 6) for letter in letters)
    dead = {(f"test.{letter.extension}", letter.event_id) for letter in letters}
    owed = {(f"test.{name}", event.id) for event in turns for name in EXTENSIONS}
    assert owed - dead <= set(by_event) <= owed, "missed, or never owed"
    for key, attempts in by_event.items():
        requests = [call.request for call in attempts]
        if key not in dead:
            acked = requests.pop()
            assert acked in returned
            assert acked not in left
        assert all(request in left or request in raised for request in requests), "called again after its ACK"

    lanes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in calls:
        lanes[call.extension, call.conversation].append(call.position)
    steps_back = sum(later < earlier for positions in lanes.values() for earlier, later in pairwise(positions))
    assert steps_back == 0, "a conversation was delivered out of order"

    phases = [list(life.phases) for life in lives[:-1]]  # the last one was not killed
    return Verdict(
        phases=Counter(phase for each in phases for phase in each),
        somewhere=sum(bool(each) for each in phases),
        events=len(turns),
        dead=len(dead),
        calls=len(calls),
        raised=len(raised - left),
        in_flight=len(left & {call.request for call in calls}),
        redelivered_s=list(redelivered_s(lives)),
    )


def redelivered_s(lives: list[Life]) -> Iterator[float]:
    """For each call that was cut short: from the opening of the log to the call that repeated it."""
    of = {call.request: (call.extension, call.event_id) for life in lives for call in life.calls.values()}
    due: set[tuple[str, str]] = set()
    for life in lives:
        due |= {of[request] for request in life.found if request in of}
        for call in life.calls.values():
            if (call.extension, call.event_id) in due:
                due.remove((call.extension, call.event_id))
                yield (call.at_ns - life.open_ns) / 1e9


# ------------------------------------------------------------------------------------------------ to kill at random


async def live_and_die(folder: Path, random: Random) -> None:
    """Start a server and kill it at a random moment: of its life, counted from its service or, in one case of four,
    from its very beginning; or, as often, of one of the writer's chores, which are too short to be met otherwise.
    """
    aim = random.choice(AIMS)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = victims.start(serve, folder, random.getrandbits(32), sender, aim)
    sender.close()
    if aim or random.random() < 0.75:
        assert await asyncio.to_thread(receiver.poll, 20), "it does not serve"
    if aim:
        await asyncio.to_thread(wait, [process.sentinel], AIMED_WITHIN_S)
    else:
        await asyncio.sleep(random.uniform(0.0, LONGEST_LIFE_S))
    process.kill()
    assert await victims.ended(process) == -signal.SIGKILL
    receiver.close()


async def kill_often(folder: Path, seed: int, kills: int) -> Verdict:
    random = Random(seed)
    make_agent(folder)
    for _ in range(kills):
        await live_and_die(folder, random)
    assert await victims.ended(victims.start(serve, folder, seed, None)) == 0
    return await verdict(folder)


@pytest.mark.faults
async def test_r31_r36_random_kills_miss_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, counts: Counts
) -> None:
    """R29 R31 R32 R36 R38, H2: five extensions and fifty conversations, at every point of a delivery."""
    kills = counts.kills // LANES
    print(f"\n{LANES * kills} kills, seed {SEED}")
    runs = await asyncio.gather(*[kill_often(tmp_path / f"lane{n}", SEED + n, kills) for n in range(LANES)])
    phases = sum((run.phases for run in runs), Counter[str]())
    for phase in PHASES:
        print(f"  {phases[phase]:>4} fell {phase}")
    print(f"  {LANES * kills - sum(run.somewhere for run in runs):>4} fell in none of these")
    events, calls = sum(run.events for run in runs), sum(run.calls for run in runs)
    raised, in_flight = sum(run.raised for run in runs), sum(run.in_flight for run in runs)
    owed = events * len(EXTENSIONS)
    dead = sum(run.dead for run in runs)
    print(f"{events:,} turns of {len(CONVERSATIONS)} conversations, {owed:,} deliveries owed", end=": ")
    print(f"0 missed, {dead} dead after six kills, 0 out of order")
    print(
        f"{calls:,} calls: {calls - owed - raised:,} repeated, {in_flight:,} were in flight; {raised:,} after a raise"
    )
    assert calls - owed - raised <= in_flight
    waits_s = [seconds for run in runs for seconds in run.redelivered_s]
    print(
        f"{len(waits_s):,} redelivered, median {median(waits_s):.3f} s, at most {max(waits_s):.3f} s from the opening"
    )
    assert median(waits_s) < REDELIVERED_WITHIN_S
    assert max(waits_s) < AT_MOST_S
    assert min(phases[phase] for phase in PHASES) >= counts.kills_in_each_phase


# ------------------------------------------------------------------------------------------ between effect and ACK


async def work_and_wait(folder: Path, parent: Connection, returns: bool) -> None:
    """In a process of its own: do the business of the first call, and say so; the ACK of it is never stored."""
    ledger, ready = Ledger(folder), asyncio.Event()
    writes: list[asyncio.Task[None]] = []

    async def handle(event: Any, context: HookCallContext) -> None:
        ledger.note_call(event, context)
        ledger.do_business(event)
        ready.set()
        if not returns:
            await asyncio.Event().wait()
        writes.append(asyncio.create_task(it.log.store.write(lambda connection: time.sleep(60))))
        await asyncio.sleep(0)  # now the writer is at that, and the ACK has to wait

    async with bench(folder) as it:
        await it.install(handler=handle)
        await ready.wait()
        while returns and it.worker.running:
            await asyncio.sleep(0)
        parent.send_bytes(b"now")
        await asyncio.Event().wait()


@pytest.mark.parametrize("returns", [False, True], ids=["before the return", "after the return"])
async def test_r31_r32_after_a_kill_between_effect_and_ack_the_same_event_comes_with_a_new_request(
    tmp_path: Path, returns: bool
) -> None:
    """R31 R32 R39, H2: SIGKILL from outside; attempt 2, one effect, and nothing else is repeated."""
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=print)
        events = [await it.turn("a", f"t{number}") for number in range(2)]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = victims.start(work_and_wait, tmp_path, sender, returns)
    sender.close()
    assert await asyncio.to_thread(receiver.poll, 20)
    process.kill()
    assert await victims.ended(process) == -signal.SIGKILL
    receiver.close()
    async with EventLog(tmp_path / "agent.db", read_only=True) as log:
        assert [row.state for row in await Deliveries(log.store).live()] == ["delivering", "pending"]

    attempts: list[int] = []

    async def look(ledger: Ledger, event: Any) -> None:
        attempts.extend(row.attempts for row in await it.live() if row.event_id == event.event_id)
        ledger.do_business(event)

    ledger = Ledger(tmp_path)
    async with bench(tmp_path) as it:
        await it.install(handler=Clerk(ledger, always=look))
        await it.worker.idle()
        assert await it.live() == []
    calls, effects = ledger.calls, ledger.effects
    ledger.close()
    assert [call.event_id for call in calls] == [events[0].id, events[0].id, events[1].id]
    assert len({call.request_id for call in calls}) == 3
    assert attempts == [2, 1]
    assert sorted(effects) == sorted(event.id for event in events)


# ------------------------------------------------------------------------------------------------- a killer, always


async def serve_a_killer(folder: Path, is_first: bool) -> None:
    """In a process of its own: the killer ends it, in the first life when all sixteen are in flight."""
    ledger = Ledger(folder)

    async def handle(event: Any, context: HookCallContext) -> None:
        ledger.note_call(event, context)
        if event.conversation_id == "killer":
            while is_first and len(ledger.calls) < 16:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGKILL)
        elif is_first:
            await asyncio.Event().wait()
        else:
            ledger.do_business(event)

    async with bench(folder) as it:
        await it.install(handler=handle)
        await it.worker.idle()


@pytest.mark.parametrize("place", [0, 8], ids=["first", "in the middle"])
async def test_h1_a_handler_that_always_kills_is_called_six_times_and_buries_only_itself(
    tmp_path: Path, place: int
) -> None:
    """R34 R35, H1: six starts and six calls, then a dead letter; each of the fifteen beside it comes once more."""
    names = [f"innocent{number}" for number in range(15)]
    names.insert(place, "killer")
    async with bench(tmp_path, start=False) as it:
        await it.install(handler=print)
        events = {name: await it.turn(name, "t1") for name in names}
    starts = 0
    while await victims.ended(victims.start(serve_a_killer, tmp_path, starts == 0)) == -signal.SIGKILL:
        starts += 1
        assert starts <= 6
    async with EventLog(tmp_path / "agent.db") as log:
        letters = await DeadLetters(log).list()
        assert await Deliveries(log.store).live() == []
    ledger = Ledger(tmp_path)
    calls, effects = Counter(call.conversation_id for call in ledger.calls), ledger.effects
    ledger.close()
    assert starts == calls["killer"] == 6
    assert [(each.event_id, each.reason, each.attempts) for each in letters] == [(events["killer"].id, "exhausted", 6)]
    assert sorted(effects) == sorted(event.id for name, event in events.items() if name != "killer")
    assert {calls[name] for name in names if name != "killer"} == {2}
