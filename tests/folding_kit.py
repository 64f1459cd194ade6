"""What the tests of projections share: turns with numbers, plain sums over envelopes, tables as rows, and victims."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from eventlog import Event, EventLog, Projection, Runtime, Usage
from eventlog.folding import FoldLimits
from eventlog.projections import rebuild
from examples.server import play_session
from examples.traffic import read_traffic
from tests import victims

LIMITS = FoldLimits(page_events=2, page_positions=7, snapshot_every_events=5, rest_s=0.0)
"""So small that a few events are many pages."""

PAGES = FoldLimits(page_events=5, page_positions=50)
"""Of a rebuild that is to be killed."""

FOLDED = {
    "sessions": "SELECT session, title, sdk_agent_id, abs, continuation_token, status FROM session ORDER BY session",
    "turns": "SELECT * FROM turn_version ORDER BY session, turn_id, version",
    "jobs": "SELECT * FROM job ORDER BY session, job_id",
    "usage": "SELECT u.session, model, day, turns, measured, input_tokens, output_tokens, cache_read_tokens,"
    " cache_write_tokens, reasoned, reasoning_tokens, priced, cost_usd FROM usage AS u"
    " JOIN projection AS p USING (projection) WHERE serves = 1 ORDER BY session, model, day",
}


def count_types(state: dict[str, int], event: Event[Any]) -> dict[str, int]:
    """A fold: how many events there are of each type."""
    return {**state, event.type: state.get(event.type, 0) + 1}


COUNTS = Projection(name="counts", events=["*"], fold=count_types, initial={})


def turn(model: str | None = "m1", usd: float = 0.1, reasoning: int | None = None, **tokens: int) -> dict[str, Any]:
    """The data of a `turn.completed`; without a model it tells no cost, without tokens no usage."""
    data: dict[str, Any] = {}
    if tokens:
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        data["usage"] = {**dict.fromkeys(names, 0), **tokens}
        if reasoning is not None:
            data["usage"]["reasoningTokens"] = reasoning
    if model is not None:
        data["cost"] = {"totalUsd": usd, "model": model}
    return data


def plain_sums(events: Iterable[Event[Any]], by: str, agents: dict[str, str | None] | None = None) -> dict[Any, Any]:
    """The same as `EventLog.usage` tells, by a loop over envelopes."""
    sums: dict[Any, dict[str, Any]] = defaultdict(lambda: defaultdict(Fraction))
    for event in events:
        if event.type != "turn.completed":
            continue
        wire = event.to_dict()
        usage, cost = wire["data"].get("usage"), wire["data"].get("cost")
        key = {
            "session": event.session_id,
            "agent": (agents or {}).get(event.session_id),
            "model": cost and cost["model"],
            "day": wire["at"][:10],
        }[by]
        total = sums[key]
        total["turns"] += 1
        for name in ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens"):
            if usage is not None and name in usage:
                total[name] += usage[name]
        if cost is not None:
            total["usd"] += Fraction(Decimal(repr(float(cost["totalUsd"]))))
    return {key: {name: float(value) for name, value in total.items()} for key, total in sums.items()}


def as_sums(rows: list[Usage]) -> dict[Any, Any]:
    """Rows of usage in the form of `plain_sums`."""
    names = {
        "turns": "turns",
        "input_tokens": "inputTokens",
        "output_tokens": "outputTokens",
        "cache_read_tokens": "cacheReadTokens",
        "cache_write_tokens": "cacheWriteTokens",
        "reasoning_tokens": "reasoningTokens",
        "cost_usd": "usd",
    }
    return {
        row.key: {wire: float(getattr(row, name)) for name, wire in names.items() if getattr(row, name) is not None}
        for row in rows
    }


async def tables(log: EventLog) -> dict[str, list[Any]]:
    """Every row that is folded from the log, of the built-in projections."""

    def read(connection: sqlite3.Connection) -> dict[str, list[Any]]:
        return {name: connection.execute(sql).fetchall() for name, sql in FOLDED.items()}

    return await log.store.read(read)


async def leftovers(log: EventLog) -> list[int]:
    """How many rows of unfinished rebuilds there are, by table."""
    sql = (
        "SELECT (SELECT count(*) FROM session_anew), (SELECT count(*) FROM turn_version_anew),"
        " (SELECT count(*) FROM job_anew), (SELECT count(*) FROM projection WHERE serves = 0),"
        " (SELECT count(*) FROM usage AS u JOIN projection AS p USING (projection) WHERE serves = 0)"
    )
    return list(await log.store.read(lambda connection: connection.execute(sql).fetchone()))


# ------------------------------------------------------------------------------------------------ processes to kill


async def kill_after(limit: int, main: Any, *arguments: object, later_s: float = 0.0) -> bool:
    """Run `main(..., connection)` in a process of its own and kill it when it has said so much, or a moment later.

    False: it ended before.
    """
    receiver, sender = Pipe(duplex=False)
    process = victims.start(main, *arguments, sender)
    sender.close()
    said = 0
    with suppress(EOFError):  # it has ended
        while said < limit:
            await asyncio.to_thread(receiver.recv_bytes)
            said += 1
        await asyncio.sleep(later_s)  # a moment of its work that nothing tells of
    process.kill()
    code = await victims.ended(process)
    receiver.close()
    assert code in (0, -signal.SIGKILL)
    return code != 0


async def play_real_data(db: Path, data: Path, parent: Connection) -> None:
    """Play the recorded sessions where the log stands, with projections behind it that commit often; says each step."""
    traffic = read_traffic(data)
    async with EventLog(db, fold_limits=LIMITS) as log, Runtime(log, projections=[COUNTS]) as runtime:

        def say(events: list[Event[Any]]) -> None:
            for _ in events:
                parent.send_bytes(b"event")

        stop = log.on_recorded(say)
        for lines in traffic.sessions.values():
            await play_session(log, lines)
        stop()
        await runtime.settled()


async def add_up_over_and_over(db: Path, parent: Connection) -> None:
    """Record turns and read the usage, so that sums are written all the time, until killed; says each turn."""
    async with EventLog(db, fold_limits=LIMITS) as log:
        session = await log.start_session(f"s{log.head}")
        while True:
            for number in range(3):
                await session.append("turn.completed", turn("m", 0.1, inputTokens=number), turn_id=f"t{number}")
            parent.send_bytes(b"turns")
            await log.usage()


async def rebuild_over_and_over(db: Path, names: Sequence[str], parent: Connection) -> None:
    """Rebuild everything in this order until killed; says each page."""
    async with EventLog(db, fold_limits=PAGES) as log:
        while True:
            for name in names:
                await rebuild(log, name, lambda position, last: parent.send_bytes(b"page"))


async def fill_randomly(log: EventLog, random: Random, events: int = 300) -> None:
    """Sessions with turns, versions, jobs and changes of their own state, as they come."""
    sessions = [
        await log.start_session(f"s{number}", agent=random.choice(["a", "b", None]), title=random.choice(["t", None]))
        for number in range(4)
    ]
    for number in range(events):
        session = random.choice(sessions)
        turn_id = f"t{random.randrange(6)}"
        kind = random.randrange(8)
        if kind == 0:
            await session.append("session.updated", {"title": f"title {number}", "abs": random.choice([None, [1.5]])})
        elif kind == 1:
            await session.append(random.choice(["session.waiting", "session.completed"]), {})
        elif kind == 2:
            await session.append("turn.started", {}, turn_id=turn_id)
        elif kind == 3:
            job = f"j{random.randrange(9)}"
            await session.append("job.queued", {"jobId": job, "name": f"name {number}"})
        elif kind == 4:
            await session.append("job.started", {"jobId": f"j{random.randrange(9)}"})
        elif kind == 5:
            ended = random.choice(["succeeded", "failed", "cancelled", "outcomeUnknown"])
            await session.append("job.completed", {"jobId": f"j{random.randrange(9)}", "status": ended})
        else:
            tokens = {"inputTokens": random.randrange(99)} if random.random() < 0.7 else {}
            model = random.choice(["m1", "m2", None])
            data = turn(model, random.random(), random.choice([None, 3]), **tokens)
            await session.append("turn.completed", data, turn_id=turn_id)
