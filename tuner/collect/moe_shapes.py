"""Which mixture-of-experts layers are worth measuring: those of real models, and points between."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from perfmodel.problems.grouped_gemm import GroupedGemm
from tuner.collect.models import models
from tuner.collect.spread import by_turns, filling_points, size_at

TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
"""Tokens that the router spreads: a step of decoding, of many sequences, and prompts."""

ROUTINGS = ("uniform", "zipf:1")
"""By chance, and with popular experts: loads of real layers lie between."""

EXPERTS = (8, 64, 16, 128, 256, 32)
TOP_K = (2, 8, 4, 1, 6)
PROJECTIONS: tuple[str, ...] = ("both", "up", "down")

FLOPS_MAX = 2.0**43
MEMORY_SHARE = 0.1
"""Of the device's memory, for the weights: they are drawn in fp32 and copied."""

Source = Iterator[tuple[str, GroupedGemm]]


def layers(dtypes: Sequence[str], seed: int, memory_bytes: int) -> Source:
    """Yield problems without end: real ones and space-filling ones by turns, types by turns."""
    seen: set[GroupedGemm] = set()

    def wanted(source: Source) -> Source:
        for origin, problem in source:
            fits = problem.compulsory_bytes <= MEMORY_SHARE * memory_bytes
            if fits and problem.flops <= FLOPS_MAX and problem not in seen:
                seen.add(problem)
                yield origin, problem

    real = [wanted(_model_layers(d, random.Random(f"{seed} experts real {d}"))) for d in dtypes]
    filling = [wanted(_filling(d, random.Random(f"{seed} experts filling {d}"))) for d in dtypes]
    yield from by_turns([real, filling])


def _model_layers(dtype: str, draw: random.Random) -> Source:
    listed = []
    for model in models():
        if not model.experts:
            continue
        shared = product(model.ranks, model.expert_ranks)
        for (ranks, expert_ranks), tokens, routing in product(shared, TOKENS, ROUTINGS):
            problem = GroupedGemm(
                tokens, model.experts, model.top_k, model.hidden_size, model.expert_size,
                ep=expert_ranks, tp=ranks, routing=routing, dtype=dtype,
            )  # fmt: skip
            over = "".join(
                f", {what} over {count} ranks"
                for what, count in (("cut", ranks), ("shared", expert_ranks))
                if count > 1
            )
            listed.append((f"{model.name}, {tokens:,} tokens, {routing}{over}", problem))
    draw.shuffle(listed)
    return iter(listed)


def _filling(dtype: str, draw: random.Random) -> Source:
    for point, (tokens, hidden, inner) in filling_points(3, draw):
        experts = EXPERTS[point % len(EXPERTS)]
        yield f"space-filling {point}", GroupedGemm(
            size_at(tokens, 1, 16384), experts, min(TOP_K[point % len(TOP_K)], experts),
            size_at(hidden, 512, 8192, 64), size_at(inner, 256, 16384, 64),
            routing=(*ROUTINGS, "balanced")[point % 3], dtype=dtype,
            projection=PROJECTIONS[point // 2 % 3],  # type: ignore[arg-type]  # one of the three
        )  # fmt: skip
