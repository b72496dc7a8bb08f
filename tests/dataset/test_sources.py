from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.pull import pull
from perfmodel.errors import CorruptFileError, DataError
from perfmodel.problems.gemm import Gemm


def imported(world: Any, name: str) -> pd.DataFrame:
    pull(name, mirror=world.mirror)
    return store.load(name)


def mm(world: Any, sample: SimpleNamespace, rows: list[str], **header: Any) -> pd.DataFrame:
    text = sample.mm_text(rows, **header)
    world.add("made-mm", "autoheuristic", {"made.zip": sample.zip_bytes({"a/a_mm.txt": text})})
    return imported(world, "made-mm")


def grid(world: Any, files: dict[str, Any]) -> pd.DataFrame:
    contents = {
        name: content if isinstance(content, bytes) else json.dumps(content).encode()
        for name, content in files.items()
    }
    world.add("made-grid", "triton_grid", contents)
    return imported(world, "made-grid")


def test_one_row_per_problem_and_config_with_the_median_of_distinct_values(world: Any) -> None:
    table = imported(world, "sample-mm")
    assert len(table) == 4
    row = table[table["block_m"] == 64].iloc[0]
    assert row["latency_us"] == 82.0  # of 80, 82, 90: the repeat of 80 does not count
    assert list(row["distinct_us"]) == [80.0, 82.0, 90.0]
    assert (row["raw_rows"], row["distinct_repeats"], row["source_row"]) == (4, 3, 1)
    assert row["latency_spread"] == pytest.approx(10 / 82)
    assert (row["latency_min_us"], row["latency_max_us"]) == (80.0, 90.0)


def test_the_library_row_is_marked_and_has_no_config(world: Any) -> None:
    table = imported(world, "sample-mm")
    row = table[table["is_library"]].iloc[0]
    assert row["backend"] == "cublas"
    assert not row["config_known"]
    assert row[["block_m", "num_warps", "split_k"]].isna().all()
    assert row["latency_us"] == 50.0


def test_an_infinite_time_is_a_failure_without_a_time(world: Any) -> None:
    table = imported(world, "sample-mm")
    row = table[table["outcome"] != "ok"].iloc[0]
    assert row["outcome"] == "compile_failed"
    assert "not stated" in row["outcome_reason"]
    assert pd.isna(row["latency_us"])
    assert row["distinct_repeats"] == 0
    assert (row["a_dtype"], row["num_stages"]) == ("tf32", 5)


def test_provenance_reaches_every_row(world: Any) -> None:
    table = imported(world, "sample-mm")
    assert set(table["source_file"]) == {"sample mm.zip/a100/a100_mm.txt"}
    assert set(table["source_sha256"].str.len()) == {64}
    assert set(table["gpu"]) == {"a100-sxm4-80gb"}
    assert table["device_inferred"].all()
    assert "8.0" in table["device_source"][0]


def test_tile_parameters_land_in_their_columns(world: Any, sample: SimpleNamespace) -> None:
    choice = "type=triton_BLOCK-M=16_BLOCK-K=128_BLOCK-N=32_numstages=4_numwarps=2"
    row = mm(world, sample, [sample.mm_row(choice, 0.5)]).iloc[0]
    names = ["block_m", "block_n", "block_k", "num_stages", "num_warps", "group_m"]
    assert list(row[names]) == [16, 32, 128, 4, 2, 8]


@pytest.mark.parametrize(
    ("dtype", "flag", "expected"),
    [
        ("float32", "True", "tf32"),
        ("float32", "False", "fp32"),
        ("float16", "not_float_32", "fp16"),
        ("bfloat16", "not_float_32", "bf16"),
    ],
)
def test_tf32_is_a_dtype(
    world: Any, sample: SimpleNamespace, dtype: str, flag: str, expected: str
) -> None:
    row = mm(world, sample, [sample.mm_row("extern_mm", 1.0, dtype=dtype, tf32=flag)]).iloc[0]
    assert row["a_dtype"] == row["b_dtype"] == expected
    assert row["out_dtype"] == {"tf32": "fp32"}.get(expected, expected)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((512, 256), (256, 1), ("row", 256)),
        ((512, 256), (264, 1), ("row", 264)),
        ((512, 256), (1, 512), ("col", 512)),
        ((512, 256), (1, 520), ("col", 520)),
        ((1, 256), (1, 1), ("row", 256)),  # contiguous along k, whatever the one row's stride
        ((1, 256), (256, 1), ("row", 256)),
        ((1, 256), (1, 7), ("col", 7)),
        ((512, 1), (1, 1), ("col", 512)),
        ((512, 1), (1, 512), ("col", 512)),
        ((1, 1), (1, 1), ("row", 1)),
    ],
)
def test_layout_and_leading_stride(
    world: Any,
    sample: SimpleNamespace,
    shape: tuple[int, int],
    strides: tuple[int, int],
    expected: tuple[str, int],
) -> None:
    rows = [
        sample.mm_row("extern_mm", 1.0, m=shape[0], k=shape[1], a=strides),
        sample.mm_row("extern_mm", 2.0, k=shape[0], n=shape[1], b=strides),
    ]
    first, second = (row for _, row in mm(world, sample, rows).iterrows())
    assert (first["a_layout"], first["lda"]) == expected
    assert (second["b_layout"], second["ldb"]) == expected
    assert (first["a_stride_0"], first["a_stride_1"]) == strides
    assert (second["b_stride_0"], second["b_stride_1"]) == strides
    for row in (first, second):  # what was read is a problem that can be asked about
        Gemm(
            *(int(row[c]) for c in ("m", "n", "k")),
            a_layout=row["a_layout"], b_layout=row["b_layout"],
            lda=int(row["lda"]), ldb=int(row["ldb"]),
        )  # fmt: skip


def test_problems_that_differ_in_strides_stay_apart(world: Any, sample: SimpleNamespace) -> None:
    rows = [sample.mm_row("extern_mm", 1.0, a=a) for a in [(256, 1), (264, 1), (1, 512)]]
    assert len(mm(world, sample, rows)) == 3


def test_weights_of_another_type(world: Any, sample: SimpleNamespace) -> None:
    rows = [
        sample.mm_row("extern_fallback_mixed_mm", 1.0, dtype="bfloat16", b_dtype="int8"),
        sample.mm_row(sample.triton_choice(), 2.0, dtype="bfloat16", b_dtype="uint8"),
    ]
    table = mm(world, sample, rows, name="mixed_mm")
    assert list(table["b_dtype"]) == ["int8", "uint8"]
    assert list(table["out_dtype"]) == ["bf16", "bf16"]
    assert list(table["backend"]) == ["aten", "triton"]
    assert table["kernel"][1] == "inductor_mixed_mm"


def test_a_device_that_the_header_does_not_tell_is_null(
    world: Any, sample: SimpleNamespace
) -> None:
    row = mm(world, sample, [sample.mm_row("extern_mm", 1.0)], capability=(7, 7)).iloc[0]
    assert row["gpu"] is None or pd.isna(row["gpu"])
    assert row["device_source"].startswith("capability 7.7")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "line 1"),
        ("m,k,n\n1,2,3\n", "line 1"),
        ('{"device_capa": [8, 0], "name": "mm"}\nm,k,n\n1,2,3\n', "missing"),
        ('{"device_capa": [8, 0]}\nm,k,n\n1,2,3\n', "line 1"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(
    world: Any, sample: SimpleNamespace, text: str, named: str
) -> None:
    world.add("bad", "autoheuristic", {"b.zip": sample.zip_bytes({"x_mm.txt": text})})
    with pytest.raises(CorruptFileError, match=named) as raised:
        pull("bad", mirror=world.mirror)
    assert "x_mm.txt" in str(raised.value)
    assert not store.table_path("bad").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"a": (512, 2)}, "strides 512 and 2"),
        ({"a": (100, 1)}, "strides 100 and 1"),
        ({"a": (1, 1)}, "strides 1 and 1"),
        ({"dtype": "float3"}, "float3"),
    ],
)
def test_an_impossible_row_is_refused(
    world: Any, sample: SimpleNamespace, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(CorruptFileError, match=named):
        mm(world, sample, [sample.mm_row("extern_mm", 1.0, **change)])


def test_a_choice_of_an_unknown_form_is_refused(world: Any, sample: SimpleNamespace) -> None:
    with pytest.raises(CorruptFileError, match="type=cutlass_1"):
        mm(world, sample, [sample.mm_row("type=cutlass_1", 1.0)])


def test_a_cut_off_last_line_is_refused(world: Any, sample: SimpleNamespace) -> None:
    text = sample.mm_text([sample.mm_row("extern_mm", 1.0)] * 3)[:-40]
    world.add("bad", "autoheuristic", {"b.zip": sample.zip_bytes({"x_mm.txt": text})})
    with pytest.raises(CorruptFileError, match=r"x_mm\.txt"):
        pull("bad", mirror=world.mirror)


def test_an_archive_without_tables_is_refused(world: Any, sample: SimpleNamespace) -> None:
    world.add("bad", "autoheuristic", {"b.zip": sample.zip_bytes({"readme.md": "x"})})
    with pytest.raises(CorruptFileError, match=r"no \.txt"):
        pull("bad", mirror=world.mirror)


def test_the_grid_keeps_its_failures_as_outcomes(world: Any) -> None:
    table = imported(world, "sample-grid").set_index("block_m")
    assert dict(table["outcome"]) == {64: "ok", 128: "ok", 256: "compile_failed", 512: "timeout"}
    assert table["latency_us"][128] == 10.0
    assert pd.isna(table["latency_us"][256])
    assert table["compile_time_s"][512] == 9.0
    assert "not stated" in table["outcome_reason"][256]
    assert set(table["timing_method"]) == {"cuda_graph"}
    assert set(table["m"]) == set(table["lda"]) == {512}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1}', b'[{"BLOCK_SIZE_M": 16}]', b"[1, 2]", b"\xff\xfe"],
)
def test_a_grid_file_of_another_form_is_refused(world: Any, content: bytes) -> None:
    with pytest.raises(CorruptFileError, match="512_results"):
        grid(world, {"512_results.json": content or b" "})


def test_a_grid_file_needs_its_size_in_its_name(world: Any, sample: SimpleNamespace) -> None:
    with pytest.raises(CorruptFileError, match=r"SIZE_results\.json"):
        grid(world, {"big_results.json": [sample.grid_entry(ms=1.0, compile_time=1.0)]})


def test_an_unknown_importer_is_named(world: Any) -> None:
    world.add("odd", "no_such", {"x.json": b"[]"})
    with pytest.raises(DataError, match="no_such"):
        pull("odd", mirror=world.mirror)
