"""`init`: the folder of a new agent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from eventlog import InvalidEvent
from eventlog.cli.explain import Code, Stop
from eventlog.cli.output import note, out
from eventlog.events import check_id

AGENT = """\
# Sessions of this agent have this name, and its hooks see them.
name = {name}
"""

HOOK = '''\
"""Counts the tokens that live turns use."""

from eventlog import Event, HookContext, define_hook
from eventlog.events import TurnCompleted


async def meter(event: Event[TurnCompleted], ctx: HookContext) -> None:
    if ctx.session.purpose == "eval" or event.data.usage is None:
        return
    ctx.host.otel.increment("tokens.input", event.data.usage.input_tokens)
    ctx.host.otel.increment("tokens.output", event.data.usage.output_tokens)


hook = define_hook(events={"turn.completed": meter})
'''

MEMORY = '''\
"""Journals each turn, for later sessions to read by `eventlog.observe.read_memory`. Delete this file to opt out."""

from eventlog import memory_hook

hook = memory_hook()
'''

TEST = '''\
"""A hook is tested by calling its handler, with an event and a stand-in for its context. Run it with pytest."""

import asyncio
from types import SimpleNamespace

from usage import hook

from eventlog import Event

COMPLETED = (
    b'{"usage": {"inputTokens": 12, "outputTokens": 3, "cacheReadTokens": 0, "cacheWriteTokens": 0}}'
)


def counted(purpose: str) -> dict[str, int]:
    """What the hook counts for one turn of a session with this purpose."""
    counters: dict[str, int] = {}
    event = Event(
        "turn.completed", index=1, session_id="s1", turn_id="t1", at_us=0, position=2, era="test", raw=COMPLETED
    )
    context = SimpleNamespace(
        session=SimpleNamespace(purpose=purpose),
        host=SimpleNamespace(otel=SimpleNamespace(increment=counters.__setitem__)),
    )
    asyncio.run(hook.events["turn.completed"](event, context))
    return counters


def test_a_live_turn_is_counted() -> None:
    assert counted("live") == {"tokens.input": 12, "tokens.output": 3}


def test_an_eval_is_not_counted() -> None:
    assert counted("eval") == {}
'''

AGENT_CODE = '''\
"""Answers: `eventlog run` and the evals call `turn`. A server that appends its events itself does not need it."""

from eventlog import Session
from eventlog.host import Host


async def turn(session: Session, message: str, host: Host) -> str:
    """Return the reply, or yield it piece by piece, with the events of the turn in between."""
    return f"You said: {message}"
'''

EVAL = '''\
"""An eval runs one turn of the agent as it is, and asserts over what happened. Run it with pytest."""

import asyncio
from pathlib import Path

from eventlog.testing import run_eval_turn

FOLDER = Path(__file__).parents[1]


def test_it_answers() -> None:
    turn = asyncio.run(run_eval_turn("hello", agent_dir=FOLDER))
    assert turn.failure is None
    assert turn.reply == "You said: hello"
    assert turn.types == ["turn.started", "message.received", "message.completed", "turn.completed"]
'''

CONFTEST = '''\
"""Lets pytest collect the evals: files below this folder whose names end with `_eval.py`."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "*_eval.py")
'''

IGNORE = Path(".gitignore")
IGNORED = """\
.eventlog/
__pycache__/
"""


@click.command(short_help="the folder of a new agent")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def init(folder: Path) -> Code:
    """Make an agent in DIR: its settings and its code, example hooks with a test, an eval, and a .gitignore.

    Nothing that is there is overwritten.
    """
    files = {
        Path("agent") / "agent.toml": AGENT.format(name=json.dumps(_name(folder), ensure_ascii=False)),
        Path("agent") / "agent.py": AGENT_CODE,
        Path("agent") / "hooks" / "memory.py": MEMORY,
        Path("agent") / "hooks" / "usage.py": HOOK,
        Path("agent") / "hooks" / "test_usage.py": TEST,
        Path("evals") / "conftest.py": CONFTEST,
        Path("evals") / "answer_eval.py": EVAL,
    }
    _refuse_to_overwrite(folder, list(files))
    keeps_its_own = (folder / IGNORE).exists()
    if not keeps_its_own:
        files[IGNORE] = IGNORED
    for path, text in files.items():
        _make_folder((folder / path).parent)
        with open(folder / path, "x", encoding="utf-8", opener=_only_ours) as file:
            file.write(text)
        out().line(str(folder / path))
    out().flush()
    also = "; add .eventlog/ to the .gitignore that is there" if keeps_its_own else ""
    note(f"made agent {_name(folder)}{also}; look at it with `eventlog info --dir {folder}`")
    return Code.DONE


def _make_folder(folder: Path) -> None:
    """With all above it; none that is made may be written by others, whatever the umask: code is run from it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(0o755)


def _only_ours(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


def _name(folder: Path) -> str:
    """The agent is named as its folder."""
    name = folder.resolve().name
    try:
        return check_id("name", name)
    except InvalidEvent:
        raise Stop(Code.USAGE, f"an agent cannot be named {name!r}, as its folder is; choose another folder") from None


def _refuse_to_overwrite(folder: Path, paths: list[Path]) -> None:
    there = [str(folder / path) for path in paths if (folder / path).exists() or (folder / path).is_symlink()]
    if there:
        verb = "is" if len(there) == 1 else "are"
        raise Stop(Code.REFUSED, f"{', '.join(there)} {verb} there already; choose another folder, nothing was written")
