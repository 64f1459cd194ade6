"""Fixtures for pytest, which finds them by itself where this library is installed. docs/testing.md shows each.

None of them is a coroutine, so they work with pytest-asyncio in both of its modes, with anyio, and in plain tests that
call `asyncio.run`. A fixture of the same name in a test's own files goes before the one in here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing.clock import ManualClock
from eventlog.testing.crash import crashed as crashed_into
from eventlog.testing.recording import Recording

Crashed = Callable[..., AbstractAsyncContextManager[EventLog]]


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands at 2026-01-01 until the test moves it; `event_log` then goes by it."""
    return ManualClock()


@pytest.fixture
def event_log(tmp_path: Path, request: pytest.FixtureRequest) -> EventLog:
    """A log in the test's own folder: `async with event_log as log: ...`. It goes by `manual_clock` if that is used."""
    clock = request.getfixturevalue("manual_clock") if "manual_clock" in request.fixturenames else None
    return EventLog(tmp_path / "agent.db", clock=clock)


@pytest.fixture
def recording() -> Recording:
    """A hook that keeps what it is shown: `runtime.add_hook("recording", recording.hook)`, then `recording.events`."""
    return Recording()


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    """What a SIGKILL now would leave of an open log: `async with crashed(log) as after: ...`; see `testing.crashed`."""
    numbers = count(1)

    def copy(log: EventLog, **settings: Any) -> AbstractAsyncContextManager[EventLog]:
        return crashed_into(log, tmp_path / f"crashed-{next(numbers)}", **settings)

    return copy
