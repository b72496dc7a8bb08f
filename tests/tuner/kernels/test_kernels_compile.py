"""Every reference kernel compiles ahead of time for every architecture, with no GPU.

A small tile of each here; all of the default spaces with ``scripts/compile_spaces.py``.
"""

from __future__ import annotations

import os
import random

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import UnsupportedDtypeError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems.attention import Attention
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.compile import CompiledKernel, compile_launch
from tuner.kernels.ahead import (
    DEVICES,
    SpaceJob,
    failures,
    job_of,
    launchable,
    outcomes,
    space_jobs,
)
from tuner.kernels.catalog import KERNELS, ReferenceKernel, find
from tuner.kernels.language import INSTALLED

pytestmark = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")

DRAWN = 6
"""Of so many configurations the one that compiles soonest is taken."""

SHARE = int(os.environ.get("PERFMODEL_COMPILE_SHARE", "3"))
"""One in so many pairs of kernel and architecture is compiled here; 1 for all."""

PAIRS = [
    (kernel.name, target)
    for row, kernel in enumerate(KERNELS)
    for column, target in enumerate(DEVICES)
    if (row + column) % SHARE == 0
]


@pytest.fixture(scope="module", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))


def drawn(kernel: ReferenceKernel, target: str) -> tuple[object, TileConfig]:
    """A problem of the kernel, another for each target, and a configuration of its space."""
    gpu, turn = load_gpu(DEVICES[target]), list(DEVICES).index(target)
    problems = [*kernel.examples[turn % len(kernel.examples) :], *kernel.examples]
    for problem in problems:
        try:
            space = list(kernel.space(problem, gpu))
        except UnsupportedDtypeError:
            continue
        some = random.Random(target).sample(space, min(DRAWN, len(space)))
        return problem, min(some, key=lambda c: c.block_m * c.block_n * c.num_stages)
    pytest.skip(f"{target} has no arithmetic for any type of {kernel.name}")


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_kernels_compile_for_every_architecture(name: str, target: str) -> None:
    problem, config = drawn(find(name), target)
    for launch in find(name).planned(problem, config).launches:
        compiled = compile_launch(launch, target)
        assert compiled.ok, (problem, str(config), compiled.reason)


def test_a_space_is_listed_once_and_in_the_same_order() -> None:
    jobs = space_jobs([find("gemm_block_scaled")], ["sm_90"])
    again = space_jobs([find("gemm_block_scaled")], ["sm_90"])
    keys = [job.job.key() for job in jobs]
    assert len(set(keys)) == len(keys) > 100
    assert [job.job.key() for job in again] == keys


def test_types_that_a_device_lacks_are_left_out_of_its_space() -> None:
    assert space_jobs([find("gemm_block_scaled")], ["sm_80"]) == []


def test_a_target_without_a_space_is_an_error_that_lists_those_with_one() -> None:
    with pytest.raises(UsageError, match=r"'sm_91' .*did you mean 'sm_90'"):
        space_jobs([find("gemm")], ["sm_91"])


def test_a_binary_too_large_for_the_device_is_listed_with_its_reason() -> None:
    problem, config = Attention(1, 1024, q_heads=8), TileConfig(64, 64)
    (launch,) = find("attention").planned(problem, config).launches
    job = SpaceJob("attention", "sm_86", problem, config, job_of(launch, "sm_86"))
    fits = CompiledKernel("sm_86", 4, Outcome.OK, None, 1.0, 101376, 100, 0, None)
    large = CompiledKernel("sm_86", 4, Outcome.OK, None, 1.0, 101377, 100, 0, None)
    broken = CompiledKernel("sm_86", 4, Outcome.COMPILE_FAILED, "no such type", 1.0)
    assert launchable(job, fits) is fits
    found = failures([job] * 3, [fits, large, broken])
    assert [result.outcome for _, result in found] == ["out_of_resources", "compile_failed"]
    assert "more bytes of shared memory than the 101376" in str(found[0][1].reason)
    counted = outcomes([job] * 3, [fits, large, broken])[("attention", "sm_86")]
    assert counted == {"ok": 1, "out_of_resources": 1, "compile_failed": 1}


def test_a_job_compiles_as_the_kernel_itself_does() -> None:
    problem, config = Gemm(512, 512, 512), TileConfig(32, 32, 32, num_warps=2)
    (launch,) = find("gemm").planned(problem, config).launches
    itself, job = compile_launch(launch, "sm_80"), job_of(launch, "sm_80").run()
    assert (job.shared_bytes, job.registers) == (itself.shared_bytes, itself.registers)
