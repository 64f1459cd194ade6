"""Runs every benchmark at its smallest: each figure is a finite, positive number. How large it is, no test asks."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from benchmarks.__main__ import ALL
from benchmarks.peers.subject import ALL_PEERS
from benchmarks.plots import draw
from eventlog.bench import Figure, Measured, Run, Subject, document, measure, table
from eventlog.bench.report import markdown, percentile
from eventlog.bench.workload import EVENT_BYTES, TURN, TYPE, opened
from tests.cli_kit import good, run

SHARE = 0.004
MAY_BE_BELOW_ZERO = {"waking one"}  # a difference


@pytest.mark.parametrize("subject", ALL, ids=lambda each: str(each.name))
async def test_a_benchmark_gives_every_figure(subject: Subject, tmp_path: Path) -> None:
    made = Run(tmp_path, SHARE)
    await subject.measure(made)
    for figure in expected(subject):
        [value] = made.samples[figure.of]
        assert math.isfinite(value), figure.of
        assert value > 0 or figure.of in MAY_BE_BELOW_ZERO, figure.of
        assert figure.against is None or figure.against in made.samples
    assert {path.name for path in tmp_path.iterdir()} <= {"opening"}  # which keeps its files for the next round


def expected(subject: Subject) -> list[Figure]:
    """Without what only some machines can measure."""
    missing = [peer.name for peer in ALL_PEERS if not peer.is_installed]
    figures = [each for each in subject.figures if each.of.split(":")[0] not in missing]
    if subject.name == "slow_disk" and shutil.which("strace") is None:
        return []
    if subject.name == "memory" and not Path("/proc/self/statm").exists():
        return []
    return [each for each in figures if each.of not in ("written", "idle")]


@pytest.mark.parametrize("subject", ALL, ids=lambda each: str(each.name))
def test_a_benchmark_says_what_it_measures_and_what_not(subject: Subject) -> None:
    assert "Not measured" in (subject.about or "").replace("\n", " ")
    assert len({figure.of for figure in subject.figures}) == len(subject.figures)


@pytest.mark.parametrize("turns", [False, True])
async def test_an_event_has_the_size_that_is_told(turns: bool, tmp_path: Path) -> None:
    async with opened(tmp_path, sessions=1, turns=turns) as appender:
        for _ in range(20):
            await appender.one()
        [*_, event] = [event async for event in appender.log.read()]
    assert event.type == (TURN if turns else TYPE)
    assert EVENT_BYTES - 3 <= len(event.to_json()) <= EVENT_BYTES + 3  # by the digits of its index and position


def measured() -> Measured:
    figures = (
        Figure("limit", "events/s", "the limit"),
        Figure("ours", "events/s", "ours", "limit", at_least=0.5),
        Figure("p99", "ms", "a time", at_most=2),
        Figure("not measured", "us", "left out"),
    )
    return Measured(
        "some", "about", figures, {"limit": [100, 200, 400], "ours": [50, 150, 100], "p99": [1.0, 2.0, 3.0]}
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    found = document([measured()], {"rounds": 3})
    _, ours, p99 = found["subjects"][0]["figures"]
    assert (ours["median"], ours["ratio"]["median"], ours["target"]) == (100, 0.5, ">= 0.5")
    assert (p99["ratio"], p99["target"], p99["rounds"]) == (None, "<= 2", [1.0, 2.0, 3.0])


def test_the_tables_show_what_was_measured_and_nothing_else() -> None:
    for text in (table(measured()), markdown(measured())):
        assert "0.50 (0.25..0.75) limit" in text
        assert "not measured" not in text


def test_the_plot_has_a_bar_for_each_ratio(tmp_path: Path) -> None:
    [drawn] = draw(document([measured()], {}), tmp_path)
    assert "<svg" in (text := drawn.read_text())
    assert text.count("0.50 limit (&gt;= 0.5)") == 1


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]


async def test_every_round_measures_each_subject_once(tmp_path: Path) -> None:
    order: list[str] = []

    def subject(name: str, most_rounds: int | None = None) -> Subject:
        async def note(run: Run) -> None:
            order.append(name)
            run.note("ours", run.scaled(10))

        return Subject(name, "about", (Figure("ours", "us", "ours"),), note, most_rounds)

    found = await measure(
        [subject("one"), subject("two", most_rounds=1)], tmp_path, rounds=2, share=0.5, say=lambda text: None
    )
    assert order == ["one", "two", "one"]
    assert [each.samples["ours"] for each in found] == [[5, 5], [5]]


def test_the_command_measures_what_it_is_asked_for(tmp_path: Path) -> None:
    found = json.loads(good("bench", "--quick", "--only", "observe", "--on", str(tmp_path), "--json").stdout)
    assert [each["name"] for each in found["subjects"]] == ["observe"]
    assert found["settings"] == {"rounds": 1, "share": 0.1}


def test_the_command_refuses_what_it_does_not_know() -> None:
    done = run("bench", "--only", "everything")
    assert (done.code, done.stdout) == (2, "")
    assert "eventlog bench --help" in done.stderr
