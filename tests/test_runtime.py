"""The runtime as a whole: it is started once, and one runtime serves an agent on a log."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from eventlog import Event, EventLog, HookContext, Runtime, define_hook
from eventlog.errors import BrokenInvariant, InvalidName


async def test_r126_a_second_runtime_of_the_same_agent_is_refused_until_the_first_has_stopped(tmp_path: Path) -> None:
    """Two of them would show each event twice."""
    async with EventLog(tmp_path / "agent.db") as log:
        async with Runtime(log):
            with pytest.raises(InvalidName, match="another Runtime"):
                await Runtime(log).start()
        async with Runtime(log):
            pass


async def test_a_runtime_that_runs_is_not_started_again(tmp_path: Path) -> None:
    seen: list[int] = []

    async def see(event: Event[object], ctx: HookContext) -> None:
        seen.append(event.index)

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("see", define_hook(events={"*": see}))
        with pytest.raises(InvalidName, match="started already"):
            await runtime.start()
        await runtime.settled()
        await log.start_session("s")
        await runtime.settled()
        assert seen == [0]


async def test_a_unit_that_raises_stop_iteration_settles_its_waiter(tmp_path: Path) -> None:
    """No future takes that error, so its waiter would wait for ever."""

    def unit(connection: sqlite3.Connection) -> None:
        next(iter(connection.execute("SELECT 1 WHERE 0")))

    async with EventLog(tmp_path / "agent.db") as log:
        with pytest.raises(BrokenInvariant):
            await log.store.read(unit)


async def test_a_stop_that_is_cancelled_goes_on_and_another_waits_for_it(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def slow(event: Event[object], ctx: HookContext) -> None:
        started.set()
        await asyncio.Event().wait()

    async with EventLog(tmp_path / "agent.db") as log:
        runtime = Runtime(log)
        runtime.add_hook("slow", define_hook(events={"*": slow}))
        await runtime.start()
        await log.start_session("s")
        await started.wait()
        stopping = asyncio.create_task(runtime.stop(0.05))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await runtime.stop(0.05)
        assert log.agents_served == set()
        await runtime.start()
        await runtime.stop()


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_stop_during_a_start_leaves_nothing_running(tmp_path: Path, turns: int) -> None:
    seen: list[int] = []

    async def see(event: Event[object], ctx: HookContext) -> None:
        seen.append(event.index)

    async with EventLog(tmp_path / "agent.db") as log:
        runtime = Runtime(log)
        runtime.add_hook("see", define_hook(events={"*": see}))
        starting = asyncio.create_task(runtime.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await runtime.stop()
        await asyncio.gather(starting, return_exceptions=True)
        await runtime.stop()
        assert log.agents_served == set()
        await log.start_session("s")
        assert seen == []


async def test_a_runtime_whose_log_was_closed_stops_all_the_same(tmp_path: Path) -> None:
    log = await EventLog(tmp_path / "agent.db").open()
    runtime = await Runtime(log).start()
    await log.close()
    await runtime.stop()
    assert log.agents_served == set()
