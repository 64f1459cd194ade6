"""From the measurements of several rounds to figures, and to a table and JSON of them."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["events/s", "us", "ms", "share"]
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


_DIGITS: dict[Unit, int] = {"events/s": 0, "us": 0, "ms": 1, "share": 2}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def table(figures: Sequence[Figure], samples: Samples) -> str:
    """The figures that were measured, in columns, each with its meaning below."""
    lines = [_row("", "measured, median (min..max)", "ratio", "target")]
    for figure in figures:
        if figure.of in samples:
            spread, ratio = _spreads(figure, samples)
            measured = f"{spread.shown(_DIGITS[figure.unit])} {figure.unit}"
            held = "" if ratio is None else f"{ratio.shown(2)} {figure.against}"
            lines += ["", _row(figure.of, measured, held, _target(figure)), f"    {figure.means}"]
    return "\n".join(lines)


def as_json(figures: Sequence[Figure], samples: Samples, settings: dict[str, Any]) -> str:
    """The same and the machine, with the values of every round."""
    shown = []
    for figure in figures:
        if figure.of in samples:
            spread, ratio = _spreads(figure, samples)
            shown.append(
                {
                    "name": figure.of,
                    "means": figure.means,
                    "unit": figure.unit,
                    "rounds": samples[figure.of],
                    **_as_dict(spread),
                    "against": figure.against,
                    "ratio": None if ratio is None else _as_dict(ratio),
                    "target": _target(figure) or None,
                }
            )
    return json.dumps({"machine": machine(), "settings": settings, "figures": shown}, indent=2)


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
    return f"{name:34}{measured:46}{ratio:34}{target}".rstrip()
