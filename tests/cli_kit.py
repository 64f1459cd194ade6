"""What the tests of the command line share: running it in this process, as a real one, and on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

from click.testing import CliRunner

import eventlog
from eventlog import EventLog
from eventlog.cli import command_line

CHECKOUT = Path(eventlog.__file__).parents[1]
SAMPLE = CHECKOUT / "examples" / "data" / "sessions.jsonl"
PATIENCE_S = 20.0

HOSTILE = (
    "hi \x1b[2J\x1b]0;title\x07 \u202eevil\u2066 a\u2028b\u2029c\x85d\x7f \x9b31m\ufeff\r\n\v\f"
    " [red]r[/red] 你好 👩\u200d👧"
)
"""A text with everything in it that moves a cursor, breaks a line or reverses what follows."""

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout, split at LF alone."""
        return self.stdout.removesuffix("\n").split("\n") if self.stdout else []

    @property
    def document(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.stdout)

    @property
    def objects(self) -> list[Any]:
        """Stdout as one JSON object a line, split at LF alone."""
        return [json.loads(line) for line in self.lines]


def run(*words: object, stdin: str | bytes | None = None, **environment: str) -> Done:
    """Run a command in this process."""
    wide = {"COLUMNS": "80", "EVENTLOG_DB": "", **environment}
    result = CliRunner().invoke(command_line, [str(word) for word in words], input=stdin, env=wide)
    return Done(result.exit_code, result.stdout_bytes.decode(), result.stderr_bytes.decode())


def good(*words: object, stdin: str | bytes | None = None) -> Done:
    """Run a command that has to end well and to complain of nothing."""
    done = run(*words, stdin=stdin)
    assert (done.code, done.stderr) == (0, ""), done
    return done


def command(*words: object) -> list[str]:
    """The words that run a command as a process of its own."""
    return [sys.executable, "-m", "eventlog", *(str(word) for word in words)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of such a process: it finds the package wherever it is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENTLOG_")}
    return {**kept, "PYTHONPATH": str(CHECKOUT), **changes}


def start(*words: object, stdout: int = subprocess.PIPE, stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command as a process of its own."""
    return subprocess.Popen(command(*words), env=environment(), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)


def shell(line: str) -> Done:
    """Run a line of bash, in which `eventlog` is the command; it ends with the code that it exits with."""
    text = f'eventlog() {{ "{sys.executable}" -m eventlog "$@"; }}\n{line}'
    done = subprocess.run(
        ["/bin/bash", "-c", text], env=environment(), capture_output=True, timeout=PATIENCE_S, check=False
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def on_terminal(columns: int, *words: object, **changes: str) -> str:
    """What a command writes to a terminal of that width, stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    terminal = environment(TERM="xterm", **changes)
    for name in ("COLUMNS", "LINES", *({"NO_COLOR"} - set(changes))):
        terminal.pop(name, None)
    child = subprocess.Popen(command(*words), stdin=theirs, stdout=theirs, stderr=theirs, env=terminal)
    os.close(theirs)
    written = b""
    while chunk := _read(ours):
        written += chunk
    os.close(ours)
    child.wait(PATIENCE_S)
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how a terminal tells that nobody holds its other end
        return b""


def acting(text: str) -> set[str]:
    """The characters in it that could act on a terminal, its own styles and line ends apart."""
    plain = _STYLE.sub("", text)
    return {c for c in plain if category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\u200d"}


def filled(path: Path, fill: Callable[[EventLog], Awaitable[object]]) -> Path:
    """A log that was filled and closed."""

    async def write() -> None:
        async with EventLog(path) as log:
            await fill(log)

    asyncio.run(write())
    return path


def sample_log(folder: Path) -> Path:
    """A log with the bundled sessions in it."""
    path = folder / "agent.db"
    good("import", SAMPLE, "--db", path)
    return path


def envelopes(path: Path, session_id: str | None = None) -> list[dict[str, Any]]:
    """What the library itself reads."""

    async def read() -> list[dict[str, Any]]:
        async with EventLog(path, read_only=True) as log:
            source = log if session_id is None else await log.session(session_id)
            return [event.to_dict() async for event in source.read()]

    return asyncio.run(read())


def damage(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes of a closed log, behind its back."""
    assert len(old) == len(new)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def fingerprint(path: Path) -> tuple[str, int]:
    """Changes when the file does, or when it is only touched."""
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


# ------------------------------------------------------------------------------------------------- a session to look at

_USAGE = {"inputTokens": 1_714, "outputTokens": 173, "cacheReadTokens": 0, "cacheWriteTokens": 5}
_CALLS = [
    {"callId": "c1", "toolName": "Find", "args": {"order": "A-1", "deep": True}},
    {"callId": "c2", "toolName": "Read", "args": "notes.txt", "parentCallId": "c1"},
    {"callId": "c3", "toolName": "Pay"},
]
_FOUND = "\n".join(f"row {number}" for number in range(40))
_ASKED = {"requestId": "r1", "kind": "approval", "prompt": "Pay it?", "options": ["yes", "no"]}
_ANSWER = {"requestId": "r1", "outcome": "approved", "response": "yes"}

CONVERSATION: list[tuple[str, str, dict[str, Any]]] = [
    ("t1", "turn.started", {}),
    ("t1", "message.received", {"text": "Where is my\n\trefund?"}),
    ("t1", "reasoning.completed", {"text": "look it up"}),
    ("t1", "actions.requested", {"calls": _CALLS}),
    ("t1", "action.result", {"callId": "c2", "toolName": "Read", "isError": True, "output": "gone"}),
    ("t1", "action.result", {"callId": "c1", "toolName": "Find", "isError": False, "output": _FOUND}),
    ("t1", "action.result", {"callId": "c3", "toolName": "Pay", "isError": False, "stubbed": True}),
    ("t1", "action.result", {"callId": "c9", "toolName": "Pay", "isError": False}),
    ("t1", "input.requested", {"requests": [_ASKED]}),
    ("t1", "input.resolved", {"resolutions": [_ANSWER]}),
    ("t1", "step.completed", {"stepIndex": 0, "finishReason": "stop", "usage": _USAGE}),
    ("t1", "acme.refund", {"cents": 500}),
    ("t1", "message.appended", {"delta": "It is "}),
    ("t1", "message.completed", {"text": "It is paid."}),
    (
        "t1",
        "turn.completed",
        {"result": "It is paid.", "usage": _USAGE, "cost": {"totalUsd": 0.0077, "model": "haiku"}},
    ),
    ("t2", "turn.started", {}),
    ("t2", "message.appended", {"delta": "Let me "}),
    ("t2", "message.appended", {"delta": "see"}),
    ("t2", "turn.failed", {"message": "turn interrupted"}),
]
"""One turn with everything in it, and one that is broken off."""


async def conversation(log: EventLog) -> None:
    """Session s1 with that conversation: 20 events."""
    session = await log.start_session("s1", agent="helper", title="Refund", channel="http", project="shop")
    for turn_id, kind, data in CONVERSATION:
        await session.append(kind, data, turn_id=turn_id)
