"""Notes each call of a hook in the file that `HOOK_CALLS` names, to prove that no event came twice."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import TypeAlias, TypeVar

from eventlog import Event, HookContext

D = TypeVar("D")

Handler: TypeAlias = Callable[[Event[D], HookContext], Awaitable[None]]


def noted(hook: str) -> Callable[[Handler[D]], Handler[D]]:
    """Have each call of a handler noted under the name of its hook, before it runs."""

    def around(handler: Handler[D]) -> Handler[D]:
        @wraps(handler)
        async def called(event: Event[D], ctx: HookContext) -> None:
            if path := os.environ.get("HOOK_CALLS"):
                note(Path(path), hook, event)
            await handler(event, ctx)

        return called

    return around


def note(path: Path, hook: str, event: Event[D]) -> None:
    """Append one line by one write, which is there or not, but never in part, however the process ends."""
    line = {"hook": hook, "session": event.session_id, "index": event.index, "position": event.position}
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
