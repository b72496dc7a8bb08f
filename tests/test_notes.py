from __future__ import annotations

import pytest

from perfmodel.errors import InvalidConfigError
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm


@pytest.mark.parametrize(
    ("gpu", "dtype", "a", "b", "said"),
    [
        ("h100-sxm5", "fp8_e4m3", "row", "row", "contiguous: b_layout=col"),
        ("h100-sxm5", "int8", "col", "row", "contiguous: a_layout=row and b_layout=col"),
        ("h100-sxm5", "fp8_e4m3", "row", "col", None),
        ("h100-sxm5", "bf16", "row", "row", None),
        ("l40s", "fp8_e4m3", "row", "row", None),
    ],
)
def test_a_layout_that_rules_out_wgmma_is_noted(
    gpu: str, dtype: str, a: str, b: str, said: str | None
) -> None:
    problem = Gemm(1024, 1024, 1024, a_dtype=dtype, a_layout=a, b_layout=b)  # type: ignore[arg-type]
    notes = [
        note
        for note in Predictor(analytic_only=True).predict(problem, gpu).notes
        if "8-bit" in note
    ]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


@pytest.mark.parametrize("top", [0, -1])
def test_a_ranking_of_less_than_one_is_refused(top: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"top is {top}"):
        Predictor(analytic_only=True).rank(Gemm(64, 64, 64), "h100-sxm5", top=top)
