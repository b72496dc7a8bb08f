"""Compiling what a search will time, many at once, before the device is touched.

Each worker is a process of its own: a compiler that aborts or hangs costs one configuration.
Triton's own cache holds the kernels afterwards, so this process only loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import KernelNotPortableError, RunFailedError
from tuner import triton_api
from tuner.compile import CompiledKernel, Specialization
from tuner.compiling.compile_cache import CompileCache
from tuner.compiling.compile_job import CompileJob
from tuner.compiling.compile_pool import compile_all
from tuner.compiling.portable import portable
from tuner.deciding.decision import Call

WORTH_IT = 2
"""So many configurations and more are compiled in workers; one is compiled where it is used."""


def compile_configs(
    function: Any, call: Call, configs: Sequence[Any], shared_bytes_max: int | None
) -> dict[int, tuple[Outcome, str]]:
    """Compile configurations for a call; return those that give no launchable kernel, by place.

    Args:
        function: the kernel, with what is decorated below the autotuner.
        call: its arguments.
        configs: what to compile it with.
        shared_bytes_max: the device's limit of a block, ``None`` where it is not known.

    Nothing is compiled for kernels that cannot be sent to a worker; they compile where they run.
    """
    if len(configs) < WORTH_IT:
        return {}
    jobs: list[CompileJob] = []
    try:
        source = portable(triton_api.jit_function(function))
        for config in configs:
            chosen = config.all_kwargs()
            found = triton_api.specialized(function, call.args, {**call.kwargs, **chosen})
            if found is None:
                return {}
            target, signature, constants, attributes = found
            options = {n: chosen[n] for n in triton_api.CONFIG_OPTIONS if n in chosen}
            options |= {
                name: value
                for name, value in {**call.kwargs, **config.kwargs}.items()
                if name not in signature and name not in ("grid", "warmup")
            }
            job = CompileJob(
                source, Specialization(signature, constants, attributes), target, options,
                str(config),
            )  # fmt: skip
            job.to_dict()  # what cannot be sent shows here
            jobs.append(job)
    except KernelNotPortableError:
        return {}
    try:
        results = compile_all(jobs, cache=CompileCache())
    except RunFailedError:  # no worker can be had: they compile where they run
        return {}
    return {
        i: trouble
        for i, result in enumerate(results)
        if (trouble := _trouble(result, shared_bytes_max)) is not None
    }


def _trouble(result: CompiledKernel, shared_bytes_max: int | None) -> tuple[Outcome, str] | None:
    if not result.ok:
        return result.outcome, result.reason or str(result.outcome)
    needed = result.shared_bytes
    if needed is not None and shared_bytes_max is not None and needed > shared_bytes_max:
        return (
            Outcome.OUT_OF_RESOURCES,
            f"shared memory, Required: {needed}, Hardware limit: {shared_bytes_max}",
        )
    return None
