"""Real HTTP to the example server: the process, a client that is cut off, and one that talks."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.log_kit import CHECKOUT

TOKEN = "the test's own"


class ServerProcess:
    """`python -m examples.agent_server`, which can be killed and started again at the same address."""

    def __init__(self, db: Path, *options: str) -> None:
        self.db = db
        self._options = options
        self.url = ""
        self.up = asyncio.Event()
        self.errors = db.with_name("stderr.txt")
        self.process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        """Where it listens, on this machine."""
        return int(self.url.rpartition(":")[2])

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        port = self.url.rpartition(":")[2] or "0"
        words = ("-m", "examples.agent_server", "--db", str(self.db), "--port", port, *self._options)
        environment = {**os.environ, "AGENT_TOKEN": TOKEN, "PYTHONPATH": str(CHECKOUT)}
        with self.errors.open("ab") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *words, cwd=CHECKOUT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=stderr
            )
        assert self.process.stdout is not None
        self.url = (await self.process.stdout.readline()).decode().strip()
        assert self.url, self.errors.read_text()
        self.up.set()

    def peak_bytes(self) -> int:
        """The most memory that it had so far; Linux tells that of a process that runs."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1_024

    async def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.up.clear()
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return await self.process.wait()


@asynccontextmanager
async def serving(db: Path, *options: str) -> AsyncIterator[tuple[ServerProcess, httpx.AsyncClient]]:
    """A running server, and a client that it lets in."""
    server = ServerProcess(db, *options)
    await server.start()
    try:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=20) as client:
            yield server, client
    finally:
        if server.process is not None and server.process.returncode is None:
            await server.kill()


async def begin(client: httpx.AsyncClient) -> str:
    """A new session's id."""
    answer = await client.post("/sessions")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["session"])


class Cuts:
    """Counts the connections that were cut off, of all followers."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        """One more."""
        self.count += 1
        self._changed.set()

    async def reached(self, count: int, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Wait until there were so many; what made one of the tasks fail is raised."""
        while self.count < count:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            waited_for: list[asyncio.Future[Any]] = [changed, *tasks]
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            for task in tasks:
                if task.done():
                    task.result()


@asynccontextmanager
async def underway(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Does all of it beside the block, and ends it with the block."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Follower:
    """Follows a session as a browser does, over connections that are cut off at any byte.

    Asserts of each event, as it comes, that it is the next one.
    """

    def __init__(
        self, server: ServerProcess, client: httpx.AsyncClient, session: str, random: Random, cuts: Cuts
    ) -> None:
        self.session = session
        self.seen: list[dict[str, Any]] = []
        self.lost = 0
        """Connections that broke because the server was killed."""
        self.news = asyncio.Event()
        self._server = server
        self._client = client
        self._random = random
        self._cuts = cuts

    async def follow(self, mean_bytes: int) -> None:
        """Over connections that are cut off after so many bytes, more or less, until it is cancelled."""
        while True:
            await self._connect(round(self._random.expovariate(1 / mean_bytes)))

    async def catch_up(self, index: int) -> None:
        """Until it has seen the event of this index."""
        while len(self.seen) <= index:
            await self._connect(1 << 40, index)

    async def _connect(self, cut_after_bytes: int, index: int | None = None) -> None:
        headers = {"last-event-id": str(len(self.seen) - 1)} if self.seen else {}
        try:
            path = f"/sessions/{self.session}/events"
            async with self._client.stream("GET", path, headers=headers) as answer:
                assert answer.status_code == 200, answer.status_code
                await self._take(answer, cut_after_bytes, index)
        except httpx.TransportError:
            self.lost += 1
            self.news.set()
            await self._server.up.wait()

    async def _take(self, answer: httpx.Response, left_bytes: int, index: int | None) -> None:
        pending = b""
        async for chunk in answer.aiter_raw():
            pending += chunk[:left_bytes]
            left_bytes -= len(chunk)
            *whole, pending = pending.split(b"\n\n")
            for message in whole:
                self._see(message)
            if left_bytes <= 0:
                self._cuts.add()
                return
            if index is not None and len(self.seen) > index:
                return

    def _see(self, message: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in message.split(b"\n"))
        if b"data" not in fields:
            return
        data = json.loads(fields[b"data"])
        assert b"event" not in fields, fields
        assert int(fields[b"id"]) == data["index"] == len(self.seen)
        self.seen.append(data)
        self.news.set()

    async def talk(self) -> None:
        """Post message after message, each when the turn before it is done."""
        number = 0
        while True:
            try:
                path, body = f"/sessions/{self.session}/messages", {"text": f"message {number} {'x' * 200}"}
                answer = await self._client.post(path, json=body)
            except httpx.TransportError:
                await self._server.up.wait()
                continue
            assert answer.status_code in (202, 409), answer.text
            number += answer.status_code == 202
            await self.news.wait()
            self.news.clear()
