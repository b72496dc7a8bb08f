"""The importers on the published files, where a mirror of them is at hand."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import splits, store
from perfmodel.dataset.pull import pull
from perfmodel.dataset.splits import candidates, label_table, problem_ids

ROOT = Path(__file__).resolve().parents[2]
MIRROR = Path(os.environ.get("PERFMODEL_DATA_MIRROR") or ROOT.parent / "shared" / "data" / "mirror")

pytestmark = pytest.mark.skipif(
    not (MIRROR / "github.com").is_dir(),
    reason=f"the published files are not here: no mirror at {MIRROR} (PERFMODEL_DATA_MIRROR)",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def mm(cache: Path) -> pd.DataFrame:
    started = time.perf_counter()
    report = pull("autoheuristic-mm", mirror=MIRROR, cache=cache).report
    assert time.perf_counter() - started < 60
    assert report is not None
    assert report.raw_rows == 1_066_938
    assert sum(report.rows_dropped.values()) == 0
    return store.load("autoheuristic-mm", cache)


@pytest.fixture(scope="module")
def labels(mm: pd.DataFrame) -> pd.DataFrame:
    return label_table(mm)


def test_autoheuristic_mm_holds_the_published_problems(labels: pd.DataFrame) -> None:
    assert len(labels) == 157_250
    on = {
        gpu: set(problem_ids(labels, with_gpu=False)[labels["gpu"] == gpu])
        for gpu in ("a100-sxm4-80gb", "h100-sxm5")
    }
    a100, h100 = on.values()
    assert (len(a100), len(h100), len(a100 & h100)) == (3_822, 1_519, 1_160)


def test_only_single_precision_fails_to_launch(labels: pd.DataFrame) -> None:
    failed = labels[labels["outcome"] != "ok"]
    assert set(failed["a_dtype"]) == {"fp32", "tf32"}
    assert not failed["is_library"].any()


def test_one_library_row_a_problem(labels: pd.DataFrame) -> None:
    library = labels[labels["is_library"]]
    assert len(library) == len(np.unique(problem_ids(labels)))
    assert set(library["backend"]) == {"cublas"}


def test_distinct_repeats_agree_within_a_few_per_cent(mm: pd.DataFrame) -> None:
    spread = mm["latency_spread"].dropna()  # from smallest to largest
    assert len(spread) > 80_000
    assert 0.005 < spread.median() < 0.015
    assert spread.quantile(0.9) < 0.04


def test_cached_numbers_do_not_count_twice(mm: pd.DataFrame) -> None:
    assert mm["raw_rows"].max() >= 300
    assert mm["raw_rows"].sum() == 1_066_938
    for _, row in mm[mm["distinct_repeats"] > 1].head(50).iterrows():
        assert row["latency_us"] == np.median(np.unique(row["distinct_us"]))


def test_the_suites_and_folds_exist(mm: pd.DataFrame, labels: pd.DataFrame) -> None:
    apart = label_table(mm, by_source_file=True)
    assert len(apart) == len(mm)
    assert [s.name for s in splits.suites(apart)] == ["without-hf", "without-mm", "without-timm"]
    usable = labels[candidates(labels)]
    shares = [split.test.mean() for split in splits.kfold(usable)]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.15


def test_the_grid_is_full(cache: Path) -> None:
    pull("triton-grid-a100", mirror=MIRROR, cache=cache)
    table = store.load("triton-grid-a100", cache)
    assert dict(table.groupby("m").size()) == dict.fromkeys((512, 1024, 2048, 3072, 4096), 8_640)
    ran = table[table["outcome"] == "ok"]
    assert dict(ran.groupby("m").size()) == {
        512: 4_556, 1024: 4_548, 2048: 4_548, 3072: 4_541, 4096: 4_548,
    }  # fmt: skip
    assert ran["compile_time_s"].max() < 6
    best = ran.groupby("m")["latency_us"].min()
    slower = ran.groupby("m")["latency_us"].median() / best
    assert slower.between(3.0, 4.7).all()


def test_mixed_mm_holds_8_bit_weights(cache: Path) -> None:
    report = pull("autoheuristic-mixedmm", mirror=MIRROR, cache=cache).report
    assert report is not None
    assert report.raw_rows == 254_037
    table = store.load("autoheuristic-mixedmm", cache)
    assert set(table["b_dtype"]) == {"int8", "uint8"}
    assert set(table["a_dtype"]) == {"fp16", "bf16"}
    assert set(table["gpu"]) == {"a100-sxm4-80gb"}
