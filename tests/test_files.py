"""`host.files`: durable, whole or not at all, and inside of the log's file whatever the path says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from eventlog.errors import EventLogError, InvalidName, LimitExceeded
from eventlog.host.files import MAX_FILE_BYTES, FileMissing, SessionFiles
from eventlog.log import EventLog


@pytest_asyncio.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(tmp_path / "agent.db") as log:
        yield log


def files_of(log: EventLog, session_id: str = "s1", agent: str = "agent") -> SessionFiles:
    return SessionFiles(log.store, agent, session_id)


async def test_r109_a_file_is_durable_and_bound_to_its_session(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await files_of(log, "s1").write("notes/1.md", "one")
        await files_of(log, "s2").write("notes/1.md", "two")
    async with EventLog(tmp_path / "agent.db") as log:
        assert await files_of(log, "s1").read("notes/1.md") == "one"
        assert await files_of(log, "s2").read("notes/1.md") == "two"
        assert await files_of(log, "s3").list() == []


async def test_r110_deployment_files_are_shared_by_all_sessions_of_the_agent(log: EventLog) -> None:
    await files_of(log, "s1").write("all.txt", "shared", scope="deployment")
    assert await files_of(log, "s2").read("all.txt", scope="deployment") == "shared"
    assert await files_of(log, "s1").list() == []
    assert await files_of(log, "s1", agent="other").list(scope="deployment") == []
    with pytest.raises(InvalidName, match="deployment"):
        await files_of(log).list(scope="global")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_text_and_bytes_come_back_as_they_were(log: EventLog) -> None:
    files = files_of(log)
    await files.write("text", "caf\u00e9\r\n\x00\u2028")
    await files.write("bytes", b"\xff\x00\xfe")
    assert await files.read("text") == "caf\u00e9\r\n\x00\u2028"
    assert await files.read_bytes("text") == "caf\u00e9\r\n\x00\u2028".encode()
    assert await files.read_bytes("bytes") == b"\xff\x00\xfe"
    with pytest.raises(InvalidName, match="read_bytes"):
        await files.read("bytes")


async def test_a_missing_file_is_a_file_not_found_error_of_ours(log: EventLog) -> None:
    with pytest.raises(FileMissing, match="'nothing'") as caught:
        await files_of(log).read("nothing")
    assert isinstance(caught.value, EventLogError)
    assert isinstance(caught.value, FileNotFoundError)
    assert (caught.value.path, caught.value.scope) == ("nothing", "session")


async def test_a_write_replaces_and_a_delete_says_whether_there_was_something(log: EventLog) -> None:
    files = files_of(log)
    await files.write("a", "longer than the next")
    await files.write("a", "short")
    assert await files.read("a") == "short"
    assert await files.delete("a") is True
    assert await files.delete("a") is False
    assert await files.list() == []


async def test_paths_are_listed_by_prefix(log: EventLog) -> None:
    files = files_of(log)
    for path in ("b/2", "b/1", "a%", "ab", "b1"):
        await files.write(path, path)
    assert await files.list("b/") == ["b/1", "b/2"]
    assert await files.list("b") == ["b/1", "b/2", "b1"]
    assert await files.list("a%") == ["a%"]


BAD_PATHS = [
    "../x",
    "a/../../x",
    "a/..",
    "/etc/x",
    "C:\\x",
    "C:/x",
    "..\\x",
    "a\\b",
    "",
    ".",
    "./a",
    "a//b",
    "a/",
    "a\0b",
    "a\nb",
    "\ud800",
    7,
]


@pytest.mark.parametrize("path", BAD_PATHS, ids=repr)
async def test_a_path_that_could_lead_out_of_the_store_is_refused(log: EventLog, tmp_path: Path, path: Any) -> None:
    files = files_of(log)
    before = sorted(tmp_path.rglob("*"))
    for call in (files.read, files.read_bytes, files.delete):
        with pytest.raises(InvalidName):
            await call(path)
    with pytest.raises(InvalidName):
        await files.write(path, "x")
    assert await files.list() == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("prefix", ["../x", "a/../x", "/etc", "..\\x", "a\0b", "/"])
async def test_a_prefix_follows_the_same_rules(log: EventLog, prefix: str) -> None:
    with pytest.raises(InvalidName):
        await files_of(log).list(prefix)


async def test_names_that_differ_in_case_or_unicode_form_are_different_files(log: EventLog) -> None:
    files = files_of(log)
    names = ["a.txt", "A.txt", "caf\u00e9", "cafe\u0301", "nul", "CON", "a b", "..a", "a..", "%2e%2e"]
    for name in names:
        await files.write(name, name)
    assert [await files.read(name) for name in names] == names


async def test_a_path_has_at_most_255_characters(log: EventLog) -> None:
    files = files_of(log)
    await files.write("a" * 255, "x")
    for long in ("a" * 256, "a" * 300):
        with pytest.raises(LimitExceeded):
            await files.write(long, "x")
    assert await files.list() == ["a" * 255]


async def test_a_file_has_at_most_8_mib(log: EventLog) -> None:
    files = files_of(log)
    await files.write("a", b"x" * MAX_FILE_BYTES)
    with pytest.raises(LimitExceeded):
        await files.write("a", b"y" * (MAX_FILE_BYTES + 1))
    assert await files.read_bytes("a") == b"x" * MAX_FILE_BYTES


@pytest.mark.parametrize("content", [None, 7, ["x"], "\ud800"], ids=repr)
async def test_content_is_text_or_bytes(log: EventLog, content: Any) -> None:
    with pytest.raises(InvalidName, match="file content"):
        await files_of(log).write("a", content)
    assert await files_of(log).list() == []


async def test_writes_at_the_same_time_leave_one_of_them_whole(log: EventLog) -> None:
    contents = [bytes([each]) * 100_000 for each in range(8)]
    await asyncio.gather(*(files_of(log).write("a", content) for content in contents))
    assert await files_of(log).read_bytes("a") in contents
