"""The memory hook: journals a line for each turn that ended, for later sessions of the agent to read."""

from __future__ import annotations

import re
from collections import OrderedDict
from datetime import datetime
from typing import Any, Literal

import msgspec

from eventlog.clock import format_time, parse_time, to_datetime
from eventlog.encoding import encode_json
from eventlog.errors import InvalidName
from eventlog.events import Event, MessageCompleted, MessageReceived, TurnCompleted, TurnFailed
from eventlog.host import Host
from eventlog.observe.context import HookContext
from eventlog.observe.hook import HookDefinition, define_hook

KEEP_LINES = 1_000
MAX_TEXT_CHARACTERS = 500
"""Of each text of a line; the log has the whole of it."""
OPEN_TURNS = 10_000
"""Turns whose texts wait for their end; one more, and those of the oldest are left out of its line."""

_CONTENTS = "memory/"
_ENTRY = re.compile(r"memory/\d{16}-\w{8}/")
"""What a key of the contents begins with: other keys may begin with the same word, and are not ours."""


class MemoryLine(msgspec.Struct, frozen=True):
    """One turn, as later sessions read of it: what was `asked`, and the `answer`, or why it failed."""

    at: datetime
    session_id: str
    turn_id: str
    outcome: Literal["completed", "failed"]
    asked: str | None
    answer: str | None


def memory_hook(keep: int = KEEP_LINES) -> HookDefinition:
    """Define the hook of `agent/hooks/memory.py` (R78, R79): one line per completed or failed turn, the newest `keep`.

    Lines are read by `read_memory`, in whatever session. Turns of evals are left out: a rehearsal must not teach.
    Deleting the file opts out (R80). Raises InvalidName for a `keep` under 1.

    A line is a value of its own in `host.kv`, and not a line of one file: a file is only ever replaced as a whole, so
    that of two sessions that add to it at once one would lose its line. It stands under a key that begins with its
    session's id, so that it goes when that session is erased; `memory/<place in the log>/<session>` finds it.
    """
    if keep < 1:
        raise InvalidName("keep", keep, "must be a number of lines from 1 on")
    journal = _Journal(keep)
    return define_hook(
        events={
            "message.received": journal.asked,
            "message.completed": journal.said,
            "turn.completed": journal.completed,
            "turn.failed": journal.failed,
        }
    )


async def read_memory(host: Host, limit: int = 20) -> list[MemoryLine]:
    """The newest `limit` lines, oldest first, in the order in which the turns ended."""
    newest = (await _entries(host))[-limit:] if limit > 0 else []
    found = [await host.kv.get(_line_key(entry)) for entry in newest]
    return [_line(value) for value in found if value is not None]  # None: its session was erased


class _Journal:
    """What the hook knows of turns that have not ended, and how it writes those that have."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._open: OrderedDict[tuple[str, str | None], dict[str, str]] = OrderedDict()

    async def asked(self, event: Event[MessageReceived], ctx: HookContext) -> None:
        self._note(event, "asked", event.data.text)

    async def said(self, event: Event[MessageCompleted], ctx: HookContext) -> None:
        self._note(event, "said", event.data.text)

    async def completed(self, event: Event[TurnCompleted], ctx: HookContext) -> None:
        await self._end(event, ctx, "completed", event.data.result)

    async def failed(self, event: Event[TurnFailed], ctx: HookContext) -> None:
        await self._end(event, ctx, "failed", event.data.message)

    def _note(self, event: Event[Any], what: str, text: str) -> None:
        texts = self._open.setdefault((event.session_id, event.turn_id), {})
        texts[what] = _cut(text)
        if len(self._open) > OPEN_TURNS:
            self._open.popitem(last=False)

    async def _end(self, event: Event[Any], ctx: HookContext, outcome: str, result: Any) -> None:
        texts = self._open.pop((event.session_id, event.turn_id), {})
        if ctx.session.purpose == "eval":
            return
        answer = texts.get("said") if result is None else _cut(_as_text(result))
        line = {
            "at": format_time(event.at_us),
            "sessionId": event.session_id,
            "turnId": event.turn_id,
            "outcome": outcome,
            "asked": texts.get("asked"),
            "answer": answer,
        }
        entry = f"{_CONTENTS}{event.position:016}-{event.era}/{event.session_id}"
        await ctx.host.kv.put(_line_key(entry), line)
        await ctx.host.kv.put(entry, event.turn_id)  # from here on it is found, and whole
        await self._forget_old(ctx.host)

    async def _forget_old(self, host: Host) -> None:
        """Whoever does it at the same time finds the same lines or newer ones, so none of the newest is ever lost."""
        for entry in (await _entries(host))[: -self._keep]:
            await host.kv.delete(entry)
            await host.kv.delete(_line_key(entry))


async def _entries(host: Host) -> list[str]:
    """The keys of the contents, in the order of the log."""
    return [key for key in await host.kv.list(_CONTENTS) if _ENTRY.match(key)]


def _line_key(entry: str) -> str:
    """From `memory/<place>/<session>` to the key of the line itself."""
    _, place, session_id = entry.split("/", 2)
    return f"{session_id}/{_CONTENTS}{place}"


def _line(value: dict[str, Any]) -> MemoryLine:
    return MemoryLine(
        at=to_datetime(parse_time(value["at"])),
        session_id=value["sessionId"],
        turn_id=value["turnId"],
        outcome=value["outcome"],
        asked=value["asked"],
        answer=value["answer"],
    )


def _as_text(result: Any) -> str:
    return result if isinstance(result, str) else encode_json(result).decode()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[: MAX_TEXT_CHARACTERS - 1]}…"
