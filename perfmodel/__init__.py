"""How long a GPU kernel takes, and why, on a GPU you may not have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.batch import predict_many
    from perfmodel.hardware.catalog import load_gpu
    from perfmodel.prediction import Prediction, Ranking
    from perfmodel.predictor import Predictor, explain, predict, rank
    from perfmodel.problems.attention import Attention
    from perfmodel.problems.gemm import Gemm
    from perfmodel.problems.grouped_gemm import GroupedGemm
    from perfmodel.problems.memory_bound import MemoryBound
    from perfmodel.tiling.config import TileConfig

    __version__: str

__all__ = [
    "Attention",
    "Gemm",
    "GroupedGemm",
    "MemoryBound",
    "Prediction",
    "Predictor",
    "Ranking",
    "TileConfig",
    "explain",
    "load_gpu",
    "predict",
    "predict_many",
    "rank",
]

# Loaded on first use: importing the package must not even load numpy.
_HOME = {
    "Attention": "perfmodel.problems.attention",
    "Gemm": "perfmodel.problems.gemm",
    "GroupedGemm": "perfmodel.problems.grouped_gemm",
    "MemoryBound": "perfmodel.problems.memory_bound",
    "Prediction": "perfmodel.prediction",
    "Predictor": "perfmodel.predictor",
    "Ranking": "perfmodel.prediction",
    "TileConfig": "perfmodel.tiling.config",
    "explain": "perfmodel.predictor",
    "load_gpu": "perfmodel.hardware.catalog",
    "predict": "perfmodel.predictor",
    "predict_many": "perfmodel.batch",
    "rank": "perfmodel.predictor",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - start-up time

    try:
        return version("perfmodel")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"
