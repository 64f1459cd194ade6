"""What the documents show on a command line exists and does what it says, and no code of theirs is left unrun."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from signal import SIGINT
from types import ModuleType
from typing import Any

import click
import pytest

from benchmarks.__main__ import parsed
from eventlog import EventLog, Runtime
from eventlog.cli import command_line
from eventlog.host.files import SessionFiles
from eventlog.host.kv import Kv
from tests.cli_kit import conversation, environment, filled, good, shell, start
from tests.log_kit import CHECKOUT
from tests.test_docs import DOCUMENTS, blocks

FENCED = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN, GENERATED = "", "{eval-rst}"
RUN_BY = {
    ("README.md", "sh"): "test_docs_commands.py",
    ("README.md", "python"): "test_docs.py",
    ("README.md", "console"): "test_docs_commands.py",
    ("CONTRIBUTING.md", "sh"): "test_docs_commands.py",
    ("docs/adapters.md", "sh"): "test_docs_commands.py",
    ("docs/adapters.md", "python"): "test_openai_agents.py",
    ("docs/agents.md", "python"): "test_docs.py",
    ("docs/agents.md", "console"): "test_docs_commands.py",
    ("docs/command-line.md", "sh"): "test_docs_commands.py",
    ("docs/embedding.md", "sh"): "test_embedding.py",
    ("docs/embedding.md", "python"): "test_embedding.py",
    ("docs/embedding.md", "js"): "test_docs_commands.py",
    ("docs/embedding.md", "console"): "test_embedding.py",
    ("docs/extensions.md", "json"): "test_docs.py",
    ("docs/extensions.md", "python"): "test_docs.py",
    ("docs/extensions.md", "sh"): "test_docs_commands.py",
    ("docs/hooks.md", "python"): "test_docs.py",
    ("docs/open-file.md", "console"): "test_open_file.py",
    ("docs/open-file.md", "python"): "test_open_file.py",
    ("docs/opentelemetry.md", "python"): "test_docs_commands.py",
    ("docs/operations.md", "sh"): "test_docs_commands.py",
    ("docs/performance.md", "sh"): "test_docs_commands.py",
    ("docs/projections.md", "python"): "test_docs.py",
    ("docs/recovery.md", "python"): "test_docs.py",
    ("docs/testing.md", "python"): "test_testing.py",
    ("docs/tutorial.md", "sh"): "test_tutorial.py",
    ("docs/tutorial.md", "console"): "test_tutorial.py",
    ("docs/tutorial.md", "json"): "test_tutorial.py",
    ("docs/tutorial.md", "python"): "test_tutorial.py",
}
"""Which tests take the blocks of a language out of a document and run them. A drawing, or a tree of files, has none."""


def of(document: Path) -> str:
    return str(document.relative_to(CHECKOUT))


def test_every_block_of_code_is_run_by_a_test_that_names_its_document() -> None:
    languages = {
        (of(document), language) for document in DOCUMENTS for language, _ in FENCED.findall(document.read_text())
    }
    assert {key for key in languages if key[1] not in (PLAIN, GENERATED)} == set(RUN_BY)
    assert [key for key, file in RUN_BY.items() if key[0] not in (CHECKOUT / "tests" / file).read_text()] == []


def test_what_is_typed_into_a_shell_stands_in_blocks_of_its_language() -> None:
    """Else it would not be found here."""
    found = [(of(each), language, text) for each in DOCUMENTS for language, text in FENCED.findall(each.read_text())]
    typed = re.compile(r"^(?:\$ )?(?:eventlog|make|pip|python|\.ci/run) ", re.MULTILINE)
    assert [document for document, language, text in found if language == PLAIN and typed.search(text)] == []


# -------------------------------------------------------------------------------------------------- that there are such


def commands() -> list[tuple[str, str]]:
    """Each command of ours in a document, in a block or between backticks, up to what belongs to the shell."""
    found = []
    for document in DOCUMENTS:
        text = re.sub(r"\s+", " ", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))
        found += [(of(document), each) for each in re.findall(r"`(eventlog [a-z][^`]*)`", text)]
        typed = "".join(block for language in ("sh", "console") for block in blocks(of(document), language))
        found += [(of(document), line) for line in re.findall(r"^(?:\$ )?(eventlog .*)$", typed, re.MULTILINE)]
    return [(document, re.split(r" [|#] | \| |;", f"{line} ")[0].strip()) for document, line in found]


@pytest.mark.parametrize(("document", "line"), sorted(set(commands())))
def test_a_command_of_the_documents_and_each_of_its_options_exist(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = command_line
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, f"{document}: {line}"
        command = found
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, f"{document}: {line}"


def test_every_target_of_make_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (of(each), name)
        for each in DOCUMENTS
        for name in re.findall(r"(?:^|`)make ([a-z-]+)(?:`|\s)", each.read_text(), re.MULTILINE)
    }
    assert len(named) > 10
    assert [(document, name) for document, name in named if name not in targets] == []


MAKE = sorted(
    {
        line.partition("#")[0].strip()
        for document in ("README.md", "CONTRIBUTING.md", "docs/performance.md")
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.startswith("make")
    }
)


def make(line: str) -> str:
    """What a line with `make` prints. The variables of a `make` that runs this test say nothing to it."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=CHECKOUT, env=outside, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


def test_make_alone_explains_every_target_of_the_documents() -> None:
    explained = set(re.findall(r"^  ([a-z-]+) ", make("make"), re.MULTILINE))
    assert {words[1] for words in map(str.split, MAKE) if len(words) > 1} <= explained


@pytest.mark.parametrize("line", [line for line in MAKE if line != "make test-all"])
def test_make_can_do_what_a_document_lets_it(line: str) -> None:
    """Told, and not done: `test`, `faults`, `check` and `torture` run this very test, `format` changes the files that
    are tested, `docs` and `demo` are run by .ci/run and by test_demo.py, and `bench` takes minutes. `test-all` is
    `test` for each Python, which takes seconds to find even where nothing is done."""
    assert make(f"{line.replace('make', 'make -n', 1)} VENV=.venv").strip()


@pytest.mark.parametrize("line", [line for line in MAKE if line.startswith("make bench")])
def test_the_benchmarks_understand_what_make_hands_on(line: str) -> None:
    """Each would take a minute or more; test_bench.py measures every subject in a small round."""
    (handed,) = re.findall(r"-m benchmarks(.*?);", make(f"{line.replace('make', 'make -n', 1)} VENV=.venv"))
    found = vars(parsed(shlex.split(handed)))
    asked = {word.removeprefix("--") for word in shlex.split(line.replace('ARGS="', '"')) for word in word.split()}
    assert {name for name in asked if name in found} == {
        name for name, value in found.items() if value != vars(parsed([]))[name]
    }


def test_every_extra_that_is_installed_in_the_documents_exists() -> None:
    extras = set(re.findall(r"^([a-z-]+) = \[", (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE))
    named = {name for each in DOCUMENTS for name in re.findall(r"PATH-OF-THIS-CHECKOUT\[([\w-]+)\]", each.read_text())}
    assert named == {"sse", "otel", "openai-agents"}
    assert named <= extras


def test_the_first_screen_of_the_readme_has_the_two_commands_and_the_promises() -> None:
    """As a person sees it: 40 lines of 120 cells."""
    rows = [
        part for line in (CHECKOUT / "README.md").read_text().splitlines() for part in textwrap.wrap(line, 120) or [""]
    ]
    screen = rows[:40]
    assert [row.split()[1] for row in screen if row.startswith("make ")] == ["demo", "test"]
    promises = [row for row in rows if row.startswith("| **")]
    assert len(promises) >= 8
    assert [row for row in promises if row not in screen] == []


# ------------------------------------------------------------------------------------------------------ what they print


def test_the_first_example_prints_what_the_readme_shows() -> None:
    (console,) = blocks("README.md", "console")
    line, _, shown = console.partition("\n")
    done = shell(
        line.removeprefix("$ ").replace("python ", f"cd {CHECKOUT}; PYTHONPATH=. {shlex.quote(sys.executable)} ")
    )
    assert done.code == 0, done.stderr
    assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), done.stdout), done.stdout


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """The folder of the guide to agents."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/agent.py").write_text(blocks("docs/agents.md", "python")[0])
    return tmp_path


def test_the_agent_of_the_guide_answers_on_the_command_line_as_it_shows(agent: Path) -> None:
    (console,) = blocks("docs/agents.md", "console")
    ask, reply, show = console.splitlines()
    done = shell(f"cd {agent}; {ask.removeprefix('$ ')}")
    assert (done.code, done.stdout) == (0, f"{reply}\n"), done.stderr
    shown = shell(f"cd {agent}; {show.removeprefix('$ ')}")
    assert shown.code == 0, shown.stderr
    assert reply in shown.stdout


# ------------------------------------------------------------------------------------------------------------- recipes


async def refunds(log: EventLog) -> None:
    await conversation(log)
    session = await log.session("s1")
    result = {"callId": "c7", "toolName": "Find", "isError": False, "output": "order A-1: timeout"}
    await session.append("action.result", result, turn_id="t2")


RECIPES = [line for line in blocks("docs/command-line.md", "sh")[0].splitlines() if "--follow" not in line]


@pytest.mark.parametrize("line", RECIPES)
def test_a_recipe_of_the_command_line_finds_something(tmp_path: Path, line: str) -> None:
    if "jq" in line and shutil.which("jq") is None:
        pytest.skip("the recipe uses jq")
    path = filled(tmp_path / "agent.db", refunds)
    done = shell(f"export EVENTLOG_DB={path}; {line.replace('SESSION', 's1')}")
    assert (done.code, done.stderr) == (0, ""), done
    assert done.stdout.strip()


async def kept(log: EventLog) -> None:
    await log.start_session("s1")
    await Kv(log.store, "agent").put("last-result/s1", {"at": 1})
    await SessionFiles(log.store, "agent", "s1").write("transcript/000001.json", "{}")


def test_what_handlers_keep_is_shown_as_the_guide_says(tmp_path: Path) -> None:
    path = filled(tmp_path / "agent.db", kept)
    for line in blocks("docs/command-line.md", "sh")[1].splitlines():
        done = shell(f"cd {tmp_path}; export EVENTLOG_DB={path}; {line.replace('SESSION', 's1')}")
        assert (done.code, done.stderr) == (0, ""), line
        assert ("last-result/s1" in done.stdout or "{" in done.stdout or "transcript" in done.stdout) != ("> 1" in line)
    assert (tmp_path / "1.json").read_text() == "{}"


def test_the_recipe_that_follows_shows_a_failure_when_it_comes(tmp_path: Path) -> None:
    (line,) = [each for each in blocks("docs/command-line.md", "sh")[0].splitlines() if "--follow" in each]
    words = shlex.split(line, comments=True)[1:]
    path = filled(tmp_path / "agent.db", conversation)
    with start(*words, "--db", path) as child:
        assert child.stdout is not None
        assert b"turn.failed" in child.stdout.readline()
        child.send_signal(SIGINT)
        assert child.wait(20) == 130


def test_an_extension_is_granted_a_project_as_the_guide_says(tmp_path: Path) -> None:
    folder = tmp_path / "agent/extensions/points"
    folder.mkdir(parents=True)
    (folder / "extension.json").write_text(blocks("docs/extensions.md", "json")[0])
    code, in_code, _ = blocks("docs/extensions.md", "python")
    (folder / "main.py").write_text(code)

    async def serve() -> list[str]:
        names: dict[str, Any] = {"Runtime": Runtime}
        body = f"{in_code}    return await runtime.extensions.list()\n"
        serve = "async def serve(log):\n" + textwrap.indent(
            body.replace('agent_dir="."', f"agent_dir={str(tmp_path)!r}"), "    "
        )
        exec(serve, names)  # noqa: S102 (our own text)
        async with EventLog(tmp_path / ".eventlog/agent.db") as log:
            (installed,) = await names["serve"](log)
            return sorted(grant.project for grant in installed.grants)

    assert asyncio.run(serve()) == ["another-project", "default"]
    good("extensions", "revoke", "points", "another-project", "--dir", tmp_path)
    (line,) = blocks("docs/extensions.md", "sh")[0].splitlines()
    assert shell(f"cd {tmp_path}; {line}").code == 0
    (listed,) = good("extensions", "list", "--json", "--dir", tmp_path).document
    assert sorted(grant["project"] for grant in listed["grants"]) == ["another-project", "default"]
    assert good("kv", "--extension", "points", "--dir", tmp_path, "--json").document == []


def test_a_backup_is_restored_as_the_guide_says(tmp_path: Path) -> None:
    path = filled(tmp_path / "agent.db", conversation)
    good("backup", tmp_path / "backup.db", "--db", path)
    good("append", "s1", "acme.lost", "--db", path)
    (block,) = blocks("docs/operations.md", "sh")
    done = shell(f"cd {tmp_path}; set -e; {block}")
    assert done.code == 0, done
    assert "acme.lost" not in good("show", "s1", "--db", path).stdout


@pytest.mark.parametrize("line", blocks("docs/command-line.md", "sh")[2].splitlines())
def test_a_shell_completes_commands_as_the_guide_says(line: str) -> None:
    (name,) = re.findall(r"COMPLETE=(\w+)_source", line)
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    before, known = {
        "bash": ("", "complete -p eventlog"),
        "zsh": ("autoload -U compinit; compinit -D; ", "print $_comps[eventlog]"),
        "fish": ("", "complete -c eventlog"),
    }[name]
    done = subprocess.run(
        [program, "-c", f"{before}{line.partition(' #')[0]}\n{known}"],
        env=environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "eventlog_completion" in done.stdout or "_EVENTLOG_COMPLETE" in done.stdout


def test_the_hook_of_the_guide_to_opentelemetry_is_one() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs an SDK: pip install opentelemetry-sdk")
    module = ModuleType("guide_otel")
    exec(blocks("docs/opentelemetry.md", "python")[0], module.__dict__)  # noqa: S102 (our own text)
    assert "turn.completed" in module.hook.events


def test_the_script_of_the_guide_for_browsers_can_be_read() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    (script,) = blocks("docs/embedding.md", "js")
    done = subprocess.run([node, "--check", "-"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
