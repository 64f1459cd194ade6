"""A process that has the library loaded and forks children: `python -m tests.torture.forker MODULE`.

For each line of JSON on its standard input, a list of arguments, it forks a child that says its pid, waits for another
line, which comes when strace has hold of it, and runs `MODULE.life(*arguments)`. So a child costs milliseconds, and
nothing is injected into the start of Python.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.log_kit import CHECKOUT, line_of, tell_child


class Ended(NamedTuple):
    """What became of a child."""

    said: list[str]
    status: int
    """Its exit code; below zero, the signal that ended it."""
    injected: int
    """How often."""


class Forker:
    """The parent's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, what: str | None, paths: list[Path], *arguments: str) -> Ended:
        """Let a child live with something injected into its system calls on these paths: "fsync:error=EIO:when=3"."""
        tell_child(self._process, json.dumps(arguments))
        pid = line_of(self._process)
        if what is None:
            return self._go(None)
        call = what.partition(":")[0]
        strace = shutil.which("strace")
        assert strace is not None
        places = [each for path in paths for each in ("-P", str(path))]
        # Its own messages tell when it has hold of the child, and its trace what was injected.
        with subprocess.Popen(
            [strace, "-f", "-p", pid, "-e", f"trace={call}", "-e", f"inject={what}", "-e", "signal=none", *places],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as tracer:
            assert tracer.stderr is not None
            first = tracer.stderr.readline()
            assert "attached" in first, first
            ended = self._go(tracer)
        return ended

    def _go(self, tracer: subprocess.Popen[str] | None) -> Ended:
        tell_child(self._process)
        said: list[str] = []
        while not (line := line_of(self._process)).startswith("ended "):
            said.append(line)
        injected = 0
        if tracer is not None and tracer.stderr is not None:
            injected = sum("(INJECTED)" in trace or "SIGKILL" in trace for trace in tracer.stderr)
        return Ended(said, int(line.split()[1]), injected)


@contextmanager
def forker(module: str) -> Iterator[Forker]:
    """A forker whose children live as a module says; it is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.torture.forker", module],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert line_of(process) == "ready"
            yield Forker(process)
        finally:
            process.kill()


def main(module: str) -> None:
    """The forker's side."""
    life = importlib.import_module(module).life
    say("ready")
    while request := _line():
        pid = os.fork()
        if not pid:
            say(str(os.getpid()))
            _line()
            status = 1
            try:
                asyncio.run(life(*json.loads(request)))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


def _line() -> str:
    """A line of the standard input, unbuffered: what is behind it is a child's."""
    line = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    return line.decode()


def say(text: str) -> None:
    """One write, so that a kill leaves whole lines."""
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
