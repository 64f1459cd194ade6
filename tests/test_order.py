"""Traces of many sessions at once: what is called when, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eventlog import Event, EventLog, NewEvent, Runtime, define_channel
from eventlog.observe import ChannelContext
from tests.observing import NOTE, NOTED

SESSIONS = tuple(f"s{number:02}" for number in range(50))
HELD = SESSIONS[::10]
EVENTS = 12
HELD_AT = 4
"""The index of the event that a handler of the held sessions does not return from."""

COROUTINE = """
from eventlog import define_hook

async def mark(event, ctx):
    await ctx.host.trace.call({name!r}, event)

hook = define_hook(events={{"*": mark}})
"""
PLAIN = """
from eventlog import define_hook

def mark(event, ctx):
    ctx.host.trace.call_plain({name!r}, event)

hook = define_hook(events={{"*": mark}})
"""

# As they are called: the channel, the agent's own by path, those of extensions by namespace.
CHANNEL = "api"
FILES = {
    "a": ("hooks/a.py", COROUTINE),
    "audit/z": ("hooks/audit/z.py", PLAIN),
    "b": ("hooks/b.py", COROUTINE),
    "c": ("hooks/c.py", COROUTINE),
    "crm__a": ("extensions/crm/hooks/a.py", COROUTINE),
    "docs__a": ("extensions/docs/hooks/a.py", PLAIN),
}
HOLDS = {session_id: (CHANNEL, *FILES)[1 + number] for number, session_id in enumerate(HELD)}
"""Which hook does not return, in which of the held sessions: each time another one."""


class Mark(NamedTuple):
    """The start or the finish of one call."""

    what: str
    who: str
    session_id: str
    event_index: int


class Trace:
    """Notes when each call starts and finishes, and lets it take its time in between."""

    def __init__(self, awaited: int = 0) -> None:
        self.marks: list[Mark] = []
        self.released = asyncio.Event()
        self.reached = asyncio.Event()
        """Set when there are as many marks as are `awaited`: to look again and again would keep threads waiting."""
        self._awaited = awaited
        self._random = Random(4)
        self._loop = asyncio.get_running_loop()

    async def call(self, who: str, event: Event[Any]) -> None:
        """Of a coroutine function: some return at once, some wait for a few turns of the loop, some are held."""
        self._mark("start", who, event)
        for _ in range(self._random.choice((0, 0, 1, 5))):
            await asyncio.sleep(0)
        if self._is_held(who, event):
            await self.released.wait()
        self._mark("finish", who, event)

    def call_plain(self, who: str, event: Event[Any]) -> None:
        """Of a plain function, on its thread."""
        self._mark("start", who, event)
        if self._is_held(who, event):
            asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result(60)
        self._mark("finish", who, event)

    def _wait(self) -> Any:
        wait: Awaitable[Any] = self.released.wait()
        return wait

    def _is_held(self, who: str, event: Event[Any]) -> bool:
        return event.index == HELD_AT and HOLDS.get(event.session_id) == who

    def _mark(self, what: str, who: str, event: Event[Any]) -> None:
        self.marks.append(Mark(what, who, event.session_id, event.index))
        if len(self.marks) == self._awaited:
            self._loop.call_soon_threadsafe(self.reached.set)

    def of(self, session_id: str) -> list[Mark]:
        """The marks of one session, in the order in which they were made."""
        return [mark for mark in list(self.marks) if mark.session_id == session_id]


def whole_trace(session_id: str) -> list[Mark]:
    """What has to be in the trace of a session: event after event, call after call, none begun before one ended."""
    return [
        Mark(what, who, session_id, index)
        for index in range(EVENTS)
        for who in (CHANNEL, *FILES)
        for what in ("start", "finish")
    ]


def make_agent(folder: Path) -> None:
    for name, (path, source) in FILES.items():
        file = folder / "agent" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.format(name=name))


async def talk(log: EventLog, session_id: str, random: Random) -> None:
    """Append some events to a session, one by one and several at once."""
    session = await log.start_session(session_id, channel=CHANNEL)
    while session.next_index < EVENTS:
        count = min(random.choice((1, 1, 3)), EVENTS - session.next_index)
        await session.append_many([NewEvent(NOTE, NOTED)] * count)


async def test_r121_r122_r123_r124_the_trace_of_fifty_sessions_at_once(tmp_path: Path) -> None:
    """Channel handlers, then hooks in discovery order, event after event, no two of a session at a time. Five sessions
    are held in the midst, by another hook each, one on a thread: the others are shown all of theirs meanwhile.
    """
    make_agent(tmp_path)
    trace, random = Trace(awaited=expected_while_held()), Random(9)

    async def deliver(event: Event[Any], _ctx: ChannelContext) -> None:
        await trace.call(CHANNEL, event)

    async with EventLog(tmp_path / "a.db") as log:
        runtime = Runtime(log, tmp_path, services={"trace": trace})
        runtime.add_channel(define_channel(id=CHANNEL, events={"*": deliver}))
        async with runtime:
            assert [hook.name for hook in runtime.hooks] == list(FILES)
            async with asyncio.TaskGroup() as group:
                for session_id in SESSIONS:
                    group.create_task(talk(log, session_id, random))
            await trace.reached.wait()
            for session_id in SESSIONS:
                expected = whole_trace(session_id)
                if session_id in HELD:
                    held_in = Mark("start", HOLDS[session_id], session_id, HELD_AT)
                    expected = expected[: expected.index(held_in) + 1]
                assert trace.of(session_id) == expected
            trace.released.set()
            await runtime.settled(30)
            assert [(hook.calls, hook.errors) for hook in runtime.hooks] == [(len(SESSIONS) * EVENTS, 0)] * len(FILES)
    for session_id in SESSIONS:
        assert trace.of(session_id) == whole_trace(session_id)


def expected_while_held() -> int:
    """How many marks there are when nothing goes on any more."""
    of_held = [whole_trace(id).index(Mark("start", HOLDS[id], id, HELD_AT)) + 1 for id in HELD]
    return (len(SESSIONS) - len(HELD)) * len(whole_trace("")) + sum(of_held)


async def test_r122_a_thousand_hooks_are_found_and_called_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"h{number:03}" for number in range(1_000)]
    folder = tmp_path / "agent" / "hooks"
    folder.mkdir(parents=True)
    for name in reversed(names):
        (folder / f"{name}.py").write_text(COROUTINE.format(name=name))
    trace = Trace()
    async with EventLog(tmp_path / "a.db") as log, Runtime(log, tmp_path, services={"trace": trace}) as runtime:
        await log.start_session("s1")
        await runtime.settled(30)
    assert [mark.who for mark in trace.marks if mark.what == "start"] == names
