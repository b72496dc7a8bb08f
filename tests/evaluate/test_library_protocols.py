from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from perfmodel.evaluate import near_best, winners
from perfmodel.evaluate.library import FOLDS, device_widths, site_folds
from perfmodel.evaluate.protocols import PROTOCOLS, new_run
from perfmodel.evaluate.records import Record, tables
from perfmodel.evaluate.rows import Tables
from perfmodel.learned.shape_table import ShapeRows


def rows(count: int = 4000) -> ShapeRows:
    draw = np.random.default_rng(0)
    gpus = np.array(["a", "b", "c", "d"], dtype=object)
    return ShapeRows(
        features=draw.normal(size=(count, 3)).astype(np.float32),
        names=("x", "y", "z"),
        analytic_s=np.ones(count),
        roofline_s=np.ones(count),
        latency_s=np.exp(0.1 * draw.normal(size=count)),
        gpu=gpus[np.arange(count) % 4],
        dtype=np.full(count, "bf16", dtype=object),
        kernel=np.full(count, "vllm/cublas@1.0", dtype=object),
        site=np.arange(count) // 40,
    )


def test_a_site_lies_in_one_fold_and_folds_are_alike_in_size() -> None:
    site = np.repeat(np.arange(103), 7)
    fold = site_folds(site)
    assert all(len(set(fold[site == s])) == 1 for s in range(103))
    counts = np.bincount(fold, minlength=FOLDS)
    assert counts.max() - counts.min() <= 7


def test_intervals_of_a_device_come_from_the_others() -> None:
    found = rows()
    calm = device_widths(found, np.zeros(len(found)))
    wild = found.latency_s.copy()
    wild[found.gpu == "a"] = np.exp(3.0 * np.log(wild[found.gpu == "a"]))
    noisy = ShapeRows(**{**vars(found), "latency_s": wild})
    again = device_widths(noisy, np.zeros(len(found)))
    np.testing.assert_allclose(again[found.gpu == "a"], calm[found.gpu == "a"])
    assert again[found.gpu == "b"].mean() > calm[found.gpu == "b"].mean()


def test_protocols_are_listed() -> None:
    for name in (
        "fp8-pipeweave", "shape-sites", "shape-logo", "moe-near-best", "attention-winners",
    ):  # fmt: skip
        assert PROTOCOLS[name].about


def test_a_winner_among_the_candidates_is_found_and_two_winners_are_one_problem() -> None:
    frame = pd.DataFrame(
        {
            "batch": 4, "q_len": 1024, "kv_len": 1024, "q_heads": 8, "kv_heads": 8,
            "head_dim": 64, "v_head_dim": 64, "causal": True, "q_dtype": "bf16",
            "kv_dtype": "bf16", "gpu": "h100-sxm5", "kernel": "attention",
            "block_m": [64, 128], "block_n": [64, 64], "num_warps": [4, 8], "num_stages": [3, 2],
            "latency_us": [200.0, 201.0],
        }
    )  # fmt: skip
    found = winners.winner_rows(frame)
    assert len(set(found.problem)) == 1
    assert found.won.sum() == 2
    assert sorted(found.measured_s[found.won] * 1e6) == pytest.approx([200.0, 201.0])
    assert 200 < len(found) <= len(winners.CANDIDATES)


def moe_frame(tokens: Sequence[int], block_m: Sequence[int]) -> pd.DataFrame:
    """Tuned tiles of one GPU, one a problem."""
    return pd.DataFrame(
        {
            "experts": 8, "top_k": 2, "hidden_size": 1024, "intermediate_size": 512,
            "tokens": tokens, "gpu": "a100-sxm4-80gb", "block_m": block_m, "block_n": 64,
            "block_k": 64, "group_m": 1, "num_warps": 4, "num_stages": 3,
        }
    )  # fmt: skip


def test_near_best_sets_mark_their_members_among_all_values_that_occur() -> None:
    found = near_best.near_best_rows(moe_frame([16, 16, 4096], [16, 32, 128]))
    assert list(found.tokens) == [16, 4096]
    rows = found.rows
    assert len(rows.configs) == 3
    won = {(p, int(rows.configs.block_m[c])) for p, c in zip(
        rows.problem[rows.won], rows.config[rows.won], strict=True)}  # fmt: skip
    assert won == {(0, 16), (0, 32), (1, 128)}


def test_a_vote_is_of_the_same_gpu_and_tokens_and_of_known_problems_alone() -> None:
    found = near_best.near_best_rows(moe_frame([16, 16, 4096], [16, 32, 128]))
    rows = found.rows
    first = np.flatnonzero(rows.problem == 0)
    known = np.ones(len(rows), dtype=np.bool_)
    of_all = near_best._votes(found, first, known)
    assert list(of_all) == [1.0, 1.0, 0.0][: len(first)]
    assert not near_best._votes(found, first, rows.problem != 0).any()


def test_the_default_of_vllm_is_hit_where_it_is_near_the_best() -> None:
    frame = moe_frame([16, 4096], [16, 128])
    frame.loc[0, ["block_k", "num_stages"]] = [128, 4]  # what vLLM takes for few tokens
    found = near_best.near_best_rows(frame)
    run = new_run(Tables({}), ())
    (record,) = near_best._default_hits(found, run)
    assert (record.who, record.k, record.n) == ("vllm-default", 1, 2)
    assert record.value == 0.5


def test_families_of_one_protocol_have_lines_of_their_own() -> None:
    found = [
        Record("shape-sites", "perfmodel", "error_mean", value, family, "bf16", "h100-sxm5")
        for family, value in (("gemm", 0.01), ("prefill", 0.02), ("decode", 0.03))
    ]
    (table,) = tables(found)
    assert table.row_count == 3
