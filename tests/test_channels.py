"""Channels over a whole runtime: which sessions they see, what they keep, and how they own the surface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog import Event, EventLog, HookContext, Runtime, define_channel, define_hook
from eventlog.errors import InvalidName
from eventlog.events import TurnCompleted
from eventlog.observe import ChannelContext, ChannelDefinition, ChannelHandler
from eventlog.testing import ManualClock


@asynccontextmanager
async def serving(path: Path, *channels: ChannelDefinition, **settings: Any) -> AsyncIterator[tuple[EventLog, Runtime]]:
    """A runtime with channels, until an orderly stop."""
    async with EventLog(path / "agent.db", clock=ManualClock()) as log:
        runtime = Runtime(log, **settings)
        for channel in channels:
            runtime.add_channel(channel)
        async with runtime:
            yield log, runtime


async def count_deliveries(event: Event[TurnCompleted], ctx: ChannelContext) -> None:
    """Counts in the channel's state, per session."""
    count = await ctx.channel.state.get("delivered", 0)
    await ctx.channel.state.put("delivered", count + 1)
    await ctx.channel.state.put(f"turn/{event.turn_id}", event.data.result)


async def test_r129_a_channel_sees_the_sessions_that_it_owns_and_no_others(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    def noting(name: str) -> ChannelDefinition:
        async def note(event: Event[object], ctx: ChannelContext) -> None:
            assert ctx.channel.id == ctx.session.channel_id == name
            seen.append((name, event.session_id, event.type))

        return define_channel(id=name, events={"*": note})

    async with serving(tmp_path, noting("slack"), noting("http")) as (log, runtime):
        for id, channel in (("s1", "slack"), ("s2", "http"), ("s3", "nobody's"), ("s4", "slack")):
            session = await log.start_session(id, channel=channel)
            await session.append("turn.completed", {}, turn_id="t1")
        await log.start_session("s5", channel="slack", agent="another agent")
        await runtime.settled()
        types = ("session.started", "turn.completed")
        owned = (("slack", "s1"), ("http", "s2"), ("slack", "s4"))
        assert seen == [(channel, id, type) for channel, id in owned for type in types]


async def test_r130_what_a_channel_keeps_is_a_sessions_own_and_is_there_after_a_restart(tmp_path: Path) -> None:
    slack = define_channel(id="slack", events={"turn.completed": count_deliveries})
    found: list[Any] = []

    async def look(_event: Event[Any], ctx: ChannelContext) -> None:
        found.append((ctx.session.id, await ctx.channel.state.get("delivered"), await ctx.channel.state.list("turn/")))

    async with serving(tmp_path, slack) as (log, runtime):
        for id, turns in (("s1", ("t1", "t2")), ("s2", ("t1",))):
            session = await log.start_session(id, channel="slack")
            for turn_id in turns:
                await session.append("turn.completed", {"result": turn_id}, turn_id=turn_id)
    for name in ("slack", "slack", "http"):
        looking = define_channel(id=name, events={"session.updated": look})
        async with serving(tmp_path, looking) as (log, runtime):
            for id in ("s1", "s2"):
                await log.append(id, "session.updated", {"title": "x"})
    assert found == [("s1", 2, ["turn/t1", "turn/t2"]), ("s2", 1, ["turn/t1"])] * 2
    async with serving(tmp_path) as (log, runtime):
        await log.session("s1")
        assert await runtime.host_for("s1").kv.list() == [], "it is not in the kv that hooks and tools share"


async def test_r130_what_two_channels_keep_never_meets_whatever_their_names_are(tmp_path: Path) -> None:
    """Ids may hold anything that is printable, so no character between them could part them."""
    found: list[tuple[str, str, Any]] = []

    async def keep(_event: Event[Any], ctx: ChannelContext) -> None:
        found.append((ctx.channel.id, ctx.session.id, await ctx.channel.state.get("who")))
        await ctx.channel.state.put("who", f"{ctx.channel.id} {ctx.session.id}")

    places = [("a", "b:c"), ("a:b", "c")]
    channels = [define_channel(id=id, events={"session.started": keep}) for id in ("a", "a:b")]
    async with serving(tmp_path, *channels) as (log, runtime):
        for channel, session_id in places:
            await log.start_session(session_id, channel=channel)
        await runtime.settled()
    assert found == [(*place, None) for place in places]


async def test_r130_a_channel_has_the_host_of_hooks_and_tools_and_the_session(tmp_path: Path) -> None:
    had: list[Any] = []
    github = object()

    async def of_channel(_event: Event[Any], ctx: ChannelContext) -> None:
        had.append(ctx.host)
        assert ctx.host.github is github
        assert (ctx.session.id, ctx.session.title, ctx.session.auth) == ("s1", "Refund", {"user": "u1"})
        await ctx.artifacts.tag("reply", "r/1")

    async def of_hook(_event: Event[Any], ctx: HookContext) -> None:
        had.append(ctx.host)

    channel = define_channel(id="slack", events={"turn.completed": of_channel})
    async with serving(tmp_path, channel, services={"github": github}) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"turn.completed": of_hook}))
        await runtime.settled()
        session = await log.start_session("s1", channel="slack", title="Refund", auth={"user": "u1"})
        await session.append("turn.completed", {}, turn_id="t1")
        await runtime.settled()
        assert len(had) == 2
        assert all(host is runtime.host_for("s1") for host in had)
        (tagged,) = [event async for event in session.read(types=["artifact.tagged"])]
        assert (tagged.turn_id, tagged.data.key) == ("t1", "r/1")


async def test_r131_a_token_that_a_channel_sets_is_what_later_hooks_see(tmp_path: Path) -> None:
    """The hook of the same event sees it already, and so does everybody after a restart."""
    seen: list[tuple[str, str | None]] = []

    async def deliver(event: Event[TurnCompleted], ctx: ChannelContext) -> None:
        seen.append(("channel", ctx.channel.continuation_token))
        await ctx.channel.set_continuation_token(f"thread/{event.turn_id}")

    async def look(event: Event[Any], ctx: HookContext) -> None:
        seen.append((event.type, ctx.channel.continuation_token))

    channel = define_channel(id="slack", events={"turn.completed": deliver})
    looking = define_hook(events={"turn.completed": look, "session.updated": look})
    async with serving(tmp_path, channel) as (log, runtime):
        runtime.add_hook("h", looking)
        await runtime.settled()
        session = await log.start_session("s1", channel="slack", continuation_token="thread/0")
        await session.append("turn.completed", {}, turn_id="t1")
        await runtime.settled()
        assert seen == [
            ("channel", "thread/0"),
            ("turn.completed", "thread/t1"),
            ("session.updated", "thread/t1"),
        ]
        assert session.info.continuation_token == "thread/t1"
    seen.clear()
    async with serving(tmp_path) as (log, runtime):
        runtime.add_hook("h", looking)
        await runtime.settled()
        await log.append("s1", "turn.completed", {}, turn_id="t2")
        await runtime.settled()
        assert seen == [("turn.completed", "thread/t1")]


async def test_r131_a_hook_has_no_way_to_set_a_token(tmp_path: Path) -> None:
    seen: list[HookContext] = []

    async def keep(_event: Event[Any], ctx: HookContext) -> None:
        seen.append(ctx)

    async with serving(tmp_path) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"session.started": keep}))
        await runtime.settled()
        await log.start_session("s1", continuation_token="thread/0")
        await runtime.settled()
        (ctx,) = seen
        assert not hasattr(ctx.channel, "set_continuation_token")
        assert not hasattr(ctx.channel, "state")
        with pytest.raises(AttributeError):
            ctx.channel.continuation_token = "mine"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def test_r132_a_channels_events_are_its_config_and_an_id_is_taken_once(tmp_path: Path) -> None:
    channel = define_channel(id="slack", events={"turn.completed": count_deliveries})
    assert channel.events["turn.completed"] is count_deliveries
    misspelt: dict[str, ChannelHandler] = {"turn.complete": count_deliveries}
    with pytest.raises(InvalidName, match="nearest known"):
        define_channel(id="slack", events=misspelt)
    async with serving(tmp_path, channel) as (_, runtime):
        with pytest.raises(InvalidName, match="another channel has it"):
            runtime.add_channel(channel)


async def test_r58_r130_a_channel_that_raises_is_logged_and_the_hooks_are_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    async def fails(_event: Event[Any], _ctx: ChannelContext) -> None:
        raise ConnectionError("slack is down")

    async def note(event: Event[Any], _ctx: HookContext) -> None:
        called.append(event.type)

    async with serving(tmp_path, define_channel(id="slack", events={"turn.failed": fails})) as (log, runtime):
        runtime.add_hook("h", define_hook(events={"turn.failed": note}))
        await runtime.settled()
        session = await log.start_session("s1", channel="slack")
        await session.append("turn.failed", {"message": "x"}, turn_id="t1")
        await runtime.settled()
    assert called == ["turn.failed"]
    assert 'channel "slack" handler for turn.failed threw: ConnectionError: slack is down' in caplog.text
