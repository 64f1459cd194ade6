"""10,000 tails that wait: what it costs to wake one of them, and what they cost while nothing comes.

Each is of a session of its own. Measured is the time from the call of an append until the one tail has the event, less
that of an append to a session without a tail. Idle is the processor time of the whole process when the writer has put
its file in order, which it does a second after the last append. Not measured: tails of the whole log, which are all
woken, and tails of other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from statistics import median
from time import perf_counter, process_time

from eventlog import EventLog, Session
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.workload import TURN_ID, TYPE, payload, session_ids
from eventlog.store.writer import IDLE_S as WRITER_TIDIES_AFTER_S

WAITING = 10_000
APPENDS = 500
IDLE_S = 2.0

FIGURES = (
    Figure("append", "us", "one append to a session that has no tail, among the tails"),
    Figure("append to its tail", "us", "from the call of append until the tail has the event"),
    Figure("waking one", "us", "the difference", at_most=60),
    Figure("idle", "share", "of a core, that 10,000 tails take while nothing comes", at_most=0.005),
)


@asynccontextmanager
async def waiting(log: EventLog, count: int) -> AsyncIterator[tuple[list[Session], asyncio.Queue[float]]]:
    """Sessions with a tail each; a tail that has an event says when."""
    sessions = await asyncio.gather(*[log.start_session(id) for id in session_ids(count)])
    came = asyncio.Queue[float]()

    async def follow(session: Session) -> None:
        async for _ in session.tail(after=0):
            came.put_nowait(perf_counter())

    tails = [asyncio.ensure_future(follow(session)) for session in sessions]
    while log.tails_waiting() < count:
        await asyncio.sleep(0.01)
    try:
        yield sessions, came
    finally:
        for tail in tails:
            tail.cancel()
        await asyncio.gather(*tails, return_exceptions=True)


async def measure(run: Run) -> None:
    """One round."""
    data = payload()
    with run.a_folder() as folder:
        async with EventLog(folder / "log.db") as log, waiting(log, run.scaled(WAITING, 10)) as (sessions, came):
            alone, turns = await log.start_session("alone"), cycle(sessions)
            plain_s, woken_s = list[float](), list[float]()
            for _ in range(run.scaled(APPENDS, 20)):
                began_s = perf_counter()
                await alone.append(TYPE, data, turn_id=TURN_ID)
                plain_s.append(perf_counter() - began_s)
                began_s = perf_counter()
                await next(turns).append(TYPE, data, turn_id=TURN_ID)
                woken_s.append(await came.get() - began_s)
            run.note("append", median(plain_s) * 1e6)
            run.note("append to its tail", median(woken_s) * 1e6)
            run.note("waking one", (median(woken_s) - median(plain_s)) * 1e6)
            await asyncio.sleep(2 * WRITER_TIDIES_AFTER_S * min(1.0, run.share))
            idle_s, used_s = max(0.2, IDLE_S * min(1.0, run.share)), process_time()
            await asyncio.sleep(idle_s)
            run.note("idle", (process_time() - used_s) / idle_s)


TAILS = Subject("tails", __doc__, FIGURES, measure)
