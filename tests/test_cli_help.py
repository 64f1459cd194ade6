"""Pins what `--help` says of every command: `python -m tests.test_cli_help` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from eventlog.cli import SECTIONS, command_line
from tests.cli_kit import good, on_terminal, run

FOLDER = Path(__file__).parent / "cli_help"


def commands(group: click.Group = command_line, *above: str) -> Iterator[tuple[str, ...]]:
    """The words of every command, those of groups too."""
    yield above
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield (*above, name)


def pinned(words: tuple[str, ...]) -> Path:
    return FOLDER / f"{'-'.join(('eventlog', *words))}.txt"


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_help_of(words: tuple[str, ...]) -> None:
    assert good(*words, "--help").stdout == pinned(words).read_text("utf-8")


def test_no_help_is_pinned_of_a_command_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {pinned(words).name for words in commands()}


def test_the_overview_says_of_each_command_what_the_command_says_of_itself() -> None:
    context = click.Context(command_line)
    for entries in SECTIONS.values():
        for name, entry in entries.items():
            command = command_line.get_command(context, name)
            assert command is not None
            assert (command.name, command.short_help) == (name, entry.help)


def test_without_a_command_the_overview_is_shown_and_usage_is_wrong() -> None:
    done = run()
    assert (done.code, done.stdout, done.stderr) == (2, good("--help").stdout, "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["shw"], "there is no command 'shw', did you mean 'show'?; see `eventlog --help`"),
        (["dead", "lst"], "there is no command 'lst', did you mean 'list'?; see `eventlog dead --help`"),
        (["show"], "missing argument 'SESSION'; see `eventlog show --help`"),
        (["tail", "--last", "x"], "invalid value for '--last' / '-n': 'x' is not a valid integer range"),
        (["tail", "--since", "noon"], "invalid value for '--since': 'noon' is neither an age such as 90s"),
        (["\x1b[31mx"], "there is no command '\\x1b[31mx'; see `eventlog --help`"),
    ],
    ids=repr,
)
def test_wrong_usage_is_one_line_with_the_next_step(words: list[str], complaint: str) -> None:
    done = run(*words)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"eventlog: {complaint}")
    assert done.stderr.count("\n") == 1


def test_a_shell_can_complete_the_names_of_commands() -> None:
    assert "_eventlog_completion" in run(_EVENTLOG_COMPLETE="bash_source").stdout
    found = run(_EVENTLOG_COMPLETE="bash_complete", COMP_WORDS="eventlog de", COMP_CWORD="1").stdout
    assert found.split() == ["plain,dev", "plain,deliveries", "plain,dead"]


def test_the_version_is_told() -> None:
    assert good("--version").stdout.startswith("eventlog ")


@pytest.mark.parametrize("columns", [80, 200])
def test_the_help_fits_the_terminal(columns: int) -> None:
    assert max(map(len, on_terminal(columns, "--help").split("\n"))) <= 80


def test_what_can_be_listed_can_be_had_as_json() -> None:
    def options(words: tuple[str, ...]) -> set[str]:
        found: click.Command = command_line
        for word in words:
            assert isinstance(found, click.Group)
            (found,) = filter(None, [found.get_command(click.Context(found), word)])
        return {name for each in found.params for name in each.opts}

    spoken = {"", "init", "run", "dev", "dead", "extensions"}  # talk, or are only a name for others
    assert {" ".join(words) for words in commands() if "--json" not in options(words)} == spoken


if __name__ == "__main__":
    for words in commands():
        pinned(words).write_text(good(*words, "--help").stdout, "utf-8")
