"""Who may write: the lock, the fork guard, the modes of the files, and the head file."""

import asyncio
import errno
import fcntl
import json
import os
import re
import stat
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from eventlog.errors import ForkedProcess, LogInUse, NetworkFileSystem, NotALog, OutcomeUnknown, OwnershipLost

SQLITE_MAGIC = b"SQLite format 3\x00"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
APPLICATION_ID = 0x45564C47  # "EVLG"; stands at byte 68 of the file
WAIT_STEP_S = 0.003
LOOK_AGAIN_FOR_S = 0.05  # and a second owner still hears of the first within 100 ms
MAX_LOCK_BYTES = 4_096
_ESCAPED = re.compile(r"\\([0-7]{3})")  # in mountinfo: space, tab, line feed and backslash
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)


class Lock:
    """An exclusive flock on `<db>.lock`, which names the process that holds it, and the socket where it can be asked.

    The kernel drops it when the process dies, so a killed owner hinders nobody. A forked child closes its copy and
    is refused everywhere, or it would keep a dead owner's lock and commit into a file it does not own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self.forked = False
        self._database = path
        self._descriptor: int | None = None
        self._close_in_child: list[Callable[[], None]] = []
        _locks.add(self)  # before it holds anything, and for a reader too: its threads do not live in a child

    async def acquire(self, wait_s: float = 0.0) -> None:
        """Take the lock, waiting up to `wait_s` seconds; raises LogInUse with the owner's pid.

        It looks again for a moment in any case: whoever asks for the owner holds the lock that long, and an owner that
        is just opening has not written its pid yet. The time is the machine's own, since another process is waited for.
        """
        deadline_s = time.monotonic() + max(wait_s, LOOK_AGAIN_FOR_S)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _flock(self._descriptor, fcntl.LOCK_EX):
                if time.monotonic() >= deadline_s:
                    raise LogInUse(self._database, _holder(self._descriptor))
                await asyncio.sleep(WAIT_STEP_S)
            self._write(self._descriptor, {})
        except BaseException:
            self.release()
            raise

    def name_socket(self, place: Path) -> None:
        """Tell other processes where the holder can be asked."""
        if self._descriptor is not None:
            beside = place.parent == self.path.parent.absolute()  # then it is found wherever the folder is seen
            self._write(self._descriptor, {"socket": place.name if beside else str(place)})

    def _write(self, descriptor: int, more: dict[str, str]) -> None:
        text = json.dumps({"pid": os.getpid(), "startedAt": int(time.time()), **more}).encode()
        os.pwrite(descriptor, text, 0)  # whoever reads meanwhile finds the old text or the new one
        os.ftruncate(descriptor, len(text))

    def release(self) -> None:
        """Give the lock back. The file stays: unlinking it would let two processes hold two locks."""
        _locks.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> None:
        """Raise ForkedProcess in a child that was forked while the lock was held."""
        if self.forked:
            raise ForkedProcess()

    def check_held(self) -> None:
        """Raise OwnershipLost when the lock's path is another file than the one that is locked, or none.

        Whoever removed it let another process become an owner beside this one.
        """
        if self._descriptor is None:
            return
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                return
        raise OwnershipLost(self._database, owner_of(self._database))

    def on_fork(self, close: Callable[[], None]) -> None:
        """Call this in a forked child: descriptors that would keep a dead owner's socket alive are closed there."""
        self._close_in_child.append(close)

    def leave_in_child(self) -> None:
        """Runs in a forked child: drop its copy of the descriptor, and refuse every later call."""
        self.forked = True
        for close in self._close_in_child:
            close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _leave_all_in_child() -> None:
    for lock in list(_locks):
        lock.leave_in_child()
    _inherited.update(_open_files)


os.register_at_fork(after_in_child=_leave_all_in_child)


def owner_of(path: Path) -> int | None:
    """The pid of the living owner of a database, or None."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _flock(descriptor, fcntl.LOCK_SH) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int | None:
    return _holder_in(os.pread(descriptor, MAX_LOCK_BYTES, 0)).pid


class Holder(NamedTuple):
    """What a lock file says of the process that holds the lock, or held it last."""

    pid: int | None = None
    socket: str | None = None


def holder_of(path: Path) -> tuple[int | None, Path | None]:
    """The pid and the socket of whoever owns a database, or owned it last; the lock itself is not touched."""
    lock = path.with_name(path.name + ".lock")
    try:
        with lock.open("rb") as file:
            holder = _holder_in(file.read(MAX_LOCK_BYTES))
    except OSError:
        return None, None
    return holder.pid, None if holder.socket is None else lock.parent / holder.socket


def _holder_in(text: bytes) -> Holder:
    try:
        found, _end = json.JSONDecoder().raw_decode(text.decode())  # what a longer text left behind does not count
        pid, socket = found.get("pid"), found.get("socket")
    except (ValueError, AttributeError):
        return Holder()
    return Holder(pid if isinstance(pid, int) else None, socket if isinstance(socket, str) else None)


UNPROVEN = bytes(8)
"""In the place of the digest of the eras, where a library wrote the head file that did not know of it."""


class Proof(NamedTuple):
    """What a head file proves: that the file with this id and these eras held everything up to a position."""

    sequence: int
    file_id: str
    era: str
    position: int
    eras: bytes = UNPROVEN


class HeadFile:
    """`<db>.head`: the last position that a commit proved, kept apart from the database to notice its loss.

    Two 64-byte slots are written in turn, after the commit and before the ack, so it may lag but never lead, and a
    torn slot leaves the other one. It reaches the disk with checkpoints only; until then it survives the end of the
    process. It is written by `pwrite`, since a mapping would end the process when somebody cuts the file. Where a
    commit does not wait for the disk (`at_commit=False`), only a checkpoint proves anything.
    """

    SLOT = struct.Struct(">8s8s8sQQ8s16s")  # magic, file id, era, sequence, position, digest of the eras, checksum
    MAGIC = b"EVLGHEAD"

    def __init__(self, path: Path, *, at_commit: bool = True) -> None:
        self.path = path.with_name(path.name + ".head")
        self._at_commit = at_commit
        self._descriptor: int | None = None
        self._sequence = 0
        self._prefix = b""
        self._eras = UNPROVEN

    def read(self) -> Proof | None:
        """What the newest valid slot says, or None when there is none."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        best: Proof | None = None
        for offset in (0, self.SLOT.size):
            slot = content[offset : offset + self.SLOT.size]
            if len(slot) < self.SLOT.size:
                continue
            magic, file_id, era, sequence, position, eras, checksum = self.SLOT.unpack(slot)
            if magic != self.MAGIC or blake2b(slot[:48], digest_size=16).digest() != checksum:
                continue
            if best is None or sequence > best.sequence:
                best = Proof(sequence, file_id.decode(), era.decode(), position, eras)
        return best

    def open(self, file_id: str, era: str, position: int, eras: bytes = UNPROVEN) -> None:
        """Go on from `position`, whatever the file proved; its last proof stands until the new one is written."""
        last, size = self.read(), 2 * self.SLOT.size
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._descriptor).st_size != size:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, bytes(size), 0)  # now its blocks are there: a full disk cannot refuse a slot
            os.fsync(self._descriptor)
        self._sequence = 0 if last is None else last.sequence
        self._prefix = self.MAGIC + file_id.encode() + era.encode()
        self._eras = eras
        self.checkpointed(position)

    def committed(self, position: int) -> None:
        """Note that everything up to `position` is committed."""
        if self._at_commit:
            self._write(position)

    def checkpointed(self, position: int) -> None:
        """Note that everything up to `position` is in the database itself, and bring the slots to the disk."""
        self._write(position)
        self.sync()

    def _write(self, position: int) -> None:
        if self._descriptor is None:
            return
        self._sequence += 1
        body = self._prefix + struct.pack(">QQ8s", self._sequence, position, self._eras)
        offset = self.SLOT.size * (self._sequence & 1)
        try:
            os.pwrite(self._descriptor, body + blake2b(body, digest_size=16).digest(), offset)
        except OSError as error:
            raise self._unproven(error) from error

    def sync(self) -> None:
        """Bring the slots to the disk."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._unproven(error) from error

    def _unproven(self, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(f"{self.path} cannot be written: {error.strerror}")

    def close(self) -> None:
        """Sync and close; calling it again does nothing. It is closed even if it raises OutcomeUnknown."""
        try:
            self.sync()
        finally:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)


def create_folder(path: Path) -> None:
    """Make a folder of mode 0700, and likewise each one above it that is missing; their names are on the disk then."""
    if path.is_dir():
        return
    create_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    parent = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(parent)  # else a power cut may take the folder, and what was acknowledged in it
    finally:
        os.close(parent)


def create_file(path: Path) -> bool:
    """Make the database's file, mode 0600; False when the file was there."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    return True


def must_be_writable(path: Path) -> None:
    """Raise PermissionError when this process may not write a file: SQLite would open it read-only, and say so late."""
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


_open_files: dict[tuple[int, int], int] = {}  # how often each (device, inode) is open here
_inherited: set[tuple[int, int]] = set()  # what was open when this process was forked


@contextmanager
def inspected(path: Path, *, may_be_empty: bool) -> Iterator[None]:
    """Refuse what is no event log before SQLite touches it, and count the file as open here while inside.

    A file that this process has open already is not looked into: closing a second descriptor of it would drop
    SQLite's locks. Raises NotALog; ForkedProcess when the parent had it open, since SQLite then believes in locks that
    only the parent holds; FileNotFoundError when there is nothing.
    """
    status = path.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in _inherited:
        raise ForkedProcess()
    if identity not in _open_files:
        _look_into(path, status, may_be_empty)
    _open_files[identity] = _open_files.get(identity, 0) + 1
    try:
        yield
    finally:
        _open_files[identity] -= 1
        if not _open_files[identity]:
            del _open_files[identity]


def _look_into(path: Path, status: os.stat_result, may_be_empty: bool) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotALog(path, "it is a folder; name the database file in it")
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
        raise NotALog(path, "it is not a regular file")
    with path.open("rb") as file:
        header = file.read(72)
    if not header or _is_half_made(path, header):
        if may_be_empty:
            return
        raise NotALog(path, "the file is empty")
    if not header.startswith(SQLITE_MAGIC):
        raise NotALog(path, "it is no SQLite database")
    if len(header) < 72 or int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise NotALog(path, "it is another application's database")


def _is_half_made(path: Path, header: bytes) -> bool:
    """Whether a power cut in its making left pages but not the first one; SQLite makes it empty by its journal."""
    if header.strip(b"\x00"):
        return False
    try:
        with path.with_name(path.name + "-journal").open("rb") as journal:
            return journal.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC
    except OSError:
        return False


MOUNTS = Path("/proc/self/mountinfo")


def refuse_network_file_system(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise NetworkFileSystem when the folder of `path` is on a file system where WAL corrupts without an error."""
    try:
        table = mounts.read_text(errors="surrogateescape")
    except OSError:
        return  # not Linux: nothing to read, and the documentation says what is supported
    kind = file_system_of(path.parent.resolve(), table)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NetworkFileSystem(path, kind)


def file_system_of(folder: Path, mounts: str) -> str:
    """The type of the file system that a folder is on, by the text of mountinfo(5); "" when it does not say."""
    best, kind = Path(), ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, names = left.split(" "), right.split(" ")
        if len(fields) < 5 or not names[0]:
            continue
        mount_point = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        # Of two at one place the later one hides the earlier.
        if folder.is_relative_to(mount_point) and len(mount_point.parts) >= len(best.parts):
            best, kind = mount_point, names[0]
    return kind
