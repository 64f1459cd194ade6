"""The example server as a process: who may come, what is answered, and streams that survive cuts and kills."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from eventlog import EventLog
from tests.log_kit import whole

pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")
pytest.importorskip("uvicorn", reason="runs the example server: pip install uvicorn")
pytest.importorskip("httpx", reason="is the client of the example server: pip install httpx")


from tests.http_kit import TOKEN, Cuts, Follower, begin, serving, underway
from tests.torture.counts import Counts

FOLLOWERS = 4
MEAN_BYTES = 2_000  # after which a connection is cut off
SEED = 20_260_131


@pytest.mark.faults
async def test_streams_that_are_cut_and_a_server_that_is_killed_lose_and_repeat_nothing(
    tmp_path: Path, counts: Counts
) -> None:
    path, random, cuts = tmp_path / "agent.db", Random(SEED), Cuts()
    async with serving(path) as (server, client):
        sessions = [await begin(client) for _ in range(FOLLOWERS)]
        followers = [Follower(server, client, session, Random(random.random()), cuts) for session in sessions]
        work = [follower.follow(MEAN_BYTES) for follower in followers] + [follower.talk() for follower in followers]
        async with underway(*work) as tasks:
            for kill in range(counts.server_kills):
                await cuts.reached(counts.cuts * (kill + 1) // (counts.server_kills + 1), tasks)
                await server.kill()
                await server.start()
            await cuts.reached(counts.cuts, tasks)
        await server.stop()
        async with EventLog(path) as log:  # what is there in the end, by the library itself
            await whole(log)
            stored = {name: [each.to_dict() async for each in (await log.session(name)).read()] for name in sessions}
        types = [event["type"] for events in stored.values() for event in events]
        assert types.count("turn.started") == types.count("turn.completed") + types.count("turn.failed")
        await server.start()
        for follower in followers:
            await follower.catch_up(len(stored[follower.session]) - 1)
        for follower in followers:
            assert follower.seen == stored[follower.session]
        lost, events = sum(each.lost for each in followers), sum(map(len, stored.values()))
        print(f"\n{cuts.count} cuts, {counts.server_kills} kills, seed {SEED}")
        print(f"{lost} connections lost by them, {events} events: all seen once")
        assert "Traceback" not in server.errors.read_text()


async def test_a_message_becomes_a_turn_that_is_streamed(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (server, client):
        session = await begin(client)
        answer = await client.post(f"/sessions/{session}/messages", json={"text": "Is it high tide?"})
        assert (answer.status_code, answer.json()) == (202, {"session": session, "after": 0})
        follower = Follower(server, client, session, Random(SEED), Cuts())
        await follower.catch_up(16)
        assert follower.seen[-1]["data"]["result"] == "You said 'Is it high tide?', which has 4 words. "
        types = dict.fromkeys(event["type"] for event in follower.seen)
        assert " ".join(types) == (
            "session.started turn.started message.received actions.requested action.result"
            " message.appended message.completed turn.completed"
        )


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
async def test_clients_that_take_nothing_cost_a_bounded_memory_and_are_let_go(tmp_path: Path) -> None:
    """20 of them, and 20 MB of events for each: 400 MB, if they were kept for them."""
    async with serving(tmp_path / "agent.db", "--send-timeout-s", "0.5") as (server, client):
        session = await begin(client)
        request = f"GET /sessions/{session}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        with ExitStack() as stalled:
            before_bytes = server.peak_bytes()
            for _ in range(20):
                connection = stalled.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                connection.connect(("127.0.0.1", server.port))
                connection.sendall(request.encode())
            follower = Follower(server, client, session, Random(SEED), Cuts())
            for turn in range(60):
                answer = await client.post(f"/sessions/{session}/messages", json={"text": "x" * 60_000})
                assert answer.status_code == 202
                await follower.catch_up(13 * (turn + 1))
            while server.errors.read_text().count("took nothing for 0.5 s and is let go; it can resume") < 20:
                await client.get("/health")
            more_bytes = server.peak_bytes() - before_bytes
            print(f"{more_bytes / 1_000_000:.0f} MB more at most, with 20 stalled clients")
            assert more_bytes < 100_000_000
            while (await client.get("/stats")).json()["tailsWaiting"]:
                pass  # the server is about to hear that the follower has gone


async def test_nobody_comes_in_without_being_let_in(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (_, client):
        session = await begin(client)
        stranger = {"authorization": "Bearer guessed"}
        assert (await client.post("/sessions", headers=stranger)).status_code == 401
        assert (await client.get("/stats", headers=stranger)).status_code == 401
        for path in (f"/sessions/{session}/events", "/sessions/none/events", f"/sessions/{'x' * 300}/events"):
            answer = await client.get(path, headers=stranger)
            assert (answer.status_code, answer.text) == (404, "no such session")
        message = await client.post(f"/sessions/{session}/messages", json={"text": "hi"}, headers=stranger)
        assert message.status_code == 404
        assert (await client.get("/stats")).json()["events"] == 1


async def test_what_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (_, client):
        session = await begin(client)
        path = f"/sessions/{session}/messages"
        assert (await client.post(path, content=b"{")).status_code == 400
        assert (await client.post(path, json={"text": 5})).status_code == 400
        assert (await client.post(path, json={"text": "hi", "more": 1})).status_code == 400
        assert (await client.post(path, json={"text": "x" * 70_000})).status_code == 413
        assert (await client.get(f"/sessions/{session}/events", headers={"last-event-id": "x"})).status_code == 400
        assert (await client.get("/stats")).json()["events"] == 1


async def test_a_client_that_leaves_while_it_speaks_is_no_error(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (server, client):
        session = await begin(client)
        head = f"POST /sessions/{session}/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}expect: 100-continue\r\ncontent-length: 100\r\n\r\n".encode())
        assert b"100 Continue" in await reader.readline()  # so it is being listened to
        writer.write(b'{"text": "half')
        writer.close()
        await writer.wait_closed()
        assert await server.stop() in (0, -15)
        assert server.errors.read_text() == ""
        async with EventLog(server.db) as log:
            assert (await log.session(session)).next_index == 1


async def test_its_health_is_told_to_everybody_and_its_numbers_to_those_who_may(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (server, client):
        session = await begin(client)
        health = await client.get("/health", headers={"authorization": ""})
        assert health.json() == {"open": True, "position": 1}
        async with client.stream("GET", f"/sessions/{session}/events") as answer:
            chunks = answer.aiter_raw()
            while b"session.started" not in await anext(chunks):
                pass
            numbers = (await client.get("/stats")).json()
            assert (numbers["events"], numbers["turnsRunning"]) == (1, 0)
        assert await server.stop() in (0, -15)
        assert server.errors.read_text() == ""


async def test_a_server_that_is_stopped_ends_its_streams(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.db") as (server, client):
        session = await begin(client)
        async with client.stream("GET", f"/sessions/{session}/events") as answer:
            chunks = answer.aiter_raw()
            while b"session.started" not in await anext(chunks):
                pass
            stopping = asyncio.ensure_future(server.stop())
            assert [chunk async for chunk in chunks] == []  # browsers come again
            assert await stopping in (0, -15)
        assert server.errors.read_text() == ""
        async with EventLog(tmp_path / "agent.db") as log:
            await whole(log)
