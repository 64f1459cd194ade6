"""What was acknowledged survives a kill at any moment: processes are killed at random while they append."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from random import Random

import pytest

from eventlog.log import EventLog
from tests.log_kit import (
    FORK_FOR_EACH_LINE,
    NO_INJECTION,
    all_of,
    can_inject,
    child,
    line_of,
    run_injected,
    tell_child,
    whole,
)
from tests.torture.counts import Counts

SEED = 7
LIVES = (1, 2, 10, 80, 600)  # events that a life acknowledges at most, before its kill

APPENDER = """
async def main():
    async with EventLog(path, slice_rows=300, durability=sys.argv[2]) as log:
        sessions = [await session(log, f"s{n}") for n in range(3)]
        say("open")
        await asyncio.gather(*[append(number, sessions) for number in range(8)])

async def session(log, id):
    try:
        return await log.start_session(id)
    except EventLogError:
        return await log.session(id)

async def append(number, sessions):
    for n in range(1_000_000):
        session = sessions[(number + n) % 3]
        if n % 10 == 9:
            events = await session.append_many([NewEvent("own.type", {"by": number, "n": n})] * 7)
        else:
            events = [await session.append("own.type", {"by": number, "n": n})]
        for event in events:
            os.write(1, b"%s %d %s\\n" % (event.session_id.encode(), event.index, event.raw))
"""


def one_life(appenders: subprocess.Popen[str], events: int) -> list[list[str]]:
    """Let one appender live until it acknowledged so many events, and kill it then; what it acknowledged."""
    tell_child(appenders)
    pid, said = int(line_of(appenders)), list[list[str]]()
    while line_of(appenders) != "open":
        pass
    for _ in range(events):
        said.append(line_of(appenders).split(" ", 2))
    os.kill(pid, signal.SIGKILL)
    while (line := line_of(appenders)) != "killed":
        said.append(line.split(" ", 2))
    return said


@pytest.mark.faults
@pytest.mark.parametrize(("durability", "share"), [("full", 0.8), ("process", 0.2)])
async def test_every_acknowledged_event_survives_the_kill(
    tmp_path: Path, counts: Counts, durability: str, share: float
) -> None:
    """D4: each index that was printed is there with its payload, all are contiguous, the file is whole, each time."""
    path, random, rounds = tmp_path / "agent.db", Random(SEED), round(counts.append_kills * share)
    acknowledged: dict[tuple[str, int], str] = {}
    with child(APPENDER + FORK_FOR_EACH_LINE, path, durability) as appenders:
        assert line_of(appenders) == "ready"
        for number in range(rounds):
            upto = random.randrange(LIVES[number % len(LIVES)])
            for session_id, index, raw in await asyncio.to_thread(one_life, appenders, upto):
                acknowledged[session_id, int(index)] = raw
            async with EventLog(path, read_only=True) as log:
                stored = {(event.session_id, event.index): event.raw.decode() async for event in log.read()}
            assert acknowledged.items() <= stored.items()
            if number % 10 == 9 or number == rounds - 1:
                async with EventLog(path) as log:
                    await whole(log)
                    for info in await all_of(log.sessions()):
                        events = await all_of((await log.session(info.id)).read())
                        assert [event.index for event in events] == list(range(info.next_index))
                    assert len(await log_eras(log)) == 1
    print(f"\n{rounds} kills at {durability}, {len(acknowledged):,} events acknowledged, seed {SEED}: all held")
    assert len(acknowledged) > rounds * 20


async def log_eras(log: EventLog) -> list[str]:
    return list((await log.stats())["eras"])


MAKE = """
async def main():
    async with EventLog(path):
        pass
asyncio.run(main())
"""


@pytest.mark.skipif(not can_inject(), reason=NO_INJECTION)
async def test_a_kill_at_any_write_of_its_making_leaves_a_log_that_can_be_made(tmp_path: Path) -> None:
    """Nothing or everything is there: never a file that is taken for another application's, never half a schema."""
    killed = 0
    for number in (1, 2, 3, 4, 9, 30):
        path = tmp_path / f"{number}.db"
        done = await asyncio.to_thread(run_injected, f"pwrite64:signal=SIGKILL:when={number}", MAKE, path)
        killed += done.returncode != 0
        async with EventLog(path) as log:
            await log.start_session("s")
            await whole(log)
    assert killed >= 5
