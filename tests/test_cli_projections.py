"""`cursors`, `jobs` and `rebuild`, as people and programs call them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from eventlog import EventLog, Runtime, define_hook
from tests.cli_kit import command, environment, filled, fingerprint, good, run
from tests.folding_kit import COUNTS
from tests.log_kit import damaging


async def serve(log: EventLog) -> None:
    """A log with a hook, a projection and jobs; one event is behind the projection."""

    async def see(event: object, ctx: object) -> None: ...

    async with Runtime(log, projections=[COUNTS]) as runtime:
        runtime.add_hook("see", define_hook(events={"*": see}))
        session = await log.start_session("s", project="p")
        await session.append("job.queued", {"jobId": "j1", "name": "mail"})
        await session.append("job.completed", {"jobId": "j1", "status": "failed", "error": "no\x1b[2J"})
        await session.append("job.started", {"jobId": "j2"})
        await session.append("turn.completed", {"cost": {"totalUsd": 1.0, "model": "m"}}, turn_id="t")
        await runtime.settled()
    await session.append("message.received", {"text": "hi"}, turn_id="t")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return filled(tmp_path / "agent.db", serve)


def test_cursors_lists_each_kind_of_subscriber_with_its_lag(db: Path) -> None:
    before = fingerprint(db)
    rows = good("cursors", "--db", db, "--json").document
    assert [(row["kind"], row["name"], row["cursor"], row["lag"], row["errors"]) for row in rows] == [
        ("hook", "see", 5, 1, 0),
        ("projection", "counts", 5, 1, 0),
        ("projection", "usage", 5, 1, 0),
    ]
    text = good("cursors", "--db", db).stdout
    assert "projection  counts" in text
    assert "BEHIND" in text
    assert fingerprint(db) == before


def test_an_extension_is_as_far_as_the_oldest_delivery_that_it_is_owed(tmp_path: Path) -> None:
    folder = tmp_path / "agent/extensions/points"
    folder.mkdir(parents=True)
    (folder / "extension.json").write_text(
        '{"publisher": "acme", "name": "points", "version": "1.0.0", "engines": {"api": "1"}, "main": "main.py",'
        ' "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],'
        ' "hooks": [{"event": "conversation.turn.completed", "handler": "score"}]}'
    )
    (folder / "main.py").write_text("def activate(context): ...\n")

    async def owe(log: EventLog) -> None:
        session = await log.start_session("s")
        for number in range(3):
            await session.append("turn.completed", {}, turn_id=f"t{number}")

    db = filled(tmp_path / "agent.db", lambda log: log.start_session("first"))
    good("extensions", "install", folder, "--grant", "default", "--db", db)
    filled(db, owe)
    (row,) = [row for row in good("cursors", "--db", db, "--json").document if row["kind"] == "extension"]
    assert (row["name"], row["cursor"], row["lag"]) == ("points", 2, 3)


def test_jobs_are_listed_and_filtered(db: Path) -> None:
    rows = good("jobs", "--db", db, "--json").document
    assert [(row["id"], row["status"], row["name"], row["sessionId"]) for row in rows] == [
        ("j2", "running", None, "s"),
        ("j1", "failed", "mail", "s"),
    ]
    assert [row["id"] for row in good("jobs", "--db", db, "--status", "failed", "--json").document] == ["j1"]
    assert [row["id"] for row in good("jobs", "--db", db, "--limit", "1", "--json").document] == ["j2"]
    assert len(good("jobs", "--db", db, "--session", "s", "--json").document) == 2
    assert "\x1b" not in good("jobs", "--db", db).stdout
    missing = run("jobs", "--db", db, "--session", "x")
    assert (missing.code, missing.stdout) == (3, "")


def test_rebuild_says_what_was_different(db: Path) -> None:
    done = good("rebuild", "--db", db, "--json").document
    assert [(each["name"], each["different"], each["passed"]) for each in done] == [
        *(("sessions", 0, 0), ("turns", 0, 0), ("jobs", 0, 0), ("usage", 0, 0)),
    ]
    with damaging(db) as connection:
        connection.execute("UPDATE job SET status = 'queued'")
        connection.execute("UPDATE log SET data = '{' WHERE position = 2")
    assert run("rebuild", "jobs", "--db", db).stdout == "jobs: 2 rows had been different; 1 event passed\n"
    found = good("cursors", "--db", db, "--errors", "--json").document
    assert [(each["name"], each["position"]) for each in found] == [("jobs", 2)]
    assert good("rebuild", "counts", "--db", db).stdout.startswith("counts: will be folded again by the next server")
    notes = [row["note"] for row in good("cursors", "--db", db, "--json").document if row["name"] == "counts"]
    assert notes == [None, "version 1 is being folded"]


def test_rebuild_of_a_projection_that_is_not_there_names_the_next_step(db: Path) -> None:
    done = run("rebuild", "nothing", "--db", db)
    assert (done.code, done.stdout) == (3, "")
    assert done.stderr == "eventlog: there is no projection 'nothing'; `eventlog cursors` lists them\n"


async def test_rebuild_of_a_log_that_a_server_has_open_is_refused_with_the_next_step(tmp_path: Path) -> None:
    db = tmp_path / "agent.db"
    async with EventLog(db):
        words = command("rebuild", "--db", db)
        done = await asyncio.to_thread(subprocess.run, words, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "")
    assert "in use by process" in done.stderr
    assert "stop it and try again" in done.stderr
