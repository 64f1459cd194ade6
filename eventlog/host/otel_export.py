"""Hands what handlers measure on to OpenTelemetry, where its API is installed (extra `otel`) and a provider is set."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any

from eventlog.host.otel import Export, Kind, Tags, TagValue

SCOPE = "eventlog"
"""The name of the instrumentation, by which views and processors choose."""

AGENT = "gen_ai.agent.name"
SESSION = "gen_ai.conversation.id"
"""What each measurement is attributed to (R111), by the names of the GenAI conventions."""

_NAME = re.compile(r"[a-zA-Z][-_./a-zA-Z0-9]{0,254}")

logger = logging.getLogger("eventlog.otel")


@cache
def open_telemetry() -> Export | None:
    """The providers that the server sets, now or later; None where opentelemetry-api is not installed."""
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    return OpenTelemetry(metrics.get_meter(SCOPE), trace.get_current_span)


class OpenTelemetry:
    """One instrument for each name.

    How many sessions an instrument tells apart is limited by the SDK; a view that leaves out `gen_ai.conversation.id`
    keeps totals.
    """

    def __init__(self, meter: Any, current_span: Any) -> None:
        self._meter = meter
        self._current_span = current_span
        self._instruments: dict[tuple[Kind, str], Any] = {}

    def measure(self, kind: Kind, name: str, value: int | float, agent: str, session_id: str, tags: Tags) -> None:
        """Add one measurement."""
        record = self._instruments.get((kind, name))
        if record is None:
            record = self._instruments[kind, name] = self._instrument(kind, name)
        record(value, {**tags, AGENT: agent, SESSION: session_id})

    def tag(self, name: str, value: TagValue) -> None:
        """Tag the span that the caller is in, if it is in one."""
        self._current_span().set_attribute(name, value)

    def _instrument(self, kind: Kind, name: str) -> Any:
        if _NAME.fullmatch(name) is None:  # names are wider here
            logger.warning("OpenTelemetry knows no names such as %r, so this %s is only counted here", name, kind)
            return _nowhere
        return self._meter.create_counter(name).add if kind == "counter" else self._meter.create_histogram(name).record


def _nowhere(_value: int | float, _attributes: Tags) -> None: ...
