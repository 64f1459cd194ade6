"""Mounts the observe hooks of extensions in a dispatcher that runs, and takes them away, as extensions come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from eventlog.observe.discover import LoadedHook, discover_extension
from eventlog.observe.dispatcher import Dispatcher


class Mounting:
    """The hooks that are mounted, by the namespace of their extension."""

    def __init__(self, dispatcher: Dispatcher, agent_dir: Path | None) -> None:
        self._dispatcher = dispatcher
        self._agent_dir = agent_dir
        self._mounted: dict[str, list[str]] = {}

    def mount(self, namespace: str, hooks: Sequence[LoadedHook]) -> None:
        """Add the hooks of an extension behind those that are there; raises InvalidName for a name that is taken."""
        for hook in hooks:
            self._dispatcher.add_hook(hook.name, hook.definition, str(hook.source))
            self._mounted.setdefault(namespace, []).append(hook.name)

    def find(self, namespace: str, folder: Path) -> Callable[[], Awaitable[None]]:
        """Load the hooks in an extension's folder; raises DiscoveryError. The result mounts them, unless they are."""
        found = discover_extension(namespace, folder, self._agent_dir)
        found.raise_for_errors()

        async def mount() -> None:
            if namespace not in self._mounted:
                self.mount(namespace, found.hooks)
                await self._dispatcher.joined()

        return mount

    async def remove(self, namespace: str) -> None:
        """Call the hooks of an extension no more."""
        names = self._mounted.pop(namespace, [])
        if names:
            await self._dispatcher.remove_hooks(names)
