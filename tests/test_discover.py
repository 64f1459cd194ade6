"""What is found in an agent folder, in which order, and everything that can be wrong with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from eventlog.errors import DiscoveryError, Finding
from eventlog.events import VOCABULARY
from eventlog.observe import Discovered, discover
from eventlog.observe.discover import discover_extension
from eventlog.observe.files import is_of_another
from tests.log_kit import UNREADABLE

HOOK = "from eventlog.observe import define_hook\nhook = define_hook(events={'*': lambda event, ctx: None})\n"
EMPTY = "from eventlog.observe import define_hook\nhook = define_hook(events={})\n"
DISABLED = "from eventlog.observe import disable_hook\nhook = disable_hook()\n"
WRONG_EXPORT = "hook = {'events': {}}\n"
UNKNOWN_EVENT = "from eventlog.observe import define_hook\n\nhook = define_hook(events={'turn.complete': print})\n"
RAISES = "\n\nraise RuntimeError('no such thing')\n"


class Agent:
    """An agent folder on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent").mkdir()

    def write(self, path: str, source: str = HOOK) -> Path:
        file = self.folder / "agent" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
        return file

    def discover(self, **packaged: Path) -> Discovered:
        return discover(self.folder, packaged=packaged)

    def names(self, **packaged: Path) -> list[str]:
        found = self.discover(**packaged)
        assert found.findings == ()
        return [hook.name for hook in found.hooks]

    def finding(self) -> Finding:
        (finding,) = self.discover().findings
        return finding


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    folder = tmp_path / "support-desk"
    folder.mkdir()
    return Agent(folder)


def codes(found: Discovered) -> list[tuple[str, str]]:
    return [(finding.code, finding.path) for finding in found.findings]


# ------------------------------------------------------------------------------------------ names and order


def test_r64_a_file_in_agent_hooks_is_a_hook(agent: Agent) -> None:
    file = agent.write("hooks/usage.py")
    (hook,) = agent.discover().hooks
    assert (hook.name, hook.source, hook.extension) == ("usage", file, None)
    assert list(hook.definition.events) == ["*"]


def test_r69_r70_subfolders_are_part_of_the_name(agent: Agent) -> None:
    agent.write("hooks/audit/usage.py")
    agent.write("hooks/audit/deep/er/x.py")
    assert agent.names() == ["audit/deep/er/x", "audit/usage"]


def test_the_order_of_discovery_is_that_of_the_names(agent: Agent) -> None:
    for name in ("a_b", "a/b", "B", "a-b", "c", "a", "a/C", "a.b", "10", "9"):
        agent.write(f"hooks/{name}.py")
    assert agent.names() == ["10", "9", "B", "a", "a-b", "a.b", "a/C", "a/b", "a_b", "c"] == agent.names()


def test_a_file_and_a_folder_of_one_stem_are_two_names(agent: Agent) -> None:
    agent.write("hooks/audit.py", "source = 'the file'\n" + HOOK)
    agent.write("hooks/audit/usage.py", f"from . import source\nassert source == 'the folder'\n{HOOK}")
    agent.write("hooks/audit/__init__.py", "source = 'the folder'")
    assert agent.names() == ["audit", "audit/usage"]


@pytest.mark.parametrize(
    "name",
    ["test_usage", "usage_test", "usage.test", "usage.spec", "usage_spec", "usage.test.helper", "conftest"],
)
def test_r71_r151_tests_live_next_to_hooks(agent: Agent, name: str) -> None:
    agent.write("hooks/usage.py")
    agent.write(f"hooks/{name}.py", RAISES)
    agent.write(f"hooks/audit/{name}.py", RAISES)
    assert agent.names() == ["usage"]


def test_the_init_of_a_folder_is_run_and_is_no_hook(agent: Agent) -> None:
    agent.write("hooks/audit/__init__.py", f"source = 'the folder'\n{HOOK}")
    agent.write("hooks/audit/usage.py", f"from . import source\nassert source == 'the folder'\n{HOOK}")
    assert agent.names() == ["audit/usage"]


def test_names_that_begin_with_underscore_or_dot_are_no_hooks(agent: Agent) -> None:
    for path in (
        "_shared.py",
        ".hidden.py",
        "_lib/a.py",
        ".git/a.py",
        "__pycache__/a.py",
        "__main__.py",
        "notes.md",
        "a.pyi",
    ):
        agent.write(f"hooks/{path}", RAISES)
    assert agent.names() == []


@pytest.mark.parametrize("name", ["tests", "test", "latest", "contest", "spec", "inspect", "attest_x"])
def test_names_that_only_look_like_tests_are_hooks(agent: Agent, name: str) -> None:
    agent.write(f"hooks/{name}.py")
    agent.write(f"hooks/{name}_/x.py")
    assert agent.names() == [name, f"{name}_/x"]


def test_a_folder_that_is_named_like_a_file_is_a_folder(agent: Agent) -> None:
    agent.write("hooks/a.py/b.py")
    assert agent.names() == ["a.py/b"]


def test_an_agent_without_hooks_is_fine(agent: Agent) -> None:
    assert agent.names() == []


def test_a_file_name_that_unicode_can_write_in_two_ways_is_one_name(agent: Agent) -> None:
    agent.write("hooks/u\u0308bersicht.py")
    assert agent.names() == ["\u00fcbersicht"]


# ------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("path", ["hooks/a__b.py", "hooks/audit/a__b.py", "hooks/a__b/usage.py"])
def test_r73_a_name_cannot_contain_two_underscores(agent: Agent, path: str) -> None:
    agent.write(path)
    finding = agent.finding()
    assert (finding.severity, finding.code, finding.path) == ("error", "hook-name-invalid", f"agent/{path}")
    assert "__" in finding.message


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\\b", "x" * 251 + "/abcdef"])
def test_a_name_that_no_terminal_or_table_should_see_is_refused(agent: Agent, name: str) -> None:
    agent.write(f"hooks/{name}.py", RAISES)
    finding = agent.finding()
    assert finding.code == "hook-name-invalid"
    assert finding.message.isprintable()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_name_that_is_no_text_is_refused(agent: Agent) -> None:
    agent.write("hooks/a.py")
    os.rename(agent.folder / "agent/hooks/a.py", os.fsencode(agent.folder) + b"/agent/hooks/\xff.py")  # noqa: PTH104
    finding = agent.finding()
    assert (finding.code, finding.path) == ("hook-name-invalid", "agent/hooks/\\xff.py")
    finding.message.encode()


def test_r74_a_hook_without_handlers_is_left_out_with_a_warning(agent: Agent) -> None:
    agent.write("hooks/usage.py", EMPTY)
    found = agent.discover()
    assert found.hooks == ()
    assert [(finding.severity, *code) for finding, code in zip(found.findings, codes(found), strict=True)] == [
        ("warning", "hook-empty", "agent/hooks/usage.py")
    ]
    found.raise_for_errors()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "it has no hook"),
        ("handler = print", "it has no hook"),
        (WRONG_EXPORT, '"hook" is of type dict'),
        ("default = 5", '"default" is of type int'),
        ("from eventlog.observe import define_hook as hook", '"hook" is of type function'),
        (HOOK + "default = define_hook(events={'turn.failed': print})", "keep one of them"),
    ],
)
def test_r72_the_export_must_be_a_hook(agent: Agent, source: str, says: str) -> None:
    agent.write("hooks/usage.py", source)
    finding = agent.finding()
    assert (finding.severity, finding.code) == ("error", "hook-export-invalid")
    assert says in finding.message


@pytest.mark.parametrize(
    "source",
    [
        HOOK,
        HOOK.replace("hook =", "default ="),
        HOOK + "default = hook",
        HOOK + "default = 30.0",
        HOOK.replace("hook =", "default =") + "hook = None",
    ],
)
def test_r72_hook_and_default_are_both_the_export(agent: Agent, source: str) -> None:
    agent.write("hooks/usage.py", source)
    assert agent.names() == ["usage"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (RAISES, "RuntimeError: no such thing (hooks/bad.py, line 3)"),
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere' (hooks/bad.py, line 1)"),
        ("x = 1\nif x\n    pass", "SyntaxError: expected ':' (hooks/bad.py, line 2)"),
        ("def f():\npass", "(hooks/bad.py, line 2)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (hooks/bad.py, line 2)"),
        ("raise GeneratorExit", "GeneratorExit (hooks/bad.py, line 1)"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError (hooks/bad.py, line 2)"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("import json\njson.loads('{')", "(hooks/bad.py, line 2)"),
        ("x = '\0'", "null bytes"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", "(hooks/bad.py, line 3)"),
        ("from ._helper import x", "ZeroDivisionError: division by zero (hooks/_helper.py, line 2)"),
        ("from eventlog.observe import define_hook\ndefine_hook(events=None)", "must map event types to handlers"),
    ],
)
def test_a_file_that_does_not_import_is_a_finding_with_its_line_and_the_others_load(
    agent: Agent, source: str, says: str
) -> None:
    agent.write("hooks/_helper.py", "# the first line\nx = 1 / 0")
    agent.write("hooks/a.py")
    agent.write("hooks/bad.py", source)
    agent.write("hooks/c.py")
    found = agent.discover()
    assert [hook.name for hook in found.hooks] == ["a", "c"]
    assert codes(found) == [("hook-import-failed", "agent/hooks/bad.py")]
    assert says in found.findings[0].message


def test_a_file_in_another_encoding_is_a_finding(agent: Agent) -> None:
    agent.write("hooks/bad.py").write_bytes("x = 'ü'".encode("latin-1"))
    assert agent.finding().code == "hook-import-failed"


def test_an_interrupt_by_the_user_is_no_finding(agent: Agent) -> None:
    agent.write("hooks/slow.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        agent.discover()


def test_r66_an_unknown_event_key_is_a_finding_that_names_the_nearest(agent: Agent) -> None:
    agent.write("hooks/usage.py", UNKNOWN_EVENT)
    finding = agent.finding()
    assert (finding.severity, finding.code) == ("error", "hook-event-unknown")
    assert '"turn.completed"' in finding.message
    assert "(hooks/usage.py, line 3)" in finding.message


def test_a_bad_handler_is_a_finding(agent: Agent) -> None:
    agent.write("hooks/usage.py", HOOK.replace("lambda event, ctx: None", "5"))
    assert agent.finding().code == "hook-handler-invalid"


def test_r75_one_run_reports_everything(agent: Agent) -> None:
    agent.write("agent.toml", "name = 5")
    agent.write("agent.py", RAISES)
    agent.write("hooks/a.py", WRONG_EXPORT)
    agent.write("hooks/b__c.py")
    agent.write("hooks/d.py", EMPTY)
    agent.write("hooks/e.py", UNKNOWN_EVENT)
    agent.write("hooks/f.py", RAISES)
    agent.write("hooks/g.py")
    agent.write("extensions/crm/hooks/a__b.py")
    agent.write("extensions/crm/hooks/c.py", EMPTY)
    agent.write("extensions/x__y/hooks/d.py")
    found = agent.discover()
    assert sorted(codes(found)) == [
        ("agent-import-failed", "agent/agent.py"),
        ("agent-toml-invalid", "agent/agent.toml"),
        ("extension-name-invalid", "agent/extensions/x__y"),
        ("hook-empty", "agent/extensions/crm/hooks/c.py"),
        ("hook-empty", "agent/hooks/d.py"),
        ("hook-event-unknown", "agent/hooks/e.py"),
        ("hook-export-invalid", "agent/hooks/a.py"),
        ("hook-import-failed", "agent/hooks/f.py"),
        ("hook-name-invalid", "agent/extensions/crm/hooks/a__b.py"),
        ("hook-name-invalid", "agent/hooks/b__c.py"),
    ]
    assert [hook.name for hook in found.hooks] == ["g"]
    with pytest.raises(DiscoveryError) as raised:
        found.raise_for_errors()
    assert raised.value.findings == found.errors
    assert len(found.errors) == 8


def test_names_that_differ_in_case_only_are_one_file_elsewhere(agent: Agent) -> None:
    agent.write("hooks/audit/usage.py")
    agent.write("hooks/Audit/Usage.py")
    found = agent.discover()
    if len(list((agent.folder / "agent/hooks").iterdir())) == 1:
        pytest.skip("this file system is such an elsewhere")
    assert codes(found) == [("hook-name-clash", "agent/hooks/audit/usage.py")]
    assert "agent/hooks/Audit/Usage.py" in found.findings[0].message


def test_a_name_written_in_two_ways_of_unicode_is_a_clash(agent: Agent) -> None:
    agent.write("hooks/\u00fc.py")
    agent.write("hooks/u\u0308.py")
    if len(list((agent.folder / "agent/hooks").iterdir())) == 1:
        pytest.skip("on this file system they are one file")
    assert agent.finding().code == "hook-name-clash"


# --------------------------------------------------------------------------------------- links and odd things


def test_a_link_out_of_the_agent_is_refused(agent: Agent, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "usage.py").write_text(HOOK)
    for link in ("agent.py", "agent.toml", "hooks/file.py", "hooks/folder", "extensions/crm"):
        path = agent.folder / "agent" / link
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(elsewhere / "usage.py" if "." in link else elsewhere)
    (elsewhere / "hooks").mkdir()
    (elsewhere / "hooks" / "audit.py").write_text(HOOK)
    found = agent.discover()
    assert found.hooks == ()
    assert sorted(codes(found)) == [
        ("link-refused", "agent/agent.py"),
        ("link-refused", "agent/agent.toml"),
        ("link-refused", "agent/extensions/crm/hooks"),
        ("link-refused", "agent/hooks/file.py"),
        ("link-refused", "agent/hooks/folder"),
    ]
    assert all(str(elsewhere) in finding.message for finding in found.findings)


def test_a_folder_of_hooks_that_is_a_link_out_is_refused(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (agent.folder / "agent/hooks").symlink_to(tmp_path / "elsewhere")
    assert agent.finding().code == "link-refused"


def test_a_link_inside_of_the_agent_is_a_hook_of_its_own(agent: Agent) -> None:
    shared = agent.write("shared/usage.py")
    agent.write("hooks/a.py")
    (agent.folder / "agent/hooks/usage.py").symlink_to(shared)
    assert agent.names() == ["a", "usage"]


def test_an_agent_that_is_reached_by_a_link_is_read_as_if_there_were_none(agent: Agent, tmp_path: Path) -> None:
    agent.write("hooks/usage.py")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/agent").symlink_to(agent.folder / "agent")
    assert [hook.name for hook in discover(tmp_path / "other").hooks] == ["usage"]


def test_links_that_lead_back_or_nowhere_end_the_search(agent: Agent) -> None:
    hooks = agent.write("hooks/audit/usage.py").parents[1]
    (hooks / "audit/again").symlink_to(hooks)
    (hooks / "lost.py").symlink_to(hooks / "no-such-file")
    (hooks / "one.py").symlink_to(hooks / "two.py")
    (hooks / "two.py").symlink_to(hooks / "one.py")
    found = agent.discover()
    assert [hook.name for hook in found.hooks] == ["audit/usage"]
    assert sorted(codes(found)) == [
        ("link-refused", "agent/hooks/audit/again"),
        ("link-refused", "agent/hooks/lost.py"),
        ("link-refused", "agent/hooks/one.py"),
        ("link-refused", "agent/hooks/two.py"),
    ]


def test_a_link_to_nowhere_that_is_no_hook_is_left_alone(agent: Agent) -> None:
    agent.write("hooks/usage.py").with_name("README").symlink_to("no-such-file")
    assert agent.names() == ["usage"]


def test_a_pipe_is_not_read(agent: Agent) -> None:
    os.mkfifo(agent.write("hooks/usage.py").with_name("pipe.py"))
    (agent.folder / "agent/hooks/link.py").symlink_to("pipe.py")
    assert agent.names() == ["usage"]


def test_a_file_in_the_place_of_a_folder_is_a_finding(agent: Agent) -> None:
    agent.write("hooks", HOOK)
    agent.write("extensions", HOOK)
    assert codes(agent.discover()) == [
        ("folder-unreadable", "agent/hooks"),
        ("folder-unreadable", "agent/extensions"),
    ]


@pytest.mark.skipif(not UNREADABLE.exists(), reason="needs Linux's /proc")
def test_a_helper_that_cannot_be_read_is_a_finding_of_the_hook_that_imports_it_alone(agent: Agent) -> None:
    (agent.write("hooks/audit.py").with_name("_helper.py")).symlink_to(UNREADABLE)
    assert agent.names() == ["audit"]
    agent.write("hooks/usage.py", f"from . import _helper\n{HOOK}")
    assert codes(agent.discover()) == [("hook-import-failed", "agent/hooks/usage.py")]
    assert "Input/output error" in agent.finding().message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_a_finding(agent: Agent) -> None:
    agent.write("hooks/a.py").chmod(0)
    agent.write("hooks/b/c.py").parent.chmod(0)
    agent.write("hooks/d/e.py").parent.chmod(0o400)
    assert {code for code, _ in codes(agent.discover())} == {"hook-import-failed", "folder-unreadable", "link-refused"}


IN_AN_AGENT = [
    "..",
    "",
    "hooks",
    "hooks/a.py",
    "agent.toml",
    "extensions/acme/main.py",
    "_shared/client.py",
    "_shared/a.pyc",
]
"""What decides what an agent runs, seen from its folder `agent`."""

LEAVES_A_MARK = """
from pathlib import Path
Path(__file__).with_name("mark").touch()
from eventlog import define_hook
hook = define_hook(events={"*": print})
"""


def _with_all(agent: Agent) -> Path:
    agent.write("hooks/a.py", LEAVES_A_MARK)
    agent.write("agent.toml", "name = 'desk'")
    agent.write("extensions/acme/main.py", "")
    agent.write("_shared/client.py", "")
    agent.write("_shared/a.pyc", "")
    return agent.folder / "agent"


def _shown_as(path: str) -> str:
    return "." if path == ".." else f"agent/{path}".removesuffix("/")


@pytest.mark.parametrize("sticky", [0, 0o1000])
@pytest.mark.parametrize("path", IN_AN_AGENT)
def test_what_every_user_may_write_is_an_error_and_nothing_is_run(agent: Agent, path: str, sticky: int) -> None:
    """Whoever writes it would run code in the server. In a sticky folder around it nobody can touch what is there."""
    folder = _with_all(agent)
    (folder / path).chmod((folder / path).stat().st_mode | 0o002 | sticky)
    found = agent.discover()
    if path == ".." and sticky:
        assert found.findings == ()
        return
    assert [(finding.severity, finding.code, finding.path) for finding in found.findings] == [
        ("error", "agent-open-to-others", _shown_as(path))
    ]
    assert "chmod -R o-w" in found.findings[0].message
    assert found.hooks == ()
    assert not (folder / "hooks" / "mark").exists()
    with pytest.raises(DiscoveryError, match="agent-open-to-others"):
        found.raise_for_errors()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("path", IN_AN_AGENT)
def test_what_another_user_owns_is_an_error_for_root_too_and_nothing_is_run(agent: Agent, path: str) -> None:
    folder = _with_all(agent)
    os.chown(folder / path, 4_321, -1)
    found = agent.discover()
    assert [(finding.severity, finding.code, finding.path) for finding in found.findings] == [
        ("error", "agent-of-another-user", _shown_as(path))
    ]
    assert not (folder / "hooks" / "mark").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
@pytest.mark.parametrize(("owner", "of_another"), [(4_321, False), (0, False), (4_322, True)])
def test_a_user_loads_his_own_and_what_root_put_there(tmp_path: Path, owner: int, of_another: bool) -> None:
    """Root may change what any user runs anyway, and it is how a server's code comes to its place."""
    file = tmp_path / "a.py"
    file.touch()
    os.chown(file, owner, -1)
    status = file.stat()
    os.seteuid(4_321)
    try:
        assert is_of_another(status) == of_another
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("path", IN_AN_AGENT)
def test_what_its_group_may_write_is_a_warning_and_is_loaded(agent: Agent, path: str) -> None:
    folder = _with_all(agent)
    (folder / path).chmod((folder / path).stat().st_mode | 0o020)
    found = agent.discover()
    assert [(finding.severity, finding.code, finding.path) for finding in found.findings] == [
        ("warning", "agent-open-to-group", _shown_as(path))
    ]
    assert [hook.name for hook in found.hooks] == ["a"]


def test_everything_that_is_open_to_others_is_one_finding(agent: Agent) -> None:
    agent.write("hooks/b.py").chmod(0o666)
    agent.write("hooks/a.py").chmod(0o666)
    agent.write("hooks/notes.txt").chmod(0o666)
    agent.write(".hidden/c.py").chmod(0o666)
    (agent.folder / "agent" / "hooks" / "link.py").symlink_to("../.hidden/c.py")
    agent.write("agent.py", "")
    (finding,) = agent.discover().findings
    assert finding.path == "agent/.hidden/c.py"
    assert "it, and 2 more, and so run code in here" in finding.message


def test_an_extension_from_elsewhere_that_others_may_write_is_not_run(agent: Agent, tmp_path: Path) -> None:
    _with_all(agent)
    elsewhere = tmp_path / "acme"
    (elsewhere / "hooks").mkdir(parents=True)
    (elsewhere / "hooks" / "a.py").write_text(LEAVES_A_MARK)
    (elsewhere / "hooks" / "a.py").chmod(0o666)
    for found in (agent.discover(acme=elsewhere), discover_extension("acme", elsewhere, agent.folder)):
        assert [finding.code for finding in found.errors] == ["agent-open-to-others"]
        assert found.hooks == ()
    assert not (elsewhere / "hooks" / "mark").exists()


def test_an_agent_folder_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    found = discover(tmp_path / "nowhere")
    assert [(finding.code, Path(finding.path).name) for finding in found.findings] == [("agent-missing", "agent")]
    assert found.agent == "nowhere"
    with pytest.raises(DiscoveryError, match="agent-missing"):
        found.raise_for_errors()


# ------------------------------------------------------------------------------------------------ the agent


def test_the_agent_is_named_by_its_settings_or_else_by_its_folder(agent: Agent) -> None:
    assert agent.discover().agent == "support-desk"
    agent.write("agent.toml", "# nothing")
    assert agent.discover().agent == "support-desk"
    agent.write("agent.toml", "name = 'desk'")
    assert agent.discover().agent == "desk"


def test_a_relative_folder_is_named_as_well(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.write("hooks/usage.py")
    monkeypatch.chdir(agent.folder)
    found = discover(Path())
    assert found.agent == "support-desk"
    assert found.hooks[0].source.is_absolute()


@pytest.mark.parametrize(
    "settings", ["name = 5", "name = ''", 'name = "a\\nb"', "name = ", "x" * 300, "name = '" + "x" * 257 + "'"]
)
def test_settings_without_a_usable_name_are_a_finding(agent: Agent, settings: str) -> None:
    agent.write("agent.toml", settings)
    found = agent.discover()
    assert codes(found) == [("agent-toml-invalid", "agent/agent.toml")]
    assert found.agent == "support-desk"


def test_an_unknown_setting_is_a_finding_that_names_the_nearest(agent: Agent) -> None:
    """It is an error: with a mistyped name the agent would have another one, and its hooks would see no session."""
    agent.write("agent.toml", "nam = 'desk'\nmodel = 'x'\n['\u202e']\nname = 'inner'")
    found = agent.discover()
    assert codes(found) == [("agent-setting-unknown", "agent/agent.toml")] * 3
    assert [finding.message for finding in found.errors] == [
        f'"{key}" is no setting of an agent; the nearest is "name"' for key in ("model", "nam", "\\u202e")
    ]
    assert found.agent == "support-desk"


def test_settings_that_are_no_text_are_a_finding(agent: Agent) -> None:
    agent.write("agent.toml").write_bytes(b"name = '\xff'")
    assert agent.finding().code == "agent-toml-invalid"


def test_the_agent_is_imported_first_so_that_its_events_are_known(agent: Agent) -> None:
    agent.write(
        "agent.py",
        "import msgspec\nfrom eventlog.events import define_event\n\n"
        "class Refund(msgspec.Struct):\n    amount: int\n\ndefine_event('test-discover.refund', Refund)\n",
    )
    agent.write(
        "hooks/a.py",
        "from eventlog.observe import define_hook\nfrom ..agent import Refund\n"
        "hook = define_hook(events={'test-discover.refund': lambda event, ctx: Refund})\n",
    )
    found = agent.discover()
    assert found.findings == ()
    assert found.agent_module is not None
    assert VOCABULARY["test-discover.refund"] is found.agent_module.Refund
    assert found.hooks[0].definition.events["test-discover.refund"](None, None) is found.agent_module.Refund
    assert agent.discover() == found  # a second runtime of one process


def test_an_agent_that_does_not_import_is_a_finding_and_its_hooks_load(agent: Agent) -> None:
    agent.write("agent.py", "x = 1\nraise RuntimeError('no model')")
    agent.write("hooks/usage.py")
    found = agent.discover()
    assert codes(found) == [("agent-import-failed", "agent/agent.py")]
    assert "no model (agent.py, line 2)" in found.findings[0].message
    assert [hook.name for hook in found.hooks] == ["usage"]
    assert found.agent_module is None


# ------------------------------------------------------------------------------------------------- modules


def test_modules_leave_the_import_path_as_it_is_and_take_no_public_name(agent: Agent) -> None:
    before, path = set(sys.modules), list(sys.path)
    agent.write("hooks/page-on-failure.py", "import sys\nassert __name__ in sys.modules\n" + HOOK)
    assert agent.names() == ["page-on-failure"]
    assert sys.path == path
    assert all(name.startswith("_eventlog_") for name in set(sys.modules) - before)


def test_two_agents_with_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Agent(tmp_path / name).write("hooks/usage.py", f"{HOOK}who = '{name}'\nhook.events['*'].__doc__ = who\n")
    docs = [discover(tmp_path / name).hooks[0].definition.events["*"].__doc__ for name in ("one", "two", "one")]
    assert docs == ["one", "two", "one"]


def test_a_file_is_run_once_until_a_source_of_the_agent_changes(agent: Agent) -> None:
    agent.write("hooks/_shared.py", "answer = 1")
    agent.write("hooks/usage.py", f"from ._shared import answer\n{HOOK}hook.events['*'].__doc__ = str(answer)\n")
    first, second = agent.discover(), agent.discover()
    assert first.hooks[0].definition is second.hooks[0].definition
    agent.write("hooks/_shared.py", "answer = 2")  # of the same size, in the same second
    third = agent.discover()
    assert third.hooks[0].definition.events["*"].__doc__ == "2"


def test_no_byte_code_is_left_in_the_agent(agent: Agent) -> None:
    agent.write("hooks/_shared.py", "answer = 1")
    agent.write("hooks/usage.py", f"from ._shared import answer\n{HOOK}")
    assert agent.names() == ["usage"]
    assert list(agent.folder.rglob("__pycache__")) == []


def test_a_failed_file_is_tried_again(agent: Agent) -> None:
    agent.write("hooks/usage.py", "import os\nif 'TEST_DISCOVER' not in os.environ: raise RuntimeError\n" + HOOK)
    assert agent.finding().code == "hook-import-failed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_DISCOVER", "1")
        assert agent.names() == ["usage"]


def test_what_a_file_prints_goes_to_stderr(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    agent.write("hooks/usage.py", f"print('hello')\n{HOOK}")
    assert agent.names() == ["usage"]
    assert capsys.readouterr() == ("", "hello\n")


def test_r80_a_deleted_file_is_no_hook_any_more(agent: Agent) -> None:
    agent.write("hooks/usage.py")
    memory = agent.write("hooks/memory.py")
    assert agent.names() == ["memory", "usage"]
    memory.unlink()
    assert agent.names() == ["usage"]


# ----------------------------------------------------------------------------------------------- extensions


def test_r76_extensions_mount_their_hooks_after_the_agents_own_by_namespace(agent: Agent) -> None:
    for path in ("extensions/crm", "extensions/billing", "extensions/Zoo", "extensions/_off", "."):
        agent.write(f"{path}/hooks/audit.py")
        agent.write(f"{path}/hooks/a/b.py")
    agent.write("extensions/empty/extension.json", "{}")
    agent.write("extensions/a__note.txt", "no extension")
    names = ["a/b", "audit", "Zoo__a/b", "Zoo__audit", "billing__a/b", "billing__audit", "crm__a/b", "crm__audit"]
    assert agent.names() == names
    assert [hook.extension for hook in agent.discover().hooks] == [None] * 2 + ["Zoo"] * 2 + ["billing"] * 2 + [
        "crm"
    ] * 2


def test_r73_an_extension_cannot_have_two_underscores(agent: Agent) -> None:
    agent.write("extensions/a__b/hooks/c.py")
    assert agent.finding().code == "extension-name-invalid"


def test_a_hook_of_an_extension_imports_the_modules_beside_it(agent: Agent) -> None:
    agent.write("extensions/crm/client.py", "answer = 42")
    agent.write("extensions/crm/hooks/audit.py", f"from ..client import answer\nassert answer == 42\n{HOOK}")
    assert agent.names() == ["crm__audit"]


def test_r77_disable_hook_in_the_agents_folder_removes_one_mounted_hook(agent: Agent) -> None:
    agent.write("extensions/crm/hooks/audit.py", RAISES)  # what is removed is not even imported
    agent.write("extensions/crm/hooks/sync.py")
    agent.write("extensions/billing/hooks/audit.py")
    agent.write("hooks/crm__audit.py", DISABLED)
    assert agent.names() == ["billing__audit", "crm__sync"]


def test_r77_a_mounted_hook_in_a_subfolder_is_removed_by_its_name(agent: Agent) -> None:
    agent.write("extensions/crm/hooks/audit/usage.py")
    agent.write("extensions/crm/hooks/audit/sync.py")
    agent.write("hooks/crm__audit/usage.py", DISABLED.replace("hook =", "default ="))
    assert agent.names() == ["crm__audit/sync"]


def packaged(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / "hooks").mkdir(parents=True, exist_ok=True)
        (folder / "hooks" / f"{name}.py").write_text(HOOK)
    return folder


def test_r76_a_packaged_extension_mounts_its_hooks_from_its_own_folder(agent: Agent, tmp_path: Path) -> None:
    agent.write("hooks/usage.py")
    agent.write("extensions/acme/hooks/zero.py")
    crm = packaged(tmp_path / "site-packages" / "crm", "audit", "sync")
    assert agent.names(crm=crm) == ["usage", "acme__zero", "crm__audit", "crm__sync"]


def test_r77_disable_hook_beside_a_packaged_extension_removes_one_mounted_hook(agent: Agent, tmp_path: Path) -> None:
    crm = packaged(tmp_path / "site-packages" / "crm", "audit", "sync")
    (crm / "hooks" / "audit.py").write_text(RAISES)
    agent.write("extensions/crm/hooks/audit.py", DISABLED)
    agent.write("extensions/crm/hooks/more.py")
    assert agent.names(crm=crm) == ["crm__more", "crm__sync"]


def test_a_hook_beside_a_packaged_extension_cannot_take_a_name_of_it(agent: Agent, tmp_path: Path) -> None:
    crm = packaged(tmp_path / "site-packages" / "crm", "audit")
    agent.write("extensions/crm/hooks/audit.py")
    found = agent.discover(crm=crm)
    assert codes(found) == [("hook-name-clash", str(crm / "hooks" / "audit.py"))]
    assert [hook.source for hook in found.hooks] == [agent.folder / "agent/extensions/crm/hooks/audit.py"]


def test_an_extension_that_is_installed_from_the_agents_folder_is_mounted_once(agent: Agent) -> None:
    audit = agent.write("extensions/crm/hooks/audit.py")
    assert agent.names(crm=audit.parents[1]) == ["crm__audit"]


def test_a_packaged_extension_that_is_gone_mounts_nothing(agent: Agent, tmp_path: Path) -> None:
    assert agent.names(crm=tmp_path / "gone") == []


@pytest.mark.parametrize(
    "path", ["hooks/crm__audit.py", "hooks/usage.py", "extensions/acme/hooks/zero.py", "hooks/crm__sync/audit.py"]
)
def test_r77_disabling_what_is_not_mounted_is_a_warning(agent: Agent, path: str) -> None:
    agent.write("extensions/crm/hooks/sync.py")
    agent.write(path, DISABLED)
    found = agent.discover()
    assert [(finding.severity, finding.code, finding.path) for finding in found.findings] == [
        ("warning", "hook-disable-missing", f"agent/{path}")
    ]
    assert 'the nearest is "crm__sync"' in found.findings[0].message
    assert [hook.name for hook in found.hooks] == ["crm__sync"]


def test_r77_disabling_where_nothing_is_mounted_is_a_warning(agent: Agent) -> None:
    agent.write("hooks/crm__audit.py", DISABLED)
    assert agent.finding().message == 'no hook "crm__audit" is mounted; no extension has hooks'


def test_an_own_file_under_a_mounted_name_that_disables_nothing_is_refused(agent: Agent) -> None:
    agent.write("extensions/crm/hooks/audit.py")
    agent.write("hooks/crm__audit.py")
    found = agent.discover()
    assert codes(found) == [("hook-name-invalid", "agent/hooks/crm__audit.py")]
    assert [hook.name for hook in found.hooks] == ["crm__audit"]
    assert found.hooks[0].extension == "crm"


def test_no_other_file_is_taken_for_a_hook(agent: Agent) -> None:
    """R63: `.cursor/hooks.json`, and whatever stands beside the folder of hooks, is not read."""
    (agent.folder / ".cursor").mkdir()
    (agent.folder / ".cursor/hooks.json").write_text("{")
    agent.write("tools/usage.py", RAISES)
    agent.write("usage.py", RAISES)
    assert agent.names() == []
