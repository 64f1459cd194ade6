"""Pins the public names: what is added or lost shows here first."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import eventlog

LOG = {"EventLog", "Session", "SessionInfo", "Event", "NewEvent", "SessionEvent", "SessionEventType", "define_event"}
READ = {"Job", "JobStatus", "TurnSnapshot", "Projection", "Usage"}
OBSERVE = {
    *("define_hook", "disable_hook", "memory_hook", "define_channel", "define_ab"),
    *("HookDefinition", "HookContext"),
}
DURABLE = {
    *("CONTRACT_VERSION", "capabilities", "validate_manifest", "Disposable", "ExtensionContext", "HookCallContext"),
    *("HookEnvelope", "TurnCompletedEnvelope", "JobCompletedEnvelope", "TurnReference"),
    *("Reject", "RetryAfter", "DeliveryPolicy"),
}
SERVING = {"Runtime"}
ERRORS = {
    *("EventLogError", "SessionNotFound", "SessionExists", "IndexConflict", "KeyConflict", "InvalidEvent"),
    *("CorruptEvent", "LogInUse", "LogClosed", "LogShortened", "NotALog", "OutcomeUnknown", "StorageFull"),
    *("ForkedProcess", "CursorExpired", "DiscoveryError", "ManifestError", "ActivationError", "VersionUnavailable"),
}
PUBLIC = LOG | READ | OBSERVE | DURABLE | SERVING | ERRORS

# A string, and types without a class of their own: nothing that a docstring could be on.
WITHOUT_DOCSTRING = {"CONTRACT_VERSION", "SessionEventType", "HookEnvelope"}


# Modules that are imported by their own names, and what they offer.
MODULES = {
    "eventlog.adapters.openai_agents": {
        *("EventLogSession", "ITEM_ADDED", "ITEM_POPPED", "ITEMS_CLEARED", "ItemAdded", "ItemPopped", "ItemsCleared"),
    },
    "eventlog.sse": {"stream", "Reset", "HEARTBEAT_S", "SEND_TIMEOUT_S", "RECONNECT_S"},
    "eventlog.testing": {"ManualClock", "Recording", "Trajectory", "crashed", "run_eval_turn", "settled"},
}


def test_r96_the_public_names_are_these() -> None:
    assert set(eventlog.__all__) == PUBLIC
    assert len(eventlog.__all__) == len(PUBLIC)


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in eventlog.__all__ if not hasattr(eventlog, name)] == []


def test_type_checkers_are_told_of_the_same_names_in_the_same_modules() -> None:
    stub = ast.parse(Path(eventlog.__file__).with_suffix(".pyi").read_text())
    told = {
        f"{node.module}".removeprefix("eventlog."): [each.name for each in node.names]
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
    }
    assert told == vars(eventlog)["_NAMES"]
    (listed,) = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(listed) == eventlog.__all__


def imported_by(*words: str) -> set[str]:
    """The modules that a new process has at its end."""
    told = "import sys; sys.stderr.write(' '.join(sys.modules))"
    code = f"import atexit; atexit.register(lambda: exec({told!r})); {words[0]}"
    done = subprocess.run([sys.executable, "-c", code, *words[1:]], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_name_is_imported_when_it_is_asked_for_and_no_sooner() -> None:
    assert {each for each in imported_by("import eventlog") if each.startswith("eventlog.")} == set()
    for_reading = imported_by("from eventlog import EventLog")
    assert "eventlog.log" in for_reading
    assert {"eventlog.runtime", "eventlog.observe", "eventlog.durable"} & for_reading == set()
    for_help = imported_by("import eventlog.cli; eventlog.cli.main()", "--help")
    assert "eventlog.cli.output" in for_help
    assert {"asyncio", "aiosqlite", "rich", "eventlog.log"} & for_help == set()


def test_a_module_of_the_package_needs_no_import_of_its_own() -> None:
    assert "eventlog.events" in imported_by("import eventlog; eventlog.events.TurnCompleted")
    with pytest.raises(AttributeError, match="module 'eventlog' has no attribute 'nothing'"):
        _ = eventlog.nothing  # type: ignore[attr-defined]


def test_all_names_are_there_for_whoever_looks_around_or_takes_all() -> None:
    assert set(eventlog.__all__) <= set(dir(eventlog))
    taken: dict[str, object] = {}
    exec("from eventlog import *", taken)  # noqa: S102 (our own text)
    assert set(eventlog.__all__) <= set(taken)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_offers_these_names_and_says_what_each_is(name: str) -> None:
    if name == "eventlog.sse":
        pytest.importorskip("sse_starlette", reason="needs the extra: pip install -e '.[sse]'")
    module = import_module(name)
    assert set(module.__all__) == MODULES[name]
    things = {each: getattr(module, each) for each in module.__all__ if callable(getattr(module, each))}
    assert [where for each, thing in things.items() for where in silent(each, thing)] == []


def test_the_version_is_the_one_in_pyproject() -> None:
    assert eventlog.__version__ == "0.1.0"


def test_a_session_event_is_an_event() -> None:
    assert eventlog.SessionEvent is eventlog.Event


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_of_ours_is_an_event_log_error(name: str) -> None:
    assert issubclass(getattr(eventlog, name), eventlog.EventLogError)


@pytest.mark.parametrize("name", sorted(PUBLIC - WITHOUT_DOCSTRING))
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert silent(name, getattr(eventlog, name)) == []


def silent(name: str, thing: object) -> list[str]:
    """What has no docstring: the thing itself or, of a class, a public method or property of its own."""
    things = {name: thing}
    if isinstance(thing, type):
        things |= {f"{name}.{member}": value for member, value in vars(thing).items() if is_public_code(member, value)}
    return [where for where, each in things.items() if not written_docstring(each)]


def is_public_code(name: str, value: object) -> bool:
    return not name.startswith("_") and isinstance(value, FunctionType | property | classmethod | staticmethod)


def written_docstring(thing: object) -> str | None:
    """The docstring that a person wrote, not the signature that ``dataclass`` puts in its place."""
    if not isinstance(thing, type):
        return inspect.getdoc(thing)
    text = thing.__doc__
    generated = dataclasses.is_dataclass(thing) and (text or "").startswith(f"{thing.__name__}(")
    return None if generated else text


def test_a_name_without_a_docstring_is_noticed() -> None:
    @dataclasses.dataclass
    class Silent:
        value: int = 0

        def method(self) -> None: ...

        @property
        def number(self) -> int:
            """It is a number."""
            return self.value

    class Speaking:
        """It speaks."""

    assert silent("Silent", Silent) == ["Silent", "Silent.method"]
    assert silent("Speaking", Speaking) == []
