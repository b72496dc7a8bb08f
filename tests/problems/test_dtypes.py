from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UnknownDtypeError
from perfmodel.problems.dtypes import ALL, TF32, DType, parse_dtype


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_short_and_torch_names_lead_to_the_type(dtype: DType) -> None:
    assert parse_dtype(dtype.name) is dtype
    assert parse_dtype(dtype) is dtype
    if dtype is not TF32:  # torch has no such type: tf32 is fp32 in memory
        for name in (dtype.torch_name, f"torch.{dtype.torch_name}", f" {dtype.torch_name.upper()}"):
            assert parse_dtype(name) is dtype


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("half", "fp16"),
        ("bfloat16", "bf16"),
        ("float", "fp32"),
        ("fp8", "fp8_e4m3"),
        ("fp8-e5m2", "fp8_e5m2"),
        ("torch.float8_e4m3fn", "fp8_e4m3"),
        ("i8", "int8"),
        ("tf32", "tf32"),
    ],
)
def test_what_people_type_is_understood(text: str, name: str) -> None:
    assert str(parse_dtype(text)) == name


def test_storage_sizes_in_bytes() -> None:
    sizes = {d.name: d.bytes for d in ALL}
    assert sizes["tf32"] == sizes["fp32"] == sizes["int32"] == 4
    assert sizes["int4"] == sizes["fp4"] == 0.5
    assert sizes["fp8_e4m3"] == sizes["int8"] == 1


def test_an_unknown_type_is_an_error_that_helps() -> None:
    with pytest.raises(UnknownDtypeError, match=r"'bf61'.*did you mean 'bf16'.*int8") as caught:
        parse_dtype("bf61")
    assert caught.value.exit_code == 2


@given(st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_text_is_a_type_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UnknownDtypeError):
        assert parse_dtype(text) in ALL


def test_a_type_object_is_taken_by_what_it_prints_as() -> None:
    class TorchType:  # prints as torch's own types do
        def __str__(self) -> str:
            return "torch.bfloat16"

    assert parse_dtype(TorchType()).name == "bf16"
    assert parse_dtype(np.dtype(np.float16)).name == "fp16"
    for wrong in (None, 5):
        with pytest.raises(UnknownDtypeError, match=repr(wrong)):
            parse_dtype(wrong)
