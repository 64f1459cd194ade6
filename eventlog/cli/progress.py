"""A progress bar on stderr, where that is a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eventlog.cli.human import size
from eventlog.cli.output import err

Update = Callable[[int, int | None], None]
"""Takes what is done and, when it is known, what there is to do."""


def rate(speed: float, unit: str) -> str:
    """So much a second: `2.4 MiB/s`, `1,200 events/s`."""
    return f"{size(round(speed))}/s" if unit == "bytes" else f"{speed:,.0f} {unit}/s"


@contextmanager
def progress(label: str | None, unit: str) -> Iterator[Update]:
    """Show how much is done, the rate in `unit` a second and the time that is left; nothing without a label."""
    if label is None or not err().is_terminal:
        yield lambda done, total: None
        return
    from rich.console import Console  # takes a while to import, and only terminals need it
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, no_color=not err().colour)
    columns = (
        TextColumn(label),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
        bar = bars.add_task(label, total=None, rate="")

        def update(done: int, total: int | None) -> None:
            speed = bars.tasks[bar].speed
            bars.update(bar, completed=done, total=total, rate=rate(speed, unit) if speed else "")

        yield update
