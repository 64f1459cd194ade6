"""Options and arguments that many commands share, so that they are the same everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

T = TypeVar("T")
Command = Callable[..., T]

LOG_IN_AGENT_DIR = Path(".eventlog") / "agent.db"

_agent_dir = click.option(
    "--dir",
    "agent_dir",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    metavar="DIR",
    help="The folder that holds agent/.",
)
_db = click.option(
    "--db",
    type=click.Path(path_type=Path),
    envvar="EVENTLOG_DB",
    show_envvar=True,
    metavar="PATH",
    help="The log. [default: DIR/.eventlog/agent.db]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")
_json_lines = click.option("--jsonl", "as_json_lines", is_flag=True, help="Write one JSON object a line.")


def agent_option(command: Command[T]) -> Command[T]:
    """`--dir`; the command gets `agent_dir`, the folder that holds `agent/`."""
    return _agent_dir(command)


def log_options(command: Command[T]) -> Command[T]:
    """`--db` and `--dir`; the command gets `db`, the path of the log."""

    @functools.wraps(command)
    def with_path(*args: Any, db: Path | None, agent_dir: Path, **kwargs: Any) -> T:
        return command(*args, db=log_of(agent_dir, db), **kwargs)

    return _agent_dir(_db(with_path))


def agent_and_log_options(command: Command[T]) -> Command[T]:
    """The same; the command gets `agent_dir` and `db` as they were given."""
    return _agent_dir(_db(command))


def log_of(agent_dir: Path, db: Path | None) -> Path:
    """The log that is meant: the one that was named, else that of the folder."""
    return db or agent_dir / LOG_IN_AGENT_DIR


def json_option(command: Command[T]) -> Command[T]:
    """`--json`; the command gets `as_json`."""
    return _json(command)


def json_lines_option(command: Command[T]) -> Command[T]:
    """`--jsonl`; the command gets `as_json_lines`."""
    return _json_lines(command)
