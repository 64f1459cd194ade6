"""A server whose every system call is recorded: `python -m tests.torture.workload FOLDER DURABILITY APPENDS [kill]`.

It appends to a few sessions in every way there is, shows events to a hook that resumes, delivers turns to an
extension, absorbs and checkpoints often, closes, opens again, appends more, and at last is gone without closing.
A line each, by one write:

    stored POSITION SESSION INDEX COUNT RAW     `append` returned; of a batch, COUNT for its first event and 0 after
    shown POSITION                              the hook is called
    called POSITION                             the extension is called
    closed                                      the log was closed
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from eventlog import DeliveryPolicy, EventLog, NewEvent, Runtime, Session, SessionNotFound, define_hook
from eventlog.events import Event
from eventlog.store import writer

SESSIONS = 3
TASKS = 3
BATCHES = 5  # events of one batch
POLICY = DeliveryPolicy(backoff_first_s=0.01, backoff_max_s=0.02)

MAIN = """
import os

def activate(context):
    async def handle(event, call):
        os.write(1, b"called %s\\n" % event.event_id.partition(":")[2].encode())

    context.subscriptions.append(context.hooks.register("handle", handle))
"""
MANIFEST = {
    "publisher": "test",
    "name": "ledger",
    "version": "1.0.0",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "handle"}],
}


def make_agent(folder: Path) -> None:
    """An agent folder with one extension."""
    home = folder / "agent" / "extensions" / "ledger"
    home.mkdir(parents=True)
    (home / "extension.json").write_text(json.dumps(MANIFEST))
    (home / "main.py").write_text(MAIN)


def say(text: str) -> None:
    """One write, so that a kill leaves whole lines."""
    os.write(1, f"{text}\n".encode())


def say_stored(events: list[Event[Any]]) -> None:
    """The events of one append, by one write as well."""
    sizes = [len(events)] + [0] * (len(events) - 1)
    say("\n".join(_stored(event, size) for event, size in zip(events, sizes, strict=True)))


def _stored(event: Event[Any], size: int) -> str:
    return f"stored {event.position} {event.session_id} {event.index} {size} {event.raw.decode()}"


async def session_of(log: EventLog, name: str) -> Session:
    """The session, started now if it was not before."""
    try:
        return await log.session(name)
    except SessionNotFound:
        session = await log.start_session(name, project="p")
        say_stored([event async for event in session.read()])
        return session


async def talk(sessions: list[Session], random: Random, appends: int, name: str) -> None:
    """Append one after the other, in every way."""
    for number in range(appends):
        session, chance = random.choice(sessions), random.random()
        turn = f"{name}-{number}"
        if chance < 0.35:
            say_stored([await session.append("turn.completed", {"result": turn}, turn_id=turn)])
        elif chance < 0.55:
            say_stored(await session.append_many([NewEvent("own.batch", {"of": turn, "n": n}) for n in range(BATCHES)]))
        elif chance < 0.65:
            say_stored(await session.append_many([NewEvent("turn.completed", {}, turn_id=turn)] * 3))
        elif chance < 0.75:
            say_stored([await session.append("own.keyed", {"of": turn}, key=turn)])
        elif chance < 0.80:
            say_stored([await session.append(f"own.new-{turn}", {})])
        elif chance < 0.85:
            say_stored([await session.append("own.large", {"of": turn, "v": "x" * random.randrange(20_000)})])
        else:
            say_stored([await session.append("own.type", {"of": turn})])


async def serve(folder: Path, durability: Any, appends: int, seed: int) -> None:
    """Open, append, deliver, close."""
    random = Random(seed)

    async def show(event: Event[Any], _ctx: Any) -> None:
        say(f"shown {event.position}")

    async with EventLog(folder / "log" / "agent.db", durability=durability, slice_rows=20) as log:
        runtime = Runtime(log, agent_dir=folder, grants={"ledger": ["p"]}, policy=POLICY, seed=seed)
        runtime.add_hook("shown", define_hook({"*": show}, on_restart="resume"))
        async with runtime:
            sessions = [await session_of(log, f"s{number}") for number in range(SESSIONS)]
            each = max(1, appends // TASKS)
            await asyncio.gather(*[talk(sessions, random, each, f"{seed}.{task}") for task in range(TASKS)])
            await runtime.settled(timeout_s=30)
            if seed % 2:  # the second life ends without a goodbye
                os._exit(0)
    say("closed")


def main(folder: Path, durability: str, appends: int) -> None:
    """Two lives."""
    writer.CHECKPOINT_PAGES = writer.CHECKPOINT_PAGES_AT_LEISURE = 30  # often, so that they are cut short too
    for seed in (0, 1):
        asyncio.run(serve(folder, durability, appends, seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
