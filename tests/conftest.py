"""A learned correction simple enough to know the right answer, and a real one in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from perfmodel import predictor
from perfmodel.hardware.catalog import load_gpu
from perfmodel.launches import gemm_launches
from perfmodel.learned.artifact import save_model
from perfmodel.learned.features import GEMM_SCHEMA, gemm_columns
from perfmodel.learned.forest import Forest
from perfmodel.learned.intervals import Calibration
from perfmodel.learned.model import GemmModel, Manifest
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig

# A loaded machine is slow now and then, and every run tries the same examples.
settings.register_profile(
    "perfmodel",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("perfmodel")


@dataclass
class FakeCorrection:
    """Adds constants in log units; knows the H100 SXM5 and A100 SXM4 80GB in bf16 and fp16."""

    log_factor: float = 0.0
    version: str = "fake-1"
    covered: bool = True
    accuracy: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            "h100-sxm5": {"error_mean": 0.05},
            "h100-sxm5/bf16": {"error_mean": 0.04},
            "a100-sxm4-80gb": {"error_mean": 0.03},
        }
    )

    def for_device(self, gpu_name: str) -> FakeCorrection:
        return self

    def rough_correction(self, features: np.ndarray) -> np.ndarray:
        return self.log_correction(features)

    def remaining_correction(self, features: np.ndarray) -> np.ndarray:
        return np.zeros(len(features))

    def knows(self, gpu_name: str, dtype_name: str) -> bool:
        return gpu_name in self.accuracy and dtype_name in ("bf16", "fp16")

    def covers(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.covered)

    def familiar(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), True)

    def log_correction(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.log_factor)

    def preference(self, features: np.ndarray) -> np.ndarray:
        return np.zeros(len(features))

    def log_interval(self, features: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
        half = np.full(len(features), 0.1 if known else 0.4)
        return -half, half

    def contributions(self, row: np.ndarray) -> dict[str, float]:
        parts = np.zeros(len(row))
        parts[:2] = 0.3, -0.1
        return {f"f{i}": float(v) for i, v in enumerate(parts)}


@pytest.fixture
def correction() -> FakeCorrection:
    return FakeCorrection()


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, correction: FakeCorrection) -> FakeCorrection:
    """The fake in place of the shipped model."""
    monkeypatch.setattr(predictor, "_shipped", lambda: correction)
    return correction


@pytest.fixture
def no_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package without its model files."""
    monkeypatch.setattr("perfmodel.learned.artifact.files", lambda package: tmp_path)
    predictor._shipped.cache_clear()
    yield
    predictor._shipped.cache_clear()


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A trained model's manifest: corrections of exactly one tenth, in log units."""
    problems, configs = GemmTable.of(Gemm(8, 8, 8)), ConfigTable.of([TileConfig()])
    gpu = load_gpu("h100-sxm5")
    found = gemm_launches(problems, configs, gpu, with_features=False)
    names = tuple(gemm_columns(problems, configs, gpu, found.work, found.estimate))
    manifest = Manifest(
        family="gemm",
        schema=GEMM_SCHEMA,
        version="tiny-1",
        features=names,
        sources=(),
        known={"h100-sxm5": ("bf16",)},
        calibration=Calibration(0.9, 2.0, 8.0),
        accuracy={"h100-sxm5": {"error_mean": 0.05}},
    )
    trees = {
        name: _constant(value, len(names))
        for name, value in (
            ("time", 0.1),
            ("rank", 0.0),
            ("spread", float(np.log(0.05))),
            ("ceiling", 0.2),
        )
    }
    path = tmp_path / "tiny.json"
    save_model(GemmModel(manifest=manifest, **trees), path)
    return path


def _constant(value: float, features: int) -> Forest:
    """One split whose sides agree."""
    leaf = np.float32(value)
    return Forest(
        threshold=np.array([0.0, leaf, leaf], dtype=np.float32),
        feature=np.array([0, -1, -1], dtype=np.int16),
        left=np.array([1, -1, -1], dtype=np.int32),
        expected=np.array([leaf, leaf, leaf], dtype=np.float32),
        roots=np.array([0], dtype=np.int32),
        base=0.0,
        features=features,
    )
