"""Loads the Python files of an agent under private names: by path, once, with nothing added to `sys.path`."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from eventlog.observe.files import is_file, is_folder

_stamps: dict[str, str] = {}  # of each package, the sources that its modules were made from


class Package:
    """The modules below one folder. They reach each other by relative imports, as in `from .._shared import client`.

    As with any import, a file is run once in a process. When a source below the folder has changed,
    a new Package runs them all again.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._name = f"_eventlog_{hashlib.blake2b(os.fsencode(root), digest_size=8).hexdigest()}"
        stamp = _stamp(root)
        if _stamps.get(self._name) != stamp:
            self._forget()
            _stamps[self._name] = stamp

    def load(self, path: Path) -> ModuleType:
        """The module of a file below the root. Whatever the file raises passes."""
        parent, folder = self._name, self.root
        _load_folder(parent, folder)
        *folders, file = path.relative_to(self.root).parts
        for part in folders:
            parent, folder = f"{parent}.{_escaped(part)}", folder / part
            _load_folder(parent, folder)
        stem = file.removesuffix(".py")
        beside_folder = is_folder(folder / stem)  # hooks/audit.py beside hooks/audit/: the folder has the name
        return _load_file(f"{parent}.{_escaped(file if beside_folder else stem)}", path)

    def _forget(self) -> None:
        for name in [name for name in sys.modules if name == self._name or name.startswith(f"{self._name}.")]:
            del sys.modules[name]
        importlib.invalidate_caches()


class _Source(SourceFileLoader):
    """Compiles the file as it is: a cached byte code may be that of an older file of the same second and size."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_folder(name: str, folder: Path) -> None:
    sys.path_importer_cache[str(folder)] = FileFinder(str(folder), (_Source, [".py"]))  # for what the modules import
    init = folder / "__init__.py"
    if is_file(init):
        _load_file(name, init, [str(folder)])
    elif name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = module_from_spec(spec)


def _load_file(name: str, path: Path, submodules: list[str] | None = None) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    loader = _Source(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader, submodule_search_locations=submodules)
    assert spec is not None  # there is a loader
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(".", "%2E")


def _stamp(root: Path) -> str:
    """Differs when a source was added, removed or changed; what cannot be read is left to whoever imports it."""
    stamp = hashlib.blake2b(digest_size=16)
    for path in sorted(_sources(root)):
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        stamp.update(b"%s\0%d\0%s" % (os.fsencode(path), len(content), content))
    return stamp.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for file in files if file.endswith(".py") and is_file(path := Path(folder, file)))


def told(error: BaseException, root: Path) -> str:
    """The error in one sentence, with the last place below `root` on its way: `NameError: ... (hooks/a.py, line 3)`."""
    place = _place(error, root)
    return f"{_what(error)} ({place})" if place else _what(error)


def _what(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # formats itself over several lines, with the place
        return f"{type(error).__name__}: {error.msg}"
    return "".join(traceback.format_exception_only(error)).strip()


def _place(error: BaseException, root: Path) -> str | None:
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    ours = [(Path(file), line) for file, line in frames if Path(file).is_relative_to(root) and line]
    return f"{ours[-1][0].relative_to(root).as_posix()}, line {ours[-1][1]}" if ours else None
