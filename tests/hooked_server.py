"""A server that appends and is killed: six hooks write each of their calls down before they do anything else."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from eventlog.errors import SessionNotFound
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.observe.dispatcher import Dispatcher
from eventlog.observe.hook import HookDefinition
from tests.notes import write_note

SESSIONS = 20


async def main(path: str, calls: str, seconds: float) -> None:
    """Serve and append until the time is over, or a kill."""
    out = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    random = Random()

    def hook(number: int) -> HookDefinition:
        async def handler(event: Event[Any], _context: Any) -> None:
            write_note(out, f"h{number} {event.session_id} {event.index}")
            if random.random() < 0.1:
                await asyncio.sleep(random.uniform(0, 0.005))

        return HookDefinition({"*": handler}, "resume" if number in (1, 4) else "skip")

    async with EventLog(Path(path)) as log:
        dispatcher = Dispatcher(log, agent="agent", hook_context=_nothing, channel_context=_nothing)
        for number in range(6):
            dispatcher.add_hook(f"h{number}", hook(number))
        await dispatcher.start()
        print("serving", flush=True)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(_append(log, f"s{n}") for n in range(SESSIONS)))
        except TimeoutError:
            assert await dispatcher.settled(30)
        await dispatcher.stop()


async def _append(log: EventLog, session_id: str) -> None:
    try:
        session = await log.session(session_id)
    except SessionNotFound:
        session = await log.start_session(session_id)
    while True:
        await session.append("own.type", {"text": "x" * 100})


def _nothing(_session: object, _turn_id: object) -> None:
    return None


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
