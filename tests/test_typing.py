"""What type checkers say of hooks and channels: the good examples pass, and each bad line is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog import observe
from eventlog.events import TYPE_KEYS, VOCABULARY

IMPORTS = """\
from __future__ import annotations

import msgspec

from eventlog.events import Event, MessageAppended, SessionEvent, TurnCompleted, TurnFailed
from eventlog.observe import ChannelContext, ChannelHandler, Handler, HookContext, PlainContext
from eventlog.observe import define_channel, define_hook


class Refund(msgspec.Struct):
    amount: int


async def on_turn(event: Event[TurnCompleted], ctx: HookContext) -> None:
    if event.data.usage is not None:
        ctx.host.otel.increment("tokens", event.data.usage.input_tokens)
    ctx.host.otel.increment("turns", {"channel": ctx.channel.id})


def on_failed(event: Event[TurnFailed], ctx: PlainContext) -> None:
    print(ctx.agent.name, ctx.session.id, event.data.message)
    ctx.host.otel.increment("failures", {"channel": ctx.channel.id})
    ctx.host.github.create_issue(ctx.state_root)


async def on_refund(event: Event[Refund], ctx: HookContext) -> None:
    print(event.data.amount)


async def on_any(event: SessionEvent, ctx: HookContext) -> None:
    await ctx.host.files.write(f"transcript/{event.index:06}.json", event.to_json())


def on_object(event: Event[object], ctx: PlainContext) -> None:
    match event.data:
        case TurnCompleted(result=result):
            print(result)
        case MessageAppended(delta=delta):
            print(delta.upper())
        case _:
            pass


async def deliver(event: Event[TurnCompleted], ctx: ChannelContext) -> None:
    await ctx.channel.state.put("last", event.data.result)
    await ctx.channel.set_continuation_token("t")


def print_it(event: Event[TurnCompleted], ctx: PlainContext) -> None:
    print(ctx.channel.id, event.data.result)


def wants_all(event: Event[TurnCompleted], ctx: HookContext) -> None:
    print(ctx.session.id)


def wants_the_channel(event: Event[TurnCompleted], ctx: ChannelContext) -> None:
    print(ctx.session.id)

"""

GOOD = (
    IMPORTS
    + """
define_hook(events={"turn.completed": on_turn})
define_hook(events={"turn.completed": on_turn, "turn.failed": on_failed, "*": on_any}, on_restart="resume")
define_hook(events={"turn.completed": on_any, "*": on_object})
define_hook(events={"turn.completed": lambda event, ctx: print(event.data.usage, ctx.channel.id)})
define_hook({})

own: dict[str, Handler] = {"acme.refund": on_refund, "turn.completed": on_turn}
define_hook(events=own)
define_hook(events={"acme.refund": on_any})

define_channel(id="http", events={"turn.completed": deliver})
define_channel(id="http", events={"turn.completed": print_it, "*": on_object})
also_own: dict[str, ChannelHandler] = {"turn.completed": deliver}
define_channel(id="http", events=also_own)


async def test_of_a_hook(stub: object) -> None:
    await define_hook(events={"turn.completed": on_turn}).events["turn.completed"]("an event", stub)
"""
)

BAD = (
    IMPORTS
    + """
define_hook(events={"turn.completed": on_failed})  # bad: another type's payload
define_hook(events={"turn.completed": on_turn, "turn.failed": on_turn})  # bad: of the second
define_hook(events={"turn.complete": on_turn})  # bad: no such type
define_hook(events={"*": on_turn})  # bad: every type comes here
define_hook(events={"turn.completed": deliver})  # bad: a channel's handler
define_hook(events={"turn.completed": lambda event, ctx: print(event.data.delta)})  # bad: no such field
define_hook(events={"*": lambda event, ctx: print(event.data.usage)})  # bad: not every payload has it
define_hook(events={"turn.completed": lambda event: None})  # bad: no context
define_hook(events={"turn.completed": None})  # bad: no function
define_hook(events={"turn.completed": wants_all})  # bad: a plain function gets less
define_hook(events={"turn.completed": lambda event, ctx: print(ctx.artifacts.tag)})  # bad: as a lambda does
define_channel(id="http", events={"turn.completed": wants_the_channel})  # bad: of a channel too
define_hook(events={"turn.completed": on_turn}, on_restart="replay")  # bad: no such choice
define_channel(id="http", events={"turn.completed": on_turn})  # bad: a hook's handler takes another context
define_channel(id="http", events={"turn.failed": deliver})  # bad: another type's payload


def narrowed(event: Event[TurnCompleted], ctx: HookContext) -> None:
    print(event.data.delta)  # bad: no such field
    event.index = 3  # bad: events are read-only
    ctx.session.title = "mine"  # bad: so is the session
    ctx.host.kv = ctx.host.kv  # bad: and the host
    ctx.channel.set_continuation_token("t")  # bad: hooks change nothing of the run


def reduced(event: Event[TurnCompleted], ctx: PlainContext) -> None:
    ctx.host.kv.get("last")  # bad: a thread cannot await it
    ctx.host.files.list()  # bad: nor this
    ctx.host.reminders.list()  # bad: nor this
    ctx.artifacts.tag("link", "pr")  # bad: nor this
"""
)


def for_each_type(handler: Callable[[str], str]) -> str:
    """A program with one hook for each built-in type."""
    names = sorted({VOCABULARY[name].__name__ for name in TYPE_KEYS})
    payloads = f"from eventlog.events import Event, {', '.join(names)}\n"
    return (
        payloads
        + "from eventlog.observe import HookContext, PlainContext, define_hook\n\n"
        + "".join(handler(name) for name in TYPE_KEYS)
    )


def a_good_hook(name: str) -> str:
    payload = VOCABULARY[name].__name__
    function = name.replace(".", "_")
    return (
        f"\ndef {function}(event: Event[{payload}], ctx: PlainContext) -> None: ...\n"
        f"async def {function}_too(event: Event[{payload}], ctx: HookContext) -> None: ...\n"
        f"define_hook(events={{{name!r}: {function}}})\n"
        f"define_hook(events={{{name!r}: {function}_too}})\n"
    )


def a_bad_hook(name: str) -> str:
    other = "TurnFailed" if name != "turn.failed" else "TurnCompleted"
    function = name.replace(".", "_")
    return (
        f"\ndef {function}(event: Event[{other}], ctx: PlainContext) -> None: ...\n"
        f"async def {function}_too(event: Event[{other}], ctx: HookContext) -> None: ...\n"
        f"define_hook(events={{{name!r}: {function}}})  # bad: another type's payload\n"
        f"define_hook(events={{{name!r}: {function}_too}})  # bad: another type's payload\n"
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    (folder / "good.py").write_text(GOOD)
    (folder / "bad.py").write_text(BAD)
    (folder / "each_good.py").write_text(for_each_type(a_good_hook))
    (folder / "each_bad.py").write_text(for_each_type(a_bad_hook))
    return folder


Lines = set[tuple[str, int]]
PACKAGES = Path(observe.__file__).parents[2]


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"MYPYPATH": str(PACKAGES), "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr  # 1: it ran, and found what is bad
    return done.stdout


def mypy(folder: Path) -> Lines:
    told = run(folder, "mypy", "--strict", "--cache-dir=.cache", "--config-file=", ".")
    return {(file, int(line)) for file, line in re.findall(r"^(\w+\.py):(\d+): error:", told, re.MULTILINE)}


def pyright(folder: Path) -> Lines:
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(PACKAGES)], "reportUnusedImport": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    told = json.loads(run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    found = told["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }


@pytest.mark.timeout(180)
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_r68_a_handler_is_checked_against_the_payload_of_its_key(
    programs: Path, checker: Callable[[Path], Lines]
) -> None:
    pytest.importorskip(checker.__name__, reason="belongs to the dev extra")
    expected = {
        (file.name, number)
        for file in programs.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "# bad" in line
    }
    assert checker(programs) == expected
