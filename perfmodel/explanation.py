"""Why a launch takes as long as it does, how far it could go, and what to change first.

``Explanation.to_dict()`` (``perfmodel explain --json``), schema ``perfmodel.explanation/1``, has
the keys of a prediction (`perfmodel.prediction`) and

=================== ============================================================================
``schedule``        ``ctas``, ``sm_count``, ``occupancy`` (CTAs per SM), ``occupancy_limiter``,
                    ``waves``, ``full_waves``, ``tail_ctas``, ``tail_fill`` (0 to 1),
                    ``iterations`` of the main loop
``resources``       of one CTA: ``threads``, ``smem_bytes`` and ``smem_bytes_max``, and per thread
                    ``registers_wanted``, ``registers`` (given), ``spill_bytes_per_thread``
``traffic``         ``flops``, ``compulsory_bytes``, ``dram_bytes``
``analytic_us``     the estimate before the learned part
``correction``      ``latency_us`` over ``analytic_us``
``moved``           what moved the learned part most: ``feature``, ``value``, ``factor``
``floor_us``        what nothing beats: peak rates, compulsory traffic, launch overhead
``ceiling``         ``latency_us`` that the best known launches of this kind reach, at ``quantile``
                    of them; null where the model does not know
``changes``         what to change first: ``what``, ``latency_us`` then, ``speedup``
=================== ============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import InvalidProblemError
from perfmodel.families import TileProblem, family_of
from perfmodel.families.library import require_tile
from perfmodel.hardware.gpu import Gpu
from perfmodel.launches import Launches
from perfmodel.learned.correction import KnowsCeiling
from perfmodel.prediction import Prediction
from perfmodel.problems.gemm import VECTOR_BYTES_MAX, Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import differences
from perfmodel.tiling.resources import ctas_per_sm

if TYPE_CHECKING:
    from perfmodel.predictor import Predictor

EXPLANATION_SCHEMA = "perfmodel.explanation/1"

FEATURES_SHOWN = 6
CHANGES_SHOWN = 5

GAIN_MIN = 0.01
"""Smaller gains are within what repeats of one measurement differ by."""


@dataclass(frozen=True)
class Schedule:
    """How the grid fills the device; ``tail_fill`` is the last wave's share of its slots."""

    ctas: int
    sm_count: int
    occupancy: int
    occupancy_limiter: str
    waves: float
    full_waves: int
    tail_ctas: int
    tail_fill: float
    iterations: int


@dataclass(frozen=True)
class CtaResources:
    """What one CTA takes, and what there is."""

    threads: int
    smem_bytes: int
    smem_bytes_max: int
    registers_wanted: int
    registers: int
    spill_bytes_per_thread: int


@dataclass(frozen=True)
class Traffic:
    """Operations and bytes of the launch as a whole."""

    flops: float
    compulsory_bytes: float
    dram_bytes: float


@dataclass(frozen=True)
class Moved:
    """A feature's value and the factor by which it moved the learned correction."""

    feature: str
    value: float
    factor: float


@dataclass(frozen=True)
class Ceiling:
    """The time that the best known configurations of such launches reach, as a quantile of them."""

    latency_us: float
    quantile: float


@dataclass(frozen=True)
class Change:
    """One thing to change: what to type or pad, the time then, and the speed-up."""

    what: str
    latency_us: float
    speedup: float


@dataclass(frozen=True)
class Explanation:
    """A prediction and what is behind it; the fields are those of the module's table."""

    prediction: Prediction
    schedule: Schedule
    resources: CtaResources
    traffic: Traffic
    analytic_us: float
    correction: float
    moved: tuple[Moved, ...]
    floor_us: float
    ceiling: Ceiling | None
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the prediction's own, and every field above by its name."""
        values: dict[str, Any] = self.prediction.to_dict() | {"schema": EXPLANATION_SCHEMA}
        for name in ("schedule", "resources", "traffic"):
            values[name] = asdict(getattr(self, name))
        return values | {
            "analytic_us": self.analytic_us,
            "correction": self.correction,
            "moved": [asdict(moved) for moved in self.moved],
            "floor_us": self.floor_us,
            "ceiling": None if self.ceiling is None else asdict(self.ceiling),
            "changes": [asdict(change) for change in self.changes],
        }


def explain(
    predictor: Predictor, problem: TileProblem, gpu: Gpu, config: TileConfig | None
) -> Explanation:
    """Explain one launch; without ``config``, that of the best configuration found."""
    require_tile(problem)
    if config is None:
        space = family_of(problem).candidates(problem, gpu)
        config = space.configs[predictor.decide(problem, gpu, space)]
    prediction = predictor.predict(problem, gpu, config)
    found = predictor.launches_of(problem, ConfigTable.of([config]), gpu)
    analytic_us = float(found.estimate.seconds[0]) * 1e6
    work, resources = found.work, found.work.resources
    return Explanation(
        prediction=prediction,
        schedule=_schedule(found, config),
        resources=CtaResources(
            threads=int(resources.threads[0]),
            smem_bytes=int(resources.smem_bytes[0]),
            smem_bytes_max=gpu.smem_per_block_optin_bytes,
            registers_wanted=int(np.ceil(resources.registers_wanted[0])),
            registers=int(resources.registers[0]),
            spill_bytes_per_thread=int(np.ceil(resources.spill_bytes_per_thread[0])),
        ),
        traffic=Traffic(
            flops=problem.flops,
            compulsory_bytes=problem.compulsory_bytes,
            dram_bytes=float(work.dram_bytes[0]),
        ),
        analytic_us=analytic_us,
        correction=prediction.latency_us / analytic_us,
        moved=_moved(predictor, prediction, found),
        floor_us=float(found.floor_s[0]) * 1e6,
        ceiling=_ceiling(predictor, prediction, found),
        changes=_changes(predictor, found, problem, config, prediction.latency_us)
        if work.flops[0]
        else (),
    )


def _schedule(found: Launches, config: TileConfig) -> Schedule:
    waves, ctas = found.estimate.waves, float(found.work.ctas[0])
    occupancy = max(int(found.work.resources.occupancy[0]), 1)
    slots = found.gpu.sm_count * occupancy
    return Schedule(
        ctas=int(ctas),
        sm_count=found.gpu.sm_count,
        occupancy=occupancy,
        occupancy_limiter=_occupancy_limiter(found, config),
        waves=ctas / slots,
        full_waves=int(waves.full[0]),
        tail_ctas=int(waves.tail_ctas[0]),
        tail_fill=float(waves.tail_ctas[0]) / slots,
        iterations=int(found.work.classes[0].iterations[0]),
    )


def _occupancy_limiter(found: Launches, config: TileConfig) -> str:
    """What keeps an SM from holding more CTAs: lifting it alone allows the most."""
    resources, gpu = found.work.resources, found.gpu
    smem, registers = resources.smem_bytes, resources.registers
    warps = np.array([float(config.num_warps)])
    nothing, one = np.zeros(1), np.ones(1)
    alone = {
        "shared memory": ctas_per_sm(smem, one, one, gpu)[0],
        "registers": ctas_per_sm(nothing, registers, warps, gpu)[0],
        "warps per SM": ctas_per_sm(nothing, one, warps, gpu)[0],
        "blocks per SM": float(gpu.blocks_per_sm),
    }
    least = min(alone.values())
    # Registers are shared by warps, so of equals the plainer reason comes first.
    plain = ("blocks per SM", "warps per SM", "shared memory", "registers")
    return next(name for name in plain if alone[name] == least)


def _moved(predictor: Predictor, prediction: Prediction, found: Launches) -> tuple[Moved, ...]:
    model, features = predictor.model_for(found.gpu), found.features
    if model is None or features is None or prediction.basis in ("analytic", "measured"):
        return ()
    parts = model.contributions(features[0])
    values = dict(zip(parts, features[0].tolist(), strict=True))
    largest = sorted(parts, key=lambda name: -abs(parts[name]))[:FEATURES_SHOWN]
    return tuple(Moved(name, values[name], float(np.exp(parts[name]))) for name in largest)


def _ceiling(predictor: Predictor, prediction: Prediction, found: Launches) -> Ceiling | None:
    model, features = predictor.model_for(found.gpu), found.features
    if features is None or prediction.basis == "analytic" or not isinstance(model, KnowsCeiling):
        return None
    log_s = np.log(found.estimate.seconds[0]) + model.log_ceiling(features)[0]
    latency_us = max(float(np.exp(log_s)), float(found.floor_s[0])) * 1e6
    return Ceiling(min(latency_us, prediction.latency_us), model.ceiling_quantile)


def _changes(
    predictor: Predictor,
    found: Launches,
    problem: TileProblem,
    config: TileConfig,
    now_us: float,
) -> tuple[Change, ...]:
    """Single parameters, the best tile of all, and padding, each predicted."""
    gpu = found.gpu
    gains = _config_changes(predictor, problem, config, gpu)
    for what, padded in _paddings(problem) if isinstance(problem, Gemm) else ():
        gains.append((what, now_us / float(predictor.latency_us(padded, gpu, config)[0])))
        best = predictor.predict(padded, gpu)
        if best.config is not None:
            then = f"{what}, then {differences(config, best.config)}"
            gains.append((then, now_us / best.latency_us))
    largest = sorted((g for g in gains if g[1] >= 1 + GAIN_MIN), key=lambda gain: -gain[1])
    return tuple(Change(what, now_us / gain, gain) for what, gain in largest[:CHANGES_SHOWN])


def _config_changes(
    predictor: Predictor, problem: TileProblem, config: TileConfig, gpu: Gpu
) -> list[tuple[str, float]]:
    """What other configurations gain by their predicted times; the ranking chose the best one."""
    family = family_of(problem)
    space = family.candidates(problem, gpu)
    sensible = {_varied(c, family.varied) for c in space.configs}
    near = _neighbours(config, family.parameters)
    options = [c for c in near if _varied(c, family.varied) in sensible]
    options.append(space.configs[predictor.decide(problem, gpu, space)])
    options = [config, *dict.fromkeys(c for c in options if c != config)]
    times_us = predictor.latency_us(problem, gpu, ConfigTable.of(options))
    return [
        (differences(config, options[at]), float(times_us[0] / times_us[at]))
        for at in range(1, len(options))
        if np.isfinite(times_us[at])
    ]


def _varied(config: TileConfig, names: Sequence[str]) -> tuple[int, ...]:
    """What the candidates vary of a tile; the rest they leave at its default."""
    return tuple(getattr(config, name) for name in names)


def _neighbours(config: TileConfig, parameters: Sequence[str]) -> Iterator[TileConfig]:
    """Configurations that differ in one parameter by one step."""
    steps = ("block_m", "block_n", "block_k", "num_warps", "group_m", "split_k")
    for name in (name for name in steps if name in parameters):
        value: int = getattr(config, name)
        yield replace(config, **_one(name, value * 2))
        if value > 1:
            yield replace(config, **_one(name, max(value // 2, 1)))
    yield replace(config, num_stages=config.num_stages + 1)
    if config.num_stages > 1:
        yield replace(config, num_stages=config.num_stages - 1)


def _one(name: str, value: int) -> Mapping[str, Any]:
    return {name: value}


def _paddings(problem: Gemm) -> Iterator[tuple[str, Gemm]]:
    """The same problem with operands padded so that every load is as wide as it can be."""
    whole = int(VECTOR_BYTES_MAX / min(problem.a_dtype.bytes, 2))
    narrow = min(problem.a_vector_bytes, problem.b_vector_bytes) < VECTOR_BYTES_MAX
    if not narrow:
        return
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
    contiguous = {
        "k" if problem.a_layout == "row" else "m",
        "n" if problem.b_layout == "row" else "k",
    }
    padded = {name: _up(size, whole) for name, size in sizes.items() if name in contiguous}
    try:
        other = replace(
            problem,
            **{**sizes, **padded},
            lda=_padded_stride(problem, "a", padded, whole),
            ldb=_padded_stride(problem, "b", padded, whole),
        )
    except InvalidProblemError:  # past the largest size there is
        return
    text = [f"{name} to {size}" for name, size in padded.items() if size != sizes[name]]
    text += [
        f"{name} to {getattr(other, name)}"
        for name in ("lda", "ldb")
        if getattr(other, name) != getattr(problem, name)
    ]
    yield f"pad {', '.join(text)}", other


def _padded_stride(problem: Gemm, operand: str, padded: Mapping[str, int], whole: int) -> int:
    if operand == "a":
        stride, name = problem.lda, "k" if problem.a_layout == "row" else "m"
    else:
        stride, name = problem.ldb, "n" if problem.b_layout == "row" else "k"
    return max(_up(stride or 0, whole), padded[name])


def _up(size: int, whole: int) -> int:
    return -(-size // whole) * whole
