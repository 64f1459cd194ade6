"""What handlers get beside the event: session, agent, channel, host, artifacts and a place for scratch files."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog.errors import InvalidEvent, InvalidName
from eventlog.events import ArtifactTagged, Event, SessionInfo, TurnCompleted
from eventlog.host import FileScope, Host, Meter, Reminder
from eventlog.log import EventLog
from eventlog.observe import ChannelContext, Contexts, HookContext, define_hook
from eventlog.observe.context import open_token


class Shelf:
    """JSON in memory, as a user's own test would have it: no more than the protocol asks for."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    async def delete(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    async def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))


class Drawer:
    """Files in memory, likewise."""

    def __init__(self) -> None:
        self.contents: dict[tuple[FileScope, str], bytes] = {}

    async def read(self, path: str, *, scope: FileScope = "session") -> str:
        return self.contents[scope, path].decode()

    async def read_bytes(self, path: str, *, scope: FileScope = "session") -> bytes:
        return self.contents[scope, path]

    async def write(self, path: str, content: str | bytes, *, scope: FileScope = "session") -> None:
        self.contents[scope, path] = content.encode() if isinstance(content, str) else content

    async def delete(self, path: str, *, scope: FileScope = "session") -> bool:
        return self.contents.pop((scope, path), None) is not None

    async def list(self, prefix: str = "", *, scope: FileScope = "session") -> list[str]:
        return sorted(path for kept, path in self.contents if kept == scope and path.startswith(prefix))


class Pad:
    """Reminders in memory, likewise."""

    def __init__(self) -> None:
        self.reminders: dict[str, Reminder] = {}

    async def create(self, text: str, *, at: datetime | None = None, after_s: float | None = None) -> Reminder:
        made = Reminder(f"r{len(self.reminders)}", text, at or datetime.fromtimestamp(after_s or 0, UTC))
        self.reminders[made.id] = made
        return made

    async def list(self) -> list[Reminder]:
        return [*self.reminders.values()]

    async def cancel(self, id: str) -> bool:
        return self.reminders.pop(id, None) is not None


def a_host(session_id: str = "s1", **services: Any) -> Host:
    return host_with(services, session_id)


def host_with(services: dict[Any, Any], session_id: str = "s1") -> Host:
    return Host(kv=Shelf(), files=Drawer(), otel=Meter("desk").of(session_id), reminders=Pad(), services=services)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as log:
        yield log


class Desk:
    """The contexts of the agent `desk`, with one host and one channel state for each session."""

    def __init__(self, log: EventLog) -> None:
        self.hosts: dict[str, Host] = {}
        self.states: dict[str, Shelf] = {}
        self.contexts = Contexts(
            agent="desk",
            state_root=Path("state"),
            append=log.append,
            host_for=lambda session: self.hosts.setdefault(session.id, a_host(session.id)),
            state_for=lambda session: self.states.setdefault(session.id, Shelf()),
        )


@pytest.fixture
def desk(log: EventLog) -> Desk:
    return Desk(log)


# ------------------------------------------------------------------------------------- session, agent, channel


async def test_r99_r100_r101_the_session_is_what_is_known_of_it(log: EventLog, desk: Desk) -> None:
    session = await log.start_session(
        "s1", channel="slack", mode="task", purpose="eval", auth={"user": "u1"}, title="Refund", abs={"arm": "b"}
    )
    await session.append("session.updated", {"sdkAgentId": "sdk-7"})
    seen = desk.contexts.for_hook(session.info, None).session
    assert (seen.id, seen.channel_id, seen.mode, seen.purpose) == ("s1", "slack", "task", "eval")
    assert (seen.auth, seen.title, seen.sdk_agent_id, seen.abs) == ({"user": "u1"}, "Refund", "sdk-7", {"arm": "b"})


async def test_r101_what_is_not_set_is_none(log: EventLog, desk: Desk) -> None:
    seen = desk.contexts.for_hook((await log.start_session("s1")).info, None).session
    assert (seen.auth, seen.title, seen.sdk_agent_id, seen.abs) == (None, None, None, None)


@pytest.mark.parametrize("member", HookContext.__struct_fields__)
async def test_r99_no_member_of_a_context_can_be_assigned_to(log: EventLog, desk: Desk, member: str) -> None:
    ctx = desk.contexts.for_hook((await log.start_session("s1")).info, "t1")
    with pytest.raises(AttributeError):
        setattr(ctx, member, None)


@pytest.mark.parametrize(
    "path", ["session.title", "session.purpose", "agent.name", "channel.id", "channel.continuation_token", "host.kv"]
)
async def test_r99_nor_can_what_is_in_it(log: EventLog, desk: Desk, path: str) -> None:
    ctx = desk.contexts.for_hook((await log.start_session("s1")).info, "t1")
    member, name = path.split(".")
    with pytest.raises(AttributeError):
        setattr(getattr(ctx, member), name, "mine")


async def test_r99_what_a_handler_does_to_nested_json_stays_with_its_context(log: EventLog, desk: Desk) -> None:
    session = await log.start_session("s1", auth={"user": "u1", "roles": [{"name": "reader"}]}, abs={"arm": "b"})
    tampered = desk.contexts.for_hook(session.info, None).session
    tampered.auth["roles"][0]["name"] = "owner"
    tampered.abs["arm"] = "a"
    untouched = desk.contexts.for_hook(session.info, None).session
    assert untouched.auth == {"user": "u1", "roles": [{"name": "reader"}]}
    assert untouched.abs == {"arm": "b"}


async def test_r102_the_agent_is_that_of_the_event(log: EventLog, desk: Desk) -> None:
    theirs = await log.start_session("s1", agent="billing")
    nobodys = await log.start_session("s2")
    assert desk.contexts.for_hook(theirs.info, None).agent.name == "billing"
    assert desk.contexts.for_channel(theirs.info, None).agent.name == "billing"
    assert desk.contexts.for_hook(nobodys.info, None).agent.name == "desk"


async def test_r103_the_channel_is_an_id_and_a_token(log: EventLog, desk: Desk) -> None:
    session = await log.start_session("s1", channel="slack", continuation_token="thread-1")
    channel = desk.contexts.for_hook(session.info, None).channel
    assert (channel.id, channel.continuation_token) == ("slack", "thread-1")
    assert channel.__struct_fields__ == ("id", "continuation_token")


@pytest.mark.parametrize(
    ("mode", "status", "token"),
    [
        ("chat", "active", "t"),
        ("chat", "waiting", "t"),
        ("chat", "completed", None),
        ("chat", "failed", None),
        ("task", "active", None),
        ("task", "waiting", None),
        ("task", "completed", None),
        ("task", "failed", None),
    ],
)
async def test_r104_the_token_is_none_when_the_session_takes_no_follow_ups(
    log: EventLog, mode: Any, status: Any, token: str | None
) -> None:
    info = (await log.start_session("s1", mode=mode, continuation_token="t")).info
    assert open_token(msgspec.structs.replace(info, status=status)) == token


async def test_r104_the_token_goes_when_the_session_ends_and_comes_back_when_it_goes_on(
    log: EventLog, desk: Desk
) -> None:
    session = await log.start_session("s1", continuation_token="t")

    def token() -> str | None:
        return desk.contexts.for_hook(session.info, None).channel.continuation_token

    assert token() == "t"
    await session.append("session.completed", {})
    assert token() is None
    await session.append("turn.started", {}, turn_id="t2")
    assert token() == "t"


async def test_r130_r131_a_channel_sets_the_token_that_later_hooks_see(log: EventLog, desk: Desk) -> None:
    session = await log.start_session("s1", channel="slack", continuation_token="thread-1")
    owned = desk.contexts.for_channel(session.info, "t1")
    assert (owned.channel.id, owned.channel.continuation_token) == ("slack", "thread-1")
    await owned.channel.set_continuation_token("thread-2")
    assert desk.contexts.for_hook(session.info, "t1").channel.continuation_token == "thread-2"
    *_, updated = [event async for event in log.read()]
    assert (updated.type, updated.turn_id, updated.data.continuation_token) == ("session.updated", None, "thread-2")


async def test_r130_a_channel_has_its_state_the_host_and_the_session(log: EventLog, desk: Desk) -> None:
    one, two = [(await log.start_session(id, channel="slack")).info for id in ("s1", "s2")]
    ctx = desk.contexts.for_channel(one, None)
    assert isinstance(ctx, ChannelContext)
    await ctx.channel.state.put("thread", 7)
    assert await desk.contexts.for_channel(one, "t1").channel.state.get("thread") == 7
    assert await desk.contexts.for_channel(two, None).channel.state.get("thread") is None
    assert ctx.session == one
    assert ctx.host is desk.contexts.for_hook(one, None).host


async def test_r116_the_state_root_is_absolute(log: EventLog, desk: Desk) -> None:
    ctx = desk.contexts.for_hook((await log.start_session("s1")).info, None)
    assert ctx.state_root == Path.cwd() / "state"


async def test_r150_a_unit_test_makes_a_context_without_a_log() -> None:
    async def keep(event: Event[TurnCompleted], ctx: HookContext) -> None:
        await ctx.host.kv.put(f"last-result/{ctx.session.id}", event.data.result)

    at = datetime(2026, 1, 1, tzinfo=UTC)
    session = SessionInfo(
        id="s1",
        agent="desk",
        project="default",
        channel_id="api",
        mode="chat",
        purpose="live",
        auth=None,
        title=None,
        sdk_agent_id=None,
        abs=None,
        continuation_token=None,
        next_index=1,
        status="active",
        started_at=at,
        updated_at=at,
    )
    event: Event[TurnCompleted] = Event("turn.completed", 0, "s1", "t1", 0, 1, "00000000", b'{"result":"done"}')
    log = EventLog("never-opened.db")
    ctx = Desk(log).contexts.for_hook(session, "t1")
    await define_hook(events={"turn.completed": keep}).events["turn.completed"](event, ctx)
    assert await ctx.host.kv.get("last-result/s1") == "done"


# ------------------------------------------------------------------------------------------------ artifacts


async def test_r115_tag_fills_in_session_and_turn(log: EventLog, desk: Desk) -> None:
    session = await log.start_session("s1")
    await log.start_session("s2")
    ctx = desk.contexts.for_hook(session.info, "t1")
    recorded = await ctx.artifacts.tag("report", "r/7", title="Seven", data={"pages": 3})
    (event,) = [event async for event in session.read(types=["artifact.tagged"])]
    assert event == recorded
    assert (event.session_id, event.turn_id) == ("s1", "t1")
    assert event.data == ArtifactTagged(kind="report", key="r/7", title="Seven", data={"pages": 3})


async def test_r115_what_is_left_out_is_absent_and_an_event_outside_of_turns_has_none(
    log: EventLog, desk: Desk
) -> None:
    session = await log.start_session("s1")
    recorded: Event[Any] = await desk.contexts.for_channel(session.info, None).artifacts.tag("report", "r/7")
    assert recorded.turn_id is None
    assert recorded.to_dict()["data"] == {"kind": "report", "key": "r/7"}


async def test_an_artifact_that_json_cannot_hold_is_refused(log: EventLog, desk: Desk) -> None:
    session = await log.start_session("s1")
    with pytest.raises(InvalidEvent, match=r"data\.data"):
        await desk.contexts.for_hook(session.info, "t1").artifacts.tag("report", "r/7", data=float("nan"))
    assert session.info.next_index == 1


# ----------------------------------------------------------------------------------------------------- host


def test_r113_services_are_the_very_objects_that_were_passed() -> None:
    github, slack, mcp = object(), object(), object()
    host = a_host(github=github, slack=slack, mcp=mcp)
    assert (host.github, host.slack, host.mcp) == (github, slack, mcp)
    assert {"github", "slack", "mcp", "kv", "files", "otel"} <= set(dir(host))


def test_r113_an_unknown_service_says_which_were_passed() -> None:
    with pytest.raises(AttributeError, match=r'no service "gitlab" to its Runtime; it passed: github, slack$'):
        _ = a_host(slack=1, github=2).gitlab
    with pytest.raises(AttributeError, match=r"it passed: none$"):
        _ = a_host().github


def test_a_service_that_is_none_is_passed_all_the_same() -> None:
    assert a_host(github=None).github is None


@pytest.mark.parametrize("name", ["kv", "files", "otel", "services", "reminders"])
def test_a_service_cannot_take_the_name_of_a_member(name: str) -> None:
    with pytest.raises(InvalidName, match="has a member of that name"):
        host_with({name: object()})


@pytest.mark.parametrize("name", ["", "my-service", "a.b", "_private", "__class__", 5])
def test_a_service_has_a_name_that_can_be_written_after_a_dot(name: Any) -> None:
    with pytest.raises(InvalidName, match="reached as host"):
        host_with({name: object()})


def test_a_host_is_read_only_and_does_not_follow_the_servers_own_dict() -> None:
    services = {"github": 1}
    host = host_with(services)
    services["slack"] = 2
    assert dict(host.services) == {"github": 1}
    for name in ("github", "kv", "anything"):
        with pytest.raises(AttributeError):
            setattr(host, name, 3)


def test_a_host_can_be_copied_and_compared() -> None:
    host = a_host(github=1)
    assert copy.copy(host).github == 1
    assert host != copy.copy(host)
    assert not hasattr(host, "__await__")
