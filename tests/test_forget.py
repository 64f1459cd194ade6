"""Erasure: what was said in a session is nowhere on the disk, and that it was there can still be read."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from eventlog import upkeep
from eventlog.encoding import TOMBSTONE
from eventlog.errors import ErasureIncomplete, InvalidEvent, KeyConflict, ReadOnlyLog, SessionNotFound
from eventlog.events import Event, Forgotten, NewEvent, parse_envelope
from eventlog.folding import FoldLimits, SessionFold
from eventlog.host.files import SessionFiles
from eventlog.host.kv import Kv
from eventlog.log import EventLog
from eventlog.observe.memory import memory_hook
from eventlog.projections import Projection, Projector, rebuild
from eventlog.runtime import Runtime
from eventlog.store import anew, erasure
from eventlog.store.cursors import Cursors, Thrown
from eventlog.store.database import READER_PRAGMAS, Database
from eventlog.store.extensions import Extensions
from eventlog.store.keep import place_of_channel
from eventlog.store.projections import Passed, note
from tests.extension_kit import installation
from tests.log_kit import all_of, everything_in, files_end_at, fill, indexes, whole
from tests.observing import NOTE, NOTED, hook_of

SECRET = "hunter2-" + "zw1tscher" * 3
"""Planted wherever a session leaves something; what has it in it is found in raw bytes."""


async def secretive(log: EventLog, id: str, secret: str = SECRET) -> None:
    """A session that leaves its secret in every place where one can be left."""
    await Extensions(log.store).install(installation("acme"), ["default"])
    session = await log.start_session(
        id, auth={"token": secret}, title=f"about {secret}", abs={"of": secret}, continuation_token=secret
    )
    await session.append("session.updated", {"sdkAgentId": secret})
    await session.append("message.received", {"text": f"my password is {secret}"}, turn_id="t", key=f"key {secret}")
    await session.append("own.type", {"long": secret * 3_000})
    await session.append("job.queued", {"jobId": "j", "name": f"job {secret}"})
    await session.append("turn.completed", {"result": secret}, turn_id="t")
    await session.append("job.completed", {"jobId": "j", "status": "succeeded", "result": secret})
    await session.append(
        "reminder.created", {"reminderId": "r", "at": "2999-01-01T00:00:00Z", "text": f"tell {secret}"}
    )
    for agent in ("main", "extension:test.acme"):
        kv = Kv(log.store, agent)
        await kv.put(id, secret)
        await kv.put(f"{id}/notes", {"said": secret})
    await Kv(log.store, place_of_channel("api", id)).put("draft", secret)
    await SessionFiles(log.store, "main", id).write("a.txt", secret)
    await log.store.write(_fail_a_delivery, secret)
    thrown = [Thrown("h", event.position, f"it threw {secret}", 0) async for event in session.read()]
    await Cursors(log.store, "main").advance([], [], thrown)


def _fail_a_delivery(connection: Any, secret: str) -> None:
    connection.execute("UPDATE delivery SET attempts = 1, last_error = ?", (secret,))
    connection.execute(
        "INSERT OR IGNORE INTO attempt SELECT extension, position, 1, 'r', 0, 'failed', ?, ? FROM delivery",
        (f"error {secret}", f"traceback {secret}"),
    )
    connection.execute("UPDATE delivery SET state = 'dead', died_at = 0, reason = 'x' WHERE type = 11")


async def fold_everything(log: EventLog, session_id: str) -> None:
    """Keep what is in a session's events in a snapshot, a state and the rows of usage."""
    nothing: list[str] = []
    await (await log.session(session_id)).fold(gather, nothing)
    projector = Projector(log, [Projection(name="gathered", events=["*"], fold=gather, initial=[])])
    await projector.start()
    await projector.catch_up()
    await projector.stop()
    assert SECRET in str((await log.projection("gathered")).state)


def gather(state: list[str], event: Event[Any]) -> list[str]:
    return [*state, event.raw.decode()]


def places_of(folder: Path, secret: str = SECRET) -> list[str]:
    """The files of a folder that have it in them."""
    return [name for name, content in everything_in(folder).items() if secret.encode() in content]


# ---------------------------------------------------------------------------------------------------- on the disk


async def test_a_forgotten_secret_is_nowhere_in_the_bytes_of_the_file_nor_in_a_later_backup(tmp_path: Path) -> None:
    """It was in events, a key, kv, a file, a title, auth, a job, a reminder, an error, an attempt, a state."""
    limits = FoldLimits(snapshot_every_events=1)
    async with (
        EventLog(tmp_path / "agent.db", fold_limits=limits) as log,
        EventLog(log.path, read_only=True) as other,
    ):
        await log.start_session("before")
        await secretive(log, "s1")
        await fold_everything(log, "s1")
        await fill(await log.start_session("after"), 10)
        assert places_of(tmp_path) == ["agent.db-wal"]
        await log.store.with_writer(lambda connection, _: connection.execute("PRAGMA wal_checkpoint").fetchall())
        assert places_of(tmp_path) == ["agent.db", "agent.db-wal"]
        done = await log.forget("s1")
        assert (done.sessions, done.events) == (1, 8)
        assert done.more == {
            "deliveries": 2,
            "hookErrors": 8,
            "reminders": 1,
            "jobNames": 1,
            "openTurns": 0,
            "openInputs": 0,
            "files": 1,
            "kvKeys": 5,
            "usage": 1,
            "snapshots": 1,
            "projectionStates": 1,
        }
        assert places_of(tmp_path) == []
        await log.backup(tmp_path / "backup.db")
        assert places_of(tmp_path) == []
        assert len(await all_of((await other.session("after")).read())) == 11
        await whole(log)
        again = await log.forget("s1")
        assert (again.events, set(again.more.values())) == (0, {0})
    assert places_of(tmp_path) == []
    async with EventLog(tmp_path / "agent.db") as log:
        await whole(log)


async def test_what_sqlite_left_behind_when_it_moved_rows_goes_too(tmp_path: Path) -> None:
    """Copies of rows stay in unused parts of pages, whatever `secure_delete` says."""
    random, ids = Random(1), [f"s{n:04}" for n in range(400)]

    def keep(connection: sqlite3.Connection) -> None:
        for number in range(4):
            random.shuffle(ids)
            for id in ids:
                value = json.dumps(f"SECRET-{id}-" + "x" * random.randrange(20, 300))
                connection.execute("INSERT INTO kv VALUES ('main', ?, ?)", (f"{id}/{number}", value))

    async with EventLog(tmp_path / "agent.db") as log:
        await asyncio.gather(*[log.start_session(id) for id in ids])
        await log.store.write(keep)
        await log.forget(*ids[:200])
        content = b"".join(everything_in(tmp_path).values())
        assert [f"SECRET-{id}-".encode() in content for id in ids] == [False] * 200 + [True] * 200
        await whole(log)


async def test_what_a_rebuild_that_was_killed_has_left_goes_too(tmp_path: Path) -> None:
    """Titles, tokens and names of jobs stand in rows that nobody reads, until the next rebuild."""
    async with EventLog(tmp_path / "agent.db") as log:
        await secretive(log, "s1")
        for name in anew.BUILT_IN:
            head = await log.store.write(anew.begin, name)
            await log.store.write(anew.fold, name, 0, head, 0)
        await log.forget("s1")
        assert places_of(tmp_path) == []
        assert sum(each.different for each in await rebuild(log)) == 0
        assert places_of(tmp_path) == []


async def test_what_was_thrown_at_events_that_were_pruned_goes_too(tmp_path: Path) -> None:
    """The events were there to say whose errors these are; an error of another session's event stays."""
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        event = await session.append("own.type", {"x": SECRET})
        other = await (await log.start_session("s2")).append("own.type", {})
        thrown = [Thrown("h", event.position, SECRET, 0), Thrown("h", other.position, "another's", 0)]
        await Cursors(log.store, "main").advance([], [], thrown)
        await log.store.write(note, "own", 1, [Passed(event.position, SECRET)], 0)
        await session.append("session.completed", {})
        assert (await log.prune(older_than_s=0.0)).sessions == 1
        assert places_of(tmp_path) != [], "the errors stay with the log, as long as nobody is to be forgotten"
        await log.forget("s1")
        assert places_of(tmp_path) == []
        left = await log.store.read(lambda c: c.execute("SELECT message FROM hook_error").fetchall())
        assert left == [("another's",)]


async def test_readers_that_hold_the_wal_are_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is forgotten all the same, and doing it again takes it off the disk."""
    monkeypatch.setattr(upkeep, "READERS_LIMIT_S", 0.1)
    async with EventLog(tmp_path / "agent.db") as log:
        await secretive(log, "s1")
        reader = await Database(log.path, read_only=True, pragmas=READER_PRAGMAS).open()
        await reader.unit(lambda connection: connection.execute("BEGIN").fetchall())
        await reader.unit(lambda connection: connection.execute("SELECT count(*) FROM log").fetchall())
        with pytest.raises(ErasureIncomplete, match="forget again"):
            await log.forget("s1")
        assert all(event.is_forgotten for event in await all_of((await log.session("s1")).read()))
        assert places_of(tmp_path) != []
        await reader.close()
        await log.forget("s1")
        assert places_of(tmp_path) == []


async def test_a_file_that_cannot_be_written_anew_says_that_the_secret_is_still_in_it(tmp_path: Path) -> None:
    """Not that nothing was stored: the session is forgotten, and doing it again takes it off the disk."""
    random = Random(1)
    async with EventLog(tmp_path / "agent.db") as log:
        await secretive(log, "s1")
        other = await log.start_session("s2")
        await other.append_many([NewEvent("own.type", {"x": random.randbytes(200_000).hex()}) for _ in range(10)])
        await log.store.cut_wal()
        with files_end_at(1_000_000), pytest.raises(ErasureIncomplete, match=r"as much room again.*forget again"):
            await log.forget("s1")
        assert all(event.is_forgotten for event in await all_of((await log.session("s1")).read()))
        await log.forget("s1")
        assert places_of(tmp_path) == []
        await whole(log)


# ---------------------------------------------------------------------------------------------------- how it is read


async def test_a_forgotten_event_keeps_its_place_and_says_nothing(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, EventLog(log.path, read_only=True, verify_reads=True) as other:
        session = await log.start_session("s1", title="T", auth={"u": 1})
        await fill(await log.start_session("s10"), 2)
        await session.append("message.received", {"text": "x"}, turn_id="t1", key="k")
        await session.append("own.type", {"n": 1})
        before = await all_of(log.read())
        await log.forget("s1")
        for reader in (log, other):
            after = await all_of(reader.read())
            places = [(event.position, event.session_id, event.index, event.type, event.turn_id) for event in after]
            assert places == [(e.position, e.session_id, e.index, e.type, e.turn_id) for e in before]
            assert [event.is_forgotten for event in after] == [e.session_id == "s1" for e in before]
            for event in after:
                if event.is_forgotten:
                    assert event.data == Forgotten()
                    assert event.to_dict()["data"] == {"forgotten": True}
                    assert (event.at, event.key) == (before[event.position - 1].at, None)
                else:
                    assert event == before[event.position - 1]
            info = (await reader.session("s1")).info
            assert (info.title, info.auth, info.status, info.next_index) == (None, None, "active", 3)
        assert session.info.title is None
        assert (await session.append("message.received", {"text": "y"}, turn_id="t1", key="k")).index == 3
        with pytest.raises(KeyConflict):
            await session.append("message.received", {"text": "z"}, turn_id="t1", key="k")
        await whole(log)


async def test_an_own_event_that_looks_like_a_tombstone_is_none(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s")
        event = await session.append("own.type", {"forgotten": True})
        (stored,) = await all_of(session.read(after=0))
        assert (event.is_forgotten, stored.is_forgotten, stored.data) == (False, False, {"forgotten": True})


async def test_only_what_is_the_sessions_goes(tmp_path: Path) -> None:
    """`s10/x` begins with `s1`, and is the other session's."""
    async with EventLog(tmp_path / "agent.db") as log:
        for id in ("s1", "s10"):
            await log.start_session(id)
        kv, files = Kv(log.store, "main"), SessionFiles(log.store, "main", "s10")
        for key in ("s1", "s1/x", "s1:y", "s1-z", "s1z", "s10", "s10/x", "s2", "all/s1"):
            await kv.put(key, 1)
        channels = {id: Kv(log.store, place_of_channel("api", id)) for id in ("s1", "s10")}
        for channel in channels.values():
            await channel.put("x", 1)
        await files.write("a", "x")
        await files.write("a", "x", scope="deployment")
        assert (await log.forget("s1")).more["kvKeys"] == 7
        assert await kv.list() == ["s10", "s10/x", "s2"]
        assert [await channel.list() for channel in channels.values()] == [[], ["x"]]
        assert await files.list() == ["a"]
        assert await files.list(scope="deployment") == ["a"]


async def test_the_lines_of_the_memory_hook_go(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("memory", memory_hook())
        for id in ("s1", "s10"):
            session = await log.start_session(id)
            await session.append("message.received", {"text": SECRET if id == "s1" else "x"}, turn_id="t")
            await session.append("turn.completed", {"result": "y"}, turn_id="t")
        await runtime.settled(timeout_s=10)
        keys = await runtime.host_for("s1").kv.list()
        assert len(keys) == 4
        await log.forget("s1")
        left = await runtime.host_for("s10").kv.list()
        assert [key for key in left if key.startswith("memory/")] == [key for key in left if key.endswith("/s10")]
        assert len(left) == 2
        assert places_of(tmp_path) == []


async def test_a_forgotten_session_goes_out_and_comes_in_as_what_it_is(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, EventLog(tmp_path / "second.db") as second:
        await secretive(log, "s1")
        old = [line async for line in log.export()]
        await log.forget("s1")
        lines = [line async for line in log.export()]
        assert (await second.import_events(lines)).added == 8
        assert [line async for line in second.export()] == lines
        assert (await log.import_events(lines)).known == 8
        assert all(event.is_forgotten for event in await all_of(second.read()))
        await whole(second)
        again = await log.import_events(old)
        assert (again.added, again.known, again.bad_count) == (0, 0, 8), "an old export does not bring it back"
        live = await second.import_events([lines[0].replace(b"s1", b"s2")], live=True)
        assert (live.added, live.bad_count) == (0, 1)
        assert "forgotten" in live.bad[0].why
    spaced = json.dumps({**json.loads(lines[0]), "data": {"forgotten": True, "more": 1}}).encode()
    with pytest.raises(InvalidEvent):
        parse_envelope(spaced)


async def test_redacting_leaves_tombstones_alone(tmp_path: Path) -> None:
    def redact(event: NewEvent) -> NewEvent:
        data = {**msgspec.to_builtins(event.data), "redacted": True}
        return NewEvent(event.type, data, event.turn_id, event.key)

    line = b'{"type":"own.type","index":0,"sessionId":"s","at":"2026-01-01T00:00:00Z","data":%s}' % TOMBSTONE
    async with EventLog(tmp_path / "agent.db", redact=redact) as log:
        assert (await log.import_events([line])).added == 1
        assert (await anext(log.read())).is_forgotten


# ----------------------------------------------------------------------------------------------- hooks and extensions


async def test_a_forgotten_event_is_shown_to_no_hook_and_is_a_gap_of_those_that_had_not_seen_it(
    tmp_path: Path,
) -> None:
    shown: list[Event[Any]] = []

    async def note(event: Event[Any], _context: Any) -> None:
        shown.append(event)

    hook = hook_of({NOTE: note}, "resume")
    async with EventLog(tmp_path / "agent.db") as log:
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook)
        for id in ("s1", "s2"):
            session = await log.start_session(id)
            await session.append(NOTE, NOTED)
        await log.forget("s1")
        await log.forget("s1")
        async with Runtime(log) as runtime:
            runtime.add_hook("h", hook)
            await runtime.settled(timeout_s=10)
        assert [event.session_id for event in shown] == ["s2"]
        gaps = await log.store.read(lambda c: c.execute("SELECT first, last, at_most FROM hook_gap").fetchall())
        assert gaps == [(2, 2, 1)]


async def test_an_error_that_is_written_late_does_not_bring_back_what_it_quotes(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        event = await session.append("own.type", {"x": SECRET})
        await log.forget("s1")
        await Cursors(log.store, "main").advance([], [], [Thrown("h", event.position, SECRET, 0)])
        assert places_of(tmp_path) == []


@pytest.mark.parametrize("error", ["it quotes {}", None], ids=["stuck", "in the making"])
async def test_what_a_projection_was_stuck_at_goes_and_what_is_in_the_making_too(
    tmp_path: Path, error: str | None
) -> None:
    """Its cursor may be at 0, and its error, or the next version of it, has what was in the session."""

    def stuck_at_once(state: list[str], event: Event[Any]) -> list[str]:
        raise ValueError("" if error is None else error.format(event.data.text))

    def until_the_end(state: list[str], event: Event[Any]) -> list[str]:
        if event.data.text == "end":
            raise ValueError
        return [*state, event.data.text]

    versions: list[Any] = [stuck_at_once] if error is not None else [stuck_at_once, until_the_end]
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        await session.append("message.received", {"text": SECRET}, turn_id="t")
        await log.append((await log.start_session("s2")).id, "message.received", {"text": "end"}, turn_id="t")
        projectors = [
            Projector(
                log, [Projection(name="own", events=["message.received"], fold=fold, initial=[], version=version)]
            )
            for version, fold in enumerate(versions, 1)
        ]
        for projector in projectors:
            await projector.start()
            await projector.catch_up()
            await projector.stop()
        assert (await log.projection("own")).stuck is not None
        done = await log.forget("s1")
        assert done.more["projectionStates"] == len(versions)
        assert places_of(tmp_path) == []
        await projectors[-1].catch_up()
        rows = await log.store.read(lambda c: c.execute("SELECT version, stuck FROM projection").fetchall())
        assert rows[-1] == (len(versions), f"ValueError: {'' if error is None else error.format('end')}")
        assert places_of(tmp_path) == []


@pytest.mark.parametrize("how", ["forget", "prune"])
async def test_a_fold_that_began_before_keeps_no_snapshot_of_what_is_gone(tmp_path: Path, how: str) -> None:
    async with EventLog(tmp_path / "agent.db", fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        session = await log.start_session("s1")
        await session.append("own.type", {"x": SECRET})
        await session.append("session.completed", {})
        read, gone = asyncio.Event(), asyncio.Event()

        async def read_then_wait(after: int | None) -> AsyncIterator[Event[Any]]:
            async for event in session.read(after):
                yield event
            read.set()
            await gone.wait()

        fold = SessionFold(log.store, log.fold_limits, "s1", session._key)
        nothing: list[str] = []
        folding = asyncio.ensure_future(fold.run(read_then_wait, gather, nothing, 1, "gather"))
        await read.wait()
        await (log.forget("s1") if how == "forget" else log.prune(older_than_s=0.0))
        gone.set()
        assert SECRET in str(await folding), "it was read before"
        assert await log.store.read(lambda c: c.execute("SELECT * FROM snapshot").fetchall()) == []
        await session.append("own.type", {"x": 1})
        again = await session.fold(gather, nothing, name="gather")
        assert len(again) == 1
        assert len(await log.store.read(lambda c: c.execute("SELECT * FROM snapshot").fetchall())) == 1


async def test_what_extensions_were_owed_of_a_forgotten_session_is_a_gap_of_theirs(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await secretive(log, "s1")
        await log.forget("s1")

        def look(connection: Any) -> list[Any]:
            return [
                connection.execute("SELECT reason, first, last, count FROM delivery_gap").fetchall(),
                connection.execute("SELECT count(state) FROM delivery").fetchone()[0],
                connection.execute("SELECT count(*) FROM attempt").fetchone()[0],
            ]

        assert await log.store.read(look) == [[("forgotten", 6, 6, 1)], 0, 0]


# ------------------------------------------------------------------------------------------------------- its limits


async def test_forgetting_what_is_not_there_or_not_ours_is_refused(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, EventLog(log.path, read_only=True) as other:
        session = await log.start_session("s1", title="T")
        with pytest.raises(SessionNotFound):
            await log.forget("s1", "none")
        assert session.info.title == "T", "all or none"
        with pytest.raises(ReadOnlyLog):
            await other.forget("s1")
        assert (await log.forget()).sessions == 0


async def test_a_session_is_forgotten_in_bounded_transactions_beside_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "CHUNK_EVENTS", 10)
    async with EventLog(tmp_path / "agent.db") as log:
        session, other = await log.start_session("s1"), await log.start_session("s2")
        await fill(session, 95)
        forgetting = asyncio.ensure_future(log.forget("s1"))
        for _ in range(50):
            await other.append("own.type", {})
        assert (await forgetting).events == 96
        assert indexes([event for event in await all_of(session.read()) if event.is_forgotten]) == list(range(96))
        await whole(log)


# ------------------------------------------------------------------------------------------------------- redaction


async def test_a_secret_that_is_redacted_never_reaches_the_disk_nor_a_subscriber(tmp_path: Path) -> None:
    """By append, by batch, by the start of a session and by both kinds of import; told to hooks and tails."""

    def redact(event: NewEvent) -> NewEvent:
        text = json.dumps(msgspec.to_builtins(event.data))
        key = None if event.key is None else event.key.replace(SECRET, "***")
        return NewEvent(event.type, json.loads(text.replace(SECRET, "***")), event.turn_id, key)

    told: list[Event[Any]] = []
    line = json.dumps(
        {"type": "own.type", "index": 0, "sessionId": "h", "at": "2026-01-01T00:00:00Z", "data": {"x": SECRET}}
    ).encode()
    async with EventLog(tmp_path / "agent.db", redact=redact) as log:
        log.on_recorded(told.extend)
        session = await log.start_session("s", title=SECRET, auth={"t": SECRET}, continuation_token=SECRET)
        await session.append("own.type", {"x": SECRET}, key=f"k {SECRET}")
        await session.append_many([NewEvent("own.type", {"x": SECRET})])
        await log.import_events([line])
        await log.import_events([line.replace(b'"h"', b'"s"').replace(b'"index": 0', b'"index": 3')], live=True)
        assert session.info.title == "***"
        stored = await all_of(log.read())
        assert len(stored) == 5
        assert len(told) == 4
        assert [SECRET in repr(event.to_dict()) for event in (*stored, *told)] == [False] * 9
        assert places_of(tmp_path) == []
    assert places_of(tmp_path) == []
