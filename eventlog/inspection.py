"""A look at what a log's file knows of its subscribers and its jobs, from any process; it changes nothing."""

from __future__ import annotations

from typing import Any

from eventlog.durable.dead_letters import DeadLetters
from eventlog.events import JobStatus
from eventlog.log import EventLog
from eventlog.recovery import OpenInput, OpenTurn, Recovered, RunningJob, UnansweredCall, at_rest
from eventlog.store.bounds import MAX_POSITION
from eventlog.store.buried import DeadLetter
from eventlog.store.checking import Damaged, Report
from eventlog.store.deliveries import Deliveries, Delivery, DeliveryGap
from eventlog.store.extensions import Extensions, InstalledExtension
from eventlog.store.hook_lists import (
    ErrorRow,
    GapRow,
    HookRow,
    Unserved,
    hook_errors,
    hook_gaps,
    hook_rows,
    unserved_agents,
)
from eventlog.store.keep import DEPLOYMENT, place_of_channel, place_of_extension
from eventlog.store.keep_lists import KeptFile, KeptValue, kept_contents, kept_files, kept_values, values_under
from eventlog.store.projections import ProjectionError, errors
from eventlog.store.reading import pruned_sessions
from eventlog.store.subscribers import CursorRow, cursor_rows
from eventlog.store.turns import Job, jobs

__all__ = [
    "DEPLOYMENT",
    "CursorRow",
    "Damaged",
    "DeadLetter",
    "Delivery",
    "DeliveryGap",
    "ErrorRow",
    "GapRow",
    "HookRow",
    "Inspection",
    "InstalledExtension",
    "Job",
    "KeptFile",
    "KeptValue",
    "OpenInput",
    "OpenTurn",
    "ProjectionError",
    "Recovered",
    "Report",
    "RunningJob",
    "UnansweredCall",
    "Unserved",
]


class Inspection:
    """Lists of an open log, a read-only one too.

    An extension is named by its folder or its manifest id; the methods raise InvalidName for one that is not known.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._store = log.store
        self._extensions = Extensions(log.store)
        self._deliveries = Deliveries(log.store)
        self._dead_letters = DeadLetters(log)

    async def recovery(self) -> Recovered:
        """What the next start would find unfinished, of every agent; raises LogInUse while it is served."""
        return await at_rest(self._log)

    async def pruned_sessions(self) -> dict[str, int]:
        """Sessions whose beginning was pruned: by id, how many of their indexes went. A whole one lost all it had."""
        return await self._store.read(pruned_sessions)

    # -- observe hooks ------------------------------------------------------------------------------------------

    async def hooks(self, agent: str | None = None) -> list[HookRow]:
        """The hooks of all agents, or of one, by agent and name; `loaded` tells those of the last runtime."""
        return await hook_rows(self._store, agent)

    async def hook_gaps(self, name: str | None = None, limit: int = 1_000) -> list[GapRow]:
        """Events that hooks will never be shown, the newest gap first."""
        return await hook_gaps(self._store, name, limit)

    async def hook_errors(self, name: str | None = None, after: int = 0, limit: int = 1_000) -> list[ErrorRow]:
        """The newest errors of handlers behind the number `after`, oldest first."""
        return await hook_errors(self._store, name, after, limit)

    async def unserved_agents(self) -> list[Unserved]:
        """Agents whose sessions are shown to no hook, because none of the loaded ones is theirs; at most 100."""
        return await unserved_agents(self._store)

    # -- durable hooks ------------------------------------------------------------------------------------------

    async def extensions(self) -> list[InstalledExtension]:
        """All extensions that were ever installed, by name."""
        return await self._extensions.all()

    async def extension(self, name: str) -> InstalledExtension:
        """One of them."""
        return await self._extensions.find(name)

    async def deliveries(self, extension: str | None = None) -> list[Delivery]:
        """What is owed and not yet acknowledged or buried, by extension and position."""
        return await self._deliveries.live(await self._key(extension))

    async def delivery_gaps(self, extension: str | None = None) -> list[DeliveryGap]:
        """Events that extensions will never get, oldest first."""
        return await self._deliveries.gaps(await self._key(extension))

    async def dead_letters(
        self, extension: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Buried deliveries in the order in which they died, without their failed attempts."""
        return await self._dead_letters.list(extension, reason, limit)

    async def dead_letter(self, event_id: str, extension: str) -> DeadLetter | None:
        """One of them with its failed attempts, None if there is no such letter."""
        return await self._dead_letters.get(event_id, extension)

    # -- what is folded from the log ----------------------------------------------------------------------------

    async def cursors(self) -> list[CursorRow]:
        """How far each hook, extension and projection is."""
        return await self._store.read(cursor_rows)

    async def projection_errors(self, name: str | None = None, limit: int = 1_000) -> list[ProjectionError]:
        """The newest errors of projections, oldest first: events that could not be folded, and why."""
        return await self._store.read(errors, name, limit)

    async def jobs(
        self, session_id: str | None = None, status: JobStatus | None = None, limit: int | None = None
    ) -> list[Job]:
        """Background jobs, those heard of last first."""
        return await self._store.read(jobs, session_id, status, MAX_POSITION if limit is None else limit)

    # -- what handlers keep -------------------------------------------------------------------------------------

    async def values(self, prefix: str = "", place: str | None = None) -> list[KeptValue]:
        """The keys that begin with `prefix`, in their order: of agents, extensions and channels, or of one place.

        A place is an agent's name, or what `place_of_extension` or `place_of_session` give.
        """
        return await self._store.read(kept_values, prefix, place)

    async def values_of(self, key: str, place: str | None = None) -> list[Any]:
        """The values under a key; two of them stand for any number."""
        return await self._store.read(values_under, key, place)

    async def place_of_extension(self, name: str) -> str:
        """Where an extension keeps its values."""
        return place_of_extension((await self._extensions.find(name)).id)

    async def place_of_session(self, session_id: str) -> str:
        """Where the channel of a session keeps its values of it; raises SessionNotFound."""
        return place_of_channel((await self._log.session_info(session_id)).channel_id, session_id)

    async def files(self, prefix: str = "", agent: str | None = None, session_id: str | None = None) -> list[KeptFile]:
        """The files whose paths begin with `prefix`, by session; those of the whole deployment alone for DEPLOYMENT."""
        return await self._store.read(kept_files, prefix, agent, session_id)

    async def contents_of(self, path: str, agent: str | None = None, session_id: str | None = None) -> list[bytes]:
        """What the files of this path hold; two of them stand for any number."""
        return await self._store.read(kept_contents, path, agent, session_id)

    async def _key(self, extension: str | None) -> int | None:
        return None if extension is None else (await self._extensions.find(extension)).key
