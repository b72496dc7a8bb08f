"""One bad config never ends the run: BC1, BC3, BC4, BC5, BC8, BC9, HW2, HW4, HW13."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import tuner
from perfmodel.errors import NoUsableConfigError
from tuner.deciding.accounting import Fate

LAUNCH = {"grid": (1,), "warmup": False}


def kernel_with(make_stub, config, bench, time, sizes=(32, 64, 128), **options):
    stub = make_stub()
    timer = bench(stub, time)
    made = tuner.autotune(
        [config({"BLOCK": size}) for size in sizes], key=["n"], do_bench=timer, **options
    )(stub)
    return made, stub, timer


def raising(error, size=64):
    def time(launch):
        if launch["BLOCK"] == size:
            raise error
        return float(launch["BLOCK"])

    return time


@pytest.mark.parametrize(
    "name", ["PTXASError", "OutOfResources", "CompileTimeAssertionFailure", "CompilationError"]
)
def test_bc3_what_a_compiler_refuses_costs_one_config(make_stub, config, bench, name):
    error = type(name, (Exception,), {})("no")
    kernel, stub, _ = kernel_with(make_stub, config, bench, raising(error, 32))
    kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] == 64
    row = kernel.explain(0, 1).rows[0]
    assert row.fate is Fate.FAILED
    assert name in row.reason


def test_bc4_a_failing_pass_costs_one_config(make_stub, config, bench):
    # Stock 3.6.0 propagates it and stops.
    error = RuntimeError("PassManager::run failed")
    kernel, stub, timer = kernel_with(make_stub, config, bench, raising(error))
    kernel.run(0, 1, **LAUNCH)
    assert timer.calls == 3
    assert stub.last["BLOCK"] == 32


def test_bc4_the_users_type_error_propagates_with_its_traceback(make_stub, config, bench):
    kernel, _, _ = kernel_with(make_stub, config, bench, raising(TypeError("wrong argument")))
    with pytest.raises(TypeError, match="wrong argument") as caught:
        kernel.run(0, 1, **LAUNCH)
    assert any(entry.name == "time" for entry in caught.traceback)
    assert not kernel.cache


def test_bc4_the_same_error_everywhere_carries_the_first_traceback(make_stub, config, bench):
    def time(launch):
        raise RuntimeError("PassManager::run failed")

    kernel, _, _ = kernel_with(make_stub, config, bench, time)
    with pytest.raises(NoUsableConfigError) as caught:
        kernel.run(0, 1, **LAUNCH)
    assert str(caught.value).count("PassManager::run failed") == 3
    assert "Traceback" in caught.value.__notes__[0]


def test_bc5_numbers_quantiles_and_failures_mix(make_stub, config, bench):
    def time(launch):
        if launch["BLOCK"] == 32:
            raise type("OutOfResources", (Exception,), {})("no")
        return 1.0 if launch["BLOCK"] == 64 else [2.0, 1.9, 2.1]

    kernel, stub, _ = kernel_with(make_stub, config, bench, time)
    kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] == 64


def test_a_failure_is_remembered_by_the_next_process(make_stub, config, bench):
    error = type("PTXASError", (Exception,), {})("no")
    for expected in (3, 0):
        kernel, _, timer = kernel_with(make_stub, config, bench, raising(error))
        kernel.run(0, 1, **LAUNCH)
        assert timer.calls == expected
        assert kernel.explain(0, 1).rows[1].fate is Fate.FAILED


def test_bc9_every_config_is_accounted_for(gemm_stub, gemm_configs, gemm_call, bench):
    huge = tuner.Config(
        {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 8}, num_stages=5
    )

    def time(launch):
        if launch["BLOCK_M"] == 128 and launch["BLOCK_N"] == 128:
            raise RuntimeError("PassManager::run failed")
        return float(launch["BLOCK_M"])

    kernel = tuner.autotune(
        [*gemm_configs, huge, gemm_configs[0]], key=["M"], family="gemm", gpu="a100-sxm4-80gb",
        do_bench=bench(gemm_stub, time), policy="full",
    )(gemm_stub)  # fmt: skip
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    account = kernel.explain(*args, **kwargs)
    counts = account.counts()
    assert sum(counts.values()) == len(account.rows) == 10
    assert counts[Fate.FAILED] == 2
    assert counts[Fate.ILLEGAL] == 1
    assert counts[Fate.DUPLICATE] == 1
    assert counts[Fate.TIMED] == 6
    illegal = next(row for row in account.rows if row.fate is Fate.ILLEGAL)
    assert "shared memory" in illegal.reason
    assert "BLOCK_K" in illegal.reason  # in the kernel's own words
    assert account.chosen is not None
    assert account.expected_loss is not None
    assert "expected loss" in str(account)


def test_bc8_nothing_of_a_tuning_is_kept_alive(make_stub, config, bench):
    error = type("OutOfResources", (Exception,), {})
    made = []

    def time(launch):
        found = error("no")
        made.append(weakref.ref(found))
        if launch["BLOCK"] == 64:
            raise found
        return 1.0

    kernel, stub, _ = kernel_with(make_stub, config, bench, time)
    x = torch.ones(4)
    kept = weakref.ref(x)
    kernel.run(x, 1, **LAUNCH)
    stub.launches.clear()
    bench_seen = kernel.own_do_bench.seen
    bench_seen.clear()
    del x
    gc.collect()
    assert kept() is None
    assert [ref() for ref in made] == [None] * len(made)


@pytest.mark.parametrize(
    ("gpu", "expected"), [("rtx-3090", 32), ("a100-sxm4-80gb", 64), ("rtx-5090", 32)]
)
def test_hw2_hw4_limits_are_those_of_the_exact_device(gemm_stub, gemm_call, bench, gpu, expected):
    wide = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
    narrow = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "GROUP_M": 8}
    kernel = tuner.autotune(
        [tuner.Config(wide, num_warps=8, num_stages=4), tuner.Config(narrow, num_warps=8)],
        key=["M"], family="gemm", gpu=gpu, policy="off",
    )(gemm_stub)  # fmt: skip
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    assert gemm_stub.last["BLOCK_K"] == expected


@pytest.mark.parametrize("gpu", ["t4", "l4", "h100-sxm5"])
def test_hw13_small_devices_are_tuned_like_any_other(gemm_stub, gemm_configs, gemm_call, gpu):
    kernel = tuner.autotune(gemm_configs, key=["M"], family="gemm", gpu=gpu, policy="model")(
        gemm_stub
    )
    args, kwargs = gemm_call(512)
    kernel.run(*args, **kwargs)
    assert "the model" in kernel.explain(*args, **kwargs).decided_by


def test_all_illegal_lists_reasons_and_one_that_fits(gemm_stub, gemm_call):
    huge = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 8}
    kernel = tuner.autotune(
        [tuner.Config(huge, num_warps=8, num_stages=s) for s in (4, 5)], key=["M"], family="gemm",
        gpu="rtx-4090", policy="model",
    )(gemm_stub)  # fmt: skip
    args, kwargs = gemm_call(4096)
    with pytest.raises(NoUsableConfigError) as caught:
        kernel.run(*args, **kwargs)
    message = str(caught.value)
    assert message.count("limit 101,376") == 2
    assert "one that fits: BLOCK_M" in message
