"""``perfmodel report``: one file that needs nothing else, its pictures, and what is refused."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cli.app import main
from perfmodel.learned.booster import TrainSpec
from perfmodel.predictor import Predictor
from perfmodel.problems import Gemm, MemoryBound
from perfmodel.report.accuracy import errors_by_size
from perfmodel.report.page import Section, Table, page
from perfmodel.report.roofline import points_of

pytest.importorskip("xgboost")
pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def tiny_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)
    monkeypatch.setattr("perfmodel.evaluate.protocols.SHIPPED", tiny)


def test_one_file_that_needs_nothing_else(imported: Path, tmp_path: Path) -> None:
    out, pictures = tmp_path / "r.html", tmp_path / "pictures"
    args = ["report", "--out", str(out), "--png", str(pictures), "--cache", str(imported)]
    assert main([*args, "--gpu", "b200"]) == 0
    text = out.read_text()
    assert 'name="viewport"' in text
    sources = re.findall(r'src="([^"]*)"', text)
    assert all(s.startswith("data:image/png;base64,") for s in sources)
    assert not re.search(r"href=|@import|url\(|<script", text)
    embedded = [base64.b64decode(s.partition(",")[2]) for s in sources]
    assert all(png.startswith(PNG) for png in embedded)
    names = {p.name: p.read_bytes() for p in pictures.iterdir()}
    assert sorted(names.values()) == sorted(embedded)
    assert set(names) == {
        "roofline-b200.png", "scatter-a100-sxm4-80gb.png", "scatter-h100-sxm5.png",
        "error-by-size.png", "interval-coverage.png",
    }  # fmt: skip
    inside = re.search(r"<td>h100-sxm5</td><td class=\"number\">([\d.]+) %</td>", text)
    assert inside is not None
    assert 50 < float(inside[1]) <= 100
    assert "a100-sxm4-80gb-&gt;h100-sxm5" in text
    assert "gate and up" in text


def test_without_data_the_rest_is_there_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert main(["report", "--out", str(out), "--cache", str(tmp_path / "empty")]) == 0
    assert "perfmodel data pull" in out.read_text()
    assert "no figures of accuracy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--out", "report.pdf"], ".html"),
        (["--gpu", "h1000"], "unknown GPU 'h1000'"),
        (["--step", "absent.toml"], "cannot read absent.toml"),
        (["--gpu", "t4"], "t4 has no arithmetic for bf16"),
    ],
)
def test_bad_input_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    args: list[str], part: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["report", *args, "--cache", str(tmp_path)]) == 2
    assert part in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_errors_are_sorted_by_measured_time() -> None:
    measured = np.array([5e-6, 5e-6, 50e-6])
    predicted = np.array([5e-6, 6e-6, 100e-6])
    small, large = errors_by_size({"t4": (measured, predicted)})
    assert (small.size, small.launches) == ("< 10", 2)
    assert small.mean == pytest.approx(0.1)
    assert (large.size, large.launches) == ("30-100", 1)
    assert large.mean == pytest.approx(1.0)


@pytest.mark.usefixtures("shipped")
def test_points_keep_the_numbers_of_the_table() -> None:
    predictor = Predictor()
    problems = [MemoryBound("copy", 64, 64), Gemm(64, 64, 64), Gemm(0, 64, 64)]
    (point,) = points_of([predictor.predict(p, "h100-sxm5") for p in problems])
    assert point.number == 2  # a copy computes nothing, nor does a product without rows
    assert point.intensity == pytest.approx(2 * 64**3 / (3 * 64 * 64 * 2))


def test_text_of_others_cannot_become_markup() -> None:
    table = Table(["<b>"], [["<script>"]])
    text = page("a & b", ["<i>"], [Section("<u>", ["<s>"], [], [table])])
    assert not re.search(r"<(b|i|u|s|script)>", text)
    assert "&lt;script&gt;" in text
