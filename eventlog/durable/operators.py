"""What operators may ask about extensions and dead letters, by name: of a running server, and of a log at rest."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import msgspec

from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.running import RunningExtensions, read_folder
from eventlog.log import EventLog
from eventlog.serving import Command
from eventlog.store.buried import Retried
from eventlog.store.extensions import Cleared, Extensions, ExtensionState, Grant, InstalledExtension


class Steered(msgspec.Struct, frozen=True, rename="camel"):
    """An extension as it is after a command, and what the command `cleared`.

    `inactive` says why it is not active in the process that serves it, None if it is, or if nothing serves it.
    """

    extension: str
    id: str
    version: str
    state: ExtensionState
    paused: bool
    live: int
    dead: int
    grants: tuple[Grant, ...]
    cleared: Cleared | None
    inactive: str | None


class Steerable(Protocol):
    """What changes extensions: in the file alone, or in the file and in the process that serves them."""

    def uninstall(self, name: str, /) -> Awaitable[Cleared]: ...
    def enable(self, name: str, /) -> Awaitable[InstalledExtension]: ...
    def disable(self, name: str, /) -> Awaitable[Cleared]: ...
    def pause(self, name: str, /) -> Awaitable[InstalledExtension]: ...
    def resume(self, name: str, /) -> Awaitable[InstalledExtension]: ...
    def grant(self, name: str, project: str, capability: str | None, /) -> Awaitable[InstalledExtension]: ...
    def revoke(self, name: str, project: str, capability: str | None, /) -> Awaitable[Cleared]: ...


class OperatorCommands:
    """The commands of operators; each answers with what it did and cleared."""

    def __init__(self, log: EventLog, running: RunningExtensions | None, dead_letters: DeadLetters) -> None:
        self._in_file = Extensions(log.store)
        self._running = running
        self._extensions: Steerable = self._in_file if running is None else running
        self._dead_letters = dead_letters

    def all(self) -> dict[str, Command]:
        """The commands by name."""
        return {
            "extensions.install": self.install,
            "extensions.uninstall": self.uninstall,
            "extensions.enable": self.enable,
            "extensions.disable": self.disable,
            "extensions.pause": self.pause,
            "extensions.resume": self.resume,
            "extensions.grant": self.grant,
            "extensions.revoke": self.revoke,
            "dead.retry": self.retry,
            "dead.discard": self.discard,
        }

    # -- extensions ---------------------------------------------------------------------------------------------

    async def install(self, path: str, grants: tuple[str, ...] = ()) -> Steered:
        """Install the extension in a folder, or bring it up to date, and grant it all it asks for in these projects."""
        if self._running is not None:
            return await self._told((await self._running.install(path, grants)).name)
        installation, _ = read_folder(Path(path))
        return await self._told((await self._in_file.install(installation, grants, by_operator=True)).name)

    async def uninstall(self, name: str) -> Steered:
        """Stop it for good, and clear what it was owed."""
        return await self._told(name, await self._extensions.uninstall(name))

    async def enable(self, name: str) -> Steered:
        """Let it get what is recorded from now on."""
        return await self._told((await self._extensions.enable(name)).name)

    async def disable(self, name: str) -> Steered:
        """Stop it, and clear what it was owed."""
        return await self._told(name, await self._extensions.disable(name))

    async def pause(self, name: str) -> Steered:
        """Call it no more; its queue goes on filling."""
        return await self._told((await self._extensions.pause(name)).name)

    async def resume(self, name: str) -> Steered:
        """Call it again."""
        return await self._told((await self._extensions.resume(name)).name)

    async def grant(self, name: str, project: str, capability: str | None = None) -> Steered:
        """Let it read a project from now on; without a capability, all that its manifest asks for."""
        return await self._told((await self._extensions.grant(name, project, capability)).name)

    async def revoke(self, name: str, project: str, capability: str | None = None) -> Steered:
        """Take that back, and clear what it was owed by it."""
        return await self._told(name, await self._extensions.revoke(name, project, capability))

    # -- dead letters -------------------------------------------------------------------------------------------

    async def retry(
        self, event_id: str | None = None, extension: str | None = None, reason: str | None = None
    ) -> Retried:
        """Give the letters that pass all filters new attempts."""
        return await self._dead_letters.retry(event_id, extension, reason)

    async def discard(self, event_id: str, extension: str, reason: str) -> bool:
        """Remove a letter; whether there was one."""
        return await self._dead_letters.discard(event_id, extension, reason)

    async def _told(self, name: str, cleared: Cleared | None = None) -> Steered:
        found = await self._in_file.find(name)
        return Steered(
            extension=found.name,
            id=found.id,
            version=found.version,
            state=found.state,
            paused=found.paused,
            live=found.live,
            dead=found.dead,
            grants=found.grants,
            cleared=cleared,
            inactive=None if self._running is None else found.failure,
        )
