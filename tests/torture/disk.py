"""A disk as a power cut leaves it: what was synced is there, and of the rest whatever chance left, torn by sectors."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.torture.strace import Op

SECTOR_BYTES = 512
FATES = ("dropped", "kept", "subset", "torn")
NOT_REPLAYED = ("-shm", ".lock", ".sock")  # made anew by whoever opens the log


class _File:
    """One file: what is on the disk, and what only the kernel knows."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Op] = []

    def sync(self) -> None:
        for op in self.pending:
            _apply(self.synced, op)
        self.pending = []

    def after(self, fate: str, random: Random) -> bytearray:
        content = bytearray(self.synced)
        chance = {"dropped": 0.0, "kept": 1.0}.get(fate, random.choice((0.1, 0.5, 0.9)))
        for op in self.pending:
            if random.random() < chance:
                is_torn = fate == "torn" and op.what == "write" and len(op.data) > SECTOR_BYTES
                _apply(content, _torn(op, random) if is_torn else op)
        return content


class Disk:
    """Takes operations one after the other; a name is on the disk when its folder was synced."""

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        self._pending_names: list[tuple[str, _File | None]] = []

    def hold(self, folder: Path) -> None:
        """What was there before, long since synced."""
        for path in folder.iterdir():
            content = Op("write", str(path), 0, path.read_bytes())
            for op in (Op("create", str(path)), content, Op("sync", str(path))):
                self.do(op)
        self.do(Op("sync", str(folder)))

    def do(self, op: Op) -> None:
        """One operation that has returned."""
        if op.path.endswith(NOT_REPLAYED):
            return
        file = self._names.get(op.path)
        match op.what:
            case "create" if file is None:
                self._names[op.path] = file = _File()
                self._pending_names.append((op.path, file))
            case "remove" if file is not None:
                del self._names[op.path]
                self._pending_names.append((op.path, None))
            case "name" if file is not None:
                self._names[op.data.decode()] = file
                self._pending_names.append((op.data.decode(), file))
            case "write" | "cut":
                assert file is not None, op
                file.pending.append(op)
            case "sync" if file is not None:
                file.sync()
            case "sync":  # of the folder: there is one
                self._synced_names = dict(self._names)
                self._pending_names = []

    def after(self, fate: str, random: Random) -> dict[str, bytes]:
        """The files after a power cut now. Names come back in the order in which they were made, up to some moment."""
        names, pending = dict(self._synced_names), self._pending_names
        upto = {"dropped": 0, "kept": len(pending)}.get(fate, random.randint(0, len(pending)))
        for path, file in pending[:upto]:
            if file is None:
                names.pop(path, None)
            else:
                names[path] = file
        return {path: bytes(file.after(fate, random)) for path, file in names.items()}


def _apply(content: bytearray, op: Op) -> None:
    if op.what == "cut":
        del content[op.offset :]
        content.extend(bytes(op.offset - len(content)))
        return
    end = op.offset + len(op.data)
    content.extend(bytes(max(0, end - len(content))))
    content[op.offset : end] = op.data


def _torn(op: Op, random: Random) -> Op:
    """A part of a write: sectors from its beginning, or from its end."""
    cut = SECTOR_BYTES * random.randrange(1, -(-len(op.data) // SECTOR_BYTES))
    if random.random() < 0.5:
        return op._replace(data=op.data[:cut])
    return op._replace(offset=op.offset + cut, data=op.data[cut:])


def put(files: dict[str, bytes], folder: Path, to: Path) -> None:
    """Write these files of a folder into another one, which holds nothing else then."""
    to.mkdir(exist_ok=True, mode=0o700)
    for old in to.iterdir():
        old.unlink()
    for path, content in files.items():
        (to / Path(path).relative_to(folder)).write_bytes(content)
