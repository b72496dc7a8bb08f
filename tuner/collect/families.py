"""What planning and merging need to know of a family of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError, closest
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches
from perfmodel.predictor import Predictor
from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable
from perfmodel.tiling.legality import require_dtype
from tuner.collect import attention_shapes, moe_shapes, table_columns
from tuner.collect.gemm_shapes import alternate_gemms
from tuner.kernels import catalog

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What the model says of configurations, one each (N,).

    ``score`` is what the predictor orders them by, the least first. ``log_width`` says in log units
    how far apart the answers are that may be right: the width of the learned model's interval, or
    where there is none, how much longer the estimate would be if nothing on the device overlapped.
    """

    latency_us: Floats
    score: Floats
    log_width: Floats


class Family(Protocol):
    """A family of problems as it is planned.

    ``name`` is what a user calls it; ``table`` the family of measurement rows; ``parameters``
    those of a configuration that its kernels read.
    """

    name: str
    table: str
    parameters: tuple[str, ...]

    def problems(self, gpu: Gpu, dtypes: Sequence[str], seed: int) -> Iterator[tuple[str, Any]]:
        """Yield problems with their origins, the most wanted first, the same for the same seed.

        Raises:
            UnsupportedDtypeError: the device has no arithmetic for a type.
        """

    def kernel_of(self, problem: Any) -> str:
        """Return the name of the kernel that computes a problem, of `tuner.kernels.catalog`."""

    def columns(self, problem: Any) -> dict[str, Any]:
        """Return a problem by the columns of the measurement table."""

    def configs(self, problem: Any, gpu: Gpu) -> ConfigTable:
        """Return the configurations worth measuring."""

    def score(self, problem: Any, gpu: Gpu, configs: ConfigTable, predictor: Predictor) -> Scored:
        """Return what the model says of them."""


class GemmFamily:
    """Matrix products; those of 8-bit operands with a scale per row and column."""

    name = table = "gemm"
    parameters: tuple[str, ...] = (
        "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "split_k",
        "num_ctas", "maxnreg",
    )  # fmt: skip

    def problems(self, gpu: Gpu, dtypes: Sequence[str], seed: int) -> Iterator[tuple[str, Gemm]]:
        """Yield problems of known models and space-filling ones by turns."""
        for dtype in dtypes:
            require_dtype(Gemm(1, 1, 1, a_dtype=dtype).compute_dtype, gpu)
        return alternate_gemms(dtypes, seed, gpu.memory_bytes)

    def kernel_of(self, problem: Gemm) -> str:
        """Return the plain kernel's name, or that of the scaled one."""
        return "gemm_row_scaled" if problem.a_dtype.bits == 8 else "gemm"

    def columns(self, problem: Gemm) -> dict[str, Any]:
        """Return sizes, types, layouts and strides."""
        return table_columns.of_gemm(problem)

    def configs(self, problem: Gemm, gpu: Gpu) -> ConfigTable:
        """Return the candidates of the device."""
        return _space(self.kernel_of(problem), problem, gpu)

    def score(self, problem: Gemm, gpu: Gpu, configs: ConfigTable, predictor: Predictor) -> Scored:
        """Return predicted times and the widths of their intervals."""
        found = predictor.launches(GemmTable.of(problem), configs, gpu)
        latency_us = np.exp(predictor.log_seconds(found)) * 1e6
        score = predictor.scores(problem, gpu, configs)
        model = predictor.model_for(gpu)
        if model is None or found.features is None or not problem.flops:
            return Scored(latency_us, score, overlap_width(found))
        known = model.knows(gpu.name, found.dtype)
        low, high = model.log_interval(found.features, known)
        return Scored(latency_us, score, np.asarray(high - low, dtype=np.float64))


class AttentionFamily:
    """Flash attention of whole prompts, or its gradients."""

    table = "attention"
    parameters: tuple[str, ...] = ("block_m", "block_n", "num_warps", "num_stages")

    def __init__(self, name: str, kernel: str, *, backward: bool) -> None:
        self.name, self._kernel, self._backward = name, kernel, backward

    def problems(
        self, gpu: Gpu, dtypes: Sequence[str], seed: int
    ) -> Iterator[tuple[str, Attention]]:
        """Yield problems of known models and space-filling ones by turns."""
        for dtype in dtypes:
            require_dtype(parse_dtype(dtype), gpu)
        return attention_shapes.prefill(dtypes, seed, gpu.memory_bytes, backward=self._backward)

    def kernel_of(self, problem: Attention) -> str:  # noqa: ARG002 - one kernel for all of them
        """Return the kernel's name."""
        return self._kernel

    def columns(self, problem: Attention) -> dict[str, Any]:
        """Return lengths, heads, types and mask."""
        return table_columns.of_attention(problem)

    def configs(self, problem: Attention, gpu: Gpu) -> ConfigTable:
        """Return the tiles worth trying."""
        return _space(self._kernel, problem, gpu)

    def score(
        self, problem: Attention, gpu: Gpu, configs: ConfigTable, predictor: Predictor
    ) -> Scored:
        """Return predicted times, and how much they rest on overlap."""
        return _tile_score(problem, gpu, configs, predictor)


class DecodeFamily(AttentionFamily):
    """Attention of new tokens over long caches, the keys split over programs."""

    parameters: tuple[str, ...] = (*AttentionFamily.parameters, "split_k")

    def __init__(self) -> None:
        super().__init__("decode", "attention_decode", backward=False)

    def problems(
        self, gpu: Gpu, dtypes: Sequence[str], seed: int
    ) -> Iterator[tuple[str, Attention]]:
        """Yield problems of known models and space-filling ones by turns."""
        for dtype in dtypes:
            require_dtype(parse_dtype(dtype), gpu)
        return attention_shapes.decode(dtypes, seed, gpu.memory_bytes)


class MoeFamily:
    """The matrix products of mixture-of-experts layers, activation and sum included."""

    name = "moe"
    table = "grouped_gemm"
    parameters: tuple[str, ...] = (
        "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages",
    )  # fmt: skip

    def problems(
        self, gpu: Gpu, dtypes: Sequence[str], seed: int
    ) -> Iterator[tuple[str, GroupedGemm]]:
        """Yield problems of known models and space-filling ones by turns."""
        for dtype in dtypes:
            require_dtype(parse_dtype(dtype), gpu)
        return moe_shapes.layers(dtypes, seed, gpu.memory_bytes)

    def kernel_of(self, problem: GroupedGemm) -> str:  # noqa: ARG002 - one kernel for all of them
        """Return the kernel's name."""
        return "grouped_gemm"

    def columns(self, problem: GroupedGemm) -> dict[str, Any]:
        """Return sizes, types and routing."""
        return table_columns.of_grouped_gemm(problem)

    def configs(self, problem: GroupedGemm, gpu: Gpu) -> ConfigTable:
        """Return the tiles worth trying, one for both projections."""
        return _space("grouped_gemm", problem, gpu)

    def score(
        self, problem: GroupedGemm, gpu: Gpu, configs: ConfigTable, predictor: Predictor
    ) -> Scored:
        """Return predicted times, and how much they rest on overlap."""
        return _tile_score(problem, gpu, configs, predictor)


def overlap_width(found: Launches) -> Floats:
    """Return the log of how much longer launches would be if nothing overlapped.

    The estimate takes the slowest resource and lets the others hide behind it. Where another is
    nearly as slow, that is least certain.
    """
    slowest = found.estimate.limiter_s.max(axis=0)
    together = found.estimate.limiter_s.sum(axis=0)
    return np.asarray(np.log(together / np.maximum(slowest, 1e-12)), dtype=np.float64)


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        GemmFamily(),
        AttentionFamily("attention", "attention", backward=False),
        AttentionFamily("attention-backward", "attention_backward", backward=True),
        DecodeFamily(),
        MoeFamily(),
    )
}


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


def _space(kernel: str, problem: Any, gpu: Gpu) -> ConfigTable:
    return ConfigTable.of(catalog.find(kernel).space(problem, gpu))


def _tile_score(
    problem: Attention | GroupedGemm, gpu: Gpu, configs: ConfigTable, predictor: Predictor
) -> Scored:
    found = predictor.launches_of(problem, configs, gpu)
    latency_us = np.exp(predictor.log_seconds(found)) * 1e6
    return Scored(latency_us, predictor.scores(problem, gpu, configs), overlap_width(found))
