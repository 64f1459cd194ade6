"""Making, validating and describing an agent's folder from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import EventLog
from eventlog.settings import SECTIONS
from tests.cli_kit import acting, environment, good, on_terminal, run

HOOK = (
    "from eventlog import define_hook\nasync def f(event, ctx): ...\nhook = define_hook(events={'turn.completed': f})\n"
)
MEMORY_EVENTS = ("message.received", "message.completed", "turn.completed", "turn.failed")
MANIFEST = {
    "publisher": "acme-labs",
    "name": "billing",
    "version": "1.0.0",
    "displayName": "Billing",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [{"capability": "conversations.turns.read", "scope": "project"}],
    "hooks": [{"event": "conversation.turn.completed", "handler": "on_turn"}],
}


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "helper"
    assert run("init", folder).code == 0
    return folder


def write(folder: Path, **files: str) -> None:
    """Files below `agent/`; in a name `__` is what parts folders, and `_py` is the ending."""
    for name, text in files.items():
        path = folder / "agent" / name.replace("__", "/").replace("_py", ".py").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# ---------------------------------------------------------------------------------------------------------------- init


def test_r78_what_init_makes_is_valid_and_its_test_passes(agent: Path) -> None:
    assert good("validate", "--dir", agent).stdout == "valid: 2 hooks and 0 extensions\n"
    assert good("info", "--dir", agent, "--json").document["agents"][0]["name"] == "helper"
    assert "2 passed" in pytest_says(agent, "agent")


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_what_init_makes_can_be_written_by_its_user_alone_and_is_loaded_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    folder = tmp_path / "new" / "helper"
    before = os.umask(umask)
    try:
        assert run("init", folder).code == 0
        assert good("validate", "--dir", folder).stdout == "valid: 2 hooks and 0 extensions\n"
        made = [folder.parent, *folder.parent.rglob("*")]
        assert [path for path in made if path.stat().st_mode & 0o022] == []
        assert (
            run("run", "--message", "hello", "--dir", folder, "--db", tmp_path / "a.db").stdout == "You said: hello\n"
        )
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("words", "code"), [(("validate",), 1), (("run", "--message", "hello"), 1), (("info",), 0)], ids=lambda it: str(it)
)
def test_an_agent_that_others_may_write_is_not_run(
    agent: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(agent)
    (agent / "agent" / "agent.py").write_text("from pathlib import Path\nPath(__file__).with_name('mark').touch()\n")
    (agent / "agent" / "hooks").chmod(0o777)
    done = run(*words)
    assert done.code == code
    assert ("agent-open-to-others" in done.stdout + done.stderr) == bool(code)
    assert not (agent / "agent" / "mark").exists()


@pytest.mark.parametrize("words", [(), ("evals",), ("evals/answer_eval.py",), ("evals", "agent")], ids=" ".join)
def test_r134_the_eval_that_init_makes_is_collected_by_pytest_once_and_passes(
    agent: Path, words: tuple[str, ...]
) -> None:
    """Whatever pytest is told to run, and beside a configuration of the user's own."""
    (agent / "evals" / "deeper").mkdir()
    shutil.copy(agent / "evals" / "answer_eval.py", agent / "evals" / "deeper" / "other_eval.py")
    edited = (agent / "evals" / "deeper" / "other_eval.py").read_text().replace("parents[1]", "parents[2]")
    (agent / "evals" / "deeper" / "other_eval.py").write_text(edited)
    (agent / "pyproject.toml").write_text('[tool.pytest.ini_options]\npython_files = ["test_*.py"]\n')
    count = {(): 4, ("evals",): 2, ("evals/answer_eval.py",): 1, ("evals", "agent"): 4}[words]
    assert f"{count} passed" in pytest_says(agent, *words)


def test_r133_an_eval_fails_when_the_agent_answers_something_else(agent: Path) -> None:
    path = agent / "agent" / "agent.py"
    path.write_text(path.read_text().replace("You said", "You wrote"))
    assert "assert 'You wrote: hello' == 'You said: hello'" in pytest_says(agent, "evals")


def pytest_says(folder: Path, *words: str) -> str:
    """What pytest says, run as a user would."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_init_says_what_it_made_and_what_to_do_next(tmp_path: Path) -> None:
    done = run("init", tmp_path / "new" / "one")
    made = {str(path) for path in (tmp_path / "new" / "one").rglob("*") if path.is_file()}
    assert (done.code, set(done.lines)) == (0, made)
    assert len(made) == 8
    assert done.stderr.startswith("eventlog: made agent one; look at it with `eventlog info --dir ")


@pytest.mark.parametrize(
    "there", ["agent/agent.toml", "agent/hooks/memory.py", "agent/hooks/test_usage.py", "evals/conftest.py"]
)
def test_init_overwrites_nothing_and_then_writes_nothing(tmp_path: Path, there: str) -> None:
    path = tmp_path / there
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    done = run("init", tmp_path)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (5, "", 1)
    assert str(path) in done.stderr
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_text() == "mine"


def test_a_repository_keeps_its_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine")
    done = run("init", tmp_path)
    assert (done.code, len(done.lines)) == (0, 7)
    assert "add .eventlog/ to the .gitignore" in done.stderr
    assert (tmp_path / ".gitignore").read_text() == "mine"


def test_an_agent_is_named_as_its_folder_whatever_that_is(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" \\ näme'
    assert run("init", folder).code == 0
    assert good("info", "--dir", folder, "--json").document["agents"][0]["name"] == folder.name
    done = run("init", tmp_path / "a\nb")
    assert (done.code, done.stderr.count("\n")) == (2, 1)


# ------------------------------------------------------------------------------------------------------------ validate


def test_r152_r75_validate_reports_everything_at_once(agent: Path) -> None:
    """Bad names, bad exports, empty maps (R72 to R74), files that do not import, and manifests, in one run."""
    faulty = {
        **MANIFEST,
        "version": "one",
        "main": "../main.py",
        "hooks": [{"event": "message.received", "handler": "1"}],
    }
    write(
        agent,
        hooks__no_export_py="x = 1\n",
        hooks__empty_py="from eventlog import define_hook\nhook = define_hook(events={})\n",
        hooks__broken_py="import does_not_exist\n",
        hooks__typo_py=HOOK.replace("turn.completed", "turn.complete"),
        extensions__acme__extension_json=json.dumps(faulty),
    )
    (agent / "agent" / "hooks" / "a__b.py").write_text(HOOK)
    done = run("validate", "--dir", agent, "--json")
    assert (done.code, done.stderr) == (1, "")
    found = done.document["findings"]
    assert {(each["severity"], each["code"], each["path"]) for each in found if "extension" not in each} == {
        ("error", "hook-export-invalid", "agent/hooks/no_export.py"),
        ("warning", "hook-empty", "agent/hooks/empty.py"),
        ("error", "hook-import-failed", "agent/hooks/broken.py"),
        ("error", "hook-event-unknown", "agent/hooks/typo.py"),
        ("error", "hook-name-invalid", "agent/hooks/a__b.py"),
    }
    pointers = {each["path"] for each in found if each.get("extension") == "acme"}
    assert {"/version", "/main", "/hooks/0/event", "/hooks/0/handler"} <= pointers
    assert done.document["errors"] + done.document["warnings"] == len(found)

    text = run("validate", "--dir", agent)
    assert (text.code, len(text.lines)) == (1, len(found) + 1)
    assert any(line.startswith("error hook-name-invalid agent/hooks/a__b.py: ") for line in text.lines)
    assert any("agent/extensions/acme/extension.json /version: " in line for line in text.lines)
    assert text.lines[-1].endswith("1 warning in 2 hooks and 1 extension")


def test_r152_warnings_alone_are_no_reason_to_fail(agent: Path) -> None:
    write(agent, hooks__empty_py="from eventlog import define_hook\nhook = define_hook(events={})\n")
    done = good("validate", "--dir", agent)
    assert done.lines[0].startswith("warning hook-empty agent/hooks/empty.py: ")
    assert good("validate", "--dir", agent, "--json").document["errors"] == 0


def test_a_folder_without_an_agent_is_a_finding_and_no_folder_is_not_found(tmp_path: Path) -> None:
    done = run("validate", "--dir", tmp_path)
    assert (done.code, done.lines[0].split()[:2]) == (1, ["error", "agent-missing"])
    assert run("validate", "--dir", tmp_path / "none").code == 3
    assert run("info", "--dir", tmp_path / "none").code == 3
    assert run("info", "--dir", tmp_path).code == 3


def test_info_without_an_agent_says_what_tells_of_the_log_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    without = run("info", "--dir", tmp_path, "--db", path)
    asyncio.run(_opened(path))
    done = run("info", "--dir", tmp_path, "--db", path)
    assert (done.code, without.code) == (3, 3)
    assert "--dir" in without.stderr
    assert "stats" not in without.stderr
    assert f"`eventlog stats --db {path}` tells of the log alone\n" in done.stderr
    assert good("stats", "--db", path).code == 0


async def _opened(path: Path) -> None:
    async with EventLog(path):
        pass


def test_an_extension_without_a_manifest_is_a_finding_unless_it_only_has_hooks(agent: Path) -> None:
    write(agent, extensions__crm__hooks__audit_py=HOOK)
    good("validate", "--dir", agent)
    (agent / "agent" / "extensions" / "empty").mkdir()
    assert run("validate", "--dir", agent, "--json").document["findings"][0]["code"] == "manifest-missing"


def test_what_a_hook_prints_while_it_loads_does_not_mix_with_the_output(agent: Path) -> None:
    write(agent, hooks__loud_py=f"print('noise')\n{HOOK}")
    done = run("info", "--dir", agent, "--json")
    assert (done.code, done.stderr) == (0, "noise\n")
    assert len(done.document["agents"][0]["hooks"]) == 3


# ---------------------------------------------------------------------------------------------------------------- info


def test_r153_info_lists_hooks_and_extensions(agent: Path) -> None:
    write(
        agent,
        hooks__audit__deep_py=HOOK.replace("'turn.completed': f", "'turn.failed': f, '*': f"),
        extensions__acme__extension_json=json.dumps(MANIFEST),
        extensions__acme__main_py="def activate(context): ...\n",
        extensions__acme__hooks__watch_py=HOOK,
    )
    (listed,) = good("info", "--dir", agent, "--json").document["agents"]
    assert [(each["name"], each["events"], each["source"], each.get("extension")) for each in listed["hooks"]] == [
        ("audit/deep", ["turn.failed", "*"], "agent/hooks/audit/deep.py", None),
        ("memory", [*MEMORY_EVENTS], "agent/hooks/memory.py", None),
        ("usage", ["turn.completed"], "agent/hooks/usage.py", None),
        ("acme__watch", ["turn.completed"], "agent/extensions/acme/hooks/watch.py", "acme"),
    ]
    assert (listed["dir"], listed["log"], listed["logExists"]) == (str(agent), f"{agent}/.eventlog/agent.db", False)
    assert good("info", "--dir", agent, "--db", __file__, "--json").document["agents"][0]["logExists"] is True
    (extension,) = listed["extensions"]
    assert (extension["name"], extension["id"], extension["valid"]) == ("acme", "acme-labs.billing", True)
    assert extension["hooks"] == MANIFEST["hooks"]
    assert extension["permissions"] == MANIFEST["permissions"]
    assert listed["experiments"] == []
    text = good("info", "--dir", agent).stdout
    assert text.startswith(f"agent helper in {agent}\nlog {agent}/.eventlog/agent.db (not there yet)\n\nHOOK ")
    assert "\nacme__watch  acme" in text
    assert "\nacme       acme-labs.billing  1.0.0" in text


def test_r139_info_lists_the_experiments_with_their_arms(agent: Path) -> None:
    source = "from eventlog import define_ab\nab = define_ab({name!r}, arms={arms!r})\n"
    write(
        agent,
        ab__tone_py=source.format(name="tone", arms={"short": 1, "long": 2.5}),
        ab_py=source.format(name="greeting", arms={"hi": 1, "hello": 0}),
    )
    (listed,) = good("info", "--dir", agent, "--json").document["agents"]
    assert listed["experiments"] == [
        {"name": "greeting", "arms": {"hi": 1, "hello": 0}, "source": "agent/ab.py"},
        {"name": "tone", "arms": {"short": 1, "long": 2.5}, "source": "agent/ab/tone.py"},
    ]
    text = good("info", "--dir", agent).stdout
    assert "\n\nEXPERIMENT  ARMS" in text
    assert "tone        short=1 long=2.5  agent/ab/tone.py\n" in text


def test_info_shows_what_can_be_shown_and_points_at_the_rest(agent: Path) -> None:
    write(agent, hooks__broken_py="import does_not_exist\n", extensions__acme__extension_json="{}")
    done = run("info", "--dir", agent, "--json")
    assert (done.code, done.document["agents"][0]["extensions"]) == (0, [{"name": "acme", "valid": False}])
    assert "findings; `eventlog validate` tells them" in done.stderr
    assert "invalid manifest" in run("info", "--dir", agent).stdout


def test_nothing_that_a_file_raises_acts_on_a_terminal(agent: Path) -> None:
    write(agent, hooks__evil_py="raise ValueError('\\x1b[2J\\u202e\\x9b1m')\n")
    for words in (["validate"], ["info"], ["validate", "--json"]):
        text = on_terminal(80, *words, "--dir", agent)
        assert acting(text) == set()
    assert r"\x1b[2J\u202e\x9b1m" in on_terminal(200, "validate", "--dir", agent)


# -------------------------------------------------------------------------------------------------------------- policy


def test_r2_every_number_of_delivery_is_told_with_what_it_means() -> None:
    numbers = good("policy", "--json").document
    assert {name: each["value"] for name, each in numbers["delivery"].items()} == {
        "attempts": 6,
        "timeout_s": 30.0,
        "backoff_first_s": 5.0,
        "backoff_factor": 4.0,
        "backoff_max_s": 900.0,
        "jitter": 0.2,
        "retention_s": 604_800,
        "capacity": 1_000,
        "concurrency": 16,
        "keep_dead_s": 604_800,
    }


def test_every_number_is_told_on_a_terminal_too() -> None:
    numbers = good("policy", "--json").document
    text = good("policy").stdout
    told = [each for name in SECTIONS for each in numbers[name].values()]
    assert len(told) > 60
    assert all(each["means"] in text for each in told)
