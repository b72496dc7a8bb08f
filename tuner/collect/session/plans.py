"""What a session measures in each of its timing steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor
from tuner.collect.families import family_of
from tuner.collect.plan import Budget, make_plan
from tuner.collect.plan_file import Plan, Settings

SETTINGS = Settings(samples=10, limit_s=0.5)
"""Many configurations with few samples each: finalists are told apart elsewhere."""


@dataclass(frozen=True)
class Wanted:
    """Problems of a family, and configurations of each; ``None`` for all worth trying."""

    family: str
    problems: int
    configs: int | None
    dtypes: tuple[str, ...] = ("bf16",)


FULL: Mapping[str, Wanted] = {
    "attention": Wanted("attention", 60, None),
    "decode": Wanted("decode", 40, 60),
    "gemm": Wanted("gemm", 80, 60, ("bf16", "fp8_e4m3")),
    "moe": Wanted("moe", 40, 40),
}

SMALL: Mapping[str, Wanted] = {
    "attention": Wanted("attention", 2, 3),
    "decode": Wanted("decode", 2, 2),
    "gemm": Wanted("gemm", 2, 2, ("bf16", "fp8_e4m3")),
    "moe": Wanted("moe", 1, 2),
}
"""For rehearsals."""


def plan_step(wanted: Wanted, gpu: Gpu, predictor: Predictor | None = None) -> Plan:
    """Plan one step; types that the device has no arithmetic for are left out."""
    dtypes = [d for d in wanted.dtypes if d in gpu.tensor_tflops] or list(wanted.dtypes[:1])
    return make_plan(
        gpu,
        [family_of(wanted.family)],
        dtypes,
        budget=Budget(None, wanted.problems, wanted.configs),
        settings=SETTINGS,
        predictor=predictor,
    )
