from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.errors import DataError, InvalidProblemError, UnknownShapeError, UsageError
from perfmodel.problems import Attention, Gemm, GroupedGemm
from tuner.export.shapes import REQUIRED, read_shapes, shape_fields


def shapes(tmp_path: Path, text: str, family: str = "gemm", name: str = "s.csv") -> list:
    path = tmp_path / name
    path.write_text(text)
    return read_shapes(path, family)


def test_csv_and_json_lines(tmp_path: Path) -> None:
    expected = [Gemm(16, 32, 64), Gemm(1, 2, 3, a_dtype="fp16", b_layout="col")]
    csv = "m,n,k,dtype,b_layout\n16,32,64,bf16,\n1,2,3,fp16,col\n"
    assert [s.problem for s in shapes(tmp_path, csv)] == expected
    rows = [{"m": 16, "n": 32, "k": 64, "dtype": "bf16"},
            {"m": 1, "n": 2, "k": 3, "a_dtype": "fp16", "b_layout": "col"}]  # fmt: skip
    lines = "\n".join(map(json.dumps, rows)) + "\n\n"
    assert [s.problem for s in shapes(tmp_path, lines, name="s.jsonl")] == expected


def test_a_shape_that_stands_there_twice_is_one(tmp_path: Path) -> None:
    assert len(shapes(tmp_path, "m,n,k,dtype\n16,32,64,bf16\n8,32,64,bf16\n16,32,64,bf16\n")) == 2


def test_other_families(tmp_path: Path) -> None:
    text = "q_len,q_heads,head_dim,dtype,kv_len,causal\n1,32,128,bf16,4096,true\n"
    (found,) = shapes(tmp_path, text, "attention")
    assert isinstance(found.problem, Attention)
    assert found.problem.kv_len == 4096


@pytest.mark.parametrize("tokens", ['"1,2,8"', '"[1, 2, 8]"', "1;2;8", "1 2 8"])
def test_tokens_may_be_several(tmp_path: Path, tokens: str) -> None:
    text = f"tokens,experts,top_k,hidden,intermediate,dtype,block_shape\n{tokens},8,2,64,128,bf16,"
    text += '"[128,64]"\n'
    found = shapes(tmp_path, text, "moe")
    assert [s.problem.tokens for s in found] == [1, 2, 8]
    assert {s.block_shape for s in found} == {(128, 64)}
    row = {"tokens": [1, 2], "experts": 8, "top_k": 2, "hidden": 64, "intermediate": 8,
           "dtype": "bf16", "block_shape": [64, 64]}  # fmt: skip
    assert len(shapes(tmp_path, json.dumps(row), "moe", "s.jsonl")) == 2


@pytest.mark.parametrize("family", list(REQUIRED))
def test_tb8_missing_and_unknown_fields_are_named_with_all_that_there_are(
    tmp_path: Path, family: str
) -> None:
    good = {name: "bf16" if name == "dtype" else "8" for name in REQUIRED[family]}
    assert shapes(tmp_path, f"{','.join(good)}\n{','.join(good.values())}\n", family)
    for name in good:
        rest = {other: value for other, value in good.items() if other != name}
        with pytest.raises(UnknownShapeError) as missing:
            shapes(tmp_path, f"{','.join(rest)}\n{','.join(rest.values())}\n", family)
        assert f"line 2: missing field {name}" in str(missing.value)
        assert all(field in str(missing.value) for field in shape_fields(family))
    text = f"{','.join(good)},num_experts\n{','.join(good.values())},8\n"
    with pytest.raises(UnknownShapeError) as unknown:
        shapes(tmp_path, text, family)
    assert "unknown field 'num_experts'" in str(unknown.value)
    assert all(field in str(unknown.value) for field in shape_fields(family))


def test_tb8_another_models_names_are_not_guessed(tmp_path: Path) -> None:
    text = "num_tokens,n_routed_experts,top_k,hidden_size,moe_intermediate,dtype\n1,8,2,8,8,bf16"
    with pytest.raises(UnknownShapeError, match=r"tokens, experts, top_k, hidden, intermediate"):
        shapes(tmp_path, text, "moe")


@pytest.mark.parametrize(
    ("text", "name", "error", "words"),
    [
        ("m,n,k,dtype\n", "s.csv", DataError, "no shapes"),
        ("m,n,k,dtype\n1,2,3,bf16,4\n", "s.csv", DataError, "more values"),
        ('m,n,k,dtype\n1,2,"3,bf16\n', "s.csv", DataError, "not CSV"),
        ("{", "s.jsonl", DataError, "line 1 is not JSON"),
        ("[1]", "s.jsonl", DataError, "named fields"),
        ("m,n,k,dtype\n-1,2,3,bf16\n", "s.csv", InvalidProblemError, "line 2: m is"),
        ("m,n,k,dtype\n1,2,3,bf17\n", "s.csv", UsageError, "line 2: .*bf17"),
        ("m,n,k,dtype,family\n1,2,3,bf16,moe\n", "s.csv", UnknownShapeError, "family is 'moe'"),
        ("m,n,k,dtype\n1,2,3,bf16\n", "s.txt", DataError, "ends in .csv"),
    ],
)
def test_bad_files_say_where(
    tmp_path: Path, text: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        shapes(tmp_path, text, name=name)


def test_bad_blocks_and_missing_files(tmp_path: Path) -> None:
    text = "tokens,experts,top_k,hidden,intermediate,dtype,block_shape\n1,8,2,64,128,bf16,128\n"
    with pytest.raises(UnknownShapeError, match=r"\[128, 128\]"):
        shapes(tmp_path, text, "moe")
    with pytest.raises(DataError, match="cannot read"):
        read_shapes(tmp_path / "none.csv", "gemm")
    assert isinstance(shapes(tmp_path, text.replace("128\n", "\n"), "moe")[0].problem, GroupedGemm)
