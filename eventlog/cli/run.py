"""`run` and `dev`: turns of the agent in a folder, with its hooks and extensions."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from eventlog.cli.explain import Code
from eventlog.cli.input import lines
from eventlog.cli.options import agent_and_log_options, log_of
from eventlog.cli.output import aside, out
from eventlog.cli.process import asynchronous
from eventlog.cli.serving import Reply, serving

_session = click.option(
    "--session", "session_id", metavar="ID", help="Go on with this session, or start it. [default: a new one]"
)


@click.command(short_help="one turn of the agent, and its reply")
@click.option("--message", "-m", required=True, metavar="TEXT", help="What the agent is told.")
@_session
@agent_and_log_options
@asynchronous
async def run(agent_dir: Path, db: Path | None, message: str, session_id: str | None) -> Code:
    """Tell the agent something, and write its reply.

    The function turn(session, message, host) of agent/agent.py answers: it is async, and returns the reply, or yields
    it piece by piece with the events of the turn in between. Without one the agent is an echo.

    Stdout has the reply and nothing else; stderr has what hooks threw and what the agent's code prints. Ends with 1
    when the turn failed.
    """
    reply = Reply(out())
    async with serving(agent_dir, log_of(agent_dir, db)) as served:
        session = await served.known(session_id) or await served.started(session_id)
        turned = await served.answer(session, message, reply)
        await served.settled()
    reply.check()
    return Code.DONE if turned.failure is None else Code.FINDINGS


@click.command(short_help="turn after turn of the agent, a line each")
@_session
@agent_and_log_options
@asynchronous
async def dev(agent_dir: Path, db: Path | None, session_id: str | None) -> Code:
    """Read what the agent is told from stdin, a line a turn, and write its replies.

    All turns are in one session. It ends with the input, or when it is interrupted. Otherwise as `eventlog run`.
    """
    reply = Reply(out())
    async with serving(agent_dir, log_of(agent_dir, db)) as served:
        session = await served.known(session_id)
        _prompt()
        async for line in lines(sys.stdin):
            if line.strip():
                session = session or await served.started(session_id)  # not before there is something to record
                await served.answer(session, line, reply)
                reply.check()
            _prompt()
        await served.settled()
    return Code.DONE


def _prompt() -> None:
    """Ask for a line, if somebody is there to write one."""
    if sys.stdin.isatty():
        aside("> ", end="")
