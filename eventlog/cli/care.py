"""`backup`, `prune`, `forget` and `vacuum`: care for the file of a log, whether or not a process serves it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from eventlog import control
from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count, size
from eventlog.cli.opening import must_be_there, owning, reading
from eventlog.cli.options import json_option, log_options
from eventlog.cli.output import err, out
from eventlog.cli.plain import plain
from eventlog.cli.process import asynchronous, awaited, confirmed
from eventlog.cli.progress import progress
from eventlog.cli.quantities import read_age_s, read_size_bytes

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask, on a terminal, whether it is meant.")


# --------------------------------------------------------------------------------------------------------------- backup


@click.command(short_help="a copy of the log, while it is written to")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@json_option
@log_options
@asynchronous
async def backup(db: Path, file: Path, as_json: bool) -> Code:
    """Copy the log to FILE, a new one which only you can read, as the log is at one moment; appends go on.

    The copy is proven, as by check, before it gets its name. It is a log of its own: to restore it, move it to the
    place of the log without the files that stand beside that one.
    """
    must_be_there(db)
    with progress("backing up", "bytes") as update:
        made = await control.back_up(db, file, update)
    if as_json:
        out().json(plain(made))
    else:
        out().line(f"{made.path} has {count(made.events, 'event')}, {size(made.size_bytes)}; all of it was checked")
    return Code.DONE


# ---------------------------------------------------------------------------------------------------------------- prune


@click.command(short_help="remove old finished sessions, and streamed pieces")
@click.option(
    "--older-than",
    "older_than_s",
    callback=read_age_s,
    metavar="AGE",
    help="Sessions that ended so long ago: 12h, 30d.",
)
@click.option("--keep-events", type=click.IntRange(min=0), metavar="N", help="The oldest, while there are more events.")
@click.option(
    "--keep-bytes", callback=read_size_bytes, metavar="SIZE", help="The oldest, while more is in use: 500MB, 2GiB."
)
@click.option("--deltas", is_flag=True, help="Pieces of texts that stand whole in a later event of their turn.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@yes_option
@json_option
@log_options
def prune(
    db: Path,
    older_than_s: float | None,
    keep_events: int | None,
    keep_bytes: int | None,
    deltas: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> Code | None:
    """Remove whole finished sessions, the oldest first, and deltas of finished turns; the file shrinks.

    Each option is a rule of its own. A session is finished when session.completed or session.failed was appended, and
    active until then. What is still owed stays: to extensions, and to jobs, reminders and hooks.
    """
    must_be_there(db)
    if older_than_s is None and keep_events is None and keep_bytes is None and not deltas:
        raise click.UsageError("say what is to go: --older-than, --keep-events, --keep-bytes or --deltas")
    rules = {"older_than_s": older_than_s, "keep_events": keep_events, "keep_bytes": keep_bytes, "deltas": deltas}
    if dry_run:
        return _preview(db, rules, as_json)
    if _is_asked(yes):
        found = awaited(control.prunable(db, **rules))
        if found.sessions or found.deltas or found.more:  # else there is nothing to ask about
            _ask(f"What is pruned is gone for good. Remove {_told(found)}")
    return _prune(db, rules, as_json)


@asynchronous
async def _preview(db: Path, rules: dict[str, Any], as_json: bool) -> Code:
    found = await control.prunable(db, **rules)
    if as_json:
        out().json(plain(found))
        return Code.DONE
    out().line(f"would remove {_told(found)}")
    if found.owed:
        out().line(f"{count(found.owed, 'session')} would stay: something is still owed there")
    return Code.DONE


def _told(found: control.Prunable) -> str:
    parts = [f"{count(found.events, 'event')} of {count(found.sessions, 'session')}"]
    if found.deltas:
        parts.append(count(found.deltas, "delta"))
    if found.more:
        parts.append(f"up to {count(found.more, 'more session')} until the file is small enough")
    return " and ".join(parts)


@asynchronous
async def _prune(db: Path, rules: dict[str, Any], as_json: bool) -> Code:
    with progress("pruning", "events") as update:
        pruned = await control.prune(db, update, **rules)
    if as_json:
        out().json(plain(pruned))
        return Code.DONE
    sessions = f"{count(pruned.events, 'event')} of {count(pruned.sessions, 'session')}"
    smaller = f"; the file is {size(pruned.freed_bytes)} smaller" if pruned.freed_bytes else ""
    out().line(f"removed {sessions} and {count(pruned.deltas, 'delta')}{smaller}")
    if pruned.owed:
        out().line(f"{count(pruned.owed, 'session')} stayed: something is still owed there")
    return Code.DONE


# --------------------------------------------------------------------------------------------------------------- forget


# What a session has beside its events, as `Forgot.more` names it and as people do.
BESIDE_EVENTS = {
    "deliveries": "delivery",
    "files": "file",
    "hookErrors": "hook error",
    "jobNames": "job name",
    "kvKeys": "key",
    "openInputs": "open question",
    "openTurns": "open turn",
    "projectionStates": "projection state",
    "reminders": "reminder",
    "snapshots": "snapshot",
    "usage": "usage sum",
}


@click.command(short_help="erase what was said in sessions, on the disk too")
@click.argument("session_ids", nargs=-1, required=True, metavar="SESSION...")
@yes_option
@json_option
@log_options
def forget(db: Path, session_ids: tuple[str, ...], yes: bool, as_json: bool) -> Code | None:
    """Erase what was said in each SESSION, and what was kept for it; that it was there stays.

    Its events keep their places, without their data. The file is written anew, so that the disk keeps nothing either,
    and appends wait for that. Backups that were made before are not touched.
    """
    must_be_there(db)
    if _is_asked(yes):
        _ask(f"What is forgotten is gone for good. Forget {awaited(_spoken_of(db, session_ids))}")
    return _forget(db, session_ids, as_json)


async def _spoken_of(db: Path, session_ids: tuple[str, ...]) -> str:
    """What is to be forgotten, in a few words; raises SessionNotFound before anybody is asked."""
    async with reading(db) as log:
        events = [(await log.session(session_id)).next_index for session_id in session_ids]
    which = f"session {session_ids[0]}" if len(session_ids) == 1 else count(len(session_ids), "session")
    return f"{which} with {count(sum(events), 'event')}"


@asynchronous
async def _forget(db: Path, session_ids: tuple[str, ...], as_json: bool) -> Code:
    with progress("forgetting", "sessions") as update:
        forgot = await control.forget(db, session_ids, update)
    if as_json:
        out().json(plain(forgot))
        return Code.DONE
    more = ", ".join(count(number, BESIDE_EVENTS.get(name, name)) for name, number in forgot.more.items() if number)
    kept = f"; and what was kept for it: {more}" if more else ""
    out().line(f"forgot {count(forgot.sessions, 'session')}: {count(forgot.events, 'event')}{kept}")
    return Code.DONE


# --------------------------------------------------------------------------------------------------------------- vacuum


@click.command(short_help="write the file anew, as small as it can be")
@json_option
@log_options
@asynchronous
async def vacuum(db: Path, as_json: bool) -> Code:
    """Write the whole file anew, without the room that was freed in it; no process may own the log meanwhile.

    As much room again is needed while it is done.
    """
    async with owning(db) as log:
        with progress("writing anew", "files"):
            done = await log.vacuum(full=True)
    if as_json:
        out().json(plain(done))
    else:
        out().line(f"{size(done.before_bytes)} before, {size(done.after_bytes)} now")
    return Code.DONE


def _is_asked(yes: bool) -> bool:
    """On a terminal; where nobody can be asked, the command itself is the answer."""
    return not yes and sys.stdin.isatty() and err().is_terminal


def _ask(question: str) -> None:
    if not confirmed(question):
        raise Stop(Code.FINDINGS, "nothing was removed")
