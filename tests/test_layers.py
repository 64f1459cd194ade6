"""Holds the house: imports go down, SQLite stays in the store, and nobody reaches past a public name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import eventlog

PACKAGE = Path(__file__).parents[1] / "eventlog"

# From the bottom to the top. A layer is a row of rooms, a room is one or more files or folders right under eventlog/:
# a module imports from lower layers and from its own room.
LAYERS = (
    ("errors clock vocabulary encoding events logs messages",),
    ("store",),
    ("log known session following folding usage history serving upkeep errands",),  # the front door
    ("observe", "durable", "host", "projections", "recovery"),
    ("inspection", "runtime", "agents", "replay", "settings"),
    ("control",),
    ("__init__",),  # the public names
    ("testing", "sse", "adapters"),  # users of those names like any other
    ("bench",),  # holds the package against SQLite itself, so it uses both
    ("cli",),
    ("__main__",),
)
ROOM_OF = {part: room for rooms in LAYERS for room in rooms for part in room.split()}
LAYER_OF = {part: layer for layer, rooms in enumerate(LAYERS) for room in rooms for part in room.split()}

# Rooms of one layer that may be looked into. Observe and durable share the log and nothing else.
NEIGHBOURS = {("observe", "host")}

# Rooms that use the public names alone, as a program outside of the house does.
USERS = {"cli", "sse", "adapters"}

# What they may import from.
PUBLIC_MODULES = {
    "eventlog",
    "eventlog.agents",
    "eventlog.bench",
    "eventlog.control",
    "eventlog.durable",
    "eventlog.errors",
    "eventlog.events",
    "eventlog.history",
    "eventlog.inspection",
    "eventlog.observe",
    "eventlog.projections",
    "eventlog.replay",
    "eventlog.settings",
    "eventlog.testing",
    "eventlog.upkeep",
}

# Imports inside of functions hide cycles, so each needs its reason: (importing module, imported module) -> reason.
LATE_IMPORTS: dict[tuple[str, str], str] = {}

# Where SQLite is known: the store, and what measures how much the store adds to it.
KNOW_SQLITE = {"store", "bench"}

SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|PRAGMA|BEGIN|COMMIT|WITH)\s")


class Module(NamedTuple):
    """One module of the package, as text."""

    name: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The file or folder right under ``eventlog/`` that it is or belongs to."""
        return part_of(self.name)


class Import(NamedTuple):
    """One import of one module; ``names`` is what it takes out of it."""

    target: str
    names: tuple[str, ...]
    line: int
    late: bool  # inside of a function
    for_types: bool  # under ``if TYPE_CHECKING``


def part_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def module(name: str, source: str) -> Module:
    return Module(name, ast.parse(source))


@cache
def the_package() -> list[Module]:
    def name(path: Path) -> str:
        return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")

    return [module(name(path), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


def imports(of: Module) -> Iterator[Import]:
    late = inside_of(of.tree, lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for_types = inside_of(of.tree, lambda node: isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    for node in ast.walk(of.tree):
        where = (node in late, node in for_types)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, *where)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{of.name}:{node.lineno} is a relative import, which ruff refuses"
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.lineno, *where)


def inside_of(tree: ast.Module, chosen: Callable[[ast.AST], bool]) -> set[ast.AST]:
    return {inner for node in ast.walk(tree) if chosen(node) for inner in ast.walk(node)}


def own_imports(of: Module) -> Iterator[Import]:
    """Its imports of this package; ``from eventlog import log`` is one of ``eventlog.log``."""
    for found in imports(of):
        if found.target == "eventlog" and found.names:
            submodules = [name for name in found.names if name in LAYER_OF]
            for name in submodules:
                yield found._replace(target=f"eventlog.{name}", names=())
            others = tuple(name for name in found.names if name not in submodules)
            if others:
                yield found._replace(names=others)
        elif found.target.split(".")[0] == "eventlog":
            yield found


# ------------------------------------------------------------------------------------------------------- the rules


def modules_without_a_place(of: Module) -> Iterator[str]:
    if of.part not in LAYER_OF:
        yield f"{of.name} has no place in the house: give eventlog/{of.part} a layer"


def imports_that_go_up(of: Module) -> Iterator[str]:
    here = LAYER_OF.get(of.part, len(LAYERS))
    for found in own_imports(of):
        if LAYER_OF.get(part_of(found.target), len(LAYERS)) > here:
            yield f"{of.name}:{found.line} imports {found.target}, which is above it"


def imports_that_go_sideways(of: Module) -> Iterator[str]:
    for found in own_imports(of):
        target = part_of(found.target)
        here, there = ROOM_OF.get(of.part), ROOM_OF.get(target)
        same_layer = LAYER_OF.get(of.part) == LAYER_OF.get(target)
        if same_layer and here != there and (here, there) not in NEIGHBOURS:
            yield f"{of.name}:{found.line} imports {found.target}: {here} and {there} do not know each other"


def sqlite_outside_of_the_store(of: Module) -> Iterator[str]:
    for found in imports(of):
        if found.target.split(".")[0] in {"sqlite3", "_sqlite3", "aiosqlite"} and of.part not in KNOW_SQLITE:
            yield f"{of.name}:{found.line} imports {found.target}, which only store/ knows"


def sql_outside_of_the_store(of: Module) -> Iterator[str]:
    if of.part in KNOW_SQLITE:
        return
    for node in ast.walk(of.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
            yield f"{of.name}:{node.lineno} has SQL, which belongs in store/"


def late_imports(of: Module) -> Iterator[str]:
    for found in own_imports(of):
        if found.late and (of.name, found.target) not in LATE_IMPORTS:
            yield f"{of.name}:{found.line} imports {found.target} inside of a function: LATE_IMPORTS has no reason"


def private_names_in_what_uses_the_public_ones(of: Module) -> Iterator[str]:
    if of.part not in USERS:
        return
    for found in own_imports(of):
        if part_of(found.target) == of.part:
            continue
        if found.target not in PUBLIC_MODULES:
            yield f"{of.name}:{found.line} imports {found.target}, which is not public"
        for name in found.names:
            hidden = name not in eventlog.__all__ if found.target == "eventlog" else name.startswith("_")
            if hidden:
                yield f"{of.name}:{found.line} imports {name} from {found.target}, which is not a public name of it"


def adapters_that_know_each_other(of: Module) -> Iterator[str]:
    for found in own_imports(of):
        if of.part == part_of(found.target) == "adapters":
            yield f"{of.name}:{found.line} imports {found.target}: each adapter stands alone, with its own extra"


EACH_MODULE: tuple[Callable[[Module], Iterable[str]], ...] = (
    modules_without_a_place,
    imports_that_go_up,
    imports_that_go_sideways,
    sqlite_outside_of_the_store,
    sql_outside_of_the_store,
    late_imports,
    private_names_in_what_uses_the_public_ones,
    adapters_that_know_each_other,
)


def cycles(modules: list[Module]) -> list[str]:
    """Import cycles, those by imports inside of functions included; what only type checkers import makes none."""
    known = {each.name for each in modules}
    edges = {each.name: sorted(modules_run_by(each, known) - {each.name}) for each in modules}
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for target in edges[name]:
                visit(target, [*path, name])
            done.add(name)

    for name in edges:
        visit(name, [])
    return found


def modules_run_by(of: Module, known: set[str]) -> set[str]:
    """``from a.b import c`` runs ``a.b.c`` where that is a module, and ``a.b`` where it is not."""
    ran: set[str] = set()
    for found in imports(of):
        if not found.for_types:
            names = {f"{found.target}.{name}" for name in found.names} or {found.target}
            ran |= {name if name in known else found.target for name in names}
    return ran & known


# ------------------------------------------------------------------------------------------- the house holds them


@pytest.mark.parametrize("rule", EACH_MODULE, ids=lambda rule: str(rule.__name__))
def test_the_package_keeps(rule: Callable[[Module], Iterable[str]]) -> None:
    assert [complaint for each in the_package() for complaint in rule(each)] == []


def test_the_package_has_no_import_cycles() -> None:
    assert cycles(the_package()) == []


def test_every_late_import_that_has_a_reason_is_still_there() -> None:
    seen = {(each.name, found.target) for each in the_package() for found in own_imports(each) if found.late}
    assert set(LATE_IMPORTS) - seen == set()


# --------------------------------------------------------------------------------------- and the rules can be broken

BROKEN = [
    (modules_without_a_place, "eventlog.utils", ""),
    (imports_that_go_up, "eventlog.events", "from eventlog.store import database"),
    (imports_that_go_up, "eventlog.store.events", "import eventlog.log"),
    (imports_that_go_up, "eventlog.log", "from eventlog import runtime"),
    (imports_that_go_up, "eventlog.log", "from eventlog.observe.hook import define_hook"),
    (imports_that_go_up, "eventlog.durable.worker", "from eventlog import EventLog"),
    (imports_that_go_up, "eventlog.runtime", "from eventlog.control import serve"),
    (imports_that_go_up, "eventlog.control", "from eventlog.cli import main"),
    (imports_that_go_up, "eventlog", "from eventlog.testing import ManualClock"),
    (imports_that_go_up, "eventlog.testing", "from eventlog.cli import main"),
    (imports_that_go_up, "eventlog.testing", "from eventlog.bench import measure"),
    (imports_that_go_up, "eventlog.log", "if TYPE_CHECKING:\n    from eventlog.runtime import Runtime"),
    (imports_that_go_sideways, "eventlog.observe.dispatcher", "from eventlog.durable.policy import judge"),
    (imports_that_go_sideways, "eventlog.durable.worker", "import eventlog.observe.hook"),
    (imports_that_go_sideways, "eventlog.host.kv", "from eventlog.observe.context import HookContext"),
    (sqlite_outside_of_the_store, "eventlog.log", "import sqlite3"),
    (sqlite_outside_of_the_store, "eventlog.host.kv", "def put():\n    from aiosqlite.core import Connection"),
    (sql_outside_of_the_store, "eventlog.host.kv", "statement = 'SELECT value FROM kv'"),
    (sql_outside_of_the_store, "eventlog.log", "statement = '''\n    DELETE FROM log\n'''"),
    (late_imports, "eventlog.runtime", "def start():\n    from eventlog.host import Host"),
    (late_imports, "eventlog.runtime", "class A:\n    async def b(self):\n        import eventlog.log"),
    (private_names_in_what_uses_the_public_ones, "eventlog.cli.show", "from eventlog.store.database import Store"),
    (private_names_in_what_uses_the_public_ones, "eventlog.cli.show", "import eventlog.runtime"),
    (private_names_in_what_uses_the_public_ones, "eventlog.cli.show", "from eventlog import _secret"),
    (private_names_in_what_uses_the_public_ones, "eventlog.cli.show", "from eventlog.events import _decode"),
    (private_names_in_what_uses_the_public_ones, "eventlog.sse", "from eventlog.following import pages"),
    (private_names_in_what_uses_the_public_ones, "eventlog.adapters.any", "from eventlog.store import store"),
    (imports_that_go_sideways, "eventlog.adapters.any", "from eventlog.sse import stream"),
    (adapters_that_know_each_other, "eventlog.adapters.any", "from eventlog.adapters.other import Memory"),
]


@pytest.mark.parametrize(("rule", "name", "source"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_module_that_breaks(rule: Callable[[Module], Iterable[str]], name: str, source: str) -> None:
    assert len(list(rule(module(name, source)))) == 1


def test_every_rule_has_a_module_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(EACH_MODULE)


ALLOWED = [
    ("eventlog.observe.context", "import json\nfrom eventlog.host import Host\nimport eventlog.observe.hook"),
    ("eventlog.events", "from eventlog.errors import InvalidEvent\nfrom eventlog.clock import Clock"),
    ("eventlog.store.database", "import sqlite3\nfrom aiosqlite import Connection\nquery = 'SELECT 1 FROM log'"),
    ("eventlog.testing", "from eventlog import EventLog, runtime"),
    ("eventlog.adapters.any", "from eventlog import Session\nfrom framework import Memory"),
    ("eventlog.cli.show", "from eventlog import EventLog\nfrom eventlog.cli import output\nimport eventlog.events"),
    ("eventlog.cli.tail", "description = 'Select a session'"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_a_module_that_breaks_nothing(name: str, source: str) -> None:
    assert [complaint for rule in EACH_MODULE for complaint in rule(module(name, source))] == []


def test_a_cycle_is_found_however_it_is_hidden() -> None:
    one = module("eventlog.durable.worker", "from eventlog.durable import extension")
    two = module("eventlog.durable.extension", "def f():\n    from eventlog.durable.policy import judge")
    three = module("eventlog.durable.policy", "import eventlog.durable.worker")
    types = module("eventlog.durable.policy", "if TYPE_CHECKING:\n    import eventlog.durable.worker")
    parent = module("eventlog.durable", "")
    assert cycles([parent, one, two, types]) == []
    assert cycles([parent, one, two, three]) == [
        "eventlog.durable.worker -> eventlog.durable.extension -> eventlog.durable.policy -> eventlog.durable.worker"
    ]
