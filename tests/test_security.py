"""What comes from outside stays data: no name is a path, no filter a statement, no line a bomb, no file a program."""

from __future__ import annotations

import ast
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from eventlog.errors import InvalidEvent, InvalidName, LimitExceeded
from eventlog.events import NewEvent
from eventlog.host.files import FileMissing, SessionFiles
from eventlog.host.kv import Kv
from eventlog.log import EventLog
from tests.log_kit import CHECKOUT, all_of, whole

REFUSALS = (InvalidName, InvalidEvent, LimitExceeded)
HOSTILE = [
    "../x", "a/../../x", "/etc/x", "C:\\x", "..\\x", "", ".", "..", "a\0b", "a\nb", "x" * 300, "~/.ssh/id", "%2e%2e/x",
    "file:///etc/passwd", "\u202egnp.exe", "\x1b]0;owned\x07", "A", "a", "\u00e9", "e\u0301", "' OR 1=1 --", "x\ud800",
    "$.a", "*", "%", "_", "con", "nul.txt", "a" * 256, "-rf", "${HOME}", "{0.__class__}",
]  # fmt: skip


def everything_around(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_i1_no_name_from_outside_leaves_the_store(tmp_path: Path) -> None:
    """I1: as a session's id, key, project, kv key and file: refused with a typed error, or an entry of its own."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    async with EventLog(tmp_path / "inside" / "agent.db") as log:
        session = await log.start_session("s1")
        before = everything_around(tmp_path)
        started: list[str] = []
        for number, name in enumerate(HOSTILE):
            with suppress(*REFUSALS):
                started.append((await log.start_session(name, project="p")).id)
            for work in (
                lambda name=name: session.append("own.type", {"n": name}, key=name or "empty"),
                lambda name=name: log.append("s1", "own.type", {}, turn_id=name),
                lambda name=name: Kv(log.store, "agent").put(name, number),  # noqa: B023
                lambda name=name: SessionFiles(log.store, "agent", "s1").write(name, "text"),
            ):
                with suppress(*REFUSALS):
                    await work()
        assert len(set(started)) == len(started) == len([info async for info in log.sessions(project="p")])
        kept = await Kv(log.store, "agent").list()
        assert len(kept) == len(set(kept))
        files = SessionFiles(log.store, "agent", "s1")
        for name in await files.list():
            assert await files.read(name) == "text"
        with pytest.raises(FileMissing):
            await files.read("agent.db")
        await whole(log)
        assert everything_around(tmp_path) == before


async def test_no_filter_is_part_of_a_statement(tmp_path: Path) -> None:
    """Prefixes, projects and types that would be SQL, patterns or JSON paths find what is called so, and nothing."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1", project="p")
        await session.append_many([NewEvent("own.type", {"n": n}) for n in range(5)])
        for text in ("' OR 1=1 --", "%", "_", "s_", "*", "s1' UNION SELECT 1 --", "$.a", '"', "p' OR 'a'='a"):
            assert [info async for info in log.sessions(prefix=text)] == []
            assert [info async for info in log.sessions(project=text)] == []
            assert await all_of(log.read(project=text)) == []
            assert await all_of(log.read(types=[text])) == []
            assert await Kv(log.store, "agent").list(text) == []
        assert [info.id async for info in log.sessions(prefix="s")] == ["s1"]
        await whole(log)


async def test_a_line_that_is_a_bomb_is_named_and_the_others_are_stored(tmp_path: Path) -> None:
    """Depth without end, keys and numbers without end: each costs its own line."""
    envelope = b'{"type":"own.type","index":%d,"sessionId":"s","at":"2026-01-01T00:00:00Z","data":%b}'
    bombs = [
        b"[" * 200_000,
        envelope % (0, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        envelope % (0, b'{"n":' + b"9" * 100_000 + b"}"),
        envelope % (0, b'{"v":"' + b"x" * 2_000_000 + b'"}'),
        b'{"' + b"k" * 3_000_000,
        b"\xff\xfe\x00",
        b'"' + b"\\u0000" * 1_000 + b'"',
    ]
    async with EventLog(tmp_path / "agent.db") as log:
        report = await log.import_events([*bombs, envelope % (0, b"{}")])
        assert (report.added, report.bad_count) == (1, len(bombs))
        await whole(log)


async def test_what_redact_takes_away_is_in_no_file(tmp_path: Path) -> None:
    """Not in the database, its WAL, or anything beside them; not when the append is refused either."""
    secret = "sk-8c1e2f7d"

    def without(event: NewEvent) -> NewEvent:
        return NewEvent(event.type, {"text": "(redacted)"}, event.turn_id, event.key)

    async with EventLog(tmp_path / "agent.db", redact=without) as log:
        session = await log.session(await _plain_start(log))
        await session.append("own.type", {"text": secret}, key="k")
        with pytest.raises(InvalidEvent):
            await session.append("own.type", {"text": secret}, turn_id="\0")
        assert secret.encode() not in b"".join(_bytes_of(tmp_path))
    assert secret.encode() not in b"".join(_bytes_of(tmp_path))


async def _plain_start(log: EventLog) -> str:
    line = b'{"type":"own.type","index":0,"sessionId":"s","at":"2026-01-01T00:00:00Z","data":{"text":"sk-8c1e2f7d"}}'
    assert (await log.import_events([line])).added == 1
    return "s"


def _bytes_of(folder: Path) -> list[bytes]:
    """By another process: closing an open database as a plain file would drop the locks on it."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        with os.fdopen(write, "wb") as out:
            for path in folder.rglob("*"):
                if path.is_file():
                    out.write(path.read_bytes())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as content:
        found = content.read()
    os.waitpid(pid, 0)
    return [found]


async def test_an_open_log_cannot_be_pickled(tmp_path: Path) -> None:
    """What would arrive in the other process has neither the lock nor the threads."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        for thing in (log, session):
            with pytest.raises(TypeError, match="open it there"):
                pickle.dumps(thing)


FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}


@pytest.mark.parametrize("path", sorted((CHECKOUT / "eventlog").rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_unpickled_or_evaluated_and_no_shell_is_started(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            assert name not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno} calls {name}"
            assert not any(word.arg == "shell" for word in node.keywords), f"{path.name}:{node.lineno} starts a shell"
