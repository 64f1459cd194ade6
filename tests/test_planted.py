"""The breaks that `tests.torture.planted` plants still fit the code, and are of requirements drawn at random."""

from __future__ import annotations

import ast
from random import Random

import pytest

from tests.log_kit import CHECKOUT
from tests.test_requirements import NEED_NO_TEST, REQUIREMENTS
from tests.torture.planted import BREAKS


@pytest.mark.parametrize("requirement", BREAKS)
def test_a_break_stands_where_it_is_planted(requirement: int) -> None:
    planted = BREAKS[requirement]
    source = (CHECKOUT / planted.file).read_text()
    broken = planted.applied(source)
    assert broken != source
    if planted.file.endswith(".py"):
        ast.parse(broken)


def test_the_broken_requirements_are_the_ones_that_were_drawn() -> None:
    assert sorted(BREAKS) == sorted(Random(158).sample(sorted(REQUIREMENTS - NEED_NO_TEST), 20))
