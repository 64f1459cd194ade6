"""The dispatcher: who is called for what, in which order, and what a handler cannot do to the others."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import threading
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.errors import InvalidName
from eventlog.events import Event, NewEvent
from eventlog.log import EventLog
from eventlog.logs import MAX_TRACEBACK_CHARACTERS
from eventlog.observe.inbox import PAGE_EVENTS
from eventlog.observe.limits import ObserveLimits
from eventlog.store.hook_lists import hook_errors
from tests.observing import (
    NOTE,
    NOTED,
    Context,
    Gate,
    Trace,
    append,
    channel_of,
    dispatcher_of,
    hook_of,
    served,
    shown,
)

# ------------------------------------------------------------------------------------------------ after the commit


async def test_r53_a_handler_runs_after_its_event_is_recorded(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.db", []

    async def look(event: Event[Any], _context: Any) -> None:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows.append(connection.execute("SELECT idx FROM log WHERE position = ?", (event.position,)).fetchone())
        connection.close()

    async with served(path, {"look": hook_of({NOTE: look})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await shown(dispatcher)
    assert rows == [(1,), (2,), (3,)]


async def test_r118_a_handler_finds_its_event_in_the_log(tmp_path: Path) -> None:
    found: list[bool] = []

    async def look(event: Event[Any], _context: Any) -> None:
        session = await log.session(event.session_id)
        found.append(event in [each async for each in session.read()])

    async with served(tmp_path / "a.db", {"look": hook_of({"*": look})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await shown(dispatcher)
    assert found == [True] * 4


async def test_r120_an_event_that_was_not_recorded_is_not_shown(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, dispatcher):
        session = await log.start_session("s1")
        with pytest.raises(Exception, match="expected index"):
            await session.append(NOTE, NOTED, expected_index=7)
        with pytest.raises(Exception, match="not JSON"):
            await session.append("own.type", {"a": object()})
        await session.append(NOTE, NOTED, key="k")
        await session.append(NOTE, NOTED, key="k")  # known already
        await shown(dispatcher)
    assert trace.calls == [("h", "s1", 0), ("h", "s1", 1)]


async def test_imported_or_earlier_events_are_not_shown(tmp_path: Path) -> None:
    trace = Trace()
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        await append(log, "s1", 5)
        dispatcher = dispatcher_of(log, {"h": trace.hook("h")})
        await dispatcher.start()
        await append(log, "s1", 1)
        await shown(dispatcher)
        await dispatcher.stop()
    assert trace.calls == [("h", "s1", 6)]


# ----------------------------------------------------------------------------------------------------------- order


async def test_r122_channel_handlers_come_first_then_hooks_in_order_typed_before_star(tmp_path: Path) -> None:
    trace = Trace()
    hooks = {
        "z": hook_of({"*": trace.handler("z *"), NOTE: trace.handler("z note")}),
        "a": hook_of({NOTE: trace.handler("a note"), "*": trace.handler("a *")}),
    }
    channel = channel_of("api", {"*": trace.handler("channel *"), NOTE: trace.handler("channel note")})
    async with served(tmp_path / "a.db", hooks, (channel,)) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1")
        await shown(dispatcher)
    assert [who for who, _, index in trace.calls if index == 1] == [
        "channel note",
        "channel *",
        "z note",
        "z *",
        "a note",
        "a *",
    ]
    assert [who for who, _, index in trace.calls if index == 0] == ["channel *", "z *", "a *"]


async def test_r129_a_channel_sees_only_sessions_that_it_owns(tmp_path: Path) -> None:
    trace = Trace()
    channels = (channel_of("http", {"*": trace.handler("http")}), channel_of("slack", {"*": trace.handler("slack")}))
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}, channels) as (log, dispatcher):
        for name in ("http", "slack", "other"):
            await log.start_session(name, channel=name)
        await shown(dispatcher)
    assert sorted(trace.calls) == [
        ("h", "http", 0),
        ("h", "other", 0),
        ("h", "slack", 0),
        ("http", "http", 0),
        ("slack", "slack", 0),
    ]


async def test_hooks_see_the_sessions_of_their_agent_and_those_without_one(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, dispatcher):
        for agent in ("agent", "other", None):
            await log.start_session(f"of {agent}", agent=agent)
        await shown(dispatcher)
    assert sorted(trace.calls) == [("h", "of None", 0), ("h", "of agent", 0)]


async def test_r55_a_session_of_another_agents_name_is_shown_to_no_hook_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not of an agent that has a runtime of its own on this log: its hooks see the session."""
    trace = Trace()
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, dispatcher):
        log.agents_served.add("beside")
        for number, agent in enumerate(("shop", "shop", "beside", "agent", None)):
            await log.start_session(f"s{number}", agent=agent)
            await append(log, f"s{number}", 2)
        await shown(dispatcher)
    assert {session_id for _, session_id, _ in trace.calls} == {"s3", "s4"}
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "session 's0' is of agent 'shop', and this runtime serves 'agent': its hooks see no session of that agent; "
        "start sessions with agent='agent', or without one"
    ]


async def test_r55_and_r125_hooks_see_every_channel_mode_and_purpose(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    async def note(_event: Event[Any], context: Context) -> None:
        seen.append((context.session.channel_id, context.session.mode, context.session.purpose))

    async with served(tmp_path / "a.db", {"h": hook_of({"*": note})}) as (log, dispatcher):
        await log.start_session("s1", channel="http", mode="task", purpose="eval")
        await log.start_session("s2", channel="slack", mode="chat", purpose="live")
        await shown(dispatcher)
    assert seen == [("http", "task", "eval"), ("slack", "chat", "live")]


async def test_r61_all_subscribers_see_the_same_object(tmp_path: Path) -> None:
    trace = Trace()
    channel = channel_of("api", {"*": trace.handler("channel")})
    hooks = {f"h{n}": trace.hook(f"h{n}") for n in range(6)}
    async with served(tmp_path / "a.db", hooks, (channel,)) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 10)
        await shown(dispatcher)
    by_index: dict[int, set[int]] = {}
    for event in trace.events:
        by_index.setdefault(event.index, set()).add(id(event))
    assert len(trace.events) == 11 * 7
    assert all(len(objects) == 1 for objects in by_index.values())


async def test_r60_what_a_handler_does_to_an_event_never_reaches_the_log(tmp_path: Path) -> None:
    async def tamper(event: Event[Any], _context: Any) -> None:
        event.data.data["list"].append("tampered")
        with pytest.raises(AttributeError):
            event.index = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: tamper})}) as (log, dispatcher):
        session = await log.start_session("s1")
        await session.append(NOTE, {**NOTED, "data": {"list": [1]}})
        await shown(dispatcher)
        assert dispatcher.hooks[0].errors == 0
        assert [event.data.data async for event in session.read(after=0)] == [{"list": [1]}]


async def test_r121_r123_r124_sessions_are_in_order_and_independent_of_each_other(tmp_path: Path) -> None:
    """50 sessions, six hooks and a channel; handlers take 0 to 2 ms, or no time at all."""
    random, running = Random(7), dict[str, str]()
    trace, most_sessions = Trace(), [0]

    def slow(who: str) -> Any:
        async def handler(event: Event[Any], _context: Any) -> None:
            assert event.session_id not in running, "two calls at once in one session"
            running[event.session_id] = who
            most_sessions[0] = max(most_sessions[0], len(running))
            trace.note(who, event)
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0, 0.002))
            del running[event.session_id]

        return handler

    names = ["channel", *(f"h{n}" for n in range(6))]
    channel = channel_of("api", {"*": slow("channel")})
    hooks = {name: hook_of({"*": slow(name)}) for name in names[1:]}
    async with served(tmp_path / "a.db", hooks, (channel,)) as (log, dispatcher):
        sessions = [await log.start_session(f"s{n}") for n in range(50)]
        await asyncio.gather(*(session.append(NOTE, NOTED) for _ in range(8) for session in sessions))
        await shown(dispatcher)
        assert [(hook.errors, hook.calls) for hook in dispatcher.hooks] == [(0, 450)] * 6
    for session in sessions:
        calls = [(index, who) for who, session_id, index in trace.calls if session_id == session.id]
        assert calls == [(index, who) for index in range(9) for who in names]
    assert most_sessions[0] > 10


async def test_r123_a_handler_that_never_returns_holds_up_its_session_only(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_in_s1(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.session_id == "s1":
            await gate.wait()

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: stop_in_s1})}) as (log, _):
        for session_id in ("s1", "s2", "s3"):
            await log.start_session(session_id)
        await append(log, "s1", 3)
        await gate.reached.wait()
        await append(log, "s2", 3)
        await append(log, "s3", 3)
        while len(trace.calls) < 7:
            await asyncio.sleep(0)
        assert trace.indexes("h", "s1") == [1]
        assert trace.indexes("h", "s2") == trace.indexes("h", "s3") == [1, 2, 3]
        gate.opened.set()
    assert trace.indexes("h", "s1") == [1, 2, 3]


async def test_r119_a_slow_handler_does_not_delay_an_append(tmp_path: Path) -> None:
    gate, blocked, released = Gate(), threading.Event(), threading.Event()

    def block(_event: Event[Any], _context: Any) -> None:
        blocked.set()
        released.wait(30)

    hooks = {"async": hook_of({NOTE: gate.handler}), "plain": hook_of({"*": block})}
    async with served(tmp_path / "a.db", hooks) as (log, _):
        session = await log.start_session("s1")
        other = await log.start_session("s2")
        async with asyncio.timeout(5):
            await asyncio.to_thread(blocked.wait)
            for _ in range(50):
                await session.append(NOTE, NOTED)
                await other.append(NOTE, NOTED)
        assert not gate.reached.is_set()
        released.set()
        await gate.reached.wait()
        async with asyncio.timeout(5):
            for _ in range(50):
                await session.append(NOTE, NOTED)
        gate.opened.set()


async def test_g3_calls_start_and_end_in_index_order_whatever_they_take(tmp_path: Path) -> None:
    random, begun, ended = Random(3), Trace(), Trace()

    async def slow(event: Event[Any], _context: Any) -> None:
        begun.note("h", event)
        await asyncio.sleep(random.uniform(0, 0.02))
        ended.note("h", event)

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: slow})}) as (log, dispatcher):
        sessions = [await log.start_session(f"s{n}") for n in range(10)]
        for n in range(200):
            await sessions[n % 10].append(NOTE, NOTED)
        await shown(dispatcher)
    for session in sessions:
        assert begun.indexes("h", session.id) == ended.indexes("h", session.id) == list(range(1, 21))


# ----------------------------------------------------------------------------------------------------- isolation


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        Unprintable(),
        asyncio.CancelledError(),
        GeneratorExit(),
        SystemExit(3),
        StopIteration(1),
        ExceptionGroup("many", [ValueError("one")]),
        BaseExceptionGroup("worse", [SystemExit(1)]),
        RecursionError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["at once", "after a wait", "plain"])
async def test_g1_r58_r59_an_error_is_logged_once_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException, kind: str
) -> None:
    trace = Trace()

    async def fail(event: Event[Any], _context: Any) -> None:
        trace.note("middle", event)
        if kind == "after a wait":
            await asyncio.sleep(0)
        if event.index == 2:
            raise error

    def fail_plainly(event: Event[Any], _context: Any) -> None:
        trace.note("middle", event)
        if event.index == 2:
            raise error

    middle = hook_of({NOTE: fail_plainly if kind == "plain" else fail})
    hooks = {"first": trace.hook("first"), "middle": middle, "third": trace.hook("third")}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        events = await append(log, "s1", 3)
        await shown(dispatcher)
        assert [(hook.name, hook.calls, hook.errors) for hook in dispatcher.hooks] == [
            ("first", 4, 0),
            ("middle", 3, 1),
            ("third", 4, 0),
        ]
    assert [event.index for event in events] == [1, 2, 3]
    assert trace.indexes("first", "s1") == trace.indexes("third", "s1") == [0, 1, 2, 3]
    assert trace.indexes("middle", "s1") == [1, 2, 3]
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.name == "eventlog.observe"
    assert record.getMessage().startswith('hook "middle" handler for artifact.tagged threw: ')


async def test_r155_the_line_names_hook_event_and_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_event: Event[Any], _context: Any) -> None:
        raise ValueError("no such bucket")

    channel = channel_of("api", {NOTE: fail})
    async with served(tmp_path / "a.db", {"audit/usage": hook_of({NOTE: fail})}, (channel,)) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1")
        await shown(dispatcher)
    assert [record.getMessage() for record in caplog.records] == [
        'channel "api" handler for artifact.tagged threw: ValueError: no such bucket',
        'hook "audit/usage" handler for artifact.tagged threw: ValueError: no such bucket',
    ]


CONTROLS = "\x1b[2J\x1b]0;title\x07\u202e\r\x9b31m"


async def test_r155_nothing_that_a_handler_raises_acts_on_a_terminal_or_fakes_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message and the traceback that `logging` adds, by a formatter that nobody has chosen."""

    async def fail(_event: Event[Any], _context: Any) -> None:
        try:
            raise LookupError(f"{CONTROLS} of the cause")
        except LookupError as error:
            error.add_note(f"a note {CONTROLS}")
            raise ValueError(f"of a payload: {CONTROLS}\nERROR:root:forged") from error

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: fail})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1")
        await shown(dispatcher)
    (record,) = caplog.records
    first, *others = logging.Formatter("%(levelname)s:%(name)s:%(message)s").format(record).split("\n")
    assert first.startswith(
        'ERROR:eventlog.observe:hook "h" handler for artifact.tagged threw: ValueError: of a payload'
    )
    assert all(line.isprintable() for line in (first, *others))
    assert all(line.startswith("  ") for line in others)
    assert "  LookupError: \\x1b[2J" in "\n".join(others)
    assert "  ERROR:root:forged" in others
    assert any(line.endswith(f"line {fail.__code__.co_firstlineno + 5}, in fail") for line in others), "it tells where"


async def test_r155_a_long_traceback_is_cut_in_its_middle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_event: Event[Any], _context: Any) -> None:
        raise ValueError("x" * 1_000_000 + " the end")

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: fail})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1")
        await shown(dispatcher)
    text = logging.Formatter().format(caplog.records[0])
    assert len(text) < MAX_TRACEBACK_CHARACTERS + 10_000
    assert "\n  Traceback (most recent call last):\n" in text
    assert text.endswith(" the end")


async def test_r58_a_log_that_raises_costs_the_next_hook_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_event: Event[Any], _context: Any) -> None:
        raise ValueError("boom")

    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("no log today")

    trace, logger = Trace(), logging.getLogger("eventlog.observe")
    logger.addFilter(refuse)
    try:
        async with served(tmp_path / "a.db", {"h": hook_of({NOTE: fail}), "next": trace.hook("next")}) as (
            log,
            dispatcher,
        ):
            await log.start_session("s1")
            await append(log, "s1", 2)
            await shown(dispatcher)
    finally:
        logger.removeFilter(refuse)
    assert trace.indexes("next", "s1") == [0, 1, 2]
    async with EventLog(tmp_path / "a.db", read_only=True) as log:
        assert len(await hook_errors(log.store)) == 2


class Unwritable(Exception):
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise RuntimeError("no notes")
        return super().__getattribute__(name)

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_error_that_cannot_be_written_is_logged_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_event: Event[Any], _context: Any) -> None:
        raise Unwritable

    trace = Trace()
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: fail}), "next": trace.hook("next")}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1")
        await shown(dispatcher)
    text = logging.Formatter().format(caplog.records[0])
    assert text.startswith('hook "h" handler for artifact.tagged threw: Unwritable')
    assert trace.indexes("next", "s1") == [0, 1]


@pytest.mark.parametrize("waits", [False, True])
def test_g1_keyboard_interrupt_passes_and_the_engine_stops_in_order(tmp_path: Path, waits: bool) -> None:
    trace = Trace()

    async def interrupt(event: Event[Any], _context: Any) -> None:
        trace.note("middle", event)
        if waits:
            await asyncio.sleep(0)
        if event.index == 2:
            raise KeyboardInterrupt

    async def serve() -> None:
        hooks = {"first": trace.hook("first"), "middle": hook_of({NOTE: interrupt}), "third": trace.hook("third")}
        async with served(tmp_path / "a.db", hooks) as (log, _):
            await log.start_session("s1")
            await append(log, "s1", 3)
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(serve())
    assert trace.indexes("first", "s1") == trace.indexes("third", "s1") == [0, 1, 2, 3]
    assert trace.indexes("middle", "s1") == [1, 2, 3]


async def test_a_handler_that_cancels_its_own_task_is_an_error_like_others(tmp_path: Path) -> None:
    trace = Trace()

    async def cancel(event: Event[Any], _context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: cancel}), "next": trace.hook("next")}) as (
        log,
        dispatcher,
    ):
        await log.start_session("s1")
        await log.start_session("s2")
        await append(log, "s1", 2)
        await append(log, "s2", 2)
        await shown(dispatcher)
        assert dispatcher.hooks[0].errors == 4
    assert trace.indexes("next", "s1") == trace.indexes("next", "s2") == [0, 1, 2]


async def test_a_coroutine_that_is_closed_calls_nobody(tmp_path: Path) -> None:
    """As it is when the loop has ended before: that is no error of the handler, and the next one is not called."""
    gate, trace = Gate(), Trace()

    async def wait(event: Event[Any], _context: Any) -> None:
        trace.note("first", event)
        await gate.wait()

    hooks = {"first": hook_of({NOTE: wait}), "next": hook_of({NOTE: trace.handler("next")})}
    async with served(tmp_path / "a.db", hooks, limits=ObserveLimits(drain_s=0.01, cancel_s=0.01)) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await gate.reached.wait()
        task = dispatcher._lanes.by_session["s1"].task
        assert task is not None
        coroutine = task.get_coro()
        assert coroutine is not None
        coroutine.close()
        assert trace.calls == [("first", "s1", 1)]
        assert [hook.errors for hook in dispatcher.hooks] == [0, 0]
        task.cancel()
        await asyncio.wait([task])
    assert trace.calls == [("first", "s1", 1)]


async def test_a_corrupt_event_is_passed_with_an_error_record(tmp_path: Path) -> None:
    trace = Trace()

    async def read(event: Event[Any], _context: Any) -> None:
        assert event.data

    hooks = {"reads": hook_of({"*": read}), "next": trace.hook("next")}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await shown(dispatcher)
        at = log.head + 1
        dispatcher.recorded([Event(NOTE, 1, "s1", None, 0, at, "era", b"{broken")])
        await shown(dispatcher)
        assert [hook.errors for hook in dispatcher.hooks] == [1, 0]
    assert trace.indexes("next", "s1") == [0, 1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 brought eager tasks")
async def test_the_log_calls_nobody_even_if_tasks_begin_at_once(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()
    factory: Any = getattr(asyncio, "eager_task_factory", None)
    asyncio.get_running_loop().set_task_factory(factory)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: gate.handler, "*": trace.handler("h")})}) as (
        log,
        dispatcher,
    ):
        await log.start_session("s1")
        await log.start_session("s2")
        await shown(dispatcher)
        at = log.head
        dispatcher.recorded([Event(NOTE, 1, "s1", None, 0, at + 1, "era", b"{}")])
        assert not gate.reached.is_set()
        await gate.reached.wait()
        dispatcher.recorded([Event("own.type", 1, "s2", None, 0, at + 2, "era", b"{}")])
        while not trace.indexes("h", "s2")[1:]:
            await asyncio.sleep(0)
        gate.opened.set()
        await shown(dispatcher)


# ----------------------------------------------------------------------------------------- tasks and their contexts

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.mark.parametrize("waits", [False, True])
async def test_each_handler_runs_in_a_context_of_its_own(tmp_path: Path, waits: bool) -> None:
    seen: list[tuple[str, str]] = []

    def handler(who: str) -> Any:
        async def set_and_look(_event: Event[Any], _context: Any) -> None:
            before = WHO.get()
            WHO.set(who)
            if waits:
                await asyncio.sleep(0)
            seen.append((before, WHO.get()))
            assert await asyncio.create_task(asyncio.to_thread(WHO.get)) == who

        return set_and_look

    WHO.set("server")
    hooks = {name: hook_of({NOTE: handler(name)}) for name in ("a", "b")}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await shown(dispatcher)
        assert sum(hook.errors for hook in dispatcher.hooks) == 0
    assert seen == [("server", "a"), ("server", "b")] * 2
    assert WHO.get() == "server"


async def test_a_plain_function_runs_in_a_context_of_its_own_too(tmp_path: Path) -> None:
    seen: list[str] = []

    def set_and_look(_event: Event[Any], _context: Any) -> None:
        seen.append(WHO.get())
        WHO.set("plain")

    WHO.set("server")
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: set_and_look})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await shown(dispatcher)
    assert seen == ["server", "server"]


async def test_a_value_that_cannot_be_compared_changes_the_context(tmp_path: Path) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("cannot say")

        __hash__ = object.__hash__

    odd: ContextVar[Odd] = ContextVar("odd")
    ours = Odd()
    odd.set(ours)
    seen: list[Odd] = []

    async def set_and_look(_event: Event[Any], _context: Any) -> None:
        seen.append(odd.get())
        odd.set(Odd())

    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: set_and_look})}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await shown(dispatcher)
    assert [each is ours for each in seen] == [True] * 3


async def test_timeouts_and_task_groups_work_inside_of_handlers(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def with_timeout(_event: Event[Any], _context: Any) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            outcomes.append("timeout")

    async def with_group(_event: Event[Any], _context: Any) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(10))
                group.create_task(_fail())
        except* ValueError:
            outcomes.append("group")

    async def _fail() -> None:
        raise ValueError

    hooks = {"t": hook_of({NOTE: with_timeout}), "g": hook_of({NOTE: with_group})}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        for session_id in ("s1", "s2", "s3"):
            await log.start_session(session_id)
            await append(log, session_id)
        await shown(dispatcher)
        assert sum(hook.errors for hook in dispatcher.hooks) == 0
    assert sorted(outcomes) == ["group"] * 3 + ["timeout"] * 3


async def test_any_callable_can_be_a_handler(tmp_path: Path) -> None:
    trace = Trace()

    class Callable:
        async def __call__(self, event: Event[Any], context: Any) -> None:
            trace.note("object", event)

        async def method(self, event: Event[Any], context: Any) -> None:
            trace.note("method", event)

        def plain(self, event: Event[Any], context: Any) -> str:
            trace.note("plain", event)
            return "return values mean nothing"

    async def with_name(name: str, event: Event[Any], context: Any) -> None:
        trace.note(name, event)

    each = Callable()
    handlers: dict[str, Any] = {
        "object": each,
        "method": each.method,
        "plain": each.plain,
        "partial": partial(with_name, "partial"),
        "lambda": lambda event, context: with_name("lambda", event, context),
    }
    hooks = {name: hook_of({NOTE: handler}) for name, handler in handlers.items()}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 2)
        await shown(dispatcher)
        assert sum(hook.errors for hook in dispatcher.hooks) == 0
    assert trace.calls == [(name, "s1", index) for index in (1, 2) for name in handlers]


async def test_the_context_is_the_state_at_the_call(tmp_path: Path) -> None:
    """R131: a hook sees what a channel's handler recorded before it, though both are called for the same event."""
    seen: list[tuple[str, str | None]] = []

    async def set_token(event: Event[Any], context: Context) -> None:
        seen.append(("channel", context.session.continuation_token))
        await log.append(event.session_id, "session.updated", {"continuationToken": "new"})

    async def look(_event: Event[Any], context: Context) -> None:
        seen.append(("hook", context.session.continuation_token))

    channel = channel_of("api", {NOTE: set_token})
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: look})}, (channel,)) as (log, dispatcher):
        await log.start_session("s1", continuation_token="old")
        await append(log, "s1")
        await shown(dispatcher)
    assert seen == [("channel", "old"), ("hook", "new")]


async def test_an_event_of_a_session_that_is_not_in_memory_is_shown_too(tmp_path: Path) -> None:
    trace = Trace()
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        await log.start_session("s2")
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}) as (log, dispatcher):
        assert log.info_of("s1") is None
        at = log.head
        dispatcher.recorded(
            [
                Event(NOTE, 1, "s1", None, 0, at + 1, "era", b"{}"),
                Event(NOTE, 1, "s2", None, 0, at + 2, "era", b"{}"),
                Event(NOTE, 2, "s1", None, 0, at + 3, "era", b"{}"),
                Event(NOTE, 0, "unknown", None, 0, at + 4, "era", b"{}"),
            ]
        )
        await shown(dispatcher)
    assert trace.indexes("h", "s1") == [1, 2]
    assert trace.indexes("h", "s2") == [1]
    assert trace.indexes("h", "unknown") == []


# --------------------------------------------------------------------------------------------------- many and long


async def test_a_lane_that_falls_behind_reads_on_from_the_log(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_once(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.session_id == "s1":
            await gate.wait()

    limits = ObserveLimits(lane_events=5, page_events=10)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: stop_once})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await log.start_session("s2")
        await append(log, "s1", 100)
        await gate.reached.wait()
        await append(log, "s1", 100, "own.type")
        await append(log, "s1", 100)
        await append(log, "s2", 3)
        lane = dispatcher._lanes.by_session["s1"]
        while len(trace.calls) < 4:
            await asyncio.sleep(0)
        assert len(lane.queue) == 5
        gate.opened.set()
        await append(log, "s1", 10)
        await shown(dispatcher)
    assert trace.indexes("h", "s1") == [*range(1, 101), *range(201, 311)]


async def test_what_a_lane_reads_before_it_is_announced_is_shown_once(tmp_path: Path) -> None:
    gate, trace, announced = Gate(), Trace(), list[list[Event[Any]]]()

    async def stop_once(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.index == 1:
            await gate.wait()

    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        dispatcher = dispatcher_of(log, {"h": hook_of({NOTE: stop_once})}, limits=ObserveLimits(lane_events=2))
        await dispatcher.start()
        assert dispatcher._unsubscribe is not None
        dispatcher._unsubscribe()
        log.on_recorded(announced.append)
        await append(log, "s1", 10)
        await append(log, "s1", 10)
        dispatcher.recorded(announced[0])
        await gate.reached.wait()
        while dispatcher._inbox.ready:
            await asyncio.sleep(0)
        gate.opened.set()
        await shown(dispatcher)
        dispatcher.recorded(announced[1])
        await shown(dispatcher)
        await dispatcher.stop()
    assert trace.indexes("h", "s1") == list(range(1, 21))


async def test_all_lanes_together_hold_a_bounded_number_of_events(tmp_path: Path) -> None:
    gate, trace = Gate(), Trace()

    async def stop_once(event: Event[Any], _context: Any) -> None:
        trace.note("h", event)
        if event.index == 1:
            await gate.wait()

    limits = ObserveLimits(lanes_events=50, page_events=20)
    async with served(tmp_path / "a.db", {"h": hook_of({NOTE: stop_once})}, limits=limits) as (log, dispatcher):
        for n in range(20):
            await log.start_session(f"s{n}")
            await append(log, f"s{n}", 20)
        while len(trace.calls) < 20 or dispatcher._inbox.ready:
            await asyncio.sleep(0)
        assert sum(len(lane.queue) for lane in dispatcher._lanes.by_session.values()) == 50
        gate.opened.set()
        await shown(dispatcher)
        assert dispatcher._lanes._events == 0
    for n in range(20):
        assert trace.indexes("h", f"s{n}") == list(range(1, 21))


async def test_more_events_than_fit_in_memory_are_read_from_the_log(tmp_path: Path) -> None:
    trace, announced = Trace(), list[Event[Any]]()
    limits = ObserveLimits(queue_events=20)
    async with EventLog(tmp_path / "a.db") as log:
        dispatcher = dispatcher_of(log, {"h": trace.hook("h")}, limits=limits)
        await dispatcher.start()
        assert dispatcher._unsubscribe is not None
        dispatcher._unsubscribe()
        log.on_recorded(announced.extend)
        sessions = [await log.start_session(f"s{n}") for n in range(5)]
        for _ in range(4):
            await asyncio.gather(*(session.append_many([NewEvent(NOTE, NOTED)] * 100) for session in sessions))
        dispatcher.recorded(announced)
        while not dispatcher.is_settled:
            assert len(dispatcher._inbox.ready) <= 10 + PAGE_EVENTS
            await asyncio.sleep(0)
        await dispatcher.stop()
    for session in sessions:
        assert trace.indexes("h", session.id) == list(range(401))


async def test_what_is_read_from_the_log_before_it_is_announced_is_shown_once(tmp_path: Path) -> None:
    trace, announced = Trace(), list[list[Event[Any]]]()
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        dispatcher = dispatcher_of(log, {"h": trace.hook("h")}, limits=ObserveLimits(queue_events=5))
        await dispatcher.start()
        assert dispatcher._unsubscribe is not None
        dispatcher._unsubscribe()
        log.on_recorded(announced.append)
        for _ in range(3):
            await append(log, "s1", 10)
        for events in announced:
            dispatcher.recorded(events)
            await shown(dispatcher)
        await dispatcher.stop()
    assert trace.indexes("h", "s1") == list(range(1, 31))


async def turns_while_shown(path: Path, limits: ObserveLimits, *, in_a_lane: bool) -> int:
    """How often the loop had its turn while 160 events were shown to a handler that never waits."""
    gate, shown_in_turn = Gate(), [0]

    async def busy(event: Event[Any], _context: Any) -> None:
        if in_a_lane and event.index == 1:
            await gate.wait()
        shown_in_turn[-1] += 1

    async def count() -> None:
        while True:
            shown_in_turn.append(0)
            await asyncio.sleep(0)

    async with served(path, {"h": hook_of({NOTE: busy})}, limits=limits) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 160)
        if in_a_lane:
            await gate.reached.wait()
        counting = asyncio.create_task(count())
        gate.opened.set()
        await shown(dispatcher)
        counting.cancel()
    assert sum(shown_in_turn) == 160
    return sum(1 for each in shown_in_turn if each)


async def test_handlers_that_never_wait_leave_the_loop_its_turn(tmp_path: Path) -> None:
    at_once = await turns_while_shown(tmp_path / "1.db", ObserveLimits(batch_s=60), in_a_lane=False)
    by_number = await turns_while_shown(tmp_path / "2.db", ObserveLimits(batch_s=60, batch_events=10), in_a_lane=False)
    by_time = await turns_while_shown(tmp_path / "3.db", ObserveLimits(batch_s=0), in_a_lane=False)
    assert at_once < 5
    assert by_number >= 16
    assert by_time >= 10


async def test_nor_does_a_lane_that_catches_up_keep_the_loop(tmp_path: Path) -> None:
    at_once = await turns_while_shown(tmp_path / "1.db", ObserveLimits(batch_s=60), in_a_lane=True)
    by_time = await turns_while_shown(tmp_path / "2.db", ObserveLimits(batch_s=0), in_a_lane=True)
    assert at_once < 5
    assert by_time >= 150


async def test_dispatch_once_shows_one_bounded_batch(tmp_path: Path) -> None:
    trace = Trace()
    async with EventLog(tmp_path / "a.db") as log:
        await log.start_session("s1")
        dispatcher = dispatcher_of(log, {"h": trace.hook("h")}, limits=ObserveLimits(batch_events=3))
        await dispatcher.start()
        events: list[Event[Any]] = [Event(NOTE, n, "s1", None, 0, log.head + n, "era", b"{}") for n in range(1, 8)]
        dispatcher.recorded(events)
        await dispatcher.dispatch_once()
        assert trace.indexes("h", "s1") == [1, 2, 3]
        await dispatcher.dispatch_once()
        assert trace.indexes("h", "s1") == [1, 2, 3, 4, 5, 6]
        await shown(dispatcher)
        await dispatcher.stop()


# ------------------------------------------------------------------------------------------------- who is served


async def test_hooks_and_channels_can_be_added_while_events_come(tmp_path: Path) -> None:
    trace = Trace()
    async with served(tmp_path / "a.db", {"old": trace.hook("old")}) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        dispatcher.add_hook("new", trace.hook("new"), "here")
        dispatcher.add_channel(channel_of("api", {"*": trace.handler("channel")}))
        await shown(dispatcher)
        await append(log, "s1", 2)
        await shown(dispatcher)
        assert [hook.name for hook in dispatcher.hooks] == ["old", "new"]
    assert trace.indexes("old", "s1") == [0, 1, 2, 3, 4, 5]
    assert trace.indexes("new", "s1") == trace.indexes("channel", "s1") == [4, 5]
    assert trace.calls[-3:] == [("channel", "s1", 5), ("old", "s1", 5), ("new", "s1", 5)]


async def test_a_name_is_given_once(tmp_path: Path) -> None:
    trace = Trace()
    channel = channel_of("api", {"*": trace.handler("c")})
    async with served(tmp_path / "a.db", {"h": trace.hook("h")}, (channel,)) as (_, dispatcher):
        with pytest.raises(InvalidName, match="unique"):
            dispatcher.add_hook("h", trace.hook("h"))
        with pytest.raises(InvalidName, match="unique"):
            dispatcher.add_channel(channel)


async def test_rows_tell_what_each_hook_is_and_did(tmp_path: Path) -> None:
    trace, gate = Trace(), Gate()
    hooks = {"a": hook_of({NOTE: trace.handler("a"), "*": trace.handler("a")}), "b": hook_of({NOTE: gate.handler})}
    async with served(tmp_path / "a.db", hooks) as (log, dispatcher):
        await log.start_session("s1")
        await append(log, "s1", 3)
        await gate.reached.wait()
        a, b = dispatcher.hooks
        assert (a.name, a.events, a.source, a.on_restart) == ("a", [NOTE, "*"], "tests", "skip")
        assert (a.lag, a.gaps, a.calls, a.errors, a.stuck) == (3, 0, 3, 0, 0)
        assert (b.lag, b.gaps, b.calls, b.errors, b.stuck) == (3, 0, 1, 0, 0)
        gate.opened.set()
        await shown(dispatcher)
        assert [(hook.lag, hook.calls) for hook in dispatcher.hooks] == [(0, 7), (0, 3)]
