"""Runs the four example hooks in one runtime, on recorded sessions, and compares what they did with the log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from eventlog import Event, EventLog, Runtime, SessionInfo
from examples.server import play
from examples.traffic import read_traffic
from tests.cli_kit import CHECKOUT, SAMPLE
from tests.real_data import real_data

PATTERNS = CHECKOUT / "examples" / "hooks"
AGENT = "handyman"  # whose sessions those of the sample are
NAMES = ["last_result", "mirror", "page_on_failure", "usage"]


Sessions: TypeAlias = dict[str, tuple[SessionInfo, list[Event[Any]]]]


class Client:
    """Stands in for the HTTP client that a server has."""

    def __init__(self) -> None:
        self.posted: list[Any] = []

    async def post(self, url: str, *, json: Any) -> None:
        self.posted.append(json)


@pytest.fixture(params=["sample", "real"])
def recorded(request: pytest.FixtureRequest) -> Path:
    return SAMPLE if request.param == "sample" else real_data()


@asynccontextmanager
async def served(folder: Path, client: Client) -> AsyncIterator[tuple[EventLog, Runtime]]:
    """An agent whose hooks are the folder of examples as it is, their tests among them."""
    shutil.copytree(PATTERNS, folder / "agent" / "hooks")
    (folder / "agent" / "agent.toml").write_text(f'name = "{AGENT}"')
    async with (
        EventLog(folder / "agent.db") as log,
        Runtime(log, agent_dir=folder, services={"http": client}) as runtime,
    ):
        yield log, runtime


async def recorded_in(log: EventLog) -> Sessions:
    """The sessions, with their events."""
    infos = [info async for info in log.sessions()]
    return {info.id: (info, [event async for event in (await log.session(info.id)).read()]) for info in infos}


async def test_r146_r148_r149_r151_the_patterns_work_on_recorded_sessions(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGER_WEBHOOK_URL", "https://pager.example/hook")
    client = Client()
    async with served(tmp_path, client) as (log, runtime):
        assert [row.name for row in runtime.hooks] == NAMES
        await play(log, read_traffic(recorded))
        broken = await log.start_session("s_broken", channel="slack")
        await broken.append("turn.failed", {"message": "no model"}, turn_id="t1")
        await runtime.settled(timeout_s=30)

        sessions = await recorded_in(log)
        assert [row.errors for row in runtime.hooks] == [0, 0, 0, 0]
        for session_id, (_, events) in sessions.items():
            host = runtime.host_for(session_id)  # what the server hands to its tools
            await assert_mirrored(host, events)
            await assert_last_result_is_kept(host, session_id, events)
        assert counted(runtime) == expected_counts(sessions)
        assert sorted(post["session"] for post in client.posted) == failed(sessions)
        assert {"agent": AGENT, "session": "s_broken", "channel": "slack", "message": "no model"} in client.posted


async def assert_mirrored(host: Any, events: list[Event[Any]]) -> None:
    lasting = [event for event in events if not event.type.endswith(".appended")]
    assert await host.files.list("transcript/") == [f"transcript/{event.index:06}.json" for event in lasting]
    for event in lasting:
        assert json.loads(await host.files.read(f"transcript/{event.index:06}.json")) == event.to_dict()


async def assert_last_result_is_kept(host: Any, session_id: str, events: list[Event[Any]]) -> None:
    ended = [event.to_dict() for event in events if event.type == "turn.completed"]
    expected = {"at": ended[-1]["at"], "result": ended[-1]["data"].get("result")} if ended else None
    assert await host.kv.get(f"last-result/{session_id}") == expected


def counted(runtime: Runtime) -> Counter[str]:
    """What the meter has, over all sessions."""
    totals: Counter[str] = Counter()
    for row in runtime.meter.measurements():
        assert row.amount is not None
        totals[row.name] += int(row.amount.total)
    return totals


def expected_counts(sessions: Sessions) -> Counter[str]:
    """The same, from the log."""
    totals: Counter[str] = Counter()
    for info, events in sessions.values():
        for event in events:
            if event.type == "turn.failed":
                totals["acme.turn.failed"] += 1
            if event.type == "turn.completed" and info.purpose == "live" and event.data.usage is not None:
                totals["acme.tokens.input"] += event.data.usage.input_tokens
                totals["acme.tokens.output"] += event.data.usage.output_tokens
    return totals


def failed(sessions: Sessions) -> list[str]:
    """The sessions of failures that someone has to hear of, one for each."""
    return sorted(
        info.id
        for info, events in sessions.values()
        for event in events
        if event.type == "turn.failed" and info.purpose == "live" and event.data.message != "turn interrupted"
    )
