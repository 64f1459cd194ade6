"""The guide to embedding is done as it is written: its server is run, and its commands print what it shows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eventlog import EventLog
from tests.log_kit import CHECKOUT, all_of, indexes, whole
from tests.test_docs import blocks

pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")
pytest.importorskip("uvicorn", reason="runs the server of the guide: pip install uvicorn")

GUIDE = "docs/embedding.md"
TIME = re.compile(r'"at":"[^"]*"')


@contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server of the guide, as it says to start it; on a port that is free."""
    (command,) = [line for block in blocks(GUIDE, "sh") for line in block.splitlines() if "uvicorn server:app" in line]
    assignment, _, words = command.partition(" ")
    name, _, value = assignment.partition("=")
    module, *arguments = words.replace("--port 8000", "--port 0").split()
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}{os.pathsep}{folder}", name: value},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            told = ""
            while not (address := re.search(r"running on http://127\.0\.0\.1:(\d+)", told)):
                line = server.stderr.readline()
                assert line, told
                told += line
            yield server, address[1]
        finally:
            server.kill()


async def test_the_server_of_the_guide_does_what_the_guide_shows(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the guide uses curl")
    (tmp_path / "server.py").write_text("\n\n".join(blocks(GUIDE, "python")))
    with running(tmp_path) as (server, port):
        (console,) = blocks(GUIDE, "console")
        for part in console.split("$ ")[1:]:
            line, _, expected = part.partition("\n")
            printed = curl(line, port)
            assert TIME.sub('"at":"..."', printed).strip() == expected.strip()
        assert curl("curl -s -o /dev/null -w '%{http_code}' localhost:8000/sessions/s1/events", port) == "401"
        server.send_signal(signal.SIGKILL)
        server.wait()
    async with EventLog(tmp_path / "agent.db") as log:
        await whole(log)
        assert indexes(await all_of((await log.session("s1")).read())) == list(range(12))


async def test_the_server_of_the_guide_is_killed_in_a_turn_and_says_so_when_it_starts_again(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the guide uses curl")
    (tmp_path / "server.py").write_text("\n\n".join(blocks(GUIDE, "python")))
    post = "curl -s -H 'authorization: Bearer secret' localhost:8000/sessions/s1/messages -d '{\"text\": \"?\"}'"
    with running(tmp_path) as (server, port):
        _ = curl(post, port)
        first_piece = "curl -sN -b token=secret localhost:8000/sessions/s1/events | grep -m 1 -o message.appended"
        assert curl(first_piece, port) == "message.appended\n"
        server.send_signal(signal.SIGKILL)
        server.wait()
    with running(tmp_path):
        pass
    async with EventLog(tmp_path / "agent.db") as log:
        last = [event async for event in log.read(types=["turn.failed"])]
        assert [event.data.message for event in last] == ["turn interrupted"]


async def test_the_server_of_the_guide_answers_what_is_wrong_with_a_request(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the guide uses curl")
    (tmp_path / "server.py").write_text("\n\n".join(blocks(GUIDE, "python")))
    status = "curl -s -o /dev/null -w '%{http_code}' -b token=secret localhost:8000/sessions"
    with running(tmp_path) as (_, port):
        assert curl(f"{status}/none/events", port) == "404"
        assert [curl(f"{status}/s1/messages -d '{body}'", port) for body in ("", "{", "[]", '{"text": 1}')] == [
            "400"
        ] * 4
        assert curl(f'{status}/{"x" * 300}/messages -d \'{{"text": "?"}}\'', port) == "400"
        assert curl(status.replace("secret", "wrong") + "/s1/events", port) == "401"


def curl(line: str, port: str) -> str:
    """What a command of the guide prints."""
    done = subprocess.run(
        ["/bin/sh", "-c", line.replace(":8000", f":{port}")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    return done.stdout
