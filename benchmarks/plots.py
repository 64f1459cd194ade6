"""Draws what was measured, as SVG: a bar for each figure, with its spread and its target."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

ROW, LABEL, BAR, NUMBER, TOP = 26, 270, 360, 150, 44
STYLE = "font: 12px system-ui, sans-serif"
GOOD, MISSED, PLAIN = "#2f7d5b", "#b3562a", "#7a8594"
BACKGROUND, INK = "#ffffff", "#1c2329"


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """A file for each subject that has ratios; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for subject in found["subjects"]:
        figures = [figure for figure in subject["figures"] if figure["ratio"] is not None]
        if figures:
            path = folder / f"performance-{subject['name']}.svg"
            path.write_text(chart(f"{subject['name']}: ratios to what is named behind them", figures))
            drawn.append(path)
    return drawn


def chart(title: str, figures: list[dict[str, Any]]) -> str:
    """Bars of ratios, on a scale of their own each: the target is at the same place in every row that has one."""
    height = TOP + ROW * len(figures) + 10
    width = LABEL + BAR + NUMBER + 20
    rows = [line for place, figure in enumerate(figures) for line in _row(TOP + ROW * place, figure)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>',
            _text(10, 24, title, weight="bold"),
            *rows,
            "</svg>\n",
        ]
    )


def _row(y: int, figure: dict[str, Any]) -> list[str]:
    ratio, target = figure["ratio"], figure["target"]
    most = 2 * float(target.split()[1]) if target else max(1.0, ratio["max"])
    lines = [_text(10, y + 16, figure["name"])]
    colour = PLAIN if target is None else GOOD if _meets(ratio["median"], target) else MISSED
    lines.append(_bar(y + 5, ratio["median"] / most, colour))
    for end in ("min", "max"):
        x = LABEL + BAR * min(1.0, ratio[end] / most)
        lines.append(f'<line x1="{x:.1f}" y1="{y + 3}" x2="{x:.1f}" y2="{y + 21}" stroke="{INK}" stroke-width="1"/>')
    if target:
        x = LABEL + BAR / 2
        dashes = f'stroke="{INK}" stroke-dasharray="3 2"'
        lines.append(f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + ROW}" {dashes}/>')
    told = f"{ratio['median']:.2f} {figure['against']}" + (f" ({target})" if target else "")
    lines.append(_text(LABEL + BAR + 8, y + 16, told))
    return lines


def _meets(value: float, target: str) -> bool:
    sign, limit = target.split()
    return value >= float(limit) if sign == ">=" else value <= float(limit)


def _bar(y: int, share: float, colour: str) -> str:
    return f'<rect x="{LABEL}" y="{y}" width="{BAR * min(1.0, share):.1f}" height="14" fill="{colour}"/>'


def _text(x: int, y: int, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" style="{STYLE}; font-weight: {weight}" fill="{INK}">{escape(text)}</text>'
