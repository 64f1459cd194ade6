"""Runs a module of `benchmarks` in a process of its own, which prints what it measured as one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]


async def printed_by(module: str, *words: object, before: Sequence[str] = ()) -> Any:
    """What `python -m benchmarks.MODULE WORDS` prints, as JSON; `before` is a program that runs it."""
    command = [*before, sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]
    path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    child = await asyncio.create_subprocess_exec(
        *command, cwd=CHECKOUT, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    printed, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return json.loads(printed.splitlines()[-1])
