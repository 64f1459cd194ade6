"""`host.kv`: what is put is there, for every session of the agent, until it is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import InvalidEvent, InvalidName, LimitExceeded
from eventlog.host.files import SessionFiles
from eventlog.host.kv import MAX_KEY_CHARACTERS, MAX_VALUE_BYTES, Kv, channel_state
from eventlog.log import EventLog
from eventlog.store.keep import after_prefix, forget_kept


@pytest_asyncio.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as log:
        yield log


@pytest.fixture
def kv(log: EventLog) -> Kv:
    return Kv(log.store, "agent")


VALUES: list[Any] = [
    None,
    True,
    0,
    -0.0,
    1.5,
    "",
    "text\u2028with\x00odd characters",
    [],
    {},
    {"a": [1, {"b": None}], "": "empty key"},
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    2**64 + 10**18 + 1,
    10**4299,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.20}")
async def test_r105_a_value_comes_back_equal_also_after_a_restart(tmp_path: Path, value: Any) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await Kv(log.store, "agent").put("key", value)
        assert await Kv(log.store, "agent").get("key", "missing") == value
    async with EventLog(tmp_path / "agent.db") as log:
        found = await Kv(log.store, "agent").get("key", "missing")
        assert (type(found), found) == (type(value), value)


async def test_a_null_is_not_missing(kv: Kv) -> None:
    await kv.put("null", None)
    assert await kv.get("null", "missing") is None
    assert await kv.get("other", "missing") == "missing"
    assert await kv.get("other") is None


async def test_r106_an_agents_keys_are_shared_by_its_sessions_and_hidden_from_other_agents(log: EventLog) -> None:
    await Kv(log.store, "agent").put("shared", 1)
    assert await Kv(log.store, "agent").get("shared") == 1
    assert await Kv(log.store, "other").get("shared") is None
    assert await Kv(log.store, "other").list() == []


async def test_a_put_replaces_and_a_delete_says_whether_there_was_something(kv: Kv) -> None:
    await kv.put("key", [1])
    await kv.put("key", [2])
    assert await kv.get("key") == [2]
    assert await kv.delete("key") is True
    assert await kv.delete("key") is False
    assert await kv.get("key", "gone") == "gone"


async def test_r108_keys_are_listed_by_the_prefix_of_a_session(kv: Kv) -> None:
    for key in ("s1/b", "s1/a", "s10/a", "s2/a", "s1"):
        await kv.put(key, key)
    assert await kv.list("s1/") == ["s1/a", "s1/b"]
    assert await kv.list("s1") == ["s1", "s1/a", "s1/b", "s10/a"]
    assert await kv.list() == ["s1", "s1/a", "s1/b", "s10/a", "s2/a"]
    assert await kv.list("s3") == []


@pytest.mark.parametrize("prefix", ["%", "_", "*", "[a-z]", "?", "a%", "\\"])
async def test_no_character_of_a_prefix_stands_for_another_one(kv: Kv, prefix: str) -> None:
    for key in ("a", "ab", "a%b", "abc", prefix, f"{prefix}1"):
        await kv.put(key, None)
    assert prefix in await kv.list(prefix)
    assert all(key.startswith(prefix) for key in await kv.list(prefix))


async def test_keys_that_differ_in_case_or_unicode_form_are_different(kv: Kv) -> None:
    keys = ["key", "KEY", "caf\u00e9", "cafe\u0301"]
    for key in keys:
        await kv.put(key, key)
    assert [await kv.get(key) for key in keys] == keys
    assert await kv.list() == sorted(keys)


@pytest.mark.parametrize("key", ["", "a\x00b", "a\nb", "\ud800", "a\u2028b", 7, None])
async def test_a_key_that_is_no_printable_text_is_refused(kv: Kv, key: Any) -> None:
    for call in (kv.get, kv.delete):
        with pytest.raises(InvalidName, match="kv key"):
            await call(key)
    with pytest.raises(InvalidName, match="kv key"):
        await kv.put(key, 1)
    assert await kv.list() == []


async def test_a_key_has_at_most_512_characters(kv: Kv) -> None:
    longest = "k" * MAX_KEY_CHARACTERS
    await kv.put(longest, 1)
    assert await kv.get(longest) == 1
    with pytest.raises(LimitExceeded) as caught:
        await kv.put(f"{longest}k", 1)
    assert (caught.value.limit, caught.value.actual) == (512, 513)
    assert await kv.list() == [longest]


async def test_a_value_has_at_most_1_mib_of_json(kv: Kv) -> None:
    largest = "x" * (MAX_VALUE_BYTES - 2)
    await kv.put("key", largest)
    with pytest.raises(LimitExceeded):
        await kv.put("key", f"{largest}x")
    assert await kv.get("key") == largest


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "value"),
        ({"a": [1, float("inf")]}, r"value\.a\[1\]"),
        ({1: "a"}, "value"),
        (b"bytes", "value"),
        ("\ud800", "value"),
        ({1, 2}, "value"),
        (10**5000, "value"),
    ],
    ids=["nan", "infinity", "integer key", "bytes", "lone surrogate", "set", "too many digits"],
)
async def test_what_json_cannot_hold_is_refused_and_named_and_nothing_changes(kv: Kv, value: Any, place: str) -> None:
    await kv.put("key", "before")
    with pytest.raises(InvalidEvent, match=place):
        await kv.put("key", value)
    assert await kv.get("key") == "before"


async def test_a_time_is_refused_with_what_to_do(kv: Kv) -> None:
    """`event.at` is the likely one: a hook that keeps it has to say how."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidEvent, match=r"value\.at: datetime is not JSON; write it as text, by its isoformat\(\)"):
        await kv.put("key", {"at": at})
    await kv.put("key", {"at": at.isoformat()})
    assert await kv.get("key") == {"at": "2026-01-01T00:00:00+00:00"}


@given(st.text(min_size=1, max_size=4), st.text(max_size=4))
def test_what_begins_with_a_prefix_lies_between_it_and_what_follows_it(prefix: str, text: str) -> None:
    try:
        low, value = prefix.encode(), text.encode()
    except UnicodeEncodeError:
        return
    end = after_prefix(prefix)
    inside = low <= value and (end is None or value < end.encode())
    assert inside == text.startswith(prefix)


# ---------------------------------------------------------------------------------------------------------- and erasure


async def test_what_is_kept_for_a_session_goes_with_it_and_nothing_else_does(tmp_path: Path) -> None:
    """Keys that begin or end with its id, of all agents, what its channel keeps, and its files."""
    async with EventLog(tmp_path / "a.db") as log:
        infos = {id: (await log.start_session(id, channel="slack")).info for id in ("s1", "s10", "s1/b", "a/s1")}
        for agent in ("one", "two"):
            kv = Kv(log.store, agent)
            for key in ("s1", "s1/draft", "s1:draft", "last-result/s1", "last:s1", *STAYING):
                await kv.put(key, agent)
        for info in infos.values():
            await channel_state(log.store, info).put("key", info.id)
            await SessionFiles(log.store, "one", info.id).write("notes.md", "x")
        await SessionFiles(log.store, "one", "s1").write("shared.md", "x", scope="deployment")

        assert await log.store.write(forget_kept, "s1", "slack") == (2 * 5 + 1, 1)

        for agent in ("one", "two"):
            assert await Kv(log.store, agent).list() == sorted(STAYING)
        left = {id: await channel_state(log.store, info).get("key") for id, info in infos.items()}
        assert left == {"s1": None, "s10": "s10", "s1/b": "s1/b", "a/s1": "a/s1"}
        files = {id: await SessionFiles(log.store, "one", id).list() for id in infos}
        assert files == {"s1": [], "s10": ["notes.md"], "s1/b": ["notes.md"], "a/s1": ["notes.md"]}
        assert await SessionFiles(log.store, "one", "s1").list(scope="deployment") == ["shared.md"]


STAYING = ("s10", "s10/draft", "s1/b", "s1/b/draft", "last-result/a/s1", "last-result/s10", "notes/s1/of", "xs1/draft")
