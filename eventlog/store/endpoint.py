"""The owner's control socket as a file: where it is, who may reach it, and how another process finds it.

It lies beside the database, as `<db>.sock`, or with a short name in a folder of this user's alone: when that path is
too long for a socket, or the file system takes none. The lock file says where. Whoever holds the lock may replace
what a dead owner left there.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from eventlog.store.owner import create_folder

MAX_PATH_BYTES = 100  # the kernels take 103 to 107
WAITING_CONNECTIONS = 128

_PEER = struct.Struct("3i")  # pid, uid, gid


def listen(database: Path) -> tuple[socket.socket, Path]:
    """A socket that listens, and its place; raises OSError where there is no place for one."""
    beside = database.absolute().with_name(f"{database.name}.sock")
    try:
        return _bound(beside), beside
    except OSError:
        place = _folder() / f"eventlog-{_short_name(database)}.sock"
        return _bound(place), place


def _bound(place: Path) -> socket.socket:
    if len(os.fsencode(place)) > MAX_PATH_BYTES:
        raise OSError(f"{place} is too long for a socket")
    _remove_dead(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        with suppress(OSError):  # on Linux it is born with this mode
            os.fchmod(listener.fileno(), 0o600)
        listener.bind(os.fspath(place))
        place.chmod(0o600)
        listener.listen(WAITING_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_dead(place: Path) -> None:
    """Remove a socket that an owner before us left; anything else at its place is not ours."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(place.lstat().st_mode):
            raise FileExistsError(f"{place} is there and is no socket")
        place.unlink()


def _folder() -> Path:
    """A folder that nobody else can reach."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and _is_ours_alone(Path(given)):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / f"eventlog-{os.geteuid()}"
    create_folder(folder)
    if not _is_ours_alone(folder):
        raise PermissionError(f"{folder} can be reached by others")
    return folder


def _is_ours_alone(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    mine = status.st_uid == os.geteuid()
    return folder.is_absolute() and stat.S_ISDIR(status.st_mode) and mine and not status.st_mode & 0o077


def _short_name(database: Path) -> str:
    """Another one for each file, also where containers with the same paths in them share the folder."""
    status = database.stat()
    text = f"{status.st_dev} {status.st_ino} ".encode() + os.fsencode(database.absolute())
    return blake2b(text, digest_size=8).hexdigest()


def peer_may_ask(connection: socket.socket) -> bool:
    """Whether it is our own user, or root, who is at the other end; the file's mode alone says so outside of Linux."""
    if sys.platform != "linux":
        return True
    _pid, uid, _gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid in (os.geteuid(), 0)


def connect(place: Path) -> socket.socket | None:
    """A connection to an owner's socket, which does not block; None when too many others wait there just now."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(os.fspath(place))
    except BaseException as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return connection
