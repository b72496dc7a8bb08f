"""A synthetic measurement table: the analytic model's own times with noise, two devices."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.model import CUDA_GRAPH_LAUNCH_S, EVENT_TIMING_LAUNCH_S, estimate
from perfmodel.dataset import quality, schema, store
from perfmodel.dataset.registry import find
from perfmodel.dataset.schema import COLUMNS, TableInfo
from perfmodel.dataset.sources import importer
from perfmodel.evaluate.rows import Tables
from perfmodel.evaluate.run import GRID, MM
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.booster import TrainSpec
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask
from perfmodel.tiling.work import gemm_work

TINY = TrainSpec("tiny", 12, 8, depth=3, learning_rate=0.3)
GPUS = ("a100-sxm4-80gb", "h100-sxm5")
TILES = [
    TileConfig(m, n, k, num_warps=warps, num_stages=stages)
    for m, n, k in itertools.product((32, 64, 128), (32, 64, 128), (32, 64))
    for warps, stages in ((4, 2), (4, 3), (8, 3))
]
SUITE_FILES = ("x/{}_hf_train_mm.txt", "x/{}_timm_train_mm.txt", "x/{}_mm.txt")


def measured(
    problem: Gemm, gpu_name: str, source: str, source_file: str, noise: np.random.Generator
) -> pd.DataFrame:
    """Time every tile of one problem, and one library call."""
    gpu = load_gpu(gpu_name)
    configs, table = ConfigTable.of(TILES), GemmTable.of(problem)
    method = "cuda_graph" if source == GRID else "events"
    launch = CUDA_GRAPH_LAUNCH_S if source == GRID else EVENT_TIMING_LAUNCH_S
    seconds = estimate(gemm_work(table, configs, gpu), gpu, launch_overhead_s=launch).seconds
    # What the analytic model does not know: a habit of each tile, and the noise of timing.
    habit = 1.0 + 0.3 * np.sin(configs.block_m * 0.05 + configs.num_stages)
    times = 1e6 * seconds * habit * np.exp(0.02 * noise.standard_normal(len(TILES)))
    runs = legal_mask(problem, configs, gpu)
    rows: list[dict[str, Any]] = []
    for config, us, ran in zip(TILES, times, runs, strict=True):
        row = config.to_dict() | {
            "outcome": "ok" if ran else "compile_failed",
            "latency_us": us if ran else None,
            "distinct_us": [us] if ran else [],
            "kernel": "triton_mm", "backend": "triton", "is_library": False, "config_known": True,
        }  # fmt: skip
        rows.append(row)
    library = {
        "outcome": "ok", "latency_us": 1.0, "distinct_us": [1.0], "kernel": "extern_mm",
        "backend": "cublas", "is_library": True, "config_known": False,
    }  # fmt: skip
    frame = pd.DataFrame([*rows, library])
    described = problem.to_dict() | {
        "family": "gemm", "gpu": gpu_name, "source": source, "source_file": source_file,
        "timing_method": method, "selection": "full", "raw_rows": 1,
        "a_stride_0": problem.lda, "a_stride_1": 1, "b_stride_0": problem.ldb, "b_stride_1": 1,
    }  # fmt: skip
    return frame.assign(**described)


def table_of(parts: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


@pytest.fixture(scope="session")
def tables() -> Tables:
    noise = np.random.default_rng(0)
    sizes = [(m, n, k) for m in (64, 256, 1024) for n in (128, 512, 2048) for k in (64, 1000)]
    mm = [
        measured(
            Gemm(m, n, k, a_dtype="fp16" if i % 3 else "bf16"),  # type: ignore[arg-type]
            gpu, MM, SUITE_FILES[i % 3].format(gpu[:4]), noise,
        )
        for gpu in GPUS
        for i, (m, n, k) in enumerate(sizes)
    ]  # fmt: skip
    grid = [
        measured(Gemm(size, size, size, a_dtype="fp16"), GPUS[0], GRID, f"{size}.json", noise)  # type: ignore[arg-type]
        for size in (512, 1024, 2048)
    ]
    return Tables({MM: table_of(mm), GRID: table_of(grid)})


@pytest.fixture(scope="session")
def imported(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that holds the synthetic tables as if they had been pulled."""
    cache = tmp_path_factory.mktemp("cache")
    for name, table in tables.raw.items():
        dataset = find(name)
        info = TableInfo(
            source=name,
            files={file.name: file.sha256 for file in dataset.files},
            importer=dataset.importer,
            importer_version=importer(dataset.importer).VERSION,
            gates={"version": quality.VERSION, "rows": len(table), "rows_dropped": {"x": 0}},
        )
        schema.write(table.dropna(axis="columns", how="all"), store.table_path(name, cache), info)
    return cache


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees this small are grown fastest by one thread: waiting for another costs more."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)
