"""A server with six hooks and a channel that is killed: it records events of twenty sessions, and keeps a journal.

The journal is a file of notes, each whole or not there:

    open                              the process is about to open the log
    append SESSION / appended SESSION INDEX
    call WHO SESSION INDEX / return WHO SESSION INDEX
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eventlog import Event, EventLog, HookDefinition, Runtime, SessionNotFound
from eventlog.observe import ChannelDefinition, OnRestart
from tests.notes import write_note

SESSIONS = tuple(f"s{number}" for number in range(20))
CHANNEL = "api"
ORDERLY_EVENTS = 20
"""Of each session, in a life that ends by itself."""


class Listener(NamedTuple):
    """What a hook or the channel listens to, and how."""

    type: str
    plain: bool
    on_restart: OnRestart = "skip"

    def wants(self, type: str) -> bool:
        return self.type in ("*", type)


LISTENERS = {
    CHANNEL: Listener("*", plain=False),
    "audit": Listener("*", plain=False),
    "deltas": Listener("message.appended", plain=True),
    "meter": Listener("turn.completed", plain=False, on_restart="resume"),
    "mirror": Listener("*", plain=True, on_restart="resume"),
    "turns": Listener("turn.completed", plain=True),
    "waits": Listener("*", plain=False),
}
"""In the order in which they are called."""
HOOKS = tuple(name for name in LISTENERS if name != CHANNEL)


class Server:
    """One life of the server."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._journal = os.open(folder / "journal.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        write_note(self._journal, " ".join(map(str, words)))

    async def serve(self, parent: Connection | None) -> None:
        """Tell the parent when it serves, and go on until the kill; without a parent, to an orderly end."""
        self.note("open")
        async with EventLog(self._folder / "agent.db") as log:
            runtime = Runtime(log)
            for name in HOOKS:
                runtime.add_hook(name, HookDefinition(self._events(name), LISTENERS[name].on_restart))
            runtime.add_channel(ChannelDefinition(CHANNEL, self._events(CHANNEL)))
            async with runtime:
                if parent is not None:
                    parent.send_bytes(b"serving")
                count = ORDERLY_EVENTS if parent is None else None
                await asyncio.gather(*[self._talk(log, session_id, count) for session_id in SESSIONS])

    async def _talk(self, log: EventLog, session_id: str, count: int | None) -> None:
        try:
            session = await log.session(session_id)
        except SessionNotFound:
            session = await log.start_session(session_id, channel=CHANNEL)
        while count is None or count > 0:
            type, data = self._random.choice(
                [("message.appended", {"delta": "so"}), ("turn.completed", {}), ("test.noted", {"text": "x" * 200})]
            )
            self.note("append", session_id)
            event = await session.append(type, data, turn_id="t1")
            self.note("appended", session_id, event.index)
            count = None if count is None else count - 1
            await asyncio.sleep(self._random.uniform(0.0, 0.005))

    def _events(self, who: str) -> dict[str, Callable[..., Any]]:
        listener = LISTENERS[who]
        return {listener.type: self._plain(who) if listener.plain else self._coroutine(who)}

    def _coroutine(self, who: str) -> Callable[..., Any]:
        async def handler(event: Event[Any], _ctx: object) -> None:
            self.note("call", who, event.session_id, event.index)
            if self._random.random() < 0.1:
                await asyncio.sleep(self._random.uniform(0.0, 0.003))
            self.note("return", who, event.session_id, event.index)

        return handler

    def _plain(self, who: str) -> Callable[..., Any]:
        def handler(event: Event[Any], _ctx: object) -> None:
            self.note("call", who, event.session_id, event.index)
            if self._random.random() < 0.1:
                time.sleep(self._random.uniform(0.0, 0.001))
            self.note("return", who, event.session_id, event.index)

        return handler


async def serve(folder: Path, seed: int, parent: Connection | None) -> None:
    """In a process of its own."""
    await Server(folder, seed).serve(parent)
