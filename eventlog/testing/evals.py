"""One turn of an eval, and what happened in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog import Event, EventLog, Runtime, Session, SessionInfo
from eventlog.agents import Turn, run_turn, turn_of
from eventlog.events import ActionCall
from eventlog.observe import discover


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The events of one turn, in order, for an eval's assertions (R133)."""

    session: SessionInfo
    turn_id: str
    events: tuple[Event[Any], ...]

    @property
    def types(self) -> list[str]:
        """The type of each event."""
        return [event.type for event in self.events]

    @property
    def calls(self) -> list[ActionCall]:
        """The tool calls that were requested."""
        return [call for event in self.of("actions.requested") for call in event.data.calls]

    @property
    def reply(self) -> str | None:
        """The last text that was said, if any."""
        said = self.of("message.completed")
        return said[-1].data.text if said else None

    @property
    def result(self) -> Any:
        """What the turn came to; None when it failed."""
        completed = self.of("turn.completed")
        return completed[-1].data.result if completed else None

    @property
    def failure(self) -> str | None:
        """Why the turn failed; None when it did not."""
        failed = self.of("turn.failed")
        return failed[-1].data.message if failed else None

    def of(self, type: str) -> list[Event[Any]]:
        """The events of one type."""
        return [event for event in self.events if event.type == type]


async def run_eval_turn(
    message: str,
    *,
    agent: Turn | None = None,
    agent_dir: str | Path | None = None,
    runtime: Runtime | None = None,
    session: Session | None = None,
    timeout_s: float = 60.0,
) -> Trajectory:
    """Run one turn of an eval session, and return what happened when every hook has seen it (R133).

    `agent` is what answers, the `turn` of `agent/agent.py` in `agent_dir` unless it is given; see `eventlog.agents` for
    what such a function gets and how its turn is recorded. What it raises is the trajectory's `failure`, and so is an
    interruption after `timeout_s`. Hooks and channels are called, with `purpose="eval"` (R125); no A/B experiment takes
    part (R135).

    It runs in `runtime`, or in one of its own that serves `agent_dir` from a log that is thrown away. `session` goes on
    with an earlier eval session. Raises ValueError for a live one, and when nobody answers.
    """
    if session is not None and session.info.purpose != "eval":
        raise ValueError(f'session {session.id!r} is live; start one with purpose="eval"')
    turn = agent or _turn_in(agent_dir)
    async with _runtime_for(runtime, agent_dir) as serving:
        if session is None:
            session = await serving.log.start_session(channel="eval", purpose="eval")
        first_index = session.next_index
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await run_turn(turn, session, message, serving.host_for(session.id))
        await serving.settled(timeout_s)
        begun, *others = [event async for event in session.read(after=first_index - 1)]
        events = (begun, *(event for event in others if event.turn_id == begun.turn_id))
        return Trajectory(session.info, begun.turn_id or "", events)


def _turn_in(agent_dir: str | Path | None) -> Turn:
    turn = None if agent_dir is None else turn_of(discover(Path(agent_dir)).agent_module)
    if turn is None:
        raise ValueError("nobody answers: give an agent=, or an agent_dir= with a turn() in its agent/agent.py")
    return turn


@asynccontextmanager
async def _runtime_for(runtime: Runtime | None, agent_dir: str | Path | None) -> AsyncIterator[Runtime]:
    if runtime is not None:
        yield runtime
        return
    with TemporaryDirectory(prefix="eventlog-eval-") as folder:
        async with EventLog(Path(folder) / "eval.db") as log, Runtime(log, agent_dir) as own:
            yield own
