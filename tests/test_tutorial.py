"""The tutorial is walked as it is written: its commands are typed into one shell, beside the server that it starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli_kit import PATIENCE_S, environment
from tests.log_kit import CHECKOUT
from tests.test_docs import blocks

pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")
pytest.importorskip("uvicorn", reason="runs the example server: pip install uvicorn")

GUIDE = "docs/tutorial.md"
FILES = {"outbox/extension.json": "json", "outbox/main.py": "python"}
EVENTLOG = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m eventlog "$@"\n'


class Shell:
    """A shell that keeps its folder and its variables from one command to the next."""

    def __init__(self, folder: Path, port: int) -> None:
        command = folder / "bin" / "eventlog"
        command.parent.mkdir()
        command.write_text(EVENTLOG)
        command.chmod(0o755)
        outside = environment(PATH=f"{command.parent}{os.pathsep}{os.environ['PATH']}", COLUMNS="200")
        self._port = port
        self._bash = subprocess.Popen(
            ["/bin/bash"], cwd=folder, env=outside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def types(self, line: str) -> str:
        """What a command prints to stdout."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{line.replace('8000', str(self._port))}\nprintf '\\n==%d==\\n' $?\n")
        self._bash.stdin.flush()
        told = ""
        while not (end := re.search(r"\n==(\d+)==\n$", told)):
            read = self._bash.stdout.readline()
            assert read, f"{line}: {told}"
            told += read
        assert end[1] == "0" or is_waited_for(line), f"{line}: {told}"
        return told[: end.start()]

    def close(self) -> None:
        """Let it go."""
        self._bash.kill()
        self._bash.communicate()


@contextmanager
def a_shell(folder: Path, port: int) -> Iterator[Shell]:
    shell = Shell(folder, port)
    try:
        yield shell
    finally:
        shell.close()


@contextmanager
def the_server(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """As the guide says to start it, with the Python of the tests."""
    (line,) = [block.strip() for block in blocks(GUIDE, "sh") if "agent_server.py" in block]
    token, python, *words = shlex.split(line.replace("PATH-OF-THIS-CHECKOUT", str(CHECKOUT)).replace("8000", str(port)))
    assert python == "python"
    name, _, value = token.partition("=")
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment(**{name: value}), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"http://127.0.0.1:{port}\n"
            yield server
        finally:
            server.kill()


def walk(shell: Shell, console: str) -> None:
    """Type each command of a block, and compare what it prints; `...` stands for anything."""
    for part in console.split("$ ")[1:] if console.startswith("$ ") else []:
        line, _, expected = part.partition("\n")
        pattern = re.escape(expected.strip()).replace(r"\.\.\.", ".*")
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.fullmatch(pattern, told := plain(shell.types(line)), re.DOTALL):
            assert is_waited_for(line), f"{line}:\n{told}\nand not\n{expected}"
            assert time.monotonic() < deadline_s, f"{line}:\n{told}\nand not\n{expected}"


def is_waited_for(line: str) -> bool:
    """A person looks again: the server calls the extension when the command that asked for it has ended, and is slow
    on a busy machine."""
    return line.startswith(("eventlog deliveries", "eventlog dead", "curl -sN -m 1"))


def plain(told: str) -> str:
    return "\n".join(line.rstrip() for line in told.splitlines()).strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_the_tutorial_leads_from_an_empty_folder_to_a_retried_dead_letter(tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("pgrep") is None:
        pytest.skip("the tutorial uses curl and pgrep")
    agent, install, watch, kill, resume, look, retry = blocks(GUIDE, "console")
    port, folder = free_port(), tmp_path / "shop"
    with a_shell(tmp_path, port) as shell:
        walk(shell, agent)
        for name, language in FILES.items():
            file = folder / "agent/extensions" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (text,) = blocks(GUIDE, language)
            file.write_text(text)
        walk(shell, install)
        with the_server(folder, port) as server:
            walk(shell, watch)
            walk(shell, kill)
            assert server.wait(PATIENCE_S) == -9
        with the_server(folder, port):
            walk(shell, resume)
            walk(shell, look)
            walk(shell, retry)
