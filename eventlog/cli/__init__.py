"""The command line: a file per noun, each imported when its command is called. It is a user of the public names."""

from __future__ import annotations

import logging

import click

import eventlog
from eventlog.cli.groups import Entry, LazyGroup
from eventlog.cli.output import Notes, occupy_closed_descriptors, out

SECTIONS = {
    "Agents": {
        "init": Entry("init:init", "the folder of a new agent"),
        "validate": Entry("agent:validate", "what is wrong with an agent's hooks and extensions"),
        "info": Entry("agent:info", "an agent's hooks and extensions"),
        "run": Entry("run:run", "one turn of the agent, and its reply"),
        "dev": Entry("run:dev", "turn after turn of the agent, a line each"),
    },
    "Looking at the log": {
        "sessions": Entry("sessions:sessions", "the sessions of a log"),
        "show": Entry("show:show", "the events of a session, or a turn as a transcript"),
        "jobs": Entry("jobs:jobs", "background jobs, and what became of them"),
        "tail": Entry("tail:tail", "the last events, and those that come"),
        "search": Entry("search:search", "the events that say something"),
        "kv": Entry("kept:kv", "the keys that handlers keep, and what is under them"),
        "files": Entry("kept:files", "the files that handlers keep, and what is in them"),
    },
    "Hooks and extensions": {
        "cursors": Entry("cursors:cursors", "how far each hook, extension and projection is"),
        "hooks": Entry("hooks:hooks", "how far each observe hook is, and what it missed"),
        "logs": Entry("hooks:logs", "what handlers of observe hooks threw"),
        "replay": Entry("replay:replay", "a hook over events that were recorded before"),
        "extensions": Entry("extensions:extensions", "what is installed, what it may read, what it is owed"),
        "deliveries": Entry("deliveries:deliveries", "what extensions are owed, and when they are called next"),
        "dead": Entry("dead:dead", "deliveries that were given up"),
        "policy": Entry("policy:policy", "the numbers that were decided, and the limits"),
    },
    "Into the log and out of it": {
        "append": Entry("append:append", "append one event to a session"),
        "import": Entry("history:import_", "envelopes from a file of JSON lines into the log"),
        "export": Entry("history:export", "envelopes of the log as lines of JSON"),
    },
    "Care for the file": {
        "stats": Entry("file:stats", "how large the log is"),
        "check": Entry("file:check", "whether all of the log is there, and undamaged"),
        "recover": Entry("recover:recover", "what the last owner left unfinished"),
        "rebuild": Entry("rebuild:rebuild", "fold what is kept beside the log again from it"),
        "backup": Entry("care:backup", "a copy of the log, while it is written to"),
        "prune": Entry("care:prune", "remove old finished sessions, and streamed pieces"),
        "forget": Entry("care:forget", "erase what was said in sessions, on the disk too"),
        "vacuum": Entry("care:vacuum", "write the file anew, as small as it can be"),
        "bench": Entry("bench:bench", "how quick the log is on this machine"),
    },
}


def _tell_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:  # it is looked up now, because that takes as long as the rest of the start
        out().line(f"eventlog {eventlog.__version__}")
        context.exit()


@click.group(
    cls=LazyGroup,
    name="eventlog",
    sections=SECTIONS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Ends with 0 done, 1 findings, 2 wrong usage, 3 not found, 4 damaged, 5 in use or refused, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.pass_context
def command_line(context: click.Context) -> None:
    """Look at an event log, at what its hooks and extensions were shown, and bring events in and out."""
    if context.invoked_subcommand is None:
        out().harmless(f"{context.get_help()}\n")
        context.exit(2)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    occupy_closed_descriptors()
    logging.getLogger("eventlog").addHandler(Notes())
    command_line.main()
