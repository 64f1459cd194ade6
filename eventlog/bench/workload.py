"""What is appended: one event of 387 bytes, again and again, over 1,000 sessions in turn.

It is an `action.result`: ids, a flag and text in a mapping. Turn by turn over all sessions is the worst order for an
index by session: each group touches as many places of it as it has events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from eventlog import Event, EventLog, Session

SESSIONS = 1_000
PRODUCERS = 256
EVENT_BYTES = 387
"""Of the whole envelope as JSON; 265 of them are `data`."""

TYPE = "action.result"
TURN = "turn.completed"
TURN_ID = "turn_0001"

Durability: TypeAlias = Literal["full", "process"]
Turn: TypeAlias = tuple[Session, dict[str, Any]]
"""What is appended to next, and the data."""


def session_ids(count: int = SESSIONS) -> list[str]:
    """The sessions, in the order in which they take turns."""
    return [f"ses_{number:04}" for number in range(count)]


def payload() -> dict[str, Any]:
    """The data of one event, as a server would hand it over."""
    return _filled(TYPE, _result)


def turn_payload() -> dict[str, Any]:
    """The data of a `turn.completed` of the same size."""
    return _filled(TURN, lambda output: {"result": output})


def _filled(type_: str, data_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    output = "The tide table of the harbour was read; all of its hours are in UTC."
    missing = EVENT_BYTES - _envelope_bytes(type_, data_of(output))
    return data_of(output.ljust(len(output) + missing, "."))


def as_json(data: dict[str, Any]) -> str:
    """Data as it is stored."""
    return json.dumps(data, separators=(",", ":"))


def _result(output: str) -> dict[str, Any]:
    return {"callId": "call_0001", "toolName": "read_table", "isError": False, "output": output}


def _envelope_bytes(type_: str, data: dict[str, Any]) -> int:
    """The size of the event on the wire, in the middle of its session."""
    event: Event[Any] = Event(
        type=type_,
        index=25,
        session_id=session_ids()[0],
        turn_id=TURN_ID,
        at_us=1_768_208_400_375_125,
        position=1,
        era="",
        raw=as_json(data).encode(),
    )
    return len(event.to_json())


class Appender:
    """Appends the workload to an open log, or the same number of bytes as `turn.completed`, which are delivered."""

    def __init__(self, log: EventLog, sessions: list[Session], *, turns: bool = False) -> None:
        self.log = log
        self.sessions = sessions
        self._type = TURN if turns else TYPE
        data = turn_payload() if turns else payload()
        self._turns: Iterator[Turn] = cycle([(session, data) for session in sessions])

    async def one(self) -> None:
        """Append the next event."""
        session, data = next(self._turns)
        await session.append(self._type, data, turn_id=TURN_ID)

    async def many(self, events: int, producers: int = PRODUCERS) -> None:
        """Append so many by 256 tasks, each of which waits for its event before it appends another."""
        turns, type_ = islice(self._turns, events), self._type

        async def produce() -> None:
            for session, data in turns:
                await session.append(type_, data, turn_id=TURN_ID)

        await asyncio.gather(*[produce() for _ in range(producers)])

    async def repeat(self, work: Callable[[], Awaitable[object]], times: int) -> None:
        """Do it so often, by 256 tasks."""
        left = iter(range(times))

        async def produce() -> None:
            for _ in left:
                await work()

        await asyncio.gather(*[produce() for _ in range(PRODUCERS)])

    async def many_with_keys(self, events: int) -> None:
        """The same, each with a `key=` of its own."""
        turns, type_ = enumerate(islice(self._turns, events)), self._type
        era = token_hex(4)

        async def produce() -> None:
            for number, (session, data) in turns:
                await session.append(type_, data, turn_id=TURN_ID, key=f"{era}-{number}")

        await asyncio.gather(*[produce() for _ in range(PRODUCERS)])


@asynccontextmanager
async def opened(
    folder: Path, durability: Durability = "full", *, sessions: int = SESSIONS, turns: bool = False
) -> AsyncIterator[Appender]:
    """A new log in a folder of its own, with all sessions started; it is gone afterwards."""
    with TemporaryDirectory(dir=folder) as inside:
        async with EventLog(Path(inside) / "log.db", durability=durability) as log:
            started = await asyncio.gather(*[log.start_session(id) for id in session_ids(sessions)])
            yield Appender(log, started, turns=turns)
