"""What the owner of a log answers on its control socket, and how it is served there.

The socket belongs to the log and not to a runtime: a log that is only appended to has an owner too, which an operator
wants to ask. So the server stands in this layer, knows nothing of what lies above, and answers what it finds in a
registry, `EventLog.commands`: the log puts its own commands in, a runtime adds those of its extensions and takes them
back when it stops, and a command that nobody has put in is not served. A command is a coroutine function; the types in
its signature are what is accepted of its arguments.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import msgspec

from eventlog.errors import (
    EventLogError,
    InvalidName,
    InvalidRequest,
    LogClosed,
    NotServed,
    OutcomeUnknown,
    SessionExists,
    SessionNotFound,
)
from eventlog.events import parse_data, parse_envelope
from eventlog.history import play
from eventlog.messages import decode_as, decode_request, encode_done, encode_error, framed, receive, send
from eventlog.store.cursors import unload
from eventlog.store.endpoint import listen, peer_may_ask
from eventlog.store.history import Taken
from eventlog.store.owner import Lock

if TYPE_CHECKING:  # the log has the commands and the server; they only need the name of its type
    from eventlog.log import EventLog

Command = Callable[..., Awaitable[Any]]

logger = logging.getLogger("eventlog.control")


# --------------------------------------------------------------------------------------------------------- the registry


class _Bound:
    """A command, and the struct of its arguments."""

    def __init__(self, function: Command) -> None:
        self._function = function

    @cached_property  # most logs are opened and never asked
    def _arguments(self) -> type[msgspec.Struct]:
        hints = get_type_hints(self._function)
        fields = [
            (each.name, hints[each.name]) if each.default is each.empty else (each.name, hints[each.name], each.default)
            for each in signature(self._function).parameters.values()
        ]
        return msgspec.defstruct("Arguments", fields, rename="camel", forbid_unknown_fields=True, kw_only=True)

    async def __call__(self, raw: msgspec.Raw) -> Any:
        arguments = decode_as(self._arguments, raw)
        return await self._function(**msgspec.structs.asdict(arguments))


class _Served:
    """Commands that were added together, and how many of them run."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.commands = {name: _Bound(function) for name, function in commands.items()}
        self.running: set[asyncio.Future[Any]] = set()

    async def run(self, command: _Bound, arguments: msgspec.Raw) -> Any:
        """Run one of them to its end, whether or not somebody still waits for it."""
        running = asyncio.ensure_future(command(arguments))
        self.running.add(running)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self.running.discard(running)
        if not running.cancelled():
            running.exception()  # marks it as seen: nobody may wait for it any more


class Commands:
    """What can be asked of the owner of a log, by name."""

    def __init__(self) -> None:
        self._served: list[_Served] = []

    def add(self, commands: Mapping[str, Command]) -> Callable[[], Awaitable[None]]:
        """Answer these too; of two with one name the later one. Returns what takes them back when none of them runs."""
        served = _Served(commands)
        self._served.append(served)

        async def remove() -> None:
            if served in self._served:
                self._served.remove(served)
            if served.running:
                await asyncio.wait(served.running)

        return remove

    @property
    def names(self) -> list[str]:
        """What is answered now."""
        return sorted({name for served in self._served for name in served.commands})

    async def answer(self, request: bytes) -> bytes:
        """The answer to a request, which may be the error that it met."""
        try:
            return encode_done(await self._do(request))
        except (EventLogError, OSError) as error:
            return encode_error(error)
        except Exception as error:
            logger.exception("a command raised what nobody expected")
            return encode_error(OutcomeUnknown(f"an unexpected {type(error).__name__} was met, and logged there"))

    async def _do(self, request: bytes) -> Any:
        asked = decode_request(request)
        for served in reversed(self._served):
            if asked.command in served.commands:
                return await served.run(served.commands[asked.command], asked.arguments)
        raise NotServed(asked.command, os.getpid())


# -------------------------------------------------------------------------------------------- what a log does by itself


class Appended(msgspec.Struct, frozen=True):
    """An event that was appended: its envelope, and its place in the log."""

    event: msgspec.Raw
    position: int


class LogCommands:
    """What the owner of a log answers whether or not it serves an agent."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def all(self) -> dict[str, Command]:
        """The commands by name."""
        return {
            "ping": self.ping,
            "stats": self.stats,
            "append": self.append,
            "import": self.take_lines,
            "hooks.unload": self.unload_hooks,
        }

    async def ping(self) -> dict[str, Any]:
        """Who this is, how far the log is, what can be asked, and which agents are served."""
        log = self._log
        agents = sorted(log.agents_served)
        return {"pid": os.getpid(), "head": log.head, "commands": log.commands.names, "agents": agents}

    async def stats(self) -> dict[str, Any]:
        """The statistics of the log, with what only its owner knows."""
        return await self._log.stats()

    async def append(
        self,
        session_id: str,
        type: str,
        data: msgspec.Raw,
        turn_id: str | None = None,
        key: str | None = None,
        expected_index: int | None = None,
        start_in: str | None = None,
    ) -> Appended:
        """Append one event; `start_in` is the channel in which a session is started that is not there."""
        log = self._log
        content = parse_data(bytes(data))
        if start_in is not None:
            await self._start(session_id, start_in)
        event = await log.append(session_id, type, content, turn_id=turn_id, key=key, expected_index=expected_index)
        return Appended(msgspec.Raw(event.to_json()), event.position)

    async def _start(self, session_id: str, channel: str) -> None:
        try:
            await self._log.session(session_id)
        except SessionNotFound:
            with suppress(SessionExists):  # somebody else started it meanwhile
                await self._log.start_session(session_id, channel=channel)

    async def take_lines(self, lines: list[tuple[int, msgspec.Raw]], first_new: int) -> Taken:
        """Append numbered envelopes as new events, as a live import does."""
        return await play(self._log, first_new, [(number, parse_envelope(bytes(line))) for number, line in lines])

    async def unload_hooks(self, agent: str) -> int:
        """Count the hooks of an agent that is not served here as not loaded any more, until a runtime loads them."""
        if agent in self._log.agents_served:
            raise InvalidName("agent", agent, "is served by this process; only hooks that nothing mounts are unloaded")
        return await self._log.store.write(unload, agent)


# ----------------------------------------------------------------------------------------------------------- the server


class Limits(NamedTuple):
    """What keeps one client from hindering others; in real time, since another process is waited for."""

    connections: int = 32
    """At once; the others wait in the kernel."""
    transfer_s: float = 10.0
    """For all of a request to arrive, and for its answer to be taken."""
    close_s: float = 10.0
    """For commands that run when the log is closed."""
    pause_s: float = 1.0
    """Until connections are taken again, when no more files can be opened."""


class Server:
    """Answers one request on each connection, from processes of our user and of root.

    Whatever a connection brings (noise, half a message, nothing) ends that connection alone. Nothing here keeps a log
    from being opened: one whose socket cannot be made is not served, and says so.
    """

    def __init__(self, commands: Commands, database: Path, lock: Lock, limits: Limits | None = None) -> None:
        self._commands = commands
        self._limits = limits or Limits()
        self._database = database
        self._lock = lock
        self._listener: socket.socket | None = None
        self._place = Path()
        self._is_closing = False
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen, and name the place in the lock file."""
        try:
            self._listener, self._place = listen(self._database)
        except OSError as error:
            logger.warning("%s cannot be steered by other processes while it is open: %s", self._database, error)
            return
        self._lock.on_fork(self._close_sockets)
        self._lock.name_socket(self._place)
        self._watch()

    async def close(self) -> None:
        """Take no more requests, refuse those that were not read yet, and end when the others are answered.

        Every connection that was made before gets an answer, so that who asked knows whether it was done.
        """
        listener = self._listener
        if listener is None or self._lock.forked:
            return
        self._is_closing = True
        asyncio.get_running_loop().remove_reader(listener)
        self._place.unlink(missing_ok=True)
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()  # it waited to be taken
                _refuse(connection)
                connection.close()
        listener.close()
        for task in tuple(self._reading):
            _refuse(self._connections[task])
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._limits.close_s)
        for task in tuple(self._connections):
            task.cancel()

    def _close_sockets(self) -> None:
        """Runs in a forked child: a client of a dead owner must not wait for what the child holds open."""
        for held in (self._listener, *self._connections.values()):
            if held is not None:
                held.close()

    # -- connections --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._listener is not None and not self._is_closing:
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    def _take(self, listener: socket.socket) -> None:
        """Take connections, as far as there is room; the others wait in the kernel."""
        loop = asyncio.get_running_loop()
        try:
            while len(self._connections) < self._limits.connections:
                self._begin(listener.accept()[0])
            loop.remove_reader(listener)
        except BlockingIOError:
            return
        except OSError as error:
            logger.warning("a connection to the control socket could not be taken: %s", error)
            loop.remove_reader(listener)
            loop.call_later(self._limits.pause_s, self._watch)

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = asyncio.create_task(self._converse(connection), name="eventlog-control")
        self._connections[task] = connection
        self._reading.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task).close()
        self._watch()

    async def _converse(self, connection: socket.socket) -> None:
        answer = await self._answer(connection)
        if answer is not None:
            with suppress(OSError, TimeoutError):  # whoever asked has gone
                async with asyncio.timeout(self._limits.transfer_s):
                    await send(connection, answer)

    async def _answer(self, connection: socket.socket) -> bytes | None:
        """The answer to what a connection brings; None when nobody waits for one."""
        task = asyncio.current_task()
        assert task is not None
        try:
            request = await _request(connection, self._limits.transfer_s)
        except (InvalidRequest, PermissionError) as error:
            return encode_error(error)
        except (EOFError, OSError):
            return None
        finally:
            self._reading.discard(task)
        return await self._commands.answer(request)


async def _request(connection: socket.socket, limit_s: float) -> bytes:
    if not peer_may_ask(connection):
        raise PermissionError(errno.EPERM, "the log belongs to another user")
    try:
        async with asyncio.timeout(limit_s):
            return await receive(connection)
    except TimeoutError:
        raise InvalidRequest(f"it did not arrive within {limit_s:g} s") from None


def _refuse(connection: socket.socket) -> None:
    """Say that nothing was done; there is room for so little in any socket."""
    with suppress(OSError):
        connection.send(framed(encode_error(LogClosed("the log is being closed"))))
