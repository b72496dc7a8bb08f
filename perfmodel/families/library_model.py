"""What a shape-level model says of a library kernel, and which data stands behind the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.analytic.shape import ShapeEstimate, ShapeTable
from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.hardware.gpu import Gpu
from perfmodel.learned.shape_artifact import load_shape_model
from perfmodel.learned.shape_features import backend_on, kernel_columns, shape_matrix
from perfmodel.learned.shape_model import ShapeModel
from perfmodel.learned.shape_table import shape_columns
from perfmodel.prediction import Basis
from perfmodel.problems import Problem
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.problems.library import LibraryKernel, stand_in

Array = NDArray[np.float64]

BLOCK_SCALED_BACKENDS = {
    "gemm-fp8": frozenset({"deepgemm"}),
    "moe-fp8": frozenset({"deepgemm", "triton"}),
}
"""Backends whose 8-bit products have a scale per block in all data, or nearly all, by model."""


@dataclass(frozen=True)
class LearnedShape:
    """Learned answers of N problems: seconds and the interval in logs (N,), what they rest on."""

    seconds: Array
    log_interval: tuple[Array, Array]
    basis: tuple[Basis, ...]
    model: str
    expected_error: float | None
    estimate: ShapeEstimate
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Backing:
    """The data that answers for a kernel on a device; ``here``: measured on that very device."""

    kernel: LibraryKernel
    here: bool
    expected_error: float | None
    notes: tuple[str, ...]


def learned_shape(problem: Problem, table: ShapeTable, gpu: Gpu) -> LearnedShape | None:
    """Return what the shipped model of the problem's family says, ``None`` where it has nothing.

    That is: no model of the family, no data type alike, no kernel that may stand in. ``table``
    holds N problems of the model, data types and backend of ``problem``.
    """
    family = model_family(problem)
    if family is None or problem.backend is None:
        return None
    model = shipped_shape_model(family)
    if model is None:
        return None
    found = _backing(model, problem.backend, _dtype_name(problem), gpu)
    if found is None:
        return None
    columns, estimate = shape_columns(table, gpu)
    backend = found.kernel.kernel or found.kernel.backend
    scaled = backend in BLOCK_SCALED_BACKENDS.get(family, ())
    columns |= kernel_columns(found.kernel.backend, backend, scaled)
    features = shape_matrix(columns, len(estimate))
    own = model.for_device(gpu.name)
    within = own.covers(features) & (found.here and not found.notes)
    return LearnedShape(
        seconds=estimate.seconds * np.exp(own.log_correction(features)),
        log_interval=own.log_interval(features, found.here),
        basis=tuple("interpolated" if known else "extrapolated" for known in within),
        model=model.version,
        expected_error=found.expected_error,
        estimate=estimate,
        notes=found.notes,
    )


@lru_cache(maxsize=1024)
def _backing(
    model: ShapeModel, wanted_kernel: LibraryKernel, wanted: str, gpu: Gpu
) -> _Backing | None:
    dtype = nearest_dtype(model, gpu.name, wanted)
    known = [_resolved(text, gpu) for text in model.known_kernels(gpu.name)]
    found = stand_in(wanted_kernel, known)
    if found is None and gpu.name in model.manifest.kernels:
        everywhere = [_resolved(text, gpu) for text in model.known_kernels("")]
        found = stand_in(wanted_kernel, everywhere)
    if dtype is None or found is None:
        return None
    kernel, reason = found
    notes = [reason] if reason else []
    if dtype != wanted:
        notes.append(f"no data of {wanted}: {dtype} stands in")
    here = kernel in known and model.knows(gpu.name, dtype)
    if gpu.name not in model.manifest.known:
        notes.append(
            f"nothing was measured on {gpu.name}: what other devices' data says, by the ratios of "
            "what they have"
        )
    elif not model.knows(gpu.name, dtype):
        notes.append(f"no data of {dtype} on {gpu.name}: what other devices' data says")
    elif kernel not in known:
        notes.append(f"no data of {kernel} on {gpu.name}: what other devices' data says")
    entry = model.accuracy.get(f"{gpu.name}/{dtype}") if here else _left_out(model, dtype)
    return _Backing(kernel, here, (entry or {}).get("error_mean"), tuple(notes))


def model_family(problem: Problem) -> str | None:
    """Return the name of the model that answers for a problem."""
    if isinstance(problem, Gemm):
        return "gemm-fp8" if problem.compute_dtype.bits == 8 else "gemm"
    if isinstance(problem, Attention) and not problem.backward:
        longest = max((q for q, _ in problem.items), default=0)
        return "decode" if longest <= 1 else "prefill"
    if isinstance(problem, GroupedGemm):
        return "moe-fp8" if problem.compute_dtype.bits == 8 else "moe"
    return None


def nearest_dtype(model: ShapeModel, gpu_name: str, wanted: str) -> str | None:
    """Return the measured type that answers for ``wanted``: itself, or the other 16-bit one."""
    here = model.manifest.known.get(gpu_name)
    everywhere = {name for names in model.manifest.known.values() for name in names}
    candidates = (wanted, wanted.replace("fp16", "bf16"))
    for known in (set(here or ()), everywhere):
        for candidate in candidates:
            if candidate in known:
                return candidate
    return None


@lru_cache(maxsize=8)
def shipped_shape_model(family: str) -> ShapeModel | None:
    """Return the shipped model of a family, ``None`` where there is none that can be used."""
    try:
        return load_shape_model(family)
    except (ModelFileError, SchemaMismatchError):
        return None


def _resolved(text: str, gpu: Gpu) -> LibraryKernel:
    """Read an identity, with a kernel that its source left unnamed called what it is."""
    kernel = LibraryKernel.parse(text)
    return replace(kernel, kernel=backend_on(kernel.kernel or "", gpu) or None)


def _left_out(model: ShapeModel, dtype: str) -> Mapping[str, float]:
    """Mean of the errors on devices that were left out, where they have that type."""
    errors = [
        figures["error_mean"]
        for cell, figures in model.accuracy.items()
        if cell.startswith("left-out/") and cell.endswith(f"/{dtype}")
    ]
    return {"error_mean": float(np.mean(errors))} if errors else {}


def _dtype_name(problem: Problem) -> str:
    if isinstance(problem, Gemm):
        one, other = str(problem.a_dtype), str(problem.b_dtype or problem.a_dtype)
    elif isinstance(problem, Attention):
        one, other = str(problem.dtype), str(problem.kv_dtype or problem.dtype)
    elif isinstance(problem, GroupedGemm):
        one, other = str(problem.dtype), str(problem.weight_dtype or problem.dtype)
    else:
        return str(problem.dtype)
    return one if one == other else f"{one}/{other}"
