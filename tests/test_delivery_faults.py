"""What went wrong with deliveries when somebody looked for it, each with the way in which it was found."""

from __future__ import annotations

import asyncio
import logging
import resource
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventlog.durable import DeliveryPolicy, HookCallContext
from eventlog.durable.readers import GrantedJobs
from eventlog.durable.worker import Worker
from eventlog.errors import InvalidName
from tests import victims
from tests.extension_kit import JOB, TURN, Bench, Recorder, bench, hang, start


async def test_a_handler_that_cancels_its_own_task_has_failed_and_does_not_hold_its_lane(tmp_path: Path) -> None:
    """R30 R36: its delivery stayed "delivering" for ever, without a call."""

    async def cancel_itself(event: Any, context: HookCallContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with bench(tmp_path) as it:
        handler = Recorder(cancel_itself)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await it.worker.idle()
        assert [(row.state, row.last_error) for row in await it.live()] == [
            ("pending", "CancelledError"),
            ("pending", None),
        ]
        await it.pass_time(6)
        assert await it.live() == []
    assert handler.turns == ["t1", "t1", "t2"]


async def test_what_a_worker_could_not_hand_back_is_taken_up_by_the_next_one_of_the_same_owner(tmp_path: Path) -> None:
    """R31: it waited for the next process, because it is its own owner's and seemed to be in flight."""
    async with bench(tmp_path) as it:
        first, second = Recorder(hang), Recorder()
        installed = await it.install(handler=first)
        await it.turn("a", "t1")
        await first.started.wait()
        await refuse_writes(it, True)
        await it.worker.stop(grace_s=0)
        await refuse_writes(it, False)
        assert [row.state for row in await it.live()] == ["delivering"]
        again = Worker(it.log, DeliveryPolicy(), Random(7))
        again.serve(installed.key, "acme", {TURN: second, JOB: second})
        await again.start()
        await again.idle()
        await again.stop()
        assert await it.live() == []
    assert second.turns == ["t1"]


async def refuse_writes(it: Bench, refused: bool) -> None:
    writing = it.log.store._writing
    assert writing is not None
    await writing.unit(lambda connection: connection.execute(f"PRAGMA query_only = {refused}").close())


async def test_r13_a_job_is_found_although_another_project_has_one_of_the_same_id(tmp_path: Path) -> None:
    """R13: the newest job of that id was looked at, and refused, because it is of a project that is not granted."""
    async with bench(tmp_path) as it:
        installed = await it.install(handler=Recorder())
        for session_id, project in (("ours", "p"), ("theirs", "q")):
            await start(it.log, session_id, project)
            await it.log.append(session_id, "job.completed", {"jobId": "nightly", "status": "failed", "error": project})
        jobs = GrantedJobs(it.log, installed, DeliveryPolicy().retention_s)
        assert ((await jobs.get("nightly")).session_id, (await jobs.get("nightly")).error) == ("ours", "p")
        await it.extensions.revoke("acme", "p")
        with pytest.raises(InvalidName, match="nightly"):
            await jobs.get("nightly")


async def test_a_handler_that_appends_what_it_is_called_for_is_not_called_for_that_if_it_knows_it_again(
    tmp_path: Path,
) -> None:
    """As `docs/extensions.md` advises; its second delivery appends nothing either."""
    async with bench(tmp_path) as it:

        async def follow_up(event: Any, context: HookCallContext) -> None:
            if not event.turn_id.startswith("followup-"):
                turn_id = f"followup-{event.event_id}"
                await it.log.append("a", "turn.completed", {}, turn_id=turn_id, key=event.event_id)
                if len(handler.events) == 1:
                    raise RuntimeError("after the append")

        handler = Recorder(always=follow_up)
        await it.install(handler=handler)
        event = await it.turn("a", "t1")
        await it.worker.idle()
        await it.pass_time(6)
        assert handler.turns == ["t1", "t1", f"followup-{event.id}"]
        assert it.log.head == event.position + 1


async def test_a_loop_of_a_handler_and_what_it_appends_goes_one_by_one_and_ends_when_it_is_paused(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        most: list[int] = []

        async def loop(event: Any, context: HookCallContext) -> None:
            await it.log.append("a", "turn.completed", {}, turn_id=f"{event.turn_id}+")
            most.append(len(await it.live()))
            if len(most) == 50:
                await it.extensions.pause("acme")

        await it.install(handler=Recorder(always=loop))
        await it.turn("a", "t")
        await it.worker.idle()
        assert max(most) == 2  # the one that is called, and what it appended
        assert len(most) == 50
        assert [row.state for row in await it.live()] == ["pending"]


class Told(logging.Handler):
    """Sets an event when it is told that deliveries wait for the disk."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        if "deliveries wait" in record.getMessage():
            self._event.set()


async def with_no_room_to_settle(folder: Path) -> None:
    """In a process of its own, since the limit is on every file of a process."""
    async with bench(folder) as it:
        gate, told = asyncio.Event(), asyncio.Event()
        logging.getLogger("eventlog.durable").addHandler(Told(told))

        async def wait(event: Any, context: HookCallContext) -> None:
            await gate.wait()

        handler = Recorder(always=wait)
        await it.install(handler=handler)
        for number in range(20):
            await it.turn(f"s{number}", "t1")
        while len(handler.events) < 16:
            await asyncio.sleep(0)
        wal_bytes = Path(f"{it.log.path}-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal_bytes, resource.RLIM_INFINITY))
        gate.set()
        waiting = asyncio.create_task(it.worker.idle())
        await told.wait()
        assert [row.state for row in await it.live()].count("delivering") == 16
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        it.clock.advance(1)
        await waiting
        assert await it.live() == []
        assert len(handler.events) == 20, "what had returned was called again"
        assert (await it.log.check()).ok


async def test_acks_that_the_disk_has_no_room_for_are_kept_and_stored_when_it_has(tmp_path: Path) -> None:
    assert await victims.ended(victims.start(with_no_room_to_settle, tmp_path)) == 0
