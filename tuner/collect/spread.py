"""Points that fill a space of sizes evenly, however many are taken, and sources that take turns."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

P = TypeVar("P")


def filling_points(dimensions: int, draw: random.Random) -> Iterator[tuple[int, list[float]]]:
    """Yield numbered points of the unit cube without end; any first part is spread evenly.

    A Kronecker sequence (the generalised golden ratio of so many dimensions) from a random start.
    """
    golden = _golden(dimensions)
    start = [draw.random() for _ in range(dimensions)]
    for point in count(1):
        yield point, [(s + point * golden ** -(axis + 1)) % 1.0 for axis, s in enumerate(start)]


def size_at(place: float, low: int, high: int, multiple: int = 1) -> int:
    """Return the size at a place between 0 and 1 of a logarithmic scale, rounded to a multiple."""
    size = low * math.exp(place * math.log(high / low))
    return max(round(size / multiple), 1) * multiple


def by_turns(sources: Sequence[Sequence[Iterator[P]]]) -> Iterator[P]:
    """Yield from sources by turns; of each, its rows by turns, as far as they have something.

    Args:
        sources: kinds of sources, of each one row a data type.
    """
    left = [list(kind) for kind in sources]
    for turn in count():
        kind = left[turn % len(left)]
        if not any(left):
            return
        if not kind:
            continue
        at = turn // len(left) % len(kind)
        found = next(kind[at], None)
        if found is None:
            del kind[at]
        else:
            yield found


def _golden(dimensions: int) -> float:
    """The root above 1 of x^(d+1) = x + 1."""
    x = 2.0
    for _ in range(64):
        x = (1 + x) ** (1 / (dimensions + 1))
    assert math.isclose(x ** (dimensions + 1), x + 1)
    return x
