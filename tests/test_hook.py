"""What an authored hook or channel is, and which ones are refused."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from eventlog.errors import InvalidName
from eventlog.events import TYPE_KEYS, VOCABULARY, Event, SessionEvent, TurnCompleted, define_event
from eventlog.observe import (
    ChannelContext,
    Handler,
    HookContext,
    PlainContext,
    define_channel,
    define_hook,
    disable_hook,
)
from eventlog.observe.channel import ChannelEvents
from eventlog.observe.hook import DisabledHook, HookEvents, check_hook_name


class Refund(msgspec.Struct):
    amount: int


def on_event(event: SessionEvent, ctx: PlainContext) -> None: ...


async def on_turn(event: Event[TurnCompleted], ctx: HookContext) -> None: ...


def test_r65_r150_a_definition_holds_the_very_functions_that_were_given() -> None:
    hook = define_hook(events={"turn.completed": on_turn, "*": on_event})
    assert hook.events["turn.completed"] is on_turn
    assert hook.events["*"] is on_event
    assert list(hook.events) == ["turn.completed", "*"]


async def test_r150_a_unit_test_calls_a_handler_with_stubs() -> None:
    seen: list[object] = []

    async def keep(event: Event[TurnCompleted], ctx: HookContext) -> None:
        seen.append((event, ctx))

    await define_hook(events={"turn.completed": keep}).events["turn.completed"]("an event", "a context")
    assert seen == [("an event", "a context")]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("turn.complete", "turn.completed"),
        ("turnCompleted", "turn.completed"),
        ("turn_failed", "turn.failed"),
        ("session.start", "session.started"),
        ("action.results", "action.result"),
        ("TURN.FAILED", "turn.failed"),
        ("**", ""),  # like none of them: any one will do
        ("", ""),
    ],
)
def test_r66_an_unknown_event_key_names_the_nearest_type(key: str, nearest: str) -> None:
    with pytest.raises(InvalidName, match=f'nearest known type is "{nearest}') as raised:
        define_hook(events={key: on_event})
    assert raised.value.what == "event key"
    assert raised.value.value == key


def test_r66_every_unknown_key_of_a_map_is_named_at_once() -> None:
    with pytest.raises(InvalidName) as raised:
        define_hook(events={"turn.complete": on_event, "turn.failed": on_event, "message.receive": on_event})
    assert raised.value.value == ["turn.complete", "message.receive"]
    assert '"turn.completed", "message.received"' in str(raised.value)


def test_an_own_type_is_a_key_once_it_is_defined() -> None:
    events: dict[str, Handler] = {"test-hook.refund": on_event, "turn.completed": on_turn}
    with pytest.raises(InvalidName, match=r"'test-hook\.refund': unknown.*define_event"):
        define_hook(events=events)
    define_event("test-hook.refund", Refund)
    assert define_hook(events=events).events["test-hook.refund"] is on_event


class Bound:
    def method(self, event: SessionEvent, ctx: PlainContext) -> None: ...

    def __call__(self, event: SessionEvent, ctx: PlainContext) -> None: ...


def with_a_third(event: SessionEvent, ctx: HookContext, third: int) -> None: ...


@functools.wraps(with_a_third)
def gives_the_third(*both: Any) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        on_event,
        on_turn,
        Bound().method,
        Bound(),
        functools.partial(with_a_third, third=3),
        gives_the_third,
        lambda *anything: None,
        lambda event, ctx, more=None: None,
        max,  # does not tell what it takes
    ],
)
def test_r67_whatever_can_be_called_with_event_and_context_is_a_handler(handler: Callable[..., Any]) -> None:
    assert define_hook(events={"*": handler}).events["*"] is handler


@pytest.mark.parametrize(
    "handler", [None, 5, "on_turn", lambda event: None, with_a_third, lambda: None, lambda event, *, ctx: None]
)
def test_what_cannot_be_called_with_event_and_context_is_refused_when_it_is_written(handler: Any) -> None:
    with pytest.raises(InvalidName, match=r'"turn\.failed" needs a function of \(event, ctx\)'):
        define_hook(events={"turn.failed": handler})


def generates(event: SessionEvent, ctx: HookContext) -> Iterator[None]:
    yield


async def generates_asynchronously(event: SessionEvent, ctx: HookContext) -> AsyncIterator[None]:
    yield


class CallGenerates:
    def __call__(self, event: SessionEvent, ctx: HookContext) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "handler", [generates, generates_asynchronously, CallGenerates(), functools.partial(generates_asynchronously)]
)
def test_a_handler_with_a_yield_in_it_is_refused_because_nothing_of_it_would_run(handler: Any) -> None:
    with pytest.raises(InvalidName, match=r'"turn\.failed" has a yield in it'):
        define_hook(events={"turn.failed": handler})


@pytest.mark.parametrize("events", [None, [], "turn.completed", [("turn.completed", on_turn)], on_turn])
def test_a_map_is_a_mapping(events: Any) -> None:
    with pytest.raises(InvalidName, match="must map event types to handlers"):
        define_hook(events=events)


def test_a_definition_cannot_be_changed_nor_can_its_map() -> None:
    events: dict[str, Handler] = {"*": on_event}
    hook = define_hook(events=events)
    events["turn.failed"] = on_event
    assert list(hook.events) == ["*"]
    with pytest.raises(AttributeError):
        hook.on_restart = "resume"  # type: ignore[misc]
    with pytest.raises(TypeError):
        hook.events["*"] = on_turn  # type: ignore[index]


def test_r74_an_empty_map_can_be_written() -> None:
    assert dict(define_hook(events={}).events) == {}


def test_a_hook_skips_at_restart_unless_it_says_resume() -> None:
    assert define_hook(events={"*": on_event}).on_restart == "skip"
    assert define_hook(events={"*": on_event}, on_restart="resume").on_restart == "resume"
    with pytest.raises(InvalidName, match="on_restart 'replay'"):
        define_hook(events={"*": on_event}, on_restart="replay")  # type: ignore[call-overload]


def test_r77_disable_hook_is_no_hook() -> None:
    assert disable_hook() == DisabledHook()


@pytest.mark.parametrize("name", ["usage", "audit/usage", "a-b", "a_b", "B", "page.v2", "x" * 256, "übersicht", "a b"])
def test_r70_a_hook_may_have_the_name(name: str) -> None:
    check_hook_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "a__b",
        "a/b__c",
        "",
        "/",
        "/etc/x",
        "a//b",
        "../x",
        "a/../../x",
        ".",
        "a/",
        "..\\x",
        "C:\\x",
        "a\0b",
        "a\nb",
        "x" * 257,
    ],
)
def test_r73_a_hook_cannot_have_the_name(name: str) -> None:
    with pytest.raises(InvalidName, match="hook name"):
        check_hook_name(name)


def deliver(event: Event[TurnCompleted], ctx: PlainContext) -> None: ...


def test_r132_a_channel_is_an_id_and_a_map_of_handlers() -> None:
    channel = define_channel(id="http", events={"turn.completed": deliver})
    assert channel.id == "http"
    assert channel.events["turn.completed"] is deliver


def test_a_channel_is_checked_as_a_hook_is() -> None:
    with pytest.raises(InvalidName, match=r'nearest known type is "turn\.completed"'):
        define_channel(id="http", events={"turn.complete": lambda event, ctx: None})
    with pytest.raises(InvalidName, match="needs a function"):
        define_channel(id="http", events={"turn.completed": None})  # type: ignore[dict-item]


@pytest.mark.parametrize("id", ["", "a\nb", "x" * 257, None, 5])
def test_a_channel_has_an_id_that_a_session_can_have(id: Any) -> None:
    with pytest.raises(InvalidName, match="channel id"):
        define_channel(id=id, events={"turn.completed": deliver})


@pytest.mark.parametrize(("events", "context"), [(HookEvents, HookContext), (ChannelEvents, ChannelContext)])
def test_r68_the_typed_maps_have_each_type_with_its_own_payload(events: type, context: type) -> None:
    hints = get_type_hints(events)
    assert set(hints) == {*TYPE_KEYS, "*"}
    for name in TYPE_KEYS:
        coroutine, plain = get_args(hints[name])
        (event, ctx), _ = get_args(plain)
        assert (get_args(coroutine), get_args(event), ctx) == ((VOCABULARY[name],), (VOCABULARY[name],), PlainContext)
        assert get_type_hints(coroutine.__origin__.__call__)["ctx"] is context
