"""Proves who is paged, with what, and that a pager that stalls holds up a session for five seconds at most."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from eventlog import Event
from examples.hooks import page_on_failure
from examples.hooks.page_on_failure import hook

URL = "https://pager.example/hook"


class Client:
    """Stands in for the server's HTTP client."""

    def __init__(self, *, stalls: bool = False) -> None:
        self.posted: list[tuple[str, Any]] = []
        self._stalls = stalls

    async def post(self, url: str, *, json: Any) -> None:
        self.posted.append((url, json))
        if self._stalls:
            await asyncio.Event().wait()


async def fails(client: Client, message: str = "no model", purpose: str = "live") -> None:
    """A turn of session s1 fails."""
    ctx = SimpleNamespace(
        session=SimpleNamespace(id="s1", purpose=purpose),
        agent=SimpleNamespace(name="desk"),
        channel=SimpleNamespace(id="slack"),
        host=SimpleNamespace(http=client),
    )
    raw = json.dumps({"message": message}).encode()
    event: Event[Any] = Event("turn.failed", 7, "s1", "t1", at_us=0, position=8, era="test", raw=raw)
    await hook.events["turn.failed"](event, ctx)


@pytest.fixture
def pager(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A pager that is set up."""
    monkeypatch.setenv("PAGER_WEBHOOK_URL", URL)
    return Client()


async def test_r146_r147_a_failure_is_posted_with_the_session_that_leads_to_its_trace(pager: Client) -> None:
    await fails(pager)
    told = {"agent": "desk", "session": "s1", "channel": "slack", "message": "no model"}
    assert pager.posted == [(URL, told)]


@pytest.mark.parametrize(("message", "purpose"), [("turn interrupted", "live"), ("no model", "eval")])
async def test_r146_nobody_is_paged_for_an_interruption_or_an_eval(pager: Client, message: str, purpose: str) -> None:
    await fails(pager, message, purpose)
    assert pager.posted == []


async def test_r146_the_secret_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be bound after the module was imported, and rotated while the process runs."""
    client = Client()
    monkeypatch.delenv("PAGER_WEBHOOK_URL", raising=False)
    await fails(client)
    assert client.posted == []
    monkeypatch.setenv("PAGER_WEBHOOK_URL", URL)
    await fails(client)
    monkeypatch.setenv("PAGER_WEBHOOK_URL", f"{URL}/2")
    await fails(client)
    assert [url for url, _ in client.posted] == [URL, f"{URL}/2"]


async def test_r146_a_pager_that_stalls_is_given_five_seconds(monkeypatch: pytest.MonkeyPatch, pager: Client) -> None:
    assert page_on_failure.TIMEOUT_S == 5
    monkeypatch.setattr(page_on_failure, "TIMEOUT_S", 0.001)
    with pytest.raises(TimeoutError):
        await fails(Client(stalls=True))
