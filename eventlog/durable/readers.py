"""What an extension may read: exact versions of turns, and jobs, in the projects that it is granted."""

from __future__ import annotations

from eventlog.errors import InvalidName, VersionUnavailable
from eventlog.log import EventLog
from eventlog.store.extensions import Extensions, InstalledExtension
from eventlog.store.turns import Job, TurnReference, TurnSnapshot, find_job, find_turn

TURNS = "conversations.turns.read"
JOBS = "jobs.read"


class _Granted:
    """Looks the grant up at each call: it may have been revoked since."""

    def __init__(self, log: EventLog, extension: InstalledExtension, retention_s: int) -> None:
        self._store = log.store
        self._extension = extension.name
        self._retention_s = retention_s

    async def _projects(self, capability: str) -> list[str]:
        found = await Extensions(self._store).find(self._extension)
        return [grant.project for grant in found.grants if grant.capability == capability]


class GrantedTurns(_Granted):
    """`context.turns` of one extension."""

    async def get(self, reference: TurnReference, /) -> TurnSnapshot:
        """Exactly the version that is referred to; raises VersionUnavailable, and never gives another one (R42)."""
        where = (reference.conversation_id, reference.turn_id, reference.version)
        turn = await self._store.read(find_turn, *where)
        if turn is None:
            raise VersionUnavailable(*where, "there is no such version")
        if turn.project not in await self._projects(TURNS):
            raise VersionUnavailable(*where, f"{self._extension} is not granted {TURNS} in its project")
        age_us = self._store.clock.now_us() - round(turn.completed_at.timestamp() * 1_000_000)
        if age_us >= self._retention_s * 1_000_000:
            raise VersionUnavailable(*where, f"snapshots are kept for {self._retention_s} s")
        return turn


class GrantedJobs(_Granted):
    """`context.jobs` of one extension."""

    async def get(self, job_id: str, /) -> Job:
        """The job as it is now, which may be newer than the event that told of it (R13); raises InvalidName."""
        job = await self._store.read(find_job, job_id, await self._projects(JOBS))
        if job is None:
            raise InvalidName("job", job_id, f"there is no such job in a project where {self._extension} has {JOBS}")
        return job
