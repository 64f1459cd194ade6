"""Ages and sizes as they are given on the command line: `15min`, `7d`, `500MB`, `2GiB`."""

from __future__ import annotations

import re

import click

_AGE = re.compile(r"(\d{1,6})(s|min|m|h|d)")
_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_SIZE = re.compile(r"(\d{1,15})(?: ?([KMGT]i?)?B)?", re.IGNORECASE)
_THOUSANDS = "KMGT"


def age_us(text: str) -> int | None:
    """An age such as `90s` in microseconds; None for what is none."""
    found = _AGE.fullmatch(text)
    return None if found is None else int(found[1]) * _UNIT_US[found[2]]


def read_age_s(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """An option's value, an age, in seconds."""
    if text is None:
        return None
    age = age_us(text)
    if age is None:
        raise click.BadParameter(f"{text!r} is not an age such as 90s, 15min, 2h, 7d")
    return age / 1_000_000


def read_size_bytes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """An option's value, a size, in bytes."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size such as 800000, 500MB, 2GiB")
    unit = found[2] or ""
    base = 1_024 if unit.endswith("i") else 1_000
    return int(found[1]) * int(base ** (1 + _THOUSANDS.index(unit[0].upper()) if unit else 0))
