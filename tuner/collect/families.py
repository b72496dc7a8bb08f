"""What planning and merging need to know of a family of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError, closest
from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.legality import require_dtype
from perfmodel.tiling.space import candidate_configs
from tuner.collect.shapes import alternate_gemms

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What the model says of configurations, one each (N,).

    ``log_width`` is the width of the interval in log units; ``None`` without a learned model.
    """

    latency_us: Floats
    log_width: Floats | None


class Family(Protocol):
    """A family of problems that one kernel computes."""

    name: str
    kernel: str

    def problems(self, gpu: Gpu, dtypes: Sequence[str], seed: int) -> Iterator[tuple[str, Any]]:
        """Yield problems with their origins, the most wanted first, the same for the same seed."""

    def columns(self, problem: Any) -> dict[str, Any]:
        """Return a problem by the columns of the measurement table."""

    def problem(self, columns: Mapping[str, Any]) -> Any:
        """Return the problem that `columns` described."""

    def configs(self, problem: Any, gpu: Gpu) -> ConfigTable:
        """Return the configurations worth measuring."""

    def score(self, problem: Any, gpu: Gpu, configs: ConfigTable, predictor: Predictor) -> Scored:
        """Return what the model says of them."""


class GemmFamily:
    """Matrix products."""

    name = "gemm"
    kernel = "gemm"

    def problems(self, gpu: Gpu, dtypes: Sequence[str], seed: int) -> Iterator[tuple[str, Gemm]]:
        """Yield problems of known models and space-filling ones by turns.

        Raises:
            UnsupportedDtypeError: the device has no arithmetic for a type.
        """
        for dtype in dtypes:
            require_dtype(Gemm(1, 1, 1, a_dtype=dtype).compute_dtype, gpu)
        return alternate_gemms(dtypes, seed, gpu.memory_bytes)

    def columns(self, problem: Gemm) -> dict[str, Any]:
        """Return sizes, types, layouts and strides."""
        return problem.to_dict()

    def problem(self, columns: Mapping[str, Any]) -> Gemm:
        """Return the problem of those columns."""
        return Gemm(**columns)

    def configs(self, problem: Gemm, gpu: Gpu) -> ConfigTable:
        """Return the candidates of the device."""
        return candidate_configs(problem, gpu)

    def score(self, problem: Gemm, gpu: Gpu, configs: ConfigTable, predictor: Predictor) -> Scored:
        """Return predicted times and the widths of their intervals."""
        found = predictor.launches(GemmTable.of(problem), configs, gpu)
        latency_us = np.exp(predictor.log_seconds(found)) * 1e6
        model = predictor.model_for(gpu)
        if model is None or found.features is None or not problem.flops:
            return Scored(latency_us, None)
        known = model.knows(gpu.name, found.dtype)
        low, high = model.log_interval(found.features, known)
        return Scored(latency_us, np.asarray(high - low, dtype=np.float64))


FAMILIES: Mapping[str, Family] = {family.name: family for family in (GemmFamily(),)}


def family_of(name: str) -> Family:
    """Return the family called ``name``.

    Raises:
        UsageError: none is; the message lists them.
    """
    if name not in FAMILIES:
        raise UsageError(
            f"no family of kernels is called {name!r}{closest(name, FAMILIES)}; "
            f"use one of: {', '.join(FAMILIES)}"
        )
    return FAMILIES[name]
