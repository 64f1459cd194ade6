"""Import and export: what goes in comes out key by key, twice is once, and every line that cannot stand is named."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import InvalidEvent, SessionExists
from eventlog.events import MAX_EVENT_BYTES, Event
from eventlog.history import MAX_LINE_BYTES, MAX_NAMED, ImportReport, lines_of
from eventlog.log import EventLog
from eventlog.store.drafting import MAX_OWN_TYPES
from tests.log_kit import all_of, child, fill, indexes, line_of, whole
from tests.real_data import real_data


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


def line(index: int, session_id: str = "s", /, **changes: Any) -> bytes:
    """One envelope; a change to `...` takes the key away."""
    envelope = {
        "type": "own.type",
        "index": index,
        "sessionId": session_id,
        "at": "2026-01-01T00:00:00.000Z",
        "data": {"n": index},
        **changes,
    }
    return json.dumps({name: value for name, value in envelope.items() if value is not ...}).encode()


def envelopes(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in lines]


def by_session(envelopes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    sessions: dict[str, list[dict[str, Any]]] = {}
    for envelope in envelopes:
        sessions.setdefault(envelope["sessionId"], []).append(envelope)
    return sessions


# ---------------------------------------------------------------------------------------------------- the real file


async def test_the_real_sessions_come_out_as_they_went_in(log: EventLog, tmp_path: Path) -> None:
    """1,576 events of 10 sessions, equal key by key; again adds nothing."""
    path = real_data()
    lines = path.read_bytes().splitlines()
    report = await log.import_events(lines)
    assert (report.added, report.known, report.sessions, report.bad_count) == (1_576, 0, 10, 0)
    exported = [each async for each in log.export()]
    assert envelopes(exported) == envelopes(lines)
    again = await log.import_events(lines)
    assert (again.added, again.known, again.sessions, again.bad_count) == (0, 1_576, 10, 0)
    await whole(log)
    for session_id, expected in by_session(envelopes(lines)).items():
        assert envelopes([each async for each in log.export(session_id)]) == expected
        session = await log.session(session_id)
        assert session.next_index == len(expected)
        assert [event.to_dict() async for event in session.read()] == expected
    async with EventLog(tmp_path / "second.db") as second:
        assert (await second.import_events(exported)).added == 1_576
        assert [each async for each in second.export()] == exported
        await whole(second)
    await log.store.absorb()
    assert (await log.import_events(lines)).known == 1_576


async def test_r92_r93_the_deltas_of_a_real_turn_are_its_completed_texts(log: EventLog) -> None:
    """R92, R93: each delta is an event of its own; put together they are the texts, turn by turn."""
    await log.import_events(real_data().read_bytes().splitlines())
    deltas: dict[tuple[str, str | None], str] = {}
    texts: dict[tuple[str, str | None], str] = {}
    async for event in log.read(types=["message.appended", "message.completed"]):
        turn = (event.session_id, event.turn_id)
        if event.type == "message.appended":
            deltas[turn] = deltas.get(turn, "") + event.data.delta
        else:
            texts[turn] = texts.get(turn, "") + event.data.text
    assert deltas == texts
    assert len(texts) == 10


async def test_the_real_sessions_can_be_played_live(log: EventLog) -> None:
    """They are new events then: told to who is told, at new times, and again adds nothing."""
    lines = real_data().read_bytes().splitlines()
    told: list[Event[Any]] = []
    log.on_recorded(told.extend)
    report = await log.import_events(lines, live=True)
    assert (report.added, report.known, report.bad_count) == (1_576, 0, 0)
    assert len(told) == 1_576
    again = await log.import_events(lines, live=True)
    assert (again.added, again.known, again.bad_count) == (0, 1_576, 0)
    for session_id, expected in by_session(envelopes(lines)).items():
        stored = [event.to_dict() async for event in (await log.session(session_id)).read()]
        assert [{**event, "at": 0} for event in stored] == [{**event, "at": 0} for event in expected]
    await whole(log)


async def test_r97_what_the_file_says_of_sessions_turns_and_jobs_follows_from_the_events_alone(
    log: EventLog, tmp_path: Path
) -> None:
    """R97: the log is the source of truth: its lines alone, in a fresh file, make the same sessions, turns and jobs."""
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "cacheWriteTokens": 4}
    for id in ("a", "b"):
        session = await log.start_session(id, project="p", agent="coder", title="first", auth={"u": id})
        await session.append("job.queued", {"jobId": "j1", "name": "build"})
        await session.append("job.started", {"jobId": "j1"})
        for version in range(2):
            await session.append("turn.completed", {"result": {"v": version}, "usage": usage}, turn_id="t1")
        await session.append("job.completed", {"jobId": "j1", "status": "succeeded", "result": 1})
        await session.append("job.started", {"jobId": "j1"})  # a terminal status is final
        await session.append("session.updated", {"title": "second"})
    await log.append("b", "session.failed", {"message": "no"})
    async with EventLog(tmp_path / "fresh.db") as fresh:
        await fresh.import_events([line async for line in log.export()])
        for view in ("sessions", "turns", "jobs"):
            rows = await log.store.read(rows_of, view)
            assert await fresh.store.read(rows_of, view) == rows
            assert len(rows) >= 2
        assert [info async for info in fresh.sessions()] == [info async for info in log.sessions()]


def rows_of(connection: sqlite3.Connection, view: str) -> list[Any]:
    return connection.execute(f"SELECT * FROM {view} ORDER BY 1, 2").fetchall()  # noqa: S608 (our own text)


# -------------------------------------------------------------------------------------------------- history, not news


async def test_imported_events_keep_their_index_and_time_and_are_not_news(log: EventLog) -> None:
    told: list[object] = []
    log.on_recorded(told.append)
    times = ["2020-01-01T00:00:00Z", "2020-01-01T01:00:00.5+01:00", "2019-12-31T23:59:59.123456Z"]
    await log.import_events([line(n, at=at) for n, at in enumerate(times)])
    events = await all_of((await log.session("s")).read())
    assert [event.to_dict()["at"] for event in events] == [
        "2020-01-01T00:00:00.000Z",
        "2020-01-01T00:00:00.500Z",
        "2019-12-31T23:59:59.123456Z",
    ]
    assert told == []
    assert (await log.session("s")).info.started_at == events[0].at
    await whole(log)


async def test_a_session_goes_on_live_after_its_import(log: EventLog) -> None:
    started = {"channelId": "cli", "mode": "task", "purpose": "eval", "projectId": "p", "title": "T", "auth": {"u": 1}}
    lines = [line(0, type="session.started", data=started), line(1), line(2, type="session.waiting", data={})]
    await log.import_events(lines)
    session = await log.session("s")
    assert (session.info.channel_id, session.info.title, session.info.auth) == ("cli", "T", {"u": 1})
    assert (session.info.status, session.info.purpose, session.next_index) == ("waiting", "eval", 3)
    assert (await session.append("session.completed", {})).index == 3
    assert session.info.status == "completed"
    with pytest.raises(SessionExists):
        await log.start_session("s")
    await whole(log)


async def test_history_continues_a_session_that_is_open_here(log: EventLog) -> None:
    session = await log.start_session("s")
    await fill(session, 2)
    report = await log.import_events([line(3), line(4, type="session.completed", data={})])
    assert report.added == 2
    assert (session.next_index, session.info.status) == (5, "completed")
    assert (await session.append("own.type", {})).index == 5
    assert indexes(await all_of(session.read())) == [0, 1, 2, 3, 4, 5]
    assert session.info == await log.session_info("s")
    await whole(log)


async def test_a_start_and_an_import_of_one_session_do_not_harm_each_other(log: EventLog) -> None:
    """Whichever is first has the session; the other is told, and everybody else's events are stored."""
    for n in range(40):
        results = await asyncio.gather(
            log.start_session(f"s{n}"), later(n % 8, log, n), log.start_session(f"other{n}"), return_exceptions=True
        )
        start, report, _ = results
        assert isinstance(report, ImportReport)
        assert not isinstance(results[2], BaseException)
        assert isinstance(start, SessionExists) == (report.added == 1), results
        assert (await log.append(f"s{n}", "own.type", {})).index == 1
    await whole(log)


async def later(turns: int, log: EventLog, n: int) -> ImportReport:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await log.import_events([line(0, f"s{n}", type=f"own.type{n}")])


# ------------------------------------------------------------------------------------------------------- bad lines

BAD: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", "is not JSON"),
    "a list": (b"[]", "object"),
    "no UTF-8": (line(2).replace(b"own.type", b"own.\xff"), ""),
    "no type": (line(2, type=...), "type"),
    "no index": (line(2, index=...), "index"),
    "no session": (line(2, sessionId=...), "sessionId"),
    "no time": (line(2, at=...), "at"),
    "no data": (line(2, data=...), "data"),
    "data that is no object": (line(2, data=[1]), "data"),
    "an unknown field": (line(2, more=1), "more"),
    "a negative index": (line(2, index=-1), "index"),
    "an index that is text": (line(2, index="2"), "index"),
    "an index beyond every index": (line(2, index=2**70), "index"),
    "a time without a zone": (line(2, at="2026-01-01T00:00:00"), "at"),
    "a day that is none": (line(2, at="2026-02-30T00:00:00Z"), "at"),
    "a turn that is null": (line(2, turnId=None), "turnId"),
    "an empty session id": (line(2, sessionId=""), "sessionId"),
    "a payload that breaks its type": (line(2, type="turn.failed", turnId="t", data={}), "data.message"),
    "a turn event without a turn": (line(2, type="turn.started", data={}), "turnId"),
    "a key twice": (line(2).replace(b'"n": 2', b'"n": 2, "n": 3'), "twice"),
    "a key of the envelope twice": (line(2).replace(b'"index"', b'"turnId": "a", "turnId": "b", "index"'), "twice"),
    "data that is too deep": (line(2).replace(b'{"n": 2}', b'{"n": ' + b"[" * 64 + b"]" * 64 + b"}"), "deeper than 64"),
    "data that is too deep to be read": (line(2).replace(b'{"n": 2}', b"[" * 200_000 + b"]" * 200_000), "is not JSON"),
    "an envelope that is too deep to be read": (b"[" * 1_000_000, "expected `object`"),
    "data that is too large": (line(2, data={"n": "x" * MAX_EVENT_BYTES}), "the limit is"),
    "a hole": (line(7), "leaves a hole, the next index is 2"),
    "a session without a beginning": (line(3, "new"), "a session begins with index 0"),
    "another event there": (line(1, data={"n": "other"}), "differs from the event that is stored there"),
    "another type there": (line(1, type="own.other"), "differs"),
    "another time there": (line(1, at="2026-01-01T00:00:00.001Z"), "differs"),
    "another turn there": (line(1, turnId="t"), "differs"),
    "true where 1 is": (line(1, data={"n": True}), "differs"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_line_that_cannot_stand_is_named_and_the_others_are_stored(log: EventLog, name: str) -> None:
    bad, why = BAD[name]
    report = await log.import_events([line(0), line(1), b"", b"  \n", bad, line(2), line(0, "t")])
    assert (report.added, report.known, report.bad_count) == (4, 0, 1)
    ((number, found),) = [(each.number, each.why) for each in report.bad]
    assert number == 5
    assert why in found
    assert indexes(await all_of((await log.session("s")).read())) == [0, 1, 2]
    assert (await log.session_info("t")).next_index == 1
    await whole(log)
    second = await log.import_events([line(0), line(1), bad, line(2)])
    assert (second.added, second.known, second.bad_count) == (0, 3, 1)


@pytest.mark.parametrize("live", [False, True])
async def test_strict_ends_at_the_first_bad_line_and_names_it(log: EventLog, live: bool) -> None:
    start = line(
        0, type="session.started", data={"channelId": "c", "mode": "chat", "purpose": "live", "projectId": "p"}
    )
    lines = [start, *[line(n) for n in range(1, 700)], b"{", line(700)]
    with pytest.raises(InvalidEvent, match="line 701"):
        await log.import_events(lines, live=live, strict=True)
    assert (await log.session("s")).next_index == 700, "what came before it stays"
    await whole(log)
    report = await log.import_events([each for each in lines if each != b"{"], live=live, strict=True)
    assert (report.known, report.added) == (700, 1)


async def test_an_import_brings_no_more_types_than_there_may_be(log: EventLog) -> None:
    lines = [line(n, type=f"own.t{n}") for n in range(MAX_OWN_TYPES)]
    beyond = [
        line(0, "new", type="own.one.too.many"),
        line(0, "known", type="own.t7"),
        line(1, "known", type="session.waiting", data={}),
    ]
    report = await log.import_events([*lines, *beyond])
    assert (report.added, report.bad_count, report.bad[0].number) == (MAX_OWN_TYPES + 2, 1, MAX_OWN_TYPES + 1)
    assert "10000 event types" in report.bad[0].why
    assert [info.id async for info in log.sessions()] == ["s", "known"]
    await whole(log)


async def test_a_line_with_text_that_sqlite_would_cut_is_named(log: EventLog) -> None:
    jobs = [line(n, type="job.started", data={"jobId": id}) for n, id in enumerate(["j1", "j\0a"])]
    report = await log.import_events(jobs)
    assert (report.added, [bad.number for bad in report.bad]) == (1, [2])
    assert "data.jobId: has the character U+0000" in report.bad[0].why


async def test_bad_lines_are_named_in_their_order(log: EventLog) -> None:
    lines = [line(0), line(7), b"{", line(0, data={"n": "other"}), b"[]", line(9), line(1)]
    report = await log.import_events(lines)
    assert [bad.number for bad in report.bad] == [2, 3, 4, 5, 6]
    with pytest.raises(InvalidEvent, match="line 2"):
        await log.import_events(lines, strict=True)


async def test_bad_lines_are_counted_beyond_those_that_are_named(log: EventLog) -> None:
    report = await log.import_events([b"{"] * (MAX_NAMED + 700))
    assert (report.bad_count, len(report.bad), report.bad[-1].number) == (MAX_NAMED + 700, MAX_NAMED, MAX_NAMED)


async def test_a_line_without_an_end_does_not_fill_the_memory(log: EventLog) -> None:
    """64 MiB without a line feed: read in pieces, named as one bad line, and the next line is stored."""

    class Endless(io.RawIOBase):
        left = 64 * 1024 * 1024

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left)
            if not size:
                return 0
            self.left -= size
            buffer[:size] = b"x" * size
            if not self.left:
                buffer[size - 1 : size] = b"\n"
            return size

    tracemalloc.start()
    try:
        report = await log.import_events(lines_of(io.BufferedReader(Endless())))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.bad_count, report.bad[0].number) == (1, 1)
    assert "longer than" in report.bad[0].why
    assert peak < 8 * MAX_LINE_BYTES


def test_lines_are_cut_at_line_feeds_alone() -> None:
    content = "a\u2028b\u2029c\x85d\re\x0bf\x0cg\nh\n\ni".encode()
    assert list(lines_of(io.BytesIO(content))) == ["a\u2028b\u2029c\x85d\re\x0bf\x0cg\n".encode(), b"h\n", b"\n", b"i"]
    long = b"x" * (MAX_LINE_BYTES + 5)
    first, second = lines_of(io.BytesIO(long + b"\nnext\n"))
    assert (len(first), second) == (MAX_LINE_BYTES + 1, b"next\n")
    exact = b"x" * MAX_LINE_BYTES + b"\n"
    assert list(lines_of(io.BytesIO(exact + b"next"))) == [exact, b"next"]


# ----------------------------------------------------------------------------------------------------- there and back

SEPARATORS = ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x0c", "\n", "\r\n", "\0", "\x1b[31m", "\x7f"]


async def test_separators_in_texts_make_no_second_line(log: EventLog, tmp_path: Path) -> None:
    """One object a line feed, each equal to what is read; exported, imported and exported again it is the same."""
    session = await log.start_session("s ü \u00a0"[:4])
    for n, separator in enumerate(SEPARATORS):
        await session.append("message.received", {"text": f"a{separator}b", f"k{separator}": n}, turn_id="t")
    exported = [each async for each in log.export()]
    text = b"".join(each + b"\n" for each in exported)
    assert text.count(b"\n") == len(SEPARATORS) + 1
    assert [json.loads(each) for each in text.split(b"\n")[:-1]] == [event.to_dict() async for event in log.read()]
    async with EventLog(tmp_path / "second.db") as second:
        assert (await second.import_events(lines_of(io.BytesIO(text)))).added == len(exported)
        assert [each async for each in second.export()] == exported
        assert (await second.session(session.id)).next_index == session.next_index
    async with EventLog(tmp_path / "second.db") as second:
        assert (await second.session(session.id)).next_index == session.next_index
        await whole(second)


@pytest.mark.parametrize("separator", [s for s in SEPARATORS if s != "\x1b[31m"] + ["\x1b"])
async def test_a_name_with_a_separator_is_refused(log: EventLog, separator: str) -> None:
    name = f"a{separator}b"
    changes: list[dict[str, Any]] = [{"sessionId": name}, {"turnId": name}, {"type": name}]
    report = await log.import_events([line(0, **change) for change in changes])
    assert (report.added, report.bad_count) == (0, 3)


async def test_numbers_and_unknown_fields_survive_the_way_there_and_back(log: EventLog, tmp_path: Path) -> None:
    data = {"big": 2**64 + 1, "small": -(2**63) - 1, "f": 0.1, "e": 1e300, "z": -0.0, "deep": [[{"a": None}]], "": ""}
    session = await log.start_session("s")
    live = await session.append("message.received", {"text": "x", **data}, turn_id="t")
    async with EventLog(tmp_path / "second.db") as second:
        await second.import_events([each async for each in log.export()])
        (copied,) = await all_of((await second.session("s")).read(after=0))
        assert copied.to_dict() == live.to_dict()
        assert copied.to_json() == live.to_json()


async def test_only_one_session_is_exported_when_one_is_named(log: EventLog) -> None:
    await fill(await log.start_session("a"), 3)
    await fill(await log.start_session("b"), 3)
    exported = envelopes([each async for each in log.export("a")])
    assert [(each["sessionId"], each["index"]) for each in exported] == [("a", n) for n in range(4)]


# -------------------------------------------------------------------------------------------------------------- live


async def test_live_lines_are_new_events_keyed_by_their_place(log: EventLog) -> None:
    started = {"channelId": "cli", "mode": "chat", "purpose": "live", "projectId": "p"}
    lines = [line(0, type="session.started", data=started), line(1, at="2001-01-01T00:00:00Z"), line(2)]
    told: list[Event[Any]] = []
    log.on_recorded(told.extend)
    assert (await log.import_events(lines[:2], live=True)).added == 2
    await log.append("s", "own.between", {})
    report = await log.import_events(lines, live=True)
    assert (report.added, report.known) == (1, 2)
    events = await all_of((await log.session("s")).read())
    assert [event.key for event in events] == ["import:0", "import:1", None, "import:2"]
    assert events[1].at.year > 2001
    assert events == told
    changed = await log.import_events([line(1, data={"n": "other"})], live=True)
    assert (changed.added, changed.bad_count) == (0, 1)
    await whole(log)


async def test_live_lines_of_a_session_that_was_never_started_are_named(log: EventLog) -> None:
    report = await log.import_events([line(0, "a"), line(1, "a")], live=True)
    assert (report.added, [bad.number for bad in report.bad]) == (0, [1, 2])


async def test_progress_is_told_in_lines(log: EventLog) -> None:
    seen: list[int] = []
    await log.import_events((line(n) for n in range(1_200)), progress=seen.append)
    assert seen == [500, 1_000, 1_200]


@pytest.mark.parametrize("reads", [lambda log: log.read(), lambda log: log.tail()])
async def test_an_import_is_seen_by_readers_at_once(
    log: EventLog, reads: Callable[[EventLog], AsyncIterator[Event[Any]]]
) -> None:
    await log.import_events([line(0)])
    assert (await anext(reads(log))).session_id == "s"


async def test_a_cancelled_import_leaves_a_whole_log(log: EventLog) -> None:
    lines = [line(n) for n in range(1_500)]
    for turns in range(0, 40, 4):
        importing = asyncio.ensure_future(log.import_events(lines))
        for _ in range(turns):
            await asyncio.sleep(0)
        importing.cancel()
        await asyncio.gather(importing, return_exceptions=True)
        await whole(log)
    await log.import_events(lines)
    assert (await log.session("s")).next_index == 1_500


# ------------------------------------------------------------------------------------------------------------- kills

IMPORTER = """
def lines():
    with open(sys.argv[2], "rb") as file:
        for number, line in enumerate(file):
            if number % 500 == 499:
                say(number)
            yield line

async def main():
    async with EventLog(path) as log:
        await log.import_events(lines(), live=sys.argv[3] == "live")
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["history", "live"])
async def test_an_import_that_was_killed_half_way_is_ended_by_the_same_again(tmp_path: Path, how: str) -> None:
    """What it had stored is known, the rest is added, and nothing is there twice."""
    started = {"channelId": "cli", "mode": "chat", "purpose": "live", "projectId": "p"}
    lines = [line(0, f"s{n}", type="session.started", data=started) for n in range(3)]
    lines += [line(1 + n // 3, f"s{n % 3}") for n in range(2_100)]
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"".join(each + b"\n" for each in lines))
    for stop in (499, 1_499):
        path = tmp_path / f"{how}{stop}.db"
        with child(IMPORTER, path, file, how) as process:
            while line_of(process) != str(stop):
                pass
            process.kill()
        async with EventLog(path) as log:
            await whole(log)
            with file.open("rb") as again:
                report = await log.import_events(lines_of(again), live=how == "live")
            assert (report.added + report.known, report.bad_count) == (len(lines), 0)
            assert report.known >= stop - 1_000
            assert log.head == len(lines)
            for n in range(3):
                assert [event.data for event in await all_of((await log.session(f"s{n}")).read(after=0))] == [
                    {"n": index} for index in range(1, 701)
                ]
            await whole(log)
