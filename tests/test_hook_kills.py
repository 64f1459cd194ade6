"""A server with observe hooks is killed at random moments: nothing is shown twice, nothing is lost without a gap."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from eventlog import EventLog
from eventlog.store.hook_lists import GapRow, hook_gaps
from tests import victims
from tests.hook_victim import HOOKS, LISTENERS, serve
from tests.notes import read_notes
from tests.torture.counts import Counts

SEED = int(os.environ.get("EVENTLOG_SEED", "20261130"))
SERVERS = 4
"""Each is killed its share of the times, in a test of its own."""
LONGEST_LIFE_S = 0.1
PHASES = ("in an append", "in a handler", "between two handlers")


class Call(NamedTuple):
    """One call of a handler: of this hook or channel, for this event."""

    who: str
    session_id: str
    event_index: int


Types = dict[tuple[str, int], str]
"""Of each recorded event, by session and index."""


@dataclass
class Life:
    """What one process noted, in its order."""

    appending: set[str] = field(default_factory=set)
    acknowledged: list[tuple[str, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    underway: set[Call] = field(default_factory=set)

    def note(self, word: str, *rest: str) -> None:
        match word, rest:
            case "append", (session_id,):
                self.appending.add(session_id)
            case "appended", (session_id, index):
                self.appending.remove(session_id)
                self.acknowledged.append((session_id, int(index)))
            case "call", (who, session_id, index):
                self.calls.append(Call(who, session_id, int(index)))
                self.underway.add(self.calls[-1])
            case "return", (who, session_id, index):
                self.underway.remove(Call(who, session_id, int(index)))
            case _:
                raise AssertionError(word)

    def phases(self, types: Types) -> Iterator[str]:
        """Where its end fell; several things are going on at any moment."""
        if self.appending:
            yield PHASES[0]
        if self.underway:
            yield PHASES[1]
        last_of_session = {call.session_id: call for call in self.calls}.values()
        if any(call not in self.underway and has_more(call, types) for call in last_of_session):
            yield PHASES[2]


def has_more(call: Call, types: Types) -> bool:
    """Whether others are called for that event after this one."""
    wanting = [who for who, listener in LISTENERS.items() if listener.wants(types[call.session_id, call.event_index])]
    return call.who != wanting[-1]


def read_journal(folder: Path) -> list[Life]:
    lives: list[Life] = []
    for line in read_notes(folder / "journal.txt"):
        word, *rest = line.split(" ")
        if word == "open":
            lives.append(Life())
        else:
            lives[-1].note(word, *rest)
    return lives


# ----------------------------------------------------------------------------------------------------- what must hold


@dataclass
class Verdict:
    """The numbers of one server's lives."""

    phases: Counter[str]
    events: int
    calls: int
    gaps: int
    in_gaps: int
    caught_up: int


async def verdict(folder: Path) -> Verdict:
    """Check what was promised of one server that was killed again and again, and ended in order at last."""
    lives = read_journal(folder)
    async with EventLog(folder / "agent.db", read_only=True) as log:
        assert (await log.check()).ok
        gaps = await hook_gaps(log.store, limit=100_000)
        position_of = {(event.session_id, event.index): event.position async for event in log.read()}
        types = {(event.session_id, event.index): event.type async for event in log.read()}
    assert {event for life in lives for event in life.acknowledged} <= set(types), "an append that returned is gone"

    calls = Counter(call for life in lives for call in life.calls)
    assert [call for call, times in calls.items() if times > 1] == [], "shown twice"
    assert_in_order(lives)
    in_gaps = {name: positions_in(gaps, name) for name in HOOKS}
    for name, positions in in_gaps.items():
        assert [position for position, times in positions.items() if times > 1] == [], f"{name}: in two gaps"
        lost = [
            event
            for event, type in types.items()
            if LISTENERS[name].wants(type) and Call(name, *event) not in calls and position_of[event] not in positions
        ]
        assert lost == [], f"{name}: neither shown nor in a gap"
    return Verdict(
        phases=Counter(phase for life in lives[:-2] for phase in life.phases(types)),  # the last two were not killed
        events=len(types),
        calls=calls.total(),
        gaps=len(gaps),
        in_gaps=sum(len(positions) for positions in in_gaps.values()),
        caught_up=len(shown_later(lives)),
    )


def assert_in_order(lives: Iterable[Life]) -> None:
    """Per hook and session in the order of the index, over all lives; what is begun in a session is ended first."""
    indexes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for life in lives:
        for call in life.calls:
            indexes[call.who, call.session_id].append(call.event_index)
        assert max(Counter(call.session_id for call in life.underway).values(), default=0) <= 1, "two at a time"
    assert all(earlier < later for of_lane in indexes.values() for earlier, later in pairwise(of_lane))


def positions_in(gaps: list[GapRow], name: str) -> Counter[int]:
    return Counter(position for gap in gaps if gap.name == name for position in range(gap.first, gap.last + 1))


def shown_later(lives: list[Life]) -> list[Call]:
    """Calls of a life that did not record their event itself: only hooks that resume may have them."""
    highest: dict[str, int] = {}
    found: list[Call] = []
    for life in lives:
        before = dict(highest)
        for session_id, index in [*life.acknowledged, *((call.session_id, call.event_index) for call in life.calls)]:
            highest[session_id] = max(index, highest.get(session_id, -1))
        found += [call for call in life.calls if call.event_index <= before.get(call.session_id, -1)]
    assert {LISTENERS[call.who].on_restart for call in found} <= {"resume"}
    return found


# -------------------------------------------------------------------------------------------------- to kill at random


async def live_and_die(folder: Path, random: Random) -> None:
    """Start a server and kill it at a random moment, in one case of ten counted from its very beginning."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = victims.start(serve, folder, random.getrandbits(32), sender)
    sender.close()
    if random.random() < 0.9:
        assert await asyncio.to_thread(receiver.poll, 20), "it does not serve"
    await asyncio.sleep(random.uniform(0.0, LONGEST_LIFE_S))
    process.kill()
    assert await victims.ended(process) == -signal.SIGKILL
    receiver.close()


async def live_and_stop(folder: Path, seed: int) -> list[GapRow]:
    """Let a server end in order; the gaps that are there then."""
    assert await victims.ended(victims.start(serve, folder, seed, None)) == 0
    async with EventLog(folder / "agent.db", read_only=True) as log:
        return await hook_gaps(log.store, limit=100_000)


async def kill_often(folder: Path, seed: int, kills: int) -> Verdict:
    """Kill a server so often, and let it end twice in order at last."""
    random = Random(seed)
    for _ in range(kills):
        await live_and_die(folder, random)
    gaps = await live_and_stop(folder, seed)
    assert await live_and_stop(folder, seed + SERVERS) == gaps, "an orderly stop left a gap"
    return await verdict(folder)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(SERVERS))
async def test_r126_r127_r128_kills_show_nothing_twice_and_lose_nothing_without_a_gap(
    tmp_path: Path, counts: Counts, number: int
) -> None:
    """Six hooks, two of them "resume", and a channel: over all lives of a server each (hook, session, index) is called
    at most once, or is in one gap, or both; what is in neither was lost silently, and nothing is.
    """
    seed, kills = SEED + number, counts.hook_kills // SERVERS
    found = await kill_often(tmp_path, seed, kills)
    print(f"\n{kills} kills, seed {seed}")
    for phase in PHASES:
        print(f"  {found.phases[phase]:>4} fell {phase}")
    print(f"{found.events:,} events, {found.calls:,} calls, 0 twice, {found.caught_up:,} of them after a restart")
    print(f"{found.gaps:,} gaps with {found.in_gaps:,} places, 0 in two of them, 0 events in no call and no gap")
    assert min(found.phases[phase] for phase in PHASES) >= kills // 10
    assert found.caught_up
