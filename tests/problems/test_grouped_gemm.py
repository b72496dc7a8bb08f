from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InvalidProblemError
from perfmodel.problems import GroupedGemm
from perfmodel.problems.dtypes import BF16
from perfmodel.problems.grouped_gemm_table import GroupedGemmTable
from perfmodel.problems.routing import expert_loads

MIXTRAL: dict[str, Any] = {"experts": 8, "top_k": 2, "hidden": 4096, "intermediate": 14336}
names = st.sampled_from(["balanced", "uniform", "zipf:0.8", "zipf:2", "power-law:1.2"])


@given(st.integers(0, 3000), st.sampled_from([1, 4, 8, 64, 160]), st.integers(1, 8), names)
def test_a_distribution_gives_every_routed_token_to_an_expert_and_no_token_twice(
    tokens: int, experts: int, top_k: int, name: str
) -> None:
    top_k = min(top_k, experts)
    loads = expert_loads(tokens, experts, top_k, name)
    assert len(loads) == experts
    assert sum(loads) == tokens * top_k
    assert 0 <= min(loads) <= max(loads) <= tokens
    assert loads == tuple(sorted(loads, reverse=True))


def test_chance_leaves_experts_idle_as_often_as_it_does() -> None:
    """Of 64 experts, 6 chosen by each of 3 tokens: 64 (1 - (1 - 6/64)^3) = 16.4 get one."""
    busy = sum(load > 0 for load in expert_loads(3, 64, 6, "uniform"))
    assert busy in (16, 17)
    assert sum(load > 0 for load in expert_loads(3, 64, 6, "balanced")) == 18


def test_the_steeper_a_distribution_the_busier_its_first_expert() -> None:
    busiest = [expert_loads(512, 64, 2, name)[0] for name in ("balanced", "zipf:0.5", "zipf:1.5")]
    assert busiest[0] < busiest[1] < busiest[2]


def test_work_follows_the_tokens_and_bytes_follow_the_experts_in_use() -> None:
    problem = GroupedGemm(4, **MIXTRAL, routing=[4, 4, 0, 0, 0, 0, 0, 0])
    weights = 3 * 4096 * 14336 * 2
    assert problem.flops == 2 * 8 * 4096 * 14336 * 3
    assert problem.read_bytes == 2 * weights + 4 * 4096 * 2
    assert problem.write_bytes == 4 * 4096 * 2
    spread = GroupedGemm(4, **MIXTRAL, routing=[1] * 8)
    assert spread.flops == problem.flops
    assert spread.read_bytes - problem.read_bytes == 6 * weights


def test_both_projections_are_the_sum_of_each() -> None:
    both, up, down = (
        GroupedGemm(100, **MIXTRAL, projection=side)  # type: ignore[arg-type]  # one of three
        for side in ("both", "up", "down")
    )
    assert both.flops == up.flops + down.flops
    assert up.flops == 2 * down.flops
    ungated = GroupedGemm(100, **MIXTRAL, projection="up", gated=False)
    assert ungated.flops == down.flops


def test_ranks_share_experts_or_their_columns() -> None:
    whole = GroupedGemm(1024, 64, 8, 2048, 1024, routing="balanced")
    columns = GroupedGemm(1024, 64, 8, 2048, 1024, routing="balanced", tp=4)
    experts = GroupedGemm(1024, 64, 8, 2048, 1024, routing="balanced", ep=4)
    assert columns.flops == experts.flops == whole.flops / 4
    assert len(experts.loads) == 16


def test_the_busiest_rank_is_described() -> None:
    loads = [0, 0, 0, 8, 8, 8, 0, 0]
    ranks = GroupedGemm(12, **MIXTRAL, ep=2, routing=loads)
    assert ranks.loads.tolist() == [8, 8, 0, 0]


def test_a_problem_survives_a_worker_and_json() -> None:
    for routing in ("zipf:1.3", [1, 3, 0, 2, 0, 0, 0, 0]):
        problem = GroupedGemm(3, **MIXTRAL, routing=routing, dtype="fp8", backend="cutlass@4")
        assert pickle.loads(pickle.dumps(problem)) == problem
        assert GroupedGemm(**json.loads(json.dumps(problem.to_dict()))) == problem


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routing": [1] * 7}, ["7 experts", "there are 8"]),
        ({"routing": [1] * 8}, ["adds up to 8", "make 20"]),
        ({"routing": [11, 9, 0, 0, 0, 0, 0, 0]}, ["expert 0 11 tokens of 10"]),
        ({"routing": [-1, 11, 10, 0, 0, 0, 0, 0]}, ["routing[0] is -1"]),
        ({"routing": "unifrom"}, ["'unifrom'", "did you mean 'uniform'"]),
        ({"routing": "zipf:x"}, ["'zipf:x'", "from 0 to 10"]),
        ({"routing": "uniform:2"}, ["takes no exponent"]),
        ({"top_k": 9}, ["top_k is 9 of 8", "at most 8"]),
        ({"ep": 3}, ["experts is 8 and ep 3", "such as 2"]),
        ({"tp": 5}, ["intermediate is 14336 and tp 5"]),
        ({"projection": "w13"}, ["'w13'", "both, up"]),
        ({"experts": 0}, ["experts is 0", "from 1"]),
        ({"tokens": -3}, ["tokens is -3"]),
    ],
)
def test_what_makes_no_sense_is_named_with_what_is_allowed(
    change: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(InvalidProblemError) as error:
        GroupedGemm(**{"tokens": 10, **MIXTRAL, **change})
    for part in said:
        assert part in str(error.value)


def test_a_table_counts_as_the_problems_do() -> None:
    problems = [
        GroupedGemm(t, **MIXTRAL, routing=r, ep=e)
        for t, r, e in [(0, "uniform", 1), (7, "zipf", 2), (300, "balanced", 4)]
    ]
    table = GroupedGemmTable.of_problems(problems)
    columns = GroupedGemmTable.of_columns(
        tokens=[0, 7, 300], experts=8, top_k=2, hidden=4096, intermediate=14336, ep=[1, 2, 4],
        routing=["uniform", "zipf:1", "balanced"], dtypes=(BF16,) * 3,
    )  # fmt: skip
    for found in (table, columns):
        assert found.routed.tolist() == [p.loads.sum() for p in problems]
        assert found.active.tolist() == [(p.loads > 0).sum() for p in problems]
        assert found.row_tiles(16).tolist() == [np.ceil(p.loads / 16).sum() for p in problems]
        assert found.columns.tolist() == [p.up_columns for p in problems]
    assert table.rows(slice(1, 3)).busiest.tolist() == table.busiest[1:].tolist()
