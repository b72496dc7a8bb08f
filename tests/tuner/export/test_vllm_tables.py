from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.vllm_default import vllm_default
from perfmodel.dataset.vllm_key import MoeTableKey, device_of, device_part
from perfmodel.errors import (
    AmbiguousGpuError,
    CorruptFileError,
    InvalidProblemError,
    TuningWarning,
    UnknownGpuError,
    UsageError,
)
from perfmodel.hardware.catalog import load_gpu, resolve
from perfmodel.predictor import Predictor
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import TileConfig
from tuner.export.shapes import Shape
from tuner.export.vllm import (
    entry,
    look_up,
    make_tables,
    read_table,
    takes,
    to_vllm,
    write_tables,
)

H100 = load_gpu("h100-sxm5")
DRIVER = "NVIDIA H100 80GB HBM3"
ANALYTIC = Predictor(analytic_only=True)
MIXTRAL = GroupedGemm(256, 8, 2, 4096, 14336, tp=2)
DEEPSEEK = GroupedGemm(64, 256, 8, 7168, 2048, ep=8, dtype="fp8_e4m3")

ODD_NAMES = [
    "AMD Instinct MI50/MI60",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA H100 PCIe  ",
    "国产 GPU № 7",
    "100% fast, E=8_x\\y:z",
]


def tables(*problems: GroupedGemm, block_shape: tuple[int, int] | None = None) -> list:
    return make_tables([Shape(p, block_shape) for p in problems], H100, DRIVER, ANALYTIC)


@pytest.mark.parametrize(
    "name",
    [
        "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json",
        "E=64,N=1280,device_name=NVIDIA_A100-SXM4-80GB.json",
        "E=16,N=1792,device_name=NVIDIA_H100_80GB_HBM3,dtype=int8_w8a16.json",
        "E=256,N=128,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json",
    ],
)
def test_the_names_of_vllms_own_files_come_back(name: str) -> None:
    assert MoeTableKey.parse(name).file_name == name


def test_a_layer_is_named_as_vllm_names_it() -> None:
    assert MoeTableKey.of(MIXTRAL, DRIVER).file_name == (
        "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"
    )
    assert MoeTableKey.of(DEEPSEEK, DRIVER, (128, 128)).file_name == (
        "E=32,N=2048,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    )


def test_vllm_has_one_name_for_the_h200_family() -> None:
    assert MoeTableKey.of(MIXTRAL, "NVIDIA H200 NVL").device == "NVIDIA H200"
    assert MoeTableKey.of(MIXTRAL, "NVIDIA GH200 480GB").device == "NVIDIA GH200 480GB"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_tb2_odd_device_names_make_safe_reversible_files(name: str, tmp_path: Path) -> None:
    key = MoeTableKey.of(MIXTRAL, name)
    path = tmp_path / key.file_name
    assert path.parent == tmp_path  # no part of the name is a folder
    path.write_text("{}")
    (found,) = tmp_path.iterdir()
    assert MoeTableKey.parse(found.name) == key
    assert key.device == name


@pytest.mark.parametrize(
    ("name", "known"),
    [("NVIDIA H100 PCIe  ", "h100-pcie"), (DRIVER, "h100-sxm5"), ("NVIDIA H100 NVL", "h100-nvl")],
)
def test_tb2_siblings_are_told_apart(name: str, known: str) -> None:
    assert resolve(name) == known


@pytest.mark.parametrize("name", ["NVIDIA H100", *ODD_NAMES[:3], *ODD_NAMES[4:]])
def test_tb2_a_name_of_no_one_device_is_said_to_be_unknown(name: str) -> None:
    with pytest.raises((UnknownGpuError, AmbiguousGpuError)):
        resolve(name)


@given(st.text(min_size=1, max_size=40))
def test_tb2_every_name_comes_back(name: str) -> None:
    part = device_part(name)
    assert not set(part) & set("/\\,=\x00")
    assert device_of(part) == name


@pytest.mark.parametrize("name", ["", "  ", "x" * 300])
def test_a_name_that_no_file_can_have_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="device"):
        _ = MoeTableKey.of(MIXTRAL, name).file_name


@pytest.mark.parametrize("name", ["notes.json", "E=8,N=7168.json", "E=8,N=1,device_name=a%FF.json"])
def test_another_files_name_is_no_key(name: str) -> None:
    with pytest.raises(CorruptFileError):
        MoeTableKey.parse(name)


@pytest.mark.parametrize(
    ("dtype", "weight", "word"),
    [
        ("bf16", None, None),
        ("fp16", None, None),
        ("fp8_e4m3", None, "fp8_w8a8"),
        ("int8", None, "int8_w8a8"),
        ("bf16", "int8", "int8_w8a16"),
        ("fp16", "int4", "int4_w4a16"),
        ("fp32", None, "float32"),
    ],
)
def test_tb3_what_tune_writes_is_what_a_call_reads(
    tmp_path: Path, dtype: str, weight: str | None, word: str | None
) -> None:
    problem = GroupedGemm(64, 16, 2, 2048, 3584, tp=2, dtype=dtype, weight_dtype=weight)
    (table,) = tables(problem)
    assert table.key.quantisation == word
    assert table.key.width == 1792  # in elements, however they are packed
    (path,) = write_tables([table], tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = look_up(tmp_path, problem, H100, DRIVER)
    assert to_vllm(found) == json.loads(path.read_text())["64"] == to_vllm(
        table.entries[64].pick.config
    )  # fmt: skip


def test_tb3_a_call_takes_the_entry_of_the_nearest_tokens(tmp_path: Path) -> None:
    few, many = replace(MIXTRAL, tokens=16), replace(MIXTRAL, tokens=4096)
    (table,) = tables(few, many)
    write_tables([table], tmp_path)
    assert look_up(tmp_path, replace(MIXTRAL, tokens=20), H100, DRIVER) == read_table(
        tmp_path / table.key.file_name, few, H100
    )[16]  # fmt: skip
    assert look_up(tmp_path, replace(MIXTRAL, tokens=9000), H100, DRIVER) == read_table(
        tmp_path / table.key.file_name, many, H100
    )[4096]  # fmt: skip


def test_a_table_has_vllms_parameters_and_no_others() -> None:
    (table,) = tables(MIXTRAL)
    (row,) = table.to_dict().values()
    assert list(row) == [
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages",
    ]  # fmt: skip
    assert all(isinstance(value, int) for value in row.values())


@pytest.mark.parametrize("tokens", [1, 64, 256, 4096])
def test_tb1_a_pick_is_never_expected_to_be_slower_than_the_default(tokens: int) -> None:
    found = entry(replace(MIXTRAL, tokens=tokens), H100, ANALYTIC)
    assert found.gain is not None
    assert found.gain >= 0
    assert found.gain == 0 or found.pick.config != found.default


def test_tb1_a_default_that_the_model_cannot_tell_from_the_best_stays() -> None:
    found = entry(replace(MIXTRAL, tokens=1), H100, ANALYTIC)
    assert found.pick.config == found.default
    assert found.gain == 0


def test_tb1_a_folder_with_a_space_is_quoted_in_the_command(tmp_path: Path) -> None:
    with pytest.warns(TuningWarning, match="--out '.*my tables'"):
        look_up(tmp_path / "my tables", MIXTRAL, H100, DRIVER, predictor=ANALYTIC)


def test_tb1_a_missing_table_is_one_warning_with_the_loss_and_the_command(tmp_path: Path) -> None:
    with pytest.warns(TuningWarning) as caught:
        assert look_up(tmp_path, MIXTRAL, H100, DRIVER, predictor=ANALYTIC) is None
    (warning,) = caught
    text = str(warning.message)
    loss = entry(MIXTRAL, H100, ANALYTIC).gain or 0
    assert f"about {100 * loss:.0f} % slower" in text
    assert (
        f"perfmodel tune moe --shapes SHAPES.csv --gpu h100-sxm5 --export vllm --out {tmp_path}"
        in text
    )


def test_tb1_a_table_that_exists_is_not_replaced_unasked(tmp_path: Path) -> None:
    made = tables(MIXTRAL)
    path = tmp_path / made[0].key.file_name
    path.write_text('{"1": {}}')
    with pytest.raises(UsageError, match="--replace"):
        write_tables(made, tmp_path)
    assert path.read_text() == '{"1": {}}'
    write_tables(made, tmp_path, replace=True)
    assert "256" in json.loads(path.read_text())


GOOD = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({**GOOD, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256, "num_stages": 5}, "shared memory"),
        ({**GOOD, "waves_per_eu": 2}, "waves_per_eu"),
        ({**GOOD, "SPLIT_K": 4}, "does not take"),
        ({**GOOD, "num_warps": 0}, "num_warps"),
    ],
)
def test_tb7_a_stored_config_that_became_illegal_is_ignored(
    tmp_path: Path, bad: dict[str, int], reason: str
) -> None:
    path = tmp_path / MoeTableKey.of(MIXTRAL, DRIVER).file_name
    path.write_text(json.dumps({"256": bad, "512": GOOD, "triton_version": "3.6.0"}))
    with pytest.warns(TuningWarning, match=reason) as caught:
        found = look_up(tmp_path, MIXTRAL, H100, DRIVER)
    assert len(caught) == 1
    assert found == TileConfig.from_mapping(GOOD)


def test_tb7_with_no_legal_entry_there_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / MoeTableKey.of(MIXTRAL, DRIVER).file_name
    path.write_text(json.dumps({"256": {**GOOD, "gone": 1}}))
    with pytest.warns(TuningWarning, match="1 of 1 entries"):
        assert look_up(tmp_path, MIXTRAL, H100, DRIVER) is None


@pytest.mark.parametrize("text", ["", "[]", '{"a": {}}', '{"1": 7}'])
def test_tb7_a_file_that_is_no_table_is_a_typed_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / MoeTableKey.of(MIXTRAL, DRIVER).file_name
    path.write_text(text)
    with pytest.raises(CorruptFileError):
        look_up(tmp_path, MIXTRAL, H100, DRIVER)


def test_a_step_along_k_stays_in_one_block_of_scales() -> None:
    (table,) = tables(DEEPSEEK, block_shape=(128, 128))
    for found in table.entries.values():
        assert 128 % found.pick.config.block_k == 0
    assert not takes(TileConfig(block_k=256), (128, 128))


# The rule of vLLM's pull request 34846, read from its source.
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1, "16x64x128 g1 w4 s4"),
        (64, "32x64x128 g1 w4 s3"),
        (256, "64x128x64 g1 w8 s3"),
        (4096, "128x128x64 g16 w8 s3"),
    ],
)
def test_the_default_is_vllms(tokens: int, expected: str) -> None:
    assert str(vllm_default(replace(MIXTRAL, tokens=tokens), H100)) == expected


def test_the_default_of_other_types() -> None:
    block = vllm_default(DEEPSEEK, H100, (128, 128))
    assert str(block) == "16x128x128 g32 w4 s3"
    four_bits = GroupedGemm(8, 64, 2, 2048, 1408, weight_dtype="int4")
    assert vllm_default(four_bits, H100, (0, 128)) is None  # a CUDA kernel's turn
    assert entry(four_bits, H100, ANALYTIC, (0, 128)).gain is None
    many = replace(four_bits, tokens=4096)
    assert str(vllm_default(many, H100, (0, 128))) == "64x64x32 g1 w4 s3"
    assert "block_shape" not in MoeTableKey.of(many, DRIVER, (0, 128)).file_name
    amd = vllm_default(MIXTRAL, load_gpu("mi300x"))
    assert amd is not None
    assert amd.num_stages == 2


def test_what_vllm_cannot_tell_apart_is_an_error() -> None:
    with pytest.raises(InvalidProblemError, match="two shapes are for 256 tokens"):
        tables(MIXTRAL, replace(MIXTRAL, hidden=2048))
    with pytest.raises(InvalidProblemError, match="projection"):
        tables(replace(MIXTRAL, projection="up"))
    with pytest.raises(InvalidProblemError, match="no table for fp8_e5m2"):
        tables(GroupedGemm(1, 8, 2, 64, 64, dtype="fp8_e5m2"))
