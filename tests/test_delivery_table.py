"""What a durable handler really gets in each case that the contract names, and what its business really did.

``python -m tests.test_delivery_table`` plays all cases and writes what it found into ``docs/guarantees.md``.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventlog.log import EventLog
from eventlog.store.deliveries import Deliveries
from eventlog.store.extensions import Cleared
from eventlog.testing import ManualClock
from tests import victims
from tests.extension_kit import DAY_S, Bench, bench
from tests.ledger import Clerk, Ledger, Step, die, fail, hang, work, work_and_die, work_and_fail, work_and_hang

DOCUMENT = Path(__file__).parents[1] / "docs" / "guarantees.md"
BEGIN, END = "<!-- deliveries: written by a run -->", "<!-- deliveries: end -->"
LONGEST_BACKOFF_S = 900 * 1.2


class Found(NamedTuple):
    """What a case came to: events recorded, calls of the handler, rows of its business, what the queue holds."""

    events: int
    deliveries: int
    effects: int
    left: str


class Case(NamedTuple):
    """A case of the contract, what is done in it, and what it has to come to."""

    name: str
    story: str
    expected: Found
    play: Callable[[Scene], Awaitable[None]]


# -------------------------------------------------------------------------------------------------------- the scene


class Scene:
    """One case while it is played: a log, one extension that is granted project "p", its handler and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.ledger = Ledger(folder)
        self.events: set[str] = set()
        self.cleared = Cleared(0, 0)

    async def record(self, it: Bench, *turns: str, project: str = "p") -> None:
        """Complete turns, each named by its session and its number: "a1"."""
        for turn in turns:
            event = await it.turn(turn[0], turn, project)
            self.events.add(event.id)

    @asynccontextmanager
    async def serving(self, *script: Step, always: Step | None = None, start: bool = True) -> AsyncIterator[Bench]:
        """Serve as long as the block runs, with the policy as it is by default."""
        async with serving(self.folder, self.clock, self.ledger, script, always, start) as it:
            yield it

    async def die(self, *script: Step) -> None:
        """Serve in a process of its own until the handler ends it."""
        assert await victims.ended(victims.start(serve_until_killed, self.folder, script)) == -signal.SIGKILL

    async def found(self) -> Found:
        async with EventLog(self.folder / "agent.db", read_only=True) as log:
            left = await self._left(log)
        assert set(self.ledger.effects) <= {call.event_id for call in self.ledger.calls} <= self.events
        return Found(len(self.events), len(self.ledger.calls), len(self.ledger.effects), left or "nothing")

    async def _left(self, log: EventLog) -> str:
        def of_dead(connection: Any) -> list[tuple[str, int]]:
            sql = "SELECT reason, count(*) FROM delivery WHERE state = 'dead' GROUP BY reason"
            return list(connection.execute(sql).fetchall())

        live, gaps = len(await Deliveries(log.store).live()), await Deliveries(log.store).gaps()
        parts = [f"{live} in the queue"] if live else []
        parts += [f"{count} dead ({reason})" for reason, count in await log.store.read(of_dead)]
        parts += [f"{gap.count} in a gap ({gap.reason})" for gap in gaps]
        parts += [f"{self.cleared.live} cleared"] if self.cleared.live else []
        return ", ".join(parts)


@asynccontextmanager
async def serving(
    folder: Path, clock: ManualClock, ledger: Ledger, script: tuple[Step, ...], always: Step | None, start: bool = True
) -> AsyncIterator[Bench]:
    async with bench(folder, clock, start=start) as it:
        await it.install(handler=Clerk(ledger, script, always))
        await it.worker.idle()
        yield it


async def serve_until_killed(folder: Path, script: tuple[Step, ...]) -> None:
    """In a process of its own."""
    async with serving(folder, ManualClock(), Ledger(folder), script, None) as it:
        await it.worker.idle()


async def settle_and_die(folder: Path) -> None:
    """In a process of its own: end it behind the commit of an ACK, before the call that the same commit began."""
    async with serving(folder, ManualClock(), Ledger(folder), (), None, start=False) as it:
        await it.worker.run_once()
        while it.worker.running:
            await asyncio.sleep(0)
        await it.worker.run_once()
        os.kill(os.getpid(), signal.SIGKILL)


# -------------------------------------------------------------------------------------------------------- the cases


async def normal_completion(scene: Scene) -> None:
    async with scene.serving() as it:
        await scene.record(it, "a1", "a2", "b1")
        await it.worker.idle()


async def ungranted_project(scene: Scene) -> None:
    async with scene.serving() as it:
        await scene.record(it, "a1")
        await scene.record(it, "b1", "b2", project="q")
        await it.worker.idle()


async def duplicate_append(scene: Scene) -> None:
    async with scene.serving() as it:
        await it.log.start_session("a", project="p")
        for _ in range(3):
            event = await it.log.append("a", "turn.completed", {}, turn_id="a1", key="once")
            scene.events.add(event.id)
            await it.worker.idle()


async def duplicate_delivery(scene: Scene) -> None:
    async with scene.serving(work_and_fail) as it:
        await scene.record(it, "a1")
        await it.worker.idle()
        await it.pass_time(LONGEST_BACKOFF_S)


async def failure_and_recovery(scene: Scene) -> None:
    async with scene.serving(fail, fail) as it:
        await scene.record(it, "a1", "a2")
        await it.worker.idle()
        await it.pass_time(LONGEST_BACKOFF_S)
        await it.pass_time(LONGEST_BACKOFF_S)


async def failure_to_the_end(scene: Scene) -> None:
    async with scene.serving(*[fail] * 6) as it:
        await scene.record(it, "a1", "a2")
        await it.worker.idle()
        for _ in range(10):
            await it.pass_time(LONGEST_BACKOFF_S)


async def timeout_before_the_effect(scene: Scene) -> None:
    await _time_out(scene, hang)


async def timeout_after_the_effect(scene: Scene) -> None:
    await _time_out(scene, work_and_hang)


async def _time_out(scene: Scene, step: Step) -> None:
    async with scene.serving(step) as it:
        await scene.record(it, "a1")
        await _called(scene, 1)
        await it.pass_time(30)
        await it.pass_time(LONGEST_BACKOFF_S)


async def crash_before_the_effect(scene: Scene) -> None:
    await _crash(scene, die)


async def crash_between_effect_and_ack(scene: Scene) -> None:
    await _crash(scene, work_and_die)


async def _crash(scene: Scene, step: Step) -> None:
    async with scene.serving(start=False) as it:
        await scene.record(it, "a1", "a2")
    await scene.die(step)
    (killed,) = scene.ledger.calls
    async with scene.serving() as it:
        await it.worker.idle()
    again = scene.ledger.calls[1]
    assert again.event_id == killed.event_id
    assert again.request_id != killed.request_id


async def crash_between_ack_and_next_attempt(scene: Scene) -> None:
    async with scene.serving(start=False) as it:
        await scene.record(it, "a1", "a2")
    assert await victims.ended(victims.start(settle_and_die, scene.folder)) == -signal.SIGKILL
    assert len(scene.ledger.calls) == 1
    async with scene.serving(start=False) as it:
        (row,) = await it.live()
        assert (row.state, row.attempts) == ("delivering", 1)  # it was begun, and nobody was called
        await it.worker.start()
        await it.worker.idle()


async def restart(scene: Scene) -> None:
    async with scene.serving() as it:
        await scene.record(it, "a1")
        await it.worker.idle()
    async with scene.serving(start=False) as it:
        await scene.record(it, "a2", "b1")
    async with scene.serving() as it:
        await it.worker.idle()


async def stop_during_a_call(scene: Scene) -> None:
    async with scene.serving(hang) as it:
        await scene.record(it, "a1")
        await _called(scene, 1)
    async with scene.serving() as it:
        await it.worker.idle()


async def revocation_in_flight(scene: Scene) -> None:
    async with scene.serving(hang) as it:
        await it.extensions.grant("acme", "q")
        await scene.record(it, "a1", "a2")
        await scene.record(it, "b1", project="q")
        await _called(scene, 2)
        scene.cleared = await it.extensions.revoke("acme", "p")
        it.worker.abort((await it.extensions.find("acme")).key, "revoked", "p")
        await it.worker.idle()
        await it.extensions.grant("acme", "p")
        await it.pass_time(LONGEST_BACKOFF_S)


async def disable_and_enable(scene: Scene) -> None:
    async with scene.serving(work, hang) as it:
        await scene.record(it, "a1", "a2", "a3")
        await _called(scene, 2)
        key = (await it.extensions.find("acme")).key
        scene.cleared = await it.extensions.disable("acme")
        it.worker.abort(key, "disabled")
        await scene.record(it, "a4")
        await it.worker.idle()
        await it.extensions.enable("acme")
        await scene.record(it, "a5")
        await it.pass_time(LONGEST_BACKOFF_S)


async def queue_exhaustion(scene: Scene) -> None:
    async with scene.serving() as it:
        await it.extensions.pause("acme")
        await scene.record(it, *[f"{'abcdefghij'[number % 10]}{number}" for number in range(1_003)])
        await it.extensions.resume("acme")
        await it.worker.idle()


async def expiry(scene: Scene) -> None:
    async with scene.serving() as it:
        await it.extensions.pause("acme")
        await scene.record(it, "a1", "a2")
        await it.pass_time(7 * DAY_S)
        await it.extensions.resume("acme")
        await scene.record(it, "a3")
        await it.worker.idle()


async def _called(scene: Scene, times: int) -> None:
    """Wait for so many calls; the time limit of the test ends it otherwise."""
    while len(scene.ledger.calls) < times:
        await asyncio.sleep(0)


CASES = [
    Case("normal completion", "three turns in two conversations", Found(3, 3, 3, "nothing"), normal_completion),
    Case(
        "ungranted project",
        "one turn in a granted project, two in one that is not",
        Found(3, 1, 1, "nothing"),
        ungranted_project,
    ),
    Case(
        "duplicate append", "one turn appended three times with one `key`", Found(1, 1, 1, "nothing"), duplicate_append
    ),
    Case(
        "duplicate delivery",
        "the handler raises after its effect, and is called again",
        Found(1, 2, 1, "nothing"),
        duplicate_delivery,
    ),
    Case(
        "handler failure",
        "two calls raise; the next turn of the conversation waits",
        Found(2, 4, 2, "nothing"),
        failure_and_recovery,
    ),
    Case(
        "handler failure, always",
        "every call for one turn raises; the next turn follows the dead letter",
        Found(2, 7, 1, "1 dead (exhausted)"),
        failure_to_the_end,
    ),
    Case(
        "timeout before the effect",
        "a call does not return within 30 s",
        Found(1, 2, 1, "nothing"),
        timeout_before_the_effect,
    ),
    Case(
        "timeout after the effect",
        "a call has its effect and does not return within 30 s",
        Found(1, 2, 1, "nothing"),
        timeout_after_the_effect,
    ),
    Case(
        "crash before the effect",
        "SIGKILL in the handler; restart; the next turn waits",
        Found(2, 3, 2, "nothing"),
        crash_before_the_effect,
    ),
    Case(
        "crash between effect and ACK",
        "SIGKILL after the effect; restart: the same `eventId` again",
        Found(2, 3, 2, "nothing"),
        crash_between_effect_and_ack,
    ),
    Case(
        "crash between ACK and next attempt",
        "SIGKILL behind the commit of an ACK; restart: the next turn alone",
        Found(2, 2, 2, "nothing"),
        crash_between_ack_and_next_attempt,
    ),
    Case("restart", "one turn before it, two while nothing was up", Found(3, 3, 3, "nothing"), restart),
    Case(
        "orderly stop during a call",
        "the call is cancelled and does not count; restart",
        Found(1, 2, 1, "nothing"),
        stop_during_a_call,
    ),
    Case(
        "revocation in flight",
        "one call runs and one turn waits when their project is revoked; another project goes on; granted again",
        Found(3, 2, 1, "2 cleared"),
        revocation_in_flight,
    ),
    Case(
        "disable and enable",
        "one ACK; one call runs and one turn waits when it is disabled; one turn meanwhile; one after enabling",
        Found(5, 3, 2, "2 cleared"),
        disable_and_enable,
    ),
    Case(
        "queue exhaustion",
        "1,003 turns while paused; then resumed",
        Found(1_003, 1_000, 1_000, "3 in a gap (capacity)"),
        queue_exhaustion,
    ),
    Case("expiry", "two turns wait for seven days while paused; one after", Found(3, 1, 1, "2 dead (expired)"), expiry),
]


# -------------------------------------------------------------------------------------------------------- the table

_HEADER = """\
| case | what happens | events | deliveries | effects | left |
|---|---|---:|---:|---:|---|
"""


def line_of(case: Case, found: Found) -> str:
    numbers = " | ".join(f"{number:,}" for number in found[:3])
    return f"| {case.name} | {case.story} | {numbers} | {found.left} |\n"


def documented() -> str:
    """What stands between the two marks."""
    found = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"{DOCUMENT} has no {BEGIN} ... {END}"
    return found[1]


async def play(case: Case, folder: Path) -> Found:
    scene = Scene(folder)
    try:
        await case.play(scene)
        return await scene.found()
    finally:
        scene.ledger.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_r31_r39_deliveries_and_effects_are_as_documented(tmp_path: Path, case: Case) -> None:
    """R29 to R48: what was delivered and what the business did are counted apart, and stand in the document."""
    found = await play(case, tmp_path)
    assert found == case.expected
    assert line_of(case, found) in documented()


def test_the_document_has_these_cases_and_no_other() -> None:
    assert documented() == _HEADER + "".join(line_of(case, case.expected) for case in CASES)


async def _rewrite() -> None:
    lines = [_HEADER]
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(line_of(case, await play(case, Path(folder))))
        print(lines[-1], end="")
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{''.join(lines)}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    asyncio.run(_rewrite())
