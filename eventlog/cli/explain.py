"""What an error means on the command line: its exit code, and one line with the next step."""

from __future__ import annotations

import errno
import traceback
from enum import IntEnum
from pathlib import Path

import click

from eventlog.errors import (
    BrokenInvariant,
    CorruptEvent,
    CursorExpired,
    DamagedFile,
    DiscoveryError,
    EventLogError,
    IndexConflict,
    InvalidEvent,
    InvalidName,
    KeyConflict,
    LimitExceeded,
    LogInUse,
    LogShortened,
    ManifestError,
    NotALog,
    OwnershipLost,
    SessionNotFound,
    UnsupportedSchema,
    shown,
)


class Code(IntEnum):
    """How a command ended."""

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    NOT_FOUND = 3
    DAMAGED = 4
    REFUSED = 5  # in use, full, not permitted, not served
    INTERRUPTED = 130


class Stop(Exception):
    """Ends a command with a code and a message that says what to do."""

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        super().__init__(message)


# The first row that fits counts.
_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (InvalidEvent, Code.USAGE),
    (InvalidName, Code.USAGE),
    (LimitExceeded, Code.USAGE),
    (DiscoveryError, Code.FINDINGS),
    (ManifestError, Code.FINDINGS),
    (KeyConflict, Code.FINDINGS),
    (IndexConflict, Code.FINDINGS),
    (SessionNotFound, Code.NOT_FOUND),
    (CursorExpired, Code.NOT_FOUND),
    (FileNotFoundError, Code.NOT_FOUND),
    (UnsupportedSchema, Code.REFUSED),
    (NotALog, Code.NOT_FOUND),
    (CorruptEvent, Code.DAMAGED),
    (DamagedFile, Code.DAMAGED),
    (LogShortened, Code.DAMAGED),
    (BrokenInvariant, Code.DAMAGED),
    (EventLogError, Code.REFUSED),
    (OSError, Code.REFUSED),
)


def explained(error: Exception) -> tuple[Code, str]:
    """The exit code and the message of an error; one that nobody expected is named with its place."""
    if isinstance(error, Stop):
        return error.code, str(error)
    if isinstance(error, click.ClickException):
        return Code.USAGE, _usage(error)
    if isinstance(error, InvalidName) and error.what == "extension":
        return Code.NOT_FOUND, str(error)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, _message(error)
    return Code.REFUSED, _unexpected(error)


def _message(error: Exception) -> str:
    if isinstance(error, SessionNotFound):
        return f"no session {shown(error.session_id)}; `eventlog sessions` lists them"
    if isinstance(error, LogInUse) and not isinstance(error, OwnershipLost):
        owner = "another process" if error.pid is None else f"process {error.pid}"
        return f"{error.path} is in use by {owner}; do this in that process, or stop it and try again"
    if isinstance(error, LogShortened):
        return (
            f"{error.path} held events up to position {error.proven} and now ends at {error.found}; restore a backup, "
            "save what is left with `eventlog export`, or go on without the rest by `eventlog recover --accept-loss`"
        )
    if isinstance(error, OSError):
        return _os_error(error)
    return str(error)


_STEPS = {
    errno.ENOENT: "; correct the path",
    errno.EEXIST: "; choose another name, or remove it first",
    errno.ENOSPC: "; make room and try again",
    errno.EDQUOT: "; make room and try again",
    errno.EACCES: "; permit it, or run this as its owner",
    errno.EISDIR: "; name a file",
}


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}{_STEPS.get(error.errno or 0, '')}"


def _usage(error: click.ClickException) -> str:
    text = error.format_message().strip().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text[:1].lower()}{text[1:]}; see `{context.command_path} --help`" if context else text


def _unexpected(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}; please report this"
    )
