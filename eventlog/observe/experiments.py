"""Runs A/B experiments: puts new live sessions in arms, and hands out a sample of each of their turns."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from eventlog.errors import InvalidName
from eventlog.events import AbAssigned, Event, NewEvent, SessionInfo, SessionStarted, TurnCompleted, TurnFailed
from eventlog.log import EventLog
from eventlog.observe.ab import EXPERIMENT, AbDefinition, OnSample, Sample, arm_of
from eventlog.observe.context import HookContext
from eventlog.observe.hook import HookDefinition
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.threads import PlainThreads

PLAIN_THREADS = 4
TURNS_LOOKED_AT = 100
"""Begun later than a turn that ends now, in its session: further back its start is not looked for."""

logger = logging.getLogger("eventlog.observe")


class Experiments:
    """The experiments of one agent: on its live sessions, and on live sessions without an agent."""

    def __init__(self, log: EventLog, agent: str, limits: ObserveLimits | None = None) -> None:
        limits = limits or ObserveLimits()
        self._log = log
        self._agent = agent
        self._by_name: dict[str, AbDefinition] = {}
        self._threads = PlainThreads(log.clock, PLAIN_THREADS, limits.max_plain_threads, limits.stuck_after_s)
        self._unsubscribe: Callable[[], None] | None = None

    def add(self, definition: AbDefinition) -> tuple[str, HookDefinition] | None:
        """Add one; sessions that are started from now on take part.

        Returns the hook that collects its samples, and the hook's name, for whoever shows events to hooks.
        Raises InvalidName for a name that is taken.
        """
        if definition.name in self._by_name:
            raise InvalidName(EXPERIMENT, definition.name, "another experiment has it, and names are unique")
        self._by_name[definition.name] = definition
        if definition.on_sample is None:
            return None
        collect = _Collector(self._log, definition.name, definition.on_sample, self._threads).collect
        return f"ab:{definition.name}", HookDefinition({"turn.completed": collect, "turn.failed": collect})

    def start(self) -> None:
        """Put sessions in arms from now on."""
        self._unsubscribe = self._log.on_starting(self.enroll)

    def stop(self) -> None:
        """No more; again: nothing."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        self._threads.close()

    def enroll(self, session_id: str, started: SessionStarted) -> tuple[SessionStarted, list[NewEvent]]:
        """Put a session that is about to be started in its arms (R135): its first event shows them in `abs`.

        What the server itself says in `abs` stands: a text in the place of an experiment is the session's arm, one of
        the experiment's or not, and anything else keeps the session out of it.
        """
        given = {} if started.abs is None else started.abs
        if started.purpose != "live" or started.agent not in (None, self._agent) or not self._by_name:
            return started, []
        if not isinstance(given, dict):
            logger.warning("session %s is in no experiment: its abs is a %s", session_id, type(given).__name__)
            return started, []
        chosen = {name: given.get(name, each.arm_for(session_id)) for name, each in self._by_name.items()}
        arms = {name: arm for name, arm in chosen.items() if isinstance(arm, str)}
        assigned = [NewEvent("ab.assigned", AbAssigned(name, arm)) for name, arm in arms.items()]
        return replace(started, abs={**given, **arms}), assigned

    def arms(self, session: SessionInfo) -> dict[str, str]:
        """The arms that a session is in, by experiment."""
        arms = {name: arm_of(session, name) for name in self._by_name}
        return {name: arm for name, arm in arms.items() if arm is not None}

    def instructions(self, session: SessionInfo) -> list[str]:
        """The instructions of a session's arms (R138)."""
        texts = [self._by_name[name].instructions.get(arm) for name, arm in self.arms(session).items()]
        return [text for text in texts if text is not None]


class _Collector:
    """Folds the turns of one experiment into samples (R137); it looks at the log and changes nothing."""

    def __init__(self, log: EventLog, experiment: str, on_sample: OnSample, threads: PlainThreads) -> None:
        self._log = log
        self._experiment = experiment
        self._on_sample = on_sample
        self._threads = threads

    async def collect(self, ended: Event[Any], ctx: HookContext) -> None:
        """Hand out the sample of a turn that has ended, if its session takes part."""
        arm = arm_of(ctx.session, self._experiment)
        if ctx.session.purpose == "live" and arm is not None:
            await self._hand_out(sample_of(self._experiment, arm, await self._began(ended), ended))

    async def _began(self, ended: Event[Any]) -> Event[Any] | None:
        """The turn's own `turn.started`. From the log and not from memory, so that a restart does not matter."""
        session = await self._log.session(ended.session_id)
        begun = session.read(before=ended.index, types=["turn.started"], reverse=True, limit=TURNS_LOOKED_AT)
        async for event in begun:
            if event.turn_id == ended.turn_id:
                return event
        return None

    async def _hand_out(self, sample: Sample) -> None:
        if inspect.iscoroutinefunction(self._on_sample):
            await self._on_sample(sample)
            return
        self._threads.relieve()
        result = await self._threads.run(self._on_sample, sample)
        if inspect.isawaitable(result):
            await result


def sample_of(experiment: str, arm: str, began: Event[Any] | None, ended: Event[TurnCompleted | TurnFailed]) -> Sample:
    """What a turn came to, from its first event, if there is one, and its last."""
    failed = isinstance(ended.data, TurnFailed)
    return Sample(
        experiment=experiment,
        arm=arm,
        session_id=ended.session_id,
        turn_id=ended.turn_id or "",
        at=ended.at,
        duration_s=None if began is None else max(0.0, (ended.at_us - began.at_us) / 1_000_000),
        failed=failed,
        message=ended.data.message if isinstance(ended.data, TurnFailed) else None,
        usage=ended.data.usage if isinstance(ended.data, TurnCompleted) else None,
        cost=ended.data.cost if isinstance(ended.data, TurnCompleted) else None,
    )
