"""What compiling the reference kernels' whole config spaces takes: every job, each once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import UnsupportedDtypeError, UsageError, closest
from perfmodel.hardware.catalog import load_gpu
from perfmodel.tiling.config import TileConfig
from perfmodel.tiling.legality import TENSOR_MEMORY_COLUMNS
from tuner.compile import CompiledKernel, specialize
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.portable import PortableKernel, portable
from tuner.kernels.catalog import ReferenceKernel
from tuner.kernels.launch import Launch

DEVICES: Mapping[str, str] = {
    "sm_80": "a100-sxm4-80gb", "sm_86": "rtx-3090", "sm_89": "rtx-4090", "sm_90": "h100-sxm5",
    "sm_100": "b200", "sm_120": "rtx-5090",
}  # fmt: skip
"""The device whose spaces are compiled for each architecture."""


@dataclass(frozen=True)
class SpaceJob:
    """One binary of a space, and the first configuration that needs it."""

    kernel: str
    target: str
    problem: Any
    config: TileConfig
    job: CompileJob


def space_jobs(
    kernels: Iterable[ReferenceKernel], targets: Iterable[str], *, seed: int = 0
) -> list[SpaceJob]:
    """Return what to compile, in an order that covers everything evenly from the start.

    The order is the same every time. Types that a device has no arithmetic for are left out.

    Raises:
        UsageError: a target is none of `DEVICES`.
        NotInstalledError: Triton is absent.
    """
    wanted = [(target, load_gpu(_device(target))) for target in targets]
    found: dict[str, SpaceJob] = {}
    for kernel in kernels:
        for target, gpu in wanted:
            for problem in kernel.examples:
                try:
                    space = kernel.space(problem, gpu)
                except UnsupportedDtypeError:
                    continue
                for config in space:
                    for launch in kernel.planned(problem, config).launches:
                        job = job_of(launch, target, f"{kernel.name} {target} {config}")
                        made = SpaceJob(kernel.name, target, problem, config, job)
                        found.setdefault(_identity(job), made)
    jobs = list(found.values())
    random.Random(seed).shuffle(jobs)
    return jobs


def job_of(launch: Launch, target: str, label: str = "") -> CompileJob:
    """Return a launch as a compilation that a worker can do."""
    specialization = specialize(
        launch.kernel.arg_names, launch.pointers, launch.integers, launch.constexprs, launch.floats
    )
    return CompileJob(_text_of(launch.kernel), specialization, target, launch.options, label)


def failures(
    jobs: Sequence[SpaceJob], results: Sequence[CompiledKernel]
) -> list[tuple[SpaceJob, CompiledKernel]]:
    """Return what cannot run, with its reason: it did not compile, or the device is too small."""
    judged = [(job, launchable(job, result)) for job, result in zip(jobs, results, strict=True)]
    return [(job, result) for job, result in judged if not result.ok]


def launchable(job: SpaceJob, result: CompiledKernel) -> CompiledKernel:
    """Return the result, or that the binary takes more of a block than the device has."""
    gpu = load_gpu(_device(job.target))
    for what, needed, there in (
        ("bytes of shared memory", result.shared_bytes, gpu.smem_per_block_optin_bytes),
        ("columns of tensor memory", result.tensor_memory_columns, TENSOR_MEMORY_COLUMNS),
    ):
        if result.ok and (needed or 0) > there:
            reason = f"it takes more {what} than the {there} of a block"
            return replace(result, outcome=Outcome.OUT_OF_RESOURCES, reason=reason)
    return result


def outcomes(
    jobs: Sequence[SpaceJob], results: Sequence[CompiledKernel]
) -> Mapping[tuple[str, str], Counter[str]]:
    """Return how many binaries came out how, by kernel and target."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    for job, result in zip(jobs, results, strict=True):
        outcome = launchable(job, result).outcome
        counted.setdefault((job.kernel, job.target), Counter())[outcome.value] += 1
    return counted


@lru_cache(maxsize=64)
def _text_of(kernel: Any) -> PortableKernel:
    return portable(kernel)


def _identity(job: CompileJob) -> str:
    known = job.specialization
    return repr((
        job.kernel.name, sorted(known.signature.items()),
        sorted((name, str(value)) for name, value in known.constexprs.items()),
        sorted(known.attrs), job.target, sorted(job.options.items()),
    ))  # fmt: skip


def _device(target: str) -> str:
    if target not in DEVICES:
        raise UsageError(
            f"no space is listed for target {target!r}{closest(target, DEVICES)}; "
            f"use one of: {', '.join(DEVICES)}"
        )
    return DEVICES[target]


__all__ = ["DEVICES", "SpaceJob", "failures", "job_of", "launchable", "outcomes", "space_jobs"]
