from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InvalidProblemError, UnknownDtypeError
from perfmodel.problems import Gemm, parse_dtype
from perfmodel.problems.gemm import vector_bytes
from perfmodel.problems.sizes import SIZE_MAX

quick = settings(max_examples=80, deadline=None)
size = st.integers(0, 2**20)
layout = st.sampled_from(["row", "col"])
pair = st.one_of(
    st.sampled_from(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "int8", "fp4"]).map(
        lambda name: (name, name)
    ),
    st.tuples(st.sampled_from(["fp16", "bf16"]), st.sampled_from(["int8", "int4"])),
    st.just(("fp8_e4m3", "fp8_e5m2")),
)


@st.composite
def gemms(draw: st.DrawFn) -> Gemm:
    a, b = draw(pair)
    m, n, k = draw(size), draw(size), draw(size)
    a_layout, b_layout = draw(layout), draw(layout)
    extra = draw(st.integers(0, 100))
    return Gemm(
        m, n, k, draw(st.integers(0, 64)), a, b, a_layout=a_layout, b_layout=b_layout,
        lda=(k if a_layout == "row" else m) + extra, ldb=(n if b_layout == "row" else k) + extra,
    )  # fmt: skip


@given(gemms())
@quick
def test_a_problem_survives_being_written_down(problem: Gemm) -> None:
    assert Gemm(**json.loads(json.dumps(problem.to_dict()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == copy.deepcopy(problem) == problem
    assert hash(Gemm(**problem.to_dict())) == hash(problem)


@given(gemms())
@quick
def test_operations_and_bytes_are_those_of_the_definition(problem: Gemm) -> None:
    p = problem
    assert p.flops == pytest.approx(2 * p.m * p.n * p.k * p.batch, rel=1e-15)
    assert p.b_dtype is not None
    assert p.out_dtype is not None
    written = p.batch * p.m * p.n * p.out_dtype.bytes
    read = p.batch * (p.m * p.k * p.a_dtype.bytes + p.k * p.n * p.b_dtype.bytes)
    assert p.compulsory_bytes == pytest.approx(written + (read if written else 0), rel=1e-12)


def test_huge_sizes_are_exact() -> None:
    problem = Gemm(65536, 65536, 65536, a_dtype="bf16")
    assert problem.flops == 2**49
    assert problem.compulsory_bytes == 3 * 2**33


@pytest.mark.parametrize("empty", [{"m": 0}, {"n": 0}, {"batch": 0}])
def test_without_a_result_no_byte_has_to_move(empty: dict[str, int]) -> None:
    assert Gemm(**({"m": 8, "n": 8, "k": 8} | empty)).compulsory_bytes == 0


def test_depth_zero_still_writes_zeros() -> None:
    problem = Gemm(64, 32, 0, a_dtype="fp32")
    assert (problem.flops, problem.compulsory_bytes) == (0, 64 * 32 * 4)


@pytest.mark.parametrize(
    "sizes",
    [
        {"m": -1}, {"n": 2.5}, {"k": "3"}, {"m": None}, {"batch": -2}, {"m": True},
        {"n": math.nan}, {"k": math.inf}, {"m": SIZE_MAX + 1}, {"n": [4]}, {"k": 1e300},
    ],
)  # fmt: skip
def test_sizes_that_make_no_sense_are_named_with_what_is_allowed(sizes: dict[str, Any]) -> None:
    (name, value) = next(iter(sizes.items()))
    with pytest.raises(InvalidProblemError) as caught:
        Gemm(**({"m": 8, "n": 8, "k": 8} | sizes))
    assert str(caught.value).startswith(f"{name} is {value!r}")
    assert "whole number" in str(caught.value)


def test_whole_numbers_of_other_types_are_sizes() -> None:
    import numpy as np  # noqa: PLC0415

    problem = Gemm(np.int64(64), 32.0, np.float32(16))  # type: ignore[arg-type]
    assert problem == Gemm(64, 32, 16)
    assert all(type(getattr(problem, name)) is int for name in ("m", "n", "k"))


def test_a_stride_shorter_than_a_row_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="lda is 63, less than the 64"):
        Gemm(8, 8, 64, lda=63)
    with pytest.raises(InvalidProblemError, match="ldb is 7, less than the 8"):
        Gemm(8, 8, 64, ldb=7)
    assert Gemm(8, 8, 64, a_layout="col", lda=8).lda == 8  # down a column there are only 8


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"b_layout is 'rows'.*'row'.*'col'"):
        Gemm(8, 8, 8, b_layout="rows")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b"), [("fp16", "bf16"), ("fp32", "fp16"), ("int8", "fp8_e4m3"), ("int8", "bf16")]
)
def test_operands_that_no_product_takes_together_are_refused(a: str, b: str) -> None:
    with pytest.raises(InvalidProblemError, match=f"{a} x {b}"):
        Gemm(8, 8, 8, a_dtype=a, b_dtype=b)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnknownDtypeError, match="fp61"):
        Gemm(8, 8, 8, a_dtype="fp61")


@pytest.mark.parametrize(
    ("a", "b", "compute", "out"),
    [
        ("fp16", "fp16", "fp16", "fp16"),
        ("tf32", "tf32", "tf32", "fp32"),
        ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3", "bf16"),
        ("int8", "int8", "int8", "int32"),
        ("bf16", "int4", "bf16", "bf16"),
        ("fp64", "fp64", "fp64", "fp64"),
    ],
)
def test_products_are_formed_in_the_wider_type_and_kept_in_a_usual_one(
    a: str, b: str, compute: str, out: str
) -> None:
    problem = Gemm(8, 8, 8, a_dtype=a, b_dtype=b)
    assert (str(problem.compute_dtype), str(problem.out_dtype)) == (compute, out)


@pytest.mark.parametrize(
    ("k", "lda", "dtype", "expected"),
    [
        (4096, None, "fp16", 16),
        (4097, None, "fp16", 2),
        (4096, 4100, "fp16", 8),  # rows start at multiples of 8,200 bytes
        (4090, 4096, "fp16", 4),  # the last load of a row ends with it
        (7, None, "fp32", 4),
        (7, None, "int8", 1),
        (0, None, "fp16", 16),
    ],
)
def test_the_widest_aligned_load(k: int, lda: int | None, dtype: str, expected: int) -> None:
    problem = Gemm(8, 8, k, a_dtype=dtype, lda=lda)
    assert problem.a_vector_bytes == expected
    other_way = Gemm(8, 8, k, a_dtype=dtype, b_layout="col", ldb=lda)
    assert other_way.b_vector_bytes == expected


@given(st.integers(1, 2**30), st.integers(0, 64), st.sampled_from(["fp32", "fp16", "int8", "int4"]))
@quick
def test_a_load_is_a_power_of_two_that_divides_every_row(
    length: int, extra: int, name: str
) -> None:
    dtype = parse_dtype(name)
    width = vector_bytes(length + extra, length, dtype)
    assert width in (1, 2, 4, 8, 16)
    if dtype.bits >= 8:
        assert (length + extra) * dtype.bytes % width == 0
        assert width >= dtype.bytes


def test_4_bit_integers_are_weights_only() -> None:
    with pytest.raises(InvalidProblemError, match="int4 x int4"):
        Gemm(64, 64, 64, a_dtype="int4")
    assert Gemm(64, 64, 64, a_dtype="bf16", b_dtype="int4").compute_dtype.name == "bf16"
