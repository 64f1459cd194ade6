"""The control socket: where it is, what it answers, and what no client and no death of an owner can do to it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog.control import ask, import_live, steer
from eventlog.durable.dead_letters import DeadLetters
from eventlog.durable.operators import OperatorCommands
from eventlog.encoding import MAX_EVENT_BYTES
from eventlog.errors import (
    EventLogError,
    IndexConflict,
    InvalidEvent,
    InvalidName,
    InvalidRequest,
    KeyConflict,
    LimitExceeded,
    LogClosed,
    NotServed,
    OutcomeUnknown,
    OwnerUnreachable,
    SessionNotFound,
)
from eventlog.log import EventLog
from eventlog.messages import MAX_MESSAGE_BYTES, decode_answer, encode_error, encode_request, framed
from eventlog.serving import Commands, Limits, Server
from eventlog.store.endpoint import MAX_PATH_BYTES, connect, listen
from eventlog.store.owner import Lock, holder_of
from tests.cli_kit import environment
from tests.test_errors import EXAMPLES

PATIENCE_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def place_of(database: Path) -> Path:
    """Where the lock file says that the owner can be asked."""
    _, place = holder_of(database)
    assert place is not None
    return place


# ------------------------------------------------------------------------------------------------------ where it is


async def test_the_socket_is_beside_the_file_and_ours_alone_and_the_lock_file_names_it(path: Path) -> None:
    before = os.umask(0)
    try:
        async with EventLog(path):
            place = path.with_name("agent.db.sock")
            assert stat.S_ISSOCK(place.stat().st_mode)
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
            told = json.loads(path.with_name("agent.db.lock").read_text())
            assert (told["pid"], told["socket"]) == (os.getpid(), "agent.db.sock")
    finally:
        os.umask(before)
    assert not place.exists()


@pytest.mark.parametrize("runtime_folder", ["given", "open to others", "not there", "not given"])
async def test_a_long_path_has_its_socket_in_a_folder_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_folder: str
) -> None:
    with tempfile.TemporaryDirectory() as short:
        given = Path(short) / "run"
        given.mkdir(mode=0o700)
        if runtime_folder == "open to others":
            given.chmod(0o755)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(given if runtime_folder != "not there" else given / "absent"))
        if runtime_folder == "not given":
            monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr(tempfile, "tempdir", short)
        first, second = (tmp_path / name / ("x" * MAX_PATH_BYTES) for name in ("one", "two"))
        async with EventLog(first), EventLog(second):
            places = {place_of(first), place_of(second)}
            assert len(places) == 2
            own = Path(short) / f"eventlog-{os.geteuid()}"
            assert {place.parent for place in places} == {given if runtime_folder == "given" else own}
            assert {stat.S_IMODE(place.parent.stat().st_mode) for place in places} == {0o700}
            for place in places:
                assert len(os.fsencode(place)) <= MAX_PATH_BYTES
                assert stat.S_IMODE(place.stat().st_mode) == 0o600
            assert (await ask(first, "ping"))["pid"] == os.getpid()
            assert first.parent.name not in str(places)
        assert not any(place.exists() for place in places)


def test_the_longest_path_beside_the_file_and_one_past_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        room = MAX_PATH_BYTES - len(os.fsencode(Path(short) / "x.sock")) + 1
        for length, beside in ((room, True), (room + 1, False)):
            database = Path(short) / ("x" * length)
            database.touch()
            listener, place = listen(database)
            listener.close()
            assert (place == database.with_name(f"{database.name}.sock")) == beside


async def test_what_is_no_socket_is_left_alone_and_the_log_is_served_elsewhere(path: Path) -> None:
    taken = path.with_name("agent.db.sock")
    taken.write_text("mine")
    async with EventLog(path):
        assert place_of(path).parent != path.parent
        assert (await ask(path, "ping"))["pid"] == os.getpid()
    assert taken.read_text() == "mine"


async def test_a_log_that_has_no_place_for_a_socket_is_opened_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path.with_name("agent.db.sock").mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent / ("x" * MAX_PATH_BYTES)))
    (path.parent / ("x" * MAX_PATH_BYTES)).mkdir()
    async with EventLog(path) as log:
        await log.start_session("s1")
        assert "cannot be steered by other processes" in caplog.text
        with pytest.raises(OwnerUnreachable, match="it has none, or is just opening the log") as unreachable:
            await ask(path, "ping")
        assert unreachable.value.pid == os.getpid()


async def test_a_reader_has_no_socket(path: Path) -> None:
    async with EventLog(path):
        pass
    async with EventLog(path, read_only=True):
        assert not path.with_name("agent.db.sock").exists()


# --------------------------------------------------------------------------------------------------- what it answers


async def test_an_owner_says_who_it_is_and_what_it_answers(path: Path) -> None:
    async with EventLog(path) as log:
        await log.start_session("s1")
        assert await ask(path, "ping") == {
            "pid": os.getpid(),
            "head": 1,
            "commands": [
                "append",
                "backup",
                "errand",
                "errand.cancel",
                "forget",
                "hooks.unload",
                "import",
                "ping",
                "prune",
                "prune.preview",
                "stats",
            ],
            "agents": [],
        }
        assert await ask(str(path), "stats") == await log.stats()
        link = path.with_name("link.db")
        link.symlink_to(path)
        assert (await ask(link, "ping"))["head"] == 1


DATA = {"number": 10**30, "float": 0.1, "text": "né\u2028 \x00", "list": [None, True, {"a": {}}]}


async def test_an_event_is_appended_as_it_is(path: Path) -> None:
    async with EventLog(path) as log:
        session = await log.start_session("s1")
        answer = await ask(path, "append", session_id="s1", type="acme.note", data=DATA, turn_id="t1", key="k")
        again = await ask(path, "append", session_id="s1", type="acme.note", data=DATA, turn_id="t1", key="k")
        (event,) = [event async for event in session.read(after=0)]
        assert answer == again == {"event": event.to_dict(), "position": 2}
        assert (event.data, event.turn_id, event.key) == (DATA, "t1", "k")


async def test_the_largest_event_passes_and_one_byte_more_is_refused_as_it_is_at_rest(path: Path) -> None:
    """An event of 1 MiB, and what stands around it."""
    most = "x" * (MAX_EVENT_BYTES - len('{"a":""}'))
    async with EventLog(path) as log:
        await log.start_session("s1")
        for data, fits in (({"a": most}, True), ({"a": most + "x"}, False)):
            if fits:
                answer = await ask(path, "append", session_id="s1", type="acme.note", data=data)
                assert answer["event"]["data"] == data
                continue
            with pytest.raises(InvalidEvent, match="the limit is 1048576"):
                await ask(path, "append", session_id="s1", type="acme.note", data=data)
        with pytest.raises(LimitExceeded, match="bytes of a message"):
            await ask(path, "append", session_id="s1", type="acme.note", data={"a": "x" * MAX_MESSAGE_BYTES})


async def test_what_json_would_change_is_refused_before_it_is_sent(path: Path) -> None:
    async with EventLog(path) as log:
        await log.start_session("s1")
        with pytest.raises(InvalidEvent, match=r"^data.a: nan is not a JSON number"):
            await ask(path, "append", session_id="s1", type="acme.note", data={"a": float("nan")})
        with pytest.raises(InvalidEvent, match=r"^sessionId: has a lone surrogate"):
            await ask(path, "append", session_id="\udcff", type="acme.note", data={})
        assert log.head == 1


async def test_errors_are_met_as_if_it_were_done_here(path: Path) -> None:
    async with EventLog(path) as log:
        await log.start_session("s1")
        await log.append("s1", "acme.note", {}, key="k")
        refused: list[tuple[type[EventLogError], dict[str, Any], dict[str, Any]]] = [
            (SessionNotFound, {"session_id": "s2"}, {"session_id": "s2"}),
            (IndexConflict, {"expected_index": 7}, {"session_id": "s1", "expected": 7, "actual": 2}),
            (InvalidEvent, {"type": "message.received"}, {"path": "turnId"}),
            (KeyConflict, {"data": {"a": 1}, "key": "k"}, {"session_id": "s1", "key": "k"}),
        ]
        for kind, changes, attributes in refused:
            arguments: dict[str, Any] = {"session_id": "s1", "type": "acme.note", "data": {}, **changes}
            with pytest.raises(kind) as met:
                await ask(path, "append", **arguments)
            assert attributes.items() <= vars(met.value).items()
        assert log.head == 2


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_every_error_of_ours_keeps_its_class_its_message_and_its_attributes(error: EventLogError) -> None:
    with pytest.raises(EventLogError) as met:
        decode_answer(encode_error(error))
    assert type(met.value) is type(error)
    assert (str(met.value), vars(met.value)) == (str(error), vars(error))


def test_an_error_of_the_system_keeps_its_class_and_one_of_a_newer_version_is_still_ours() -> None:
    with pytest.raises(FileNotFoundError) as missing:
        decode_answer(encode_error(FileNotFoundError(2, "No such file or directory", "/x/\udcff")))
    assert missing.value.filename == "/x/\\udcff"
    newer = json.dumps({"error": {"kind": "NotKnownYet", "message": "do that", "attributes": {"why": "so"}}})
    with pytest.raises(EventLogError, match=r"^do that$") as unknown:
        decode_answer(newer.encode())
    assert type(unknown.value) is EventLogError


@pytest.mark.parametrize(
    ("command", "arguments", "kind", "why"),
    [
        ("extensions.disable", {"name": "acme"}, NotServed, "does not serve 'extensions.disable'"),
        ("", {}, NotServed, "does not serve ''"),
        ("append", {"session_id": "s1"}, InvalidRequest, "missing required field `type`"),
        ("append", {"session_id": 1, "type": "a", "data": {}}, InvalidRequest, "Expected `str`, got `int`"),
        ("ping", {"more": 1}, InvalidRequest, "unknown field `more`"),
        ("import", {"lines": [["1", {}]], "first_new": 1}, InvalidRequest, "Expected `int`, got `str`"),
        ("import", {"lines": [[1, {}]], "first_new": 1}, InvalidEvent, "is required"),
    ],
)
async def test_what_is_not_served_or_not_asked_rightly_is_refused(
    path: Path, command: str, arguments: dict[str, Any], kind: type[EventLogError], why: str
) -> None:
    async with EventLog(path) as log:
        with pytest.raises(kind, match=why):
            await ask(path, command, **arguments)
        assert log.head == 0


async def ask_to_the_end(path: Path, command: str, arguments: dict[str, Any]) -> None:
    """Also of what is an errand."""
    errand = await ask(path, command, **arguments)
    await ask(path, "errand", errand=errand)


@pytest.mark.parametrize(
    ("command", "arguments", "kind"),
    [
        *(
            ("append", {"sessionId": "s1", "type": "acme.note", "data": data}, InvalidEvent)
            for data in (b"1e999", b'{"n": 1e999}', b"[1]", b"7", b'"text"')
        ),
        *(
            ("append", {"sessionId": "s1", "type": "acme.note", "data": data}, InvalidRequest)
            for data in (b'{"a":1,"a":1}', b'{"a": 1e5, "b": [{"c": 1, "c": 2}]}')
        ),
        ("append", {"sessionId": "s1", "type": "acme.note", "data": b"{}", "expectedIndex": 10**30}, IndexConflict),
        ("append", {"sessionId": "s1", "type": "acme.note", "data": b"{}", "expectedIndex": -1}, IndexConflict),
        ("append", {"sessionId": "s1", "type": "acme.note", "data": b"{}", "key": "\0"}, InvalidEvent),
        ("import", {"lines": [[10**30, {}]], "firstNew": 1}, InvalidEvent),
        *(("prune.preview", {"olderThanS": age}, InvalidName) for age in (1e308, -1, 10**30)),
        *(("prune", {"olderThanS": age}, InvalidName) for age in (1e308, -1, -1e308, 10**30)),
        *(("prune", {name: n}, InvalidName) for name in ("keepEvents", "keepBytes") for n in (-1, 2**63, 10**30)),
        *(("backup", {"path": path}, InvalidName) for path in ("/", "a\0b")),
        *(("backup", {"path": path}, OSError) for path in ("", ".", "..", "x" * 300)),
        *(("forget", {"sessionIds": [name]}, EventLogError) for name in ("", "\0", "\u202e", "x" * 300)),
        *((command, {"errand": n}, InvalidRequest) for command in ("errand", "errand.cancel") for n in (-1, 10**30)),
        *(("extensions.install", {"path": path}, EventLogError) for path in ("", "\0", "/")),
        ("extensions.install", {"path": "x" * 300}, OSError),
        *(("extensions.grant", {"name": n, "project": n}, EventLogError) for n in ("", "\0", "/")),
        *(("dead.retry", {"eventId": id}, InvalidName) for id in ("", "\0", "x:-1", f"x:{10**30}")),
        ("dead.discard", {"eventId": "x:1", "extension": "\0", "reason": "r"}, InvalidName),
    ],
)
async def test_what_no_command_can_do_is_a_refusal_and_never_an_open_outcome(
    path: Path, command: str, arguments: dict[str, Any], kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    named = {
        name: msgspec.Raw(
            value if isinstance(value, bytes) else json.dumps(value).encode()
        )  # not checked before it is sent
        for name, value in arguments.items()
    }
    async with EventLog(path) as log:
        _ = log.commands.add(OperatorCommands(log, None, DeadLetters(log)).all())
        await log.start_session("s1")
        head = log.head
        with pytest.raises(kind) as refused:
            await ask_to_the_end(path, command, named)
        assert not isinstance(refused.value, OutcomeUnknown)
        assert caplog.text == ""
        assert log.head == head


async def test_an_unexpected_error_is_logged_by_the_owner_and_the_next_one_is_served(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("by zero")

    async with EventLog(path) as log:
        _ = log.commands.add({"fail": fail})
        with pytest.raises(OutcomeUnknown, match="an unexpected ZeroDivisionError"):
            await ask(path, "fail")
        assert "ZeroDivisionError: by zero" in caplog.text
        assert (await ask(path, "ping"))["head"] == 0


async def test_of_two_commands_with_one_name_the_later_one_answers_until_it_is_taken_back(path: Path) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def one() -> int:
        return 1

    async def two() -> int:
        started.set()
        await release.wait()
        return 2

    async with EventLog(path) as log:
        first, second = log.commands.add({"which": one}), log.commands.add({"which": two})
        asked = asyncio.create_task(ask(path, "which"))
        await started.wait()
        taken_back = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        assert await ask(path, "which") == 1
        assert not taken_back.done()  # it waits for the command that runs
        release.set()
        await taken_back
        assert await asked == 2
        await first()
        with pytest.raises(NotServed):
            await ask(path, "which")


# ---------------------------------------------------------------------------------------------- what clients can do


@asynccontextmanager
async def server(folder: Path, commands: Commands | None = None, **limits: Any) -> AsyncIterator[Path]:
    """A server with other limits; the path of its socket."""

    async def ping() -> str:
        return "here"

    if commands is None:
        commands = Commands()
        _ = commands.add({"ping": ping})
    database = folder / "served.db"
    database.touch()
    lock = Lock(database)
    await lock.acquire()
    served = Server(commands, database, lock, Limits(**limits))
    served.start()
    try:
        yield database
    finally:
        await served.close()
        lock.release()


def connection_to(database: Path) -> socket.socket:
    """A connection that does not block."""
    connection = connect(place_of(database))
    assert connection is not None
    return connection


async def answer_to(database: Path, sent: bytes) -> Any:
    """What is answered to any bytes, to whose end the client comes at once."""
    with closing(connection_to(database)) as connection:
        connection.settimeout(PATIENCE_S)

        def talk() -> bytes:
            received = b""
            with suppress(OSError):  # it has heard enough
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # it had not heard all
                while chunk := connection.recv(65_536):
                    received += chunk
            return received

        answer = await asyncio.to_thread(talk)
    return decode_answer(answer[4:]) if answer else None


NOISE = [
    b"",
    b"\x00",
    b"\x00\x00\x00",
    b"\x00\x00\x00\x05ping",
    framed(b"")[:4],
    (10_000_000).to_bytes(4, "big"),
    (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big") + bytes(MAX_MESSAGE_BYTES + 1),
    b"\xff" * 100_000,
    framed(b"\xff\xfe{}"),
    framed(b"[" * 1_000_000),
    framed(b'{"do": "ping", "with": ' + b'{"a":' * 200_000),
    framed(b'{"do": "ping", "with": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001),
    framed(b'{"do": 1}'),
    framed(b'{"do": "ping", "else": 1}'),
    framed(b'{"do": "ping", "with": []}'),
    framed(b"null"),
    b"GET / HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("sent", NOISE, ids=lambda sent: f"{len(sent)} bytes {sent[:30]!r}")
async def test_noise_is_refused_and_the_next_one_is_served(tmp_path: Path, sent: bytes) -> None:
    async with server(tmp_path) as database:
        with suppress(InvalidRequest):
            assert await answer_to(database, sent) is None
        assert await ask(database, "ping") == "here"


async def test_random_bytes_and_halves_of_messages_leave_the_server_serving(path: Path) -> None:
    chance = random.Random(20_261_130)
    whole = framed(encode_request("append", {"session_id": "s1", "type": "acme.note", "data": DATA}))
    async with EventLog(path) as log:
        await log.start_session("s1")
        asked = 0
        for _ in range(300):
            kind, sent = chance.randrange(3), bytearray(whole)
            if kind == 0:
                sent = bytearray(chance.randbytes(chance.randrange(200)))
            elif kind == 1:
                del sent[chance.randrange(len(sent)) :]
            else:
                sent[chance.randrange(4, len(sent))] = chance.randrange(256)
            with suppress(EventLogError):
                asked += await answer_to(path, bytes(sent)) is not None
        assert (await ask(path, "ping"))["head"] == log.head == 1 + asked
        assert (await log.check()).ok


async def test_a_message_at_the_limit_is_read_and_one_past_it_is_not(tmp_path: Path) -> None:
    async with server(tmp_path) as database:
        body = encode_request("ping", {})
        assert await answer_to(database, framed(body + b" " * (MAX_MESSAGE_BYTES - len(body)))) == "here"
        with pytest.raises(InvalidRequest, match=f"the limit is {MAX_MESSAGE_BYTES}"):
            await answer_to(database, framed(body + b" " * (MAX_MESSAGE_BYTES + 1 - len(body))))


async def test_clients_that_are_slow_hinder_nobody_while_there_is_room_and_are_dropped_in_time(tmp_path: Path) -> None:
    async with server(tmp_path, connections=3) as database:
        slow = [connection_to(database) for _ in range(2)]
        for connection in slow:
            connection.sendall(b"\x00\x00")
        assert await ask(database, "ping") == "here"
        slow.append(connection_to(database))
        waiting = asyncio.create_task(ask(database, "ping"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        slow.pop().close()
        assert await waiting == "here"
        for connection in slow:
            connection.close()
    async with server(tmp_path, connections=1, transfer_s=0.05) as database:
        with closing(connection_to(database)) as connection:
            received = await asyncio.get_running_loop().sock_recv(connection, 65_536)
        with pytest.raises(InvalidRequest, match=r"it did not arrive within 0.05 s"):
            decode_answer(received[4:])
        assert await ask(database, "ping") == "here"


async def test_many_clients_at_once_are_all_served(tmp_path: Path) -> None:
    async with server(tmp_path, connections=2) as database:
        assert await asyncio.gather(*[ask(database, "ping") for _ in range(400)]) == ["here"] * 400


async def test_a_process_that_has_no_descriptor_left_serves_again_when_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path, pause_s=0.01) as database:
        with closing(connection_to(database)) as connection:
            connection.sendall(framed(encode_request("ping", {})))
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                while "could not be taken" not in caplog.text:
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert decode_answer((await asyncio.get_running_loop().sock_recv(connection, 65_536))[4:]) == "here"


STRANGER = """
import os, socket, sys
os.setgroups([])
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
body = b'{"do": "ping"}'
try:
    connection.sendall(len(body).to_bytes(4, "big") + body)
except OSError:  # it is refused before it is heard
    pass
sys.stdout.buffer.write(connection.recv(65536)[4:])
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="takes root to be somebody else")
async def test_another_user_is_refused_even_where_the_file_lets_him_pass() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "agent.db"
        async with EventLog(database):
            Path(folder).chmod(0o755)
            place_of(database).chmod(0o666)
            words = [sys.executable, "-c", STRANGER, str(place_of(database))]
            asked = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True)
            with pytest.raises(PermissionError, match="belongs to another user"):
                decode_answer(asked.stdout)
            assert (await ask(database, "ping"))["head"] == 0


# ------------------------------------------------------------------------------------------------- when a log closes


async def test_a_command_that_runs_is_answered_before_the_log_closes(path: Path) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    log = await EventLog(path).open()

    async def slow() -> int:
        started.set()
        await release.wait()
        return (await log.start_session("s1")).next_index

    _ = log.commands.add({"slow": slow})
    asked = asyncio.create_task(ask(path, "slow"))
    await started.wait()
    closing_log = asyncio.create_task(log.close())
    while path.with_name("agent.db.sock").exists():
        await asyncio.sleep(0)
    release.set()
    await closing_log
    assert await asked == 1


async def test_whoever_was_not_heard_yet_when_the_log_closes_is_told_that_nothing_was_done(tmp_path: Path) -> None:
    connections: list[socket.socket] = []
    async with server(tmp_path, connections=2) as database:
        place = place_of(database)
        for _ in range(4):
            connections.append(connection_to(database))
            connections[-1].sendall(b"\x00\x00")
            await asyncio.sleep(0)
    assert not place.exists()
    for connection in connections:
        with closing(connection):
            connection.settimeout(PATIENCE_S)
            with pytest.raises(LogClosed, match="the log is being closed"):
                decode_answer(connection.recv(65_536)[4:])


async def test_a_command_that_does_not_end_holds_up_the_close_for_a_limited_time(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    commands = Commands()
    _ = commands.add({"endless": endless})
    async with server(tmp_path, commands, close_s=0.05) as database:
        asked = asyncio.create_task(ask(database, "endless"))
        await started.wait()
    with pytest.raises(OutcomeUnknown, match="ended before it answered"):
        await asked


# ------------------------------------------------------------------------------------------ owners that are not there

OWNER = """
import asyncio, os, signal, sys
from eventlog import EventLog

async def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with EventLog(sys.argv[1]) as log:
        if sys.argv[2:] == ["fork"]:
            ours, theirs = os.pipe()
            if os.fork() == 0:
                os.close(theirs)
                os.read(0, 1)  # lives until the test is over
                os._exit(0)
        log.commands.add({"die": die})
        print("serving", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def owner(path: Path, *words: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that owns the log; it is killed, and its forked child ends, when the test is over."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path), *words],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"serving\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


async def append(path: Path, **more: Any) -> Any:
    """Append an event to a session, which is started if need be, whoever owns the log."""
    return await steer(path, "append", session_id="s1", type="acme.note", data={}, start_in="cli", **more)


async def test_a_killed_owners_socket_is_no_obstacle(path: Path) -> None:
    async with owner(path) as process:
        assert (await append(path))["position"] == 2
        assert (await ask(path, "ping"))["pid"] == process.pid
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait, PATIENCE_S)
        assert place_of(path).exists()
        with pytest.raises(OwnerUnreachable, match="no process owns it") as nobody:
            await ask(path, "ping")
        assert nobody.value.pid is None
        assert (await append(path))["position"] == 3
        assert not place_of(path).exists()
    async with EventLog(path):
        assert (await ask(path, "ping"))["pid"] == os.getpid()


async def test_a_forked_child_does_not_keep_the_socket_of_a_dead_owner_alive(path: Path) -> None:
    async with owner(path, "fork") as process:
        assert (await ask(path, "ping"))["pid"] == process.pid
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait, PATIENCE_S)
        with pytest.raises(OwnerUnreachable, match="no process owns it"):
            await ask(path, "ping")
        async with EventLog(path):
            assert (await ask(path, "ping"))["pid"] == os.getpid()


async def test_an_owner_that_dies_before_it_answers_leaves_the_outcome_open(path: Path) -> None:
    async with owner(path) as process:
        with pytest.raises(OutcomeUnknown, match=f"process {process.pid} ended before it answered"):
            await ask(path, "die")


@pytest.mark.parametrize("how", ["removed", "dead"])
async def test_a_dead_socket_of_a_living_owner_is_told_with_the_owners_pid(path: Path, how: str) -> None:
    async with EventLog(path):
        place = place_of(path)
        place.unlink()
        if how == "dead":
            with closing(socket.socket(socket.AF_UNIX)) as other:
                other.bind(str(place))
        for asking in (ask(path, "ping"), append(path)):
            with pytest.raises(OwnerUnreachable, match="its control socket does not answer") as unreachable:
                await asking
            assert unreachable.value.pid == os.getpid()


async def test_a_log_that_nobody_owns_and_one_that_is_not_there_cannot_be_asked(path: Path) -> None:
    with pytest.raises(OwnerUnreachable, match="no process owns it"):
        await ask(path, "ping")
    assert list(path.parent.iterdir()) == []


async def test_an_owner_that_is_about_to_end_is_followed(path: Path) -> None:
    log = await EventLog(path).open()
    place_of(path).unlink()  # as it is while the file is being closed
    appended = asyncio.create_task(append(path))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not appended.done()
    await log.close()
    assert (await appended)["position"] == 2


async def test_at_rest_a_log_is_owned_for_a_moment_and_errors_are_the_same(path: Path) -> None:
    with pytest.raises(SessionNotFound) as missing:
        await steer(path, "append", session_id="s2", type="acme.note", data={})
    assert missing.value.session_id == "s2"
    assert (await append(path))["event"]["index"] == 1
    with pytest.raises(IndexConflict) as conflict:
        await append(path, expected_index=9)
    assert (conflict.value.expected, conflict.value.actual) == (9, 2)
    assert not path.with_name("agent.db.sock").exists()


# --------------------------------------------------------------------------------------------------------- live import


def envelope(session: str, index: int, **changes: Any) -> bytes:
    fields = {"type": "acme.note", "index": index, "sessionId": session, "at": "2026-01-01T00:00:00Z", **changes}
    return json.dumps({"data": {"n": index}, **fields}).encode()


START = {"channelId": "http", "mode": "chat", "purpose": "live", "projectId": "p"}


@pytest.mark.parametrize("owned", [True, False])
async def test_lines_are_appended_live_whoever_owns_the_log_and_again_add_nothing(path: Path, owned: bool) -> None:
    large = {"text": "x" * (MAX_EVENT_BYTES - 20)}
    lines = [
        envelope("a", 0, type="session.started", data=START),
        *(envelope("a", index, turnId="t1") for index in range(1, 700)),
        envelope("a", 700, data=large),
        b"noise",
        envelope("a", 701, data={"number": 10**30}),
        envelope("nobody", 1),
    ]

    async def twice() -> None:
        report = await import_live(path, lines)
        assert (report.added, report.known, report.sessions, report.bad_count) == (702, 0, 2, 2)
        assert [(bad.number, bad.why[:20]) for bad in sorted(report.bad, key=lambda bad: bad.number)] == [
            (702, "event: is not JSON: "),
            (704, "no session 'nobody';"),
        ]
        report = await import_live(path, lines)
        assert (report.added, report.known, report.bad_count) == (0, 702, 2)
        with pytest.raises(InvalidEvent, match=r"^line 702: "):
            await import_live(path, lines, strict=True)

    if not owned:
        await twice()
    async with EventLog(path) as log:
        shown: list[int] = []
        log.on_recorded(lambda events: shown.extend(event.index for event in events))
        if owned:
            await twice()
            assert shown == list(range(702))
        events = [event async for event in (await log.session("a")).read(after=698)]
        assert [msgspec.json.decode(event.raw) for event in events] == [{"n": 699}, large, {"number": 10**30}]
