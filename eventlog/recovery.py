"""After a crash: what a dead owner left unfinished, named at a start, and what of it can be ended is ended.

A server cannot know whether a tool ran that was called when the process died. So nothing is run again from here:
open turns, calls and inputs are named, for the server to ask or to resume; a job that was running becomes
`outcomeUnknown`, which is final; and a turn is ended as interrupted where the server says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from eventlog.errors import ForkedProcess, IndexConflict, LogClosed, LogInUse, shown
from eventlog.events import TURN_INTERRUPTED, JobCompleted, JobStatus, NewEvent, TurnFailed
from eventlog.log import EventLog
from eventlog.store.checking import Damaged
from eventlog.store.cursors import gaps_to_come
from eventlog.store.events import last_position
from eventlog.store.owner import owner_of
from eventlog.store.unfinished import (
    OpenInput,
    OpenTurn,
    RunningJob,
    UnansweredCall,
    Unfinished,
    UnfinishedWork,
)

__all__ = ["Damaged", "OpenInput", "OpenTurn", "Recovered", "Recovery", "RunningJob", "UnansweredCall", "at_rest"]

PAGE = 256
"""Turns or jobs that are ended at once, in as many commits as the writer makes of them."""

NAMES = 5
"""Tools that the summary names, those with the most calls first."""

Item = TypeVar("Item", OpenTurn, RunningJob)

logger = logging.getLogger("eventlog.recovery")


class Recovered(msgspec.Struct, frozen=True):
    """What a start found, in sessions of its agent and of none; of a log at rest, what a start would find.

    `damaged` are events that were met on the way, among them the last ones of the log; `eventlog check` proves all.
    `not_named` counts turns, calls, inputs and jobs beyond the first thousand of each, `events_unread` those of open
    turns that were too many to look through for calls, and `failed` what could not be ended and is left for the next
    start; of these three the log has warned.
    """

    open_turns: Sequence[OpenTurn] = ()
    unanswered_calls: Sequence[UnansweredCall] = ()
    open_inputs: Sequence[OpenInput] = ()
    jobs_unknown: Sequence[RunningJob] = ()
    deliveries_resumed: int = 0
    gaps: int = 0
    reminders_due: int = 0
    damaged: Sequence[Damaged] = ()
    not_named: int = 0
    events_unread: int = 0
    failed: int = 0
    duration_s: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether the last owner left everything in order."""
        return not any(getattr(self, name) for name in self.__struct_fields__ if name != "duration_s")

    def summary(self, turns_ended: bool = False) -> str:
        """What was cut short, in one line as a start logs it, empty if nothing was; questions and reminders may wait.

        `turns_ended` says that open turns are ended as interrupted.
        """
        tools = Counter(call.tool_name for call in self.unanswered_calls)
        names = ", ".join(f"{shown(name)} {count}x" for name, count in tools.most_common(NAMES))
        counts = (
            (len(self.open_turns), "open turn", f"({'ended as interrupted' if turns_ended else 'left open'})"),
            (tools.total(), "call", f"without a result ({names}{', ...' if len(tools) > NAMES else ''})"),
            (len(self.jobs_unknown), "job", "with an unknown outcome"),
            (self.deliveries_resumed, "call", "of extensions made again"),
            (self.gaps, "hook", "with a gap"),
        )
        return ", ".join(f"{count} {noun}{'' if count == 1 else 's'} {what}" for count, noun, what in counts if count)


async def at_rest(log: EventLog) -> Recovered:
    """What the next start would find in this log, of every agent; changes nothing, and a read-only log will do.

    Raises LogInUse while another process owns it: what is underway there is not unfinished.
    """
    if log.read_only and (pid := owner_of(log.store.path)) is not None:
        raise LogInUse(log.path, pid)
    began_s = log.clock.monotonic_s()
    upto = await log.store.read(last_position)
    found = await UnfinishedWork(log.store, None, upto).survey()
    gaps = await log.store.read_aside(gaps_to_come)
    return _recovered(found, gaps=gaps, duration_s=log.clock.monotonic_s() - began_s)


class Recovery:
    """The recovery of one agent's sessions, and of sessions without an agent, by the log's new owner.

    What this process itself began is not unfinished: only what the file held when it was opened is looked at.
    """

    def __init__(self, log: EventLog, agent: str) -> None:
        self._log = log
        self._work = UnfinishedWork(log.store, agent, log.store.found_position)

    async def look(self) -> Recovered:
        """Name what is unfinished; call it before anything is taken up again."""
        return _recovered(await self._work.survey())

    async def end_jobs(self) -> int:
        """Record of each job that was running that its outcome is unknown; returns how many could not be ended.

        Its extensions are told, like of every `job.completed`. A job that ends meanwhile keeps its own outcome.
        """
        return await self._end_all(self._work.jobs, _outcome_unknown)

    async def interrupt_turns(self) -> int:
        """Record of each open turn that it was interrupted; returns how many could not be ended.

        A turn that ends meanwhile, or begins again, is left alone.
        """
        return await self._end_all(self._work.turns, _interrupted)

    async def _end_all(
        self, page_of: Callable[[int, int], Awaitable[list[Item]]], end_of: Callable[[Item], NewEvent]
    ) -> int:
        after = failed = 0
        while page := await page_of(after, PAGE):
            failed += (await asyncio.gather(*[self._end(item, end_of(item)) for item in page])).count(False)
            after = page[-1].position
        return failed

    async def _end(self, item: OpenTurn | RunningJob, end: NewEvent) -> bool:
        """Whether it has ended; one that cannot be ended must not keep the others from it."""
        try:
            while await self._is_to_be_ended_again(item, end):
                pass
        except (LogClosed, ForkedProcess):
            raise
        except Exception as error:  # a full disk, say, or `redact` refuses it
            logger.warning("unfinished, and could not be ended; the next start tries again: %s: %s", item, error)
            return False
        return True

    async def _is_to_be_ended_again(self, item: OpenTurn | RunningJob, end: NewEvent) -> bool:
        """Append an end, unless there is one. The index says whether anything came after the look: then look again."""
        session = await self._log.session(item.session_id)
        index = session.next_index
        if not await self._work.has(item):
            return False
        try:
            _ = await session.append(end.type, end.data, turn_id=end.turn_id, key=end.key, expected_index=index)
        except IndexConflict:
            return True
        return False


def _outcome_unknown(job: RunningJob) -> NewEvent:
    return NewEvent("job.completed", JobCompleted(job.job_id, JobStatus.OUTCOME_UNKNOWN), key=_end_key(job))


def _interrupted(turn: OpenTurn) -> NewEvent:
    return NewEvent("turn.failed", TurnFailed(TURN_INTERRUPTED), turn.turn_id, key=_end_key(turn))


def _end_key(item: OpenTurn | RunningJob) -> str:
    """The same at every start: what was ended once is not ended again."""
    return f"recovery.ended:{item.position}"


def _recovered(found: Unfinished, gaps: int = 0, duration_s: float = 0.0) -> Recovered:
    if found.not_named:
        logger.warning("%d more unfinished turns, calls, inputs and jobs are not named", found.not_named)
    if found.events_unread:
        logger.warning("%d events of open turns were not looked through for calls", found.events_unread)
    for event in found.damaged:
        logger.error(
            "event %d of session %s (position %d) is damaged: %s; run `eventlog check`",
            event.index, event.session_id, event.position, event.why,
        )  # fmt: skip
    return Recovered(
        open_turns=found.turns,
        unanswered_calls=found.calls,
        open_inputs=found.inputs,
        jobs_unknown=found.jobs,
        deliveries_resumed=found.deliveries,
        gaps=gaps,
        reminders_due=found.reminders_due,
        damaged=found.damaged,
        not_named=found.not_named,
        events_unread=found.events_unread,
        duration_s=duration_s,
    )
