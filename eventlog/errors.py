"""The error tree: everything this library raises on purpose, and the findings that validation reports.

    EventLogError
    ├── InvalidEvent, InvalidName, LimitExceeded              what you gave cannot be stored; nothing was
    ├── SessionNotFound, SessionExists                        the session is not, or already, there
    ├── IndexConflict, KeyConflict                            somebody else was there first; nothing was stored
    ├── CorruptEvent, CursorExpired, VersionUnavailable       what you ask for cannot be given
    ├── LogClosed, ReadOnlyLog, ForkedProcess                 this object cannot be used (so, or any more)
    ├── NeedsCoroutine                                        a plain function asked for what has to be awaited
    ├── LogInUse, NotALog, LogShortened, NetworkFileSystem    the file cannot be opened
    │   └── UnsupportedSchema, OwnershipLost                  (a NotALog; a LogInUse, of an owner)
    ├── OwnerUnreachable, NotServed, InvalidRequest           the log's owner could not be asked, or refused
    ├── OutcomeUnknown, StorageFull, DamagedFile, StoreError  the disk or SQLite let us down
    ├── ErasureIncomplete                                     it was forgotten, and its bytes are still on the disk
    ├── BrokenInvariant                                       we let you down; nothing more is written
    └── DiscoveryError, ManifestError, ActivationError        an agent's hooks or extensions cannot be loaded

Every error keeps what it knows in typed attributes, and its message says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from typing import Any, Literal

import msgspec

_SHOWN_CHARACTERS = 120


def shown(value: object) -> str:
    """`value` as it may stand in a message: quoted, control characters escaped, cut when long."""
    return printable(repr(value))


def printable(text: str) -> str:
    """`text` as it may stand in a message: control characters escaped, cut when long."""
    return escaped(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def escaped(text: str) -> str:
    """`text` with everything escaped that could act on a terminal, or break a line of a log in two."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Finding(msgspec.Struct, frozen=True):
    """One result of validating an agent folder or a manifest.

    `path` is a file path or, inside a manifest, a JSON pointer such as `/hooks/0/event`.
    """

    severity: Literal["error", "warning"]
    code: str
    message: str
    path: str


def format_findings(findings: Iterable[Finding]) -> str:
    """The findings as text, one line each: `error hook-name-invalid agent/hooks/a__b.py: ...`."""
    return "\n".join(f"{found.severity} {found.code} {found.path}: {found.message}" for found in findings)


class EventLogError(Exception):
    """Root of every error that this library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:  # else errors with several attributes could not be pickled
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[EventLogError], args: tuple[Any, ...], attributes: dict[str, Any]) -> EventLogError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


# -------------------------------------------------------------------------------------------------------- what you gave


class InvalidEvent(EventLogError):
    """An event cannot be stored as it is; `path` names the place, for example `data.usage.inputTokens`."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}")


class InvalidName(EventLogError):
    """A name (of a hook, an event type, a kv key, ...) breaks the rule for such names."""

    def __init__(self, what: str, value: object, why: str) -> None:
        self.what, self.value, self.why = what, value, why
        super().__init__(f"{what} {shown(value)}: {why}")


class LimitExceeded(EventLogError):
    """Something is larger than its limit; both numbers are in the unit that `what` names."""

    def __init__(self, what: str, limit: int, actual: int) -> None:
        self.what, self.limit, self.actual = what, limit, actual
        super().__init__(f"{what}: {actual} is over the limit of {limit}; nothing was stored")


# --------------------------------------------------------------------------------------------------- sessions and order


class SessionNotFound(EventLogError):
    """No session has this id."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session {shown(session_id)}; start it with start_session")


class SessionExists(EventLogError):
    """A session with this id was started before."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {shown(session_id)} exists; get it with session, or start one under another id")


class IndexConflict(EventLogError):
    """`expected_index` was not the session's next index; `actual` is."""

    def __init__(self, session_id: str, expected: int, actual: int) -> None:
        self.session_id, self.expected, self.actual = session_id, expected, actual
        super().__init__(
            f"session {shown(session_id)}: expected index {expected}, but its next index is {actual}; "
            "nothing was stored, read what is new and append again"
        )


class KeyConflict(EventLogError):
    """The idempotency key already belongs to a different event of the session."""

    def __init__(self, session_id: str, key: str, why: str) -> None:
        self.session_id, self.key, self.why = session_id, key, why
        super().__init__(f"session {shown(session_id)}, key {shown(key)}: {why}; nothing was stored")


# --------------------------------------------------------------------------------------------------------- reading back


class CorruptEvent(EventLogError):
    """A stored event cannot be read; the events after it can."""

    def __init__(self, session_id: str, index: int, position: int, why: str) -> None:
        self.session_id, self.index, self.position, self.why = session_id, index, position, why
        super().__init__(
            f"event {index} of session {shown(session_id)} (position {position}) is corrupt: {why}; "
            "`eventlog check` lists all such events"
        )


class CursorExpired(EventLogError):
    """The reader asked for events that were pruned; `floor` is where what is kept begins."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        super().__init__(
            f"some events before {floor} were pruned; read from the beginning what is left of them, or on from {floor}"
        )


class VersionUnavailable(EventLogError):
    """This version of the turn cannot be given, and no other is given in its place."""

    def __init__(self, conversation_id: str, turn_id: str, version: int, why: str) -> None:
        self.conversation_id, self.turn_id, self.version, self.why = conversation_id, turn_id, version, why
        super().__init__(f"version {version} of turn {shown(turn_id)} in {shown(conversation_id)}: {why}")


# -------------------------------------------------------------------------------------------------------- using the log


class LogClosed(EventLogError):
    """The log was not opened, or is closed."""

    def __init__(self, why: str = "the log is closed") -> None:
        self.why = why
        super().__init__(f"{why}; use it inside `async with EventLog(...)`")


class ReadOnlyLog(EventLogError):
    """The log was opened read-only, and this would write."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        super().__init__(f"{self.path} was opened read-only; its owner writes, or open it without read_only")


class ForkedProcess(EventLogError):
    """The log was opened by this process's parent; a forked child must not touch it."""

    def __init__(self) -> None:
        super().__init__("this log belongs to the parent process; start children with spawn, and open it there")


class NeedsCoroutine(EventLogError):
    """A handler that is a plain function touched what only coroutine functions get; `member` names it."""

    def __init__(self, member: str) -> None:
        self.member = member
        super().__init__(
            f"ctx.{member} is not there for a plain function, which runs on a thread, where nothing can be awaited: "
            "make the handler a coroutine function, with async def"
        )


# ------------------------------------------------------------------------------------------------------- opening a file


class LogInUse(EventLogError):
    """Another process owns the log; `pid` is its process id where it is known."""

    def __init__(self, path: str | PathLike[str], pid: int | None) -> None:
        self.path, self.pid = fspath(path), pid
        super().__init__(
            f"{self.path} is in use by {self._owner}; stop it, wait with wait_for_owner_s, or open read_only"
        )

    @property
    def _owner(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


class OwnershipLost(LogInUse):
    """The lock file of this owner was removed or replaced, so that another process may write; this one does not."""

    def __init__(self, path: str | PathLike[str], pid: int | None) -> None:
        super().__init__(path, pid)
        why = f"its lock file was removed or replaced while this process held it, and {self._owner} may write it now"
        self.args = (f"{self.path}: {why}; nothing more is written here, close this log",)


class NotALog(EventLogError):
    """The file is not an event log; it was not changed."""

    def __init__(self, path: str | PathLike[str], why: str) -> None:
        self.path, self.why = fspath(path), why
        super().__init__(f"{self.path} is not an event log: {why}; the file was not changed")


class UnsupportedSchema(NotALog):
    """The log was written by a version of this library that this one does not know."""

    def __init__(self, path: str | PathLike[str], found: int, supported: int) -> None:
        self.found, self.supported = found, supported
        step = "use a matching version"
        if 1 <= found < supported:
            step = "open it once without read_only, which brings it up to that"
        super().__init__(path, f"its schema version is {found}, this library knows {supported}; {step}")


class LogShortened(EventLogError):
    """The file ends before the last event that it is known to have held."""

    def __init__(self, path: str | PathLike[str], proven: int, found: int) -> None:
        self.path, self.proven, self.found = fspath(path), proven, found
        super().__init__(
            f"{self.path} held events up to position {proven} and now ends at {found}; "
            "restore a backup, or go on without them with accept_loss=True"
        )


class NetworkFileSystem(EventLogError):
    """The file lies on a network file system, where SQLite's log mode can corrupt it."""

    def __init__(self, path: str | PathLike[str], fs_type: str) -> None:
        self.path, self.fs_type = fspath(path), fs_type
        super().__init__(
            f"{self.path} is on {fs_type}, where a log can be corrupted without any error; "
            "move it to a local disk, or take the risk with allow_network_fs=True"
        )


# ----------------------------------------------------------------------------------------------------- asking its owner


class OwnerUnreachable(EventLogError):
    """The process that owns the log cannot be asked; `pid` is None where no process owns it, or it is not known."""

    def __init__(self, path: str | PathLike[str], pid: int | None, why: str) -> None:
        self.path, self.pid, self.why = fspath(path), pid, why
        owner = "its owner" if pid is None else f"process {pid}, which owns it,"
        super().__init__(f"{self.path}: {owner} cannot be asked: {why}")


class NotServed(EventLogError):
    """The process that owns the log does not do this: it serves no agent, or is of another version."""

    def __init__(self, command: str, pid: int) -> None:
        self.command, self.pid = command, pid
        super().__init__(
            f"process {pid} owns the log and does not serve {shown(command)}; "
            "ask one with a Runtime of this version, or stop it and do this at rest"
        )


class InvalidRequest(EventLogError):
    """What the log's owner was sent is not a request, or not one that the command takes."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"not a request that can be answered: {why}")


# ------------------------------------------------------------------------------------------------------------- the disk


class OutcomeUnknown(EventLogError):
    """A commit failed in a way that leaves open whether it is stored."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"it is not known whether this was stored: {why}; do it again, an append with its key, or read"
        )


class StorageFull(EventLogError):
    """There is no room; nothing was stored."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"nothing was stored: {why}; make room and do it again")


class DamagedFile(EventLogError):
    """SQLite found the database itself damaged."""

    def __init__(self, path: str | PathLike[str], why: str) -> None:
        self.path, self.why = fspath(path), why
        super().__init__(f"{self.path} is damaged: {why}; run `eventlog check`, or restore a backup")


class StoreError(EventLogError):
    """SQLite refused for another reason; nothing was stored."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"nothing was stored: {why}")


class ErasureIncomplete(EventLogError):
    """Sessions are forgotten and read by nobody, but what they held is still in the file or its write-ahead log."""

    def __init__(self, path: str | PathLike[str], why: str) -> None:
        self.path, self.why = fspath(path), why
        super().__init__(f"{self.path}: what was forgotten is not off the disk yet: {why}; end that and forget again")


class BrokenInvariant(EventLogError):
    """A rule that the log lives by does not hold any more; it refuses to write on."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why}; nothing more is written, please report this")


# ------------------------------------------------------------------------------------------------- hooks and extensions


class _FindingsError(EventLogError):
    """Validation found errors; `findings` has all of them, warnings too."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(format_findings(self.findings))


class DiscoveryError(_FindingsError):
    """The agent folder has errors; `findings` has all of them."""


class ManifestError(_FindingsError):
    """The extension's manifest has errors; `findings` has all of them."""


class ActivationError(EventLogError):
    """An extension's `activate` failed, or registered something else than its manifest declares."""

    def __init__(self, extension: str, why: str) -> None:
        self.extension, self.why = extension, why
        super().__init__(f"extension {shown(extension)} was not activated: {why}")
