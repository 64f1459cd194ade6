"""What a demo or a test has go wrong here. Nothing does unless these variables are set.

`BILLING_REFUSES=<session>/<turn>`: the first two calls for this turn fail.
`BILLING_DIES=<session>/<turn>` with `BILLING_DIED=<file>`: the process is killed, once, after this turn was billed and
before its handler returned. The file, which must not be there yet, marks that it happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

REFUSALS = 2


class ServiceDown(Exception):
    """The service that keeps the books does not answer."""


class Rehearsal:
    """The script of one run, as the environment gives it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._refuses = environment.get("BILLING_REFUSES")
        self._dies = environment.get("BILLING_DIES")
        self._died = Path(environment.get("BILLING_DIED", "died"))
        self._refused = asyncio.Event()

    def refuse(self, turn: str, call: int) -> None:
        """Fail if it is a call, counted from 1, that is to fail."""
        if turn == self._refuses and call <= REFUSALS:
            self._refused.set()
            raise ServiceDown(f"the billing service does not answer (call {call})")

    async def before_the_effect(self, turn: str) -> None:
        """Let the failure come first, so that a retry is waiting when the process dies."""
        if self._is_to_die(turn) and self._refuses not in (None, turn):
            await self._refused.wait()

    def after_the_effect(self, turn: str) -> None:
        """Kill the process if this is where it is to die: no handler returns, nothing is cleaned up."""
        if self._is_to_die(turn):
            self._died.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_to_die(self, turn: str) -> bool:
        return turn == self._dies and not self._died.exists()
