"""From what was measured in several rounds to figures, a table and JSON."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["events/s", "us", "ms", "MiB", "share", "ratio"]
Samples: TypeAlias = dict[str, list[float]]
"""What was measured, by its name; a value for each round."""


@dataclass(frozen=True)
class Figure:
    """One line: what was measured, as a ratio to a limit of the same round, and what that means."""

    of: str
    """The name of its samples."""
    unit: Unit
    means: str
    against: str | None = None
    """The name of the limit's samples; without one the figure is shown as it is."""
    at_least: float | None = None
    """The target: of the ratio, or of the figure itself if it is held against nothing."""
    at_most: float | None = None


@dataclass(frozen=True)
class Spread:
    """The median of all rounds, and the rounds between which it lies."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        return cls(median(values), min(values), max(values))

    def shown(self, digits: int) -> str:
        """As text."""
        return f"{self.median:,.{digits}f} ({self.min:,.{digits}f}..{self.max:,.{digits}f})"


_DIGITS: dict[Unit, int] = {"events/s": 0, "us": 0, "ms": 1, "MiB": 1, "share": 3, "ratio": 2}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True)
class Measured:
    """A subject, and what was measured of it."""

    name: str
    about: str | None
    figures: tuple[Figure, ...]
    samples: Samples


def heading() -> str:
    """What was measured on, in a line."""
    found = machine()
    return f"{found['cores']} cores of {found['processor']}, Python {found['python']}, SQLite {found['sqlite']}"


def table(measured: Measured) -> str:
    """The figures of a subject in columns, each with its meaning below."""
    lines = [_row(measured.name, "measured, median (min..max)", "ratio", "target")]
    for figure in measured.figures:
        if figure.of in measured.samples:
            spread, ratio = _spreads(figure, measured.samples)
            shown = f"{spread.shown(_DIGITS[figure.unit])} {figure.unit}"
            held = "" if ratio is None else f"{ratio.shown(2)} {figure.against}"
            lines += ["", _row(figure.of, shown, held, _target(figure)), f"    {figure.means}"]
    return "\n".join(lines)


def markdown(measured: Measured) -> str:
    """The same as rows of a table in Markdown, as docs/performance.md has them."""
    lines = ["| figure | measured | ratio | target |", "|---|---|---|---|"]
    for figure in measured.figures:
        if figure.of in measured.samples:
            spread, ratio = _spreads(figure, measured.samples)
            shown = f"{spread.shown(_DIGITS[figure.unit])} {figure.unit}"
            held = "" if ratio is None else f"{ratio.shown(2)} {figure.against}"
            lines.append(f"| {figure.of} | {shown} | {held} | {_target(figure)} |")
    return "\n".join(lines)


def document(all_measured: Sequence[Measured], settings: dict[str, Any]) -> dict[str, Any]:
    """All of it and the machine as plain JSON, with the values of every round."""
    subjects = [
        {"name": each.name, "about": each.about, "figures": [_figure(figure, each.samples) for figure in _shown(each)]}
        for each in all_measured
    ]
    return {"machine": machine(), "settings": settings, "subjects": subjects}


def _shown(measured: Measured) -> list[Figure]:
    return [figure for figure in measured.figures if figure.of in measured.samples]


def _figure(figure: Figure, samples: Samples) -> dict[str, Any]:
    spread, ratio = _spreads(figure, samples)
    return {
        "name": figure.of,
        "means": figure.means,
        "unit": figure.unit,
        "rounds": samples[figure.of],
        **_as_dict(spread),
        "against": figure.against,
        "ratio": None if ratio is None else _as_dict(ratio),
        "target": _target(figure) or None,
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _spreads(figure: Figure, samples: Samples) -> tuple[Spread, Spread | None]:
    values = samples[figure.of]
    if figure.against is None:
        return Spread.of(values), None
    ratios = [value / limit for value, limit in zip(values, samples[figure.against], strict=True)]
    return Spread.of(values), Spread.of(ratios)


def _target(figure: Figure) -> str:
    if figure.at_least is not None:
        return f">= {figure.at_least:g}"
    return "" if figure.at_most is None else f"<= {figure.at_most:g}"


def _as_dict(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "min": spread.min, "max": spread.max}


def _row(name: str, measured: str, ratio: str, target: str) -> str:
    return f"{name:26}  {measured:44}  {ratio:34}  {target}".rstrip()
