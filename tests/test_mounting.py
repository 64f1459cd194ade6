"""The observe hooks that an extension mounts end with it and come back with it, in a runtime that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog.control import ask, steer
from eventlog.errors import DiscoveryError
from eventlog.inspection import Inspection
from eventlog.log import EventLog
from eventlog.runtime import Runtime
from eventlog.testing import ManualClock
from tests.extension_kit import Recorder, complete_turn, hang
from tests.steering_kit import HANDLERS, extension

MIRROR = """
from eventlog import define_hook
from tests.steering_kit import HANDLERS

hook = define_hook(events={"turn.completed": HANDLERS["mirror"]})
"""

Do = Callable[..., Awaitable[Any]]


class Mirror:
    """An observe handler that notes what it is shown, and waits while it is told to."""

    def __init__(self) -> None:
        self.shown: list[str | None] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def __call__(self, event: Any, context: Any) -> None:
        self.shown.append(event.turn_id)
        await self.may_go_on.wait()


def agent_with_a_mirror(folder: Path) -> Path:
    """An agent with one extension, which mounts an observe hook."""
    points = extension(folder / "agent" / "extensions", "points", Recorder())
    (points / "hooks").mkdir()
    (points / "hooks" / "mirror.py").write_text(MIRROR)
    return points


@asynccontextmanager
async def mirrored(folder: Path, handler: Recorder | None = None) -> AsyncIterator[tuple[EventLog, Runtime, Mirror]]:
    mirror = HANDLERS["mirror"] = Mirror()
    agent_with_a_mirror(folder)
    HANDLERS["points"] = handler or Recorder()
    async with (
        EventLog(folder / "agent.db", clock=ManualClock()) as log,
        Runtime(log, folder, grants={"points": ["p"]}) as runtime,
    ):
        yield log, runtime, mirror


def by_call(log: EventLog, runtime: Runtime) -> Do:
    async def do(verb: str, *arguments: Any) -> Any:
        return await getattr(runtime.extensions, verb)(*arguments)

    return do


def by_socket(log: EventLog, runtime: Runtime) -> Do:
    async def do(verb: str, argument: str) -> Any:
        return await ask(log.path, f"extensions.{verb}", **{"path" if verb == "install" else "name": argument})

    return do


@pytest.mark.parametrize("steering", [by_call, by_socket])
@pytest.mark.parametrize("pair", [("disable", "enable"), ("uninstall", "install")])
async def test_the_hooks_of_an_extension_end_with_it_and_come_back_with_it(
    tmp_path: Path, steering: Callable[[EventLog, Runtime], Do], pair: tuple[str, str]
) -> None:
    async with mirrored(tmp_path) as (log, runtime, mirror):
        do = steering(log, runtime)
        stop, start = pair
        for turn_id in ("t1", "t2"):
            await complete_turn(log, "a", turn_id)
        await runtime.settled()
        await do(stop, "points")
        assert runtime.hooks == []
        unseen = await complete_turn(log, "a", "t3")
        await runtime.settled()
        assert [row.loaded for row in await Inspection(log).hooks()] == [False]
        await do(start, "points" if start == "enable" else str(tmp_path / "agent" / "extensions" / "points"))
        await complete_turn(log, "a", "t4")
        await runtime.settled()
        assert mirror.shown == ["t1", "t2", "t4"]
        (row,) = runtime.hooks
        assert (row.name, row.calls) == ("points__mirror", 3)
        gaps = await Inspection(log).hook_gaps()
        assert [(gap.first, gap.last) for gap in gaps] == [(unseen.position, unseen.position)]
        assert [row.loaded for row in await Inspection(log).hooks()] == [True]


async def test_a_hook_that_is_behind_when_its_extension_is_disabled_is_called_no_more_and_has_a_gap(
    tmp_path: Path,
) -> None:
    async with mirrored(tmp_path) as (log, runtime, mirror):
        mirror.may_go_on.clear()
        first = await complete_turn(log, "a", "t1")
        while not mirror.shown:
            await asyncio.sleep(0)
        last = [await complete_turn(log, "a", turn_id) for turn_id in ("t2", "t3")][-1]
        await runtime.extensions.disable("points")
        mirror.may_go_on.set()
        await runtime.settled()
        assert mirror.shown == ["t1"]
        # Nobody waits to learn how the call ends that is underway, so the gap has it too.
        (gap,) = await Inspection(log).hook_gaps()
        assert (gap.first, gap.last, gap.at_most) == (first.position, last.position, 3)


async def test_a_hook_that_the_agent_removed_does_not_come_back_with_its_extension(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as (log, runtime, mirror):
        await runtime.extensions.disable("points")
        hooks = tmp_path / "agent" / "hooks"
        hooks.mkdir()
        (hooks / "points__mirror.py").write_text("from eventlog import disable_hook\n\nhook = disable_hook()\n")
        await runtime.extensions.enable("points")
        await complete_turn(log, "a", "t1")
        await runtime.settled()
        assert (runtime.hooks, mirror.shown) == ([], [])


async def test_an_extension_whose_hooks_do_not_load_is_not_enabled(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as (_, runtime, _):
        await runtime.extensions.disable("points")
        (tmp_path / "agent" / "extensions" / "points" / "hooks" / "mirror.py").write_text("hook = 1\n")
        with pytest.raises(DiscoveryError, match="hook-export-invalid"):
            await runtime.extensions.enable("points")
        (installed,) = await runtime.extensions.list()
        assert (installed.state, runtime.hooks) == ("disabled", [])


async def test_enabling_what_is_enabled_mounts_nothing_twice(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as (log, runtime, mirror):
        await runtime.extensions.enable("points")
        await runtime.extensions.install(tmp_path / "agent" / "extensions" / "points")
        await complete_turn(log, "a", "t1")
        await runtime.settled()
        assert mirror.shown == ["t1"]


@pytest.mark.parametrize("turns", range(1, 24))
async def test_a_change_whose_caller_is_cancelled_is_made_wholly_all_the_same(tmp_path: Path, turns: int) -> None:
    """In the process as in the file: its calls end, and so do its hooks."""
    recorder = Recorder(always=hang)
    async with mirrored(tmp_path, recorder) as (log, runtime, _):
        await complete_turn(log, "a", "t1")
        await recorder.started.wait()
        disabling = asyncio.create_task(runtime.extensions.disable("points"))
        for _ in range(turns):
            await asyncio.sleep(0)
        disabling.cancel()
        await asyncio.gather(disabling, return_exceptions=True)
        while runtime.extensions.is_active("points"):
            await asyncio.sleep(0.001)
        (installed,) = await runtime.extensions.list()
        assert (installed.state, installed.live, runtime.hooks) == ("disabled", 0, [])
        assert recorder.contexts[0].signal.reason == "disabled"


# ------------------------------------------------------------------------------------------ installed from elsewhere


async def test_an_extension_that_was_installed_from_elsewhere_is_served_by_the_next_runtime_too(tmp_path: Path) -> None:
    """With its hooks, whether the server was told or the file was changed while none was up."""
    mirror, recorder = Mirror(), Recorder()
    HANDLERS["mirror"] = mirror
    points = agent_with_a_mirror(tmp_path / "elsewhere").rename(tmp_path / "points")
    HANDLERS["points"] = recorder
    (tmp_path / "agent").mkdir()
    path = tmp_path / "agent.db"
    await steer(path, "extensions.install", path=str(points), grants=["p"])
    for turn_id in ("t1", "t2"):
        async with EventLog(path, clock=ManualClock()) as log, Runtime(log, tmp_path) as runtime:
            await complete_turn(log, "a", turn_id)
            await runtime.settled()
            assert [hook.name for hook in runtime.hooks] == ["points__mirror"]
    assert mirror.shown == recorder.turns == ["t1", "t2"]


async def test_what_stands_in_another_agents_folder_is_left_to_its_own_runtime(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as (log, runtime, _):
        (tmp_path / "other" / "agent").mkdir(parents=True)
        async with Runtime(log, tmp_path / "other") as other:
            assert runtime.extensions.is_active("points")
            assert not other.extensions.is_active("points")


async def test_one_extension_is_served_by_one_runtime_of_a_process(tmp_path: Path) -> None:
    recorder = Recorder()
    points = extension(tmp_path, "points", recorder)
    async with EventLog(tmp_path / "agent.db", clock=ManualClock()) as log:
        for name in ("one", "two"):
            (tmp_path / name / "agent").mkdir(parents=True)
        async with Runtime(log, tmp_path / "one") as one:
            await one.extensions.install(points, ["p"])
            async with Runtime(log, tmp_path / "two") as two:
                assert not two.extensions.is_active("points")
                await complete_turn(log, "a", "t1")
                await one.settled()
        async with Runtime(log, tmp_path / "two") as two:
            assert two.extensions.is_active("points")
    assert recorder.turns == ["t1"]


async def test_an_extension_whose_folder_has_gone_is_told_to_have_failed(tmp_path: Path) -> None:
    async with mirrored(tmp_path):
        pass
    (tmp_path / "agent" / "extensions" / "points").rename(tmp_path / "gone")
    async with EventLog(tmp_path / "agent.db", clock=ManualClock()) as log:
        await complete_turn(log, "a", "t1")
    async with EventLog(tmp_path / "agent.db", clock=ManualClock()) as log, Runtime(log, tmp_path) as runtime:
        (installed,) = await runtime.extensions.list()
        assert installed.failure is not None
        assert "there is no points in" in installed.failure
        assert installed.live == 1  # and waits for it
