"""What the event stream looks like in OpenTelemetry: spans, their order and names, tokens, and what stays out of it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import Event, EventLog, HookDefinition, NewEvent, Runtime, Session, SessionInfo
from eventlog.errors import InvalidName
from eventlog.observe import otel_hook
from eventlog.replay import Replay
from examples.server import play
from examples.traffic import read_traffic
from tests.cli_kit import SAMPLE, conversation
from tests.real_data import real_data

pytest.importorskip("opentelemetry.sdk", reason="belongs to the test extra")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode


class Telemetry:
    """An SDK that keeps everything in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def hook(self, **options: Any) -> HookDefinition:
        return otel_hook(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def points(self) -> dict[str, list[HistogramDataPoint]]:
        """The data points of each histogram."""
        data = self._reader.get_metrics_data()
        found: dict[str, list[HistogramDataPoint]] = {}
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "eventlog"
                for metric in scope.metrics:
                    assert metric.unit == "{token}"
                    points = found.setdefault(metric.name, [])
                    points += [point for point in metric.data.data_points if isinstance(point, HistogramDataPoint)]
        return found

    def tokens(self) -> Counter[tuple[str, str]]:
        """The sum of tokens, by their kind and the model."""
        sums: Counter[tuple[str, str]] = Counter()
        for point in self.points.get("gen_ai.client.token.usage", ()):
            of = attributes(point)
            sums[of["gen_ai.token.type"], of.get("gen_ai.response.model", "-")] += int(point.sum)
        return sums


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def attributes(of: ReadableSpan | HistogramDataPoint) -> dict[str, Any]:
    return dict(of.attributes or {})


def named(spans: Iterable[ReadableSpan], operation: str) -> list[ReadableSpan]:
    return [span for span in spans if attributes(span)["gen_ai.operation.name"] == operation]


def above(span: ReadableSpan, spans: Iterable[ReadableSpan]) -> ReadableSpan | None:
    """The span that it stands below."""
    if span.parent is None:
        return None
    assert span.context is not None
    assert span.parent.trace_id == span.context.trace_id
    (found,) = [each for each in spans if each.context is not None and each.context.span_id == span.parent.span_id]
    return found


async def show(log: EventLog, hook: HookDefinition, session_id: str) -> None:
    """Show a hook all of a session again."""
    session = await log.session(session_id)
    replay = Replay(log, "agent", "otel", hook)
    async for event in session.read():
        await replay.show(event, session.info)
    assert replay.errors == 0


async def told(path: Path, hook: HookDefinition, *events: tuple[str, dict[str, Any]], purpose: Any = "live") -> None:
    """Show a hook one turn with these events."""
    async with EventLog(path / "agent.db") as log:
        session = await log.start_session("s1", purpose=purpose)
        await session.append_many([NewEvent(type, data, turn_id="t1") for type, data in events])
        await show(log, hook, "s1")


async def recorded(log: EventLog) -> list[tuple[SessionInfo, list[Event[Any]]]]:
    infos = [info async for info in log.sessions()]
    return [(info, [event async for event in (await log.session(info.id)).read()]) for info in infos]


# --------------------------------------------------------------------------------------------------------------- spans


@pytest.fixture(params=["sample", "real"])
def file(request: pytest.FixtureRequest) -> Path:
    return SAMPLE if request.param == "sample" else real_data()


async def test_r158_each_turn_step_and_call_of_the_log_is_a_span_with_its_times(
    tmp_path: Path, telemetry: Telemetry, file: Path
) -> None:
    hook = telemetry.hook()
    async with EventLog(tmp_path / "agent.db") as log:
        with file.open("rb") as lines:
            await log.import_events(lines)
        sessions = await recorded(log)
        for info, _ in sessions:
            await show(log, hook, info.id)
    turns = {
        (attributes(span)["gen_ai.conversation.id"], attributes(span)["eventlog.turn.id"]): (
            span.start_time,
            span.end_time,
        )
        for span in named(telemetry.spans, "invoke_agent")
    }
    assert turns == expected_turns(sessions)
    calls = Counter(attributes(span)["gen_ai.tool.name"] for span in named(telemetry.spans, "execute_tool"))
    assert calls == Counter(
        call.tool_name for _, event in each("actions.requested", sessions) for call in event.data.calls
    )
    assert len(named(telemetry.spans, "chat")) == len(each("step.started", sessions))
    for span in telemetry.spans:
        operation, parent = attributes(span)["gen_ai.operation.name"], above(span, telemetry.spans)
        assert (parent is None) == (operation == "invoke_agent")
        if parent is not None:
            assert (span.start_time or 0) >= (parent.start_time or 0) > 0
            assert attributes(parent)["gen_ai.conversation.id"] == attributes(span)["gen_ai.conversation.id"]


Sessions = list[tuple[SessionInfo, list[Event[Any]]]]


def each(type: str, sessions: Sessions) -> list[tuple[SessionInfo, Event[Any]]]:
    return [(info, event) for info, events in sessions for event in events if event.type == type]


def expected_turns(sessions: Sessions) -> dict[tuple[str, str], tuple[int, int]]:
    """When each turn began and ended, in nanoseconds."""
    began = {(event.session_id, str(event.turn_id)): event.at_us for _, event in each("turn.started", sessions)}
    ends = [*each("turn.completed", sessions), *each("turn.failed", sessions)]
    ended = {(event.session_id, str(event.turn_id)): event.at_us for _, event in ends}
    return {turn: (at_us * 1_000, ended[turn] * 1_000) for turn, at_us in began.items()}


async def test_r158_the_spans_of_a_turn_have_the_names_of_the_conventions(tmp_path: Path, telemetry: Telemetry) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await conversation(log)
        await show(log, telemetry.hook(provider="anthropic"), "s1")
    of_both = {
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "s1",
        "gen_ai.provider.name": "anthropic",
    }
    used = {
        "gen_ai.usage.input_tokens": 1_719,  # those that were written to the cache are among them
        "gen_ai.usage.output_tokens": 173,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_creation.input_tokens": 5,
    }
    of_turn = {**of_both, "gen_ai.operation.name": "invoke_agent", "eventlog.channel.id": "http"}
    read, find, pay, turn, interrupted = telemetry.spans
    assert (turn.name, turn.kind, attributes(turn)) == (
        "invoke_agent helper",
        SpanKind.INTERNAL,
        {
            **of_turn,
            **used,
            "gen_ai.response.model": "haiku",
            "eventlog.cost.usd": 0.0077,
            "eventlog.session.purpose": "live",
            "eventlog.turn.id": "t1",
            "eventlog.turn.outcome": "completed",
        },
    )
    assert (find.name, find.kind, attributes(find)) == (
        "execute_tool Find",
        SpanKind.INTERNAL,
        {
            **of_both,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "Find",
            "gen_ai.tool.call.id": "c1",
        },
    )
    assert [above(span, telemetry.spans) for span in (read, find, pay)] == [find, turn, turn]
    assert (read.status.status_code, attributes(read)["error.type"]) == (StatusCode.ERROR, "_OTHER")
    assert attributes(pay)["eventlog.tool.stubbed"] is True
    assert (find.status.status_code, interrupted.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert attributes(interrupted)["eventlog.turn.outcome"] == "interrupted"


async def test_a_step_is_a_chat_with_its_tokens(tmp_path: Path, telemetry: Telemetry) -> None:
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 4, "cacheWriteTokens": 8, "reasoningTokens": 1}
    await told(
        tmp_path,
        telemetry.hook(),
        ("turn.started", {}),
        ("step.started", {"stepIndex": 0}),
        ("step.completed", {"stepIndex": 0, "finishReason": "stop", "usage": usage}),
        ("step.started", {"stepIndex": 1}),
        ("step.failed", {"stepIndex": 1, "message": "no model"}),
        ("turn.failed", {"message": "no model"}),
    )
    first, second, turn = telemetry.spans
    assert (first.name, first.kind) == ("chat", SpanKind.CLIENT)
    assert attributes(first)["gen_ai.response.finish_reasons"] == ("stop",)
    for span in (first, turn):  # what steps used is what a turn used that does not tell
        assert {name: value for name, value in attributes(span).items() if ".usage." in name} == {
            "gen_ai.usage.input_tokens": 13,
            "gen_ai.usage.output_tokens": 2,
            "gen_ai.usage.cache_read.input_tokens": 4,
            "gen_ai.usage.cache_creation.input_tokens": 8,
            "gen_ai.usage.reasoning.output_tokens": 1,
        }
    for span in (second, turn):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert attributes(turn)["eventlog.turn.outcome"] == "failed"
    assert telemetry.tokens() == {("input", "-"): 13, ("output", "-"): 2}


async def test_every_name_is_one_of_the_conventions_or_our_own(tmp_path: Path, telemetry: Telemetry) -> None:
    known = conventions()
    async with EventLog(tmp_path / "agent.db") as log:
        await conversation(log)
        await show(log, telemetry.hook(payloads=True, provider="anthropic"), "s1")
    names = {name for span in telemetry.spans for name in attributes(span)}
    names |= {name for points in telemetry.points.values() for point in points for name in attributes(point)}
    names |= set(telemetry.points)
    assert {name for name in names if not name.startswith("eventlog.")} - known == set()


def conventions() -> set[str]:
    """The names in the package of the conventions that comes with the SDK."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
    from opentelemetry.semconv.attributes import error_attributes

    values = [
        value for module in (gen_ai_attributes, gen_ai_metrics, error_attributes) for value in vars(module).values()
    ]
    return {value for value in values if isinstance(value, str)}


# ------------------------------------------------------------------------------------------------------------ payloads


async def test_r158_no_payload_is_in_a_span_unless_it_is_asked_for(
    tmp_path: Path, telemetry: Telemetry, file: Path
) -> None:
    asked = Telemetry()
    async with EventLog(tmp_path / "agent.db") as log:
        with file.open("rb") as lines:
            await log.import_events(lines)
        sessions = await recorded(log)
        for info, _ in sessions:
            await show(log, telemetry.hook(), info.id)
            await show(log, asked.hook(payloads=True), info.id)
    fragments = {fragment for text in payloads(sessions) for fragment in PLAIN.findall(text)}
    assert len(fragments) > 100
    told, told_if_asked = everything(telemetry.spans), everything(asked.spans)
    assert [fragment for fragment in fragments if fragment in told] == []
    assert len([fragment for fragment in fragments if fragment in told_if_asked]) > 100


PLAIN = re.compile(r"[A-Za-z0-9 ,._-]{16,}")
"""What stands in JSON as it is, and says enough to be a payload."""

TOLD = {"callId", "toolName", "parentCallId", "finishReason", "model"}
"""Of the fields of events, those that spans may tell."""


def payloads(sessions: Sessions) -> Iterator[str]:
    """Every text in the data of every turn."""
    for _, events in sessions:
        for event in events:
            if event.turn_id is not None:
                yield from strings(event.to_dict()["data"])


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from () if name in TOLD else strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def everything(spans: Iterable[ReadableSpan]) -> str:
    return json.dumps([(span.name, attributes(span), span.status.description) for span in spans], ensure_ascii=False)


async def test_payloads_that_are_asked_for_are_in_the_form_of_the_conventions_and_cut(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    await told(
        tmp_path,
        telemetry.hook(payloads=True),
        ("message.received", {"text": "When?"}),
        ("actions.requested", {"calls": [{"callId": "c1", "toolName": "tides", "args": {"at": "Husum"}}]}),
        ("action.result", {"callId": "c1", "toolName": "tides", "isError": False, "output": "x" * 100_000}),
        ("message.completed", {"text": "At 06:12."}),
        ("turn.failed", {"message": "no model"}),
    )
    call, turn = telemetry.spans
    assert attributes(call)["gen_ai.tool.call.arguments"] == '{"at":"Husum"}'
    assert len(attributes(call)["gen_ai.tool.call.result"]) == 16_384
    for name, role, text in (("input", "user", "When?"), ("output", "assistant", "At 06:12.")):
        (message,) = json.loads(attributes(turn)[f"gen_ai.{name}.messages"])
        assert message == {"role": role, "parts": [{"type": "text", "content": text}]}
    assert turn.status.description == "no model"


# -------------------------------------------------------------------------------------------------------------- tokens


async def test_r158_tokens_of_live_turns_are_counted_once_and_those_of_evals_not(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.toml").write_text('name = "handyman"')
    async with EventLog(tmp_path / "agent.db") as log, Runtime(log, tmp_path) as runtime:
        runtime.add_hook("otel", telemetry.hook())
        await play(log, read_traffic(SAMPLE))
        await runtime.settled()
        sessions = await recorded(log)
    expected: Counter[tuple[str, str]] = Counter()
    for info, event in each("turn.completed", sessions):
        usage, cost = event.data.usage, event.data.cost
        if info.purpose == "live" and usage is not None:
            model = "-" if cost is None else cost.model
            cached = usage.cache_read_tokens + usage.cache_write_tokens
            expected["input", model] += usage.input_tokens + cached
            expected["output", model] += usage.output_tokens
    counted = {
        key: value for key, value in telemetry.tokens().items() if key[1] != "-"
    }  # and those of broken off turns
    assert counted == expected
    assert {span.instrumentation_scope.name for span in telemetry.spans if span.instrumentation_scope} == {"eventlog"}


async def test_an_eval_has_spans_that_say_so_and_no_tokens(tmp_path: Path, telemetry: Telemetry) -> None:
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 4, "cacheWriteTokens": 8}
    await told(tmp_path, telemetry.hook(), ("turn.started", {}), ("turn.completed", {"usage": usage}), purpose="eval")
    (turn,) = telemetry.spans
    assert attributes(turn)["eventlog.session.purpose"] == "eval"
    assert attributes(turn)["gen_ai.usage.output_tokens"] == 2
    assert telemetry.tokens() == {}


# --------------------------------------------------------------------------------------------------- what is left open


async def turns(session: Session, count: int, type: str) -> None:
    for number in range(count):
        await session.append(type, {}, turn_id=f"t{number}")


async def test_turns_that_never_end_are_ended_when_there_are_too_many(tmp_path: Path, telemetry: Telemetry) -> None:
    hook = telemetry.hook(open_spans=10)
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        await turns(session, 100, "turn.started")
        await show(log, hook, "s1")
        assert [attributes(span)["eventlog.turn.id"] for span in telemetry.spans] == [f"t{n}" for n in range(90)]
        assert {attributes(span)["eventlog.turn.outcome"] for span in telemetry.spans} == {"unknown"}
        await turns(await log.start_session("s2"), 10, "turn.started")
        await show(log, hook, "s2")
    assert len(telemetry.spans) == 100


async def test_a_turn_with_more_calls_than_there_may_be_spans_is_ended(tmp_path: Path, telemetry: Telemetry) -> None:
    calls = [{"callId": f"c{number}", "toolName": "Find"} for number in range(50)]
    await told(
        tmp_path,
        telemetry.hook(open_spans=10),
        ("turn.started", {}),
        ("actions.requested", {"calls": calls}),
        ("action.result", {"callId": "c49", "toolName": "Find", "isError": False}),
        ("turn.completed", {}),
    )
    assert len(named(telemetry.spans, "execute_tool")) == 10
    outcomes = [attributes(span)["eventlog.turn.outcome"] for span in named(telemetry.spans, "invoke_agent")]
    assert outcomes == ["unknown", "completed"]


async def test_what_a_turn_leaves_open_ends_with_it_and_what_comes_late_begins_nothing(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    await told(
        tmp_path,
        telemetry.hook(),
        ("turn.started", {}),
        ("step.started", {"stepIndex": 0}),
        ("actions.requested", {"calls": [{"callId": "c1", "toolName": "Find"}]}),
        ("turn.failed", {"message": "turn interrupted"}),
        ("action.result", {"callId": "c1", "toolName": "Find", "isError": False}),
    )
    assert [span.name for span in telemetry.spans] == ["execute_tool Find", "chat", "invoke_agent agent"]
    assert len({span.end_time for span in telemetry.spans}) == 1


async def test_what_is_said_twice_is_one_span_and_an_end_without_a_beginning_is_none(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    """As in a turn that was taken up again; and a step may end without a word of tokens or of a reason."""
    call = ("actions.requested", {"calls": [{"callId": "c1", "toolName": "Find"}]})
    await told(
        tmp_path,
        telemetry.hook(),
        ("turn.started", {}),
        ("step.failed", {"stepIndex": 7, "message": "of a step that nobody began"}),
        ("step.completed", {"stepIndex": 7}),
        ("step.started", {"stepIndex": 0}),
        ("step.started", {"stepIndex": 0}),
        call,
        call,
        ("step.completed", {"stepIndex": 0}),
        ("step.completed", {"stepIndex": 0}),
        ("action.result", {"callId": "c1", "toolName": "Find", "isError": False}),
        ("turn.completed", {}),
    )
    assert [span.name for span in telemetry.spans] == ["chat", "execute_tool Find", "invoke_agent agent"]
    step = attributes(telemetry.spans[0])
    assert not [name for name in step if "usage" in name or "finish" in name]
    assert telemetry.tokens() == {}


async def test_a_turn_that_began_before_the_hook_was_there_begins_with_what_it_sees(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 4, "cacheWriteTokens": 8}
    await told(tmp_path, telemetry.hook(), ("turn.completed", {"usage": usage}))
    (turn,) = telemetry.spans
    assert turn.start_time == turn.end_time
    assert telemetry.tokens() == {("input", "-"): 13, ("output", "-"): 2}


# ------------------------------------------------------------------------------------------------------------ the extra


def test_without_the_extra_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match="needs the extra `otel`"):
        otel_hook()


def test_no_span_at_all_is_too_few() -> None:
    with pytest.raises(InvalidName, match="open_spans"):
        otel_hook(open_spans=0)
