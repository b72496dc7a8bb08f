"""Which matrix products are worth measuring: those of real models, and points between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import Gemm, Layout
from tuner.collect.models import models
from tuner.collect.spread import by_turns, filling_points, size_at

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

NARROW_LAYOUTS: tuple[tuple[Layout, Layout], ...] = (("row", "col"),)
"""Of 8-bit operands: both along K, as tensor units take them and quantised layers keep them."""


def model_gemms(dtype: str, draw: random.Random) -> list[tuple[str, Gemm]]:
    """Return the linear layers of known models with their origins, each shape once, shuffled."""
    found: dict[Gemm, str] = {}
    for model in models():
        for layer, (n, k) in model.layers.items():
            for m in TOKENS:
                problem = Gemm(m, n, k, a_dtype=dtype, b_layout="col", out_dtype=_result(dtype))
                found.setdefault(problem, f"{model.name} {layer}, {m} tokens")
    listed = [(origin, problem) for problem, origin in found.items()]
    draw.shuffle(listed)
    return listed


def filling_gemms(dtype: str, draw: random.Random) -> Iterator[tuple[str, Gemm]]:
    """Yield matrix products spread evenly over the logarithms of their sizes, without end."""
    layouts = NARROW_LAYOUTS if parse_dtype(dtype).bits == 8 else LAYOUTS
    for point, place in filling_points(3, draw):
        multiple = MULTIPLES[point % len(MULTIPLES)]
        a_layout, b_layout = layouts[point % len(layouts)]
        m, n, k = (
            size_at(x, low, high, multiple if axis else 1)
            for axis, (x, (low, high)) in enumerate(
                zip(place, (M_RANGE, N_RANGE, K_RANGE), strict=True)
            )
        )
        problem = Gemm(
            m, n, k, a_dtype=dtype, a_layout=a_layout, b_layout=b_layout, out_dtype=_result(dtype)
        )
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

    def wanted(source: Iterator[tuple[str, Gemm]]) -> Iterator[tuple[str, Gemm]]:
        for origin, problem in source:
            fits = problem.compulsory_bytes <= MEMORY_SHARE * memory_bytes
            if fits and problem.flops <= FLOPS_MAX and problem not in seen:
                seen.add(problem)
                yield origin, problem

    yield from by_turns([[wanted(s) for s in real], [wanted(s) for s in filling]])


def _result(dtype: str) -> str | None:
    """The type of a result: 8-bit products are scaled, and what is scaled is bf16."""
    return "bf16" if parse_dtype(dtype).bits == 8 else None
