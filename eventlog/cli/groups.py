"""Groups of commands: one that imports its commands when they are wanted, one whose first command may be left out."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import shell_complete

from eventlog.cli.ending import guarded

COMPLETE = "_EVENTLOG_COMPLETE"
"""Set by the script that `_EVENTLOG_COMPLETE=bash_source eventlog` prints (or zsh_source, fish_source)."""


class Entry(NamedTuple):
    """A command that is not imported yet: where it is, and what `--help` says of it."""

    place: str  # module:attribute, in this package
    help: str


class LazyGroup(click.Group):
    """Its commands stand in `sections`; each module is imported when its command is called."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Entry]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._entries = {name: entry for entries in sections.values() for name, entry in entries.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order in which they are explained."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        command = getattr(import_module(f"eventlog.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for one that is not known."""
        _refuse_unknown(ctx, args[0], self._entries)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Explain them by section, without importing any."""
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run what the words of the command line say and end the process with its exit code."""
        words = args[0] if args else extra.get("args")
        sys.exit(guarded(lambda: self._execute(list(sys.argv[1:] if words is None else words))))

    def _execute(self, words: list[str]) -> int | None:
        completing = os.environ.get(COMPLETE)
        if completing:
            return shell_complete(self, {}, "eventlog", COMPLETE, completing)
        try:
            with self.make_context("eventlog", words) as context:
                result = self.invoke(context)
                return result if isinstance(result, int) else None
        except click.exceptions.Exit as ended:
            return ended.exit_code


class DefaultGroup(click.Group):
    """A group whose command `list` may be left out: `eventlog dead --json` is `eventlog dead list --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command in where there is none."""
        left_out = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if left_out else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for one that is not known."""
        _refuse_unknown(ctx, args[0], self.commands)
        return super().resolve_command(ctx, args)


def _refuse_unknown(context: click.Context, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names or name.startswith("-"):
        return
    near = difflib.get_close_matches(name, names, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise click.UsageError(f"there is no command {name!r}{hint}", context)
