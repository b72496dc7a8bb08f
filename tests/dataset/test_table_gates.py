from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from perfmodel.dataset.quality import SIBLINGS_DISAGREE, SUSPECT_TABLE, apply_gates
from perfmodel.dataset.table_gates import TableGates


def gemm(gpu: str = "h100-sxm5", us: float = 60.0, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "family": "gemm", "m": 4096, "n": 4096, "k": 1024, "batch": 1, "a_dtype": "bf16",
        "b_dtype": "bf16", "out_dtype": "bf16", "gpu": gpu, "outcome": "ok",
        "outcome_reason": None, "raw_rows": 1, "source_file": "f", "l2_state": None,
        "distinct_us": [us], "kernel": "k", "library": "vllm", "config_known": False,
    }  # fmt: skip
    return base | more


def marks(*parts: list[dict[str, Any]]) -> tuple[list[dict[str, list[bool]]], dict[str, Any]]:
    gates = TableGates()
    for rows in parts:
        gates.add(apply_gates(pd.DataFrame(rows))[0])
    flags, report = gates.flags()
    return [{gate: hit.tolist() for gate, hit in by.items()} for by in flags], report


def test_a_table_that_is_too_often_impossible_is_marked_whole() -> None:
    rows = [gemm(m=4096 + i) for i in range(40)]
    rows += [gemm(us=0.06, m=i) for i in range(4096, 4099)]
    other = [gemm(source_file="g", m=4096 + i) for i in range(3)]
    flags, report = marks(rows, other)
    assert all(flags[0][SUSPECT_TABLE])
    assert not any(flags[1][SUSPECT_TABLE])
    assert report["suspect_tables"] == ["f k"]
    assert report["impossible_by_table"] == {"f k": {"rows": 43, "impossible": 3}}


def test_a_few_impossible_rows_leave_the_rest_in_peace() -> None:
    flags, report = marks([gemm(m=4096 + i) for i in range(40)] + [gemm(us=0.06)])
    assert not any(flags[0][SUSPECT_TABLE])
    assert report["rows_flagged"][SUSPECT_TABLE] == 0


def test_the_one_of_four_siblings_that_disagrees_is_marked() -> None:
    like = ("b200", "b300", "gb200", "gb300")
    rows = [gemm(gpu, 40.0 if gpu != "b200" else 100.0) for gpu in like]
    flags, _ = marks(rows[:1], rows[1:])  # whichever parts they come in
    assert flags[0][SIBLINGS_DISAGREE] == [True]
    assert flags[1][SIBLINGS_DISAGREE] == [False, False, False]


def test_of_two_that_disagree_neither_is_right() -> None:
    flags, _ = marks([gemm("h100-sxm5", 60.0), gemm("h200-sxm", 150.0)])
    assert flags[0][SIBLINGS_DISAGREE] == [True, True]


@pytest.mark.parametrize(
    "other",
    [gemm("a100-sxm4-80gb", 300.0), gemm("h20", 300.0), gemm(us=300.0, library="sglang"),
     gemm(us=300.0, k=1025), gemm(us=300.0, config_known=True)],
    ids=["generation", "fewer SMs", "library", "problem", "a tile of its own"],
)  # fmt: skip
def test_only_like_is_compared_with_like(other: dict[str, Any]) -> None:
    flags, _ = marks([gemm(), other])
    assert flags[0][SIBLINGS_DISAGREE] == [False, False]


def test_a_column_that_one_part_lacks_is_null_there() -> None:
    bare = gemm("b200", 100.0)
    rows = [gemm(gpu, 40.0, window_size=None, causal=None) for gpu in ("b300", "gb200", "gb300")]
    flags, _ = marks([bare], rows)
    assert flags[0][SIBLINGS_DISAGREE] == [True]
