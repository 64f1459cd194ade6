"""Every public way to write and read, in any order, with kills and reopenings between: the log is equal to a list."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventlog.errors import CursorExpired, IndexConflict, KeyConflict, SessionExists, SessionNotFound
from eventlog.events import Event, NewEvent
from eventlog.host.kv import Kv
from eventlog.log import EventLog
from tests.log_kit import all_of, crash_copy
from tests.torture.tally import Tally

NAMES = st.sampled_from(["a", "b", "c"])
DATA = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20) | st.none(), max_size=3)
KEYS = st.sampled_from(["k0", "k1", "k2"])
TYPES = st.sampled_from(["own.one", "own.two", "own.three"])

FORGOTTEN = object()

Entry = tuple[str, int, str, Any]  # session, index, type, data


class LogMachine(RuleBasedStateMachine):
    """The model is the events by their positions, a map of keys, and a map of kv values."""

    work: ClassVar[Path]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(mkdtemp(dir=self.work))
        self.log = EventLog(self.folder / "log" / "agent.db", slice_rows=7)
        self.lives = 0
        self.events: dict[int, Entry] = {}
        self.head = 0
        self.floor = 0
        """Somewhere before this position events were pruned."""
        self.keys: dict[tuple[str, str], Entry] = {}
        self.values: dict[str, Any] = {}
        self.run(self.log.open)
        self.tally.tried["machines"] += 1

    def run(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **named: Any) -> Any:
        return self.runner.run(work(*arguments, **named))

    def step(self, what: str) -> None:
        self.tally.seen[what] += 1

    def of(self, name: str) -> list[Entry]:
        return [entry for entry in self.events.values() if entry[0] == name]

    def note(self, name: str, type_: str, data: Any) -> Entry:
        entry = (name, len(self.of(name)), type_, data)
        self.head += 1
        self.events[self.head] = entry
        return entry

    def note_event(self, event: Event[Any]) -> None:
        """What was appended has the place that is next."""
        name, index, type_, data = entry_of(event)
        assert self.note(name, type_, data)[1] == index

    # -- writing ------------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def start(self, name: str) -> None:
        self.step("start_session")
        try:
            self.run(self.log.start_session, name)
        except SessionExists:
            assert self.of(name)
        else:
            assert not self.of(name)
            self.note(name, "session.started", None)

    @rule(name=NAMES, type_=TYPES, data=DATA)
    def append(self, name: str, type_: str, data: Any) -> None:
        self.step("append")
        if not self.of(name):
            self.refuses(SessionNotFound, self.log.append, name, type_, data)
            return
        event = self.run(self.log.append, name, type_, data)
        assert (event.session_id, event.index, event.type) == self.note(name, type_, data)[:3]
        assert event.position == self.head

    @rule(name=NAMES, batch=st.lists(st.tuples(TYPES, DATA), max_size=5), wrong=st.booleans())
    def append_many(self, name: str, batch: list[tuple[str, Any]], wrong: bool) -> None:
        self.step("append_many")
        if not self.of(name):
            return
        session, upcoming = self.run(self.log.session, name), len(self.of(name))
        news = [NewEvent(type_, data) for type_, data in batch]
        if wrong and news:
            self.refuses(IndexConflict, session.append_many, news, expected_index=upcoming + 1)
            return
        events = self.run(session.append_many, news, expected_index=upcoming)
        assert [event.index for event in events] == [self.note(name, type_, data)[1] for type_, data in batch]

    @rule(name=NAMES, key=KEYS, data=DATA)
    def append_with_key(self, name: str, key: str, data: Any) -> None:
        self.step("append with a key")
        if not self.of(name):
            return
        known = self.keys.get((name, key))
        if known is not None and known[3] != data:
            self.refuses(KeyConflict, self.log.append, name, "own.keyed", data, key=key)
            return
        event = self.run(self.log.append, name, "own.keyed", data, key=key)
        if known is None:
            known = self.keys[name, key] = self.note(name, "own.keyed", data)
        assert (event.session_id, event.index, event.type, event.data) == known

    @rule(name=NAMES, data=DATA, times=st.integers(1, 12))
    def append_together(self, name: str, data: Any, times: int) -> None:
        self.step("append from several tasks")
        if not self.of(name):
            return

        async def together() -> list[int]:
            appends = [self.log.append(name, "own.together", {**data, "n": n}) for n in range(times)]
            return [event.index for event in await asyncio.gather(*appends)]

        assert self.run(together) == [self.note(name, "own.together", {**data, "n": n})[1] for n in range(times)]

    @rule(count=st.integers(1, 3))
    def import_history(self, count: int) -> None:
        self.step("import")
        known = len(self.of("old"))
        at = "2026-01-01T00:00:00Z"
        line = '{"type":"own.old","index":%d,"sessionId":"old","at":"%s","data":{}}'
        report = self.run(self.log.import_events, [(line % (n, at)).encode() for n in range(known + count)])
        assert (report.added, report.known) == (count, known)
        for _ in range(count):
            self.note("old", "own.old", {})

    @rule(key=KEYS, value=st.none() | st.integers() | DATA)
    def put(self, key: str, value: Any) -> None:
        self.step("kv")
        if value is None:
            assert self.run(Kv(self.log.store, "agent").delete, key) == (self.values.pop(key, None) is not None)
        else:
            self.run(Kv(self.log.store, "agent").put, key, value)
            self.values[key] = value

    # -- what happens to a log ---------------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        """The files as a kill leaves them now; whoever opens them finds everything."""
        self.step("kill")
        self.lives += 1
        path = crash_copy(self.log.path, self.folder / f"life{self.lives}")
        self.run(self.log.close)
        self.log = EventLog(path, slice_rows=7)
        self.run(self.log.open)

    @rule()
    def reopen(self) -> None:
        self.step("close and open")
        self.run(self.log.close)
        self.run(self.log.open)

    @rule()
    def absorb(self) -> None:
        self.step("absorb")
        self.run(self.log.store.absorb)

    @precondition(lambda self: len(self.events) % 4 == 0)
    @rule()
    def check(self) -> None:
        self.step("check")
        report = self.run(self.log.check)
        assert report.ok, report

    # -- reading ------------------------------------------------------------------------------------------------------

    @rule(after=st.integers(-2, 30), before=st.integers(-2, 40), limit=st.integers(0, 20), reverse=st.booleans())
    def read_a_part(self, after: int, before: int, limit: int, reverse: bool) -> None:
        self.step("read a part")
        bounds: dict[str, Any] = {"after": after, "before": before, "limit": limit, "reverse": reverse}
        if after < self.floor - 1 and limit:
            self.refuses(CursorExpired, all_of, self.log.read(**bounds))
        else:
            expected = [position for position in self.events if after < position < before]
            found = self.run(all_of, self.log.read(**bounds))
            assert [event.position for event in found] == (expected[::-1] if reverse else expected)[:limit]
        if self.of("a"):
            session = self.run(self.log.session, "a")
            expected = [index for index in range(len(self.of("a"))) if after < index < before]
            found = self.run(all_of, session.read(**bounds))
            assert [event.index for event in found] == (expected[::-1] if reverse else expected)[:limit]

    @rule(types=st.lists(TYPES, max_size=2))
    def read_types(self, types: list[str]) -> None:
        self.step("read types")
        found = self.run(all_of, self.log.read(types=types))
        assert [(e.session_id, e.index) for e in found] == [e[:2] for e in self.events.values() if e[2] in types]

    @invariant()
    def equal(self) -> None:
        """The whole log, each session, and each value."""
        self.tally.tried["steps"] += 1
        self.equals(self.log)
        for name in ("a", "b", "c"):
            if self.of(name):
                session = self.run(self.log.session, name)
                assert session.next_index == len(self.of(name))
                assert [entry_of(event) for event in self.run(all_of, session.read())] == self.of(name)
        kv = Kv(self.log.store, "agent")
        assert {key: self.run(kv.get, key) for key in self.run(kv.list)} == self.values

    def equals(self, log: EventLog) -> None:
        """This log of ours, or a copy of it, has these events and no others."""
        found = {event.position: entry_of(event) for event in self.run(all_of, log.read())}
        assert found == self.events

    def refuses(self, error: type[Exception], work: Any, *arguments: Any, **named: Any) -> None:
        try:
            self.run(work, *arguments, **named)
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    def teardown(self) -> None:
        self.run(self.log.close)
        self.runner.close()
        shutil.rmtree(self.folder)


def entry_of(event: Event[Any]) -> Entry:
    """An event as the model has it."""
    if event.is_forgotten:
        return event.session_id, event.index, event.type, FORGOTTEN
    data = None if event.type == "session.started" else event.data
    return event.session_id, event.index, event.type, data
