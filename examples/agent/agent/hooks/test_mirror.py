"""Proves what the mirror writes and what it leaves out, without a log or a runtime."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eventlog import Event, HookContext
from examples.agent.agent.hooks.mirror import hook


class Files:
    """Stands in for `ctx.host.files`."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}

    async def write(self, path: str, content: bytes) -> None:
        self.written[path] = content


async def shown(*events: Event[Any]) -> dict[str, bytes]:
    """The files after the hook was shown these events."""
    files = Files()
    ctx = cast(HookContext, SimpleNamespace(host=SimpleNamespace(files=files)))
    for event in events:
        await hook.events["*"](event, ctx)
    return files.written


def event(type: str, index: int, data: bytes) -> Event[Any]:
    return Event(type, index, "s1", "t1", at_us=0, position=index + 1, era="00000000", raw=data)


async def test_r148_r150_it_writes_one_file_an_event_and_no_deltas() -> None:
    files = await shown(
        event("message.received", 3, b'{"text":"hi"}'),
        event("message.appended", 4, b'{"delta":"hel"}'),
        event("reasoning.appended", 5, b'{"delta":"so"}'),
        event("message.completed", 123_456, b'{"text":"hello"}'),
    )
    assert list(files) == ["transcript/000003.json", "transcript/123456.json"]


async def test_r148_a_file_holds_the_event_as_it_is_on_the_wire() -> None:
    received = event("message.received", 3, b'{"text":"hi","lang":"en"}')
    files = await shown(received)
    assert json.loads(files["transcript/000003.json"]) == received.to_dict()


async def test_its_calls_are_noted_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_CALLS", str(tmp_path / "calls"))
    await shown(event("turn.started", 1, b"{}"), event("message.appended", 2, b'{"delta":"x"}'))
    noted = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [(line["hook"], line["index"]) for line in noted] == [("mirror", 1), ("mirror", 2)]
