"""`host.files`: durable text and bytes of one session, or of the whole deployment (R109, R110)."""

from __future__ import annotations

import builtins
import re

from eventlog.errors import EventLogError, InvalidName, LimitExceeded, shown
from eventlog.host.protocols import FileScope
from eventlog.store.keep import DEPLOYMENT, KeptFiles
from eventlog.store.store import Store

MAX_PATH_CHARACTERS = 255
MAX_FILE_BYTES = 8 * 1_048_576

_DRIVE = re.compile(r"[A-Za-z]:")


class FileMissing(EventLogError, FileNotFoundError):
    """There is no file under this path in this scope."""

    def __init__(self, path: str, scope: FileScope) -> None:
        self.path, self.scope = path, scope
        super().__init__(f"no file {shown(path)} in the scope {scope!r}; write it first")


class SessionFiles:
    """Files of up to 8 MiB in the log's file, where no path leads out of: a path is a name, of parts with / between.

    `scope="session"`, the default, is this session's own; `scope="deployment"` is shared by all sessions of the agent.
    A write replaces the whole file or nothing of it. Names that differ in case or in their Unicode form are different.
    All of it raises InvalidName and LimitExceeded for bad paths.
    """

    __slots__ = ("_kept", "_session_id")

    def __init__(self, store: Store, agent: str, session_id: str) -> None:
        self._kept = KeptFiles(store, agent)
        self._session_id = session_id

    async def read(self, path: str, *, scope: FileScope = "session") -> str:
        """The text of a file; raises FileMissing (a FileNotFoundError), and InvalidName when it is no UTF-8."""
        content = await self.read_bytes(path, scope=scope)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidName("file", path, "is no UTF-8 text; use read_bytes") from error

    async def read_bytes(self, path: str, *, scope: FileScope = "session") -> bytes:
        """The content of a file; raises FileMissing, which is a FileNotFoundError."""
        content = await self._kept.read(self._place(scope), _checked(path))
        if content is None:
            raise FileMissing(path, scope)
        return content

    async def write(self, path: str, content: str | bytes, *, scope: FileScope = "session") -> None:
        """Make a file or replace it; it is committed when this returns. Raises LimitExceeded over 8 MiB."""
        await self._kept.write(self._place(scope), _checked(path), _encoded(content))

    async def delete(self, path: str, *, scope: FileScope = "session") -> bool:
        """Remove a file; whether it was there."""
        return await self._kept.delete(self._place(scope), _checked(path))

    async def list(self, prefix: str = "", *, scope: FileScope = "session") -> builtins.list[str]:
        """The paths that begin with `prefix` ("transcript/", say), sorted."""
        if prefix:
            _checked(prefix.removesuffix("/"))
        return await self._kept.paths(self._place(scope), prefix)

    def _place(self, scope: FileScope) -> str:
        if scope == "session":
            return self._session_id
        if scope == "deployment":
            return DEPLOYMENT
        raise InvalidName("scope", scope, 'use "session" or "deployment"')


def _checked(path: object) -> str:
    if not isinstance(path, str) or not path or not path.isprintable():
        raise InvalidName("file path", path, "use printable characters, at least one")
    if len(path) > MAX_PATH_CHARACTERS:
        raise LimitExceeded("characters of a file path", MAX_PATH_CHARACTERS, len(path))
    if "\\" in path or path.startswith("/") or _DRIVE.match(path):
        raise InvalidName("file path", path, "use a relative path with / between its parts, as in notes/1.md")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidName("file path", path, 'no part of it may be empty, "." or ".."')
    return path


def _encoded(content: str | bytes) -> bytes:
    if isinstance(content, str):
        try:
            raw = content.encode()
        except UnicodeEncodeError as error:
            raise InvalidName("file content", content, "has a lone surrogate, which is not text") from error
    elif isinstance(content, bytes | bytearray | memoryview):
        raw = bytes(content)
    else:
        raise InvalidName("file content", type(content).__name__, "must be str or bytes")
    if len(raw) > MAX_FILE_BYTES:
        raise LimitExceeded("bytes of a file", MAX_FILE_BYTES, len(raw))
    return raw
