"""Measures everything: `python -m benchmarks [--quick] [--only NAME] [--rounds 5] [--json FILE] [--plots DIR]`.

docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plots
from benchmarks.backup import BACKUP
from benchmarks.delay import DELAY
from benchmarks.flat import FLAT, LARGE_SHARE
from benchmarks.memory import MEMORY
from benchmarks.opening import OPENING
from benchmarks.peers.subject import PEERS
from benchmarks.reading import READING
from benchmarks.scale import SCALE
from benchmarks.slow_disk import SLOW_DISK
from benchmarks.start import START
from benchmarks.tails import TAILS
from eventlog.bench import QUICK_SHARE, SUBJECTS, Subject, document, heading, measure, table
from eventlog.bench.report import markdown

ALL: tuple[Subject, ...] = (
    *SUBJECTS,
    PEERS,
    READING,
    TAILS,
    DELAY,
    BACKUP,
    SLOW_DISK,
    SCALE,
    START,
    OPENING,
    MEMORY,
    FLAT,
)


async def run(arguments: argparse.Namespace) -> None:
    """Measure in a folder that is gone afterwards, and tell."""
    rounds = 1 if arguments.quick or arguments.large else arguments.rounds
    share = QUICK_SHARE if arguments.quick else LARGE_SHARE if arguments.large else 1.0
    subjects = [each for each in ALL if not arguments.only or each.name in arguments.only]
    measured = await measure(subjects, arguments.dir, rounds=rounds, share=share, say=_say)
    print(heading())
    for each in measured:
        print(f"\n{markdown(each) if arguments.markdown else table(each)}")
    found = document(measured, {"rounds": rounds, "share": share})
    if arguments.json is not None:
        arguments.json.write_text(f"{json.dumps(found, indent=2)}\n")
    if arguments.plots is not None:
        plots.draw(found, arguments.plots)


def _say(underway: str) -> None:
    print(underway, file=sys.stderr)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the words of a command line ask for; ends the process for those that ask for nothing there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures everything.")
    names = [each.name for each in ALL]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--large", action="store_true", help="one round with ten times as much")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--markdown", action="store_true", help="print tables as docs/performance.md has them")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw it, as SVG files in DIR")
    parser.add_argument("--dir", type=Path, default=Path(), help="on the disk to measure (default: the current folder)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    asyncio.run(run(parsed(arguments)))


if __name__ == "__main__":
    main()
