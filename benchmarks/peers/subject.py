"""The peers: the same events, appended by 256 tasks and one at a time; those that are queues deliver them too.

All are synchronous = FULL, in WAL, on a new file, in the same round as R, H and the log itself; what each promises, and
what was set, is said with its figures. Those that block are called on threads, as an asyncio server has to call them:
called straight they are quicker, and the loop stands still meanwhile. A peer that is not installed is left out; `pip
install -e '.[bench]'` installs all of them. Not measured: their batch calls, for which a server would have to collect
events itself; peers in other languages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from benchmarks.peers import eventsource_py, eventsourcing, huey, langgraph, litequeue, openai_agents, persist_queue
from benchmarks.peers.peer import Opened, Peer
from eventlog.bench import Figure, Run, Subject
from eventlog.bench.durable import delivered
from eventlog.bench.limits import append_rate
from eventlog.bench.measuring import beside_bare_inserts, seconds, warm
from eventlog.bench.report import percentile
from eventlog.bench.workload import PRODUCERS

ALL_PEERS: tuple[Peer, ...] = tuple(
    module.PEER for module in (eventsourcing, litequeue, persist_queue, huey, openai_agents, langgraph, eventsource_py)
)
EVENTS, PEER_EVENTS, DELIVERED = 50_000, 2_000, 500
OURS = "eventlog"
R, H = "R", "H, p50"


def _h_beside(name: str) -> str:
    return H if name == OURS else f"H beside {name}"


def _figures(name: str, promise: str, *, delivers: bool) -> tuple[Figure, ...]:
    figures = (
        Figure(f"{name}: 256 tasks", "events/s", promise, R),
        Figure(f"{name}: one, p50", "us", "one awaited append after the other, in turn with H", _h_beside(name)),
    )
    delivery = Figure(f"{name}: delivered", "events/s", "append, take, an empty handler, acknowledged", R)
    return (*figures, delivery) if delivers else figures


FIGURES = (
    Figure(R, "events/s", "sqlite3 alone, executemany in groups of 256, synchronous = FULL"),
    Figure(H, "us", "one bare INSERT on aiosqlite, awaited, FULL"),
    *_figures(OURS, "on the disk: WAL, FULL", delivers=True),
    *(figure for peer in ALL_PEERS for figure in _figures(peer.name, peer.promise, delivers=peer.delivers)),
)


async def measure(run: Run) -> None:
    """One round."""
    events = run.scaled(EVENTS)
    run.note(R, append_rate(run.folder, events, "full"))
    async with warm(run) as appender:
        run.note(f"{OURS}: 256 tasks", events / await seconds(lambda: appender.many(events)))
        ours_s, bare_s = await beside_bare_inserts(run, lambda: seconds(appender.one), 5)
    run.note(f"{OURS}: one, p50", percentile(ours_s, 50) * 1e6)
    run.note(H, percentile(bare_s, 50) * 1e6)
    run.note(f"{OURS}: delivered", await _ours_delivered(run, run.scaled(10 * DELIVERED)))
    for peer in ALL_PEERS:
        if peer.is_installed:
            with run.a_folder() as folder:
                async with peer.opened(folder) as opened:
                    await _measure_peer(run, peer, opened)


async def _ours_delivered(run: Run, events: int) -> float:
    async with warm(run, turns=True) as appender, delivered(run, appender, lambda event: None) as runtime:

        async def append_and_wait() -> None:
            await appender.many(events)
            await runtime.settled(120)

        return events / await seconds(append_and_wait)


async def _measure_peer(run: Run, peer: Peer, opened: Opened) -> None:
    numbers, events = count(), run.scaled(PEER_EVENTS)
    await opened.append(next(numbers))  # some open their file with the first
    if opened.deliver is not None:
        await opened.deliver(1)
        deliveries = run.scaled(DELIVERED)
        began = await seconds(lambda: _by_tasks(opened.append, numbers, deliveries))
        took = await seconds(lambda: opened.deliver(deliveries) if opened.deliver else asyncio.sleep(0))
        run.note(f"{peer.name}: delivered", deliveries / (began + took))
    took = await seconds(lambda: _by_tasks(opened.append, numbers, events))
    run.note(f"{peer.name}: 256 tasks", events / took)
    ours_s, bare_s = await beside_bare_inserts(run, lambda: seconds(lambda: opened.append(next(numbers))), 5)
    run.note(f"{peer.name}: one, p50", percentile(ours_s, 50) * 1e6)
    run.note(_h_beside(peer.name), percentile(bare_s, 50) * 1e6)


async def _by_tasks(append: Callable[[int], Awaitable[object]], numbers: count[int], events: int) -> None:
    left = iter(range(events))

    async def produce() -> None:
        for _ in left:
            await append(next(numbers))

    await asyncio.gather(*[produce() for _ in range(PRODUCERS)])


PEERS = Subject("peers", __doc__, FIGURES, measure)
