"""What handlers count, measure and tag, and that it stays bounded and exact."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import InvalidName, LimitExceeded
from eventlog.host import Measurement, Meter
from eventlog.host.otel import MAX_SESSION_TAGS, MAX_TAGS
from eventlog.host.otel_export import SCOPE, OpenTelemetry, open_telemetry
from tests.cli_kit import environment


def totals(meter: Meter) -> dict[tuple[str, str | None, tuple[tuple[str, Any], ...]], int | float]:
    return {
        (row.name, row.session_id, tuple(row.tags.items())): row.amount.total
        for row in meter.measurements()
        if row.amount is not None
    }


def test_r112_both_forms_of_increment_work() -> None:
    meter = Meter("desk")
    otel = meter.of("s1")
    otel.increment("tokens", 12)
    otel.increment("tokens", 0.5)
    otel.increment("tokens")
    otel.increment("failed", {"channel": "slack"})
    otel.increment("failed", 2, {"channel": "slack"})
    otel.increment("failed", tags={"channel": "http"})
    assert totals(meter) == {
        ("tokens", "s1", ()): 13.5,
        ("failed", "s1", (("channel", "slack"),)): 3,
        ("failed", "s1", (("channel", "http"),)): 1,
    }


def test_r111_what_is_measured_is_attributed_to_session_and_agent() -> None:
    meter = Meter("desk")
    meter.of("s1").increment("turns")
    meter.of("s2").increment("turns", 2)
    meter.of("s2").histogram("seconds", 1.5)
    meter.of("s2").tag("customer", "acme")
    rows = meter.measurements()
    assert [(row.kind, row.name, row.agent, row.session_id) for row in rows] == [
        ("counter", "turns", "desk", "s1"),
        ("counter", "turns", "desk", "s2"),
        ("histogram", "seconds", "desk", "s2"),
        ("tag", "customer", "desk", "s2"),
    ]


def test_a_histogram_keeps_count_sum_and_extremes() -> None:
    meter = Meter("desk")
    for seconds in (3, 1.5, -2, 4):
        meter.of("s1").histogram("seconds", seconds)
    (row,) = meter.measurements()
    assert row.amount is not None
    assert (row.amount.count, row.amount.total, row.amount.minimum, row.amount.maximum) == (4, 6.5, -2, 4)


def test_a_counter_and_a_histogram_may_share_a_name() -> None:
    meter = Meter("desk")
    meter.of("s1").increment("tokens", 2)
    meter.of("s1").histogram("tokens", 3)
    assert [(row.kind, row.amount and row.amount.total) for row in meter.measurements()] == [
        ("counter", 2),
        ("histogram", 3),
    ]


def test_the_order_of_tags_means_nothing_and_their_types_do() -> None:
    meter = Meter("desk")
    otel = meter.of("s1")
    otel.increment("n", {"a": 1, "b": 2})
    otel.increment("n", {"b": 2, "a": 1})
    otel.increment("n", {"a": True, "b": 2})
    otel.increment("n", {"a": 1.0, "b": 2})
    assert [row.amount.total for row in meter.measurements() if row.amount is not None] == [2, 1, 1]


def test_the_last_value_of_a_tag_stands() -> None:
    meter = Meter("desk")
    meter.of("s1").tag("customer", "acme")
    meter.of("s1").tag("customer", "initech")
    assert meter.measurements() == [Measurement("tag", "customer", "desk", "s1", {"customer": "initech"})]


def test_r111_counting_is_exact_from_many_threads() -> None:
    meter = Meter("desk")

    def count(thread: int) -> None:
        otel = meter.of(f"s{thread % 2}")
        for _ in range(2_000):
            otel.increment("n", 3)
            otel.histogram("h", thread)
            otel.tag("thread", thread)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert totals(meter) == {
        ("n", "s0", ()): 24_000,
        ("n", "s1", ()): 24_000,
        ("h", "s0", ()): 24_000,
        ("h", "s1", ()): 32_000,
    }


def test_what_was_read_does_not_change_any_more() -> None:
    meter = Meter("desk")
    meter.of("s1").increment("n", {"a": 1})
    (before,) = meter.measurements()
    meter.of("s1").increment("n", {"a": 1})
    assert before.amount is not None
    before.tags["a"] = 2
    assert (before.amount.total, totals(meter)) == (1, {("n", "s1", (("a", 1),)): 2})


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf, True, None, "3", [1], Fraction(1, 2), 1j])
def test_a_counter_takes_no_such_value(value: Any) -> None:
    meter = Meter("desk")
    with pytest.raises(InvalidName, match="counter value"):
        meter.of("s1").increment("n", value)
    assert meter.measurements() == []


@pytest.mark.parametrize("value", [math.nan, -math.inf, False, None, "3", {}])
def test_a_histogram_takes_no_such_value(value: Any) -> None:
    with pytest.raises(InvalidName, match="histogram value"):
        Meter("desk").of("s1").histogram("n", value)


@pytest.mark.parametrize(
    "tags", [{"a": None}, {"a": [1]}, {"a": math.nan}, {"": 1}, {5: 1}, {"a\n": 1}, {"x" * 257: 1}]
)
def test_tags_are_named_scalars(tags: Any) -> None:
    meter = Meter("desk")
    with pytest.raises(InvalidName, match="tag"):
        meter.of("s1").increment("n", tags)
    with pytest.raises(InvalidName, match="tag"):
        meter.of("s1").histogram("n", 1, tags)
    ((name, value),) = tags.items()
    with pytest.raises(InvalidName, match="tag"):
        meter.of("s1").tag(name, value)
    assert meter.measurements() == []


@pytest.mark.parametrize("name", ["", "a\x1b[31m", "x" * 257, None, 5])
def test_a_name_is_printable_text(name: Any) -> None:
    with pytest.raises(InvalidName, match="counter name"):
        Meter("desk").of("s1").increment(name)


def test_the_tags_of_one_measurement_are_limited() -> None:
    otel = Meter("desk").of("s1")
    otel.increment("n", {f"t{n}": n for n in range(MAX_TAGS)})
    with pytest.raises(LimitExceeded):
        otel.increment("n", {f"t{n}": n for n in range(MAX_TAGS + 1)})


def test_names_are_limited_and_known_ones_go_on() -> None:
    meter = Meter("desk", max_instruments=2)
    meter.of("s1").increment("a")
    meter.of("s1").histogram("a", 1)
    with pytest.raises(LimitExceeded, match="limit of 2"):
        meter.of("s1").increment("b")
    meter.of("s2").increment("a")
    assert len(meter.measurements()) == 3


def test_past_the_limit_the_longest_unused_series_loses_its_session_and_no_sum_is_lost() -> None:
    meter = Meter("desk", max_series=3)
    for session in ("s1", "s2", "s3", "s1", "s4", "s5"):
        meter.of(session).increment("n", {"a": 1})
    tags = (("a", 1),)
    assert totals(meter) == {("n", "s1", tags): 2, ("n", "s4", tags): 1, ("n", "s5", tags): 1, ("n", None, ()): 2}
    for number in range(1_000):
        meter.of(f"x{number}").increment("n")
    assert sum(totals(meter).values()) == 1_006
    assert len(meter.measurements()) == 4


def test_tags_of_sessions_are_limited_and_the_oldest_goes() -> None:
    meter = Meter("desk")
    for number in range(MAX_SESSION_TAGS + 1):
        meter.of(f"s{number}").tag("n", number)
    rows = meter.measurements()
    assert len(rows) == MAX_SESSION_TAGS
    assert (rows[0].session_id, rows[-1].session_id) == ("s1", f"s{MAX_SESSION_TAGS}")


# ------------------------------------------------------------------------------------------------ and in OpenTelemetry


class Sdk:
    """An SDK that keeps what is measured in memory."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="belongs to the test extra")
        self._reader = sdk.export.InMemoryMetricReader()
        self.meter = sdk.MeterProvider([self._reader]).get_meter(SCOPE)
        self.span = Span()

    def export(self) -> OpenTelemetry:
        return OpenTelemetry(self.meter, lambda: self.span)

    def points(self) -> list[tuple[str, int | float, dict[str, Any]]]:
        """Each instrument's name, sum and attributes."""
        data = json.loads(self._reader.get_metrics_data().to_json())
        metrics = [metric for scope in data["resource_metrics"][0]["scope_metrics"] for metric in scope["metrics"]]
        return [
            (metric["name"], point["value"] if "value" in point else point["sum"], point["attributes"])
            for metric in metrics
            for point in metric["data"]["data_points"]
        ]


class Span:
    """The span that a caller is in."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}

    def set_attribute(self, name: str, value: Any) -> None:
        self.attributes[name] = value


OF_S1 = {"gen_ai.agent.name": "desk", "gen_ai.conversation.id": "s1"}


def test_r111_r112_both_forms_go_to_open_telemetry_attributed_to_session_and_agent_and_are_counted_all_the_same() -> (
    None
):
    sdk = Sdk()
    meter = Meter("desk", export=sdk.export())
    otel = meter.of("s1")
    otel.increment("acme.tokens.input", 12)
    otel.increment("acme.tokens.input", 3)
    otel.increment("acme.turn.failed", {"channel": "slack"})
    meter.of("s2").histogram("acme.seconds", 1.5)
    otel.tag("customer", "acme")
    assert sdk.points() == [
        ("acme.tokens.input", 15, OF_S1),
        ("acme.turn.failed", 1, {**OF_S1, "channel": "slack"}),
        ("acme.seconds", 1.5, {**OF_S1, "gen_ai.conversation.id": "s2"}),
    ]
    assert sdk.span.attributes == {"customer": "acme"}
    assert len(meter.measurements()) == 4


def test_what_the_meter_refuses_goes_nowhere() -> None:
    sdk = Sdk()
    otel = Meter("desk", max_instruments=1, export=sdk.export()).of("s1")
    otel.increment("a")
    with pytest.raises(LimitExceeded):
        otel.increment("b")
    with pytest.raises(InvalidName):
        otel.increment("a", -1)
    assert sdk.points() == [("a", 1, OF_S1)]


def test_a_name_that_open_telemetry_does_not_know_is_told_once_and_counted_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sdk = Sdk()
    meter = Meter("desk", export=sdk.export())
    for _ in range(3):
        meter.of("s1").increment("zähler 1")
    meter.of("s1").increment("plain")
    assert [name for name, _, _ in sdk.points()] == ["plain"]
    assert totals(meter)["zähler 1", "s1", ()] == 3
    assert len(caplog.messages) == 1


def test_without_the_extra_there_is_nowhere_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    open_telemetry.cache_clear()
    try:
        assert open_telemetry() is None
    finally:
        open_telemetry.cache_clear()


SERVER = """
import asyncio, json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from eventlog import EventLog, Runtime, define_hook

async def on_turn(event, ctx):
    ctx.host.otel.increment("acme.turns", {"channel": ctx.channel.id})

async def main():
    reader = InMemoryMetricReader()
    async with EventLog(sys.argv[1]) as log, Runtime(log) as runtime:
        runtime.add_hook("turns", define_hook(events={"turn.completed": on_turn}))
        session = await log.start_session("s1")
        for number in range(2):
            await session.append("turn.completed", {}, turn_id=f"t{number}")
            await runtime.settled()
            if number == 0:  # what was measured before is counted here alone
                metrics.set_meter_provider(MeterProvider([reader]))
        rows = [[row.name, row.amount.total] for row in runtime.meter.measurements()]
    data = json.loads(reader.get_metrics_data().to_json())
    metric = data["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]
    print(json.dumps([rows, metric["name"], metric["data"]["data_points"][0]["value"]]))

asyncio.run(main())
"""


def test_r111_a_runtime_hands_on_what_handlers_measure_to_the_provider_that_the_server_sets(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="belongs to the test extra")
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path / "agent.db")],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[["acme.turns", 2]], "acme.turns", 1]
    assert done.stderr == ""
