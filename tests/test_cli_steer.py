"""Changing a log from the command line: a running server's, one that nobody owns, one whose owner was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli_kit import PATIENCE_S, SAMPLE, Done, command, envelopes, environment, filled, good, run
from tests.extension_kit import complete_turn
from tests.steering_kit import extension

MAIN = """
import asyncio
from pathlib import Path
from eventlog import Reject
from tests.steered_server import say

def activate(context):
    for handler in ("on_turn", "on_job"):
        context.subscriptions.append(context.hooks.register(handler, called))

async def called(event, context):
    what = Path(__file__).with_name("what").read_text()
    say(f"called {event.turn_id}")
    if what == "reject":
        raise Reject("not now")
    if what == "hang":
        try:
            await asyncio.Event().wait()
        finally:
            say(f"aborted {event.turn_id} {context.signal.reason}")
    say(f"returned {event.turn_id}")
"""


class Acme:
    """An extension, and what its handler does: `return`, `reject`, `hang`."""

    def __init__(self, root: Path) -> None:
        self.folder = extension(root)
        (self.folder / "main.py").write_text(MAIN)
        self.does("return")

    def does(self, what: str) -> None:
        """From its next call on."""
        (self.folder / "what").write_text(what)


class Server:
    """A process that owns a log."""

    def __init__(self, path: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.steered_server", str(path), *words],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.hears("serving")

    def told(self, line: str) -> None:
        """Let it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hears(self, *expected: str) -> None:
        """Wait until it has said these lines, in any order, and nothing else."""
        said = [self._line() for _ in expected]
        assert sorted(said) == sorted(expected)

    def turn(self, session_id: str, turn_id: str, *then: str) -> str:
        """Let it record a turn, wait for what its extension says, and return the event's id."""
        self.told(f"turn {session_id} {turn_id}")
        said = [self._line() for _ in range(1 + len(then))]
        (recorded,) = [line for line in said if line.startswith("recorded ")]
        assert sorted(said) == sorted([recorded, *then])
        return recorded.removeprefix("recorded ")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def end(self) -> None:
        """Let it stop in order."""
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", lambda log: log.start_session("s1", project="p"))


@contextmanager
def running(path: Path, *words: str) -> Iterator[Server]:
    """A server, killed if the test did not end it."""
    server = Server(path, *words)
    try:
        yield server
        server.end()
    finally:
        server.process.kill()
        server.process.communicate(timeout=PATIENCE_S)


def steer(path: Path, *words: object) -> Any:
    """The JSON answer of a command that has to be done."""
    return good(*words, "--db", path, "--json").document


def refused(done: Done) -> tuple[int, str]:
    """How a command was refused: its code, and one line."""
    assert done.stdout == ""
    assert done.stderr.startswith("eventlog: ")
    assert done.stderr.count("\n") == 1
    return done.code, done.stderr.removeprefix("eventlog: ").rstrip()


# --------------------------------------------------------------------------------------------- a running server's log


def test_an_extension_is_installed_on_a_running_server_and_then_delivered(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        server.turn("s1", "before")
        installed = steer(path, "extensions", "install", acme.folder, "--grant", "p")
        assert (installed["extension"], installed["state"], installed["inactive"]) == ("acme", "enabled", None)
        server.turn("s1", "after", "called after", "returned after")
        done = good("extensions", "grant", "test.acme", "q", "jobs.read", "--db", path)
        assert done.lines == [
            "acme may read from now on: conversations.turns.read of p, jobs.read of p, jobs.read of q"
        ]
        server.told("settle")
        server.hears("settled")
        assert good("deliveries", "--db", path, "--json").document == []


@pytest.mark.parametrize(
    ("words", "reason", "told"),
    [
        (["disable", "acme"], "disabled", "acme is disabled; cleared 2 deliveries and 1 dead letter"),
        (["uninstall", "acme"], "uninstalled", "acme is uninstalled; cleared 2 deliveries and 1 dead letter"),
        (["revoke", "acme", "p"], "revoked", "acme may still read: nothing; cleared 2 deliveries and 1 dead letter"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else None,
)
def test_r45_r46_r47_a_handler_that_runs_on_the_server_is_aborted_and_what_was_owed_is_cleared(
    path: Path, tmp_path: Path, words: list[str], reason: str, told: str
) -> None:
    """R45, R46, R47: from another process, with an event in flight, and with counts."""
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        acme.does("reject")
        server.turn("s0", "t0", "called t0")
        acme.does("hang")
        server.turn("s1", "t1", "called t1")
        server.turn("s1", "t2")
        assert good("extensions", *words, "--db", path).lines == [told]
        server.hears(f"aborted t1 {reason}")
        for table in ("deliveries", "dead"):
            assert good(table, "--db", path, "--json").document == []
        server.turn("s1", "t3")
        if reason == "disabled":
            acme.does("return")
            line = "acme is enabled, and gets what is recorded from now on"
            assert good("extensions", "enable", "acme", "--db", path).lines == [line]
            server.turn("s1", "t4", "called t4", "returned t4")


def test_pause_and_resume_on_a_running_server(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        done = good("extensions", "pause", "acme", "--db", path)
        assert done.lines == ["acme is paused; it is owed 0 deliveries"]
        server.turn("s1", "t1")
        (delivery,) = good("deliveries", "--db", path, "--json").document
        assert (delivery["state"], delivery["attempts"]) == ("pending", 0)
        assert good("extensions", "resume", "acme", "--db", path).stdout.startswith("acme is called again; ")
        server.hears("called t1", "returned t1")


def test_dead_letters_are_retried_and_discarded_on_a_running_server(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        acme.does("reject")
        ids = [server.turn(f"s{number}", f"t{number}", f"called t{number}") for number in range(4)]
        server.told("settle")
        server.hears("settled")
        assert len(good("dead", "--db", path, "--json").document) == 4
        acme.does("return")
        assert good("dead", "retry", ids[0], "--db", path).lines == ["queued 1 dead letter again"]
        server.hears("called t0", "returned t0")
        position = ids[1].split(":")[1]
        done = good("dead", "discard", position, "--reason", "the customer has left", "--db", path)
        assert done.lines == [f"discarded the dead letter of event {ids[1]} for acme: the customer has left"]
        assert steer(path, "dead", "retry", "--reason", "rejected") == {"retried": 2, "refused": {}, "full": []}
        server.hears("called t2", "returned t2", "called t3", "returned t3")
        server.told("settle")
        server.hears("settled")
        assert good("dead", "--db", path, "--json").document == []
        code, told = refused(run("dead", "retry", ids[0], "--db", path))
        assert (code, told) == (1, f"no dead letter of event {ids[0]!r}; `eventlog dead` lists them")
        code, _ = refused(run("dead", "discard", ids[0], "--reason", "again", "--db", path))
        assert code == 1


def test_an_empty_project_is_not_granted(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    good("extensions", "install", acme.folder, "--db", path)
    for words in (["grant", "acme", ""], ["install", acme.folder, "--grant", ""]):
        code, told = refused(run("extensions", *words, "--db", path))
        assert (code, told) == (2, "project: has 0 characters; 1 to 256 are allowed")


def test_what_does_not_come_to_life_is_told_and_what_is_no_extension_changes_nothing(
    path: Path, tmp_path: Path
) -> None:
    acme = Acme(tmp_path)
    (acme.folder / "main.py").write_text("1 / 0")
    with running(path, "serve"):
        done = run("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        assert (done.code, done.lines[0].partition(" in version")[0]) == (1, "acme is installed")
        assert done.stderr.startswith("eventlog: acme is not active, and its deliveries wait: main.py does not import")
        (row,) = good("extensions", "--db", path, "--json").document
        assert row["failure"] == "main.py does not import: ZeroDivisionError: division by zero"
        assert good("extensions", "--db", path).lines[1].split()[:2] == ["acme", "failed"]
        extension(tmp_path, version="one", publisher="NO")
        code, told = refused(run("extensions", "install", acme.folder, "--db", path))
        assert code == 1
        assert "/publisher" in told
        assert "/version" in told
        (row,) = good("extensions", "--db", path, "--json").document
        assert row["version"] == "1.0.0"


def test_events_are_appended_and_imported_live_by_the_owner_which_need_not_serve_an_agent(
    path: Path, tmp_path: Path
) -> None:
    with running(path):
        done = good("append", "s1", "acme.note", '{"n": 1e3}', "--key", "k", "--db", path)
        assert done.lines == ["acme.note is event 1 of session s1, position 2"]
        assert steer(path, "append", "s1", "acme.note", '{"n": 1000.0}', "--key", "k")["index"] == 1
        code, told = refused(run("append", "s2", "acme.note", "--db", path))
        assert (code, told) == (3, "no session 's2'; `eventlog sessions` lists them")
        assert good("append", "s2", "acme.note", "--start", "--db", path).code == 0
        assert refused(run("append", "s1", "acme.note", '{"n": NaN}', "--db", path))[0] == 2
        first = steer(path, "import", SAMPLE, "--live")
        again = steer(path, "import", SAMPLE, "--live")
        assert (again["added"], again["known"]) == (0, first["added"])
        assert first["added"] == len(SAMPLE.read_bytes().splitlines())
        assert len(envelopes(path)) == first["added"] + 4


def test_what_is_not_served_is_refused_with_the_next_step(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path) as server:
        pid = server.process.pid
        for words in (
            ["extensions", "install", acme.folder],
            ["extensions", "pause", "acme"],
            ["dead", "retry", "--all"],
        ):
            code, told = refused(run(*words, "--db", path))
            assert code == 5
            assert told.startswith(f"process {pid} owns the log and does not serve '")
            assert told.endswith("ask one with a Runtime of this version, or stop it and do this at rest")
        code, told = refused(run("import", SAMPLE, "--db", path))
        assert (code, str(pid) in told) == (5, True)


# -------------------------------------------------------------------------------------------------- nobody owns the log


def test_at_rest_the_same_commands_change_the_file(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    assert good("extensions", "install", acme.folder, "--db", path).lines == [
        "acme is installed in version 1.0.0, and enabled; it may read: nothing"
    ]
    granted = steer(path, "extensions", "grant", "acme", "p")
    assert {grant["project"] for grant in granted["grants"]} == {"p"}
    filled(path, lambda log: complete_turn(log, "s1", "t1"))
    filled(path, lambda log: complete_turn(log, "s2", "t1"))
    assert good("extensions", "pause", "acme", "--db", path).lines == ["acme is paused; it is owed 2 deliveries"]
    assert steer(path, "extensions", "disable", "acme")["cleared"] == {"live": 2, "dead": 0}
    assert good("extensions", "enable", "acme", "--db", path).lines == [
        "acme is enabled, and gets what is recorded from now on; it is paused still, and called when it is resumed"
    ]
    assert steer(path, "extensions", "uninstall", "acme")["grants"] == []
    assert good("append", "s1", "acme.note", "--db", path).code == 0
    assert not path.with_name("agent.db.sock").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["extensions", "enable", "nobody"], 3, "extension 'nobody': is not installed"),
        (["extensions", "grant", "acme", "p", "jobs.write"], 2, "capability 'jobs.write': "),
        (["extensions", "install", "nowhere"], 1, "nowhere"),
        (["dead", "retry"], 2, "name an EVENT, filter with --extension or --reason, or retry --all"),
        (["dead", "retry", "1f0c9a3e:57"], 1, "no dead letter of event '1f0c9a3e:57'"),
        (["dead", "discard", "57"], 2, "missing option '--reason'"),
        (["append", "\udcff", "acme.note"], 2, "sessionId: has a lone surrogate"),
    ],
    ids=lambda value: " ".join(value).encode(errors="replace").decode() if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_told_in_a_line_with_the_next_step(
    path: Path, tmp_path: Path, words: list[str], code: int, told: str
) -> None:
    good("extensions", "install", Acme(tmp_path).folder, "--db", path)
    done = run(*words, "--db", path)
    assert done.code == code
    assert told in refused(done)[1]


def test_letters_that_cannot_be_retried_stay_and_are_counted_by_the_reason(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        acme.does("reject")
        server.turn("s1", "t1", "called t1")
        server.told("settle")
        server.hears("settled")
        server.end()
    drop_grants(path)
    done = run("dead", "retry", "--all", "--db", path)
    told = "eventlog: 1 dead letter cannot be retried now: 1 not granted\n"
    assert done == (5, "queued 0 dead letters again\n", told)


def test_retrying_stops_at_a_full_queue_and_says_so(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    with running(path, "serve") as server:
        good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
        acme.does("reject")
        for number in range(3):
            server.turn(f"s{number}", f"t{number}", f"called t{number}")
        server.told("settle")
        server.hears("settled")
        server.end()
    lower_capacity(path, 2)
    told = "eventlog: stopped at extension 'acme': its queue is full; retry the rest when there is room\n"
    assert run("dead", "retry", "--all", "--db", path) == (1, "queued 2 dead letters again\n", told)
    done = run("dead", "retry", "--all", "--json", "--db", path)
    assert (done.code, done.document) == (5, {"retried": 0, "refused": {}, "full": ["acme"]})
    assert done.stderr == told


def lower_capacity(path: Path, capacity: int) -> None:
    """As a server with another policy does when it starts."""

    async def lower(log: Any) -> None:
        await log.store.write(lambda connection: connection.execute("UPDATE policy SET capacity = ?", (capacity,)))

    filled(path, lower)


def drop_grants(path: Path) -> None:
    """As a revocation would be that clears nothing, which no command does."""

    async def drop(log: Any) -> None:
        await log.store.write(lambda connection: connection.execute("DELETE FROM extension_grant").rowcount)

    filled(path, drop)


@pytest.mark.parametrize(
    "words", [["append", "s1", "acme.note"], ["extensions", "pause", "acme"], ["dead", "retry", "--all"]]
)
def test_a_log_that_is_not_there_is_not_made(tmp_path: Path, words: list[str]) -> None:
    code, told = refused(run(*words, "--db", tmp_path / "agent.db"))
    assert (code, told.startswith("there is no log at ")) == (3, True)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ owners that end


def test_the_socket_of_a_killed_server_is_no_obstacle(path: Path, tmp_path: Path) -> None:
    acme = Acme(tmp_path)
    server = Server(path, "serve")
    good("extensions", "install", acme.folder, "--grant", "p", "--db", path)
    acme.does("hang")
    event_id = server.turn("s1", "t1", "called t1")
    server.process.send_signal(signal.SIGKILL)
    server.process.communicate(timeout=PATIENCE_S)
    assert path.with_name("agent.db.sock").exists()
    assert good("append", "s1", "acme.note", "--db", path).code == 0
    assert steer(path, "extensions", "pause", "acme")["live"] == 1
    with running(path, "serve"):
        assert steer(path, "extensions", "resume", "acme")["live"] == 1
        assert good("deliveries", "--db", path, "--json").document[0]["eventId"] == event_id
        assert steer(path, "extensions", "disable", "acme")["cleared"] == {"live": 1, "dead": 0}


def test_commands_at_the_same_time_are_all_done_and_each_once(path: Path) -> None:
    """They meet each other as owners that are about to end, and as owners that can be asked."""
    words = [command("append", "s1", "acme.note", json.dumps({"n": number}), "--db", path) for number in range(16)]
    children = [
        subprocess.Popen(each, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for each in words
    ]
    ends = [(child.communicate(timeout=PATIENCE_S)[1], child.returncode) for child in children]
    assert ends == [(b"", 0)] * len(words)
    assert sorted(each["data"]["n"] for each in envelopes(path)[1:]) == list(range(16))
