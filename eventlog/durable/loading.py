"""Loads an extension's code from its folder, as a private package that nothing else can see."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType

from eventlog.durable.manifest import main_fault
from eventlog.errors import ActivationError

_loads = count(1)


class LoadedCode:
    """The `main` module of one activation, and the modules of its folder that it imported."""

    def __init__(self, package: str, main: ModuleType) -> None:
        self._package = package
        self.main = main

    def unload(self) -> None:
        """Forget the modules, so that nothing of them is found by a later import."""
        _forget(self._package)


def load_code(extension: str, folder: Path, main: str) -> LoadedCode:
    """Run `folder/main` afresh and return it; `from . import sibling` works in it, `sys.path` stays as it is.

    Raises `ActivationError` if the file is not inside the folder any more, or does not import.
    """
    fault = main_fault(main, folder)
    if fault is not None:
        raise ActivationError(extension, fault.message)
    package = _new_package(extension, folder)
    *parents, file = Path(main).parts
    name = ".".join([package, *parents, file.removesuffix(".py").replace(".", "_")])
    try:
        return LoadedCode(package, _run(name, folder / main))
    except (Exception, SystemExit, GeneratorExit) as error:
        _forget(package)
        raise ActivationError(extension, f"{main} does not import: {describe(error)}{_hint(error, folder)}") from error
    except BaseException:
        _forget(package)
        raise


def describe(error: BaseException) -> str:
    """Return an error's type and text, the type alone when there is no text or it cannot be made."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return name
    return f"{name}: {text}" if text else name


def _new_package(extension: str, folder: Path) -> str:
    """Make an empty package over the folder; its name is new each time, so every activation runs the files anew."""
    name = f"_eventlog_extension_{re.sub(r'[^A-Za-z0-9_]', '_', extension)}_{next(_loads)}"
    package = ModuleType(name, f"The extension {extension!r}.")
    package.__path__ = [str(folder)]
    package.__package__ = name
    sys.modules[name] = package
    return name


def _run(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None  # there is one for .py
    module = module_from_spec(spec)
    sys.modules[name] = module
    importlib.invalidate_caches()
    with _without_bytecode():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Leave no cache in the folder: one of the same second and size would be taken for an edited file."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _forget(package: str) -> None:
    for name in [name for name in list(sys.modules) if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


def _hint(error: BaseException, folder: Path) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and (folder / f"{error.name}.py").is_file():
        return f"; it stands in the same folder, so write `from . import {error.name}`"
    return ""
