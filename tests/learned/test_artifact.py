"""Models in files: the same bytes for the same model, and a clear refusal of anything else."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cli.app import main
from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.learned.artifact import load_model, save_adaptation, save_model
from perfmodel.learned.forest import Forest
from perfmodel.learned.model import DeviceDelta, GemmModel


def rewrite(manifest: Path, **changed: Any) -> None:
    text = json.loads(manifest.read_text())
    text.update(changed)
    manifest.write_text(json.dumps(text))


def put_trees(manifest: Path, raw: bytes) -> None:
    """Put other trees beside the manifest, with their right checksum in it."""
    manifest.with_suffix(".npz").write_bytes(raw)
    rewrite(manifest, trees_sha256=hashlib.sha256(raw).hexdigest())


def npz(**arrays: Any) -> bytes:
    out = BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def refused(path: Path, error: type[Exception] = ModelFileError) -> str:
    """Return the message with which ``path`` is refused."""
    with pytest.raises(error) as caught:
        load_model(path)
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]
    assert path.stem in str(caught.value)
    return str(caught.value)


# --- round trips ------------------------------------------------------------------------------


def test_a_loaded_model_is_the_one_saved(model_file: Path) -> None:
    model = load_model(model_file)
    rows = np.zeros((3, len(model.manifest.features)), dtype=np.float32)
    np.testing.assert_allclose(model.log_correction(rows), 0.1, rtol=1e-6)
    assert model.knows("h100-sxm5", "bf16")
    assert not model.knows("h100-sxm5", "fp16")
    assert model.manifest == load_model(model_file).manifest
    assert model.manifest.calibration.seen == 2.0


def test_equal_models_make_equal_files(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / model_file.name
    save_model(load_model(model_file), again)
    for suffix in (".json", ".npz"):
        first, second = (p.with_suffix(suffix).read_bytes() for p in (model_file, again))
        assert first == second, suffix


def test_saving_leaves_the_pair_and_nothing_else(model_file: Path) -> None:
    save_model(load_model(model_file), model_file)  # over itself
    assert sorted(p.name for p in model_file.parent.iterdir()) == ["tiny.json", "tiny.npz"]


def test_the_manifest_is_for_people(model_file: Path) -> None:
    text = json.loads(model_file.read_text())
    for name in ("schema", "version", "features", "known", "accuracy", "calibration", "trees"):
        assert name in text


def adapted(model_file: Path) -> GemmModel:
    model = load_model(model_file)
    delta = DeviceDelta(model.time, model.rank, ("fp16",), 3.0, 0.05, 20)
    return replace(model, deltas={"b200": delta})


def test_an_adaptation_is_found_beside_its_model(model_file: Path) -> None:
    path = model_file.with_name("added.json")
    save_adaptation(adapted(model_file), path)
    model = load_model(path)
    rows = np.zeros((1, len(model.manifest.features)), dtype=np.float32)
    assert model.for_device("b200").log_correction(rows) == pytest.approx(0.2)
    assert model.for_device("h100-sxm5").log_correction(rows) == pytest.approx(0.1)
    assert model.for_device("b200").knows("b200", "fp16")
    assert not model.for_device("h100-sxm5").knows("b200", "fp16")


def test_an_adaptation_without_its_model_is_refused(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "added.json"
    save_adaptation(adapted(model_file), path)
    assert "tiny-1" in refused(path)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_a_truncated_file(model_file: Path, suffix: str, keep: float) -> None:
    part = model_file.with_suffix(suffix)
    raw = part.read_bytes()
    part.write_bytes(raw[: int(keep * len(raw))])
    refused(model_file)


@pytest.mark.parametrize("at", [0, 0.3, 0.6, 0.999])
def test_one_altered_byte_of_the_trees(model_file: Path, at: float) -> None:
    trees = model_file.with_suffix(".npz")
    raw = bytearray(trees.read_bytes())
    raw[int(at * len(raw))] ^= 1
    trees.write_bytes(raw)
    assert "truncated or altered" in refused(model_file)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_missing_file(model_file: Path, suffix: str) -> None:
    model_file.with_suffix(suffix).unlink()
    assert "No such file" in refused(model_file)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_folder_in_its_place(model_file: Path, suffix: str) -> None:
    model_file.with_suffix(suffix).unlink()
    model_file.with_suffix(suffix).mkdir()
    assert "directory" in refused(model_file)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"{}", b"17", b'"text"', b"NaN", b"[" * 100_000, b"\xff\xfe\x00",
        b'{"learner": {"gradient_booster": {}}}', b'{"format": 1}', b'{"format": 1, "trees": 3}',
        b"PK\x03\x04", b'{"format": 1, "trees": "t.npz", "trees_sha256": "", "schema": null}',
    ],
    ids=lambda raw: repr(raw[:30]),
)  # fmt: skip
def test_a_manifest_of_another_kind(model_file: Path, raw: bytes) -> None:
    model_file.write_bytes(raw)
    with pytest.raises((ModelFileError, SchemaMismatchError), match=model_file.stem):
        load_model(model_file)


@pytest.mark.parametrize(
    "changed",
    [
        {"features": None}, {"features": 7}, {"known": []}, {"known": {"h100-sxm5": 3}},
        {"calibration": {}}, {"calibration": {"coverage": 0.9, "seen": "wide", "unseen": 1}},
        {"calibration": {"coverage": 0.9, "seen": float("nan"), "unseen": 1.0}},
        {"calibration": {"coverage": 0.9, "seen": -1.0, "unseen": 1.0}},
        {"ranges": {"block_m": [1]}}, {"ranges": {"block_m": [0, 10**400]}}, {"accuracy": 1},
        {"sources": 1}, {"spec": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_with_a_field_of_another_kind(model_file: Path, changed: dict[str, Any]) -> None:
    rewrite(model_file, **changed)
    refused(model_file)


@pytest.mark.parametrize("field", ["format", "trees", "trees_sha256", "features", "calibration"])
def test_a_manifest_without_a_field(model_file: Path, field: str) -> None:
    text = json.loads(model_file.read_text())
    del text[field]
    model_file.write_text(json.dumps(text))
    assert field in refused(model_file)


def test_a_model_of_other_features(model_file: Path) -> None:
    rewrite(model_file, schema="gemm-0")
    message = refused(model_file, SchemaMismatchError)
    assert "gemm-0" in message
    assert "perfmodel train gemm" in message


def test_a_file_of_another_format(model_file: Path) -> None:
    rewrite(model_file, format=99)
    assert "99" in refused(model_file, SchemaMismatchError)


@pytest.mark.parametrize(
    "name", ["../tiny.npz", "/etc/passwd", "sub/tiny.npz", "..", ".", "", "a\0b", "./../tiny.npz"]
)
def test_trees_outside_the_manifests_folder(model_file: Path, name: str) -> None:
    (model_file.parent / "sub").mkdir()
    for copy in (model_file.parent.parent / "tiny.npz", model_file.parent / "sub" / "tiny.npz"):
        copy.write_bytes(model_file.with_suffix(".npz").read_bytes())
    rewrite(model_file, trees=name)
    with pytest.raises(ModelFileError):
        load_model(model_file)
    (model_file.parent.parent / "tiny.npz").unlink()


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit 1",)


def zip_of(name: str, raw: bytes) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, raw)
    return out.getvalue()


def npy(values: Any) -> bytes:
    out = BytesIO()
    np.save(out, values)
    return out.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not an archive",
        npy(np.zeros(3)),
        npz(weights=np.zeros(3)),
        npz(**{"time/threshold": np.zeros(3)}),
        npz(**{"time/threshold": np.array([Bomb()], dtype=object)}),
        zip_of("time/threshold.npy", b"\x93NUMPY"),
        zip_of("time/threshold.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'shape': (9**20,)}"),
        zip_of("readme.txt", b"hello"),
        npz(weights=np.zeros(300))[:-200],
    ],
    ids=["empty", "text", "npy", "other-arrays", "one-array", "pickle", "bad-npy", "huge-npy",
         "other-zip", "cut"],
)  # fmt: skip
def test_trees_of_another_kind_though_the_checksum_fits(model_file: Path, raw: bytes) -> None:
    put_trees(model_file, raw)
    refused(model_file)


def test_malformed_trees_though_the_checksum_fits(model_file: Path) -> None:
    with np.load(model_file.with_suffix(".npz")) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    held["rank/left"] = np.zeros(len(held["rank/feature"]), dtype=np.int32)
    put_trees(model_file, npz(**held))
    assert "not well formed" in refused(model_file)


def test_trees_over_another_number_of_features(model_file: Path) -> None:
    text = json.loads(model_file.read_text())
    rewrite(model_file, features=text["features"][:-1])
    assert str(len(text["features"]) - 1) in refused(model_file)


@given(st.data())
@settings(max_examples=60)
def test_an_altered_manifest_is_refused_or_read_never_a_crash(
    model_file: Path, data: st.DataObject
) -> None:
    whole = model_file.read_bytes()
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    model_file.write_bytes(raw)
    try:
        model = load_model(model_file)
    except (ModelFileError, SchemaMismatchError):
        pass
    else:
        assert isinstance(model.time, Forest)
    finally:
        model_file.write_bytes(whole)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: rewrite(path, schema="gemm-0"),
        lambda path: rewrite(path, trees="../tiny.npz"),
        lambda path: path.with_suffix(".npz").unlink(),
    ],
    ids=["schema", "escape", "missing"],
)
def test_the_command_line_says_so_in_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], model_file: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(model_file)
    command = "predict gemm --m 64 --n 64 --k 64 --dtype bf16 --gpu h100-sxm5 --model"
    assert main([*command.split(), str(model_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert model_file.stem in captured.err
    assert "Traceback" not in captured.err
