"""Plants a break for each of twenty requirements, drawn at random once: the test that names it has to turn red.

    python -m tests.torture.planted [R ...]

The checkout is copied; nothing here is changed. Ends with 1 if a break went unnoticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.log_kit import CHECKOUT
from tests.test_requirements import proven

TIMEOUT_S = 300
LEFT_OUT = (".git", ".venv*", ".mypy_cache", ".ruff_cache", "__pycache__", ".hypothesis")


class Break(NamedTuple):
    """What is broken: a text that stands once in a file, and what takes its place."""

    what: str
    file: str
    text: str
    instead: str

    def plant(self, copy: Path) -> None:
        """Break a copy of the checkout."""
        file = copy / self.file
        file.write_text(self.applied(file.read_text()))

    def applied(self, source: str) -> str:
        """A source with this break; raises ValueError if the text does not stand there once."""
        if source.count(self.text) != 1:
            raise ValueError(f"{self.file} has {source.count(self.text)} times, not once: {self.text!r}")
        return source.replace(self.text, self.instead)


# Drawn by random.Random(158) from those that need a test.
BREAKS: dict[int, Break] = {
    2: Break(
        "another default",
        "eventlog/durable/policy.py",
        "concurrency: int = _setting(16,",
        "concurrency: int = _setting(17,",
    ),
    9: Break(
        "the envelope has data",
        "eventlog/durable/envelope.py",
        "    occurred_at: str\n\n    def to_dict",
        '    occurred_at: str\n    data: str = ""\n\n    def to_dict',
    ),
    11: Break("a failed turn is delivered", "schema.sql", "WHERE NEW.type = 7;", "WHERE NEW.type = 8;"),
    13: Break(
        "jobs of every project are found",
        "eventlog/store/turns.py",
        "s.project IN (SELECT value FROM json_each(:projects))",
        "s.project IS NOT NULL",
    ),
    15: Break(
        "disposing does nothing",
        "eventlog/durable/extension.py",
        "Disposable(lambda: self._bound.pop(event, None))",
        "Disposable(lambda: None)",
    ),
    16: Break(
        "two ids change places",
        "eventlog/durable/call.py",
        "attempt.project, attempt.request_id)",
        "attempt.request_id, attempt.project)",
    ),
    17: Break(
        "an awaitable is not awaited",
        "eventlog/durable/call.py",
        "if inspect.isawaitable(result):",
        "if inspect.iscoroutine(result):",
    ),
    21: Break(
        "operations are not looked at",
        "eventlog/durable/manifest.py",
        'for field in ("operations", "hooks"):',
        'for field in ("hooks",):',
    ),
    27: Break(
        "the schema is not applied",
        "eventlog/durable/manifest.py",
        "    findings.extend(structure_faults(document))\n",
        "",
    ),
    30: Break(
        "an error is an ACK",
        "eventlog/durable/policy.py",
        "            return Retry(policy.backoff_s(attempt, random))",
        "            return Ack()",
    ),
    53: Break(
        "hooks are told before the commit",
        "eventlog/store/writer.py",
        "            recorded = self._events.commit(connection, group, draft, rider)\n",
        "            if draft is not None:\n"
        "                tell(self.loop, self._landed, [event for append in group for event in append.events], [])\n"
        "                time.sleep(0.2)\n"
        "            recorded = self._events.commit(connection, group, draft, rider)\n",
    ),
    57: Break(
        "the log can be changed",
        "schema.sql",
        "BEFORE UPDATE ON log\nWHEN NOT EXISTS",
        "BEFORE UPDATE ON log\nWHEN 0 AND NOT EXISTS",
    ),
    73: Break("two underscores pass", "eventlog/observe/hook.py", 'if "__" in name:', 'if "___" in name:'),
    75: Break(
        "the first finding is the last",
        "eventlog/cli/agent.py",
        "    findings = _findings(found, agent_dir)\n    errors",
        "    findings = _findings(found, agent_dir)[:1]\n    errors",
    ),
    87: Break(
        "a message is not required",
        "eventlog/vocabulary.py",
        'has the message `TURN_INTERRUPTED`."""\n\n    message: str\n',
        'has the message `TURN_INTERRUPTED`."""\n\n    message: str = ""\n',
    ),
    111: Break(
        "no session is named", "eventlog/host/otel.py", "return Otel(self, session_id)", 'return Otel(self, "")'
    ),
    122: Break(
        "hooks come before the channel",
        "eventlog/observe/routes.py",
        "Route([channel, *self.hooks])",
        "Route([*self.hooks, channel])",
    ),
    146: Break("an eval pages", "examples/hooks/page_on_failure.py", 'ctx.session.purpose == "eval" or ', ""),
    152: Break(
        "warnings are failures",
        "eventlog/cli/agent.py",
        "return Code.FINDINGS if errors else Code.DONE",
        "return Code.FINDINGS if findings else Code.DONE",
    ),
    154: Break(
        "the reply is written twice",
        "eventlog/cli/serving.py",
        "                self._output.flush()\n            except",
        "                self._output.harmless(text)\n                self._output.flush()\n            except",
    ),
}


def is_noticed(requirement: int, copy: Path) -> bool:
    """Whether a test that names the requirement fails in a broken copy, by an assertion or otherwise."""
    tests = sorted(set(proven()[requirement]))
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        pytest, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in (0, 1):  # nothing was run: the break broke too much, or a test has another name now
        raise RuntimeError(f"R{requirement}: pytest ended with {done.returncode}\n{done.stdout[-2_000:]}")
    return done.returncode == 1


def main(arguments: list[str]) -> int:
    """Plant the breaks, each in a copy of its own."""
    unnoticed = 0
    for requirement in map(int, arguments or BREAKS):
        planted = BREAKS[requirement]
        with TemporaryDirectory(prefix="eventlog-planted-") as folder:
            copy = Path(folder) / "checkout"
            shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
            planted.plant(copy)
            noticed = is_noticed(requirement, copy)
        unnoticed += not noticed
        print("red      " if noticed else "UNNOTICED", f"R{requirement}: {planted.what}", flush=True)
    print(f"{len(arguments or BREAKS)} planted, {unnoticed} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
