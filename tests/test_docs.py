"""The documents say what works: their code is taken out of them and run."""

from __future__ import annotations

import asyncio
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eventlog import EventLog, Runtime, validate_manifest
from eventlog.host.kv import Kv
from eventlog.observe import discover
from eventlog.projections import FoldLimits
from tests.cli_kit import good, run
from tests.log_kit import crash_copy

CHECKOUT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a document in one language, in their order."""
    text = (CHECKOUT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_readme_embeds_the_log_as_the_example_does() -> None:
    example = (CHECKOUT / "examples/embed.py").read_text()
    code = example.split('"""', 2)[2].strip()
    assert blocks("README.md", "python")[0].strip() == code


def test_r65_the_hook_of_the_guide_is_found_without_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "agent/hooks/audit/usage.py"
    file.parent.mkdir(parents=True)
    file.write_text(blocks("docs/hooks.md", "python")[0])
    found = discover(tmp_path)
    assert found.findings == ()
    assert [hook.name for hook in found.hooks] == ["audit/usage"]


async def test_r18_the_extension_of_the_guide_is_granted_and_delivered_a_turn(tmp_path: Path) -> None:
    folder = tmp_path / "agent/extensions/points"
    folder.mkdir(parents=True)
    (folder / "extension.json").write_text(blocks("docs/extensions.md", "json")[0])
    (folder / "main.py").write_text(blocks("docs/extensions.md", "python")[0])
    assert validate_manifest(folder) == []
    async with (
        EventLog(tmp_path / "agent.db") as log,
        Runtime(log, agent_dir=tmp_path, grants={"points": ["default"]}) as runtime,
    ):
        session = await log.start_session("s1")
        turn = await session.append("turn.completed", {"result": "well done"}, turn_id="t1")
        await runtime.settled()
        assert await Kv(log.store, "extension:acme.points").list() == [f"points/{turn.id}"]


async def test_the_policy_of_the_guide_to_extensions_buries_after_three_calls(tmp_path: Path) -> None:
    folder = tmp_path / "agent/extensions/points"
    folder.mkdir(parents=True)
    code, _, quick = blocks("docs/extensions.md", "python")
    (folder / "extension.json").write_text(blocks("docs/extensions.md", "json")[0])
    (folder / "main.py").write_text(
        code.replace("turn = await", 'raise ValueError("no points today")\n        turn = await')
    )
    module = ModuleType("guide_policy")
    exec(compile(quick, module.__name__, "exec"), module.__dict__)  # noqa: S102 (our own text)
    letter = await module.serve(tmp_path)
    assert (letter.extension, letter.reason, letter.attempts) == ("points", "exhausted", 3)
    assert letter.last_error == "ValueError: no points today"


async def test_the_server_of_the_guide_to_recovery_asks_about_a_call_once(tmp_path: Path) -> None:
    call = {"callId": "c1", "toolName": "pay", "args": {"eur": 5}}
    async with EventLog(tmp_path / "agent.db") as log:
        session = await log.start_session("s1")
        await session.append("turn.started", {}, turn_id="t1")
        await session.append("actions.requested", {"calls": [call]}, turn_id="t1")
        path = crash_copy(log.path, tmp_path / "killed")
    guide, asked = dict[str, Any](), list[str]()
    exec(blocks("docs/recovery.md", "python")[0], guide)  # noqa: S102 (our own text)
    for _ in range(2):
        async with EventLog(path) as log, Runtime(log) as runtime:
            await guide["ask_again"](log, runtime)
            asked = [event.data.requests[0].prompt async for event in log.read(types=["input.requested"])]
    assert asked == ["pay was underway when the server stopped. Run it with {'eur': 5}?"]


@pytest.mark.parametrize(("block", "expected"), [(0, {"words": 4}), (1, {"search": 1})], ids=["fold", "projection"])
async def test_r97_the_folds_of_the_guide_come_to_what_they_say(tmp_path: Path, block: int, expected: object) -> None:
    module = ModuleType(f"guide_{block}")
    exec(compile(blocks("docs/projections.md", "python")[block], module.__name__, "exec"), module.__dict__)  # noqa: S102
    async with EventLog(tmp_path / "agent.db") as log:
        assert await module.main(log) == expected


def test_every_limit_of_the_guide_is_the_default() -> None:
    text = (CHECKOUT / "docs/projections.md").read_text()
    told = {
        name: number.replace(",", "") for name, number in re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", text, re.MULTILINE)
    }
    assert told == {name: str(value) for name, value in asdict(FoldLimits()).items()}


DOCUMENTS = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("*/README.md")]


def anchors(document: Path) -> set[str]:
    """What links can lead to inside of a document: its headings, as viewers of Markdown name them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_the_documents_leads_to_a_file_or_to_a_heading() -> None:
    links = [
        (document, target, anchor)
        for document in DOCUMENTS
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", document.read_text())
    ]
    assert len(links) > 50
    broken = [
        f"{document.name}: {target}#{anchor}"
        for document, target, anchor in links
        for file in [document.parent / target if target else document]
        if not file.is_file() or (anchor and anchor not in anchors(file))
    ]
    assert broken == []


def test_r78_the_agent_of_the_guide_reads_what_the_memory_hook_of_init_has_kept(tmp_path: Path) -> None:
    assert run("init", tmp_path / "shop").code == 0
    folder = tmp_path / "shop"
    (code,) = [block for block in blocks("docs/agents.md", "python") if "read_memory" in block]
    (folder / "agent/agent.py").write_text(code)
    replies = [run("run", "--dir", folder, "-m", message).stdout for message in ("one", "two")]
    assert replies == ["You have asked me before: []\n", "You have asked me before: ['one']\n"]
    assert "memory/" in good("kv", "--dir", folder).stdout
    (folder / "agent/hooks/memory.py").unlink()
    assert [run("run", "--dir", folder, "-m", "three").stdout for _ in range(2)][1].count("three") == 0


async def test_r133_r134_the_eval_of_the_guide_passes_with_the_agent_of_the_guide(tmp_path: Path) -> None:
    agent, evaluation = (
        re.search(rf"<!-- example: {path} -->\n```python\n(.*?)```", text, re.DOTALL)
        for text in [(CHECKOUT / "docs/agents.md").read_text()]
        for path in ("agent/agent.py", "evals/answer_eval.py")
    )
    assert agent is not None
    assert evaluation is not None
    for path, found in (("agent/agent.py", agent), ("evals/answer_eval.py", evaluation)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(found[1])
    module = runpy.run_path(str(tmp_path / "evals/answer_eval.py"))
    await asyncio.to_thread(module["test_it_knows_the_tides"])
