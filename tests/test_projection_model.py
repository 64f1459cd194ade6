"""Projections against a plain fold: whatever happens in whatever order, each event is in a state exactly once."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from eventlog import Event, EventLog, Projection
from eventlog.events import decode_json
from eventlog.folding import FoldLimits
from eventlog.projections import BUILT_IN, Projector, rebuild
from eventlog.store import projections
from tests.folding_kit import as_sums, plain_sums, tables, turn
from tests.log_kit import all_of, crash_copy
from tests.torture.counts import Counts

SEED = int(os.environ.get("EVENTLOG_SEED", "20261130"))
STEPS = 30
SESSIONS = ("a", "b")


def trace(state: list[int], event: Event[Any]) -> list[int]:
    """Every position that was folded, so that nothing missing and nothing twice can hide."""
    return [*state, event.position]


def totals(state: dict[str, int], event: Event[Any]) -> dict[str, int]:
    return {**state, event.session_id: state.get(event.session_id, 0) + 1}


def projection(version: int) -> Projection:
    events = ["*"] if version % 2 else ["turn.completed"]
    return Projection(name="trace", events=events, fold=trace, initial=[], version=version)


TOTALS = Projection(name="totals", events=["turn.completed", "job.completed"], fold=totals, initial={})


class Folding(RuleBasedStateMachine):
    """One log with two projections of ours and the built-in ones, beside a list of what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "agent.db"
        self.copies = 0
        self.version = 1
        self.events: list[Event[Any]] = []
        self.run(self.open())
        for name in SESSIONS:
            self.run(self.log.start_session(name, agent=name))
        self.events = self.run(all_of(self.log.read()))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def open(self) -> None:
        limits = FoldLimits(page_events=3, page_positions=5, snapshot_every_events=4)
        self.log = await EventLog(self.path, durability="process", fold_limits=limits).open()
        self.join()

    def join(self) -> None:
        self.own = [projection(self.version), TOTALS]
        self.projector = Projector(self.log, self.own)

    async def join_rows(self) -> None:
        for each in self.own:
            await self.log.store.write(projections.join, each.definition)

    # -- what can happen ----------------------------------------------------------------------------------------

    @rule(session=st.sampled_from(SESSIONS), model=st.sampled_from(["m1", "m2", None]), count=st.integers(1, 4))
    def append_turns(self, session: str, model: str | None, count: int) -> None:
        for number in range(count):
            data = turn(model, 0.1 * number, **({"outputTokens": number} if number % 2 else {}))
            self.note(self.run(self.log.append(session, "turn.completed", data, turn_id=f"t{number}")))

    @rule(session=st.sampled_from(SESSIONS), job=st.sampled_from(["j1", "j2"]), ends=st.booleans())
    def append_jobs(self, session: str, job: str, ends: bool) -> None:
        data = {"jobId": job, "status": "succeeded"} if ends else {"jobId": job, "name": session}
        self.note(self.run(self.log.append(session, "job.completed" if ends else "job.queued", data)))

    @rule(session=st.sampled_from(SESSIONS), title=st.text("xyz", max_size=3))
    def append_state(self, session: str, title: str) -> None:
        self.note(self.run(self.log.append(session, "session.updated", {"title": title})))

    def note(self, event: Event[Any]) -> None:
        self.events.append(event)

    @rule(pages=st.integers(1, 3))
    def fold_some_pages(self, pages: int) -> None:
        self.run(self.join_rows())
        for each in self.own:
            for key in self.run(self.log.store.read(projections.keys_of, each.name, each.version)):
                for _ in range(pages):
                    if self.run(self.projector.fold_once(each, key)):
                        break

    @rule()
    def catch_up(self) -> None:
        self.run(self.join_rows())
        self.run(self.projector.catch_up())
        for each in self.own:
            state = self.run(self.log.projection(each.name))
            assert (state.version, state.lag) == (each.version, 0)

    @rule()
    def read_usage(self) -> None:
        self.run(self.log.usage())

    @rule(session=st.sampled_from(SESSIONS))
    def fold_session(self, session: str) -> None:
        found = self.run(self.run(self.log.session(session)).fold(trace, []))
        assert found == [event.position for event in self.events if event.session_id == session]

    @rule(name=st.sampled_from([*BUILT_IN, None]))
    def rebuild(self, name: str | None) -> None:
        before = self.run(tables(self.log))
        done = self.run(rebuild(self.log, name))
        assert all(each.different == 0 for each in done)
        after = self.run(tables(self.log))
        caught_up = {"usage"} if name in (None, "usage") else set()
        assert {key: before[key] for key in before if key not in caught_up} == {
            key: after[key] for key in after if key not in caught_up
        }

    @rule()
    def rebuild_ours(self) -> None:
        if self.run(self.log.store.read(projections.rows, "trace")):
            self.run(rebuild(self.log, "trace"))

    @rule()
    def raise_the_version(self) -> None:
        self.version += 1
        self.join()

    @rule()
    def close_and_open(self) -> None:
        self.run(self.log.close())
        self.run(self.open())

    @rule()
    def crash(self) -> None:
        """Go on with the file as a kill would leave it now."""
        self.copies += 1
        copy = crash_copy(self.path, self.folder / str(self.copies))
        self.run(self.log.close())
        self.path = copy
        self.run(self.open())

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def each_state_is_of_exactly_the_events_up_to_its_cursor(self) -> None:
        for row in self.run(self.log.store.read(projections.rows)):
            types = set(row.events)
            folded = [
                event for event in self.events if event.position <= row.cursor and ("*" in types or event.type in types)
            ]
            if row.name == "trace":
                assert row.state == b"[" + b",".join(b"%d" % event.position for event in folded) + b"]"
            elif row.name == "totals":
                assert decode_json(row.state) == Counter(event.session_id for event in folded)
            elif row.serves:
                rows = self.run(tables(self.log))["usage"]
                assert sum(row[3] for row in rows) == len(folded)

    @invariant()
    def the_built_in_ones_are_never_stale(self) -> None:
        async def read() -> None:
            async with EventLog(self.path, read_only=True) as reader:
                assert as_sums(await reader.usage("session")) == plain_sums(self.events, "session")
                assert as_sums(await reader.usage("model")) == plain_sums(self.events, "model")

        self.run(read())
        versions = Counter((e.session_id, e.turn_id) for e in self.events if e.type == "turn.completed")
        stored = self.run(tables(self.log))["turns"]
        assert len(stored) == versions.total()

    def teardown(self) -> None:
        self.run(self.log.close())
        self.loop.close()
        shutil.rmtree(self.folder)


@pytest.mark.faults
def test_r97_states_are_exactly_once_through_appends_rebuilds_versions_and_crashes(counts: Counts) -> None:
    """R97: states come from the log alone, and hold each event of it up to their cursor, once."""
    print(f"\n{counts.projection_machines} machines of {STEPS} steps, seed {SEED}")
    run_state_machine_as_test(
        seed(SEED)(Folding),
        settings=settings(
            max_examples=counts.projection_machines,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            database=None,
        ),
    )
