"""Events as lines: what each says in a few words, and lists of them for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventlog import CorruptEvent, Event, InvalidEvent
from eventlog.cli.human import cells, cut
from eventlog.cli.output import Output, Span, escaped
from eventlog.events import (
    ActionCall,
    ActionResult,
    ActionsRequested,
    Cost,
    InputRequested,
    InputResolved,
    JobCompleted,
    JobQueued,
    JobStarted,
    SessionStarted,
    StepCompleted,
    TokenUsage,
    TurnCompleted,
    encode_json,
    format_time,
)

SUMMARY_CHARACTERS = 200  # in a pipe; a terminal's line is as long as it is
MIN_SUMMARY_CHARACTERS = 20
MIN_SESSION_CHARACTERS = 16
NO_TIME = "????-??-??T??:??:??.???Z"

_SPOKEN = ("text", "delta", "message", "title", "name", "prompt")


# ----------------------------------------------------------------------------------------------------- in a few words


def summary(event: Event[Any]) -> str:
    """What the event says, on one line; raises CorruptEvent when it cannot be read."""
    if event.is_forgotten:
        return "(forgotten)"
    data = event.data
    for kind, tell in _TELLERS:
        if isinstance(data, kind):
            return tell(data)
    spoken = next((text for name in _SPOKEN if isinstance(text := getattr(data, name, None), str)), None)
    return _one_line(spoken if spoken is not None else _rest(event))


def tokens(usage: TokenUsage | None) -> str:
    """`1,714 in, 173 out, 9,000 from cache`, empty when unknown."""
    if usage is None:
        return ""
    counted = [(usage.input_tokens, "in"), (usage.output_tokens, "out"), (usage.reasoning_tokens or 0, "reasoning")]
    cached = usage.cache_read_tokens, usage.cache_write_tokens
    counted += [(number, noun) for number, noun in zip(cached, ("from cache", "to cache"), strict=True) if number]
    return ", ".join(f"{number:,} {noun}" for number, noun in counted if number or noun in ("in", "out"))


def price(cost: Cost | None) -> str:
    """`$0.0077 claude-haiku-4-5`, empty when unknown."""
    if cost is None:
        return ""
    amount = "under $0.0001" if 0 < cost.total_usd < 0.0001 else f"${cost.total_usd:,.4f}"
    return f"{amount} {cost.model}"


def arguments(call: ActionCall) -> str:
    """A call's arguments on one line, as `name=value` where they are named."""
    if isinstance(call.args, dict):
        return ", ".join(f"{name}={_value(value)}" for name, value in call.args.items())
    return "" if call.args is None else _value(call.args)


def text_of(value: Any) -> str:
    """A string as it is, any other JSON value as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


def time_of(event: Event[Any]) -> str:
    """When it was recorded, as RFC 3339; of a damaged event that may be no time at all."""
    try:
        return format_time(event.at_us)
    except InvalidEvent:
        return NO_TIME


def _value(value: Any) -> str:
    return _one_line(text_of(value))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _rest(event: Event[Any]) -> str:
    text = event.raw.decode()
    return "" if text == "{}" else text


def _result(data: ActionResult) -> str:
    ended = "error" if data.is_error else "dry run" if data.stubbed else "ok"
    shown = "" if data.output is None else f": {_value(data.output)}"
    return f"{data.tool_name} {ended}{shown}"


def _started(data: SessionStarted) -> str:
    return " ".join(filter(None, (data.agent, data.project_id, data.channel_id, data.mode, data.purpose, data.title)))


def _listed(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))


_TELLERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (SessionStarted, _started),
    (ActionsRequested, lambda data: _listed(*(f"{call.tool_name}({arguments(call)})" for call in data.calls))),
    (ActionResult, _result),
    (TurnCompleted, lambda data: _listed(tokens(data.usage), price(data.cost))),
    (StepCompleted, lambda data: _listed(data.finish_reason, tokens(data.usage))),
    (JobQueued, lambda data: _one_line(f"{data.job_id} {data.name or ''}")),
    (JobStarted, lambda data: data.job_id),
    (JobCompleted, lambda data: f"{data.job_id} {data.status}"),
    (InputRequested, lambda data: _listed(*(_one_line(request.prompt) for request in data.requests))),
    (InputResolved, lambda data: _listed(*(resolution.outcome for resolution in data.resolutions))),
)


# ---------------------------------------------------------------------------------------------------- lists of events


class EventList:
    """Writes events one by one, as lines for people. Counts the corrupt ones, which are marked and not left out."""

    def __init__(self, output: Output, *, of_session: bool) -> None:
        self.shown = 0
        self.corrupt = 0
        self._output = output
        self._of_session = of_session
        self._heading = ""
        self._session_characters = MIN_SESSION_CHARACTERS  # as many as the longest id so far

    def add(self, event: Event[Any]) -> None:
        """Write one event."""
        self.shown += 1
        self._write(event)

    def end(self) -> None:
        """Write what stands behind the last event."""

    def _write(self, event: Event[Any]) -> None:
        left, kind, room = self._frame(event)
        try:
            told, style = self._told(event, room), _style(event.type)
        except CorruptEvent as error:
            self.corrupt += 1
            told, style = f"CORRUPT: {error.why}", "bad"
        if self._output.width is not None:
            self._head(time_of(event)[:10], event.turn_id)
        self._output.line(
            left,
            "  ",
            Span(kind if told else kind.rstrip(), style),
            *(["  ", cut(escaped(told), room)] if told else []),
        )

    def _told(self, event: Event[Any], _room: int) -> str:
        """What its line says in so many places; raises CorruptEvent when it cannot be read."""
        return summary(event)

    def _frame(self, event: Event[Any]) -> tuple[str, str, int]:
        """What its line begins with, the column of its type, and how much room there is for what it says."""
        width = self._output.width
        at, place = time_of(event), event.index if self._of_session else event.position
        columns = [f"{place:>6}", at if width is None else at[11:19]]
        if not self._of_session:
            columns.append(self._session(event.session_id))
        kind = f"{event.type:<19}"
        if width is None:
            return "  ".join(columns), f"{kind}  {event.turn_id or '-':<8}", SUMMARY_CHARACTERS
        left = "  ".join(columns)
        used = cells(escaped(left)) + cells(escaped(kind)) + 4
        return left, kind, max(MIN_SUMMARY_CHARACTERS, width - used)

    def _session(self, session_id: str) -> str:
        needed = cells(escaped(session_id))
        self._session_characters = max(self._session_characters, needed)
        return session_id + " " * (self._session_characters - needed)

    def _head(self, day: str, turn: str | None) -> None:
        """On a terminal what many lines share stands above them, so that there is room for what they say."""
        heading = f"{day} UTC" if turn is None or not self._of_session else f"{day} UTC  {turn}"
        if heading != self._heading:
            self._heading = heading
            self._output.line(Span(heading, "dim"))


class JsonEventList(EventList):
    """Writes events as envelopes, one a line, or as one document. A corrupt one has `corrupt` in place of `data`."""

    def __init__(self, output: Output, *, as_lines: bool) -> None:
        super().__init__(output, of_session=False)
        self._as_lines = as_lines

    def _write(self, event: Event[Any]) -> None:
        if not self._as_lines:
            self._output.harmless("[\n" if self.shown == 1 else ",\n")
        try:
            text = event.to_json().decode()
        except CorruptEvent as error:
            self.corrupt += 1
            self._output.json_line(_corrupt(event, error), end="\n" if self._as_lines else "")
        else:
            self._output.json_text(text, end="\n" if self._as_lines else "")

    def end(self) -> None:
        if not self._as_lines:
            self._output.harmless("\n]\n" if self.shown else "[]\n")


def _corrupt(event: Event[Any], error: CorruptEvent) -> dict[str, Any]:
    turn = {} if event.turn_id is None else {"turnId": event.turn_id}
    place = {"type": event.type, "index": event.index, "sessionId": event.session_id}
    return {**place, **turn, "at": time_of(event), "corrupt": error.why}


def _style(event_type: str) -> str:
    noun, _, verb = event_type.partition(".")
    if verb == "failed":
        return "bad"
    if verb == "appended":
        return "dim"
    return {"turn": "good", "session": "title", "actions": "wait", "action": "wait"}.get(noun, "name")
