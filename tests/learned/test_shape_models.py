from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.errors import DataError, ModelFileError, SchemaMismatchError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.artifact import write_pair
from perfmodel.learned.booster import scaled
from perfmodel.learned.shape_artifact import load_shape_model, save_shape_model
from perfmodel.learned.shape_features import backend_on
from perfmodel.learned.shape_model import ShapeModel
from perfmodel.learned.shape_table import ShapeRows, at_highest_clock, shape_columns, shape_rows
from perfmodel.learned.shape_training import ANY_SPEC, DEVICE_SPEC, fit_shape_heads, shape_model
from perfmodel.problems.attention import Attention
from perfmodel.problems.attention_table import AttentionTable
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable

GPUS = ("a100-sxm4-80gb", "h100-sxm5", "l40s")
SLOWER = {"a100-sxm4-80gb": 1.2, "h100-sxm5": 1.5, "l40s": 2.0}


def measurements() -> pd.DataFrame:
    """Launches that take a device's own multiple of the estimate, and 5 us in vLLM."""
    grid = [(m, n, k) for m in (1, 16, 128, 1000, 4096) for n in (512, 4096) for k in (1024, 8192)]
    frames = []
    for gpu in GPUS:
        for library in ("vllm", "sglang"):
            frame = pd.DataFrame(grid, columns=["m", "n", "k"]).assign(
                family="gemm", batch=1, a_dtype="bf16", b_dtype="bf16", out_dtype="bf16", gpu=gpu,
                library=library, library_version="1.0", backend="cublas", kernel="linear",
                source="made-up", latency_us=1.0,
            )  # fmt: skip
            slower = SLOWER[gpu] * shape_rows(frame).analytic_s * 1e6
            frames.append(frame.assign(latency_us=slower + (5.0 if library == "vllm" else 0.0)))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def rows() -> ShapeRows:
    return shape_rows(measurements())


@pytest.fixture(scope="module")
def model(rows: ShapeRows) -> ShapeModel:
    loose = {"rows_per_leaf": 1.0, "subsample": 1.0, "columns_per_tree": 1.0}
    heads = fit_shape_heads(
        rows, replace(scaled(ANY_SPEC, 0.2), **loose), replace(scaled(DEVICE_SPEC, 0.2), **loose)
    )
    error = np.abs(rows.target - heads.log_correction(rows)) + 0.05
    return shape_model("gemm", rows, heads, (rows, error), (rows, 4.0 * error))


def test_what_was_measured_is_answered(model: ShapeModel, rows: ShapeRows) -> None:
    for gpu in GPUS:
        mine = rows.take(rows.gpu == gpu)
        answer = mine.analytic_s * np.exp(model.for_device(gpu).log_correction(mine.features))
        assert np.abs(answer / mine.latency_s - 1.0).mean() < 0.05


def test_an_unknown_device_is_answered_by_the_trees_of_all(model: ShapeModel) -> None:
    gpu = load_gpu("h20")
    assert not model.knows(gpu.name, "bf16")
    assert model.for_device(gpu.name).device is None
    assert set(model.known_kernels(gpu.name)) == {"vllm/cublas@1.0", "sglang/cublas@1.0"}


def test_intervals_are_wider_on_a_device_left_out(model: ShapeModel, rows: ShapeRows) -> None:
    _, seen = model.log_interval(rows.features, True)
    _, unseen = model.log_interval(rows.features, False)
    assert (unseen > seen).all()


def test_a_saved_model_answers_alike(model: ShapeModel, rows: ShapeRows, tmp_path: Path) -> None:
    path = tmp_path / "shape-gemm.json"
    save_shape_model(model, path)
    again = load_shape_model("gemm", path)
    assert again.manifest == model.manifest
    for gpu in (*GPUS, "h20"):
        np.testing.assert_array_equal(
            again.for_device(gpu).log_correction(rows.features),
            model.for_device(gpu).log_correction(rows.features),
        )


def test_trees_of_a_device_are_checked_when_it_is_asked_about(
    model: ShapeModel, tmp_path: Path
) -> None:
    path = tmp_path / "own.json"
    save_shape_model(model, path)
    again = load_shape_model("gemm", path)
    assert sorted(again.devices) == sorted(model.devices)
    assert "t4" not in again.devices
    with pytest.raises(KeyError):
        again.devices["t4"]
    with np.load(path.with_suffix(".npz")) as opened:
        arrays = dict(opened)
    broken, sound = sorted(model.devices)[:2]
    arrays[f"device/{broken}/roots"] = arrays[f"device/{broken}/roots"][1:]
    text = json.loads(path.read_text())
    write_pair({k: v for k, v in text.items() if not k.startswith("trees")}, arrays, path)
    again = load_shape_model("gemm", path)
    row = np.zeros((1, len(model.manifest.features)), dtype=np.float32)
    assert np.isfinite(again.for_device(sound).log_correction(row)).all()
    with pytest.raises(ModelFileError, match="not well formed"):
        again.for_device(broken).log_correction(row)


def test_a_model_of_other_features_or_another_family_is_refused(
    model: ShapeModel, tmp_path: Path
) -> None:
    path = tmp_path / "shape-gemm.json"
    save_shape_model(model, path)
    with pytest.raises(ModelFileError, match="not a shape-model of decode"):
        load_shape_model("decode", path)
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text | {"schema": "shape-0"}))
    with pytest.raises(SchemaMismatchError, match="perfmodel train shape gemm"):
        load_shape_model("gemm", path)


def test_rows_of_two_families_are_refused() -> None:
    frame = measurements()
    frame.loc[0, "family"] = "attention"
    with pytest.raises(DataError, match="of one family"):
        shape_rows(frame)


def test_the_same_site_has_one_number_on_every_device(rows: ShapeRows) -> None:
    per_device = len(rows) // len(GPUS)
    np.testing.assert_array_equal(rows.site[:per_device], rows.site[-per_device:])


def test_peaks_follow_the_clock() -> None:
    gpu = load_gpu("h100-sxm5")
    fast = at_highest_clock(gpu)
    assert fast.boost_clock_mhz == gpu.max_clock_mhz
    ratio = fast.tensor_tflops["bf16"] / gpu.tensor_tflops["bf16"]
    assert ratio == pytest.approx(fast.boost_clock_mhz / gpu.boost_clock_mhz)


@pytest.mark.parametrize("gpu", [*GPUS, "b200", "h20", "rtx-pro-6000-server"])
def test_features_are_finite_down_to_no_work(gpu: str) -> None:
    device = load_gpu(gpu)
    gemms = [Gemm(0, 64, 64), Gemm(1, 1, 1), Gemm(8192, 8192, 0), Gemm(100_000, 4096, 4096)]
    attention = [
        Attention(batch=0, q_len=1), Attention(batch=3, q_len=17, q_heads=6, kv_heads=2),
        Attention(q_len=(1, 500, 0), kv_len=(9, 500, 0), q_heads=8, window=64),
    ]  # fmt: skip
    for table in (GemmTable.of_problems(gemms), AttentionTable.of_problems(attention)):
        columns, found = shape_columns(table, device)
        assert (found.seconds > 0).all()
        for name, values in columns.items():
            assert np.isfinite(values).all(), name


def test_unequal_sequences_are_described_as_their_sum() -> None:
    device = load_gpu("h100-sxm5")
    one = AttentionTable.of(Attention(batch=4, q_len=100, q_heads=8))
    same = AttentionTable.of(Attention(q_len=(100, 100, 100, 100), q_heads=8))
    a, b = (shape_columns(t, device) for t in (one, same))
    assert a[1].seconds == pytest.approx(b[1].seconds)
    for name, value in a[0].items():
        assert np.asarray(value) == pytest.approx(np.asarray(b[0][name])), name


def test_flash_attention_without_a_version_is_the_second_on_ampere() -> None:
    assert backend_on("flash_attention", load_gpu("a100-sxm4-80gb")) == "flash_attention_2"
    assert backend_on("flash_attention", load_gpu("h100-sxm5")) == "flash_attention"
    assert backend_on("triton", load_gpu("a100-sxm4-80gb")) == "triton"
