"""The log as its users see it: sessions, append, limits, time, keys and expected indexes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from eventlog.encoding import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_DEPTH, MAX_EVENT_BYTES, MAX_ID_CHARACTERS
from eventlog.errors import (
    EventLogError,
    IndexConflict,
    InvalidEvent,
    KeyConflict,
    LimitExceeded,
    SessionExists,
    SessionNotFound,
)
from eventlog.events import Event, MessageReceived, NewEvent, SessionInfo, TokenUsage, TurnCompleted
from eventlog.log import EventLog
from eventlog.session import Session
from eventlog.store.drafting import MAX_OWN_TYPES
from eventlog.testing import ManualClock
from tests.log_kit import Attempt, all_of, fill, indexes, nothing_happened, whole


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as opened:
        yield opened


@pytest.fixture
async def session(log: EventLog) -> Session:
    return await log.start_session("s1")


# --------------------------------------------------------------------------------------------------------- sessions


async def test_a_session_begins_with_session_started_at_index_0(log: EventLog) -> None:
    session = await log.start_session("s1", agent="coder", project="p1", channel="cli", mode="task", purpose="eval")
    (started,) = await all_of(session.read())
    assert (started.type, started.index, started.position, started.turn_id) == ("session.started", 0, 1, None)
    assert started.to_dict()["data"] == {
        "agent": "coder",
        "projectId": "p1",
        "channelId": "cli",
        "mode": "task",
        "purpose": "eval",
    }
    assert (session.id, session.next_index, session.info.status) == ("s1", 1, "active")


async def test_a_session_without_an_id_gets_one_of_its_own(log: EventLog) -> None:
    ids = [(await log.start_session()).id for _ in range(20)]
    assert len(set(ids)) == 20


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "x"},
        {"purpose": None},
        {"title": 7},
        {"continuation_token": 1},
        {"auth": {"v": float("nan")}},
        {"auth": {1: 2}},
        {"abs": b"x"},
        {"title": "\ud800"},
    ],
    ids=str,
)
async def test_a_start_with_what_no_session_has_is_refused(log: EventLog, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        await log.start_session("s", **bad)
    assert await all_of(log.sessions()) == []
    assert (await log.start_session("s")).next_index == 1


async def test_a_known_id_cannot_be_started_again(log: EventLog, session: Session) -> None:
    with pytest.raises(SessionExists, match="'s1' exists"):
        await log.start_session("s1")
    await nothing_happened(log, session, 1)


async def test_of_many_that_start_one_id_at_once_one_succeeds(log: EventLog) -> None:
    starts = [log.start_session("same") for _ in range(20)]
    results = await asyncio.gather(*starts, log.start_session("other"), return_exceptions=True)
    assert sum(isinstance(result, Session) for result in results) == 2
    assert sum(isinstance(result, SessionExists) for result in results) == 19
    assert [info.id async for info in log.sessions()] in (["same", "other"], ["other", "same"])


async def test_what_was_never_started_is_not_found(log: EventLog) -> None:
    for attempt in (log.session("no"), log.session_info("no"), log.append("no", "test.noted", {})):
        with pytest.raises(SessionNotFound, match="no session 'no'"):
            await attempt
    assert await all_of(log.read()) == []


async def test_a_session_can_be_appended_to_by_its_id_while_its_start_is_underway(log: EventLog) -> None:
    starting = asyncio.ensure_future(log.start_session("s1"))
    while log.store.events.heads.get("s1") is None:
        await asyncio.sleep(0)
    event = await log.append("s1", "test.noted", {})
    await starting
    assert event.index == 1


@pytest.mark.parametrize("bad", ["", "x" * (MAX_ID_CHARACTERS + 1), "a\0b", "a\nb", "\ud800", "a\u2028b", 7, None])
async def test_what_is_no_id_is_refused_everywhere(log: EventLog, session: Session, bad: Any) -> None:
    attempts: list[Attempt] = [
        lambda: log.append(bad, "test.noted", {}),
        lambda: log.session(bad),
        lambda: log.start_session("ok", project=bad),
        lambda: log.start_session("ok", channel=bad),
    ]
    if bad is not None:
        attempts.append(lambda: log.start_session(bad))
        attempts.append(lambda: log.start_session("ok", agent=bad))
        attempts.append(lambda: session.append("test.noted", {}, turn_id=bad))
        attempts.append(lambda: session.append("test.noted", {}, key=bad))
    for attempt in attempts:
        with pytest.raises(InvalidEvent):
            await attempt()
    await nothing_happened(log, session, 1)


async def test_ids_of_256_printable_characters_are_ids(log: EventLog) -> None:
    long = "ü" * MAX_ID_CHARACTERS
    session = await log.start_session(long, project=long, channel=long, agent=long)
    event = await session.append("test.noted", {}, turn_id=long, key=long)
    assert (event.session_id, event.turn_id, event.key) == (long, long, long)
    assert await all_of((await log.session(long)).read(after=0)) == [event]


async def test_info_follows_the_sessions_own_events_and_is_the_same_after_reopening(tmp_path: Path) -> None:
    clock = ManualClock()
    steps: list[tuple[str, dict[str, Any]]] = [
        ("session.updated", {"title": "A", "sdkAgentId": "sdk", "abs": {"arm": "b"}}),
        ("session.waiting", {"continuationToken": "t1"}),
        ("session.updated", {"abs": None}),
        ("turn.started", {}),
        ("session.updated", {"abs": [1, 2.5, 2**70, None, "\u2028"], "title": 'quo"te ü'}),
        ("session.failed", {"message": "no"}),
        ("session.updated", {"abs": "text", "continuationToken": None}),
        ("session.completed", {}),
    ]
    live: SessionInfo | None = None
    for number, (type_, data) in enumerate(steps):
        async with EventLog(tmp_path / "agent.db", clock=clock) as log:
            if number == 0:
                await log.start_session("s", auth={"user": 1}, title="first")
            session = await log.session("s")
            clock.advance(1)
            await session.append(type_, data, turn_id="t1" if type_.startswith("turn.") else None)
            live = session.info
        async with EventLog(tmp_path / "agent.db", read_only=True) as log:
            assert await log.session_info("s") == live, type_
    assert live is not None
    assert (live.title, live.sdk_agent_id, live.abs, live.continuation_token) == ('quo"te ü', "sdk", "text", "t1")
    assert (live.status, live.next_index, live.auth) == ("completed", 9, {"user": 1})
    assert (live.updated_at - live.started_at).total_seconds() == 8


async def test_a_completed_session_takes_late_facts(session: Session) -> None:
    await session.append("session.completed", {})
    late = await session.append("action.result", {"callId": "c", "toolName": "t", "isError": False}, turn_id="t1")
    assert late.index == 2
    assert session.info.status == "completed"


async def test_sessions_are_listed_in_the_order_of_their_start(log: EventLog) -> None:
    for n in range(510):  # more than a page
        await log.start_session(f"{'ab'[n % 2]}{n}", project="p" if n % 3 else "q", purpose="live" if n % 5 else "eval")
    everyone = [info.id async for info in log.sessions()]
    assert everyone == [f"{'ab'[n % 2]}{n}" for n in range(510)]
    assert [info.id async for info in log.sessions(limit=501)] == everyone[:501]
    assert [info.id async for info in log.sessions(prefix="a1")] == [i for i in everyone if i.startswith("a1")]
    assert [info.id async for info in log.sessions(project="q")] == everyone[::3]
    assert [info.id async for info in log.sessions(purpose="eval", project="q", limit=3)] == everyone[::15][:3]
    for nothing in (log.sessions(limit=0), log.sessions(prefix="%"), log.sessions(project="r")):
        assert await all_of(nothing) == []


# -------------------------------------------------------------------------------------------------- append and read


async def test_r81_what_append_returns_is_what_every_reader_gets(log: EventLog, session: Session) -> None:
    """R81: the envelope is {type, index, sessionId, turnId?, at, data}; the live and the replayed value are equal."""
    text = {"text": "hi \u2028 \U0001f600", "extra": {"kept": [1, 2.0, None]}}
    live = await session.append("message.received", text, turn_id="t1")
    await session.append("own.type", {"a": {"b": 1}}, key="k")
    live_own = (await all_of(session.read(after=1)))[0]
    async with EventLog(log.path, read_only=True) as reader:
        replayed, own = [event async for event in (await reader.session("s1")).read(after=0)]
    assert replayed == live
    assert own == live_own
    assert hash(replayed) == hash(live)
    assert replayed.data == live.data == MessageReceived(text="hi \u2028 \U0001f600")
    assert replayed.to_dict() == live.to_dict()
    assert list(live.to_dict()) == ["type", "index", "sessionId", "turnId", "at", "data"]
    assert live.to_dict()["data"] == text
    assert replayed.to_json() == live.to_json()


async def test_r82_an_event_of_no_turn_has_no_turn_id(log: EventLog, session: Session) -> None:
    """R82: the key is absent, not null; types of a turn need one, types of the session refuse it."""
    inside = await session.append("test.noted", {}, turn_id="t1")
    outside = await session.append("test.noted", {})
    assert (inside.to_dict()["turnId"], "turnId" in outside.to_dict()) == ("t1", False)
    assert b"turnId" not in outside.to_json()
    with pytest.raises(InvalidEvent, match="turnId"):
        await session.append("message.received", {"text": "hi"})
    with pytest.raises(InvalidEvent, match="turnId"):
        await session.append("session.updated", {}, turn_id="t1")
    await nothing_happened(log, session, 3)


async def test_r92_each_delta_is_an_event_of_its_own(session: Session) -> None:
    """R92: one row and one index a token."""
    words = ["I", " am", " here", "."]
    for word in words:
        await session.append("message.appended", {"delta": word}, turn_id="t1")
    await session.append("message.completed", {"text": "".join(words)}, turn_id="t1")
    *deltas, done = await all_of(session.read(after=0))
    assert indexes(deltas) == [1, 2, 3, 4]
    assert "".join(delta.data.delta for delta in deltas) == done.data.text


async def test_a_struct_and_a_mapping_with_wire_keys_say_the_same(session: Session) -> None:
    usage = TokenUsage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4)
    by_struct = await session.append("turn.completed", TurnCompleted(usage=usage), turn_id="t1")
    wire = {"usage": {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "cacheWriteTokens": 4}}
    by_mapping = await session.append("turn.completed", wire, turn_id="t1")
    assert by_struct.raw == by_mapping.raw
    assert by_mapping.data.usage.cache_write_tokens == 4


async def test_r60_what_a_subscriber_does_to_an_event_reaches_nobody(log: EventLog, session: Session) -> None:
    """R60: assignment raises, and a change of nested JSON is not in the log nor in a later read."""
    event = await session.append("own.type", {"list": [1], "deep": {"a": 1}})
    for name in ("type", "index", "raw", "position", "data"):
        with pytest.raises(AttributeError):
            setattr(event, name, None)
    event.data["list"].append(2)
    event.data["deep"].clear()
    (again,) = await all_of(session.read(after=0))
    assert again.data == {"list": [1], "deep": {"a": 1}}
    assert event.to_dict()["data"] == {"list": [1], "deep": {"a": 1}}
    await whole(log)


async def test_the_callers_own_data_can_be_changed_after_append(session: Session) -> None:
    data = {"list": [1]}
    appending = asyncio.ensure_future(session.append("own.type", data))
    await asyncio.sleep(0)
    data["list"].append(2)
    event = await appending
    assert event.data == (await all_of(session.read(after=0)))[0].data == {"list": [1]}


class Raising:
    """A mapping that cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def keys(self) -> Iterator[str]:
        raise self.error


class RaisingMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("a property of the caller's")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = {"d": value}
    return dict(value)


BAD_DATA: dict[str, Any] = {
    "nan": {"v": float("nan")},
    "infinity": {"v": [1, {"w": float("inf")}]},
    "minus infinity": {"v": float("-inf")},
    "a decimal": {"v": Decimal("1.10")},
    "a decimal that is no number": {"v": Decimal("NaN")},
    "a lone surrogate": {"v": "a\ud800b"},
    "a lone surrogate in a key": {"\udfff": 1},
    "a key that is a number": {1: "a"},
    "two keys that would be one": {1: "a", "1": "b"},
    "a key that is nothing": {None: 1},
    "bytes": {"v": b"x"},
    "a datetime": {"v": datetime(2026, 1, 1, tzinfo=UTC)},
    "a set": {"v": {1}},
    "an object": {"v": object()},
    "an object that raises": {"v": Raising(RuntimeError("no"))},
    "a mapping that raises": RaisingMapping(),
    "too deep": nested(MAX_DEPTH + 1),
    "far too deep": nested(900),
    "too many digits": {"v": 10**5000},
    "too large": {"v": "x" * MAX_EVENT_BYTES},
    "a list": [1],
    "a text": "hi",
    "a number": 1,
}


@pytest.mark.parametrize("name", BAD_DATA)
async def test_what_json_cannot_hold_is_refused_and_changes_nothing(log: EventLog, session: Session, name: str) -> None:
    """B1, E1, E3."""
    with pytest.raises(InvalidEvent):
        await session.append("own.type", BAD_DATA[name])
    with pytest.raises(InvalidEvent):
        await session.append_many([NewEvent("own.type", {"good": 1}), NewEvent("own.type", BAD_DATA[name])])
    await nothing_happened(log, session, 1)


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("message.received", {"text": 1}),
        ("message.received", {}),
        ("job.completed", {"jobId": "j", "status": "done"}),
        ("turn.completed", {"usage": {"inputTokens": -1}}),
        ("no type", {}),
        ("", {}),
        ("9.starts.with.a.digit", {}),
        ("a" * 129, {}),
        ("line\u2028separator", {}),
        (None, {}),
        (7, {}),
    ],
)
async def test_a_payload_or_type_that_breaks_the_vocabulary_is_refused(
    log: EventLog, session: Session, type_: Any, data: Any
) -> None:
    with pytest.raises(EventLogError):
        await session.append(type_, data, turn_id="t1")
    await nothing_happened(log, session, 1)


@pytest.mark.parametrize(
    "value",
    [
        *(2**53 + 1, 2**63 - 1, 2**63, 2**64 + 10**18 + 1, 19933688932870350000, -(2**63) - 1, 10**4299),
        *(-0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, True, None, "", "\0", "\u2028\u2029\x85\r\v\f\n"),
        *([], {}, [[]], {"": {"": None}}),
    ],
    ids=lambda value: repr(value)[:24],
)
async def test_what_json_can_hold_comes_back_exactly(log: EventLog, session: Session, value: Any) -> None:
    """E1, E3."""
    live = await session.append("own.type", {"v": value})
    (again,) = await all_of(session.read(after=0))
    for event in (live, again):
        assert repr(event.data) == repr({"v": value})
    assert again.to_json().count(b"\n") == 0
    await whole(log)


async def test_events_at_the_limits_are_stored(log: EventLog, session: Session) -> None:
    largest = {"v": "x" * (MAX_EVENT_BYTES - len('{"v":""}'))}
    event = await session.append("own.type", largest)
    assert len(event.raw) == MAX_EVENT_BYTES
    await session.append("own.type", nested(MAX_DEPTH))
    with pytest.raises(InvalidEvent, match="limit is 1048576"):
        await session.append("own.type", {"v": largest["v"] + "x"})
    with pytest.raises(InvalidEvent, match="deeper than 64"):
        await session.append("own.type", nested(MAX_DEPTH + 1))
    assert [event.data for event in await all_of(session.read(after=0))] == [largest, nested(MAX_DEPTH)]
    await nothing_happened(log, session, 3)


async def test_a_batch_has_up_to_1000_events(log: EventLog, session: Session) -> None:
    full = [NewEvent("own.type", {"n": n}) for n in range(MAX_BATCH_EVENTS)]
    with pytest.raises(LimitExceeded, match="1001 is over the limit of 1000"):
        await session.append_many([*full, full[0]])
    events = await session.append_many(full)
    assert indexes(events) == list(range(1, MAX_BATCH_EVENTS + 1))
    assert await all_of(session.read(after=0)) == events
    await whole(log)


async def test_a_batch_has_up_to_8_mib(log: EventLog, session: Session) -> None:
    mib = {"v": "x" * (MAX_EVENT_BYTES - len('{"v":""}'))}
    full = [NewEvent("own.type", mib) for _ in range(MAX_BATCH_BYTES // MAX_EVENT_BYTES)]
    with pytest.raises(LimitExceeded, match="bytes of a batch"):
        await session.append_many([*full, NewEvent("own.type", {})])
    assert indexes(await session.append_many(full)) == list(range(1, 9))
    await nothing_happened(log, session, 9)


async def test_a_batch_is_all_or_nothing_and_an_empty_one_is_nothing(log: EventLog, session: Session) -> None:
    assert await session.append_many([]) == []
    with pytest.raises(InvalidEvent):
        await session.append_many([NewEvent("own.type"), NewEvent("message.received", {"text": "hi"})])
    await nothing_happened(log, session, 1)


@pytest.mark.parametrize("name", ["title", "continuation_token"])
async def test_a_session_is_not_started_with_text_that_sqlite_would_cut(log: EventLog, name: str) -> None:
    more: dict[str, Any] = {name: "a\0b"}
    with pytest.raises(InvalidEvent, match=r"U\+0000"):
        await log.start_session("cut", **more)
    with pytest.raises(SessionNotFound):
        await log.session("cut")


async def test_there_are_up_to_10000_types_of_ones_own(log: EventLog, session: Session) -> None:
    for start in range(0, MAX_OWN_TYPES, MAX_BATCH_EVENTS):
        await session.append_many([NewEvent(f"own.t{start + n}") for n in range(MAX_BATCH_EVENTS)])
    with pytest.raises(LimitExceeded, match="10001 is over the limit of 10000"):
        await session.append("own.one.too.many", {})
    assert (await session.append("own.t7", {})).index == MAX_OWN_TYPES + 1


# ------------------------------------------------------------------------------------------------------------- time


async def test_order_never_depends_on_time(tmp_path: Path) -> None:
    """One moment for all events, a wall clock that steps back, a restart at an earlier time: append order holds."""
    path, clock = tmp_path / "agent.db", ManualClock()
    async with EventLog(path, clock=clock) as log:
        session = await log.start_session("s")
        await fill(session, 50)
        await session.append_many([NewEvent("test.noted", {"n": n}) for n in range(50, 100)])
        clock.step(-3600)
        assert (await session.append("test.noted", {"n": 100})).at == session.info.started_at
    clock.step(-3600)
    async with EventLog(path, clock=clock) as log:
        session = await log.session("s")
        last = await session.append("test.noted", {"n": 101})
        assert last.at < session.info.started_at
        for events in (session.read(after=0), log.read(after=1)):
            assert [event.data["n"] async for event in events] == list(range(102))
        backwards = [event.data["n"] async for event in session.read(after=0, reverse=True)]
        assert backwards == list(reversed(range(102)))


async def test_at_is_the_clocks_time_in_utc(tmp_path: Path) -> None:
    clock = ManualClock(1_767_225_600_123_456)
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        event = await (await log.start_session("s")).append("test.noted", {})
    assert event.at == datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert event.at.tzinfo is UTC
    assert event.to_dict()["at"] == "2026-01-01T00:00:00.123456Z"


# ------------------------------------------------------------------------------------------- keys, expected indexes


async def test_the_same_key_again_gives_the_first_event(log: EventLog, session: Session) -> None:
    first = await session.append("own.type", {"a": 1, "b": [1]}, turn_id="t", key="k")
    again = await session.append("own.type", {"b": [1], "a": 1}, turn_id="t", key="k")
    whatever = await session.append("own.type", {"a": 1, "b": [1]}, turn_id="t", key="k", expected_index=77)
    assert first == again == whatever
    other = await (await log.start_session("s2")).append("own.type", {"other": 1}, key="k")
    assert other.session_id == "s2"
    await nothing_happened(log, session, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"type": "own.other"},
        {"turn_id": None},
        {"turn_id": "t2"},
        {"data": {"a": 2}},
        {"data": {"a": True}},
        {"data": {"a": 1.0}},
        {"data": {"a": "1"}},
        {"data": {"a": 1, "b": None}},
    ],
    ids=str,
)
async def test_the_same_key_for_anything_else_is_a_conflict(
    log: EventLog, session: Session, change: dict[str, Any]
) -> None:
    same: dict[str, Any] = {"type": "own.type", "data": {"a": 1}, "turn_id": "t", "key": "k"}
    await session.append(**same)
    with pytest.raises(KeyConflict, match="another type, turn or data"):
        await session.append(**{**same, **change})
    await nothing_happened(log, session, 2)


async def test_a_conflict_names_the_key_that_is_not_stored_yet(log: EventLog, session: Session) -> None:
    """A batch of which a part is stored was another batch: nothing of it is stored."""
    await session.append("own.type", {"a": 1}, key="k1")
    batch = [NewEvent("own.type", {"a": 1}, key=key) for key in ("k1", "k2")]
    with pytest.raises(KeyConflict, match="other keys of the same batch") as caught:
        await session.append_many(batch)
    assert caught.value.key == "k2"
    await nothing_happened(log, session, 2)


async def test_the_same_key_from_many_at_once_makes_one_event(log: EventLog, session: Session) -> None:
    same = [session.append("own.type", {"a": 1}, key="k") for _ in range(30)]
    others = [session.append("own.type", {"n": n}) for n in range(30)]
    events = await asyncio.gather(*[each for pair in zip(same, others, strict=True) for each in pair])
    assert len(set(events)) == 31
    assert indexes(await all_of(session.read())) == list(range(32))
    await whole(log)


async def test_a_key_is_known_after_absorbing_and_reopening(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with EventLog(path) as log:
        first = await (await log.start_session("s")).append("own.type", {"a": 1}, key="k")
        await log.store.absorb()
        assert await log.append("s", "own.type", {"a": 1}, key="k") == first
    async with EventLog(path) as log:
        assert await log.append("s", "own.type", {"a": 1}, key="k") == first
        with pytest.raises(KeyConflict):
            await log.append("s", "own.type", {"a": 2}, key="k")


async def test_a_batch_with_keys_can_be_repeated_as_a_whole_only(log: EventLog, session: Session) -> None:
    batch = [NewEvent("own.type", {"n": n}, key=f"k{n}") for n in range(3)]
    first = await session.append_many(batch)
    assert await session.append_many(batch, expected_index=0) == first
    assert await session.append_many(batch[1:]) == first[1:]
    new = NewEvent("own.type", {"n": 9}, key="k9")
    for mixture in ([*batch, new], [new, *batch], [batch[0], NewEvent("own.type", {"n": 7}, key="k1")]):
        with pytest.raises(KeyConflict):
            await session.append_many(mixture)
    for half in ([*batch, NewEvent("own.type", {})], [NewEvent("own.type", {}), *batch], [new, new]):
        with pytest.raises(InvalidEvent, match="a key of its own, or none"):
            await session.append_many(half)
    await nothing_happened(log, session, 4)


async def test_the_same_batch_from_many_at_once_is_stored_once(log: EventLog, session: Session) -> None:
    batch = [NewEvent("own.type", {"n": n}, key=f"k{n}") for n in range(5)]
    results = await asyncio.gather(*[session.append_many(batch) for _ in range(10)])
    assert all(result == results[0] for result in results)
    assert indexes(results[0]) == [1, 2, 3, 4, 5]
    await nothing_happened(log, session, 6)


async def test_an_expected_index_is_met_or_nothing_is_written(log: EventLog, session: Session) -> None:
    assert (await session.append("own.type", {}, expected_index=1)).index == 1
    assert indexes(await session.append_many([NewEvent("own.type")] * 2, expected_index=2)) == [2, 3]
    for wrong in (0, 3, 5, -1, 2**70):
        with pytest.raises(IndexConflict) as caught:
            await session.append("own.type", {}, expected_index=wrong)
        assert (caught.value.session_id, caught.value.expected, caught.value.actual) == ("s1", wrong, 4)
        with pytest.raises(IndexConflict):
            await session.append_many([NewEvent("own.type")], expected_index=wrong)
    await nothing_happened(log, session, 4)


async def test_of_many_that_expect_one_index_one_gets_it(log: EventLog, session: Session) -> None:
    attempts = [session.append("own.type", {"n": n}, expected_index=1) for n in range(30)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    winners = [result for result in results if isinstance(result, Event)]
    assert indexes(winners) == [1]
    assert sum(isinstance(result, IndexConflict) for result in results) == 29
    assert await all_of(session.read(after=0)) == winners


async def test_who_meets_a_start_that_is_underway_has_the_session_all_the_same(tmp_path: Path) -> None:
    """Two first messages at once: each starts the session, or takes the one that the other has started."""
    async with EventLog(tmp_path / "agent.db") as log:

        async def first_message(number: int) -> Event[Any]:
            with suppress(SessionExists):
                _ = await log.start_session("s")
            return await (await log.session("s")).append("own.message", {"n": number})

        events = await asyncio.gather(*[first_message(number) for number in range(20)])
        assert sorted(indexes(events)) == list(range(1, 21))
        await whole(log)
