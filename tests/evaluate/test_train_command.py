from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.dataset import schema
from perfmodel.dataset.schema import TableInfo
from perfmodel.evaluate.rows import Tables
from perfmodel.evaluate.run import MM
from perfmodel.learned.artifact import load_model
from perfmodel.learned.booster import TrainSpec

pytest.importorskip("xgboost")
pytest.importorskip("sklearn")

TINY = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)


@pytest.fixture(autouse=True)
def tiny_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.learned.booster.SHIPPED", TINY)


@pytest.fixture(scope="module")
def measured(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's table: a few problems of one device, half as fast again as the rest."""
    table = tables.raw[MM]
    mine = table[(table["gpu"] == "h100-sxm5") & (table["k"] == 1000)].copy()
    mine["latency_us"] *= 1.5
    mine["distinct_us"] = mine["distinct_us"].map(lambda values: [1.5 * v for v in values])
    path = tmp_path_factory.mktemp("mine") / "mine.parquet"
    schema.write(mine.dropna(axis="columns", how="all"), path, TableInfo("mine", {}, "none", 1))
    return path


def train(cache: Path, out: Path, *more: str) -> int:
    return main(["train", "gemm", "--cache", str(cache), "--out", str(out), *more])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_training_writes_a_model_that_loads_and_prints_its_accuracy(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    assert train(imported, out) == 0
    model = load_model(out)
    assert model.knows("h100-sxm5", "fp16")
    assert model.accuracy["a100-sxm4-80gb"]["error_mean"] < 0.3
    text = capsys.readouterr().out
    assert "a100-sxm4-80gb" in text
    assert "h100-sxm5/bf16" in text
    assert str(out) in text
    manifest = json.loads(out.read_text())
    assert [s["name"] for s in manifest["sources"]] == ["autoheuristic-mm", "triton-grid-a100"]
    assert all(len(sha) == 64 for s in manifest["sources"] for sha in s["files"].values())


def test_training_again_gives_the_same_files(imported: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "first" / "gemm.json", tmp_path / "second" / "gemm.json"]
    for path in paths:
        assert train(imported, path) == 0
    for suffix in (".json", ".npz"):
        first, second = (digest(path.with_suffix(suffix)) for path in paths)
        assert first == second


def test_nothing_imported_names_the_command_that_fetches_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gemm.json"
    assert train(tmp_path / "empty", out) == 2
    assert "perfmodel data pull autoheuristic-mm" in capsys.readouterr().err
    assert not out.exists()


def test_a_manifest_is_a_json_file(imported: Path, tmp_path: Path) -> None:
    assert train(imported, tmp_path / "gemm.npz") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_few_measured_problems_correct_a_model_for_their_device_alone(
    imported: Path, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, adapted = tmp_path / "gemm.json", tmp_path / "adapted.json"
    assert train(imported, base) == 0
    capsys.readouterr()
    changed = ["train", "gemm", "--adapt", str(measured), "--model", str(base)]
    assert main([*changed, "--out", str(adapted)]) == 0
    assert "h100-sxm5, 9 problems" in capsys.readouterr().out
    corrected = load_model(adapted)
    assert set(corrected.deltas) == {"h100-sxm5"}
    assert adapted.with_suffix(".npz").stat().st_size < base.with_suffix(".npz").stat().st_size * 10


def test_a_correction_does_not_overwrite_the_model_it_corrects(
    imported: Path, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "gemm.json"
    assert train(imported, base) == 0
    before = digest(base)
    given = ["train", "gemm", "--adapt", str(measured), "--model", str(base), "--out", str(base)]
    assert main(given) == 2
    assert digest(base) == before


def test_options_that_make_no_sense_together_are_refused(
    imported: Path, measured: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x.json"
    assert train(imported, out, "--model", str(out)) == 2
    assert train(imported, out, "--large", "--adapt", str(measured)) == 2


def test_a_table_that_is_no_measurement_table_is_refused(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, junk = tmp_path / "gemm.json", tmp_path / "junk.parquet"
    assert train(imported, base) == 0
    junk.write_bytes(b"no parquet")
    given = ["train", "gemm", "--adapt", str(junk), "--model", str(base)]
    assert main([*given, "--out", str(tmp_path / "adapted.json")]) == 2
    assert "junk.parquet" in capsys.readouterr().err
