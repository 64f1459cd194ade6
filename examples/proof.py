"""Proves from the outside what a log and its hooks promise, or names what is broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from eventlog import SessionEvent
from examples.traffic import Line, Traffic

DURABLE_TYPES = ("turn.completed", "job.completed")
REFUSALS = 2
"""Calls for the refused turn that fail before one succeeds."""

T = TypeVar("T", bound=Hashable)


# ----------------------------------------------------------------------------------------------------- what is known


@dataclass(frozen=True)
class HookCall:
    """One call of an observe hook, as it noted it itself."""

    hook: str
    position: int


@dataclass(frozen=True)
class HookGap:
    """Positions that the log says a hook will never be shown; `session` is None for those of every session."""

    hook: str
    session: str | None
    first: int
    last: int


@dataclass(frozen=True)
class Evidence:
    """All that is known after the demo, each part from the one who knows it first."""

    sent: Traffic
    refused: str
    killed: str
    """The turns, as `<session>/<turn>`, that were refused twice, and in whose handler the process was killed."""
    exits: Sequence[int]
    """How the two servers ended; below zero is the signal that did it."""
    recorded: Sequence[SessionEvent]
    head_at_kill: int
    """The last position that the killed server recorded."""
    hooks: dict[str, Sequence[str]]
    """Each observe hook and the types that it is to be shown; `*` is every type."""
    hook_calls: Sequence[HookCall]
    hook_gaps: Sequence[HookGap]
    delivered: Sequence[str]
    """The event id of each call of a durable handler, in their order."""
    billed: Sequence[str]
    """The event id of each effect."""
    waiting: int
    dead: int
    """Live deliveries and dead letters at the end."""
    sound: bool
    """What `eventlog check` says in the end."""
    tracebacks: int
    """Errors that the servers reported and nobody expected."""

    def owed(self) -> list[SessionEvent]:
        """The events that the extension has to get: the durable types, in the projects that it was granted."""
        granted = self.sent.live_projects()
        durable = [event for event in self.recorded if event.type in DURABLE_TYPES]
        return [event for event in durable if self.sent.project_of(event.session_id) in granted]

    def id_of(self, turn: str) -> str:
        """The id of the event that completed a turn; empty if that is not recorded."""
        ends = [event for event in self.recorded if event.type == "turn.completed"]
        return next((event.id for event in ends if f"{event.session_id}/{event.turn_id}" == turn), "")


@dataclass(frozen=True)
class Promise:
    """One promise, whether it was kept, and by which numbers one sees it."""

    words: str
    kept: bool
    numbers: str


# ---------------------------------------------------------------------------------------------------------- the log


def nothing_is_lost(evidence: Evidence) -> Promise:
    sent = {(line["sessionId"], line["index"]) for line in evidence.sent.lines}
    there = {(event.session_id, event.index) for event in evidence.recorded}
    return Promise(
        "every event that was sent is recorded, and no other",
        sent == there and len(there) == len(evidence.recorded),
        f"{len(evidence.recorded):,} recorded of {len(sent):,} sent in {len(evidence.sent.sessions)} sessions",
    )


def indexes_have_no_hole(evidence: Evidence) -> Promise:
    """The recorded events come by position, so that this proves the order as well."""
    holes = 0
    for events in by_session(evidence.recorded).values():
        holes += sum(event.index != index for index, event in enumerate(events))
    return Promise("each session is in order, from index 0 and without a hole", holes == 0, f"{holes} out of place")


def nothing_is_changed(evidence: Evidence) -> Promise:
    sent = {(line["sessionId"], line["index"]): as_sent(line) for line in evidence.sent.lines}
    changed = sum(as_sent(event.to_dict()) != sent.get((event.session_id, event.index)) for event in evidence.recorded)
    equal = len(evidence.recorded) - changed
    return Promise("what is recorded equals what was sent", changed == 0, f"{equal:,} equal, {changed} different")


def the_file_is_sound(evidence: Evidence) -> Promise:
    last = evidence.recorded[-1].position if evidence.recorded else 0
    words = "whole" if evidence.sound else "damaged"
    return Promise("the file is sound, kill or not", evidence.sound, f"check: {words}, up to position {last:,}")


# ---------------------------------------------------------------------------------------- observe hooks: at most once


def no_hook_saw_an_event_twice(evidence: Evidence) -> Promise:
    repeated = duplicates(evidence.hook_calls)
    return Promise(
        "no observe hook was shown an event twice",
        not repeated,
        f"{len(evidence.hook_calls):,} calls of {len(evidence.hooks)} hooks, {len(repeated)} repeated",
    )


def hooks_saw_sessions_in_order(evidence: Evidence) -> Promise:
    session_of = {event.position: event.session_id for event in evidence.recorded}
    lanes: dict[Hashable, list[int]] = defaultdict(list)
    for call in evidence.hook_calls:
        lanes[call.hook, session_of.get(call.position)].append(call.position)
    steps_back = sum(map(count_steps_back, lanes.values()))
    return Promise("each hook saw each session in order", steps_back == 0, f"{steps_back} steps back")


def what_no_hook_saw_is_a_gap(evidence: Evidence) -> Promise:
    missed = not_shown(evidence)
    unnamed = [each for each in missed if not any(is_in(gap, *each) for gap in evidence.hook_gaps)]
    return Promise(
        "what a hook was not shown is named as its gap",
        not unnamed,
        f"of {len(missed)} that were not shown, {len(unnamed)} are in no gap",
    )


def a_good_end_leaves_no_gap(evidence: Evidence) -> Promise:
    after = len(evidence.recorded) - evidence.head_at_kill
    missed = [event for _, event in not_shown(evidence) if event.position > evidence.head_at_kill]
    return Promise(
        "a server that stops in good order leaves no gap",
        not missed and after > 0,
        f"{after:,} events after the restart, {len(missed)} not shown",
    )


def not_shown(evidence: Evidence) -> list[tuple[str, SessionEvent]]:
    """Each hook with each event that it listens to and was not called with."""
    seen = set(evidence.hook_calls)
    return [
        (hook, event)
        for hook, types in evidence.hooks.items()
        for event in evidence.recorded
        if ("*" in types or event.type in types) and HookCall(hook, event.position) not in seen
    ]


def is_in(gap: HookGap, hook: str, event: SessionEvent) -> bool:
    """Whether a gap names this event for this hook."""
    return gap.hook == hook and gap.session in (None, event.session_id) and gap.first <= event.position <= gap.last


# --------------------------------------------------------------------------------------- durable hooks: at least once


def all_that_is_owed_was_delivered(evidence: Evidence) -> Promise:
    owed = {event.id for event in evidence.owed()}
    missing, uncalled_for = owed - set(evidence.delivered), set(evidence.delivered) - owed
    return Promise(
        "every granted turn and job was delivered, and nothing else",
        not missing and not uncalled_for,
        f"{len(owed)} owed, {len(evidence.delivered)} calls, {len(missing)} missing, {len(uncalled_for)} not owed",
    )


def deliveries_kept_the_order(evidence: Evidence) -> Promise:
    event_of = {event.id: event for event in evidence.recorded}
    called = [event_of[event_id] for event_id in evidence.delivered if event_id in event_of]
    lanes = by_session(called)
    steps_back = sum(count_steps_back([event.position for event in events]) for events in lanes.values())
    return Promise(
        "deliveries kept the order of each session", steps_back == 0, f"{len(lanes)} sessions, {steps_back} steps back"
    )


def each_had_its_effect_once(evidence: Evidence) -> Promise:
    owed, repeated = {event.id for event in evidence.owed()}, duplicates(evidence.billed)
    return Promise(
        "each delivery had its effect exactly once",
        not repeated and set(evidence.billed) == owed,
        f"{len(evidence.billed)} effects of {len(owed)}, {len(repeated)} repeated",
    )


def a_failure_was_retried(evidence: Evidence) -> Promise:
    calls = evidence.delivered.count(evidence.id_of(evidence.refused))
    return Promise(
        "what failed was retried until it succeeded",
        calls > REFUSALS and evidence.waiting == evidence.dead == 0,
        f"{calls} calls after {REFUSALS} refusals; {evidence.waiting} waiting, {evidence.dead} dead letters",
    )


def nothing_failed_unexpectedly(evidence: Evidence) -> Promise:
    count = evidence.tracebacks
    return Promise("the servers reported no other error", count == 0, f"{count} tracebacks")


def the_kill_was_survived(evidence: Evidence) -> Promise:
    event_id = evidence.id_of(evidence.killed)
    calls, effects = evidence.delivered.count(event_id), evidence.billed.count(event_id)
    first, last = evidence.exits
    return Promise(
        "a kill between effect and return was survived",
        first == -9 and last == 0 and calls >= 2 and effects == 1,
        f"exits {first} and {last}; {calls} calls, {effects} effect",
    )


# ----------------------------------------------------------------------------------------------------------- together

PROMISES: tuple[Callable[[Evidence], Promise], ...] = (
    nothing_is_lost,
    indexes_have_no_hole,
    nothing_is_changed,
    the_file_is_sound,
    no_hook_saw_an_event_twice,
    hooks_saw_sessions_in_order,
    what_no_hook_saw_is_a_gap,
    a_good_end_leaves_no_gap,
    all_that_is_owed_was_delivered,
    deliveries_kept_the_order,
    each_had_its_effect_once,
    a_failure_was_retried,
    the_kill_was_survived,
    nothing_failed_unexpectedly,
)


def prove(evidence: Evidence) -> list[Promise]:
    """Look at every promise."""
    return [look(evidence) for look in PROMISES]


def as_sent(envelope: Line) -> Line:
    """An envelope without its time: live traffic gets the time at which it is recorded."""
    return {name: value for name, value in envelope.items() if name != "at"}


def by_session(events: Iterable[SessionEvent]) -> dict[str, list[SessionEvent]]:
    """The events of each session, in the order that they come in."""
    sessions: dict[str, list[SessionEvent]] = defaultdict(list)
    for event in events:
        sessions[event.session_id].append(event)
    return sessions


def duplicates(things: Iterable[T]) -> list[T]:
    """What is there more than once."""
    return [thing for thing, count in Counter(things).items() if count > 1]


def count_steps_back(positions: Sequence[int]) -> int:
    """How often a position is followed by one before it."""
    return sum(later < earlier for earlier, later in pairwise(positions))
