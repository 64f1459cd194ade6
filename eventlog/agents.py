"""Runs the turns of an agent's own code: a message goes in, and what the agent says and does is recorded as it comes.

The code is `agent/agent.py`. It answers in a coroutine function that returns the reply, or in an async generator
function that yields it piece by piece, with the events of the turn in between:

    async def turn(session: Session, message: str, host: Host) -> AsyncIterator[str | NewEvent]:
        yield NewEvent("actions.requested", {"calls": [{"callId": "c1", "toolName": "tides"}]})
        yield "High tide is "
        yield "at 06:12."

`turn.started` and `message.received` come before it, `message.completed` and `turn.completed` after it, unless it
yields them itself. What it raises becomes `turn.failed`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from types import ModuleType
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

import msgspec

from eventlog.errors import IndexConflict, InvalidEvent, InvalidName
from eventlog.events import TURN_INTERRUPTED, Event, NewEvent
from eventlog.host import Host
from eventlog.observe.failures import rendered
from eventlog.session import Session
from eventlog.vocabulary import event_type

TURN = "turn"
"""The name of the function in `agent/agent.py`."""

Answer: TypeAlias = AsyncIterator[str | NewEvent] | AsyncIterator[str] | AsyncIterator[NewEvent] | Awaitable[str | None]
Turn: TypeAlias = Callable[[Session, str, Host], Answer]
"""What an agent answers with: a function of its session, the message, and the host that its hooks have too."""

Say: TypeAlias = Callable[[str], object]
"""Is given the reply piece by piece, each after it was recorded."""

_MESSAGE = ("message.appended", "message.completed")
_ENDS = ("turn.completed", "turn.failed")


class Turned(msgspec.Struct, frozen=True):
    """How a turn went: what was said in it, and why it failed, if it did; `error` is what the agent raised."""

    turn_id: str
    reply: str
    failure: str | None = None
    error: BaseException | None = None


async def echo(_session: Session, message: str, _host: Host) -> str:
    """Answer as the agent of a folder without one does: with what it was told."""
    return message


def turn_of(module: ModuleType | None) -> Turn | None:
    """The `turn` of what `agent/agent.py` is, None where it has none; raises InvalidName for one that cannot be called.

    It has to be a coroutine function or an async generator function: another one would hold up all hooks.
    """
    turn = getattr(module, TURN, None)
    if turn is None:
        return None
    if not inspect.iscoroutinefunction(turn) and not inspect.isasyncgenfunction(turn):
        raise InvalidName("function", TURN, "in agent/agent.py it must be `async def turn(session, message, host)`")
    try:
        inspect.signature(turn).bind("session", "message", "host")
    except TypeError as error:
        raise InvalidName("function", TURN, f"is called with (session, message, host), but: {error}") from None
    return cast(Turn, turn)


async def run_turn(turn: Turn, session: Session, message: str, host: Host, say: Say | None = None) -> Turned:
    """Record one turn: what was asked, what the agent does with it, and how it ended.

    A session has one turn at a time: another one waits here for its end, in the order of the calls, and nothing of it
    is recorded before. An agent that would wait so for its own turn gets InvalidEvent.

    A turn that is cancelled is recorded as interrupted (R95), and CancelledError passes. What the log itself raises
    when it cannot record, such as StorageFull, passes too.
    """
    async with _turns_of(session).one():
        return await _run_turn(turn, session, message, host, say)


async def _run_turn(turn: Turn, session: Session, message: str, host: Host, say: Say | None) -> Turned:
    recording = _Recording(session, say)
    try:
        await recording.begin(message)
        await recording.take_all(turn(session, message, host))
        await recording.complete()
    except asyncio.CancelledError as error:
        if not _is_cancelled():
            return await recording.fail(rendered(error), error)  # of a task of the agent's own
        await recording.fail(TURN_INTERRUPTED, error)
        raise
    except (Exception, SystemExit) as error:
        return await recording.fail(rendered(error), error)
    return recording.turned()


class _Turns:
    """Lets the turns of one session go one after the other."""

    __slots__ = ("__weakref__", "_lock", "_task")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for those that were called before."""
        task = asyncio.current_task()
        if self._task is task:
            raise InvalidEvent("session", "this turn would wait for its own end; run a turn of another session in it")
        async with self._lock:
            self._task = task
            try:
                yield
            finally:
                self._task = None


_turns: WeakValueDictionary[tuple[int, str], _Turns] = WeakValueDictionary()
"""By log and session, for as long as somebody is in a turn, who holds the log: its `id` is no other's meanwhile."""


def _turns_of(session: Session) -> _Turns:
    return _turns.setdefault((id(session.log), session.id), _Turns())


class _Recording:
    """What was recorded of one turn so far."""

    def __init__(self, session: Session, say: Say | None) -> None:
        self._session = session
        self._say = say
        self._first_index = session.next_index
        self._messages: list[str] = []
        self._pieces: list[str] = []  # of the message that is not completed yet
        self._end: Event[Any] | None = None

    async def begin(self, message: str) -> None:
        """Both at once: no hook is shown a turn that was asked nothing. The index of the first is in the turn's id,
        which no other turn has therefore."""
        while True:
            first_index, turn_id = self._first_index, self._turn_id
            asked = [NewEvent("turn.started", {}, turn_id), NewEvent("message.received", {"text": message}, turn_id)]
            try:
                await self._session.append_many(asked, expected_index=first_index)
                return
            except IndexConflict:  # somebody else appended meanwhile
                self._first_index = self._session.next_index

    @property
    def _turn_id(self) -> str:
        return f"t{self._first_index}"

    async def take_all(self, answer: Answer) -> None:
        if not isinstance(answer, AsyncGenerator):
            await self._take_reply(await cast(Awaitable[Any], answer))
            return
        async with aclosing(answer):
            async for piece in answer:
                await self._take(piece)

    async def _take_reply(self, reply: Any) -> None:
        if isinstance(reply, str):
            await self._record(NewEvent("message.completed", {"text": reply}))
        elif reply is not None:
            raise TypeError(f"turn returned {type(reply).__name__}; return text, or yield text and NewEvent")

    async def _take(self, piece: Any) -> None:
        if isinstance(piece, str):
            piece = NewEvent("message.appended", {"delta": piece})
        elif not isinstance(piece, NewEvent):
            raise TypeError(f"turn yielded {type(piece).__name__}; yield text or NewEvent")
        if piece.type not in _MESSAGE:
            await self._complete_message()
        await self._record(piece)

    async def _complete_message(self) -> None:
        if self._pieces:
            await self._record(NewEvent("message.completed", {"text": "".join(self._pieces)}))

    async def _record(self, new: NewEvent) -> None:
        of_session = new.turn_id is None and event_type(new.type).turn == "refused"
        turn_id = None if of_session else new.turn_id or self._turn_id
        event = await self._session.append(new.type, new.data, turn_id=turn_id, key=new.key)
        if event.type == "message.appended":
            self._say_of_message(event.data.delta)
            self._pieces.append(event.data.delta)
        elif event.type == "message.completed":
            if not self._pieces:
                self._say_of_message(event.data.text)
            self._messages.append(event.data.text)
            self._pieces.clear()
        elif event.type in _ENDS:
            self._end = event

    def _say_of_message(self, text: str) -> None:
        if self._say is not None:
            between = "\n" if self._messages and not self._pieces else ""
            self._say(f"{between}{text}")

    async def complete(self) -> None:
        """End the turn, unless the agent has."""
        await self._complete_message()
        if self._end is None:
            result = {"result": self._messages[-1]} if self._messages else {}
            await self._record(NewEvent("turn.completed", result))

    async def fail(self, why: str, error: BaseException) -> Turned:
        """End the turn as failed, unless the agent has ended it, or not even its beginning was recorded."""
        if self._end is None and self._session.next_index > self._first_index:
            await self._record(NewEvent("turn.failed", {"message": why}))
        return self.turned(why, error)

    def turned(self, failure: str | None = None, error: BaseException | None = None) -> Turned:
        if failure is None and self._end is not None and self._end.type == "turn.failed":
            failure = self._end.data.message
        return Turned(self._turn_id, "\n".join(self._messages), failure, error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
