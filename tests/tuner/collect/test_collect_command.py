"""``perfmodel collect`` and ``calibrate`` as typed: the whole way, and what goes wrong on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from perfmodel.dataset import schema
from tuner.collect.plan_file import Plan, load_plan

from .conftest import altered


@pytest.fixture
def here(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plan.save(tmp_path / "plan.json")
    return tmp_path


def test_the_whole_way_from_a_plan_to_a_published_table(
    here: Path, plan: Plan, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["--device", f"replay:{table}"]
    assert main(["collect", "run", "plan.json", "--shard", "1/2", *replay]) == 0
    assert main(["collect", "check", "plan.json"]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("not whole: ")
    assert main(["collect", "merge", "plan.json"]) == 1
    assert "measurements are missing" in capsys.readouterr().err
    assert main(["collect", "run", "plan.json", "--shard", "2/2", *replay]) == 0
    assert main(["collect", "check", "plan.json", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.split("\n", 1)[1])
    assert report["sound"]
    assert main(["collect", "merge", "plan.json", "--table", "t.parquet"]) == 0
    assert len(schema.read(here / "t.parquet")) == len(plan.items)
    assert main(["collect", "publish", "t.parquet", "--to", "public"]) == 0
    assert (here / "public" / "t.parquet").is_file()


def test_planning_prints_counts_and_minutes(
    here: Path, shipped: object, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["collect", "plan", "--gpu", "h100-sxm5", "--minutes", "1", "--configs", "10"]
    assert main([*words, "--out", "p.json"]) == 0
    out = capsys.readouterr().out
    found = load_plan(here / "p.json")
    assert f"{len(found.problems):,} problems, {len(found.items):,} measurements" in out
    assert f"about {found.seconds / 60:.1f} GPU minutes" in out
    assert main([*words, "--out", "q.json", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sha256"] == found.digest
    assert record["gpu_minutes"] <= 1


def test_a_dry_run_writes_nothing(
    here: Path, plan: Plan, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["collect", "run", "plan.json", "--dry-run", "--device", f"replay:{table}"]
    assert main([*words, "--shard", "1/4"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["measurements"] == len(plan.shard(1, 4))
    assert not (here / "collected").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "plan.json", "--shard", "5/4"], "shard 5/4 does not exist"),
        (["run", "plan.json", "--shard", "x"], "shard is 'x'; give i/n"),
        (["run", "absent.json"], "no plan at absent.json"),
        (["run", "old.json"], "is a plan of version 0, and this perfmodel reads version 1"),
        (["run", "plan.json", "--device", "tpu"], "device is 'tpu'; use cuda"),
        (["run", "plan.json"], "CUDA_VISIBLE_DEVICES is '', which hides every GPU"),
        (["run", "plan.json", "--on", "pbs"], "--on is 'pbs'; use ray or slurm"),
        (["plan", "--gpu", "h1000"], "unknown GPU 'h1000'"),
        (["plan", "--gpu", "b200", "--minutes", "-1"], "minutes is -1.0"),
        (["plan", "--gpu", "b200", "--dtype", "fp17"], "fp17"),
        (["publish", "plan.json", "--to", "x"], "plan.json is not a readable parquet file"),
        (["publish", "t", "--to", "x", "--name", "n"], "also needs --repository and --commit"),
        (["publish", "t", "--to", "x", "--registry", "r"], "--registry needs the entry's --name"),
        (["merge", "plan.json"], "collected has no shards"),
    ],
)
def test_bad_input_is_said_in_one_line_with_exit_code_2(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (here / "old.json").write_text((here / "plan.json").read_text())
    altered(here / "old.json", perfmodel_plan=0)
    assert main(["collect", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "model.txt"], "give the manifest's name, ending in .json"),
        (["--device", "replay:t.parquet"], "say which with --gpu"),
        ([], "CUDA_VISIBLE_DEVICES is ''"),
    ],
)
def test_calibrate_says_what_it_lacks(
    here: Path,
    model_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["calibrate", "--model", str(model_file), *words]) == 2
    assert said in capsys.readouterr().err


def test_calibrate_on_a_recorded_table_saves_a_model(
    here: Path, model_file: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xgboost", reason="adapting needs xgboost")
    words = ["calibrate", "--gpu", "h100-sxm5", "--device", f"replay:{table}", "--problems", "4",
             "--configs", "6", "--model", str(model_file), "--out", "mine.json"]  # fmt: skip
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "h100-sxm5: 4 problems" in out
    assert "error" in out
    assert "of the best" in out
    assert (here / "mine.json").is_file()
    assert (here / "mine.npz").is_file()
