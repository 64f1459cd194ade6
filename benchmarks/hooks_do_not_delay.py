"""Measures whether hooks delay appends: two handlers that take 2 s each take turns in one session all the while.

`python -m benchmarks.hooks_do_not_delay [--rounds 5] [--blocks 40] [--json FILE] [--dir DIR]`. One task awaits append
after append in the other sessions: blocks of 100 in a log with these hooks and in one without a runtime take turns, so
that what slows the machine down slows both. One handler is a coroutine function that waits, the other a plain function
that blocks its thread. In "slow" they are only called in their own session; in "slow, all shown" they are called for
every event of the others too, where they return at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measures import BLOCK, seconds, warm
from benchmarks.report import Figure, Samples, as_json, machine, percentile, table
from benchmarks.workload import TYPE, Appender
from eventlog import Event, HookContext, NewEvent, Runtime, define_hook
from eventlog.observe import Handler

SLOW_S = 2.0
SLOW_SESSION = "ses_slow"
OWN_TYPE = "artifact.tagged"
QUICK_ROUNDS, QUICK_BLOCKS = 1, 4

WITHOUT_P50, WITHOUT_P99 = "no hooks, p50", "no hooks, p99"

FIGURES = (
    Figure(WITHOUT_P50, "us", "one awaited append after the other, nobody looks: half of them took no longer"),
    Figure(WITHOUT_P99, "us", "99 of 100 of them took no longer"),
    Figure(
        "slow, p50",
        "us",
        "the same beside a session where handlers take 2 s each, async and plain in turn",
        WITHOUT_P50,
    ),
    Figure("slow, p99", "us", "99 of 100 of them took no longer", WITHOUT_P99, at_most=1.5),
    Figure("slow, all shown, p50", "us", "the same, and both are called for each of these events too", WITHOUT_P50),
    Figure("slow, all shown, p99", "us", "99 of 100 of them took no longer", WITHOUT_P99, at_most=1.5),
)


async def waits(event: Event[Any], ctx: HookContext) -> None:
    """Hold up one session, as a call to another server would."""
    if ctx.session.id == SLOW_SESSION:
        await asyncio.sleep(SLOW_S)


def blocks(event: Event[Any], ctx: HookContext) -> None:
    """The same on a thread."""
    if ctx.session.id == SLOW_SESSION:
        time.sleep(SLOW_S)


@asynccontextmanager
async def slowed(appender: Appender, types: Sequence[str]) -> AsyncIterator[None]:
    """Both handlers at work, with more to come than is done while this is measured."""
    runtime = Runtime(appender.log)
    for name, handler in (("waits", waits), ("blocks", blocks)):
        events: dict[str, Handler] = dict.fromkeys(types, handler)
        runtime.add_hook(name, define_hook(events=events))
    await runtime.start()
    try:
        session = await appender.log.start_session(SLOW_SESSION)
        await session.append_many([NewEvent(OWN_TYPE, {"kind": "note", "key": "k"})] * BLOCK)
        yield
    finally:
        await runtime.stop(0)


async def measure(folder: Path, block_count: int, samples: Samples) -> None:
    """One round."""
    took_s = defaultdict[str, list[float]](list)
    async with AsyncExitStack() as stack:
        logs: dict[str, Appender] = {}
        for name, types in (("no hooks", ()), ("slow", (OWN_TYPE,)), ("slow, all shown", (OWN_TYPE, TYPE))):
            appender = logs[name] = await stack.enter_async_context(warm(folder))
            if types:
                await stack.enter_async_context(slowed(appender, types))
        order = list(logs.items())
        for _ in range(block_count):
            order.append(order.pop(0))
            for name, appender in order:
                took_s[name] += [await seconds(appender.one) for _ in range(BLOCK)]
    for name, values in took_s.items():
        for percent in (50, 99):
            samples[f"{name}, p{percent}"].append(percentile(values, percent) * 1e6)


async def run(arguments: argparse.Namespace) -> None:
    """Measure in a folder that is gone afterwards, and tell."""
    rounds, count = (QUICK_ROUNDS, QUICK_BLOCKS) if arguments.quick else (arguments.rounds, arguments.blocks)
    samples: Samples = defaultdict(list)
    with TemporaryDirectory(prefix="eventlog-bench-", dir=arguments.dir) as folder:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            await measure(Path(folder), count, samples)
    found = machine()
    print(f"{count * BLOCK:,} appends a round; {found['cores']} cores, Python {found['python']}\n")
    print(table(FIGURES, samples))
    if arguments.json is not None:
        arguments.json.write_text(as_json(FIGURES, samples, {"rounds": rounds, "appends": count * BLOCK}))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hooks_do_not_delay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--blocks", type=int, default=40, help="of 100 appends, a round (default: 40)")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--dir", type=Path, default=Path(), help="on the disk to measure (default: the current folder)")
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
