"""Numbers and times as people read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from unicodedata import east_asian_width

from eventlog.events import format_time

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MISSING = "..."
_WORD = re.compile(r"\s*\S+\s*|\s+")


def count(number: int, noun: str) -> str:
    """`1 event`, `1,576 events`."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"


def span(first: int, last: int) -> str:
    """`7`, `7 to 12`."""
    return f"{first}" if first == last else f"{first} to {last}"


def duration(seconds: float) -> str:
    """`0.2 s`, `42 s`, `3 min 5 s`, `2 h 5 min`, `3 d 4 h`: the two largest units."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    left, parts = round(seconds), list[str]()
    for size, unit in _UNITS:
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount} {unit}")
        if len(parts) == 2 or (parts and not amount):
            break
    return " ".join(parts)


def size(number: int) -> str:
    """`512 B`, `1.2 MiB`."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"


def moment(at: datetime) -> str:
    """A time in UTC to the second: `2026-01-31 23:59:59`."""
    return at.strftime("%Y-%m-%d %H:%M:%S")


def moment_us(at_us: int) -> str:
    """The same, of microseconds since 1970."""
    return format_time(at_us)[:19].replace("T", " ")


def until(at: datetime, now: datetime) -> str:
    """`now` when it is past, else `in 12 s`."""
    return "now" if at <= now else f"in {duration((at - now) / timedelta(seconds=1))}"


def cells(text: str) -> int:
    """How many places of a terminal's line the text takes."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` places of a line; three dots stand for what is missing."""
    return text if cells(text) <= width else _head(text, width - len(_MISSING)) + _MISSING


def cut_beginning(text: str, width: int) -> str:
    """The same with its end, as of a path, in which the end tells it from others."""
    return text if cells(text) <= width else _MISSING + _head(text[::-1], width - len(_MISSING))[::-1]


def wrapped(text: str, width: int | None) -> list[str]:
    """A line in pieces of at most `width` places, broken at spaces where there are any; whole without a width."""
    if width is None or cells(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for word in _WORD.findall(text):
        if line and cells(line) + cells(word.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
        while cells(line.rstrip()) > width:
            head = _head(line, width) or line[0]
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _head(text: str, width: int) -> str:
    """As much of the text as fits."""
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > width:
            return text[:place]
    return text
