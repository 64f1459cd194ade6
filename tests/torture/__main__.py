"""Long runs of everything that is tried on the log: `make torture`, or

    python -m tests.torture [PART ...] [--count N] [--seconds S] [--seed N]

Each part prints what was tried, what held and the seed that brings it back; a breach ends the run with code 1. Without
a count a part does all that there is, or what its long run is; with seconds it goes on with other seeds until then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.log_kit import NO_INJECTION, can_inject
from tests.torture import parts
from tests.torture.tally import Tally

Part = Callable[[Tally, Path, int | None], None]


def main(arguments: list[str]) -> int:
    """Run the parts; 0 if all held, 1 for a breach, 2 if something that a part needs is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__, allow_abbrev=False)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts.PARTS)}; all without one")
    parser.add_argument("--count", type=int, help="how many of each part")
    parser.add_argument("--seconds", type=float, help="go on with further seeds for so long, each part")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    unknown = set(asked.parts) - set(parts.PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts.PARTS)}")
    chosen = asked.parts or list(parts.PARTS)
    if any(parts.PARTS[name].injects for name in chosen) and not can_inject():
        print(f"{', '.join(name for name in chosen if parts.PARTS[name].injects)}: {NO_INJECTION} (apt install strace)")
        return 2
    tallies = [_run(name, asked.seed, asked.count, asked.seconds) for name in chosen]
    breaches = sum(len(tally.breaches) for tally in tallies)
    print(f"\n{sum(tally.count for tally in tallies):,} tried in {len(tallies)} parts, {breaches:,} did not hold")
    return 1 if breaches else 0


def _run(name: str, seed: int, count: int | None, seconds: float | None) -> Tally:
    part, tally = parts.PARTS[name], Tally(name, seed)
    until_s = time.monotonic() + (seconds or 0)
    while True:
        with TemporaryDirectory(dir=_memory(), prefix="eventlog-torture-") as folder:
            once = Tally(name, seed)
            asyncio.run(part.run(once, Path(folder), count or part.long_run))
            tally.add(once)
        seed += 1
        if time.monotonic() >= until_s or tally.breaches:
            print(tally, flush=True)
            return tally


def _memory() -> str | None:
    """Files in memory cost no disk, and a power cut is only replayed."""
    memory = Path("/dev/shm")  # noqa: S108 (the folder in it has a name of its own)
    return str(memory) if memory.is_dir() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
