"""A turn as people read it: who said what, which tools were called with what, and what it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eventlog import CorruptEvent, Event
from eventlog.cli.events import arguments, price, summary, text_of, time_of, tokens
from eventlog.cli.human import count, cut, duration, span, wrapped
from eventlog.cli.output import Output, Piece, Span, escaped, escaped_lines
from eventlog.events import (
    ActionCall,
    ActionResult,
    ActionsRequested,
    InputRequested,
    InputResolved,
    MessageAppended,
    MessageCompleted,
    MessageReceived,
    ReasoningAppended,
    ReasoningCompleted,
    StepCompleted,
    StepStarted,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)

OUTPUT_LINES = 10
OUTPUT_CHARACTERS = 1_000
ARGUMENT_CHARACTERS = 200
INDENT = " " * len("12:34:56  ")  # what is said is never at the beginning of a line, so that it cannot pose as ours
MIN_WRAP_CELLS = 30


class Transcript:
    """Writes the events of turns, one after the other. Tool calls and outputs are shortened unless `whole`."""

    def __init__(self, output: Output, *, whole: bool = False) -> None:
        self.shown = 0
        self.corrupt = 0
        self._output = output
        self._whole = whole
        self._begun = False
        self._turn: str | None = None
        self._began_us: dict[str | None, int] = {}
        self._called: dict[str, tuple[int, int]] = {}  # by call id: its number in the transcript, and when
        self._calls_so_far = 0
        self._saying: dict[str, list[Event[Any]]] = {}  # by speaker, what has come and is not complete
        self._last_said = ""
        self._forgotten: list[Event[Any]] = []  # one behind the other, and not told yet

    def add(self, event: Event[Any]) -> None:
        """Write one event."""
        self.shown += 1
        if event.is_forgotten:
            self._forgotten.append(event)
            return
        self._tell_forgotten()
        if event.turn_id is not None and event.turn_id != self._turn:
            self._begin(event)
        try:
            self._tell(event)
        except CorruptEvent as error:
            self.corrupt += 1
            self._block(event, Span(f"CORRUPT {event.type}: {error.why}", "bad"))

    def end(self) -> None:
        """Write what was begun and never completed, and what was forgotten."""
        self._tell_forgotten()
        for speaker, deltas in self._saying.items():
            self._block(deltas[0], Span(speaker, "name"), Span(" (not completed)", "wait"))
            self._body("".join(event.data.delta for event in deltas))
        self._saying.clear()

    def _tell_forgotten(self) -> None:
        """Once for all of it: a tombstone has nothing to say but that it stands there."""
        if not self._forgotten:
            return
        first, last = self._forgotten[0], self._forgotten[-1]
        self._apart()
        self._output.line(
            Span("forgotten", "wait"),
            f": {count(len(self._forgotten), 'event')} of session {first.session_id}, index "
            f"{span(first.index, last.index)}",
        )
        self._output.line(INDENT, f"recorded {_recorded(first, last)} UTC; what was said is erased")
        self._forgotten.clear()
        self._turn = None

    # -- the events ---------------------------------------------------------------------------------------------

    def _begin(self, event: Event[Any]) -> None:
        self.end()
        self._apart()
        self._turn = event.turn_id
        self._last_said = ""
        day = time_of(event)[:10]
        self._output.line(Span(f"turn {event.turn_id}", "title"), f" of session {event.session_id}, {day} UTC")

    def _tell(self, event: Event[Any]) -> None:
        data = event.data
        for kind, tell in _TELLERS:
            if isinstance(data, kind):
                tell(self, event, data)
                return
        self._block(event, event.type, "  ", cut(escaped(summary(event)), ARGUMENT_CHARACTERS))

    def _started(self, event: Event[Any], _data: TurnStarted) -> None:
        self._began_us[event.turn_id] = event.at_us

    def _user(self, event: Event[Any], data: MessageReceived) -> None:
        self._say(event, "user", data.text)

    def _delta(self, event: Event[Any], data: MessageAppended | ReasoningAppended) -> None:
        speaker = "assistant" if isinstance(data, MessageAppended) else "reasoning"
        self._saying.setdefault(speaker, []).append(event)

    def _said(self, event: Event[Any], data: MessageCompleted | ReasoningCompleted) -> None:
        speaker = "assistant" if isinstance(data, MessageCompleted) else "reasoning"
        self._saying.pop(speaker, None)
        self._say(event, speaker, data.text)

    def _calls(self, event: Event[Any], data: ActionsRequested) -> None:
        for call in data.calls:
            self._calls_so_far += 1
            self._called[call.call_id] = (self._calls_so_far, event.at_us)
            self._block(event, f"call {self._calls_so_far} ", Span(call.tool_name, "wait"), *_parent(call))
            self._body(_whole(call) if self._whole else arguments(call), characters=ARGUMENT_CHARACTERS)

    def _result(self, event: Event[Any], data: ActionResult) -> None:
        number, began_us = self._called.get(data.call_id, (None, None))
        ended = Span("failed", "bad") if data.is_error else Span("dry run" if data.stubbed else "ok", "good")
        place = "result of an unknown call " if number is None else f"result {number} "
        self._block(event, place, Span(data.tool_name, "wait"), " ", ended, _since(began_us, event))
        if data.output is not None:
            self._body(text_of(data.output), lines=OUTPUT_LINES, characters=OUTPUT_CHARACTERS)

    def _asked(self, event: Event[Any], data: InputRequested) -> None:
        for request in data.requests:
            self._block(event, Span(f"asks for {request.kind}", "wait"))
            self._body(request.prompt if request.options is None else f"{request.prompt}\n{text_of(request.options)}")

    def _answered(self, event: Event[Any], data: InputResolved) -> None:
        for resolution in data.resolutions:
            self._block(event, Span(f"answered: {resolution.outcome}", "good"))
            if resolution.response is not None:
                self._body(text_of(resolution.response))

    def _step(self, event: Event[Any], data: StepStarted | StepCompleted) -> None:
        if isinstance(data, StepCompleted):
            told = "; ".join(filter(None, (data.finish_reason, tokens(data.usage))))
            self._block(event, Span(f"step {data.step_index}  {told}", "dim"))

    def _completed(self, event: Event[Any], data: TurnCompleted) -> None:
        self.end()
        told = "; ".join(filter(None, (tokens(data.usage), price(data.cost))))
        took = _since(self._began_us.get(event.turn_id), event)
        self._block(event, Span("turn completed", "good"), took, f"; {told}" if told else "")
        if data.result is not None and text_of(data.result) != self._last_said:
            self._body(text_of(data.result))

    def _failed(self, event: Event[Any], data: TurnFailed) -> None:
        self.end()
        took = _since(self._began_us.get(event.turn_id), event)
        self._block(event, Span("turn failed", "bad"), took, f": {data.message}")

    # -- how they are written -----------------------------------------------------------------------------------

    def _say(self, event: Event[Any], speaker: str, text: str) -> None:
        self._last_said = text
        self._block(event, Span(speaker, "name"))
        self._body(text)

    def _block(self, event: Event[Any], *pieces: Piece) -> None:
        self._apart()
        self._output.line(Span(time_of(event)[11:19], "dim"), "  ", *pieces)

    def _apart(self) -> None:
        """A blank line before everything but the first."""
        if self._begun:
            self._output.line()
        self._begun = True

    def _body(self, text: str, *, lines: int | None = None, characters: int | None = None) -> None:
        kept, missing = _shortened(text, None if self._whole else lines, None if self._whole else characters)
        width = self._output.width
        room = None if width is None else max(MIN_WRAP_CELLS, width - len(INDENT))
        for line in escaped_lines(kept) if kept else ():
            for part in wrapped(line, room):
                self._output.harmless(f"{INDENT}{part}".rstrip() + "\n")
        if missing:
            self._output.line(INDENT, Span(f"... {missing:,} more characters (--full shows them)", "dim"))


def _recorded(first: Event[Any], last: Event[Any]) -> str:
    began, ended = (time_of(event)[:19].replace("T", " ") for event in (first, last))
    return began if began == ended else f"{began} to {ended}"


def _since(began_us: int | None, event: Event[Any]) -> str:
    return "" if began_us is None else f", {duration((event.at_us - began_us) / 1_000_000)}"


def _whole(call: ActionCall) -> str:
    """All arguments, each on lines of its own, as they are."""
    if isinstance(call.args, dict):
        return "\n".join(f"{name}={text_of(value)}" for name, value in call.args.items())
    return arguments(call)


def _parent(call: ActionCall) -> Sequence[Piece]:
    return () if call.parent_call_id is None else (Span(f" (for {call.parent_call_id})", "dim"),)


def _shortened(text: str, lines: int | None, characters: int | None) -> tuple[str, int]:
    """The text, or its beginning, and the number of characters that are missing."""
    kept = text if lines is None else "\n".join(text.split("\n", lines)[:lines])
    kept = kept if characters is None else kept[:characters]
    return kept, len(text) - len(kept)


_TELLERS: tuple[tuple[type | tuple[type, ...], Callable[[Transcript, Event[Any], Any], None]], ...] = (
    (TurnStarted, Transcript._started),
    (MessageReceived, Transcript._user),
    ((MessageAppended, ReasoningAppended), Transcript._delta),
    ((MessageCompleted, ReasoningCompleted), Transcript._said),
    (ActionsRequested, Transcript._calls),
    (ActionResult, Transcript._result),
    (InputRequested, Transcript._asked),
    (InputResolved, Transcript._answered),
    ((StepStarted, StepCompleted), Transcript._step),
    (TurnCompleted, Transcript._completed),
    (TurnFailed, Transcript._failed),
)
