"""The reference lists what is public, the glossary what the words mean, and the side bar every page."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import errors
from eventlog.events import VOCABULARY
from tests.log_kit import CHECKOUT

PAGES = sorted((CHECKOUT / "docs/reference").glob("*.md"))
DIRECTIVE = re.compile(r"^\.\. auto(?:class|data|exception|function):: ([\w.]+)(?:\(\))?((?:\n   .*)*)", re.MULTILINE)
ENTRIES: list[tuple[str, str]] = [entry for page in PAGES for entry in DIRECTIVE.findall(page.read_text())]
"""The full names of the reference, each with the options below it."""

NAMES = {name.rpartition(".")[2] for name, _ in ENTRIES}

MODULES = ["eventlog.testing", "eventlog.sse", "eventlog.adapters.openai_agents"]

BESIDE = {
    "eventlog.agents": {"Turned", "run_turn"},
    "eventlog.events": {"ActionCall", "Cost", "Forgotten", "InputRequest", "InputResolution", "TokenUsage"}
    | {"TURN_INTERRUPTED"},
    "eventlog.host": {"Artifacts", "Files", "Host", "KeyValue", "Otel", "Reminder", "ReminderLimits", "Reminders"},
    "eventlog.inspection": {"DeadLetter", "Recovered"},
    "eventlog.observe": {"ChannelContext", "ObserveLimits", "otel_hook"},
    "eventlog.projections": {"FoldLimits", "rebuild"},
    "eventlog.testing.plugin": {"crashed", "event_log", "manual_clock", "recording"},
    "eventlog.durable": {"DeadLetters", "HookRegistry", "JobReader", "RunningExtensions", "Signal", "Storage"}
    | {"TurnReader"},
}
"""What is listed beside the names of `__all__`: what these are made of and what they return, and what guides import."""


def all_of(module: str) -> set[str]:
    """The `__all__` of a module, which need not be importable: an extra may be missing."""
    if module == "eventlog":
        return set(eventlog.__all__)
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                return set(ast.literal_eval(value))
    raise AssertionError(f"{module} has no __all__")


def payloads() -> set[str]:
    return {struct.__name__ for struct in VOCABULARY.values() if struct.__module__ == "eventlog.vocabulary"}


def kinds_of_error() -> set[str]:
    return {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__ and not name.startswith("_")
    }


@pytest.mark.parametrize("module", ["eventlog", *MODULES])
def test_every_name_of_a_public_module_is_in_the_reference(module: str) -> None:
    assert all_of(module) - NAMES == set()


def test_the_reference_lists_what_is_public_and_nothing_else_and_each_once() -> None:
    public = set(eventlog.__all__).union(*(all_of(module) for module in MODULES), *BESIDE.values())
    assert sorted(NAMES ^ (public | payloads() | kinds_of_error())) == []
    assert len(ENTRIES) == len(dict(ENTRIES))


@pytest.mark.parametrize(("name", "options"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_a_listed_name_and_its_listed_members_are_there(name: str, options: str) -> None:
    if name.startswith("eventlog.sse"):
        pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")
    module, _, last = name.rpartition(".")
    thing: Any = getattr(import_module(module), last)
    members = re.search(r":members:([^:]*)", options)
    told = [each.strip() for each in (members[1] if members else "").split(",") if each.strip()]
    assert [each for each in told if not hasattr(thing, each)] == []


# ------------------------------------------------------------------------------------------------------------ side bar


def navigation() -> list[str]:
    """The pages of the side bar, read from its configuration without the generator that it imports."""
    for node in ast.parse((CHECKOUT / "docs/conf.py").read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name("NAVIGATION")], value=value):
                return [page for pages in ast.literal_eval(value).values() for page in pages]
    raise AssertionError("docs/conf.py has no NAVIGATION")


def test_every_document_is_in_the_side_bar_once() -> None:
    documents = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("[!.]*/README.md")]
    pages = sorted(str(each.relative_to(CHECKOUT).with_suffix("")) for each in documents)
    assert sorted(["README", *navigation()]) == pages


# ------------------------------------------------------------------------------------------------------------- glossary

ROW = re.compile(r"^\| ([a-z ]+) \| (.+) \| `(eventlog/.+)` \|$", re.MULTILINE)
GLOSSARY = ROW.findall((CHECKOUT / "docs/glossary.md").read_text())
NOUNS = ["event", "session", "index", "position", "cursor", "claim", "delivery", "attempt", "outcome", "lane"]
NOUNS += ["dead letter", "gap", "owner", "era", "extension", "projection", "runtime", "turn"]
VERBS = ["append", "read", "tail", "dispatch", "settle", "bury", "retry", "discard", "fold"]
AVOIDED = ["publish", "emit", "consume", "process"]


def test_the_glossary_has_the_words_of_the_house_each_once_and_in_order() -> None:
    words = [word for word, _, _ in GLOSSARY]
    assert set(NOUNS + VERBS) <= set(words)
    assert len(words) == len(set(words))
    nouns = words[: words.index("append")]
    assert nouns == sorted(nouns)


@pytest.mark.parametrize(("word", "owner"), [(word, owner) for word, _, owner in GLOSSARY])
def test_the_owner_of_a_word_uses_it(word: str, owner: str) -> None:
    stem = word.removesuffix("y") if word in ("bury", "delivery", "retry") else word
    assert re.search(rf"(?:\b|_){stem}", (CHECKOUT / owner).read_text(), re.IGNORECASE), f"{owner} knows no {word}"


def test_nothing_public_is_named_by_a_verb_that_we_do_not_use() -> None:
    members = {each for name in eventlog.__all__ for each in dir(getattr(eventlog, name))}
    assert [name for name in sorted(NAMES | members) if name.partition("_")[0] in AVOIDED] == []
