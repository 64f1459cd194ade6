"""What processes do to files, by strace: recorded in order, and read back as operations that can be replayed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.log_kit import CHECKOUT

CALLS = "openat,pwrite64,write,fdatasync,fsync,ftruncate,unlink,unlinkat,mkdir,mkdirat,link,linkat"
MAX_STRING = 2_000_000

_SYSCALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?:<([^>]*)>)?.*")
_UNFINISHED = re.compile(r"(\w+\(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Op(NamedTuple):
    """One thing that was done, and had succeeded: to a file by its path, or a line that was said."""

    what: str
    """create, write, cut, sync, remove, folder, name (one more, the data), said"""
    path: str
    offset: int = 0
    data: bytes = b""


def record(command: Sequence[str], folder: Path, trace: Path) -> tuple[list[Op], str]:
    """Run a module of ours under strace: what it did to files below a folder and said, and what it complained of."""
    strace = shutil.which("strace")
    assert strace is not None
    options = ["-f", "-qq", "--seccomp-bpf", "-y", "-xx", "-s", str(MAX_STRING), "-o", str(trace), "-e"]
    done = subprocess.run(
        [strace, *options, f"trace={CALLS}", sys.executable, "-m", *command],
        cwd=CHECKOUT,
        capture_output=True,
        check=False,
        timeout=120,
    )
    complaint = done.stderr.decode()
    assert done.returncode in (0, -9), complaint
    with trace.open(errors="replace") as lines:
        return list(read_trace(lines, str(folder))), complaint


def read_trace(lines: Iterator[str], folder: str) -> Iterator[Op]:
    """The operations below a folder, in the order in which they returned."""
    pending: dict[str, str] = {}
    for line in lines:
        thread, _, text = line.rstrip("\n").partition(" ")
        text = text.lstrip()
        if unfinished := _UNFINISHED.fullmatch(text):
            pending[thread] = unfinished[1]
            continue
        if resumed := _RESUMED.fullmatch(text):
            text = pending.pop(thread, "") + resumed[1]
        if (called := _SYSCALL.fullmatch(text)) and int(called[3]) >= 0:
            yield from _operation(called[1], called[2], int(called[3]), _text(called[4] or ""), folder)


def _operation(name: str, arguments: str, result: int, opened: str, folder: str) -> Iterator[Op]:
    path = _text(match[1]) if (match := re.match(r"\d+<([^>]*)>", arguments)) else ""
    strings = [_bytes(each) for each in _STRING.findall(arguments)]
    if path.startswith(folder):
        yield _on_descriptor(name, path, strings, result, re.findall(r", (\d+)", arguments))
    elif name == "write" and arguments.startswith("1<"):
        yield Op("said", "", 0, strings[0][:result])
    elif name == "openat" and "O_CREAT" in arguments and opened.startswith(folder):
        yield Op("create", opened)
    elif name in ("link", "linkat") and strings[0].decode().startswith(folder):
        yield Op("name", strings[0].decode(), 0, strings[1])
    elif name in _BY_NAME and strings[0].decode().startswith(folder):
        yield Op(_BY_NAME[name], strings[0].decode())


_BY_NAME = {"unlink": "remove", "unlinkat": "remove", "mkdir": "folder", "mkdirat": "folder"}


def _on_descriptor(name: str, path: str, strings: list[bytes], result: int, numbers: list[str]) -> Op:
    match name:
        case "pwrite64":
            return Op("write", path, int(numbers[-1]), strings[0][:result])
        case "ftruncate":
            return Op("cut", path, int(numbers[-1]))
        case "fsync" | "fdatasync":
            return Op("sync", path)
        case _:
            raise AssertionError(f"{name} of {path} is not replayed")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text)
