"""Tables: drawn by rich to fit a terminal, aligned and whole in a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from eventlog.cli.human import cells, cut, cut_beginning
from eventlog.cli.output import Output, Piece, Span, escaped

GAP = "  "
LONG_AT_LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right` aligns numbers; `long` may be cut on a terminal; one with `spare` gives way on a narrow one.

    A long one keeps `least` places, if its text has as many, and others give way before it is cut further.
    Of several, the one with the largest `spare` goes first. A `path` that is long is cut at its beginning, because its
    end is what tells it from others. A column without any text is never shown.
    """

    title: str
    right: bool = False
    long: bool = False
    spare: int = 0
    path: bool = False
    least: int = LONG_AT_LEAST


Row = Sequence[Piece]


def table(output: Output, columns: Sequence[Column], rows: Sequence[Row], empty: str = "") -> None:
    """Write a table; without rows a terminal is told that it is `empty`, and a pipe gets nothing."""
    if not rows:
        if empty and output.is_terminal:
            output.line(Span(empty, "dim"))
        return
    used = [place for place in range(len(columns)) if any(_text(row[place]) for row in rows)]
    if output.width is None:
        _aligned(output, [columns[place] for place in used], [[row[place] for place in used] for row in rows])
        return
    widths = _fitted(columns, rows, used, output.width)
    _drawn(
        output,
        [columns[place] for place in widths],
        [[row[place] for place in widths] for row in rows],
        [*widths.values()],
    )


def _text(piece: Piece) -> str:
    return piece.text if isinstance(piece, Span) else piece


def _cut(piece: Piece, width: int, column: Column) -> Span:
    style = piece.style if isinstance(piece, Span) else ""
    shorten = cut_beginning if column.path else cut
    return Span(shorten(escaped(_text(piece)), width), style)


def _width(columns: Sequence[Column], rows: Sequence[Row], place: int) -> int:
    return max(len(columns[place].title), *(cells(escaped(_text(row[place]))) for row in rows))


# --------------------------------------------------------------------------------------------------------- in a pipe


def _aligned(output: Output, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    lines: list[Row] = [[column.title for column in columns], *rows]
    widths = [_width(columns, rows, place) for place in range(len(columns))]
    for line in lines:
        padded = [
            _padded(escaped(_text(piece)), width, column)
            for piece, width, column in zip(line, widths, columns, strict=True)
        ]
        output.harmless(GAP.join(padded).rstrip() + "\n")


def _padded(text: str, width: int, column: Column) -> str:
    space = " " * (width - cells(text))
    return space + text if column.right else text + space


# ----------------------------------------------------------------------------------------------------- on a terminal


def _fitted(columns: Sequence[Column], rows: Sequence[Row], used: list[int], width: int) -> dict[int, int]:
    """The columns that are shown with their widths: spare ones go until the rest fits, then long ones are cut."""
    kept = {place: _width(columns, rows, place) for place in used}
    while sum(_least(columns[place], wide) + len(GAP) for place, wide in kept.items()) - len(GAP) > width:
        spare = [place for place in kept if columns[place].spare]
        if not spare:
            break
        del kept[max(spare, key=lambda place: columns[place].spare)]
    long = sorted((place for place in kept if columns[place].long), key=lambda place: kept[place])
    left = width - sum(len(GAP) + (0 if columns[place].long else wide) for place, wide in kept.items()) + len(GAP)
    for number, place in enumerate(long):  # the shortest first: what it does not need is for the others
        kept[place] = max(_least(columns[place], kept[place]), min(kept[place], left // (len(long) - number)))
        left -= kept[place]
    return kept


def _least(column: Column, wide: int) -> int:
    return min(wide, column.least) if column.long else wide


def _drawn(output: Output, columns: Sequence[Column], rows: Sequence[Row], widths: Sequence[int]) -> None:
    from rich.console import Console  # takes a while to import, and only terminals need it
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        fixed = width if column.long else None
        drawn.add_column(Text(column.title), justify="right" if column.right else "left", width=fixed, overflow="fold")
    for row in rows:
        pieces = [
            _cut(piece, width, column) if column.long else piece
            for piece, column, width in zip(row, columns, widths, strict=True)
        ]
        drawn.add_row(*(Text.from_ansi(output.painted(piece)) for piece in pieces))
    written = io.StringIO()
    console = Console(
        file=written,
        width=output.width,
        force_terminal=True,
        color_system="standard" if output.colour else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(drawn)
    output.harmless("".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines()))
