"""The machine of `model` with the rest of the log's public face: tails, folds, copies, pruning, forgetting, tidying."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from eventlog.errors import InvalidName, SessionNotFound
from eventlog.events import Event
from eventlog.log import EventLog
from eventlog.session import Session
from tests.log_kit import all_of, first_of
from tests.torture.model import FORGOTTEN, NAMES, LogMachine, entry_of
from tests.torture.tally import Tally

USED = st.integers(0, 1_000)


class FaceMachine(LogMachine):
    """Whatever is asked, in whatever state the log is, the answer is that of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0
        self.used: dict[str, int] = dict.fromkeys(("a", "b", "c"), 0)
        self.ended: dict[str, int] = {}

    def a_session(self, name: str) -> Session | None:
        """The session, where it was started."""
        if not self.of(name):
            self.refuses(SessionNotFound, self.log.session, name)
            return None
        session: Session = self.run(self.log.session, name)
        return session

    # -- following ----------------------------------------------------------------------------------------------------

    @rule(name=NAMES, after=st.integers(-1, 10))
    def tail_a_session(self, name: str, after: int) -> None:
        """What is there, and then what comes."""
        self.step("tail a session")
        if (session := self.a_session(name)) is None:
            return

        start = min(after, session.next_index - 1)

        async def follow() -> list[Event[Any]]:
            found, tail = list[Event[Any]](), session.tail(after=start)
            while start + len(found) + 1 < session.next_index:
                found.append(await anext(tail))
            await session.append("own.followed", {})
            return [*found, await anext(tail)]

        found = self.run(follow)
        self.note(name, "own.followed", {})
        assert [entry_of(event) for event in found] == self.of(name)[start + 1 :]

    @precondition(lambda self: max(self.events, default=-1) >= self.floor)
    @rule(back=st.integers(1, 10))
    def tail_the_log(self, back: int) -> None:
        self.step("tail the log")
        expected = [position for position in self.events if position >= self.floor][-back:]
        found = self.run(first_of, self.log.tail(after=expected[0] - 1), len(expected))
        assert [event.position for event in found] == expected

    # -- folding ------------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def fold(self, name: str) -> None:
        """What was forgotten is passed: there is nothing in it."""
        self.step("fold")
        if (session := self.a_session(name)) is not None:
            said = [entry for entry in self.of(name) if entry[3] is not FORGOTTEN]
            assert self.run(session.fold, count, 0) == len(said)

    @rule(name=NAMES, tokens=USED)
    def complete_a_turn(self, name: str, tokens: int) -> None:
        """It is counted, at once and exactly once."""
        self.step("complete a turn")
        if (session := self.a_session(name)) is None:
            return
        turn = f"t{len(self.of(name))}"
        usage = {"inputTokens": tokens, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0}
        event = self.run(session.append, "turn.completed", {"usage": usage}, turn_id=turn)
        self.note_event(event)
        self.used[name] += tokens
        assert {each.key: each.input_tokens for each in self.run(self.log.usage)}.get(name, 0) == self.used[name]

    @rule(name=NAMES, job=st.sampled_from(["j1", "j2"]), ends=st.booleans())
    def tell_of_a_job(self, name: str, job: str, ends: bool) -> None:
        self.step("jobs")
        if (session := self.a_session(name)) is None:
            return
        id = f"{name}-{job}"
        data = {"jobId": id, "status": "succeeded"} if ends else {"jobId": id}
        event = self.run(session.append, "job.completed" if ends else "job.queued", data)
        self.note_event(event)
        assert self.run(self.log.job, id).session_id == name
        self.refuses(InvalidName, self.log.job, "never told of")

    # -- copies -------------------------------------------------------------------------------------------------------

    @rule()
    def backup(self) -> None:
        self.step("backup")
        self.copies += 1
        path = self.folder / f"copy{self.copies}.db"
        self.run(self.log.backup, path)
        self.look_at(path)

    @rule()
    def read_beside_the_owner(self) -> None:
        self.step("a reader beside the owner")
        self.look_at(self.log.path)

    def look_at(self, path: Path) -> None:
        reader = EventLog(path, read_only=True)
        self.run(reader.open)
        try:
            self.equals(reader)
        finally:
            self.run(reader.close)

    @rule()
    def export(self) -> None:
        self.step("export")

        async def lines() -> list[bytes]:
            return [line async for line in self.log.export()]

        found = [json.loads(line) for line in self.run(lines)]
        assert [(each["sessionId"], each["index"], each["type"]) for each in found] == [
            entry[:3] for entry in self.events.values()
        ]

    @rule()
    def list_sessions(self) -> None:
        self.step("sessions and stats")

        async def listed() -> dict[str, int]:
            return {info.id: info.next_index async for info in self.log.sessions()}

        names = dict.fromkeys(entry[0] for entry in self.events.values())
        assert self.run(listed) == {name: len(self.of(name)) for name in names} | self.ended
        assert self.run(self.log.stats)["events"] == len(self.events)

    # -- care ---------------------------------------------------------------------------------------------------------

    @rule(events=st.integers(0, 5))
    def end_a_session_and_prune(self, events: int) -> None:
        """It goes, and no other one does: they have not ended."""
        self.step("prune")
        self.copies += 1
        name = f"ended{self.copies}"

        async def live() -> None:
            session = await self.log.start_session(name)
            for _ in range(events):
                await session.append("own.type", {})
            await session.append("session.completed", {})
            assert (await self.log.prune(older_than_s=0.0)).events == events + 2

        self.run(live)
        self.head += events + 2
        self.floor = self.head + 1
        self.ended[name] = events + 2
        session = self.run(self.log.session, name)
        assert (self.run(all_of, session.read()), session.next_index) == ([], events + 2)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        """Its events are there, with their places, and nothing that they said."""
        self.step("forget")
        if self.a_session(name) is None:
            self.refuses(SessionNotFound, self.log.forget, name)
            return
        self.run(self.log.forget, name)
        self.events = {
            position: (*entry[:3], FORGOTTEN) if entry[0] == name else entry for position, entry in self.events.items()
        }
        self.keys = {key: entry for key, entry in self.keys.items() if key[0] != name}

    @rule(full=st.booleans())
    def vacuum(self, full: bool) -> None:
        self.step("vacuum")
        self.run(self.log.vacuum, full)


def count(state: int, event: Event[Any]) -> int:
    """How many events there were."""
    return state + 1


def explore(tally: Tally, work: Path, machines: int, steps: int = 40) -> None:
    """So many machines of so many steps each; what fails is made smaller, and told with the steps to it."""
    FaceMachine.work, FaceMachine.tally = work, tally

    @seed(tally.seed)
    class Seeded(FaceMachine):
        pass

    chosen = settings(
        max_examples=machines,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    try:
        run_state_machine_as_test(Seeded, settings=chosen)
    except ExceptionGroup as group:  # more than one
        for each in group.exceptions:
            tally.breach(_told(each))
    except Exception as error:
        tally.breach(_told(error))


def _told(error: Exception) -> str:
    """What failed where, and the steps to it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    steps = "\n".join(getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {error}\n{where.filename}:{where.lineno} {where.line}\n{steps}"
