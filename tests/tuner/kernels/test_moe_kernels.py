"""Mixture of experts: every expert's rows times its weights, whatever share each of them got."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from perfmodel.problems import GroupedGemm
from tuner.kernels.moe_inputs import moe_inputs

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def test_projections_agree_with_float64(interpret: Callable[[str], None]) -> None:
    interpret("""
tile = TileConfig(16, 32, 32, 2, num_warps=4, num_stages=2)
for problem in (
    GroupedGemm(20, 6, 2, 40, 24, dtype="fp16", projection="up"),
    GroupedGemm(20, 6, 2, 40, 24, dtype="bf16", projection="down"),
    GroupedGemm(20, 3, 2, 40, 24, dtype="fp16", routing=[0, 20, 20]),
    GroupedGemm(33, 5, 2, 64, 48, dtype="bf16", routing="zipf:1.5", gated=False),
    GroupedGemm(20, 8, 3, 32, 32, ep=2, tp=2, dtype="fp16"),
    GroupedGemm(20, 4, 2, 64, 32, dtype="fp8_e4m3"),
    GroupedGemm(20, 4, 2, 64, 40, dtype="int8"),
    GroupedGemm(20, 4, 2, 64, 40, dtype="bf16", weight_dtype="int8"),
    GroupedGemm(1, 4, 1, 32, 32, dtype="fp16"),
    GroupedGemm(0, 4, 2, 32, 32),
):
    check("grouped_gemm", problem, tile)
""")


@needs_torch
def test_rows_are_tokens_each_at_top_k_different_experts() -> None:
    problem = GroupedGemm(50, 8, 3, 16, 16, routing="zipf:1.0")
    made = moe_inputs(problem)
    bounds, tokens = made["expert_starts"].tolist(), made["tokens"].tolist()
    assert [b - a for a, b in pairwise(bounds)] == problem.loads.tolist()
    assert set(Counter(tokens).values()) == {3}
    for begin, end in pairwise(bounds):
        assert len(set(tokens[begin:end])) == end - begin
    for token, rows in enumerate(made["token_rows"].tolist()):
        assert [tokens[row] for row in rows] == [token] * 3
