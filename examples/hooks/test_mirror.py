"""Proves which files the mirror writes, and what is in them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from eventlog import Event
from examples.hooks.mirror import hook


async def mirrored(*events: Event[Any]) -> dict[str, bytes]:
    """The files after the hook was shown these events."""
    files: dict[str, bytes] = {}

    async def write(path: str, content: bytes) -> None:
        files[path] = content

    ctx = SimpleNamespace(host=SimpleNamespace(files=SimpleNamespace(write=write)))
    for event in events:
        await hook.events["*"](event, ctx)
    return files


def event(type: str, index: int, data: bytes) -> Event[Any]:
    return Event(type, index, "s1", "t1", at_us=0, position=index + 1, era="test", raw=data)


async def test_r148_r150_it_writes_one_file_an_event_and_none_for_a_delta() -> None:
    files = await mirrored(
        event("message.received", 3, b'{"text":"hi"}'),
        event("message.appended", 4, b'{"delta":"hel"}'),
        event("reasoning.appended", 5, b'{"delta":"so"}'),
        event("message.completed", 123_456, b'{"text":"hello"}'),
    )
    assert list(files) == ["transcript/000003.json", "transcript/123456.json"]


async def test_r94_r148_a_file_holds_the_event_as_it_is_on_the_wire() -> None:
    thought = event("reasoning.completed", 3, b'{"text":"so","lang":"en"}')
    files = await mirrored(thought)
    assert json.loads(files["transcript/000003.json"]) == thought.to_dict()
