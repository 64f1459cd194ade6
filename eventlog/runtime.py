"""One process that serves an agent: starts and stops hooks, channels, extensions and what they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.envelope import LOG_TYPE_OF
from eventlog.durable.operators import OperatorCommands
from eventlog.durable.policy import DeliveryPolicy
from eventlog.durable.readers import GrantedJobs, GrantedTurns
from eventlog.durable.running import Readers, RunningExtensions, extension_folders
from eventlog.durable.worker import STOP_GRACE_S, Worker
from eventlog.errors import InvalidName, LogClosed, SessionNotFound
from eventlog.events import Event, SessionInfo
from eventlog.host import Host, Meter, ReminderLimits
from eventlog.host.hosts import Hosts
from eventlog.host.kv import channel_state, extension_storage
from eventlog.host.otel_export import open_telemetry
from eventlog.host.reminding import Reminding
from eventlog.log import EventLog
from eventlog.observe.ab import AbDefinition
from eventlog.observe.channel import ChannelDefinition
from eventlog.observe.context import Contexts
from eventlog.observe.discover import Discovered, discover
from eventlog.observe.dispatcher import Dispatcher, ObserveLimits, RunningHook
from eventlog.observe.experiments import Experiments
from eventlog.observe.hook import HookDefinition, check_hook_name
from eventlog.observe.mounting import Mounting
from eventlog.projections import Projection, Projector, by_name
from eventlog.recovery import Recovered, Recovery
from eventlog.serving import Command
from eventlog.store.buried import DeadLetter
from eventlog.store.projections import ProjectionState

logger = logging.getLogger("eventlog.runtime")

DEFAULT_AGENT = "agent"

_DURABLE = frozenset(LOG_TYPE_OF.values())


@dataclass
class _Parts:
    """What lives from start to stop."""

    dispatcher: Dispatcher
    mounting: Mounting
    worker: Worker
    extensions: RunningExtensions
    dead_letters: DeadLetters
    agent: str
    meter: Meter
    reminding: Reminding
    experiments: Experiments
    hosts: Hosts
    projector: Projector


class Runtime:
    """Serves the sessions of one agent, and sessions without an agent, in the process that owns the log.

    `agent_dir` is the folder that holds `agent/`, with its hooks and extensions; `services` are the server's own
    clients, as `ctx.host.<name>`; `grants` are given to an extension when it is first installed. `seed` makes the
    back-off's jitter repeatable; `reminder_limits` says how much a session may be reminded of, `observe_limits` how
    much observe hooks hold in memory and how long they are waited for, their threads included; `projections` are folded
    behind the log. What the log's last owner left unfinished is in `recovered`; with `interrupt_open_turns`, turns that
    it left open are ended as interrupted (R95). Entering raises DiscoveryError or ManifestError with all findings.
    """

    def __init__(
        self,
        log: EventLog,
        agent_dir: str | Path | None = None,
        services: Mapping[str, Any] | None = None,
        policy: DeliveryPolicy | None = None,
        grants: Mapping[str, Sequence[str]] | None = None,
        on_dead_letter: Callable[[DeadLetter], object] | None = None,
        seed: int | None = None,
        interrupt_open_turns: bool = False,
        plain_threads: int = 32,
        reminder_limits: ReminderLimits | None = None,
        observe_limits: ObserveLimits | None = None,
        projections: Sequence[Projection] = (),
    ) -> None:
        self.log = log
        self.policy = policy or DeliveryPolicy()
        self.recovered = Recovered()
        """What the last start found unfinished, and how long it took."""
        self._agent_dir = None if agent_dir is None else Path(agent_dir)
        self._services = dict(services or {})
        self._grants = dict(grants or {})
        self._on_dead_letter = on_dead_letter
        self._random = Random(seed)
        self._interrupt_open_turns = interrupt_open_turns
        self._plain_threads = plain_threads
        self._reminder_limits = reminder_limits
        self._observe_limits = observe_limits or ObserveLimits(plain_threads=plain_threads)
        self._projections = tuple(by_name(projections).values())
        self._hooks: list[tuple[str, HookDefinition]] = []
        self._channels: list[ChannelDefinition] = []
        self._experiments: list[AbDefinition] = []
        self._parts: _Parts | None = None
        self._starting_or_stopping = asyncio.Lock()
        self._unsubscribe: Callable[[], None] | None = None
        self._stop_answering: Callable[[], Awaitable[None]] | None = None

    # -- what is made in code ------------------------------------------------------------------------

    def add_hook(self, name: str, hook: HookDefinition) -> None:
        """Add a hook made in code, behind the discovered ones; raises InvalidName for a name that is bad or taken."""
        check_hook_name(name)
        if self._parts is not None:
            self._parts.dispatcher.add_hook(name, hook, "code")
        self._hooks.append((name, hook))

    def add_channel(self, channel: ChannelDefinition) -> None:
        """Add a channel; raises InvalidName for an id that is taken."""
        if self._parts is not None:
            self._parts.dispatcher.add_channel(channel)
        self._channels.append(channel)

    def add_ab(self, experiment: AbDefinition) -> None:
        """Add an experiment; sessions started from now on take part. Raises InvalidName for a name that is taken."""
        if self._parts is not None:
            self._add_experiment(self._parts, experiment, "code")
        self._experiments.append(experiment)

    # -- from start to stop -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start everything; what fails leaves nothing running. Raises InvalidName if it runs already."""
        async with self._starting_or_stopping:
            if self._parts is not None:
                raise InvalidName("runtime", self._parts.agent, "it is started already; stop it first")
            found = Discovered(DEFAULT_AGENT, None, (), ()) if self._agent_dir is None else discover(self._agent_dir)
            found.raise_for_errors()
            if found.agent in self.log.agents_served:
                why = "another Runtime serves it on this log, and an event is shown by one only"
                raise InvalidName("agent", found.agent, why)
            self.log.agents_served.add(found.agent)
            self._parts = self._make(found.agent)
            try:
                await self._start(self._parts, found)
            except BaseException:
                await self._stop(STOP_GRACE_S)
                raise
        return self

    async def _start(self, parts: _Parts, found: Discovered) -> None:
        began_s = self.log.clock.monotonic_s()
        recovery = Recovery(self.log, parts.agent)
        left_behind = await recovery.look()  # before anything of it is taken up again
        await self._start_extensions(parts)
        await self._start_hooks(parts, found)
        await parts.extensions.take_up(None if self._agent_dir is None else self._agent_dir / "agent")
        self._unsubscribe = self.log.on_recorded(self._recorded)
        taken_up = await parts.worker.start()
        parts.reminding.start()
        await parts.projector.start()
        self._stop_answering = self.log.commands.add(self._commands(parts))
        failed = await recovery.end_jobs()  # hooks and extensions are up: they are told of it
        if self._interrupt_open_turns:
            failed += await recovery.interrupt_turns()
        self.recovered = replace(
            left_behind,
            deliveries_resumed=taken_up.resumed,
            gaps=parts.dispatcher.gaps_found,
            failed=failed,
            duration_s=self.log.clock.monotonic_s() - began_s,
        )
        if unfinished := self.recovered.summary(self._interrupt_open_turns):
            logger.warning("the last owner left unfinished: %s; see Runtime.recovered", unfinished)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop everything: calls end, what is not done is handed back or written down as a gap; again: nothing.

        Handlers that are underway have `grace_s` to return in, and are cancelled then. A stop that is cancelled goes on
        all the same, and the next one waits for it.
        """
        await asyncio.shield(asyncio.ensure_future(self._stop_alone(grace_s)))

    async def _stop_alone(self, grace_s: float) -> None:
        async with self._starting_or_stopping:
            await self._stop(grace_s)

    async def _stop(self, grace_s: float) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            return
        try:
            if self._stop_answering is not None:
                stop_answering, self._stop_answering = self._stop_answering, None
                await stop_answering()
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            await parts.reminding.stop()
            await parts.projector.stop()
            ended = await asyncio.gather(
                parts.worker.stop(grace_s), parts.dispatcher.stop(grace_s), return_exceptions=True
            )
            parts.experiments.stop()
            await parts.extensions.stop()
        finally:
            self.log.agents_served.discard(parts.agent)
        for error in ended:
            if isinstance(error, LogClosed):
                logger.warning(
                    "the log was closed before its runtime was stopped: what was underway is not written down"
                )
            elif isinstance(error, BaseException):
                raise error

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def settled(self, timeout_s: float = 10.0) -> None:
        """Return when nothing is running or due now; raises TimeoutError. Retries that are due later do not count."""
        parts = self._running
        async with asyncio.timeout(timeout_s):
            while True:
                before = self.log.head
                await parts.reminding.idle()
                await parts.dispatcher.settled(timeout_s)
                await parts.worker.idle()
                if parts.dispatcher.is_settled and self.log.head == before:
                    break
            await parts.projector.catch_up()

    # -- what it serves -----------------------------------------------------------------------------------------

    @property
    def hooks(self) -> list[RunningHook]:
        """A row for each hook, in the order in which they are called."""
        return self._running.dispatcher.hooks

    @property
    def extensions(self) -> RunningExtensions:
        """Install, steer and look at extensions."""
        return self._running.extensions

    @property
    def dead_letters(self) -> DeadLetters:
        """List, retry and discard dead letters."""
        return self._running.dead_letters

    @property
    def meter(self) -> Meter:
        """What handlers measured by `ctx.host.otel`."""
        return self._running.meter

    async def projection(self, name: str) -> ProjectionState:
        """The state of a projection, brought up to date first; raises InvalidName."""
        await self._running.projector.catch_up()
        return await self.log.projection(name)

    def host_for(self, session_id: str) -> Host:
        """The host of a session, the same object that its handlers get; raises SessionNotFound.

        For a session that was used in this process: get it from the log before.
        """
        return self._running.hosts.of(self._info_of(session_id))

    def arms(self, session_id: str) -> dict[str, str]:
        """The arms that a session is in, by experiment (R136); as `host_for` for which sessions."""
        return self._running.experiments.arms(self._info_of(session_id))

    def arm_instructions(self, session_id: str) -> list[str]:
        """What its arms add to a session's prompt, for the server to put in (R138); for sessions as in `host_for`."""
        return self._running.experiments.instructions(self._info_of(session_id))

    def _info_of(self, session_id: str) -> SessionInfo:
        info = self.log.info_of(session_id)
        if info is None:
            raise SessionNotFound(session_id)
        return info

    # -- the parts ----------------------------------------------------------------------------------------------

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise LogClosed("the runtime is not started")
        return self._parts

    def _make(self, agent: str) -> _Parts:
        log, store = self.log, self.log.store
        meter = Meter(agent, export=open_telemetry())
        reminding = Reminding(log, agent, self._reminder_limits)
        hosts = Hosts(log, agent, meter, reminding, self._services)
        contexts = Contexts(
            agent=agent,
            state_root=log.path.absolute().parent / "state",
            append=log.append,
            host_for=hosts.of,
            state_for=lambda info: channel_state(store, info),
        )
        worker = Worker(
            log,
            self.policy,
            self._random,
            plain_threads=self._plain_threads,
            on_dead_letter=self._on_dead_letter,
        )
        dispatcher = Dispatcher(
            log,
            agent=agent,
            hook_context=contexts.for_hook,
            channel_context=contexts.for_channel,
            limits=self._observe_limits,
        )
        mounting = Mounting(dispatcher, self._agent_dir)
        return _Parts(
            dispatcher=dispatcher,
            mounting=mounting,
            worker=worker,
            extensions=RunningExtensions(log, worker, mounting, self._readers_for),
            dead_letters=DeadLetters(log, worker.wake),
            agent=agent,
            meter=meter,
            reminding=reminding,
            experiments=Experiments(log, agent),
            hosts=hosts,
            projector=Projector(log, self._projections),
        )

    async def _start_hooks(self, parts: _Parts, found: Discovered) -> None:
        off = {each.name for each in await parts.extensions.list() if each.state != "enabled"}
        for hook in found.hooks:
            if hook.extension is None:
                parts.dispatcher.add_hook(hook.name, hook.definition, str(hook.source))
            elif hook.extension not in off:
                parts.mounting.mount(hook.extension, [hook])
        for name, definition in self._hooks:
            parts.dispatcher.add_hook(name, definition, "code")
        for found_one in found.experiments:
            self._add_experiment(parts, found_one.definition, str(found_one.source))
        for experiment in self._experiments:
            self._add_experiment(parts, experiment, "code")
        for channel in self._channels:
            parts.dispatcher.add_channel(channel)
        await parts.dispatcher.start()
        parts.experiments.start()

    def _add_experiment(self, parts: _Parts, experiment: AbDefinition, source: str) -> None:
        collector = parts.experiments.add(experiment)
        if collector is not None:
            parts.dispatcher.add_hook(*collector, source)

    async def _start_extensions(self, parts: _Parts) -> None:
        folders = [] if self._agent_dir is None else extension_folders(self._agent_dir / "agent")
        for name in self._grants.keys() - {folder.name for folder in folders}:
            raise InvalidName("grants", name, "the agent's folder has no extension of that name")
        for folder in folders:
            await parts.extensions.take_in(folder, self._grants.get(folder.name, ()))

    def _commands(self, parts: _Parts) -> dict[str, Command]:
        """What an operator may ask of this process, over the log's control socket."""

        async def hooks() -> list[RunningHook]:
            return parts.dispatcher.hooks

        return {"hooks": hooks, **OperatorCommands(self.log, parts.extensions, parts.dead_letters).all()}

    def _readers_for(self, extension: Any) -> Readers:
        retention_s = self.policy.retention_s
        return Readers(
            turns=GrantedTurns(self.log, extension, retention_s),
            jobs=GrantedJobs(self.log, extension, retention_s),
            storage=extension_storage(self.log.store, extension.id),
        )

    def _recorded(self, events: list[Event[Any]]) -> None:
        for event in reversed(events):
            if event.type in _DURABLE:
                self._running.worker.recorded(event.position)
                return
