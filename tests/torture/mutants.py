"""Breaks the code in small ways, one at a time, and sees whether anything turns red: what survives is not tested.

    python -m tests.torture.mutants MODULE ... [--sample N] [--seed N]

The checkout is copied; nothing here is changed. Each mutant is told with its line, and the survivors at the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.log_kit import CHECKOUT

TIMEOUT_S = 150
QUICK = [sys.executable, "-m", "tests.torture", "schedules", "cancel", "--count", "60"]
TESTS: dict[str, list[str]] = {
    "store/writer": ["writer", "riding", "drafting", "errors_of_the_disk", "opening", "standing", "head_file", "truth"],
    "store/drafting": ["drafting", "writer", "log"],
    "store/attempts": ["deliveries", "delivery_boundaries", "worker"],
    "store/deliveries": ["deliveries", "riding", "forget", "dead_letters", "delivery_boundaries", "worker"],
    "store/cursors": ["cursors", "dispatcher"],
    "store/unfinished": ["recovery", "check"],
    "observe/dispatcher": ["dispatcher", "joining", "cursors", "cancelled_dispatch"],
    "observe/lanes": ["dispatcher", "joining", "cursors", "falling_behind"],
    "observe/inbox": ["dispatcher", "joining", "cursors", "falling_behind"],
    "durable/worker": ["worker", "riding", "deliveries", "delivery_boundaries", "plain_handlers", "dead_letters"],
    "recovery": ["recovery", "cli_recover"],
    "store/events": ["events", "riding", "log", "drafting", "history", "check"],
    "store/index": ["index", "check"],
    "store/owner": ["owner", "head_file"],
}
_PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
)
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}

Change = tuple[ast.stmt | ast.expr, str, Callable[[], object]]
"""The node that is changed, what is changed, and what does it."""


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    line: int
    what: str
    source: str


def mutants(module: str) -> Iterator[Mutant]:
    """All that can be made of a module."""
    text = (CHECKOUT / "eventlog" / f"{module}.py").read_text()
    places = sum(1 for _ in _changes(ast.parse(text)))
    for place in range(places):
        tree = ast.parse(text)
        for number, (node, what, change) in enumerate(_changes(tree)):
            if number == place:
                change()
                yield Mutant(module, node.lineno, what, ast.unparse(ast.fix_missing_locations(tree)))
                break


def _changes(tree: ast.Module) -> Iterator[Change]:
    for parent in ast.walk(tree):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(parent):
                yield from _of_expression(node)
                yield from _of_block(node)


def _of_expression(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            yield _changed(node, "ops", [_OPERATORS[type(op)]()], op)
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield _changed(node, "op", _OPERATORS[type(op)](), op)
        case ast.Constant(value=bool() as value):
            yield node, f"{value} is {not value}", partial(setattr, node, "value", not value)
        case ast.Constant(value=int() as value):
            yield node, f"{value} is {value + 1}", partial(setattr, node, "value", value + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            is_true = ast.UnaryOp(ast.Not(), operand)
            yield node, "not is lost", partial(setattr, node, "operand", is_true)


def _changed(node: ast.stmt | ast.expr, field: str, value: object, op: ast.AST) -> Change:
    other = value[0] if isinstance(value, list) else value
    return node, f"{type(op).__name__} is {type(other).__name__}", partial(setattr, node, field, value)


def _of_block(node: ast.AST) -> Iterator[Change]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        for place, statement in enumerate(block if isinstance(block, list) else []):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if isinstance(statement, ast.Expr | ast.AugAssign | ast.Raise) and not is_text:
                assert isinstance(block, list)
                without = f"without {ast.unparse(statement)[:60]}"
                yield statement, without, partial(block.__setitem__, place, ast.Pass())


def is_killed(mutant: Mutant, copy: Path) -> bool:
    """Whether something turns red with it."""
    path = copy / "eventlog" / f"{mutant.module}.py"
    original = path.read_text()
    path.write_text(mutant.source)
    files = [f"tests/test_{name}.py" for name in TESTS[mutant.module]]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "--timeout=20", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for command in (QUICK, pytest):
            try:
                done = subprocess.run(
                    command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return True
            if done.returncode:
                return True
        return False
    finally:
        path.write_text(original)


def main(arguments: list[str]) -> int:
    """Run a sample; 1 if fewer than 85 of 100 are killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.mutants", description=__doc__)
    parser.add_argument("modules", nargs="+", choices=TESTS, metavar="MODULE", help=", ".join(TESTS))
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    everything = [mutant for module in asked.modules for mutant in mutants(module)]
    sample = Random(asked.seed).sample(everything, min(asked.sample, len(everything)))
    survivors: list[Mutant] = []
    with TemporaryDirectory(prefix="eventlog-mutants-") as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv*", ".mypy_cache", ".ruff_cache", "__pycache__", ".hypothesis")
        shutil.copytree(CHECKOUT, copy, ignore=ignored)
        for mutant in sample:
            killed = is_killed(mutant, copy)
            survivors += [] if killed else [mutant]
            print("killed  " if killed else "SURVIVES", f"{mutant.module}:{mutant.line}", mutant.what, flush=True)
    killed_percent = 100 * (len(sample) - len(survivors)) / len(sample)
    print(f"\n{len(sample)} of {len(everything)} mutants, {killed_percent:.0f} % killed; survivors:")
    for mutant in survivors:
        print(f"  {mutant.module}:{mutant.line} {mutant.what}")
    return 0 if killed_percent >= 85 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
