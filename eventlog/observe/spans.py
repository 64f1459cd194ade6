"""Folds the event stream into OpenTelemetry (R158): spans of turns, steps and tool calls, and metrics of tokens.

Names are those of the semantic conventions for GenAI. Times are those of the events, so a replay of a recorded session
gives the spans that were missed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from eventlog.encoding import encode_json
from eventlog.errors import InvalidName
from eventlog.events import (
    TURN_INTERRUPTED,
    ActionCall,
    ActionResult,
    ActionsRequested,
    Event,
    MessageCompleted,
    MessageReceived,
    StepCompleted,
    StepFailed,
    StepStarted,
    TokenUsage,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from eventlog.observe.context import HookContext
from eventlog.observe.hook import HookDefinition, HookEvents, define_hook

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

SCOPE = "eventlog"
OPEN_SPANS = 10_000
"""Spans of turns that have not ended; one more, and the turn that was quiet for the longest time is ended."""
MAX_PAYLOAD_CHARACTERS = 16_384
"""Of one text, argument or output, where they are asked for; the log has the whole of it."""
TOKEN_BUCKETS = [4**power for power in range(14)]

_OTHER = "_OTHER"  # the conventions' word for a kind of error that has no name

Attributes: TypeAlias = Mapping[str, Any]


def otel_hook(
    *,
    payloads: bool = False,
    provider: str | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    open_spans: int = OPEN_SPANS,
) -> HookDefinition:
    """Define the hook of `agent/hooks/otel.py`: `hook = otel_hook(provider="anthropic")`.

    A turn is a trace: `invoke_agent` with a `chat` for each step and an `execute_tool` for each call, which stands
    below the call that it belongs to. Tokens go to `gen_ai.client.token.usage` when their turn ends, those of evals
    excepted. Texts, arguments, outputs and error messages are left out unless `payloads`. `provider` is the
    conventions' name for whose model it is, which no event tells. Needs the extra `otel`; raises ImportError without.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        needs = "otel_hook needs the extra `otel`: install eventlog with it, as its README shows"
        raise ImportError(needs, name=error.name) from error
    if open_spans < 1:
        raise InvalidName("open_spans", open_spans, "must be a number of spans from 1 on")
    fold = _Fold(
        trace.get_tracer(SCOPE, tracer_provider=tracer_provider),
        _token_histogram(meter_provider),
        open_spans,
        provider=provider,
        payloads=payloads,
    )
    events: HookEvents = {
        "turn.started": fold.started,
        "message.received": fold.asked,
        "step.started": fold.step_started,
        "step.completed": fold.step_completed,
        "step.failed": fold.step_failed,
        "actions.requested": fold.requested,
        "action.result": fold.result,
        "turn.completed": fold.completed,
        "turn.failed": fold.failed,
    }
    if payloads:
        events["message.completed"] = fold.said
    return define_hook(events=events)


def _token_histogram(provider: MeterProvider | None) -> Histogram:
    from opentelemetry import metrics

    return metrics.get_meter(SCOPE, meter_provider=provider).create_histogram(
        "gen_ai.client.token.usage",
        unit="{token}",
        description="Number of input and output tokens used.",
        explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
    )


class _Turn:
    """The spans of a turn that has not ended."""

    __slots__ = ("calls", "context", "span", "steps", "usage")

    def __init__(self, span: Span, context: Context) -> None:
        self.span = span
        self.context = context
        self.steps: dict[int, Span] = {}
        self.calls: dict[str, Span] = {}
        self.usage: TokenUsage | None = None  # of its steps so far

    @property
    def size(self) -> int:
        return 1 + len(self.steps) + len(self.calls)

    def end(self, at_ns: int) -> None:
        for span in (*self.calls.values(), *self.steps.values(), self.span):
            span.end(at_ns)


class _Fold:
    """What is known of the turns that have not ended, and how each event changes it."""

    def __init__(
        self, tracer: Tracer, tokens: Histogram, open_spans: int, *, provider: str | None, payloads: bool
    ) -> None:
        from opentelemetry import context, trace

        self._tracer = tracer
        self._tokens = tokens
        self._most = open_spans
        self._payloads = payloads
        self._provider = {} if provider is None else {"gen_ai.provider.name": provider}
        self._no_context = context.Context()
        self._inside: Callable[[Span], Context] = lambda span: trace.set_span_in_context(span, self._no_context)
        self._internal, self._client = trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT
        self._error = trace.StatusCode.ERROR
        self._open: OrderedDict[tuple[str, str | None], _Turn] = OrderedDict()
        self._spans = 0

    # -- turns --------------------------------------------------------------------------------------------------

    async def started(self, event: Event[TurnStarted], ctx: HookContext) -> None:
        self._turn(event, ctx)

    async def asked(self, event: Event[MessageReceived], ctx: HookContext) -> None:
        turn = self._turn(event, ctx)
        if self._payloads:
            turn.span.set_attribute("gen_ai.input.messages", _messages("user", event.data.text))

    async def said(self, event: Event[MessageCompleted], ctx: HookContext) -> None:
        self._turn(event, ctx).span.set_attribute("gen_ai.output.messages", _messages("assistant", event.data.text))

    async def completed(self, event: Event[TurnCompleted], ctx: HookContext) -> None:
        turn = self._ended(event, ctx)
        cost = event.data.cost
        model = {} if cost is None else {"gen_ai.response.model": cost.model}
        turn.span.set_attributes({"eventlog.turn.outcome": "completed", **model})
        if cost is not None:
            turn.span.set_attribute("eventlog.cost.usd", cost.total_usd)
        self._count(turn, event.data.usage or turn.usage, model, ctx)
        turn.end(_ns(event))

    async def failed(self, event: Event[TurnFailed], ctx: HookContext) -> None:
        turn = self._ended(event, ctx)
        if event.data.message == TURN_INTERRUPTED:  # which is no failure
            turn.span.set_attribute("eventlog.turn.outcome", "interrupted")
        else:
            turn.span.set_attribute("eventlog.turn.outcome", "failed")
            self._fail(turn.span, event.data.message)
        self._count(turn, turn.usage, {}, ctx)
        turn.end(_ns(event))

    def _turn(self, event: Event[Any], ctx: HookContext) -> _Turn:
        """The turn of an event: one that began before this process knew of it begins here."""
        key = event.session_id, event.turn_id
        turn = self._open.get(key)
        if turn is not None:
            self._open.move_to_end(key)
            return turn
        span = self._tracer.start_span(
            f"invoke_agent {ctx.agent.name}",
            context=self._no_context,
            kind=self._internal,
            attributes={
                **self._attributes("invoke_agent", ctx),
                "eventlog.turn.id": str(event.turn_id),
                "eventlog.channel.id": ctx.channel.id,
                "eventlog.session.purpose": ctx.session.purpose,
            },
            start_time=_ns(event),
        )
        turn = self._open[key] = _Turn(span, self._inside(span))
        self._grown(event)
        return turn

    def _ended(self, event: Event[Any], ctx: HookContext) -> _Turn:
        turn = self._turn(event, ctx)
        del self._open[event.session_id, event.turn_id]
        self._spans -= turn.size
        return turn

    def _grown(self, event: Event[Any]) -> None:
        self._spans += 1
        while self._spans > self._most:
            _, quiet = self._open.popitem(last=False)
            self._spans -= quiet.size
            quiet.span.set_attribute("eventlog.turn.outcome", "unknown")
            quiet.end(_ns(event))

    # -- steps --------------------------------------------------------------------------------------------------

    async def step_started(self, event: Event[StepStarted], ctx: HookContext) -> None:
        turn, index = self._turn(event, ctx), event.data.step_index
        if index not in turn.steps:
            turn.steps[index] = self._tracer.start_span(
                "chat",
                context=turn.context,
                kind=self._client,
                attributes={**self._attributes("chat", ctx), "eventlog.step.index": index},
                start_time=_ns(event),
            )
            self._grown(event)

    async def step_completed(self, event: Event[StepCompleted], ctx: HookContext) -> None:
        turn, step = self._turn(event, ctx), event.data
        if step.usage is not None:
            turn.usage = _sum(turn.usage, step.usage)
        span = self._take(turn.steps, step.step_index)
        if span is not None:
            if step.finish_reason is not None:
                span.set_attribute("gen_ai.response.finish_reasons", [step.finish_reason])
            if step.usage is not None:
                span.set_attributes(_usage(step.usage))
            span.end(_ns(event))

    async def step_failed(self, event: Event[StepFailed], ctx: HookContext) -> None:
        span = self._take(self._turn(event, ctx).steps, event.data.step_index)
        if span is not None:
            self._fail(span, event.data.message)
            span.end(_ns(event))

    # -- calls --------------------------------------------------------------------------------------------------

    async def requested(self, event: Event[ActionsRequested], ctx: HookContext) -> None:
        turn = self._turn(event, ctx)
        for call in event.data.calls:
            if self._open.get((event.session_id, event.turn_id)) is not turn:
                return  # it has more calls than there may be spans
            if call.call_id not in turn.calls:
                turn.calls[call.call_id] = self._call(turn, call, event, ctx)
                self._grown(event)

    def _call(self, turn: _Turn, call: ActionCall, event: Event[Any], ctx: HookContext) -> Span:
        above = turn.calls.get(call.parent_call_id or "")
        span = self._tracer.start_span(
            f"execute_tool {call.tool_name}",
            context=turn.context if above is None else self._inside(above),
            kind=self._internal,
            attributes={
                **self._attributes("execute_tool", ctx),
                "gen_ai.tool.name": call.tool_name,
                "gen_ai.tool.call.id": call.call_id,
            },
            start_time=_ns(event),
        )
        if self._payloads and call.args is not None:
            span.set_attribute("gen_ai.tool.call.arguments", _json(call.args))
        return span

    async def result(self, event: Event[ActionResult], ctx: HookContext) -> None:
        known = self._open.get((event.session_id, event.turn_id))  # a late result begins no turn
        span = None if known is None else self._take(known.calls, event.data.call_id)
        if span is None:
            return
        if event.data.stubbed:
            span.set_attribute("eventlog.tool.stubbed", True)
        if self._payloads and event.data.output is not None:
            span.set_attribute("gen_ai.tool.call.result", _json(event.data.output))
        if event.data.is_error:
            self._fail(span, None)
        span.end(_ns(event))

    # -- what they have in common -------------------------------------------------------------------------------

    def _take(self, spans: dict[Any, Span], key: Any) -> Span | None:
        span = spans.pop(key, None)
        if span is not None:
            self._spans -= 1
        return span

    def _attributes(self, operation: str, ctx: HookContext) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.agent.name": ctx.agent.name,
            "gen_ai.conversation.id": ctx.session.id,
            **self._provider,
        }

    def _fail(self, span: Span, message: str | None) -> None:
        span.set_attribute("error.type", _OTHER)
        span.set_status(self._error, _cut(message) if message is not None and self._payloads else None)

    def _count(self, turn: _Turn, usage: TokenUsage | None, model: Attributes, ctx: HookContext) -> None:
        if usage is None:
            return
        turn.span.set_attributes(_usage(usage))
        if ctx.session.purpose == "eval":
            return
        of = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": ctx.agent.name,
            **self._provider,
            **model,
        }
        self._tokens.record(_input_tokens(usage), {**of, "gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, {**of, "gen_ai.token.type": "output"})


def _ns(event: Event[Any]) -> int:
    return event.at_us * 1_000


def _input_tokens(usage: TokenUsage) -> int:
    """The conventions count what was read from a cache and written to it as input; the vocabulary counts it apart."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def _usage(usage: TokenUsage) -> dict[str, int]:
    thought = usage.reasoning_tokens
    return {
        "gen_ai.usage.input_tokens": _input_tokens(usage),
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        **({} if thought is None else {"gen_ai.usage.reasoning.output_tokens": thought}),
    }


def _sum(one: TokenUsage | None, other: TokenUsage) -> TokenUsage:
    if one is None:
        return other
    thought = None if one.reasoning_tokens is None else one.reasoning_tokens + (other.reasoning_tokens or 0)
    return TokenUsage(
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cache_write_tokens=one.cache_write_tokens + other.cache_write_tokens,
        reasoning_tokens=thought if thought is not None else other.reasoning_tokens,
    )


def _messages(role: str, text: str) -> str:
    return encode_json([{"role": role, "parts": [{"type": "text", "content": _cut(text)}]}]).decode()


def _json(value: Any) -> str:
    return _cut(encode_json(value).decode())


def _cut(text: str) -> str:
    return text[:MAX_PAYLOAD_CHARACTERS]
