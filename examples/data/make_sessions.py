"""Writes `sessions.jsonl`, the invented sessions that the demo plays: the same bytes at every run.

`python examples/data/make_sessions.py [FILE]`; without FILE it writes the one beside this script.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import fsum
from pathlib import Path
from random import Random
from typing import Any

SEED = 20_260_112
MODEL = "larch-2"
USD_PER_TOKEN = {"inputTokens": 3e-6, "outputTokens": 15e-6, "cacheReadTokens": 3e-7, "cacheWriteTokens": 3.75e-6}


# ------------------------------------------------------------------------------------------------- what a session is


@dataclass(frozen=True)
class Call:
    """One tool call and its result; `parent` is the place of the call whose subagent makes it, from 0 in its step."""

    tool: str
    args: dict[str, Any]
    output: str
    failed: bool = False
    stubbed: bool = False
    parent: int | None = None


@dataclass(frozen=True)
class Step:
    """One answer of the model: what it thinks and says, and the calls that it ends with."""

    say: str = ""
    think: str = ""
    calls: Sequence[Call] = ()
    question: tuple[str, str] | None = None  # what the user is asked before the calls run, and the answer
    failure: str | None = None
    cut: bool = False  # it was interrupted while it spoke


@dataclass(frozen=True)
class Job:
    """A background job: queued and started in its turn, ended behind it, outside of any turn."""

    id: str
    name: str
    outcome: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message of the user and what comes of it; `failure` ends it without a reply."""

    user: str
    steps: Sequence[Step]
    jobs: Sequence[Job] = ()
    failure: str | None = None
    artifact: dict[str, Any] | None = None


@dataclass(frozen=True)
class Script:
    """One session from `session.started` to its end."""

    id: str
    started: dict[str, Any]
    turns: Sequence[Turn]
    title: str | None = None
    enrolled: dict[str, str] | None = None


# -------------------------------------------------------------------------------------------------- how it is played


@dataclass
class Teller:
    """Turns one script into envelopes, with indexes from 0 and a clock that only moves forward."""

    script: Script
    at: datetime
    random: Random
    lines: list[dict[str, Any]] = field(default_factory=list)
    turn_id: str | None = None

    def tell(self) -> list[dict[str, Any]]:
        script = self.script
        self.event("session.started", script.started)
        if script.enrolled is not None:
            self.event("ab.assigned", script.enrolled)
        for number, turn in enumerate(script.turns):
            self.turn(f"turn_{number}", turn)
            if number == 0 and script.title is not None:
                self.event("session.updated", {"title": script.title})
            if script.started["mode"] == "chat":
                self.event("session.waiting", {"continuationToken": f"{script.id}-{number + 1}"})
        self.event("session.completed", {})
        return self.lines

    def turn(self, turn_id: str, turn: Turn) -> None:
        self.turn_id = turn_id
        self.event("turn.started", {})
        self.event("message.received", {"text": turn.user})
        usages = [self.step(place, step) for place, step in enumerate(turn.steps)]
        for job in turn.jobs:
            self.event("job.queued", {"jobId": job.id, "name": job.name})
            self.event("job.started", {"jobId": job.id})
        if turn.artifact is not None:
            self.event("artifact.tagged", turn.artifact)
        if turn.failure is not None:
            self.event("turn.failed", {"message": turn.failure})
        else:
            usage = {name: sum(each.get(name, 0) for each in usages) for name in USD_PER_TOKEN}
            usd = round(
                fsum(tokens * USD_PER_TOKEN[name] for name, tokens in usage.items()), 6
            )  # the same on every Python
            thought = sum(each.get("reasoningTokens", 0) for each in usages)
            reasoning = {"reasoningTokens": thought} if thought else {}
            result = turn.steps[-1].say
            cost = {"totalUsd": usd, "model": MODEL}
            self.event("turn.completed", {"result": result, "usage": usage | reasoning, "cost": cost})
        self.turn_id = None
        for job in turn.jobs:
            self.event("job.completed", {"jobId": job.id, **job.outcome})

    def step(self, place: int, step: Step) -> dict[str, int]:
        """Tell one step, and return the tokens that it took."""
        self.event("step.started", {"stepIndex": place})
        self.text("reasoning", step.think)
        self.text("message", step.say, cut=step.cut)
        if step.cut:
            return {}
        if step.failure is not None:
            self.event("step.failed", {"stepIndex": place, "message": step.failure})
            return {}
        self.calls(step)
        usage = self.usage(step)
        reason = "tool-calls" if step.calls else "stop"
        self.event("step.completed", {"stepIndex": place, "finishReason": reason, "usage": usage})
        return usage

    def text(self, kind: str, text: str, *, cut: bool = False) -> None:
        for delta in self.deltas(text):
            self.event(f"{kind}.appended", {"delta": delta})
        if text and not cut:
            self.event(f"{kind}.completed", {"text": text})

    def deltas(self, text: str) -> Iterator[str]:
        """Cut a text into pieces of a few words each, which give it back when they are joined."""
        words = text.split(" ") if text else []
        while words:
            size = 2 + self.below(5)
            taken, words = words[:size], words[size:]
            yield " ".join(taken) + (" " if words else "")

    def calls(self, step: Step) -> None:
        if not step.calls:
            return
        ids = [f"call_{self.below(16**8):08x}" for _ in step.calls]
        requested = []
        for call, call_id in zip(step.calls, ids, strict=True):
            parent = {} if call.parent is None else {"parentCallId": ids[call.parent]}
            requested.append({"callId": call_id, "toolName": call.tool, "args": call.args, **parent})
        self.event("actions.requested", {"calls": requested})
        if step.question is not None:
            self.question(ids[0], *step.question)
        for call, call_id in zip(step.calls, ids, strict=True):
            result = {"callId": call_id, "toolName": call.tool, "output": call.output, "isError": call.failed}
            self.event("action.result", result | ({"stubbed": True} if call.stubbed else {}))

    def question(self, call_id: str, prompt: str, answer: str) -> None:
        request = {"requestId": f"ask_{call_id}", "kind": "approval", "prompt": prompt, "callId": call_id}
        self.event("input.requested", {"requests": [request | {"options": ["allow", "deny"]}]})
        self.event("input.resolved", {"resolutions": [{"requestId": request["requestId"], "outcome": answer}]})

    def usage(self, step: Step) -> dict[str, int]:
        read = 4 * len(self.lines) + sum(len(call.output) // 4 for call in step.calls)
        usage = {
            "inputTokens": 180 + read + self.below(120),
            "outputTokens": 12 + (len(step.say) + len(step.think)) // 4 + 25 * len(step.calls),
            "cacheReadTokens": 900 * min(len(self.lines) // 10, 8),
            "cacheWriteTokens": self.below(400),
        }
        return usage | ({"reasoningTokens": len(step.think) // 4} if step.think else {})

    def event(self, type: str, data: dict[str, Any]) -> None:
        self.at += timedelta(milliseconds=5 + self.below(40 if type.endswith(".appended") else 900))
        line = {"type": type, "index": len(self.lines), "sessionId": self.script.id}
        if self.turn_id is not None:
            line["turnId"] = self.turn_id
        at = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.lines.append(line | {"at": at, "data": data})

    def below(self, limit: int) -> int:
        return int(self.random.random() * limit)  # `random()` alone is promised to stay the same over versions


# --------------------------------------------------------------------------------------------------- the six sessions

AGENT = "handyman"

TIDES = Script(
    "ses_tide_tables",
    {"agent": AGENT, "channelId": "cli", "mode": "chat", "purpose": "live", "projectId": "acme"},
    title="Tide tables are an hour off in summer",
    enrolled={"experiment": "shorter-replies", "arm": "control"},
    turns=[
        Turn(
            "All last summer our harbour page showed every tide an hour early. Can you find out why?",
            [
                Step(
                    say="I will look at how the page turns the table's times into local time.",
                    think="An hour, and in summer: that smells of daylight saving time. The table is probably in UTC "
                    "and somebody added a fixed offset.",
                    calls=[
                        Call("Grep", {"pattern": "timedelta\\(hours", "path": "tides/"}, "tides/format.py:14\n"),
                        Call(
                            "Read",
                            {"path": "tides/format.py"},
                            "12  def local(moment):\n13      # the harbour is one hour ahead\n"
                            "14      return moment + timedelta(hours=1)\n",
                        ),
                    ],
                ),
                Step(
                    say="The page adds a fixed hour in tides/format.py, line 14. That is right in winter only: from "
                    "the end of March to the end of October the harbour is two hours ahead of UTC. A named time zone "
                    "would be right all year.",
                ),
            ],
        ),
        Turn(
            "Makes sense. Please fix it and add a test for a summer day.",
            [
                Step(
                    say="I will use the zone of the harbour and pin one winter day and one summer day.",
                    calls=[
                        Call("Edit", {"path": "tides/format.py", "old": "+ timedelta(hours=1)"}, "1 replacement"),
                        Call("Write", {"path": "tests/test_format.py"}, "31 lines written"),
                    ],
                ),
                Step(
                    calls=[
                        Call("Bash", {"command": "pytest -q tests"}, "1 failed, 11 passed in 0.42s", failed=True),
                    ],
                ),
                Step(
                    say="One old test had the wrong hour written down. It was copied from the page.",
                    think="The failing test is older than my change and asserts the wrong time, so the test is wrong, "
                    "not the code. The almanac says 06:12.",
                    calls=[
                        Call("Edit", {"path": "tests/test_page.py", "old": "05:12", "new": "06:12"}, "1 replacement"),
                        Call("Bash", {"command": "pytest -q tests"}, "12 passed in 0.40s"),
                    ],
                ),
                Step(
                    say="Done. The page now uses the harbour's own time zone, a summer and a winter day are pinned by "
                    "tests, and one old test that expected the wrong hour is corrected. All 12 tests pass.",
                ),
            ],
        ),
        Turn(
            "Thanks! Anything else in there that assumes winter?",
            [
                Step(
                    calls=[
                        Call("Grep", {"pattern": "hours=1|\\+01:00", "path": "."}, "feeds/export.py:40\n"),
                        Call("Read", {"path": "feeds/export.py"}, '40      stamp = moment.isoformat() + "+01:00"\n'),
                    ],
                ),
                Step(
                    say="Yes, one: the export feed writes +01:00 behind every time, whatever the day. Readers of the "
                    "feed get the same fault from March to October. I have not changed it, because others may have "
                    "worked around it; ask them first.",
                ),
            ],
            artifact={"kind": "finding", "key": "feeds/export.py:40", "title": "fixed offset in the export feed"},
        ),
    ],
)

RELEASE = Script(
    "ses_release_notes",
    {
        "agent": AGENT,
        "channelId": "slack",
        "mode": "chat",
        "purpose": "live",
        "projectId": "acme",
        "auth": {"user": "mira", "roles": ["writer"]},
        "continuationToken": "ses_release_notes-0",
    },
    title="Release notes for 4.2",
    turns=[
        Turn(
            "Write the release notes for 4.2, please. Only what users notice.",
            [
                Step(
                    say="I will read what was merged since 4.1.",
                    calls=[
                        Call(
                            "Bash",
                            {"command": "git log --oneline v4.1..HEAD"},
                            "a41f faster search in long lists\n77c0 dark mode follows the system\n"
                            "19be bump linter\n0d2e export keeps umlauts\n",
                        ),
                    ],
                ),
                Step(
                    say="Version 4.2 makes search in long lists about three times as fast, lets dark mode follow the "
                    "system, and keeps umlauts in exports. There are also many internal changes, among them a newer "
                    "linter, which we have been meaning to",
                    cut=True,
                ),
            ],
            failure="turn interrupted",
        ),
        Turn(
            "Stop, no internals. Three bullets, no adjectives.",
            [
                Step(
                    say="- Search in lists of more than 1,000 rows takes a third of the time.\n"
                    "- Dark mode follows the setting of the system.\n"
                    "- Exports keep umlauts.",
                ),
            ],
        ),
        Turn(
            "Perfect. And in German?",
            [
                Step(
                    say="- Die Suche in Listen mit mehr als 1.000 Zeilen dauert ein Drittel der Zeit.\n"
                    "- Der dunkle Modus folgt der Einstellung des Systems.\n"
                    "- Exporte behalten Umlaute: ä, ö, ü.",
                ),
            ],
        ),
    ],
)

NIGHTLY = Script(
    "ses_nightly_build",
    {"agent": AGENT, "channelId": "cron", "mode": "task", "purpose": "live", "projectId": "acme"},
    turns=[
        Turn(
            "Build the nightly packages and rebuild the search index in the background.",
            [
                Step(
                    say="I will start both; neither needs the other.",
                    calls=[
                        Call("StartJob", {"name": "nightly packages"}, "job_packages"),
                        Call("StartJob", {"name": "search index"}, "job_index"),
                    ],
                ),
                Step(say="Both jobs are running. Their results will be reported when they end."),
            ],
            jobs=[
                Job("job_packages", "nightly packages", {"status": "succeeded", "result": {"packages": 3}}),
                Job("job_index", "search index", {"status": "failed", "error": "the disk quota was reached at 81 %"}),
            ],
        ),
        Turn(
            "The index job failed. Try it again with the smaller batches.",
            [
                Step(
                    think="The quota was reached while two copies of the index existed. Smaller batches keep less.",
                    calls=[Call("StartJob", {"name": "search index", "batch": 500}, "job_index_2")],
                ),
                Step(say="It runs again, 500 documents at a time, which needs a fifth of the space."),
            ],
            jobs=[Job("job_index_2", "search index", {"status": "succeeded", "result": {"documents": 48_210}})],
        ),
    ],
)

SUPPORT = Script(
    "ses_lost_parcel",
    {
        "agent": AGENT,
        "channelId": "web",
        "mode": "chat",
        "purpose": "live",
        "projectId": "acme",
        "auth": {"user": "guest-5512"},
    },
    title="A parcel that did not arrive",
    turns=[
        Turn(
            "My order 20417 should have been here on Monday.",
            [
                Step(
                    say="I am sorry about that. Let me look where it is.",
                    calls=[Call("LookUpOrder", {"order": "20417"}, "sent 2026-01-08, last scan 2026-01-09: depot")],
                ),
                Step(
                    say="Your parcel was last scanned at the depot on Friday and has not moved since. I can ask the "
                    "carrier to search for it, or send the order again. Which do you prefer?",
                ),
            ],
        ),
        Turn(
            "Please send it again.",
            [
                Step(
                    say="Then I will order a second parcel, free of charge.",
                    think="A replacement costs more than 50, so somebody has to approve it.",
                    calls=[Call("SendAgain", {"order": "20417", "charge": 0}, "replacement 20417-2")],
                    question=("Send order 20417 again, free of charge?", "allow"),
                ),
                Step(
                    say="It is on its way as 20417-2 and should arrive on Thursday. Should the first parcel turn up "
                    "after all, just refuse it at the door.",
                ),
            ],
        ),
        Turn(
            "Great, thank you.",
            [Step(say="You are welcome. I hope that this one finds its way.")],
        ),
    ],
)

MIGRATION = Script(
    "ses_config_migration",
    {"agent": AGENT, "channelId": "cli", "mode": "task", "purpose": "live", "projectId": "acme"},
    turns=[
        Turn(
            "Move the settings of all services from INI files to TOML.",
            [
                Step(
                    say="Three services have INI files. I will have one subagent look at each kind of setting.",
                    calls=[
                        Call("Task", {"prompt": "list all settings that are durations"}, "7 durations, all in seconds"),
                        Call("Glob", {"pattern": "**/*.ini"}, "api.ini\nmail.ini\njobs.ini\n", parent=0),
                        Call("Grep", {"pattern": "_timeout", "path": "."}, "7 matches in 3 files", parent=0),
                    ],
                ),
                Step(failure="the model was overloaded; asked again"),
                Step(
                    say="Now the files themselves, one after the other.",
                    calls=[
                        Call("Write", {"path": "api.toml"}, "42 lines written"),
                        Call("Write", {"path": "mail.toml"}, "18 lines written"),
                        Call("Write", {"path": "jobs.toml"}, "27 lines written"),
                        Call("Bash", {"command": "git rm *.ini"}, "rm 'api.ini' 'mail.ini' 'jobs.ini'"),
                    ],
                ),
                Step(
                    say="All three services read TOML now. Every duration kept its value and has its unit in its "
                    "name, as in read_timeout_s. The INI files are gone; git still has them.",
                ),
            ],
        ),
    ],
)

EVALUATION = Script(
    "ses_eval_refund",
    {"agent": AGENT, "channelId": "eval", "mode": "task", "purpose": "eval", "projectId": "acme-evals"},
    turns=[
        Turn(
            "Refund order 10001 in full.",
            [
                Step(
                    say="I will check the order before I pay anything back.",
                    think="The policy says 30 days. The order is 12 days old, so a refund is allowed.",
                    calls=[
                        Call("LookUpOrder", {"order": "10001"}, "paid 2025-12-31: 24.90"),
                        Call("Refund", {"order": "10001", "amount": 24.9}, "would have refunded 24.90", stubbed=True),
                    ],
                ),
                Step(say="Order 10001 is refunded in full: 24.90. It takes two or three days to arrive."),
            ],
        ),
    ],
)

SCRIPTS = (TIDES, RELEASE, NIGHTLY, SUPPORT, MIGRATION, EVALUATION)


def sessions() -> Iterator[dict[str, Any]]:
    """The envelopes of all sessions, one session after the other."""
    random = Random(SEED)
    start = datetime(2026, 1, 12, 9, tzinfo=UTC)
    for place, script in enumerate(SCRIPTS):
        yield from Teller(script, start + timedelta(seconds=7 * place), random).tell()


def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    path = Path(arguments[0]) if arguments else Path(__file__).with_name("sessions.jsonl")
    lines = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in sessions())
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
