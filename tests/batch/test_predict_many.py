"""Tables of mixed problems: each row gets what it gets alone, a bad one its reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel.batch import OUTPUT_COLUMNS, gemms, parallel, predict_rows, read_problem
from perfmodel.batch.requests import read_request
from perfmodel.errors import DataError, InvalidProblemError, UsageError

pytestmark = pytest.mark.usefixtures("shipped")

ROWS: list[dict[str, Any]] = [
    {"family": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"},
    {"family": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "backend": "cublas"},
    {"family": "gemm", "m": 512, "n": 256, "k": 64, "dtype": "bf16",
     "config": "block_m=64,block_n=64,block_k=32"},
    {"family": "gemm", "m": 0, "n": 256, "k": 64, "dtype": "bf16"},
    {"family": "attention", "q_len": 1, "kv_len": 4096, "q_heads": 32, "kv_heads": 8,
     "head_dim": 128, "batch": 4, "dtype": "bf16", "backend": "flashinfer"},
    {"family": "attention", "q_len": 256, "q_heads": 8, "head_dim": 64, "dtype": "bf16"},
    {"family": "attention", "q_len": "64,1", "kv_len": "64,512", "q_heads": 8, "head_dim": 64,
     "dtype": "bf16", "backend": "flashinfer"},
    {"family": "moe", "tokens": 64, "experts": 8, "top_k": 2, "hidden": 512, "intermediate": 1024,
     "dtype": "bf16"},
    {"family": "moe", "tokens": 64, "experts": 8, "top_k": 2, "hidden": 512, "intermediate": 1024,
     "dtype": "bf16", "backend": "vllm"},
    {"kernel": "rms_norm", "rows": 512, "columns": 4096, "dtype": "bf16"},
]  # fmt: skip


def test_each_row_gets_what_it_gets_alone() -> None:
    found = perfmodel.predict_many(ROWS, gpu="h100-sxm5")
    predictor = perfmodel.Predictor()
    for row, (_, answer) in zip(ROWS, found.iterrows(), strict=True):
        request = read_request(row, "h100-sxm5")
        alone = predictor.predict(request.problem, request.gpu, request.config)
        assert pd.isna(answer["error"])
        assert answer["predicted_us"] == pytest.approx(alone.latency_us)
        assert (answer["low_us"], answer["high_us"]) == pytest.approx(alone.interval_us)
        assert answer["predicted_tflops"] == pytest.approx(alone.tflops)
        assert (answer["limiter"], answer["basis"]) == (alone.limiter, alone.basis)
        assert (None if pd.isna(answer["model"]) else answer["model"]) == alone.model


def test_a_table_comes_back_with_its_index_order_and_other_columns() -> None:
    table = pd.DataFrame(ROWS).assign(layer=range(len(ROWS)))
    table.index = pd.Index([f"row {i}" for i in range(len(ROWS))])
    found = perfmodel.predict_many(table, gpu="h100-sxm5")
    pd.testing.assert_frame_equal(found[list(table.columns)], table)
    assert list(found.columns) == [*table.columns, *OUTPUT_COLUMNS]
    assert found["predicted_us"].notna().all()


def test_many_products_choose_tiles_as_good_as_each_would_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gemms, "REPRESENTATIVES", 24)
    monkeypatch.setattr("perfmodel.batch.run.REPRESENTATIVES", 24)
    rng = np.random.default_rng(3)
    sizes = (2 ** rng.uniform(6, 12, size=(60, 3))).astype(int) // 16 * 16
    rows = [
        {"family": "gemm", "m": int(m), "n": int(n), "k": int(k), "dtype": "bf16"}
        for m, n, k in sizes
    ]
    found = predict_rows(rows, gpu="h100-sxm5")
    predictor = perfmodel.Predictor()
    slower = []
    for row, answer in zip(rows, found, strict=True):
        problem = perfmodel.Gemm(row["m"], row["n"], row["k"])
        best = predictor.predict(problem, "h100-sxm5")
        config = perfmodel.TileConfig.parse(answer["best_config"])
        own = predictor.predict(problem, "h100-sxm5", config)
        assert answer["predicted_us"] == pytest.approx(own.latency_us, rel=1e-4)
        assert (answer["low_us"], answer["high_us"]) == pytest.approx(own.interval_us, rel=1e-3)
        assert (answer["basis"], answer["limiter"]) == (own.basis, own.limiter)
        slower.append(answer["predicted_us"] / best.latency_us - 1)
    assert np.mean(slower) < 0.05


def test_bad_rows_say_why_and_the_rest_is_predicted() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"family": "gemm", "m": -1, "n": 8, "k": 8, "dtype": "bf16"}, "m is -1"),
        ({"family": "gemm", "m": 8.5, "n": 8, "k": 8, "dtype": "bf16"}, "m is 8.5"),
        ({"family": "gemm", "m": "many", "n": 8, "k": 8, "dtype": "bf16"}, "m is 'many'"),
        ({"family": "gemm", "m": 8, "n": 8, "dtype": "bf16"}, "k of the gemm is missing"),
        (
            {"family": "gemm", "m": 8, "n": 8, "k": 8},
            "dtype of the gemm is missing; it needs: m, n, k, dtype",
        ),
        ({"family": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "bf17"}, "bf17"),
        ({"family": "gem", "m": 8, "n": 8, "k": 8, "dtype": "bf16"}, "did you mean 'gemm'?"),
        ({"m": 8, "n": 8, "k": 8, "dtype": "bf16"}, "family is blank"),
        ({**ROWS[0], "q_len": 5}, "a gemm has no q_len"),
        ({**ROWS[0], "gpu": "h1000"}, "unknown GPU 'h1000'"),
        ({**ROWS[0], "gpu": "t4"}, "t4 has no arithmetic for bf16"),
        ({**ROWS[0], "config": "block_m=512,block_n=512,block_k=128"}, "cannot run on h100-sxm5"),
        ({**ROWS[0], "config": "block_q=512"}, "unknown config key 'block_q'"),
        ({**ROWS[0], "config": "block_m=64", "num_warps": 4}, "leave one of them blank"),
        ({**ROWS[1], "config": "block_m=64,block_n=64,block_k=64"}, "a library picks its own tile"),
        ({**ROWS[5], "kv_heads": 3}, "kv_heads 3"),
        ({**ROWS[5], "kv_len": 8}, "kv_len is 8 and q_len 256"),
        ({**ROWS[5], "causal": "perhaps"}, "use true or false"),
        ({**ROWS[7], "routing": "[1, 2]"}, "routing counts the tokens of 2 experts"),
        ({**ROWS[9], "kernel": "rmsnorm"}, "did you mean 'rms_norm'?"),
    ]
    rows = [row for one, _ in bad for row in (one, ROWS[0])]
    found = predict_rows(rows, gpu="h100-sxm5")
    for (_, why), refused, fine in zip(bad, found[::2], found[1::2], strict=True):
        assert why in refused["error"]
        assert refused["predicted_us"] is None
        assert fine["error"] is None
        assert fine["predicted_us"] == pytest.approx(207.1, rel=0.2)


def test_without_a_gpu_the_row_says_so() -> None:
    assert "gpu is blank" in predict_rows([ROWS[0]])[0]["error"]


def test_a_table_that_has_an_output_column_is_refused() -> None:
    with pytest.raises(DataError, match="low_us"):
        perfmodel.predict_many(pd.DataFrame([{**ROWS[0], "low_us": 1.0}]), gpu="h100-sxm5")


def test_no_rows_are_no_error() -> None:
    assert perfmodel.predict_many([], gpu="h100-sxm5").empty


def test_numbers_as_text_or_fraction_mean_the_same() -> None:
    problem = read_problem({"family": "gemm", "m": "64.0", "n": 64.0, "k": " 64 ", "dtype": "bf16"})
    assert problem == perfmodel.Gemm(64, 64, 64)
    named = {"family": "attention", "q_len": "3", "q_heads": "8", "head_dim": "64", "dtype": "bf16"}
    assert read_problem({**named, "causal": "False"}) == perfmodel.Attention(
        q_len=3, q_heads=8, head_dim=64, causal=False
    )
    blank = {**ROWS[0], "batch": math.nan, "lda": "", "ldb": None}
    assert read_request(blank, "t4").problem == perfmodel.Gemm(4096, 4096, 4096)


def test_in_strict_reading_an_unknown_name_is_refused() -> None:
    values = {"family": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "bf16"}
    with pytest.raises(InvalidProblemError, match=r"layout.*did you mean '._layout'"):
        read_problem({**values, "layout": "row"})


def test_what_a_problem_says_of_itself_is_a_row() -> None:
    for row in ROWS:
        problem = read_request(row, "h100-sxm5").problem
        again = read_problem({"family": problem.family, **_given(problem.to_dict())})
        assert again == problem


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def test_errors_are_ours() -> None:
    with pytest.raises(UsageError):
        read_request({"family": "gemm", "m": [1, 2], "n": 8, "k": 8, "dtype": "bf16"}, "t4")


def test_processes_answer_as_one_does(monkeypatch: pytest.MonkeyPatch, model_file: Path) -> None:
    monkeypatch.setattr(parallel, "WORTH_PROCESSES", 1)
    monkeypatch.setattr(parallel, "_cores", lambda: 2)
    rows = [*ROWS, {**ROWS[0], "gpu": "h1000"}]
    told: list[float] = []

    def ask(requests: Any) -> Any:
        return parallel.predict_in_processes(
            requests, model_file, lambda _what, part: told.append(part)
        )

    alone = predict_rows(rows, gpu="h100-sxm5", predictor=perfmodel.Predictor(model_file))
    assert predict_rows(rows, gpu="h100-sxm5", ask=ask) == alone
    assert told == sorted(told)
    assert told[-1] == 1.0
