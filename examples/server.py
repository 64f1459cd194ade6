"""A server with an embedded log: plays recorded sessions as live traffic through an agent.

Its standard output tells how far it is, one line each; it stays up until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from eventlog import DeliveryPolicy, EventLog, Runtime, Session, SessionNotFound
from examples.traffic import Line, Traffic, read_traffic

POLICY = DeliveryPolicy(backoff_first_s=1.0, backoff_factor=2.0)
"""Retries after seconds rather than minutes, so that one can watch them."""


async def serve(db: Path, agent_dir: Path, traffic: Traffic) -> None:
    """Serve the agent, see all of the traffic, and stay up until standard input ends."""
    grants = {"billing": traffic.live_projects()}
    async with EventLog(db) as log, Runtime(log, agent_dir=agent_dir, grants=grants, policy=POLICY) as runtime:
        tell(f"up, with {log.head} events in the log")
        added = await play(log, traffic)
        tell(f"played {added} new events")
        await everything_delivered(runtime)
        tell("delivered everything")
        await asyncio.to_thread(sys.stdin.read)
    tell("stopped in good order")


async def play(log: EventLog, traffic: Traffic) -> int:
    """Play all sessions beside each other, each in its own order; the number of events that were new."""
    before = log.head
    async with asyncio.TaskGroup() as group:
        for lines in traffic.sessions.values():
            group.create_task(play_session(log, lines))
    return log.head - before


async def play_session(log: EventLog, lines: Sequence[Line]) -> None:
    """Go on where the log says that the session stands.

    Its last event is sent again: whether the answer to it arrived, nobody knows any more, and its key makes the
    repetition harmless.
    """
    try:
        session = await log.session(lines[0]["sessionId"])
    except SessionNotFound:
        session = await start(log, lines[0])
    for line in lines[max(1, session.next_index - 1) :]:
        key = f"{session.id}:{line['index']}"
        await session.append(line["type"], line["data"], turn_id=line.get("turnId"), key=key)


async def start(log: EventLog, line: Line) -> Session:
    """Start a session as its first line says."""
    data = line["data"]
    return await log.start_session(
        line["sessionId"],
        agent=data.get("agent"),
        project=data["projectId"],
        channel=data["channelId"],
        mode=data["mode"],
        purpose=data["purpose"],
        auth=data.get("auth"),
        title=data.get("title"),
        abs=data.get("abs"),
        continuation_token=data.get("continuationToken"),
    )


async def everything_delivered(runtime: Runtime) -> None:
    """Wait until nothing is owed any more, through every back-off."""
    while owed := await runtime.extensions.deliveries():
        next_due = min(each.due_at for each in owed if each.waits_for is None)
        wait_s = (next_due - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(max(0.0, wait_s))
        await runtime.settled(timeout_s=30)


def tell(what: str) -> None:
    """Say how far it is, at once: whoever reads it waits for it."""
    print(what, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(prog="python -m examples.server", description=__doc__)
    parser.add_argument("--db", type=Path, required=True, help="the log")
    parser.add_argument("--dir", type=Path, required=True, help="the folder that holds agent/")
    parser.add_argument("--data", type=Path, required=True, help="the sessions to play, as JSONL envelopes")
    chosen = parser.parse_args(arguments)
    asyncio.run(serve(chosen.db, chosen.dir, read_traffic(chosen.data)))


if __name__ == "__main__":
    main()
