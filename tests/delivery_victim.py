"""A server with five extensions and a hook that is killed: it records turns of fifty conversations, in a journal too.

The journal is a file of notes, each whole or not there:

    open NANOSECONDS              the process is about to open the log
    found REQUEST                 a call that an owner before it began and did not settle
    ready                         from here on it makes calls itself
    append TURN / appended TURN
    call EXTENSION EVENT REQUEST CONVERSATION NANOSECONDS
    raise REQUEST / return REQUEST
    shown SESSION INDEX           the hook is called
    begin CHORE / end CHORE       the writer absorbs, or brings the WAL into the file
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

from eventlog import DeliveryPolicy, Event, EventLog, HookCallContext, Runtime, TurnCompletedEnvelope, define_hook
from eventlog.store import writer
from eventlog.store.database import checkpoint
from eventlog.store.index import SessionIndex
from tests.notes import write_note

EXTENSIONS = tuple(f"ext{number}" for number in range(5))
CONVERSATIONS = tuple(f"c{number}" for number in range(50))
WRITERS = 8
ROOM = 250  # deliveries that may wait, of all extensions: what one life leaves, the next ones can do
POLICY = DeliveryPolicy(backoff_first_s=0.01, backoff_max_s=0.01)
HOOK = "watch"
ABSORB, CHECKPOINT = "absorb", "checkpoint"
SLICE_ROWS, CHECKPOINT_PAGES = 4, 20
"""So few that the writer is often at its chores."""
AIMED_AT = 8  # a kill that is aimed at a chore falls into one of the first so many of a life

NEVER = -1
SWITCH_S = 0.000_1  # or a kill would come when the chore is long over

P = ParamSpec("P")
T = TypeVar("T")

_MAIN = """
from tests import delivery_victim

def activate(context):
    async def handle(event, call):
        await delivery_victim.server.handle(context.extension_id, event, call)

    context.subscriptions.append(context.hooks.register("handle", handle))
"""


def make_agent(folder: Path) -> None:
    """An agent folder with the five extensions."""
    for name in EXTENSIONS:
        home = folder / "agent" / "extensions" / name
        home.mkdir(parents=True)
        manifest = {
            "publisher": "test",
            "name": name,
            "version": "1.0.0",
            "engines": {"api": "1"},
            "main": "main.py",
            "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
            "hooks": [{"event": "conversation.turn.completed", "handler": "handle"}],
        }
        (home / "extension.json").write_text(json.dumps(manifest))
        (home / "main.py").write_text(_MAIN)


class Server:
    """One life of the server."""

    def __init__(self, folder: Path, seed: int, aim: str | None = None) -> None:
        self._folder = folder
        self._aim = aim
        self._random = Random(seed)
        self._journal = os.open(folder / "journal.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._to_refuse: set[tuple[str, str]] = set()

    def note(self, *words: object) -> None:
        write_note(self._journal, " ".join(map(str, words)))

    async def serve(self, parent: Connection | None) -> None:
        """Tell the parent when it serves, and go on until the kill; without a parent, until nothing waits."""
        self.note("open", time.monotonic_ns())
        self._note_chores()
        async with EventLog(self._folder / "agent.db", slice_rows=SLICE_ROWS) as log:
            await self._look_at_what_is_there(log)
            grants = {name: ["p"] for name in EXTENSIONS}
            runtime = Runtime(log, agent_dir=self._folder, grants=grants, policy=POLICY)
            runtime.add_hook(HOOK, define_hook({"*": self._show}))
            async with runtime:
                if parent is None:
                    await runtime.settled(timeout_s=30)
                else:
                    parent.send_bytes(b"serving")
                    await self._write(log)

    def _note_chores(self) -> None:
        """For the life of this process: the chores are what they were, and noted."""
        writer.CHECKPOINT_PAGES = writer.CHECKPOINT_PAGES_AT_LEISURE = CHECKPOINT_PAGES
        patch.object(SessionIndex, "step", self._noted(ABSORB, SessionIndex.step)).start()
        patch.object(writer, "checkpoint", self._noted(CHECKPOINT, checkpoint)).start()

    def _noted(self, chore: str, work: Callable[P, T]) -> Callable[P, T]:
        random, took_s = Random(self._random.random()), 0.0
        upto_kill = random.randrange(AIMED_AT) if self._aim == chore else NEVER

        def noted(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal took_s, upto_kill
            self.note("begin", chore)
            if not upto_kill:
                Thread(target=_die_after, args=(random.uniform(0.0, took_s),)).start()
            upto_kill -= 1
            began_s = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                took_s = time.perf_counter() - began_s
                self.note("end", chore)

        return noted

    async def _look_at_what_is_there(self, log: EventLog) -> None:
        def look(connection: Any) -> tuple[list[str], int]:
            held = connection.execute("SELECT request_id FROM delivery WHERE state = 'delivering'").fetchall()
            (live,) = connection.execute("SELECT count(*) FROM delivery WHERE state <> 'dead'").fetchone()
            return [request for (request,) in held], live

        found, self._waiting = await log.store.read(look)
        for request in found:
            self.note("found", request)
        self.note("ready")

    async def _write(self, log: EventLog) -> None:
        known = {info.id async for info in log.sessions()}
        new = [name for name in CONVERSATIONS if name not in known]
        await asyncio.gather(*[log.start_session(name, project="p") for name in new])
        await asyncio.gather(*[self._talk(log) for _ in range(WRITERS)])

    async def _talk(self, log: EventLog) -> None:
        while True:
            while self._waiting > ROOM:
                self._has_room.clear()
                await self._has_room.wait()
            self._waiting += len(EXTENSIONS)
            turn = f"{self._random.getrandbits(64):016x}"
            if self._random.random() < 0.1:
                self._to_refuse |= {(f"test.{name}", turn) for name in EXTENSIONS}
            self.note("append", turn)
            await log.append(self._random.choice(CONVERSATIONS), "turn.completed", {}, turn_id=turn)
            self.note("appended", turn)
            await asyncio.sleep(self._random.uniform(0.0, 0.01))

    async def _show(self, event: Event[Any], _context: object) -> None:
        self.note("shown", event.session_id, event.index)

    async def handle(self, extension: str, event: TurnCompletedEnvelope, context: HookCallContext) -> None:
        """Work for a while and wait for a while. Of the turns that this life recorded, it refuses every tenth once."""
        request = context.request_id
        self.note("call", extension, event.event_id, request, event.conversation_id, time.monotonic_ns())
        time.sleep(self._random.uniform(0.0, 0.000_5))
        await asyncio.sleep(self._random.uniform(0.0, 0.005))
        if (extension, event.turn_id) in self._to_refuse:
            self._to_refuse.remove((extension, event.turn_id))
            self.note("raise", request)
            raise ConnectionError("not now")
        self._waiting -= 1
        self._has_room.set()
        self.note("return", request)


def _die_after(seconds: float) -> None:
    """On a thread of its own, since the writer's is in the midst of a chore."""
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


server: Server


async def serve(folder: Path, seed: int, parent: Connection | None, aim: str | None = None) -> None:
    """In a process of its own; with an aim, it is killed at a random moment of one of these chores."""
    global server
    if aim:
        sys.setswitchinterval(SWITCH_S)
    server = Server(folder, seed, aim)
    await server.serve(parent)
