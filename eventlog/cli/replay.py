"""`replay`: a hook over events that were recorded before."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path

import click

from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count
from eventlog.cli.opening import owning
from eventlog.cli.options import agent_and_log_options, json_option, log_of
from eventlog.cli.output import out
from eventlog.cli.process import asynchronous
from eventlog.cli.selection import Selection, selection_options
from eventlog.cli.serving import discovered, served_aloud
from eventlog.errors import shown
from eventlog.observe import Discovered, LoadedHook
from eventlog.replay import Replay


@click.command(short_help="a hook over events that were recorded before")
@click.argument("name", metavar="HOOK")
@click.option("--session", "session_id", required=True, metavar="ID", help="The session whose events it is shown.")
@click.option("--turn", metavar="TURN", help="Only events of this turn.")
@selection_options
@json_option
@agent_and_log_options
@asynchronous
async def replay(
    agent_dir: Path,
    db: Path | None,
    name: str,
    session_id: str,
    turn: str | None,
    selection: Selection,
    as_json: bool,
) -> Code:
    """Call HOOK for the recorded events of a session, oldest first.

    No cursor moves, and nothing is kept of it but what the handlers do: they write to the same kv and files as when
    they are live. What they throw is written to stderr, and then this ends with 1. Nobody else may own the log.
    """
    output = out()
    hook = _hook(found := discovered(agent_dir), name)
    selection = dataclasses.replace(selection, turn=turn)
    with served_aloud(agent_dir.resolve()):  # noqa: ASYNC240 (nothing else runs yet)
        async with owning(log_of(agent_dir, db)) as log:
            session = await log.session(session_id)
            info, now_us, seen = session.info, log.clock.now_us(), session.next_index
            replaying, events = Replay(log, found.agent, hook.name, hook.definition), 0
            async for event in session.read(after=selection.after, before=seen, types=selection.types):
                if selection.wants(event, now_us):
                    events += 1
                    await replaying.show(event, info)
            replaying.close()
    if as_json:
        calls = {"calls": replaying.calls, "errors": replaying.errors}
        output.json({"hook": hook.name, "session": session_id, "events": events, **calls})
    else:
        calls_made = f"{count(replaying.calls, 'call')} for {count(events, 'event')}"
        output.line(f"{hook.name}: {calls_made}, {count(replaying.errors, 'error')}")
    return Code.FINDINGS if replaying.errors else Code.DONE


def _hook(found: Discovered, name: str) -> LoadedHook:
    hooks = {hook.name: hook for hook in found.hooks}
    if name not in hooks:
        near = difflib.get_close_matches(name, hooks, 1)
        hint = f"did you mean {shown(near[0])}?" if near else "`eventlog info` lists them"
        raise Stop(Code.NOT_FOUND, f"the agent has no hook {shown(name)}; {hint}")
    return hooks[name]
