from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.evaluate.protocols import PROTOCOLS
from perfmodel.learned.booster import TrainSpec

pytest.importorskip("xgboost")
pytest.importorskip("sklearn")

TINY = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)


@pytest.fixture(autouse=True)
def tiny_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.evaluate.protocols.SHIPPED", TINY)


def test_without_a_protocol_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in PROTOCOLS)


def test_json_is_one_list_of_the_records_of_all_protocols(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "gemm-kfold", "legality", "--json", "--cache", str(imported)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {r["protocol"] for r in found} == {"gemm-kfold", "legality"}
    contenders = {r["who"] for r in found if r["protocol"] == "gemm-kfold"}
    assert {"perfmodel", "analytic", "roofline", "wavetune", "neusight-form"} <= contenders
    for record in found:
        assert set(record) == {
            "protocol", "who", "family", "dtype", "cell", "k", "budget", "metric", "value", "n",
        }  # fmt: skip
        assert isinstance(record["value"], float)


def test_the_table_names_contenders_and_dropped_rows(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "legality", "--cache", str(imported)]) == 0
    text = capsys.readouterr().out
    assert "all-stages-in-shared-memory" in text
    assert "triton-grid-a100: 165 rows imported; dropped by gates: x 0" in text


def test_a_plot_is_written(imported: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "folds.svg"
    assert main(["evaluate", "legality", "--plot", str(plot), "--cache", str(imported)]) == 0
    assert "a100-sxm4-80gb" in plot.read_text() or plot.stat().st_size > 1000


def test_a_plot_of_unknown_format_is_refused_before_anything_runs(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = str(tmp_path / "folds.bmp")
    assert main(["evaluate", "gemm-kfold", "--plot", plot, "--cache", str(imported)]) == 2
    assert ".png" in capsys.readouterr().err


def test_an_unknown_protocol_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "gemm-kfolds"]) == 2
    assert "did you mean 'gemm-kfold'" in capsys.readouterr().err


def test_an_unknown_device_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "gemm-kfold", "--only", "h900"]) == 2
    assert "h900" in capsys.readouterr().err


def test_missing_data_names_the_command_that_fetches_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "grid-loso", "--cache", str(tmp_path)]) == 2
    assert "perfmodel data pull autoheuristic-mm" in capsys.readouterr().err
