"""An agent server: post a message, watch the turn as server-sent events, and lose nothing when it is killed.

    POST /sessions                       begins a session            -> 201 {"session": id}
    POST /sessions/{session}/messages    {"text": "..."}, a turn     -> 202 {"session": id, "after": index}
    GET  /sessions/{session}/events      the session, then live; resumes behind Last-Event-ID
    GET  /health, /stats                 whether it serves; counts and sizes

Try it: pip install -e '.[sse]' uvicorn; AGENT_TOKEN=secret python -m examples.agent_server --db agent.db --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import compare_digest
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eventlog import EventLog, EventLogError, InvalidEvent, NewEvent, Runtime, Session, SessionInfo, SessionNotFound
from eventlog.agents import Turn, run_turn
from eventlog.host import Host
from eventlog.sse import SEND_TIMEOUT_S, stream

Authorize = Callable[[Request, SessionInfo | None], Awaitable[Any]]
"""Says who sends a request, as JSON, if they may use the session (None: begin one); None refuses them."""

MAX_CONNECTIONS = 1_000
MAX_MESSAGE_BYTES = 65_536
STOP_S = 5

logger = logging.getLogger("agent_server")


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted."""

    text: str


class AgentServer:
    """Serves one log over HTTP. `authorize` decides on every request: there is no default that lets everybody in."""

    def __init__(
        self, db: Path, turn: Turn, *, authorize: Authorize, agent_dir: Path | None, send_timeout_s: float
    ) -> None:
        self._db, self._agent_dir = db, agent_dir
        self._turn, self._send_timeout_s = turn, send_timeout_s
        self._authorize = authorize
        self._turns: dict[str, asyncio.Task[None]] = {}  # those that run, by session
        routes = [
            Route("/sessions", self.begin, methods=["POST"]),
            Route("/sessions/{session}/messages", self.receive, methods=["POST"]),
            Route("/sessions/{session}/events", self.events),
            Route("/health", self.health),
            Route("/stats", self.stats),
        ]
        gone = {ClientDisconnect: lambda _request, _error: Response(status_code=400)}  # before it had said everything
        self.app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=gone)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with (
            EventLog(self._db) as self._log,
            Runtime(self._log, self._agent_dir, interrupt_open_turns=True) as self._runtime,  # those that a kill left
        ):
            yield
            for task in self._turns.values():
                task.cancel()  # which is recorded as an interruption
            await asyncio.gather(*self._turns.values(), return_exceptions=True)

    # -- what clients ask for -------------------------------------------------------------------------------------

    async def begin(self, request: Request) -> Response:
        """Begin a session that belongs to whoever asks for it."""
        session = await self._log.start_session(channel="http", auth=await self._allowed(request, None))
        return JSONResponse({"session": session.id}, 201)

    async def receive(self, request: Request) -> Response:
        """Begin a turn; its events come behind the index `after`. One turn of a session runs at a time."""
        session = await self._session(request)
        text = await _text_of(request)
        if session.id in self._turns:
            raise HTTPException(409, "a turn of this session is running; wait for its turn.completed or turn.failed")
        after = session.next_index - 1
        self._turns[session.id] = asyncio.create_task(self._run(session, text))
        return JSONResponse({"session": session.id, "after": after}, 202)

    async def events(self, request: Request) -> Response:
        """The session's events, for as long as the client listens."""
        return stream(request, await self._session(request), send_timeout_s=self._send_timeout_s)

    async def health(self, _request: Request) -> Response:
        """Whether the log is there to be written."""
        return JSONResponse({"open": self._log.is_open, "position": self._log.head})

    async def stats(self, request: Request) -> Response:
        """Counts and sizes of the log, and what is going on."""
        await self._allowed(request, None)
        now = {"turnsRunning": len(self._turns), "tailsWaiting": self._log.tails_waiting()}
        return JSONResponse({**await self._log.stats(), **now})

    # -- what they need -------------------------------------------------------------------------------------------

    async def _session(self, request: Request) -> Session:
        """The session of the path; whoever may not use it is told what they are told of one that is not there."""
        try:
            session = await self._log.session(request.path_params["session"])
        except (SessionNotFound, InvalidEvent) as error:  # or no id at all
            raise HTTPException(404, "no such session") from error
        await self._allowed(request, session.info)
        return session

    async def _allowed(self, request: Request, session: SessionInfo | None) -> Any:
        if (who := await self._authorize(request, session)) is None:
            raise HTTPException(401, "not allowed") if session is None else HTTPException(404, "no such session")
        return who

    async def _run(self, session: Session, text: str) -> None:
        try:
            await run_turn(self._turn, session, text, self._runtime.host_for(session.id))
        except EventLogError:  # what the agent raises is recorded; this is the log, which could not
            logger.exception("a turn of session %r could not be recorded", session.id)
        finally:
            del self._turns[session.id]


async def _text_of(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_MESSAGE_BYTES:
            raise HTTPException(413, f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=Message).text
    except msgspec.DecodeError as error:
        raise HTTPException(400, f'send {{"text": "..."}}: {error}') from error


# ---------------------------------------------------------------------------------------- who may come, and who answers


def bearer(token: str, user: str) -> Authorize:
    """Whoever sends the token is the user, and may use the sessions that this user began."""

    async def authorize(request: Request, session: SessionInfo | None) -> Any:
        sent = request.headers.get("authorization", "").encode()
        if not compare_digest(sent, f"Bearer {token}".encode()):
            return None
        who = {"user": user}
        return who if session is None or session.auth == who else None

    return authorize


async def assistant(_session: Session, message: str, _host: Host) -> AsyncIterator[str | NewEvent]:
    """Stands for a model with a tool: counts the words of a message, and says it word by word."""
    call = {"callId": "c1", "toolName": "count_words"}
    yield NewEvent("actions.requested", {"calls": [{**call, "args": {"text": message}}]})
    count = len(message.split())
    yield NewEvent("action.result", {**call, "output": count, "isError": False})
    for word in f"You said {message!r}, which has {count} words.".split(" "):
        yield f"{word} "


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve on this machine until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m examples.agent_server")
    parser.add_argument("--db", type=Path, required=True, help="the log")
    parser.add_argument("--agent-dir", type=Path, help="the folder that holds agent/, with hooks and extensions")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes one that is free (default)")
    parser.add_argument("--send-timeout-s", type=float, default=SEND_TIMEOUT_S, help="of clients that take nothing")
    chosen = parser.parse_args(arguments)
    if not (token := os.environ.get("AGENT_TOKEN")):
        parser.error("set AGENT_TOKEN: whoever knows it may use the server")
    options = {"agent_dir": chosen.agent_dir, "send_timeout_s": chosen.send_timeout_s}
    server = AgentServer(chosen.db, assistant, authorize=bearer(token, "owner"), **options)
    listening = socket.create_server(("127.0.0.1", chosen.port))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        server.app, limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=STOP_S, log_level="warning"
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
