"""What our model costs: a decision, its size, its training, the start of the command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from perfmodel.errors import DataError
from perfmodel.evaluate.records import OURS, Record
from perfmodel.evaluate.run import Run
from perfmodel.evaluate.training_data import train_gemm
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.artifact import load_model, save_model
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.space import candidate_configs

GPU = "a100-sxm4-80gb"
DECISIONS = (30, 1000)
REPEATS = 50
STARTS = 7

_CLI = (
    sys.executable, "-m", "perfmodel.cli.app", "predict", "gemm",
    "--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--gpu", "h100-sxm5",
)  # fmt: skip
_PANDAS = (sys.executable, "-c", "import pandas")


def cost(run: Run) -> list[Record]:
    """Train as the command does, then measure; times are those of this machine as it is."""
    records = []
    for who, spec in run.trainer.specs:
        begun = time.perf_counter()
        model = train_gemm(run.tables, spec, run.trainer.tell, run.thinned).model
        records.append(_record(who, "train_s", time.perf_counter() - begun))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gemm.json"
            save_model(model, path)
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            records.append(_record(who, "artifact_mb", size / 1e6))
            predictor = Predictor(path)
        for n in DECISIONS:
            records.append(_record(who, "decision_us", decision_us(predictor, n), n))
    try:
        load_model()
    except DataError as error:
        run.say(f"the command starts without a model, which flatters it: {error}")
    records.append(_record(OURS, "cli_start_ratio", cli_start_ratio(), STARTS))
    return records


PROTOCOLS = {"cost": cost}


def decision_us(predictor: Predictor, configs: int) -> float:
    """Return the median time to choose among so many configurations, microseconds.

    Every decision is for a problem never asked before, so nothing can be remembered.
    """
    space, gpu = _space(configs), load_gpu(GPU)
    times = []
    for problem in _problems(REPEATS + 1):
        begun = time.perf_counter()
        predictor.decide(problem, gpu, space)
        times.append(time.perf_counter() - begun)
    return float(np.median(times[1:])) * 1e6  # the first one compiles and loads


def cli_start_ratio() -> float:
    """Return the median run time of ``perfmodel predict gemm`` over that of importing pandas.

    Runs alternate, so that a busy moment of the machine strikes both.
    """
    ours, pandas = [], []
    for _ in range(STARTS):
        ours.append(_seconds(lambda: _run(_CLI)))
        pandas.append(_seconds(lambda: _run(_PANDAS)))
    return float(np.median(ours) / np.median(pandas))


def _space(configs: int) -> ConfigTable:
    space = candidate_configs(Gemm(4096, 4096, 4096), load_gpu(GPU))
    rows = np.linspace(0, len(space) - 1, configs).astype(np.intp)
    return space.take(rows)


def _problems(count: int) -> Iterator[Gemm]:
    for i in range(count):
        yield Gemm(1024 + 16 * i, 2048 + 64 * i, 4096 - 8 * i)


def _run(command: tuple[str, ...]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _seconds(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _record(who: str, metric: str, value: float, n: int | None = None) -> Record:
    return Record("cost", who, metric, value, n=n)
