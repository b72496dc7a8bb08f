"""``perfmodel predict --from``: files in and out, one bad row, files that cannot be read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from perfmodel.cli.app import main

pytestmark = pytest.mark.usefixtures("shipped")

CSV = """layer,family,gpu,m,n,k,q_len,q_heads,head_dim,dtype,backend
one,gemm,h100-sxm5,4096,4096,4096,,,,bf16,
"two, too",attention,,,,,"512,1",8,64,bf16,flashinfer
"""
BAD = "three,gemm,h100-sxm5,-4,4096,4096,,,,bf16,\n"


def test_csv_comes_back_with_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(CSV)
    assert main(["predict", "--from", str(path), "--gpu", "a100-sxm4-80gb"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["layer"] for row in rows] == ["one", "two, too"]
    assert rows[1]["q_len"] == "512,1"
    assert float(rows[0]["predicted_us"]) == pytest.approx(207.1, rel=0.2)
    for row in rows:
        assert float(row["low_us"]) <= float(row["predicted_us"]) <= float(row["high_us"])
        assert row["error"] == ""


def test_a_bad_row_says_why_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    path.write_text(CSV + BAD)
    assert main(["predict", "--from", str(path), "--gpu", "t4", "--out", str(out)]) == 1
    assert "error: 2 of 3 rows have no prediction" in capsys.readouterr().err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0]["error"] is None
    assert "t4 has no arithmetic for bf16" in rows[1]["error"]
    assert "m is -4" in rows[2]["error"]


def test_jsonl_and_parquet_keep_their_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"family": "attention", "q_len": [512, 1], "q_heads": 8, "head_dim": 64,
           "dtype": "bf16", "backend": "flashinfer", "gpu": "h100-sxm5"}  # fmt: skip
    lines = tmp_path / "in.jsonl"
    lines.write_text(json.dumps(row) + "\n\n")
    assert main(["predict", "--from", str(lines)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {name: answer[name] for name in row} == row
    table, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pd.DataFrame([row, {"family": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "bf16"}]).to_parquet(
        table
    )
    assert main(["predict", "--from", str(table), "--gpu", "t4", "--out", str(out)]) == 1
    found = pd.read_parquet(out)
    assert found["predicted_us"][0] == pytest.approx(answer["predicted_us"])
    assert list(found["q_len"][0]) == [512, 1]


def test_a_column_nearly_named_is_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("family,m,n,k,dtype,bach\ngemm,64,64,64,bf16,2\n")
    assert main(["predict", "--from", str(path), "--gpu", "h100-sxm5"]) == 0
    assert "column 'bach' is not read (did you mean 'batch'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "args", "part"),
    [
        ("in.txt", "", [], ".csv, .jsonl, .parquet"),
        ("in.csv", "", [], "is empty"),
        ("in.csv", "m,m\n1,2\n", [], "names 'm' twice"),
        ("in.csv", "m,n\n1,2,3\n", [], "line 2: 3 values"),
        ("in.csv", "m,low_us\n1,2\n", [], "'low_us' already"),
        ("in.jsonl", '{"m": 1}\n{"m"\n', [], "line 2 is not JSON"),
        ("in.jsonl", "[1]\n", [], "one object a line"),
        ("in.parquet", "no parquet", ["--out", "x.csv"], "cannot read"),
        ("in.parquet", "no parquet", [], "cannot go to stdout"),
        ("in.csv", "family\ngemm\n", ["--out", "x.xls"], "--out is 'x.xls'"),
        ("in.csv", "family\ngemm\n", ["--gpu", "h1000"], "unknown GPU 'h1000'"),
        ("in.csv", "family\ngemm\n", ["gemm"], "options before gemm"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, text: str, args: list[str], part: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    command = ["predict", "--from", name, *args]
    if args == ["gemm"]:
        command += ["--m", "1", "--n", "1", "--k", "1", "--dtype", "bf16", "--gpu", "h100-sxm5"]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--from", "absent.csv"]) == 2
    assert "cannot read absent.csv" in capsys.readouterr().err
