"""Compiling ahead of time, and the resource formulas against what fresh compilations report."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.legality import legal_mask, slow_to_compile_mask
from perfmodel.tiling.resources import gemm_resources
from tuner.compile import CompiledKernel, compile_gemm, compute_capability, specialize
from tuner.kernels.language import INSTALLED

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")

DEVICES = {
    "sm_80": "a100-sxm4-80gb", "sm_86": "rtx-3090", "sm_89": "rtx-4090", "sm_90": "h100-sxm5",
    "sm_100": "b200", "sm_120": "rtx-5090",
}  # fmt: skip
DTYPES = ("fp16", "fp16", "bf16", "tf32", "int8")
KERNELS_PER_TARGET = int(os.environ.get("PERFMODEL_COMPILE_SAMPLE", "8"))
"""How many tiles each target compiles here; the recorded ones are compared in tests/tiling."""

INT8_IN_TENSOR_MEMORY = (3, 9)
"""From this Triton on (3.7 does not yet), int8 products of sm_100 are those of 8-bit floats: their
sums lie in tensor memory, and the pipeline holds one stage more. The formulas are those before."""


def triton_version() -> tuple[int, ...]:
    import triton  # noqa: PLC0415 - optional extra

    return tuple(map(int, triton.__version__.split(".")[:2]))


@pytest.fixture(scope="module", autouse=True)
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))


def sample(target: str) -> list[tuple[str, TileConfig]]:
    """A stratified draw of tiles that are legal and quick to compile; the same every time."""
    draw, gpu, found = random.Random(target), load_gpu(DEVICES[target]), []
    while len(found) < KERNELS_PER_TARGET:
        dtype = DTYPES[len(found) % len(DTYPES)]
        config = TileConfig(
            block_m=draw.choice([16, 32, 64, 128, 256]),
            block_n=draw.choice([16, 32, 64, 128, 256]),
            block_k=draw.choice([32, 64, 128]),
            num_warps=draw.choice([1, 2, 4, 8, 16]),
            num_stages=draw.choice([1, 2, 3, 4, 5]),
        )
        problem, table = Gemm(4096, 4096, 4096, a_dtype=dtype), ConfigTable.of([config])
        small = config.block_m * config.block_n <= 128 * 32 * config.num_warps
        if (
            small
            and legal_mask(problem, table, gpu)[0]
            and not slow_to_compile_mask(problem, table, gpu)[0]
        ):
            found.append((dtype, config))
    return found


@needs_triton
@pytest.mark.parametrize("target", DEVICES)
def test_formulas_match_fresh_compilations(target: str) -> None:
    gpu, errors, spill_right = load_gpu(DEVICES[target]), [], []
    for dtype, config in sample(target):
        problem = Gemm(4096, 4096, 4096, a_dtype=dtype)
        compiled = compile_gemm(problem, config, target)
        assert compiled.ok, compiled.reason
        if dtype == "int8" and target == "sm_100" and triton_version() >= INT8_IN_TENSOR_MEMORY:
            problem = Gemm(4096, 4096, 4096, a_dtype="fp8_e4m3")
        ours = gemm_resources(GemmTable.of(problem), ConfigTable.of([config]), gpu)
        assert ours.smem_bytes[0] == compiled.shared_bytes, (dtype, str(config))
        assert ours.tensor_memory_columns[0] == compiled.tensor_memory_columns
        assert compiled.registers is not None
        assert compiled.stack_bytes is not None
        spilled = compiled.stack_bytes > 16
        spill_right.append(spilled == (ours.spill_bytes_per_thread[0] > 0))
        if not spilled:
            errors.append(abs(ours.registers[0] - compiled.registers))
    assert np.mean(spill_right) >= 0.75
    # The counts were fitted to 3.6; 3.9 takes up to twice as many for a few tiles on sm_80.
    assert np.mean(errors) <= (20 if triton_version() < (3, 9) else 25)


@needs_triton
def test_the_same_tile_takes_different_memory_by_architecture() -> None:
    problem = Gemm(4096, 4096, 4096, a_dtype="fp16")
    config = TileConfig(128, 256, 64, num_warps=8, num_stages=3)
    shared = {t: compile_gemm(problem, config, t).shared_bytes for t in ("sm_80", "sm_90")}
    assert shared == {"sm_80": 98304, "sm_90": 147456}


@needs_triton
def test_turing_compiles_without_pipelining() -> None:
    problem = Gemm(4096, 4096, 4096, a_dtype="fp16")
    shared = [
        compile_gemm(problem, TileConfig(64, 64, 32, num_warps=4, num_stages=s), "sm_75")
        for s in (1, 4)
    ]
    assert shared[0].shared_bytes == shared[1].shared_bytes == 8192


@needs_triton
def test_a_tile_that_does_not_compile_is_an_outcome_with_a_reason() -> None:
    problem = Gemm(512, 512, 512, a_dtype="fp16")
    found = compile_gemm(problem, TileConfig(64, 64, 8), "sm_90")
    assert found.outcome is Outcome.COMPILE_FAILED
    assert found.reason is not None
    assert "K >= 16" in found.reason
    assert found.shared_bytes is None
    assert not found.ok


@needs_triton
def test_too_few_registers_say_so_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    problem = Gemm(512, 512, 512, a_dtype="fp16")
    found = compile_gemm(problem, TileConfig(64, 64, 32, num_warps=4, maxnreg=16), "sm_80")
    assert found.outcome is Outcome.COMPILE_FAILED
    assert found.reason is not None
    assert "Insufficient registers" in found.reason
    assert "\n" not in found.reason
    assert capfd.readouterr().out == ""


@needs_triton
def test_a_type_that_the_architecture_lacks_is_an_outcome() -> None:
    problem = Gemm(512, 512, 512, a_dtype="fp8_e4m3")
    assert compile_gemm(problem, TileConfig(64, 64, 32), "sm_80").outcome is Outcome.COMPILE_FAILED
    assert compile_gemm(problem, TileConfig(64, 64, 32), "sm_89").ok


@needs_triton
def test_narrow_weights_and_operands_beyond_32_bit_offsets_compile() -> None:
    config = TileConfig(64, 64, 64, num_warps=4, num_stages=3)
    weights = Gemm(256, 256, 256, a_dtype="bf16", b_dtype="int8")
    huge = Gemm(65536, 65536, 65536, a_dtype="fp16")
    wide = Gemm(2**26, 128, 256, a_dtype="fp16", a_layout="col")
    for problem in (weights, huge, wide):
        assert compile_gemm(problem, config, "sm_80").ok


@needs_triton
def test_the_same_kernel_compiles_to_the_same_numbers() -> None:
    problem, config = Gemm(512, 512, 512, a_dtype="fp16"), TileConfig(32, 32, 32, num_warps=2)
    first, second = (compile_gemm(problem, config, "sm_80") for _ in range(2))
    names = [n for n in CompiledKernel.__dataclass_fields__ if n != "seconds"]
    assert [getattr(first, n) for n in names] == [getattr(second, n) for n in names]


def test_arguments_are_specialised_as_the_launcher_does() -> None:
    found = specialize(
        ["p", "aligned", "odd", "one", "big", "BLOCK"],
        pointers={"p": Gemm(1, 1, 1, a_dtype="fp16").a_dtype},
        integers={"aligned": 64, "odd": 7, "one": 1, "big": 2**33},
        constexprs={"BLOCK": 32},
    )
    assert found.signature == {
        "p": "*fp16", "aligned": "i32", "odd": "i32", "one": "constexpr", "big": "i64",
        "BLOCK": "constexpr",
    }  # fmt: skip
    assert found.constexprs == {"one": 1, "BLOCK": 32}
    assert sorted(found.attrs) == [(0,), (1,), (4,)]


@pytest.mark.parametrize(("target", "number"), [("sm_75", 75), ("sm_90", 90), ("sm_120", 120)])
def test_targets_are_named_as_architectures(target: str, number: int) -> None:
    assert compute_capability(target) == number


@pytest.mark.parametrize("target", ["90", "cuda:90", "gfx942", "sm_9"])
def test_another_target_is_an_error_that_shows_the_form(target: str) -> None:
    with pytest.raises(UsageError, match="use a name such as sm_90"):
        compute_capability(target)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import tuner.compile, tuner.kernels.gemm as gemm
from perfmodel.errors import NotInstalledError
from perfmodel.problems import Gemm
from perfmodel.tiling.config import TileConfig
for use in (
    lambda: gemm.matmul_kernel[(1,)],
    lambda: gemm.matmul_kernel.warmup,
    lambda: tuner.compile.compile_gemm(Gemm(16, 16, 16), TileConfig(), "sm_90"),
):
    try:
        use()
    except NotInstalledError as error:
        assert "pip install 'perfmodel[triton]'" in str(error), error
    else:
        raise AssertionError(use)
print("ok")
"""


def test_without_triton_modules_import_and_any_use_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False
    )
    assert done.stdout == "ok\n", done.stderr
