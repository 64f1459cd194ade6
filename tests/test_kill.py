"""A serving process is killed again and again, at random: what was promised of that, counted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from eventlog import EventLog
from eventlog.inspection import Inspection

KILLS = 50
SEED = int(os.environ.get("EVENTLOG_SEED", "20261130"))
CHECKOUT = Path(__file__).resolve().parents[1]

HOOK = """
import os
from pathlib import Path
from eventlog import define_hook

notes = os.open(Path(__file__).parents[2] / "seen.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

async def see(event, ctx):
    os.write(notes, f"{event.session_id} {event.index}\\n".encode())

hook = define_hook(events={"*": see})
"""

MANIFEST = {
    "publisher": "acme",
    "name": "ledger",
    "version": "1.0.0",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "enter"}],
}

EXTENSION = """
import os
from pathlib import Path

ledger = os.open(Path(__file__).parents[3] / "ledger.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

async def enter(event, context):
    os.write(ledger, f"{event.conversation_id} {event.turn_id} {event.event_id}\\n".encode())

def activate(context):
    context.subscriptions.append(context.hooks.register("enter", enter))
"""


def make_agent(folder: Path) -> None:
    """An agent folder with one observe hook and one extension."""
    hooks, extension = folder / "agent/hooks", folder / "agent/extensions/ledger"
    hooks.mkdir(parents=True)
    extension.mkdir(parents=True)
    (hooks / "see.py").write_text(HOOK)
    (extension / "extension.json").write_text(json.dumps(MANIFEST))
    (extension / "main.py").write_text(EXTENSION)


def start(db: Path, folder: Path, seed: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.victim", str(db), str(folder), str(seed), *more]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_once(db: Path, folder: Path, random: Random) -> list[str]:
    """Start the victim, kill it a random while after its first append, and return the lines it said."""
    victim = start(db, folder, random.randrange(1 << 30))
    assert victim.stdout is not None
    assert victim.stderr is not None
    first = victim.stdout.readline()
    assert first, victim.stderr.read().decode()
    try:
        victim.wait(random.uniform(0.0, 0.25))
    except subprocess.TimeoutExpired:
        victim.send_signal(signal.SIGKILL)
    rest, _ = victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    return [line for line in (first + rest).decode().split("\n")[:-1] if line]


async def verdict(db: Path, folder: Path, said: list[str]) -> str:
    """Check what was promised of one killed server, and return the numbers."""
    async with EventLog(db, read_only=True) as log:
        report = await log.check()
        assert report.ok, report
        stored = {(event.session_id, event.index): event async for event in log.read()}
        gaps = [(gap.first, gap.last) for gap in await Inspection(log).hook_gaps()]

    for line in said:
        session_id, index, type_, turn_id = line.split()
        event = stored[(session_id, int(index))]
        assert (event.type, str(event.turn_id)) == (type_, turn_id), "an acked event is another one now"

    seen = (folder / "seen.txt").read_text().split("\n")[:-1]
    assert len(seen) == len(set(seen)), "a hook saw an event twice"
    unseen = [event for key, event in stored.items() if f"{key[0]} {key[1]}" not in set(seen)]
    assert all(any(low <= event.position <= high for low, high in gaps) for event in unseen), (
        "neither seen nor in a gap"
    )

    entered: dict[str, list[str]] = defaultdict(list)
    for line in (folder / "ledger.txt").read_text().split("\n")[:-1]:
        session_id, turn, _ = line.split()
        if entered[session_id][-1:] != [turn]:  # a repeat after a kill comes before anything else of its session
            entered[session_id].append(turn)
    completed: dict[str, list[str]] = defaultdict(list)
    for (session_id, _), event in sorted(stored.items()):
        if event.type == "turn.completed":
            completed[session_id].append(str(event.turn_id))
    assert entered == completed, "a turn was not delivered, or out of order"
    return f"{len(said)} acked, {len(stored)} stored, {len(seen)} seen, {len(unseen)} in gaps"


def kill_often(folder: Path, seed: int) -> tuple[Path, list[str]]:
    """Kill one server half of the times, then let it settle; its database, and the lines it said."""
    random, db = Random(seed), folder / "agent.db"
    make_agent(folder)
    said = [line for _ in range(KILLS // 2) for line in kill_once(db, folder, random)]
    last = start(db, folder, seed, "settle")
    _, complaints = last.communicate(timeout=60)
    assert last.returncode == 0, complaints.decode()
    return db, said


@pytest.mark.timeout(150)
async def test_r31_r126_fifty_kills_lose_no_acked_event_repeat_no_hook_and_miss_no_delivery(tmp_path: Path) -> None:
    """R31 R36 R126 R127, case D4: every event that was said is there; hooks at most once; deliveries at least once."""
    print(f"{KILLS} kills, seed {SEED}")
    folders = [tmp_path / "first", tmp_path / "second"]
    runs = await asyncio.gather(
        *[asyncio.to_thread(kill_often, folder, SEED + number) for number, folder in enumerate(folders)]
    )
    for folder, (db, said) in zip(folders, runs, strict=True):
        assert len(said) > KILLS
        print(await verdict(db, folder, said))
