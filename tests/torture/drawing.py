"""Draws points of several kinds, so that a few of them are of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from random import Random
from typing import TypeVar

T = TypeVar("T")


def drawn(random: Random, kinds: Sequence[Sequence[T]]) -> Iterator[T]:
    """Every point, in an order of chance within its kind, one kind after the other: rare ones as often as the rest."""
    shuffled = [random.sample(kind, len(kind)) for kind in kinds]
    for of_each in zip_longest(*shuffled):
        yield from (point for point in of_each if point is not None)
