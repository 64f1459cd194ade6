"""What a peer is to the benchmarks: a way to open it in a folder, and what it does then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Opened:
    """A peer with a file: `append` takes the number of the event, which tells its session.

    `deliver` takes so many of what was appended, calls a handler that returns at once, and acknowledges each; only
    queues have it.
    """

    append: Callable[[int], Awaitable[object]]
    deliver: Callable[[int], Awaitable[object]] | None = None


@dataclass(frozen=True)
class Peer:
    """Another project. `promise` is what its append has done when it returns, and with which settings."""

    name: str
    module: str
    promise: str
    opened: Callable[[Path], AbstractAsyncContextManager[Opened]]
    delivers: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether it can be measured here; `pip install -e '.[bench]'` installs all of them."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:  # of the package that it is in
            return False
