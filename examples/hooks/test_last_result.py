"""Proves what is kept of a turn, and under which key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eventlog import Event
from examples.hooks.last_result import hook

AT_US = 1_767_225_600_250_000


@pytest.mark.parametrize(
    ("data", "result"),
    [(b'{"result":{"rooms":[1,2]}}', {"rooms": [1, 2]}), (b'{"result":null}', None), (b"{}", None)],
)
async def test_r149_r150_a_result_is_kept_with_its_time_or_null_for_none(data: bytes, result: Any) -> None:
    kept: dict[str, Any] = {}

    async def put(key: str, value: Any) -> None:
        kept[key] = value

    ctx = SimpleNamespace(session=SimpleNamespace(id="s1"), host=SimpleNamespace(kv=SimpleNamespace(put=put)))
    event: Event[Any] = Event("turn.completed", 7, "s1", "t1", at_us=AT_US, position=8, era="test", raw=data)
    await hook.events["turn.completed"](event, ctx)
    assert kept == {"last-result/s1": {"at": "2026-01-01T00:00:00.250Z", "result": result}}
