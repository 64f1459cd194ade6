"""Finds and loads the hooks and experiments of an agent folder, and reports all that is wrong with them in one run."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeVar

from eventlog.errors import DiscoveryError, EventLogError, Finding, InvalidName, printable
from eventlog.events import check_id
from eventlog.observe.ab import ARM, ARMS, EXPERIMENT, AbDefinition
from eventlog.observe.files import (
    entries,
    hook_files,
    is_folder,
    is_of_another,
    is_open_to_its_group,
    is_open_to_others,
    is_refused,
    is_sticky,
    stated,
    whose,
)
from eventlog.observe.handlers import EVENT_KEY, HANDLER, nearest
from eventlog.observe.hook import DisabledHook, HookDefinition, check_hook_name
from eventlog.observe.modules import Package, told

T = TypeVar("T")

SETTINGS = frozenset({"name"})
"""The keys of `agent/agent.toml`."""

EXPORTS = ("hook", "default")
"""The attributes of a module that may hold its hook."""

AB_EXPORTS = ("ab", "default")
"""The same of an experiment."""

_CODE_OF_BAD_DEFINITION = {
    EVENT_KEY: "hook-event-unknown",
    HANDLER: "hook-handler-invalid",
    EXPERIMENT: "ab-name-invalid",
    ARMS: "ab-arms-invalid",
    ARM: "ab-arms-invalid",
}


@dataclass(frozen=True, slots=True)
class LoadedHook:
    """A hook that is to be run. `extension` is the namespace that mounts it; `name` then begins with `<ns>__` (R76)."""

    name: str
    definition: HookDefinition
    source: Path
    extension: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedExperiment:
    """An experiment that is to be run."""

    definition: AbDefinition
    source: Path


@dataclass(frozen=True, slots=True)
class Discovered:
    """An agent folder as it was found: `hooks` in dispatch order, `findings` of all that is wrong (R75).

    `agent` is the agent's name, `agent_module` what `agent/agent.py` is, if it is there and can be imported.
    """

    agent: str
    agent_module: ModuleType | None
    hooks: tuple[LoadedHook, ...]
    findings: tuple[Finding, ...]
    experiments: tuple[LoadedExperiment, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with which no runtime starts."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def raise_for_errors(self) -> None:
        """Raise DiscoveryError with all errors, if there are any."""
        if self.errors:
            raise DiscoveryError(self.errors)


def discover(agent_dir: Path, *, packaged: Mapping[str, Path] = MappingProxyType({})) -> Discovered:
    """Load what is in `agent_dir / "agent"`; never raises for what is in there.

    `agent/agent.py` comes first, so that its `define_event` calls count; then the agent's hooks in the order of their
    names, then those of extensions by namespace (R122); experiments last (R139). `packaged` has the folders of
    extensions that were installed from elsewhere, by namespace. Nothing is loaded where others
    may write it. What the files print while they are imported goes to stderr.
    """
    with redirect_stdout(sys.stderr):
        return _Discovery(agent_dir.resolve(), packaged).run()


def discover_extension(namespace: str, folder: Path, agent_dir: Path | None = None) -> Discovered:
    """Load the hooks that one extension mounts, less those that the agent's own folder removes; as `discover` does."""
    with redirect_stdout(sys.stderr):
        return _Discovery((agent_dir or folder.parent).resolve(), {namespace: folder}).run_for(namespace)


@dataclass(frozen=True, slots=True)
class _File:
    """A file that should export a hook; `authored` is its path without `.py`."""

    authored: str
    path: Path
    package: Package
    extension: str | None = None

    @property
    def name(self) -> str:
        """The name of the hook: with the namespace, if an extension mounts it."""
        return self.authored if self.extension is None else f"{self.extension}__{self.authored}"


class _Discovery:
    """One run over one agent folder."""

    def __init__(self, agent_dir: Path, packaged: Mapping[str, Path]) -> None:
        self._agent_dir = agent_dir
        self._root = agent_dir / "agent"
        self._packaged = {namespace: path.resolve() for namespace, path in packaged.items()}
        self._findings: list[Finding] = []
        self._removers: dict[str, _File] = {}  # by the name of the mounted hook that they remove
        self._taken: dict[str, _File] = {}  # by name, letters of one case: some file systems know no other

    def run(self) -> Discovered:
        if not is_folder(self._root):
            self._error("agent-missing", self._root, "there is no such folder: make one with `eventlog init`")
            return Discovered(self._agent_dir.name, None, (), tuple(self._findings))
        if self._is_in_the_hands_of_others():  # then nothing of it is run
            return Discovered(self._agent_dir.name, None, (), tuple(self._findings))
        agent, package = self._agent_name(), Package(self._root)
        module = self._agent_module(package)
        files = [*self._files(self._root, package), *self._extension_files(package)]
        hooks = [hook for file in files if (hook := self._hook(file)) is not None]
        self._warn_of_missing_targets(files)
        hooks.sort(key=lambda hook: (hook.extension or "", hook.name))
        experiments = tuple(self._experiments(package))
        return Discovered(agent, module, tuple(hooks), tuple(self._findings), experiments)

    def _is_in_the_hands_of_others(self) -> bool:
        """Whether others than the user of this process and root may change what would be run; says what and why."""
        found = [(path, status) for path, status in stated([self._agent_dir]) if not is_sticky(status)]
        for folder in (self._root, *self._packaged.values()):
            found += whose(folder)
        owned = [path for path, status in found if is_of_another(status)]
        opened = [path for path, status in found if is_open_to_others(status)]
        shared = [path for path, status in found if is_open_to_its_group(status) and not is_open_to_others(status)]
        if owned:
            why = f"another user owns {_and_more(owned)} and may so run code in here: `chown -R` the folder"
            self._error("agent-of-another-user", owned[0], why)
        if opened:
            why = f"every user of this machine may write {_and_more(opened)} and so run code in here"
            self._error("agent-open-to-others", opened[0], f"{why}: `chmod -R o-w` the folder")
        if shared:
            why = f"every user of its group may write {_and_more(shared)} and so run code in here"
            self._find("warning", "agent-open-to-group", shared[0], f"{why}: `chmod -R g-w` the folder")
        return bool(owned or opened)

    def run_for(self, namespace: str) -> Discovered:
        if self._is_in_the_hands_of_others():
            return Discovered(self._agent_dir.name, None, (), tuple(self._findings))
        package = Package(self._root)
        removers = [file for file in self._files(self._root, package) if self._may_remove(file)]
        mounted = [file for file in self._extension_files(package) if file.extension == namespace]
        found = [self._hook(file) for file in (*removers, *mounted)]
        hooks = sorted((hook for hook in found if hook is not None), key=lambda hook: hook.name)
        return Discovered(self._agent_dir.name, None, tuple(hooks), tuple(self._findings))

    # ---------------------------------------------------------------------------------------- the agent

    def _agent_name(self) -> str:
        path, name = self._root / "agent.toml", self._agent_dir.name
        try:
            settings = tomllib.loads(path.read_text("utf-8")) if self._is_there(path) else {}
            for key in sorted(settings.keys() - SETTINGS):
                known = nearest(key, SETTINGS)
                why = f'"{key}" is no setting of an agent; the nearest is "{known}"'
                self._error("agent-setting-unknown", path, printable(why))
            check_id("name", settings.get("name", name))
            return str(settings.get("name", name))
        except (OSError, ValueError, RecursionError, EventLogError) as error:
            self._error("agent-toml-invalid", path, f"it gives the agent no usable name: {error}")
            return name

    def _agent_module(self, package: Package) -> ModuleType | None:
        path = self._root / "agent.py"
        return self._module(package, path, "agent-import-failed") if self._is_there(path) else None

    def _is_there(self, path: Path) -> bool:
        return os.path.lexists(path) and not is_refused(path, self._root, self._error)

    # ---------------------------------------------------------------------------------------- the files

    def _files(self, root: Path, package: Package, extension: str | None = None) -> Iterator[_File]:
        for authored, path in hook_files(root / "hooks", package.root, self._error):
            yield _File(authored, path, package, extension)

    def _extension_files(self, package: Package) -> Iterator[_File]:
        mounted = self._root / "extensions"
        folders = entries(mounted, self._error) if self._is_there(mounted) else ()
        local = {path.name: path for path in folders if is_folder(path)}
        for namespace in sorted({*local, *self._packaged}):
            beside, elsewhere = local.get(namespace), self._packaged.get(namespace)
            if "__" in namespace:
                folder = beside or elsewhere or mounted
                self._error("extension-name-invalid", folder, 'the folder of an extension cannot have "__" in its name')
                continue
            if beside is not None:
                yield from self._files(beside, package, namespace)
            if elsewhere is not None and (beside is None or elsewhere != beside.resolve()):
                yield from self._files(elsewhere, Package(elsewhere), namespace)

    # ---------------------------------------------------------------------------------------- the hooks

    def _hook(self, file: _File) -> LoadedHook | None:
        """What the file adds to the agent: nothing if it is removed, removes one itself, or is wrong."""
        if file.extension is not None and file.name in self._removers:
            return None  # and is not even imported
        if not self._may_remove(file) and not self._has_usable_name(file):
            return None
        export = self._export(file)
        if isinstance(export, DisabledHook):
            self._removers[file.name] = file
            return None
        if export is None or (self._may_remove(file) and not self._has_usable_name(file)):
            return None
        if not export.events:
            self._find("warning", "hook-empty", file.path, "its events map is empty, so this hook is left out")
            return None
        return LoadedHook(file.name, export, file.path, file.extension)

    def _may_remove(self, file: _File) -> bool:
        """Whether it is named as the hooks of extensions are; in the agent's folder only a `disable_hook()` may be."""
        return file.extension is None and "__" in file.authored

    def _has_usable_name(self, file: _File) -> bool:
        try:
            check_hook_name(file.authored)
        except InvalidName as error:
            self._error("hook-name-invalid", file.path, str(error))
            return False
        other = self._taken.setdefault(file.name.casefold(), file)
        if other is not file:
            self._error("hook-name-clash", file.path, f"{self._shown(other.path)} has that name too: rename one")
        return other is file

    def _export(self, file: _File) -> HookDefinition | DisabledHook | None:
        module = self._module(file.package, file.path, "hook-import-failed")
        if module is None:
            return None
        exported = _exported(module, EXPORTS)
        hooks = _distinct(value for value in exported.values() if isinstance(value, HookDefinition | DisabledHook))
        if len(hooks) == 1:
            return hooks[0]
        example = "{name} = define_hook(events={{...}})"
        self._error("hook-export-invalid", file.path, _what_is_exported(exported, len(hooks), "hook", example))
        return None

    def _warn_of_missing_targets(self, files: list[_File]) -> None:
        mounted = [file for file in files if file.extension is not None]
        for name, remover in self._removers.items():
            others = sorted(file.name for file in mounted if file is not remover)
            if name not in others:
                near = nearest(name, others)
                hint = f'the nearest is "{near}"' if near else "no extension has hooks"
                self._find("warning", "hook-disable-missing", remover.path, f'no hook "{name}" is mounted; {hint}')

    # ---------------------------------------------------------------------------------------- the experiments

    def _experiments(self, package: Package) -> Iterator[LoadedExperiment]:
        """Those of `agent/ab.py`, then those of `agent/ab/`."""
        alone = self._root / "ab.py"
        paths = [path for _, path in hook_files(self._root / "ab", package.root, self._error)]
        taken: dict[str, Path] = {}
        for path in [alone, *paths] if self._is_there(alone) else paths:
            definition = self._experiment(package, path)
            if definition is None:
                continue
            other = taken.setdefault(definition.name, path)
            if other is path:
                yield LoadedExperiment(definition, path)
            else:
                self._error("ab-name-clash", path, f'{self._shown(other)} has "{definition.name}" too: rename one')

    def _experiment(self, package: Package, path: Path) -> AbDefinition | None:
        module = self._module(package, path, "ab-import-failed")
        if module is None:
            return None
        exported = _exported(module, AB_EXPORTS)
        found = _distinct(value for value in exported.values() if isinstance(value, AbDefinition))
        if len(found) == 1:
            return found[0]
        example = '{name} = define_ab("tone", arms={{"short": 1, "long": 1}})'
        self._error("ab-export-invalid", path, _what_is_exported(exported, len(found), "ab", example))
        return None

    # ---------------------------------------------------------------------------------------- and what goes wrong

    def _module(self, package: Package, path: Path, code: str) -> ModuleType | None:
        try:
            return package.load(path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and the like too: the others still load
            about = error.what if isinstance(error, InvalidName) else ""
            self._error(_CODE_OF_BAD_DEFINITION.get(about, code), path, told(error, package.root))
            return None

    def _error(self, code: str, path: Path, message: str) -> None:
        self._find("error", code, path, message)

    def _find(self, severity: Literal["error", "warning"], code: str, path: Path, message: str) -> None:
        self._findings.append(Finding(severity, code, message, self._shown(path)))

    def _shown(self, path: Path) -> str:
        """Relative to the folder that holds the agent, and with no character that cannot be written."""
        inside = path.relative_to(self._agent_dir) if path.is_relative_to(self._agent_dir) else path
        return os.fsencode(inside.as_posix()).decode("utf-8", "backslashreplace")


def _and_more(found: list[Path]) -> str:
    return f"it, and {len(found) - 1:,} more," if found[1:] else "it"


def _exported(module: ModuleType, names: Iterable[str]) -> dict[str, Any]:
    return {name: vars(module)[name] for name in names if name in vars(module)}


def _distinct(values: Iterable[T]) -> list[T]:
    return list({id(value): value for value in values}.values())


def _what_is_exported(exported: Mapping[str, Any], count: int, wanted: str, example: str) -> str:
    if count > 1:
        return f'both "{wanted}" and "default" are defined: keep one of them'
    if not exported:
        return f"it has no {wanted}: write `{example.format(name=wanted)}`"
    name, value = next(iter(exported.items()))
    return f'"{name}" is of type {type(value).__name__}: write `{example.format(name=name)}`'
