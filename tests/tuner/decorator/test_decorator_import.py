"""Without Triton, without a driver, in the interpreter: IM1, IM2, IM3, IM6, CA1, CA2, TT3."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest
import torch
import triton
import triton.language as tl

import tuner
from tuner import triton_api
from tuner.store.schema import MEASUREMENTS

WITHOUT = textwrap.dedent("""
    import sys, types, warnings
    if {absent}:
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("triton", "torch"):
                    raise ImportError(name)
        sys.meta_path.insert(0, Absent())
    else:
        sys.modules["triton"] = types.ModuleType("triton")  # a placeholder without a runtime
    import tuner
    assert "triton" not in sys.modules or not {absent}
    assert "torch" not in sys.modules
    from tuner.kernels.language import jit

    @tuner.autotune(
        [tuner.Config({{"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": k}}, num_stages=s)
         for k in (32, 64) for s in (3, 8)],
        key=["M", "N", "K"], family="gemm", gpu="h100-sxm5")
    @jit
    def kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K):
        pass

    config = tuner.config_for(kernel, M=4096, N=4096, K=4096, dtype="bf16")
    print(config)
    account = kernel.explain("bf16", "bf16", "bf16", 4096, 4096, 4096)
    assert len(account.rows) == 4
    import pickle
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    try:
        kernel[(1,)]("bf16", "bf16", "bf16", 4096, 4096, 4096)
    except Exception as error:
        print(type(error).__name__, error)
""")


@pytest.mark.parametrize("absent", [True, False])
def test_im1_im6_without_triton_all_but_launching_works(absent, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "BLOCK_M: 128" in done.stdout
    assert "NotInstalledError" in done.stdout
    assert "pip install" in done.stdout


def test_importing_tuner_loads_neither_triton_nor_torch():
    code = "import sys, tuner; print('triton' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def copy(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


def copy_with_reserved_names(x, y, n, BLOCK: tl.constexpr, num_warps, num_stages):
    offsets = tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) + num_stages, mask=offsets < n)


def test_im1_im2_the_interpreter_launches_untimed(interpreted, config):
    # Stock 3.6.0 raises "0 active drivers".
    kernel = tuner.autotune([config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"])(
        interpreted(copy)
    )
    x, y = torch.arange(32.0), torch.zeros(32)
    kernel[(1,)](x, y, 32)
    assert torch.equal(x, y)
    assert "interpreter" in kernel.explain(x, y, 32).decided_by
    assert not list(kernel.memory().rows(MEASUREMENTS))


def test_im2_parameters_named_as_options(interpreted, config):
    kernel = tuner.autotune(
        [config({"BLOCK": 32}, num_stages=2), config({"BLOCK": 64}, num_stages=5)], key=["n"]
    )(interpreted(copy_with_reserved_names))
    x, y = torch.arange(32.0), torch.zeros(32)
    kernel[(1,)](x, y, 32)
    assert torch.equal(y, x + 2)


def test_im1_without_a_driver_the_launch_raises_tritons_own_error(config):
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    kernel = tuner.autotune([config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"])(
        triton.jit(copy)
    )
    x = torch.zeros(32)
    account = kernel.explain(x, x, 32)
    assert account.device == "no device"
    with pytest.raises(RuntimeError, match="active driver"):
        kernel[(1,)](x, x, 32)


PERSISTENT = textwrap.dedent("""
    import os, sys, time
    import tuner

    count, nap, only = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    calls = 0

    class Stub:
        arg_names = ["x", "n", "BLOCK"]
        def __init__(self, f): self.fn = f
        def run(self, *a, **k): self.last = k["BLOCK"]

    def do_bench(call, quantiles):
        global calls
        call()
        calls += 1
        time.sleep(nap)
        print("timed", flush=True)
        return [float(2 ** (1 + stub.last % 7))]

    @Stub
    def stub(x, n, BLOCK): pass

    blocks = [b for b in range(count) if str(b) not in only]
    kernel = tuner.autotune([tuner.Config({"BLOCK": b}) for b in blocks], key=["n"],
                            do_bench=do_bench)(stub)
    kernel.run(0, 1, grid=(1,), warmup=False)
    print("chose", stub.last, "after", calls)
""")


@pytest.fixture
def process(tmp_path):
    script = tmp_path / "persistent.py"
    script.write_text(PERSISTENT)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, str(script), *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        _, chose, _, calls = done.stdout.split("chose")[1].join(["chose", ""]).split()
        return int(chose), int(calls)

    run.script = script
    return run


def test_ca1_a_second_process_times_nothing(process):
    # Stock 3.6.0 keeps nothing unless asked to.
    assert process(5, 0) == (0, 5)
    assert process(5, 0) == (0, 0)


def test_ca2_a_config_more_is_one_timing_more_and_the_winner_less_is_none(process):
    # Stock 3.6.0 times all of them again in both cases.
    assert process(5, 0) == (0, 5)
    assert process(6, 0) == (0, 1)
    assert process(6, 0, 0) == (1, 0)


def test_tt3_what_was_timed_before_a_kill_is_kept(process):
    child = subprocess.Popen(
        [sys.executable, str(process.script), "7", "0.05"], stdout=subprocess.PIPE, text=True
    )
    for _ in range(4):
        assert child.stdout.readline() == "timed\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    _, calls = process(7, 0)
    assert calls in (3, 4)  # the fourth may not have been written down


def test_im3_the_removed_functions_take_their_old_arguments(config, monkeypatch):
    a = torch.empty(1, dtype=torch.float16)
    monkeypatch.setenv("PERFMODEL_GPU", "a100-sxm4-80gb")
    named = {"A": a, "B": a, "C": a, "M": 4096, "N": 4096, "K": 4096}
    tile = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "SPLIT_K": 1}
    fits = config(tile, num_warps=4, num_stages=3)
    too_big = config(tile | {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}, num_stages=5)
    assert tuner.early_config_prune([fits, too_big], named) == [fits]
    milliseconds = tuner.estimate_matmul_time(**named, **fits.all_kwargs())
    assert 0.5 < milliseconds < 2.0  # 137 Gflop at 312 Tflops take 0.44 ms
    assert tuner.estimate_matmul_time(**named, **too_big.all_kwargs()) == float("inf")
    stock = triton.autotune(
        [fits, too_big], key=["M"],
        prune_configs_by={
            "early_config_prune": tuner.early_config_prune,
            "perf_model": tuner.estimate_matmul_time,
            "top_k": 1,
        },
    )  # fmt: skip
    assert callable(stock)


def test_pruner_keeps_the_first_and_the_models_best(gemm_configs, monkeypatch):
    a = torch.empty(1, dtype=torch.float16)
    named = {"a_ptr": a, "b_ptr": a, "c_ptr": a, "M": 4096, "N": 4096, "K": 4096}
    kept = tuner.pruner(top=2, gpu="h100-sxm5")(gemm_configs, named)
    assert 2 <= len(kept) <= 3
    assert kept[0] is gemm_configs[0]


def test_the_private_parts_of_triton_are_where_they_are_looked_for():
    assert triton_api.INSTALLED
    for name in ("_active", "_default"):
        assert hasattr(triton_api.DRIVER, name), name
    assert {"num_warps", "maxnreg"} <= triton_api.backend_options()
    assert isinstance(triton_api.autotuner_error("x"), triton.runtime.errors.AutotunerError)
