"""The testing kit: its documented code is run as users run it, with each of the plugins that run coroutines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from eventlog import EventLog, Runtime, Session
from eventlog.testing import ManualClock, Recording, crashed, settled
from tests.log_kit import CHECKOUT, KILLED, all_of, child, fill, indexes, line_of, whole
from tests.test_docs import blocks

FUNCTION = ["-o", "asyncio_default_fixture_loop_scope=function"]
MODES: dict[str, tuple[str, str, list[str]]] = {
    "asyncio-auto": ("pytest_asyncio.plugin", "", ["-o", "asyncio_mode=auto", *FUNCTION]),
    "asyncio-strict": ("pytest_asyncio.plugin", "import pytest\npytestmark = pytest.mark.asyncio\n", FUNCTION),
    "anyio": (
        "anyio.pytest_plugin",
        "import pytest\npytestmark = [pytest.mark.anyio, pytest.mark.parametrize('anyio_backend', ['asyncio'])]\n",
        [],
    ),
}


def pytest_alone(folder: Path, *plugins: str, options: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with these plugins and no others."""
    words = [word for plugin in plugins for word in ("-p", plugin)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *words, *(options or []), str(folder)],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("mode", MODES)
def test_the_tests_of_the_guide_pass(tmp_path: Path, mode: str) -> None:
    runner, first, options = MODES[mode]
    if find_spec(runner.partition(".")[0]) is None:
        pytest.skip(f"{runner} is not installed")
    code = "\n\n".join(blocks("docs/testing.md", "python"))
    (tmp_path / "test_guide.py").write_text(f"{first}\n{code}")
    done = pytest_alone(tmp_path, "eventlog.testing.plugin", runner, options=options)
    assert f"{code.count('async def test_')} passed" in done.stdout, done.stdout


def test_the_fixtures_need_no_plugin_and_give_way_to_those_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("""
import asyncio, pytest

@pytest.fixture
def recording():
    return "the user's own"

def test_plain(event_log, recording, request):
    async def use():
        async with event_log as log:
            await log.start_session("s1")
            return type(log.clock).__name__
    assert asyncio.run(use()) != "ManualClock"
    assert recording == "the user's own"
""")
    done = pytest_alone(tmp_path, "eventlog.testing.plugin")
    assert "1 passed" in done.stdout, done.stdout


def test_a_log_that_a_test_does_not_close_does_not_hold_up_the_end(tmp_path: Path) -> None:
    (tmp_path / "test_open.py").write_text("""
import asyncio

def test_it_is_left_open(event_log):
    asyncio.run(event_log.open())
""")
    done = pytest_alone(tmp_path, "eventlog.testing.plugin")
    assert "1 passed" in done.stdout, done.stdout


# --------------------------------------------------------------------------------------------------------- crashed


KILLED_AT = """
async def main():
    async with EventLog(path) as log:
        session = await log.start_session("s1")
        for number in range(20):
            await session.append("test.noted", {"number": number})
        say("appended")
        sys.stdin.readline()

asyncio.run(main())
"""


async def test_a_copy_is_what_a_real_kill_leaves(tmp_path: Path) -> None:
    with child(KILLED_AT, tmp_path / "killed.db") as process:
        assert line_of(process) == "appended"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == KILLED
    async with EventLog(tmp_path / "alive.db") as log:
        await fill(await log.start_session("s1"), 20)
        async with crashed(log) as after, EventLog(tmp_path / "killed.db") as killed:
            for each in (after, killed):
                await whole(each)
                assert indexes(await all_of((await each.session("s1")).read())) == list(range(21))
            assert {(await each.stats())["epoch"] for each in (after, killed)} == {2}
            assert after.path.parent != log.path.parent
        assert not after.path.exists()
        await fill(await log.session("s1"), 1)


async def test_copies_that_are_made_while_others_append_are_whole(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db", slice_rows=64) as log:
        sessions = [await log.start_session(f"s{number}") for number in range(8)]

        async def append_on(session: Session) -> None:
            while True:
                await session.append("test.noted", {"text": "x" * 500})

        work = [asyncio.ensure_future(append_on(session)) for session in sessions]
        for number in range(10):
            answered = log.head
            async with crashed(log, tmp_path / f"crashed-{number}") as after:
                assert after.head >= answered
                await whole(after)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def test_a_clock_that_was_moved_goes_on_in_the_copy_and_hooks_begin_at_its_head(tmp_path: Path) -> None:
    clock = ManualClock()
    async with EventLog(tmp_path / "agent.db", clock=clock) as log:
        await fill(await log.start_session("s1"), 3)
        clock.advance(1_000)
        async with crashed(log) as after, Runtime(after) as runtime:
            recording = Recording()
            runtime.add_hook("recording", recording.hook)
            assert after.clock.now_us() == clock.now_us()
            clock.advance(5)
            assert after.clock.now_us() == clock.now_us()
            await (await after.session("s1")).append("test.noted", {"n": "new"})
            await settled(runtime)
            assert [event.index for event in recording.events] == [4]


# ----------------------------------------------------------------------------------------------- recording and settled


async def test_a_recording_keeps_what_it_was_made_for_and_waits_for_it(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        everything, messages = Recording(), Recording(["message.received"])
        runtime.add_hook("everything", everything.hook)
        runtime.add_hook("messages", messages.hook)
        session = await log.start_session("s1")
        waiting = asyncio.ensure_future(messages.seen("message.received", count=2))
        for text in ("one", "two", "three"):
            await session.append("message.received", {"text": text}, turn_id="t1")
        assert (await waiting).data.text == "two"
        await settled(runtime)
        assert everything.types == ["session.started", *["message.received"] * 3]
        assert messages.events == everything.of("message.received")
        with pytest.raises(TimeoutError):
            await messages.seen("message.received", count=4, timeout_s=0.01)
