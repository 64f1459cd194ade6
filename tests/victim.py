"""A server that is killed: `python -m tests.victim DB FOLDER SEED [settle]`.

It appends to several sessions at once and says so, a line an event, only after `append` has returned. Its observe hook
and its extension (see FOLDER/agent) note in a file of their own whatever they are called with. With `settle` it
appends nothing and ends when nothing is left to be done.
"""

import asyncio
import os
import sys
from pathlib import Path
from random import Random

from eventlog import DeliveryPolicy, EventLog, Runtime, Session, SessionNotFound

SESSIONS = 8
POLICY = DeliveryPolicy(backoff_first_s=0.01, backoff_max_s=0.05)


def say(line: str) -> None:
    """One write, so that a kill leaves whole lines."""
    os.write(1, f"{line}\n".encode())


async def talk(session: Session, random: Random) -> None:
    """Turn after turn, until the process is killed."""
    while True:
        turn = f"t{session.next_index}"
        for type_, data in (
            ("turn.started", {}),
            ("message.received", {"text": f"{turn} asks {random.random()}"}),
            ("message.appended", {"delta": "x" * random.randrange(2_000)}),
            ("turn.completed", {"result": turn}),
        ):
            event = await session.append(type_, data, turn_id=turn)
            say(f"{session.id} {event.index} {event.type} {event.turn_id}")


async def session_of(log: EventLog, name: str) -> Session:
    """The session, started now if it was not before."""
    try:
        return await log.session(name)
    except SessionNotFound:
        session = await log.start_session(name, project="p1")
        say(f"{name} 0 session.started None")
        return session


async def main(db: Path, folder: Path, seed: int, settle: bool) -> None:
    """Serve until it is killed, or until everything is settled."""
    async with (
        EventLog(db, slice_rows=512) as log,
        Runtime(log, agent_dir=folder, grants={"ledger": ["p1"]}, policy=POLICY, seed=seed) as runtime,
    ):
        if settle:
            await runtime.settled(timeout_s=30)
            return
        random = Random(seed)
        sessions = [await session_of(log, f"s{number}") for number in range(SESSIONS)]
        await asyncio.gather(*[talk(session, random) for session in sessions])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["settle"]))
