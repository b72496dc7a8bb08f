"""A whole session, rehearsed: every step, in time, whatever one of them does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfmodel.dataset import schema
from tuner.collect.session.results import FILE_BYTES_MAX, FILES_MAX
from tuner.collect.session.steps import STEPS

ROOT = Path(__file__).parents[4]
NAMES = [step.name for step in STEPS]

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")),
    reason="a session runs kernels: torch or Triton is not installed",
)


def session(tmp_path: Path, *words: str, minutes: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Rehearse one through the shell script, with a Triton cache of its own."""
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "measure_gpu.sh"), "--minutes", str(minutes),
         "--rehearse", "--out", str(tmp_path / "out"), *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
             "TRITON_CACHE_DIR": str(tmp_path / "triton"), "MEASURE_SCRATCH": str(tmp_path / "s")},
    )  # fmt: skip


def steps_of(tmp_path: Path) -> dict[str, dict[str, object]]:
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    return {step["name"]: step for step in summary["steps"]}


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A session with a step that fails, one that hangs and one that crashes; what it said."""
    folder = tmp_path_factory.mktemp("session")
    done = session(
        folder, "--fail", "ceilings", "--hang", "decode", "--die", "moe", "--hung-s", "3",
        "--work", str(folder / "work"),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return folder, done.stdout


def test_one_step_that_fails_loses_none_of_the_others(rehearsed: tuple[Path, str]) -> None:
    folder, said = rehearsed
    found = steps_of(folder)
    assert list(found) == NAMES
    assert {n: s["state"] for n, s in found.items()} == {
        n: "failed" if n == "ceilings" else "done" for n in NAMES
    }
    assert "as the rehearsal was asked to" in str(found["ceilings"]["reason"])
    for name in set(NAMES) - {"ceilings"}:
        assert found[name]["rows"], name
    assert "step         state       rows      ok   seconds" in said


@pytest.mark.parametrize(("name", "why"), [("decode", "hung for 3 s"), ("moe", "SIGKILL")])
def test_what_hangs_or_crashes_is_a_row_and_its_step_goes_on_without_it(
    rehearsed: tuple[Path, str], name: str, why: str
) -> None:
    folder, _ = rehearsed
    rows = schema.read(folder / "out" / f"rehearsal-{name}.parquet")
    crashed = rows[rows["outcome"] == "crashed"]
    assert list(crashed["outcome_reason"]) == [f"took its process down: {why}"]
    assert len(rows) > 1
    assert steps_of(folder)[name]["state"] == "done"


def test_results_are_a_few_small_files_that_say_they_are_made_up(
    rehearsed: tuple[Path, str],
) -> None:
    folder, _ = rehearsed
    files = sorted((folder / "out").glob("*.parquet"))
    assert 0 < len(files) <= FILES_MAX
    assert all(path.stat().st_size <= FILE_BYTES_MAX for path in files)
    assert all(path.name.startswith("rehearsal-") for path in files)
    for name, family in (("attention", "attention"), ("gemm", "gemm"), ("moe", "grouped_gemm")):
        rows = schema.read(folder / "out" / f"rehearsal-{name}.parquet")
        assert set(rows["family"]) == {family}
        assert set(rows["source"]) == {"rehearsal"}
        assert rows.attrs["info"].source == "rehearsal"
        assert set(rows["device_source"]) == {"rehearsal: times are made up"}
        assert rows["timing_method"].isna().all()
    checked = pq.read_table(folder / "out" / "rehearsal-correctness.parquet").to_pylist()
    assert {row["kernel"] for row in checked} == {"gemm", "attention"}
    assert {row["outcome"] for row in checked} == {"ok"}


def test_another_call_goes_on_where_the_first_was_and_measures_nothing_twice(
    rehearsed: tuple[Path, str],
) -> None:
    folder, _ = rehearsed
    shard = folder / "work" / "gemm" / "shard-1-of-1.jsonl"
    before = shard.read_bytes()
    done = session(folder, "--work", str(folder / "work"))
    assert done.returncode == 0, done.stderr
    assert shard.read_bytes() == before
    assert {s["state"] for s in steps_of(folder).values()} == {"done"}
    assert "ceilings: made up 1,000 GB/s" in done.stdout
    assert "ceilings: made up bf16: RuntimeError: CUDA out of memory" in done.stdout


def test_short_of_time_the_last_steps_are_dropped_and_it_ends_by_itself(tmp_path: Path) -> None:
    started = time.monotonic()
    done = session(tmp_path, minutes=0.5)
    assert time.monotonic() - started < 30 + 10  # and what a busy machine takes to end processes
    found = steps_of(tmp_path)
    assert list(found) == NAMES
    assert [found[n]["state"] for n in NAMES[1:]] == ["dropped"] * 5
    assert found[NAMES[0]]["state"] in ("done", "stopped")
    assert done.returncode == 0
    assert "the minutes are too few for it" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "minutes is 0; use 0.5 to"),
        (["--fail", "nothing"], "--fail is 'nothing'; use one of: correctness"),
        (["--hang", "ceilings"], "--hang is 'ceilings'; use one of: attention"),
        (["--gpu", "h1000"], "unknown GPU 'h1000'"),
    ],
)
def test_options_that_make_no_sense_are_named(
    words: list[str], message: str, tmp_path: Path
) -> None:
    done = session(tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_session_needs_can_be_compiled_ahead_and_is_found_the_next_time(
    tmp_path: Path, rehearsed: tuple[Path, str]
) -> None:
    """The rehearsal's own cache, which holds one binary a step."""
    shutil.copytree(rehearsed[0] / "triton", tmp_path / "triton")
    done = session(tmp_path, "--compile-only", minutes=0.1)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[1-9]\d* of \d+: \d+ compiled, [1-9]\d* were there", done.stdout)
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_it_says_what_needs_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner.collect.session", "--minutes", "1", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "hides every GPU" in done.stderr
    assert not list(tmp_path.iterdir())
