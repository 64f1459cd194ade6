"""Counts the requirements: which are proven by a test, and which not yet.

A test proves a requirement by naming it, in its name (``test_r66_an_unknown_key_...``) or in its docstring (``R66``).
``python -m tests.test_requirements`` prints the numbers for ``NOT_YET``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
FOLDERS = ("tests", "examples")  # an example's test stands beside the example


def numbers(text: str) -> set[int]:
    """``"1 4-6"`` as ``{1, 4, 5, 6}``."""
    spans = [span.partition("-") for span in text.split()]
    return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)}


REQUIREMENTS = numbers("1-158")

# What hooks are not for: there is nothing to run.
NEED_NO_TEST = numbers("62 63 91 140-145")

# What no test proves so far. It only ever shrinks.
NOT_YET = numbers("")


@cache
def proven() -> dict[int, list[str]]:
    """Each requirement that a test names, with the tests that name it."""
    found: dict[int, list[str]] = {}
    for folder in FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("test_*.py")):
            for number, test in named_in(path.read_text()):
                found.setdefault(number, []).append(f"{path.relative_to(CHECKOUT)}::{test}")
    return found


def named_in(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = f"{node.name.replace('_', ' ')} {ast.get_docstring(node) or ''}"
            for number in re.findall(r"\b[rR](\d+)\b", words):
                yield int(number), node.name


def test_every_requirement_that_a_test_names_exists() -> None:
    assert {number: tests for number, tests in proven().items() if number not in REQUIREMENTS} == {}


def test_every_requirement_is_proven_or_is_known_not_to_be() -> None:
    assert sorted(REQUIREMENTS - NEED_NO_TEST - NOT_YET - set(proven())) == []


def test_what_is_proven_is_not_called_unproven() -> None:
    assert {number: tests for number, tests in proven().items() if number in NOT_YET} == {}


def test_a_test_proves_what_its_name_or_docstring_names_and_nothing_else() -> None:
    source = '''
def test_r7_the_keys_are_exactly_these():
    """Also R9 and R12."""
    R5 = "R4"

def helper_r8(): ...

class TestJobs:
    async def test_r10_r11_each_end_makes_one_event(self): ...
'''
    assert {number for number, _ in named_in(source)} == {7, 9, 12, 10, 11}


def spans(of: set[int]) -> str:
    """``{1, 4, 5, 6}`` as ``"1 4-6"``."""
    starts = sorted(number for number in of if number - 1 not in of)
    ends = sorted(number for number in of if number + 1 not in of)
    return " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in zip(starts, ends, strict=True))


def test_numbers_are_written_as_they_are_read() -> None:
    assert spans({1, 4, 5, 6, 9, 10}) == "1 4-6 9-10"
    assert numbers("1 4-6 9-10") == {1, 4, 5, 6, 9, 10}


if __name__ == "__main__":
    print(spans(REQUIREMENTS - NEED_NO_TEST - set(proven())))
