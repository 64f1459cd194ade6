"""The runtime as a whole: it is started once, and one runtime serves an agent on a log."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from eventlog import Event, EventLog, HookContext, Runtime, define_hook
from eventlog.durable import DeliveryPolicy
from eventlog.errors import BrokenInvariant, InvalidName, StorageFull
from tests.extension_kit import Recorder, complete_turn
from tests.observing import Trace
from tests.steering_kit import HANDLERS, extension
from tests.test_errors_of_the_disk import no_more_room, room


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
        for _ in range(20):  # a runtime that went on would have shown it by now
            await asyncio.sleep(0)
        assert seen == []


async def test_a_runtime_whose_log_was_closed_stops_all_the_same(tmp_path: Path) -> None:
    log = await EventLog(tmp_path / "agent.db").open()
    runtime = await Runtime(log).start()
    await log.close()
    await runtime.stop()
    assert log.agents_served == set()


async def test_a_runtime_says_which_grants_do_not_count_and_which_extension_has_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Grants count when an extension is first installed; a queue that stays empty looks as if nothing happened."""
    recorder = Recorder()
    extension(tmp_path / "agent" / "extensions", "points", recorder)
    starts: list[tuple[dict[str, list[str]], str]] = [
        ({}, 'extension "points" is granted no project, so nothing is delivered to it'),
        ({"points": ["p"]}, 'extension "points" is not granted p: grants count when it is first installed'),
    ]
    for grants, said in starts:
        caplog.clear()
        async with EventLog(tmp_path / "agent.db") as log, Runtime(log, tmp_path, grants=grants) as runtime:
            assert [message for message in caplog.messages if said in message] == [caplog.messages[0]]
            await complete_turn(log, f"s{len(grants)}", "t1")
            await runtime.settled()
    assert recorder.events == []
    caplog.clear()
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log, tmp_path) as runtime:
        await runtime.extensions.grant("points", "p")
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log, tmp_path, grants={"points": ["p"]}):
        assert not [message for message in caplog.messages if "not granted p" in message]


async def test_a_runtime_tells_what_extensions_were_refused(tmp_path: Path) -> None:
    """The gaps of all of them, and those of one by its name."""
    for name in ("one", "two"):
        HANDLERS[name] = Recorder()
        extension(tmp_path / "agent" / "extensions", name, HANDLERS[name])
    grants = {"one": ["p"], "two": ["p"]}
    async with (
        EventLog(tmp_path / "agent.db") as log,
        Runtime(log, tmp_path, grants=grants, policy=DeliveryPolicy(capacity=1)) as runtime,
    ):
        await runtime.extensions.pause("one")
        for number in range(3):
            await complete_turn(log, "a", f"t{number}")
            await runtime.settled()
        assert await runtime.extensions.gaps("two") == []
        (gap,) = await runtime.extensions.gaps("one")
        assert (gap.extension, gap.project, gap.reason, gap.first, gap.last, gap.count) == (
            "one",
            "p",
            "capacity",
            3,
            4,
            2,
        )
        assert await runtime.extensions.gaps() == [gap]


async def test_a_runtime_that_finds_no_room_to_start_leaves_nothing_running_and_starts_later(tmp_path: Path) -> None:
    trace = Trace()
    async with EventLog(tmp_path / "agent.db") as log:
        runtime = Runtime(log)
        for number in range(60):
            runtime.add_hook(f"hook {number} {'x' * 100}", trace.hook(f"h{number}"))
        await no_more_room(log, pages=0)
        with pytest.raises(StorageFull):
            await runtime.start()
        assert log.agents_served == set()
        await room(log)
        await log.start_session("before")
        assert trace.calls == []
        async with runtime:
            await log.start_session("s1")
            await runtime.settled()
        assert sorted(trace.calls) == sorted((f"h{number}", "s1", 0) for number in range(60))


async def test_r54_a_hook_runs_in_the_process_that_serves(tmp_path: Path) -> None:
    processes: list[int] = []

    async def where(event: Event[object], ctx: HookContext) -> None:
        processes.append(os.getpid())

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("where", define_hook(events={"*": where}))
        await runtime.settled()
        await log.start_session("s")
        await runtime.settled()
    assert processes == [os.getpid()]


async def test_r56_local_and_cloud_turns_reach_a_hook_alike(tmp_path: Path) -> None:
    """What a session says of where it runs changes nothing."""
    seen: list[tuple[str, str]] = []

    async def see(event: Event[object], ctx: HookContext) -> None:
        seen.append((event.session_id, event.type))

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("see", define_hook(events={"*": see}))
        await runtime.settled()
        for place in ("local", "cloud"):
            session = await log.start_session(place, abs={"runtime": place}, channel=place)
            await session.append("turn.started", {}, turn_id="t")
            await session.append("turn.completed", {"result": place}, turn_id="t")
        await runtime.settled()
    types = ["session.started", "turn.started", "turn.completed"]
    assert sorted(seen) == sorted((place, type_) for place in ("local", "cloud") for type_ in types)


async def test_r107_r117_kv_and_files_outlive_the_state_root(tmp_path: Path) -> None:
    """The durable places are in the log's file; a hosted replace takes the state root away, and nothing of them."""
    roots: list[Path] = []

    async def keep(event: Event[object], ctx: HookContext) -> None:
        ctx.state_root.mkdir(parents=True, exist_ok=True)
        (ctx.state_root / "scratch.txt").write_text("gone with the machine")
        roots.append(ctx.state_root)
        await ctx.host.kv.put("kept", {"index": event.index})
        await ctx.host.files.write("notes.md", "kept")

    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        runtime.add_hook("keep", define_hook(events={"session.started": keep}))
        await runtime.settled()
        await log.start_session("s")
        await runtime.settled()
    shutil.rmtree(roots[0])
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log) as runtime:
        await log.session("s")
        host = runtime.host_for("s")
        assert await host.kv.get("kept") == {"index": 0}
        assert await host.files.read("notes.md") == "kept"


@pytest.mark.parametrize("broken", ["hook", "handler"])
async def test_r41_hooks_and_durable_handlers_do_not_touch_each_other(tmp_path: Path, broken: str) -> None:
    """A failing or stuck hook changes no delivery, and a failing handler keeps nothing from a hook."""
    folder = tmp_path / "agent/extensions/points"
    folder.mkdir(parents=True)
    (folder / "extension.json").write_text(MANIFEST)
    (folder / "main.py").write_text(FAILS if broken == "handler" else WORKS)
    seen: list[str] = []

    async def see(event: Event[object], ctx: HookContext) -> None:
        seen.append(event.type)
        if broken == "hook":
            raise RuntimeError("of the hook")

    async with (
        EventLog(tmp_path / "agent.db") as log,
        Runtime(log, agent_dir=tmp_path, grants={"points": ["default"]}) as runtime,
    ):
        runtime.add_hook("see", define_hook(events={"turn.completed": see}))
        await runtime.settled()
        session = await log.start_session("s")
        await session.append("turn.completed", {"result": "r"}, turn_id="t")
        await runtime.settled()
        owed = [(each.state, each.attempts) for each in await runtime.extensions.deliveries()]
        assert owed == ([("pending", 1)] if broken == "handler" else [])
        (row,) = runtime.hooks
        assert (seen, row.calls, row.errors) == (["turn.completed"], 1, int(broken == "hook"))


MANIFEST = """{
  "publisher": "acme", "name": "points", "version": "1.0.0", "engines": {"api": "1"}, "main": "main.py",
  "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
  "hooks": [{"event": "conversation.turn.completed", "handler": "score"}]
}"""
WORKS = """
def activate(context):
    async def score(event, call):
        pass

    context.subscriptions.append(context.hooks.register("score", score))
"""
FAILS = WORKS.replace("pass", "raise RuntimeError('of the handler')")
