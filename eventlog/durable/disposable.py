"""A thing to be undone once, however it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Disposable:
    """Undoes something by calling `undo` the first time it is disposed of, and never again.

    Dispose with `dispose()`, `close()`, `with` or `async with`. What `undo` raises is raised once.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo: Callable[[], object] | None = undo

    def dispose(self) -> None:
        """Undo it, if that has not been done yet."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def close(self) -> None:
        """Do the same as `dispose`, for `contextlib.closing` and for people used to files."""
        self.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dispose()
