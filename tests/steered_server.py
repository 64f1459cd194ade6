"""A server that is steered from outside: `python -m tests.steered_server DB [serve]`.

It does what it is told on stdin, and says on stdout what it and its extensions do, a line each. Without `serve` it owns
the log and has no runtime.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from eventlog import EventLog, Runtime
from tests.extension_kit import complete_turn


def say(line: str) -> None:
    """One write, so that lines stay whole."""
    os.write(1, f"{line}\n".encode())


async def main(db: Path, serve: bool) -> None:
    """Serve until stdin ends."""
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(EventLog(db))
        runtime = await stack.enter_async_context(Runtime(log)) if serve else None
        say("serving")
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            match words:
                case ["turn", session_id, turn_id]:
                    event = await complete_turn(log, session_id, turn_id)
                    say(f"recorded {event.id}")
                case ["settle"] if runtime is not None:
                    await runtime.settled()
                    say("settled")
    say("stopped")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:] == ["serve"]))
