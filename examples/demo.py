"""Shows the log at work: live traffic, a handler that fails, a kill, a restart, and the proof that nothing was lost.

`python -m examples.demo [--data FILE] [--keep DIR]`. Ends with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog import EventLog
from examples.agent.agent.extensions.billing.ledger import Ledger
from examples.proof import Evidence, HookCall, HookGap, Promise, prove
from examples.traffic import Traffic, Unplayable, read_traffic

CHECKOUT = Path(__file__).resolve().parents[1]
AGENT_DIR = CHECKOUT / "examples" / "agent"
SAMPLE = CHECKOUT / "examples" / "data" / "sessions.jsonl"
HOOKS: dict[str, Sequence[str]] = {"mirror": ["*"], "usage": ["turn.completed", "turn.failed"]}

WIDTH = 110
SHOWN_LINES = 30
"""Lines of a command's output that are shown; real sessions can be long."""
FINDINGS = 1
"""How a command ends that did its work and found something wrong."""
LONGEST_LINE_BYTES = 1_048_576
LIFE_LIMIT_S = 50.0
"""How long one server may take, before something is wrong with it."""


class DemoFailed(Exception):
    """The demo could not be brought to its end."""


# ------------------------------------------------------------------------------------------------------------ telling


def chapter(title: str) -> None:
    """Begin a section of the story."""
    print(f"\n== {title} {'=' * (WIDTH - 4 - len(title))}", flush=True)


def tell(words: str) -> None:
    """Say what happens, and why."""
    print(f"\n{textwrap.fill(' '.join(words.split()), WIDTH)}", flush=True)


def show(output: str, mark: str = "  ") -> None:
    """Show what a process has printed, as far as one can read it; on a terminal, one line in one line."""
    lines = output.splitlines()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines[:SHOWN_LINES]:
        print(f"{mark}{line}".rstrip()[:width], flush=True)
    if len(lines) > SHOWN_LINES:
        print(f"{mark}... and {len(lines) - SHOWN_LINES:,} lines more", flush=True)


# -------------------------------------------------------------------------------------------------------- the actors


class Stage:
    """The folder of one run, and the processes that work in it."""

    def __init__(self, folder: Path, data: Path, traffic: Traffic) -> None:
        self.db = folder / "agent.db"
        self.hook_calls = folder / "hook-calls.jsonl"
        self.ledger = folder / "billing.db"
        self.traffic = traffic
        turns = traffic.live_turns()
        if not turns:
            raise Unplayable(f"{data} has no completed turn in a live session, so there is nothing to deliver")
        middle = len(turns) // 2
        self.refused, self.killed = turns[max(0, middle - 1)], turns[middle]
        self.tracebacks = 0
        self._folder = folder
        self._data = data.resolve()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Server]:
        """Start the server, and see to it that it ends; raises DemoFailed if it takes too long."""
        arguments = ("--db", self.db.name, "--dir", str(AGENT_DIR), "--data", str(self._data))
        rehearsal = {
            "HOOK_CALLS": str(self.hook_calls),
            "BILLING_LEDGER": str(self.ledger),
            "BILLING_REFUSES": self.refused,
            "BILLING_DIES": self.killed,
            "BILLING_DIED": str(self._folder / "died"),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.server", *arguments),
            cwd=self._folder,
            env=self._environment() | rehearsal,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST_LINE_BYTES,
        )
        server = Server(process)
        try:
            async with asyncio.timeout(LIFE_LIMIT_S):
                yield server
        except TimeoutError:
            raise DemoFailed(f"the server took more than {LIFE_LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            self.tracebacks += server.tracebacks

    async def command(self, *words: str) -> str:
        """Run a command of the command line on the log; what it prints. Raises DemoFailed if it fails."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "eventlog", *words, "--db", self.db.name),
            cwd=self._folder,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, complaint = await process.communicate()
        if process.returncode not in (0, FINDINGS):
            said = (output + complaint).decode()
            raise DemoFailed(f"eventlog {' '.join(words)} ended with {process.returncode}:\n{said}")
        return output.decode()

    async def look(self, *words: str) -> None:
        """Run a command and show it with its output."""
        print(f"\n$ eventlog {' '.join(words)} --db {self.db.name}", flush=True)
        show(await self.command(*words))

    async def ask(self, *words: str) -> Any:
        """Run a command for its JSON."""
        return json.loads(await self.command(*words, "--json"))

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTLOG_", "BILLING_"))}
        path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return mine | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": str(WIDTH), "PYTHONUTF8": "1"}


class Server:
    """A running server, of which one hears what it prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.tracebacks = 0

    async def hear(self, awaited: str | None = None) -> bool:
        """Show its lines up to the one that begins with what is awaited, or to its end; whether that line came."""
        assert self._process.stdout is not None
        print()
        while raw := await self._process.stdout.readline():
            line = raw.decode(errors="replace").rstrip("\n")
            self.tracebacks += line.startswith("Traceback ")
            show(line, mark="  server | ")
            if awaited is not None and line.startswith(awaited):
                return True
        return False

    def stop(self) -> None:
        """Tell it to stop, by the end of its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def ended(self) -> int:
        """How it ended; below zero is the signal that did it."""
        return await self._process.wait()


# ---------------------------------------------------------------------------------------------------------- the story


async def play(stage: Stage) -> list[Promise]:
    """Tell the whole story, and prove it."""
    first = await life_and_death(stage)
    head_at_kill = await what_is_left(stage)
    second = await life_again(stage)
    chapter("The proof")
    return prove(await evidence(stage, [first, second], head_at_kill))


async def life_and_death(stage: Stage) -> int:
    """Play traffic until the extension kills the server; how the server ended."""
    chapter("A server, live traffic, and a kill")
    traffic = stage.traffic
    tell(f"""{len(traffic.lines):,} events in {len(traffic.sessions)} sessions are played into an embedded log, all
        sessions at once, each event when the one before it is committed. Two observe hooks look on: "usage" meters
        tokens, "mirror" copies the transcript. The extension "billing" bills each completed turn and each ended job
        of the projects that it is granted: {", ".join(traffic.live_projects())}.""")
    tell(f"""Its handler is made to fail twice for {stage.refused}, and to kill the whole process in the middle of
        {stage.killed}: after the bill is written, before the handler returns.""")
    async with stage.server() as server:
        if await server.hear("delivered everything"):
            server.stop()
        exit_code = await server.ended()
    if exit_code > 0:
        raise DemoFailed(f"the server ended with {exit_code}")
    tell("The server is gone." if exit_code < 0 else "It should have been killed, but nothing happened to it.")
    return exit_code


async def what_is_left(stage: Stage) -> int:
    """Look at the file that nobody closed; the last position in it."""
    chapter("What the kill left behind")
    await stage.look("check")
    await stage.look("deliveries")
    tell(f"""The bill for {stage.killed} is written, and the log cannot know: the call that the kill cut short will be
        made again. The extension keys its bills on the event's id, so the second call will change nothing.""")
    return int((await stage.ask("stats"))["lastPosition"])


async def life_again(stage: Stage) -> int:
    """Start the same server again and look at its log while it is up; how it ended."""
    chapter("The same server again")
    tell("""It learns from the log where each session stands, and goes on there. Each event has a key of its own, so
        that the last one can be sent again without being recorded twice.""")
    async with stage.server() as server:
        if await server.hear("played"):
            await stage.look("deliveries")
            tell("""What the kill cut short was called again at once. What has failed is called again when its time
                has come: it waits longer each time, and its time is stored.""")
            if await server.hear("delivered"):
                await look_around(stage)
                server.stop()
                await server.hear()
        exit_code = await server.ended()
    if exit_code > 0:
        raise DemoFailed(f"the server ended with {exit_code}")
    return exit_code


async def look_around(stage: Stage) -> None:
    """Look at the log of a running server."""
    chapter("What there is to see")
    tell("All of these read the file beside the running server, and hold up nobody.")
    session, turn = stage.killed.split("/", 1)
    await stage.look("sessions")
    await stage.look("show", session, "--turn", turn)
    await stage.look("hooks")
    tell("""Observe hooks get each event at most once, so nothing is shown again after a kill. What the killed server
        may not have shown is written down as a gap instead.""")
    await stage.look("deliveries")
    await stage.look("dead", "list")
    await stage.look("stats")


async def evidence(stage: Stage, exits: Sequence[int], head_at_kill: int) -> Evidence:
    """Collect what is known, each part from the one who knows it first."""
    await stage.look("check")
    async with EventLog(stage.db, read_only=True) as log:
        recorded = [event async for event in log.read()]
    ledger = Ledger(stage.ledger)
    return Evidence(
        sent=stage.traffic,
        refused=stage.refused,
        killed=stage.killed,
        exits=exits,
        recorded=recorded,
        head_at_kill=head_at_kill,
        hooks=HOOKS,
        hook_calls=hook_calls(stage.hook_calls),
        hook_gaps=[
            HookGap(gap["name"], gap["sessionId"], gap["first"], gap["last"])
            for gap in await stage.ask("hooks", "--gaps")
        ],
        delivered=[call.event_id for call in ledger.calls()],
        billed=[entry.event_id for entry in ledger.entries()],
        waiting=len(await stage.ask("deliveries")),
        dead=len(await stage.ask("dead", "list")),
        sound=(await stage.ask("check"))["ok"],
        tracebacks=stage.tracebacks,
    )


def hook_calls(path: Path) -> list[HookCall]:
    """What the hooks noted of their calls."""
    if not path.exists():
        return []
    notes = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return [HookCall(note["hook"], note["position"]) for note in notes]


def verdict(promises: Sequence[Promise]) -> int:
    """Print the table of promises; the exit code."""
    width = max(len(promise.words) for promise in promises)
    print(f"\n{'':6}  {'PROMISE':<{width}}  SEEN IN")
    for promise in promises:
        print(f"{'proven' if promise.kept else 'BROKEN'}  {promise.words:<{width}}  {promise.numbers}")
    broken = sum(not promise.kept for promise in promises)
    print(f"\n{len(promises) - broken} promises proven, {broken} broken.")
    return 1 if broken else 0


# ------------------------------------------------------------------------------------------------------------ starting


@contextmanager
def folder_of(keep: Path | None) -> Iterator[Path]:
    """An empty folder: the one to keep, or one that goes when the demo ends."""
    if keep is None:
        with TemporaryDirectory(prefix="eventlog-demo-") as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise Unplayable(f"{keep} is not empty; name a folder that is, or that is not there yet")
    yield keep.resolve()
    print(f"\nEverything is kept in {keep}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is 1 if a promise is broken and 2 if it cannot begin."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLE, help="sessions to play, as JSONL envelopes")
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, and to leave for a closer look")
    chosen = parser.parse_args(arguments)
    try:
        with folder_of(chosen.keep) as folder:
            return verdict(asyncio.run(play(Stage(folder, chosen.data, read_traffic(chosen.data)))))
    except (Unplayable, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
