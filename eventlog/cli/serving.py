"""Serves an agent for as long as a command runs: its runtime, the log of what it serves, and its reply on stdout."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eventlog import Runtime, Session, SessionNotFound
from eventlog.agents import Turn, Turned, echo, run_turn, turn_of
from eventlog.cli.explain import Code, Stop
from eventlog.cli.opening import owning
from eventlog.cli.output import Output, OutputClosed, OutputFailed, Span, aside, escaped, note
from eventlog.errors import shown
from eventlog.observe import Discovered, discover

T = TypeVar("T")

SETTLE_S = 60.0
"""How long hooks and extensions may take for what they are owed when all is said; then they are cut short."""
HURRY_S = 0.1
"""The same for each of them, and for the turn, when the command is interrupted."""
HURRY_LIMIT_S = 1.5
"""For all of the stop then; and after it, once the log is closed, LAST_S for what does not heed a cancellation."""
LAST_S = 0.1

_KEPT = ("", "\n", "\t")
_PARTS = re.compile(r"([\n\t])")


# ----------------------------------------------------------------------------------------------------------- the agent


@dataclass(frozen=True)
class Served:
    """An agent that is up."""

    folder: Path
    found: Discovered
    runtime: Runtime
    turn: Turn

    async def known(self, session_id: str | None) -> Session | None:
        """The session that is gone on with, if it is there already."""
        if session_id is None:
            return None
        try:
            return self._own(await self.runtime.log.session(session_id))
        except SessionNotFound:
            return None

    async def started(self, session_id: str | None) -> Session:
        """A session that is new, and said to be."""
        session = await self.runtime.log.start_session(session_id, agent=self.found.agent, channel="cli")
        note("session ", session.id)
        return session

    def _own(self, session: Session) -> Session:
        agent = session.info.agent
        if agent not in (None, self.found.agent):
            raise Stop(
                Code.USAGE,
                f"session {shown(session.id)} belongs to agent {shown(agent)}, and this is {shown(self.found.agent)}",
            )
        return session

    async def answer(self, session: Session, message: str, reply: Reply) -> Turned:
        """Record a turn, and write what is said in it; says why it failed, if it did."""
        host = self.runtime.host_for(session.id)
        turned = await _left_when_cancelled(run_turn(self.turn, session, message, host, reply.piece))
        reply.end()
        if turned.failure is not None:
            place = place_in(turned.error, self.folder)
            note("the turn failed: ", turned.failure, f" ({place})" if place else "")
        return turned

    async def settled(self) -> None:
        """Wait for hooks and extensions."""
        try:
            await self.runtime.settled(SETTLE_S)
        except TimeoutError:
            note(f"hooks or extensions were not done within {SETTLE_S:g} s, and are cut short")


def discovered(agent_dir: Path) -> Discovered:
    """The agent in a folder, without what would keep a runtime from starting."""
    if not (agent_dir / "agent").is_dir():
        raise Stop(Code.NOT_FOUND, f"there is no folder {agent_dir / 'agent'}; make one with `eventlog init`")
    found = discover(agent_dir)
    found.raise_for_errors()
    return found


@asynccontextmanager
async def serving(agent_dir: Path, db: Path) -> AsyncIterator[Served]:
    """The agent in a folder, up, with the log that it is served from; both are made where they are not there."""
    folder, found = agent_dir.resolve(), discovered(agent_dir)  # noqa: ASYNC240 (nothing else runs yet)
    turn = turn_of(found.agent_module)
    if turn is None and found.agent_module is not None:
        note("agent/agent.py has no turn(); the echo agent answers")
    with served_aloud(folder):
        try:
            async with owning(db, create=True) as log:
                runtime = await Runtime(log, agent_dir).start()
                try:
                    yield Served(folder, found, runtime, turn or echo)
                finally:
                    await _stop(runtime)
        finally:
            if _is_interrupted():
                _end_soon()


async def _left_when_cancelled(work: Coroutine[Any, Any, T]) -> T:
    """The result of some work; when this is cancelled, the work has a moment to end, and is not waited for any more."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=HURRY_S)
        raise


async def _stop(runtime: Runtime) -> None:
    if not _is_interrupted():
        await runtime.stop()
        return
    try:
        async with asyncio.timeout(HURRY_LIMIT_S):
            await runtime.stop(HURRY_S)
    except TimeoutError:
        return  # the log is closed all the same, and what was appended is settled


def _is_interrupted() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _end_soon() -> None:
    """End the process even if the agent's code does not: the loop would wait for its tasks and threads for ever."""
    end = threading.Timer(LAST_S, os._exit, (int(Code.INTERRUPTED),))
    end.daemon = True
    end.start()


# --------------------------------------------------------------------------------------------------- what is written


@contextmanager
def served_aloud(folder: Path) -> Iterator[None]:
    """Write to stderr what is logged, line by line as it is (R155), and what the agent's code prints (R156)."""
    ours, root = logging.getLogger("eventlog"), logging.getLogger()
    before, handler = ours.handlers[:], _ServeLog(folder)
    ours.handlers[:] = []
    root.addHandler(handler)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        root.removeHandler(handler)
        ours.handlers[:] = before


class _ServeLog(logging.Handler):
    """A line for each record; below it, where in the agent's files that came from."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.WARNING)
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        """Write it; nobody has to be there to read it."""
        error = record.exc_info[1] if record.exc_info else None
        place = place_in(error, self._folder)
        aside(record.getMessage())
        if place is not None:
            aside(Span(f"    {place}", "dim"))


def place_in(error: BaseException | None, folder: Path) -> str | None:
    """Where in the files of a folder an error was raised, as `agent/hooks/a.py:12 in on_turn`."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else ()
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    if not ours:
        return None
    return f"{Path(ours[-1].filename).relative_to(folder).as_posix()}:{ours[-1].lineno} in {ours[-1].name}"


class Reply:
    """What an agent says, on stdout as it says it, with nothing else there."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._written = ""
        self._closed: BaseException | None = None

    def piece(self, text: str) -> None:
        """Write some more of it. When that cannot be done (any more), the turn goes on all the same.

        An interruption comes as a KeyboardInterrupt out of a write, and as a cancellation, which is enough.
        """
        if self._closed is None and text:
            try:
                self._output.harmless("".join(part if part in _KEPT else escaped(part) for part in _PARTS.split(text)))
                self._output.flush()
            except (OutputClosed, OutputFailed, KeyboardInterrupt) as error:
                self._closed = error
            self._written = text

    def end(self) -> None:
        """End its last line."""
        if self._written and not self._written.endswith("\n"):
            self.piece("\n")
        self._written = ""

    def check(self) -> None:
        """Raise what kept some of it from being written, such as OutputClosed."""
        if self._closed is not None:
            raise self._closed
