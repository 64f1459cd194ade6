"""A plain model of the queue: what every delivery has to be like after anything that can happen.

It knows nothing of SQL, tasks or timers. It says which calls may be made; the worker may choose among them, but may
leave none unmade for which there is a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from eventlog.durable import DeliveryPolicy

POLICY = DeliveryPolicy(attempts=3, timeout_s=30, jitter=0, retention_s=600, keep_dead_s=300, capacity=6, concurrency=2)
EXTENSIONS = ("one", "two")
PROJECT_OF = {"s0": "p", "s1": "p", "s2": "p", "s3": "q"}
CAPABILITY_OF = {"turn": "conversations.turns.read", "job": "jobs.read"}
TYPE_OF = {"turn": "turn.completed", "job": "job.completed"}
US = 1_000_000


class Key(NamedTuple):
    """One delivery: of an extension, of the event at a position."""

    extension: str
    position: int


@dataclass
class Row:
    """What the model knows of a delivery."""

    session: str
    kind: str
    recorded: int
    due: int
    state: str = "pending"
    attempts: int = 0
    spent: int = 0
    reason: str | None = None
    died: int | None = None
    failures: list[tuple[int, str]] = field(default_factory=list)

    @property
    def project(self) -> str:
        return PROJECT_OF[self.session]

    @property
    def round_number(self) -> int:
        return self.attempts - self.spent

    @property
    def was_cut_by_a_crash(self) -> bool:
        return self.state == "pending" and self.failures[-1:] == [(self.attempts, "crashed")]


@dataclass
class Gap:
    """Events of a project that an extension was refused."""

    extension: str
    project: str
    first: int
    last: int
    count: int = 1
    open: bool = True


@dataclass
class Standing:
    """What an operator and the process made of an extension."""

    enabled: bool = True
    paused: bool = False
    careful: bool = True


class Model:
    """A queue, in a few dictionaries."""

    def __init__(self) -> None:
        self.now = 0
        self.monotonic_s = 0.0
        self.position = 0
        self.rows: dict[Key, Row] = {}
        self.running: dict[Key, float] = {}  # and when its time is over
        self.gaps: list[Gap] = []
        self.extensions = {name: Standing() for name in EXTENSIONS}
        self.grants = {(name, kind, "p") for name in EXTENSIONS for kind in CAPABILITY_OF}
        self.letters: Counter[tuple[Key, str]] = Counter()

    # -- the queue --------------------------------------------------------------------------------------------------

    def live(self, extension: str) -> list[Key]:
        return [key for key, row in self.rows.items() if key.extension == extension and row.state != "dead"]

    @property
    def dead(self) -> list[Key]:
        return sorted(key for key, row in self.rows.items() if row.state == "dead")

    def append(self, session: str, kind: str) -> None:
        self.position += 1
        project = PROJECT_OF[session]
        granted = [
            name
            for name, standing in self.extensions.items()
            if standing.enabled and (name, kind, project) in self.grants
        ]
        full = [name for name in EXTENSIONS if len(self.live(name)) >= POLICY.capacity]
        for name in granted:
            if name in full:
                self._refuse(name, project)
            else:
                self.rows[Key(name, self.position)] = Row(session, kind, self.now, self.now)
        for gap in self.gaps:
            if gap.project == project and gap.extension in granted and gap.extension not in full:
                gap.open = False

    def _refuse(self, extension: str, project: str) -> None:
        for gap in self.gaps:
            if gap.open and (gap.extension, gap.project) == (extension, project):
                gap.last, gap.count = self.position, gap.count + 1
                return
        self.gaps.append(Gap(extension, project, self.position, self.position))

    def ack(self, key: Key) -> None:
        del self.rows[key], self.running[key]

    def fail(self, key: Key, outcome: str, after_us: int | None = None) -> None:
        """A call ended without an ACK; `after_us` is when it wants the next one, where the back-off does not say."""
        row = self.rows[key]
        del self.running[key]
        row.failures.append((row.attempts, outcome))
        if outcome == "rejected":
            self._bury(key, "rejected")
        elif row.round_number >= POLICY.attempts:
            self._bury(key, "exhausted")
        else:
            back_off_us = round(POLICY.backoff_first_s * POLICY.backoff_factor ** (row.round_number - 1) * US)
            row.state, row.due = "pending", self.now + (back_off_us if after_us is None else after_us)

    def _bury(self, key: Key, reason: str) -> None:
        row = self.rows[key]
        row.state, row.reason, row.died = "dead", reason, self.now
        self.letters[key, reason] += 1

    def cut_short(self, keys: Iterable[Key]) -> None:
        """Calls that the worker itself ended: due at once, and not counted."""
        for key in list(keys):
            if self.running.pop(key, None) is not None and (row := self.rows.get(key)) is not None:
                row.state, row.due, row.spent = "pending", self.now, row.spent + 1

    def taken_up(self) -> None:
        """Another process opened the log; what still ran when the last one ended was cut short by that."""
        for row in self.rows.values():
            if row.state == "pending" and row.recorded > self.now:
                row.due = min(row.due, self.now)
        for key in self.running:
            row = self.rows[key]
            row.failures.append((row.attempts, "crashed"))
            row.state, row.due = "pending", self.now
            if row.round_number >= POLICY.attempts:
                self._bury(key, "exhausted")
        self.running.clear()
        for standing in self.extensions.values():
            standing.careful = True

    def clear(self, extension: str, project: str | None = None, kinds: Iterable[str] = TYPE_OF) -> tuple[int, int]:
        """Remove what an extension is owed; how much of it was live, and dead."""
        gone = [
            key
            for key, row in self.rows.items()
            if key.extension == extension and project in (None, row.project) and row.kind in kinds
        ]
        states = Counter(self.rows.pop(key).state == "dead" for key in gone)
        for key in gone:
            self.running.pop(key, None)
        return states[False], states[True]

    def retry(self, extension: str | None) -> tuple[int, dict[str, int], tuple[str, ...]]:
        retried, refused, full = 0, Counter[str](), list[str]()
        for key in self.dead:
            row = self.rows[key]
            if extension not in (None, key.extension) or key.extension in full:
                continue
            if why := self._refusal(key, row):
                refused[why] += 1
            elif len(self.live(key.extension)) >= POLICY.capacity:
                full.append(key.extension)
            else:
                retried += 1
                row.state, row.spent, row.due, row.reason, row.died = "pending", row.attempts, self.now, None, None
        return retried, dict(refused), tuple(full)

    def _refusal(self, key: Key, row: Row) -> str | None:
        if not self.extensions[key.extension].enabled:
            return "not enabled"
        if (key.extension, row.kind, row.project) not in self.grants:
            return "not granted"
        if row.recorded <= self.now - POLICY.retention_s * US:
            return "too old"
        return None

    def pass_time(self) -> None:
        """What follows from the time alone: calls that took too long, deliveries and letters that are too old."""
        for key, deadline_s in list(self.running.items()):
            if deadline_s <= self.monotonic_s:
                self.fail(key, "timeout")
        for key, row in self.rows.items():
            if row.state == "pending" and row.recorded <= self.now - POLICY.retention_s * US:
                self._bury(key, "expired")
        kept_since = self.now - POLICY.keep_dead_s * US
        for key, row in list(self.rows.items()):
            died_long_ago = row.died is not None and row.died <= kept_since
            if died_long_ago and row.recorded <= kept_since - POLICY.retention_s * US:
                del self.rows[key]

    # -- calls ------------------------------------------------------------------------------------------------------

    def calls_of(self, extension: str) -> int:
        return sum(key.extension == extension for key in self.running)

    def has_room(self, extension: str) -> bool:
        """Whether another call may be made for an extension now: one at a time after a crash."""
        standing, calls = self.extensions[extension], self.calls_of(extension)
        if not standing.enabled or standing.paused:
            return False
        return calls == 0 if standing.careful else calls < POLICY.concurrency

    def may_begin(self, key: Key) -> bool:
        row = self.rows[key]
        lane = [other for other in self.live(key.extension) if self.rows[other].session == row.session]
        is_next = key == min(lane, default=None) and not any(other in self.running for other in lane)
        return row.state == "pending" and row.due <= self.now and is_next and self.has_room(key.extension)

    def begin(self, key: Key) -> None:
        """The worker chose this call."""
        standing = self.extensions[key.extension]
        crashed = [self.rows[each].was_cut_by_a_crash for each in self.live(key.extension)]
        if standing.careful and self.calls_of(key.extension) == 0 and not any(crashed):
            standing.careful = False
        assert self.may_begin(key), f"{key} was called: {self.rows.get(key)}"
        row = self.rows[key]
        row.state, row.attempts = "delivering", row.attempts + 1
        self.running[key] = self.monotonic_s + POLICY.timeout_s

    def left_waiting(self) -> list[Key]:
        """Calls that could be made, and are not."""
        return [key for key in self.rows if self.may_begin(key)]

    def next_at_s(self) -> float | None:
        """Seconds until something happens by itself."""
        waiting = [(key, row) for key, row in self.rows.items() if row.state == "pending"]
        times = [row.recorded + POLICY.retention_s * US - self.now for _, row in waiting]
        times += [row.due - self.now for key, row in waiting if row.due > self.now and self.has_room(key.extension)]
        seconds = [each / US for each in times] + [each - self.monotonic_s for each in self.running.values()]
        return min(seconds, default=None)
