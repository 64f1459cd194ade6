"""Walks a folder of hooks: which files are hooks, under which names, and which links are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias
from unicodedata import normalize

Refuse: TypeAlias = Callable[[str, Path, str], None]
"""Is told the code, the path and the reason of what is left out and should not be there."""

TESTS = ("test_*.py", "*_test.py", "*_spec.py", "*.test.*", "*.spec.*", "conftest.py")
"""Files that may live next to the hooks that they test (R71)."""

SOURCES = (".py", ".pyc", ".so", ".toml", ".json")
"""What says what an agent does; compiled code too, which an extension's imports may take."""

HIDDEN = ("_", ".")
"""Names that begin so are no hooks: helpers, caches, `__init__.py`."""


def hook_files(folder: Path, root: Path, refuse: Refuse) -> list[tuple[str, Path]]:
    """The files below `folder` that are hooks, with their names: the path without `.py`, parted by `/` (R69, R70).

    Sorted by name, which is the same on every system. No link may lead out of `root`.
    """
    if not os.path.lexists(folder):
        return []
    found: list[tuple[str, Path]] = []
    to_see: list[tuple[Path, frozenset[Path]]] = [(folder, frozenset())]  # with the folders that each is in
    while to_see:
        path, above = to_see.pop()
        if is_refused(path, root, refuse):
            continue
        if path != folder and not is_folder(path):
            found += [(_name(path, folder), path)] if is_file(path) else []  # a pipe could be read for ever
        elif (real := path.resolve()) in above:
            refuse("link-refused", path, "it leads back to a folder that it is in")
        else:
            to_see += [(inner, above | {real}) for inner in entries(path, refuse) if _may_matter(inner)]
    return sorted(found)


def entries(folder: Path, refuse: Refuse) -> Iterator[Path]:
    """What is in a folder and not hidden, sorted by name."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        refuse("folder-unreadable", folder, f"it cannot be listed: {error.strerror}")
        return
    yield from (path for path in paths if not path.name.startswith(HIDDEN))


def is_refused(path: Path, root: Path, refuse: Refuse) -> bool:
    """Whether a link on the way leads out of `root`, or nowhere."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, in Python 3.11 and 3.12
        refuse("link-refused", path, f"it leads nowhere: {error}")
        return True
    if real.is_relative_to(root.resolve()):
        return False
    refuse("link-refused", path, f"it leads out of the agent, to {real}; put the files themselves here")
    return True


def whose(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folders and sources from `root` down, sorted, with their owners and modes; hidden ones too: links find them.

    A link itself is left out: what it leads to is either below the root too, or refused.
    """
    found = [
        Path(folder, name)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *(file for file in files if file.endswith(SOURCES)))
    ]
    yield from stated([root, *sorted(path for path in found if not path.is_symlink())])


def stated(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Those that are there, with their owners and modes."""
    for path in paths:
        with suppress(OSError):  # it went away
            yield path, path.stat()


def is_of_another(status: os.stat_result) -> bool:
    """Whether a user owns it who is neither the one of this process nor root."""
    return status.st_uid not in (os.geteuid(), 0)


def is_open_to_others(status: os.stat_result) -> bool:
    """Whether every user of the machine may write it."""
    return bool(status.st_mode & stat.S_IWOTH)


def is_open_to_its_group(status: os.stat_result) -> bool:
    """Whether every user of its group may write it."""
    return bool(status.st_mode & stat.S_IWGRP)


def is_sticky(status: os.stat_result) -> bool:
    """Whether it is as `/tmp`, where nobody may rename or remove what is another one's."""
    return bool(status.st_mode & stat.S_ISVTX)


def is_folder(path: Path) -> bool:
    """As `Path.is_dir`, which raises for what may not be looked at."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """As `Path.is_file`, which raises for what may not be looked at."""
    return os.path.isfile(path)  # noqa: PTH113


def _may_matter(path: Path) -> bool:
    """Whether it is a folder, or named as a hook is."""
    is_test = any(fnmatchcase(path.name, pattern) for pattern in TESTS)
    return is_folder(path) or (path.name.endswith(".py") and not is_test)


def _name(path: Path, folder: Path) -> str:
    """In the composed form of Unicode: some systems decompose the names of files."""
    return normalize("NFC", path.relative_to(folder).as_posix().removesuffix(".py"))
