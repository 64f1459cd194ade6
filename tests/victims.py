"""Real processes for tests that kill them, forked from a server that has the library loaded: a start costs little."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Callable, Coroutine
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from typing import Any

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["eventlog", "tests.extension_kit", "tests.hook_victim", "tests.ledger"])


def start(main: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> ForkServerProcess:
    """Run a coroutine function of some module in a process of its own."""
    process = _PROCESSES.Process(target=_run, args=(main, *arguments), daemon=True)
    process.start()
    return process


async def ended(process: ForkServerProcess, limit_s: float = 30.0) -> int:
    """Wait until a process has ended: its exit code, below zero the signal that ended it."""
    # Only this thread asks for the code: the pipe that it comes through is read once.
    there: list[Any] = await asyncio.to_thread(wait, [process.sentinel], limit_s)
    if not there:
        process.kill()
    process.join()
    assert there, f"a process did not end within {limit_s:g} s"
    assert process.exitcode is not None
    return process.exitcode


def _run(main: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
    logging.getLogger("eventlog").addHandler(logging.NullHandler())  # what fails in here fails on purpose
    asyncio.run(main(*arguments))
