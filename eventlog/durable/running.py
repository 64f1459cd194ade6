"""Extensions as they run: installed in the file, activated in this process, served by the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from eventlog.durable.call import cut_text
from eventlog.durable.envelope import LOG_TYPE_OF, DurableEventType
from eventlog.durable.extension import JobReader, LoadedExtension, Storage, TurnReader, activate_extension
from eventlog.durable.manifest import CAPABILITY_OF, Manifest, load_manifest
from eventlog.durable.worker import STOP_GRACE_S, Worker
from eventlog.errors import ActivationError, DiscoveryError, ManifestError
from eventlog.log import EventLog
from eventlog.store.deliveries import Deliveries, Delivery, DeliveryGap
from eventlog.store.extensions import Cleared, Extensions, Installation, InstalledExtension

P = ParamSpec("P")
T = TypeVar("T")

MANIFEST_NAME = "extension.json"

logger = logging.getLogger("eventlog.durable")


def _to_its_end(change: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a change go on when its caller is cancelled: what was committed has to be followed in the process too."""

    @wraps(change)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(asyncio.ensure_future(change(*args, **kwargs)))

    return whole


class Readers(msgspec.Struct, frozen=True):
    """What an activated extension reads and keeps, made for it by the runtime."""

    turns: TurnReader
    jobs: JobReader
    storage: Storage


class Mounts(Protocol):
    """What runs the observe hooks that extensions bring along."""

    def find(self, name: str, folder: Path, /) -> Callable[[], Awaitable[None]]:
        """Load those in an extension's folder; raises DiscoveryError. The result mounts them, unless they are."""
        ...

    async def remove(self, name: str, /) -> None:
        """Call those of an extension no more."""
        ...


class RunningExtensions:
    """The extensions of one runtime. Each is named by its folder or its manifest id; InvalidName if it is unknown.

    What an operator says is committed first, then followed here: calls are aborted, the extension is stopped or
    activated, and with it the observe hooks that it mounts; a caller who is cancelled changes nothing of that. One that
    cannot be activated stays installed, and its deliveries wait for it.
    """

    def __init__(
        self, log: EventLog, worker: Worker, mounts: Mounts, readers_for: Callable[[InstalledExtension], Readers]
    ) -> None:
        self._log = log
        self._worker = worker
        self._mounts = mounts
        self._readers_for = readers_for
        self._extensions = Extensions(log.store)
        self._deliveries = Deliveries(log.store)
        self._active: dict[int, LoadedExtension] = {}
        self._taken_in: set[str] = set()  # at the start
        self._one_change = asyncio.Lock()  # else one would find active what another is about to stop

    # -- from start to stop -------------------------------------------------------------------------------------

    async def take_in(self, folder: Path, projects: Sequence[str]) -> InstalledExtension:
        """Install what stands in a folder of the agent, and activate it where it is enabled; raises ManifestError."""
        installation, manifest = read_folder(folder)
        installed = await self._extensions.install(installation, projects)
        self._taken_in.add(installed.name)
        if installed.state == "enabled":
            _say_what_is_not_granted(installed, projects)
            await self._activate(installed, manifest)
        return installed

    async def take_up(self, agent_folder: Path | None) -> None:
        """Activate what operators installed from elsewhere; what stands in an agent's folder is for its own runtime.

        One whose folder is not there any more, or is no extension, stays installed, and its deliveries wait.
        """
        for installed in await self._extensions.all():
            is_left = installed.state == "enabled" and installed.name not in self._taken_in
            if is_left and _is_served_with(agent_folder, Path(installed.path)):
                try:
                    mount = self._mounts.find(installed.name, Path(installed.path))
                    await self.take_in(Path(installed.path), ())
                    await mount()
                except (ManifestError, DiscoveryError) as error:
                    await self._failed(installed, str(error))

    async def stop(self) -> None:
        """Deactivate all of them, behind a change that is being made; the worker was stopped before."""
        async with self._one_change:
            for key in list(self._active):
                self._log.extensions_served.discard(key)
                await self._active.pop(key).deactivate()

    # -- what operators do --------------------------------------------------------------------------------------

    @_to_its_end
    async def install(self, path: str | Path, grants: Sequence[str] = ()) -> InstalledExtension:
        """Install an extension's folder, or renew it, and grant it projects; a new one begins at the head of the log.

        It is activated, anew if it was active, unless it is disabled. Raises ManifestError, and DiscoveryError for
        its observe hooks.
        """
        installation, manifest = read_folder(Path(path))
        async with self._one_change:
            mount = self._mounts.find(installation.name, Path(installation.path))
            installed = await self._extensions.install(installation, grants, by_operator=True)
            await self._deactivate(installed, "reinstalled")
            if installed.state == "enabled":
                await self._activate(installed, manifest)
                await mount()
        return installed

    @_to_its_end
    async def uninstall(self, name: str) -> Cleared:
        """Stop it for good, take back its grants and clear what it was owed; running calls are aborted (R47)."""
        async with self._one_change:
            installed = await self._extensions.find(name)
            cleared = await self._extensions.uninstall(name)
            await self._deactivate(installed, "uninstalled", grace_s=0)
        return cleared

    @_to_its_end
    async def enable(self, name: str) -> InstalledExtension:
        """Activate it again, from the head of the log on (R48).

        Raises ManifestError, and DiscoveryError for its observe hooks; then nothing has changed.
        """
        async with self._one_change:
            found = await self._extensions.find(name)
            manifest, mount = load_manifest(Path(found.path)), self._mounts.find(found.name, Path(found.path))
            installed = await self._extensions.enable(name)
            if installed.key not in self._active:
                await self._activate(installed, manifest)
            await mount()
        return installed

    @_to_its_end
    async def disable(self, name: str) -> Cleared:
        """Stop it and clear what it was owed; running calls are aborted (R46)."""
        async with self._one_change:
            installed = await self._extensions.find(name)
            cleared = await self._extensions.disable(name)
            await self._deactivate(installed, "disabled", grace_s=0)
        return cleared

    async def pause(self, name: str) -> InstalledExtension:
        """Begin no more calls; its queue goes on filling and no attempt is spent."""
        return await self._extensions.pause(name)

    async def resume(self, name: str) -> InstalledExtension:
        """Begin calls again."""
        installed = await self._extensions.resume(name)
        self._worker.wake()
        return installed

    async def grant(self, name: str, project: str, capability: str | None = None) -> InstalledExtension:
        """Let it read a project from now on; nothing that was recorded before is delivered (R48)."""
        return await self._extensions.grant(name, project, capability)

    @_to_its_end
    async def revoke(self, name: str, project: str, capability: str | None = None) -> Cleared:
        """Take a project back, or one capability in it; clear what it was owed by that, and abort such calls (R45)."""
        installed = await self._extensions.find(name)
        cleared = await self._extensions.revoke(name, project, capability)
        types = [LOG_TYPE_OF[event] for event, needed in CAPABILITY_OF.items() if capability in (None, needed)]
        self._worker.abort(installed.key, "revoked", project, types)
        return cleared

    # -- what there is ------------------------------------------------------------------------------------------

    async def list(self) -> list[InstalledExtension]:
        """All of them, by name."""
        return await self._extensions.all()

    def is_active(self, name: str) -> bool:
        """Whether an extension, named by its folder, is activated in this process."""
        return any(loaded.name == name for loaded in self._active.values())

    async def deliveries(self, name: str | None = None) -> Sequence[Delivery]:
        """What is pending or being delivered, of one extension or of all."""
        return await self._deliveries.live(await self._key(name))

    async def gaps(self, name: str | None = None) -> Sequence[DeliveryGap]:
        """What was refused because a queue was full, of one extension or of all."""
        return await self._deliveries.gaps(await self._key(name))

    async def _key(self, name: str | None) -> int | None:
        return None if name is None else (await self._extensions.find(name)).key

    # -- activation ---------------------------------------------------------------------------------------------

    async def _activate(self, installed: InstalledExtension, manifest: Manifest) -> None:
        if installed.key in self._log.extensions_served:
            logger.warning('extension "%s" is served by another runtime of this process already', installed.name)
            return
        readers = self._readers_for(installed)
        try:
            loaded = await activate_extension(
                installed.path,
                manifest,
                clock=self._log.clock,
                turns=readers.turns,
                jobs=readers.jobs,
                storage=readers.storage,
            )
        except ActivationError as error:
            await self._failed(installed, error.why)
            return
        if installed.failure is not None:
            await self._extensions.activated(installed.key, None)
        self._active[installed.key] = loaded
        self._log.extensions_served.add(installed.key)
        self._worker.serve(installed.key, installed.name, loaded.handlers)

    async def _failed(self, installed: InstalledExtension, why: str) -> None:
        logger.error('extension "%s" is not active: %s; its deliveries wait', installed.name, why)
        await self._extensions.activated(installed.key, cut_text(why))

    async def _deactivate(self, installed: InstalledExtension, reason: str, grace_s: float = STOP_GRACE_S) -> None:
        try:
            await self._mounts.remove(installed.name)
        finally:
            await self._worker.withdraw(installed.key, reason, grace_s)
            loaded = self._active.pop(installed.key, None)
            if loaded is not None:
                self._log.extensions_served.discard(installed.key)
                await loaded.deactivate()


def _say_what_is_not_granted(installed: InstalledExtension, projects: Sequence[str]) -> None:
    """A queue that stays empty for want of a grant looks as if nothing happened."""
    granted = {grant.project for grant in installed.grants}
    refused = sorted(set(projects) - granted)
    if refused:
        logger.warning(
            'extension "%s" is not granted %s: grants count when it is first installed; afterwards an operator does '
            "it, with `eventlog extensions grant`",
            installed.name, ", ".join(refused),
        )  # fmt: skip
    elif not granted and installed.asks:
        logger.warning(
            'extension "%s" is granted no project, so nothing is delivered to it: pass grants={"%s": [...]}, or use '
            "`eventlog extensions grant`",
            installed.name, installed.name,
        )  # fmt: skip


def _is_served_with(agent_folder: Path | None, folder: Path) -> bool:
    """Whether an extension's folder stands in this agent's, or in no agent's."""
    if folder.parts[-3:-1] != ("agent", "extensions"):
        return True
    return agent_folder is not None and folder.parents[1] == agent_folder.absolute()


def extension_folders(agent_folder: Path) -> list[Path]:
    """The folders below `agent/extensions` that have a manifest, by name."""
    root = agent_folder / "extensions"
    if not root.is_dir():
        return []
    return sorted(folder for folder in root.iterdir() if (folder / MANIFEST_NAME).is_file())


def read_folder(folder: Path) -> tuple[Installation, Manifest]:
    """What stands in an extension's folder, and what the file keeps of it; raises ManifestError."""
    folder = folder.absolute()
    manifest = load_manifest(folder)
    handlers: Mapping[str, str] = {LOG_TYPE_OF[DurableEventType(hook.event)]: hook.handler for hook in manifest.hooks}
    installation = Installation(
        name=folder.name,
        id=manifest.id,
        version=manifest.version,
        path=str(folder),
        manifest=manifest.to_json().decode(),
        handlers=handlers,
    )
    return installation, manifest
