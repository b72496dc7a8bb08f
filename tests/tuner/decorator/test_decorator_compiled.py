"""Kernels that are compiled for a device that is not there: BC1, TT7, what they write, recipes."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget

import tuner
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NoUsableConfigError
from tuner import devices
from tuner.compile import CompiledKernel
from tuner.deciding import precompile
from tuner.deciding.accounting import Fate
from tuner.deciding.arguments import access_of
from tuner.deciding.decision import Call

GRID = {"grid": (1,), "warmup": False}


class H100:
    """A driver of a device that compiles and cannot launch."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_benchmarker(self):
        return None


@pytest.fixture
def driver(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(triton.runtime.driver, "_active", H100())


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def accumulate(x, y, count, n, BLOCK: tl.constexpr, COUNTED: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    pointers = x + offsets
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(pointers)
        pointers += BLOCK
    if n > 3:  # noqa: SIM108 - pointers through branches are what is tested
        out = y + offsets
    else:
        out = y + offsets + 1
    tl.store(out, total)
    if COUNTED:
        tl.atomic_add(count, 1)


def ttir_of(kernel, *args, **constants):
    return kernel.run(*args, **constants, grid=(1,), warmup=True).asm["ttir"]


def test_what_a_kernel_may_write_is_read_from_its_ir(driver):
    x, y = torch.zeros(64), torch.zeros(64)
    named = {"x": x, "y": y, "n": 64}
    found = access_of(ttir_of(copy, x, y, 64, BLOCK=64), named)
    assert found.written == {"y"}
    assert not found.carried  # it is never read


@pytest.mark.parametrize(("counted", "expected"), [(False, {"y"}), (True, {"y", "count"})])
def test_pointers_are_followed_through_loops_and_branches(driver, counted, expected):
    x, y, count = torch.zeros(64), torch.zeros(64), torch.zeros(1, dtype=torch.int32)
    named = {"x": x, "y": y, "count": count, "n": 64}
    ttir = ttir_of(accumulate, x, y, count, 64, BLOCK=16, COUNTED=counted)
    found = access_of(ttir, named)
    assert found.written == expected
    assert found.carried == ({"count"} if counted else set())


def test_ir_that_is_not_understood_counts_as_writing_all():
    named = {"x": torch.zeros(1), "n": 1}
    for ttir in ("", "module {}", "tt.func public @f(%x: !tt.ptr<f32>) {\n tt.call @g(%x)\n}"):
        assert access_of(ttir, named).carried == {"x"}


def timed(kernel, blocks=(32, 64, 128), **options):
    seen = []

    def do_bench(call, quantiles):
        seen.append(call)
        return [1.0]

    made = tuner.autotune(
        [tuner.Config({"BLOCK": b}) for b in blocks], key=["n"], do_bench=do_bench, **options
    )(kernel)
    return made, seen


@pytest.fixture
def unlaunched(monkeypatch):
    """Real launches are left out: there is no device."""
    run = type(copy).run

    def compile_only(self, *args, warmup, **kwargs):
        return run(self, *args, warmup=True, **kwargs)

    monkeypatch.setattr(type(copy), "run", compile_only)


def test_tt7_configs_are_compiled_many_at_once_before_any_is_timed(driver, unlaunched, monkeypatch):
    compiled = []
    whole = precompile.compile_all

    def watched(jobs, **how):
        compiled.append([job.label for job in jobs])
        return whole(jobs, **how)

    monkeypatch.setattr(precompile, "compile_all", watched)
    kernel, seen = timed(copy)
    x = torch.zeros(64)
    kernel.run(x, torch.zeros(64), 64, **GRID)
    assert [len(labels) for labels in compiled] == [3]
    assert len(seen) == 3


def test_what_the_workers_compiled_is_found_by_the_launch(driver, unlaunched, tmp_path):
    x, y = torch.zeros(64), torch.zeros(64)
    call = Call.of(copy.arg_names, (x, y, 64), dict(GRID))
    configs = [tuner.Config({"BLOCK": b}, num_warps=2) for b in (256, 512)]
    assert precompile.compile_configs(copy, call, configs, None) == {}
    before = {p.name for p in (tmp_path / "triton").iterdir()}
    assert before
    for config in configs:
        copy.run(x, y, 64, **config.all_kwargs(), **GRID)
    assert {p.name for p in (tmp_path / "triton").iterdir()} == before


def test_bc8_binaries_that_lost_are_let_go(driver, unlaunched):
    x, y = torch.zeros(64), torch.zeros(64)
    kernel, _ = timed(copy, blocks=(1024, 2048, 4096))
    before = len(copy.device_caches[0][0])
    kernel.run(x, y, 64, **GRID)
    assert len(copy.device_caches[0][0]) == before + 1  # what was launched


def test_bc1_a_compiler_that_aborts_costs_one_config_for_good(driver, unlaunched, monkeypatch):
    def one_aborts(jobs, **_):
        return [
            CompiledKernel("sm_90", 4, Outcome.CRASHED, "compiler crashed (signal 6)", 0.1)
            if job.specialization.constexprs["BLOCK"] == 64
            else CompiledKernel("sm_90", 4, Outcome.OK, None, 0.1, shared_bytes=0)
            for job in jobs
        ]

    monkeypatch.setattr(precompile, "compile_all", one_aborts)
    x, y = torch.zeros(64), torch.zeros(64)
    kernel, seen = timed(copy)
    kernel.run(x, y, 64, **GRID)
    assert len(seen) == 2
    row = kernel.explain(x, y, 64).rows[1]
    assert row.fate is Fate.FAILED
    assert "signal 6" in row.reason
    again, seen = timed(copy, blocks=(32, 64, 256))
    again.run(x, y, 64, **GRID)
    assert again.explain(x, y, 64).rows[1].fate is Fate.QUARANTINED
    assert len(seen) == 1


def test_shared_memory_is_refused_before_anything_is_launched(driver, unlaunched, monkeypatch):
    monkeypatch.setattr(devices, "shared_bytes_max", lambda gpu: 1000)
    monkeypatch.setattr(
        precompile,
        "compile_all",
        lambda jobs, **_: [
            CompiledKernel("sm_90", 4, Outcome.OK, None, 0.1, shared_bytes=999 + i)
            for i, _ in enumerate(jobs)
        ],
    )
    x, y = torch.zeros(64), torch.zeros(64)
    kernel, seen = timed(copy)
    kernel.run(x, y, 64, **GRID)
    assert len(seen) == 2  # 999 and exactly 1000
    assert "Required: 1001, Hardware limit: 1000" in kernel.explain(x, y, 64).rows[2].reason


@triton.jit
def broken(x, y, n, BLOCK: tl.constexpr):
    tl.store(x, not_defined_anywhere)  # noqa: F821 - as meant


def test_bc4_a_slip_in_the_kernel_itself_is_shown(driver):
    kernel, seen = timed(broken)
    x = torch.zeros(64)
    with pytest.raises(NoUsableConfigError, match="not_defined_anywhere") as caught:
        kernel.run(x, x, 64, **GRID)
    assert type(caught.value.__cause__).__name__ == "CompilationError"
    assert not seen


def test_the_triton_op_recipe_captures_the_chosen_config():
    """What the documentation says for ``torch.compile``; CO5, DC4."""
    if not hasattr(torch.library, "triton_op"):
        pytest.skip("this torch has no triton_op")
    kernel = tuner.autotune(
        [tuner.Config({"BLOCK": 32}), tuner.Config({"BLOCK": 64}, num_warps=2)], key=["n"],
        policy="model",
    )(copy)  # fmt: skip
    config = tuner.config_for(kernel, x=torch.float32, y=torch.float32, n=64)
    asked = []

    @torch.library.triton_op("perfmodel_test::copied", mutates_args={})
    def copied(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        chosen = tuner.config_for(kernel, x=x.dtype, y=y.dtype, n=x.numel())
        asked.append(chosen)
        launch = {k: v for k, v in chosen.all_kwargs().items() if k != "num_ctas"}
        torch.library.wrap_triton(copy)[(1,)](x, y, x.numel(), **launch)
        return y

    with torch._subclasses.FakeTensorMode():
        x = torch.empty(64)
        traced = make_fx(copied)(x)
    assert asked == [config]
    assert "triton_kernel_wrapper" in traced.code or "copied" in traced.code


def test_dynamo_sees_tritons_autotuner_with_all_its_configs():
    """A subclass is captured as Triton's own: Inductor then tunes among all configs."""
    from torch._higher_order_ops.triton_kernel_wrap import (  # noqa: PLC0415 - a private hook
        TraceableTritonKernelWrapper,
    )

    kernel = tuner.autotune([tuner.Config({"BLOCK": 32}), tuner.Config({"BLOCK": 64})], key=["n"])(
        copy
    )
    wrapped = TraceableTritonKernelWrapper(kernel, None, None)
    assert wrapped.kernel is kernel
    hooked = tuner.autotune(
        [tuner.Config({"BLOCK": 32})], key=["n"], pre_hook=lambda arguments, reset_only: None
    )(copy)
    with pytest.raises(RuntimeError, match="pre_hook"):
        TraceableTritonKernelWrapper(hooked, None, None)
