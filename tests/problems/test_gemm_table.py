from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InvalidProblemError
from perfmodel.problems import Gemm, parse_dtype
from perfmodel.problems.gemm_table import NUMBER_FIELDS, GemmTable

size = st.integers(0, 2**17)
layout = st.sampled_from(["row", "col"])
DTYPES = [("fp16", "fp16"), ("fp32", "fp32"), ("int8", "int8"), ("bf16", "int4")]


@st.composite
def alike(draw: st.DrawFn) -> list[Gemm]:
    """Problems of the same data types."""
    a, b = draw(st.sampled_from(DTYPES))
    out = []
    for _ in range(draw(st.integers(1, 5))):
        m, n, k, a_layout, b_layout = draw(st.tuples(size, size, size, layout, layout))
        pad = draw(st.sampled_from([0, 1, 8]))
        out.append(
            Gemm(
                m, n, k, draw(st.integers(0, 9)), a, b, a_layout=a_layout, b_layout=b_layout,
                lda=(k if a_layout == "row" else m) + pad,
                ldb=(n if b_layout == "row" else k) + pad,
            )
        )  # fmt: skip
    return out


@given(alike())
@settings(max_examples=60, deadline=None)
def test_the_columns_of_a_measurement_table_describe_the_same_problems(
    problems: list[Gemm],
) -> None:
    of_columns = GemmTable.of_columns(
        **{name: [getattr(p, name) for p in problems]
           for name in ("m", "n", "k", "batch", "lda", "ldb")},
        a_row=[p.a_layout == "row" for p in problems],
        b_row=[p.b_layout == "row" for p in problems],
        dtypes=tuple(parse_dtype(getattr(problems[0], f"{x}_dtype")) for x in ("a", "b", "out")),
    )  # fmt: skip
    together = GemmTable.of_problems(problems)
    for row, problem in enumerate(problems):
        alone = GemmTable.of(problem)
        for name in NUMBER_FIELDS:
            expected = getattr(alone, name)
            assert getattr(of_columns, name)[row] == expected, name
            assert getattr(together, name)[row] == expected, name
    assert of_columns.compute_dtype == together.compute_dtype == problems[0].compute_dtype


def test_a_table_of_different_types_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="one set of data types"):
        GemmTable.of_problems([Gemm(8, 8, 8, a_dtype="fp16"), Gemm(8, 8, 8, a_dtype="bf16")])
    with pytest.raises(InvalidProblemError):
        GemmTable.of_problems([])


def test_sizes_are_exact_beyond_32_bits() -> None:
    table = GemmTable.of_columns(
        m=[2**40], n=[65536], k=[2**33 + 1], batch=[1], a_row=[True], b_row=[True],
        lda=[2**33 + 1], ldb=[65536], dtypes=(parse_dtype("fp16"),) * 3,
    )  # fmt: skip
    assert table.a_pitch_bytes == np.array([2.0**34 + 2])
    assert table.a_vector_bytes == np.array([2.0])
