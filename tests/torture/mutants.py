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
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.log_kit import CHECKOUT

TIMEOUT_S = 150
QUICK = [sys.executable, "-m", "tests.torture", "schedules", "cancel", "--count", "60"]
TESTS: dict[str, list[str]] = {
    "store/writer": ["writer", "drafting", "errors_of_the_disk", "opening"],
    "store/drafting": ["drafting", "writer", "log"],
    "store/attempts": ["deliveries", "worker", "delivery_boundaries"],
    "observe/dispatcher": ["dispatcher", "cursors"],
    "store/events": ["events", "log", "drafting", "history", "check"],
    "store/index": ["index", "check"],
    "store/owner": ["owner", "head_file"],
}
_COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
_BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}


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


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str, object]]:  # type: ignore[type-arg]
    for parent in ast.walk(tree):
        if not isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(parent):
            yield from _of_expression(node)
            yield from _of_block(node)


def _of_expression(node: ast.AST) -> Iterator[tuple]:  # type: ignore[type-arg]
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            other = _COMPARE[type(op)]
            yield node, f"{type(op).__name__} is {other.__name__}", lambda: setattr(node, "ops", [other()])
        case ast.BoolOp(op=op):
            other = ast.Or if isinstance(op, ast.And) else ast.And
            yield node, f"{type(op).__name__} is {other.__name__}", lambda: setattr(node, "op", other())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _BINARY:
            other = _BINARY[type(op)]
            yield node, f"{type(op).__name__} is {other.__name__}", lambda: setattr(node, "op", other())
        case ast.Constant(value=bool() as value):
            yield node, f"{value} is {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int() as value):
            yield node, f"{value} is {value + 1}", lambda: setattr(node, "value", value + 1)
        case ast.UnaryOp(op=ast.Not()):
            yield (
                node,
                "not is lost",
                lambda: (
                    setattr(node, "op", ast.UAdd())
                    or setattr(node, "operand", ast.Call(ast.Name("bool", ast.Load()), [node.operand], []))
                ),
            )


def _of_block(node: ast.AST) -> Iterator[tuple]:  # type: ignore[type-arg]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        for place, statement in enumerate(block):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if isinstance(statement, ast.Expr | ast.AugAssign | ast.Raise) and not is_text:
                yield statement, f"without {ast.unparse(statement)[:60]}", _without(block, place)


def _without(block: list[ast.stmt], place: int) -> object:
    return lambda: block.__setitem__(place, ast.Pass())


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
