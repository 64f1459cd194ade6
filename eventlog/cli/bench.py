"""`bench`: how quick the log is on this machine, held against SQLite itself."""

from __future__ import annotations

from pathlib import Path

import click

from eventlog.bench import QUICK_SHARE, SUBJECTS, document, heading, measure, table
from eventlog.cli.explain import Code
from eventlog.cli.options import json_option
from eventlog.cli.output import Span, aside, err, out
from eventlog.cli.process import asynchronous


@click.command(short_help="how quick the log is on this machine")
@click.option("--only", multiple=True, type=click.Choice([each.name for each in SUBJECTS]), help="Measure only this.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often all is measured.")
@click.option("--quick", is_flag=True, help="One short round, to see that it runs.")
@click.option(
    "--on",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    show_default=True,
    metavar="DIR",
    help="A folder on the disk to measure.",
)
@json_option
@asynchronous
async def bench(only: tuple[str, ...], rounds: int, quick: bool, folder: Path, as_json: bool) -> Code:
    """Measure appending, observe hooks and durable hooks, in a log that is made for it and removed.

    Each figure is the median of all rounds, and a ratio to what SQLite itself did a moment before. Takes a minute, in
    which the machine should have nothing else to do.
    """
    rounds = 1 if quick else rounds
    share = QUICK_SHARE if quick else 1.0
    subjects = [each for each in SUBJECTS if not only or each.name in only]
    measured = await measure(subjects, folder, rounds=rounds, share=share, say=_say)
    if as_json:
        out().json(document(measured, {"rounds": rounds, "share": share}))
        return Code.DONE
    output = out()
    output.line(Span(heading(), "dim"))
    for each in measured:
        for line in ["", *table(each).splitlines()]:
            output.line(line)
    return Code.DONE


def _say(underway: str) -> None:
    if err().is_terminal:
        aside(Span(underway, "dim"))
