"""How tokens spread over experts: a histogram that was counted, or a named distribution.

Named distributions give whole loads that add up, the same ones every time; none is drawn at random.

=================  =============================================================================
``balanced``       every expert gets the same, to within one token
``uniform``        every token picks experts by chance: loads scatter as such counts do, and with
                   few tokens some experts get none
``zipf:S``         the expert at place r of the order of popularity gets a share like r ** -S
``power-law:A``    loads lie along a density x ** -A from one token to 0.8 of all tokens
=================  =============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InvalidProblemError, closest
from perfmodel.problems.sizes import whole_size

Loads = NDArray[np.float64]
Routing = str | tuple[int, ...]

NAMES = ("balanced", "uniform", "zipf", "power-law")
DEFAULT_EXPONENT = {"zipf": 1.0, "power-law": 1.2}

POWER_LAW_MOST = 0.8
"""Share of all tokens that the most popular expert of a power law can see."""


def parse_routing(value: Routing | Sequence[int], tokens: int, experts: int, top_k: int) -> Routing:
    """Return a histogram as a tuple, or the name of a distribution with its exponent.

    Raises:
        InvalidProblemError: the name is unknown, or the histogram has another number of experts,
            gives one expert more tokens than there are, or does not add up to tokens x top_k.
    """
    if isinstance(value, str):
        return _parse_name(value)
    loads = tuple(whole_size(f"routing[{i}]", v) for i, v in enumerate(value))
    if len(loads) != experts:
        raise InvalidProblemError(
            f"routing counts the tokens of {len(loads)} experts, but there are {experts}; give one "
            "count for each, zeros included"
        )
    if sum(loads) != tokens * top_k:
        raise InvalidProblemError(
            f"routing adds up to {sum(loads)}, but {tokens} tokens with top_k {top_k} make "
            f"{tokens * top_k}; correct the counts, or tokens or top_k"
        )
    most = max(loads, default=0)
    if most > tokens:
        raise InvalidProblemError(
            f"routing gives expert {loads.index(most)} {most} tokens of {tokens}; a token picks an "
            f"expert once at most, so use at most {tokens}"
        )
    return loads


def _parse_name(text: str) -> str:
    name, _, exponent = text.strip().lower().replace("_", "-").partition(":")
    if name not in NAMES:
        raise InvalidProblemError(
            f"routing is {text!r}{closest(name, NAMES)}; use balanced, uniform, zipf:S, "
            "power-law:A, or one count for each expert"
        )
    if name not in DEFAULT_EXPONENT:
        if exponent:
            raise InvalidProblemError(f"routing is {text!r}, but {name} takes no exponent")
        return name
    try:
        power = float(exponent) if exponent else DEFAULT_EXPONENT[name]
    except ValueError:
        power = math.nan
    if not 0 <= power <= 10:
        raise InvalidProblemError(f"routing is {text!r}; the exponent is a number from 0 to 10")
    return f"{name}:{power:g}"


@lru_cache(maxsize=8192)
def expert_loads(tokens: int, experts: int, top_k: int, routing: Routing) -> tuple[int, ...]:
    """Return the tokens of each expert, most first for a named distribution."""
    if not isinstance(routing, str):
        return routing
    name, _, exponent = routing.partition(":")
    total = tokens * top_k
    if not total:
        return (0,) * experts
    if name == "uniform":
        wanted = _binomial_quantiles(tokens, top_k / experts, experts)
    elif name == "zipf":
        wanted = np.arange(1, experts + 1, dtype=np.float64) ** -float(exponent)
    elif name == "power-law":
        wanted = _power_law_quantiles(float(exponent), POWER_LAW_MOST * tokens, experts)
    else:
        wanted = np.ones(experts)
    return _whole_loads(wanted, total, tokens)


def local_loads(loads: Sequence[int], ep: int, *, named: bool) -> Loads:
    """Return the loads of the busiest of ``ep`` ranks, which the others wait for.

    A histogram's experts lie in order, a block a rank. Those of a named distribution are dealt
    out by popularity, since nothing says that the popular ones live together.
    """
    table = np.asarray(loads, dtype=np.float64)
    ranks = table.reshape(-1, ep).T if named else table.reshape(ep, -1)
    return np.asarray(ranks[int(ranks.sum(axis=1).argmax())])


def _whole_loads(wanted: Loads, total: int, most: int) -> tuple[int, ...]:
    """Round shares to whole loads of at most ``most`` that add up to ``total``."""
    shares = np.sort(wanted)[::-1]
    loads = np.zeros_like(shares)
    open_ = np.ones(len(shares), dtype=np.bool_)
    for _ in range(len(shares)):  # what is cut off the fullest goes to the others in proportion
        scale = (total - loads[~open_].sum()) / max(shares[open_].sum(), 1e-300)
        loads[open_] = shares[open_] * scale
        full = open_ & (loads > most)
        if not full.any():
            break
        loads[full], open_[full] = most, False
    whole = np.floor(loads)
    left = int(total - whole.sum())
    room = np.argsort(-(loads - whole), kind="stable")
    whole[room[whole[room] < most][:left]] += 1
    left = int(total - whole.sum())
    for index in range(len(whole) if left else 0):  # shares of zero leave the rest unplaced
        add = max(min(most - whole[index], left), 0)
        whole[index] += add
        left -= add
    return tuple(int(v) for v in np.sort(whole)[::-1])


def _binomial_quantiles(tokens: int, chance: float, experts: int) -> Loads:
    """Loads at the middle of each of ``experts`` equal slices of a binomial distribution."""
    mean = tokens * chance
    spread = math.sqrt(mean * max(1.0 - chance, 0.0))
    low = max(0, int(mean - 8.0 * spread - 8.0))
    high = min(tokens, int(mean + 8.0 * spread + 8.0))
    counts = np.arange(low, high + 1, dtype=np.float64)
    if chance >= 1.0:
        return np.full(experts, float(tokens))
    # Each count's chance is the one's before times this; the scale of all makes no odds.
    steps = np.log((tokens - counts[1:] + 1.0) / counts[1:]) + math.log(chance / (1.0 - chance))
    log_chance = np.concatenate([[0.0], np.cumsum(steps)])
    below = np.cumsum(np.exp(log_chance - log_chance.max()))
    middles = (np.arange(experts) + 0.5) / experts * below[-1]
    return np.asarray(counts[np.searchsorted(below, middles)])


def _power_law_quantiles(exponent: float, most: float, experts: int) -> Loads:
    middles = (np.arange(experts) + 0.5) / experts
    top = max(most, 1.0)
    if abs(exponent - 1.0) < 1e-9:
        return np.asarray(top**middles)
    power = 1.0 - exponent
    return np.asarray(((top**power - 1.0) * middles + 1.0) ** (1.0 / power))
