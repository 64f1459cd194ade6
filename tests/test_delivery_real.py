"""The recorded sessions, played live to an extension that fails now and then: nothing is missed, nothing is changed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from eventlog import EventLog, Runtime
from eventlog.testing import ManualClock
from examples.server import play_session
from examples.traffic import Traffic, read_traffic
from tests.ledger import Ledger
from tests.real_data import real_data

Row: TypeAlias = tuple[Any, ...]

SEEDS = (1, 2)
LONGEST_BACKOFF_S = 900 * 1.2

MANIFEST = {
    "publisher": "test",
    "name": "unsteady",
    "version": "1.0.0",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "handle"}],
}
MAIN = """
import json
from pathlib import Path
from eventlog import Disposable
from tests.ledger import Ledger

HOME = Path(__file__).parent

def activate(context):
    failures, ledger = json.loads((HOME / "failures.json").read_text()), Ledger(HOME)

    async def handle(event, call):
        ledger.note_call(event, call)
        turn = f"{event.conversation_id}/{event.turn_id}"
        if failures.get(turn):
            failures[turn] -= 1
            raise ConnectionError("not now")
        assert (await context.turns.get(event.turn)).version == event.version
        ledger.do_business(event)

    context.subscriptions.append(context.hooks.register("handle", handle))
    context.subscriptions.append(Disposable(ledger.close))
"""


def make_agent(folder: Path, failures: dict[str, int]) -> Path:
    """An agent folder with one extension, which fails so often at these turns; the extension's folder."""
    home = folder / "agent" / "extensions" / "unsteady"
    home.mkdir(parents=True)
    (home / "extension.json").write_text(json.dumps(MANIFEST))
    (home / "failures.json").write_text(json.dumps(failures))
    (home / "main.py").write_text(MAIN)
    return home


async def play(log: EventLog, traffic: Traffic) -> None:
    """Append all events, one after the other, so that each run gives each event the same position and time."""
    for lines in traffic.sessions.values():
        await play_session(log, lines)


async def rows(log: EventLog) -> list[Row]:
    """The table of facts: every column of every row, as bytes where it is text."""

    def read(connection: Any) -> list[Row]:
        sql = (
            "SELECT position, session, idx, type, CAST(turn_id AS BLOB), at, CAST(data AS BLOB), CAST(key AS BLOB),"
            " checksum FROM log ORDER BY position"
        )
        return list(connection.execute(sql).fetchall())

    return await log.store.read(read)


async def test_r51_r52_real_turns_are_all_delivered_and_the_log_is_unchanged_byte_for_byte(tmp_path: Path) -> None:
    """R31 R51 R52: of the turns a third, chosen at random, fails one to five times; the log knows nothing of it."""
    traffic = read_traffic(real_data())
    async with EventLog(tmp_path / "alone.db", clock=ManualClock()) as log:
        await play(log, traffic)
        unserved = await rows(log)
    assert len(unserved) == len(traffic.lines)
    for seed in SEEDS:
        await play_to_an_unsteady_extension(tmp_path / str(seed), traffic, seed, unserved)


async def play_to_an_unsteady_extension(folder: Path, traffic: Traffic, seed: int, expected: list[Row]) -> None:
    random, clock = Random(seed), ManualClock()
    ends = [f"{line['sessionId']}/{line['turnId']}" for line in traffic.lines if line["type"] == "turn.completed"]
    failures = {turn: random.randint(1, 5) for turn in random.sample(ends, len(ends) // 3)}
    home = make_agent(folder, failures)
    projects = sorted({traffic.project_of(session) for session in traffic.sessions})
    async with (
        EventLog(folder / "agent.db", clock=clock) as log,
        Runtime(log, agent_dir=folder, grants={"unsteady": projects}, seed=seed) as runtime,
    ):
        await play(log, traffic)
        assert await rows(log) == expected
        await runtime.settled()
        while await runtime.extensions.deliveries():
            clock.advance(LONGEST_BACKOFF_S)
            await runtime.settled()
        assert await runtime.dead_letters.list() == []
        assert await rows(log) == expected
        assert (await log.check()).ok
        completed = [event async for event in log.read(types=["turn.completed"])]
    ledger = Ledger(home)
    calls, effects = Counter(call.event_id for call in ledger.calls), ledger.effects
    ledger.close()
    print(f"seed {seed}: {len(completed)} turns, {calls.total()} calls, {len(effects)} effects, {len(expected):,} rows")
    assert sorted(effects) == sorted(event.id for event in completed)
    assert calls == {event.id: 1 + failures.get(f"{event.session_id}/{event.turn_id}", 0) for event in completed}
