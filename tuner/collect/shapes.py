"""Which problems are worth measuring: those of real models, and points that fill the space."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

from perfmodel.problems.gemm import Gemm, Layout

MODELS = Path(__file__).with_name("models.toml")

TOKENS = (1, 16, 64, 256, 1024, 4096, 8192)
"""Rows of an activation: single tokens, batches of decoding, prompts, training."""

M_RANGE, N_RANGE, K_RANGE = (1, 16384), (16, 32768), (16, 32768)
FLOPS_MAX = 2.0**43
"""A hundredth of a second on a fast device; more only costs budget."""

MEMORY_SHARE = 0.25
"""Of the device's memory, for one copy of the operands: inputs are rotated to keep the L2 cold."""

MULTIPLES = (64, 64, 16, 8, 1)
"""Sizes of the space-filling points are multiples of these in turn; 1 gives odd row pitches."""

LAYOUTS: tuple[tuple[Layout, Layout], ...] = (
    ("row", "col"), ("row", "row"), ("row", "col"), ("col", "row"),
)  # fmt: skip
"""Of A and B in turn: a linear layer forward, and its gradients."""


@dataclass(frozen=True)
class Model:
    """A model's public dimensions, elements; ``source`` is where they are stated."""

    name: str
    source: str
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool  # the first projection of a feed-forward layer is two in one

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """(n, k) of each linear layer by name."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden_size),
            "out": (self.hidden_size, q),
            "up": ((1 + self.gated) * self.intermediate_size, self.hidden_size),
            "down": (self.hidden_size, self.intermediate_size),
        }


@lru_cache(maxsize=1)
def models() -> tuple[Model, ...]:
    """Return the models of ``models.toml``."""
    content = tomllib.loads(MODELS.read_text(encoding="utf-8"))
    return tuple(Model(**entry) for entry in content["models"])


def model_gemms(dtype: str, draw: random.Random) -> list[tuple[str, Gemm]]:
    """Return the linear layers of known models with their origins, each shape once, shuffled."""
    found: dict[Gemm, str] = {}
    for model in models():
        for layer, (n, k) in model.layers.items():
            for m in TOKENS:
                problem = Gemm(m, n, k, a_dtype=dtype, b_layout="col")
                found.setdefault(problem, f"{model.name} {layer}, {m} tokens")
    listed = [(origin, problem) for problem, origin in found.items()]
    draw.shuffle(listed)
    return listed


def filling_gemms(dtype: str, draw: random.Random) -> Iterator[tuple[str, Gemm]]:
    """Yield matrix products spread evenly over the logarithms of their sizes, without end.

    A Kronecker sequence (the generalised golden ratio of three dimensions) from a random start:
    any first part of it is spread evenly.
    """
    golden = _golden(3)
    start = [draw.random() for _ in range(3)]
    for point in count(1):
        place = [(s + point * golden ** -(axis + 1)) % 1.0 for axis, s in enumerate(start)]
        multiple = MULTIPLES[point % len(MULTIPLES)]
        a_layout, b_layout = LAYOUTS[point % len(LAYOUTS)]
        m, n, k = (
            _size(x, low, high, multiple if axis else 1)
            for axis, (x, (low, high)) in enumerate(
                zip(place, (M_RANGE, N_RANGE, K_RANGE), strict=True)
            )
        )
        problem = Gemm(m, n, k, a_dtype=dtype, a_layout=a_layout, b_layout=b_layout)
        yield f"space-filling {point}", problem


def alternate_gemms(
    dtypes: Sequence[str], seed: int, memory_bytes: int
) -> Iterator[tuple[str, Gemm]]:
    """Yield problems without end: real ones and space-filling ones by turns, types by turns.

    The order depends on ``seed`` alone. Those too large for the device or the budget are left out.
    """
    real = [iter(model_gemms(d, random.Random(f"{seed} real {d}"))) for d in dtypes]
    filling = [filling_gemms(d, random.Random(f"{seed} filling {d}")) for d in dtypes]
    seen: set[Gemm] = set()
    for turn in count():
        at = turn // 2 % len(dtypes)
        source = filling[at] if turn % 2 else real[at]
        for origin, problem in source:
            fits = problem.compulsory_bytes <= MEMORY_SHARE * memory_bytes
            if fits and problem.flops <= FLOPS_MAX and problem not in seen:
                seen.add(problem)
                yield origin, problem
                break


def _size(place: float, low: int, high: int, multiple: int) -> int:
    size = low * math.exp(place * math.log(high / low))
    return max(round(size / multiple), 1) * multiple


def _golden(dimensions: int) -> float:
    """The root above 1 of x^(d+1) = x + 1."""
    x = 2.0
    for _ in range(64):
        x = (1 + x) ** (1 / (dimensions + 1))
    assert math.isclose(x ** (dimensions + 1), x + 1)
    return x
