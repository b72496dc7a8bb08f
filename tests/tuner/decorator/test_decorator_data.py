"""Kernels that write their inputs: DC1, DC2, DC4, DC5 of the cases."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import tuner
from perfmodel.errors import NoUsableConfigError
from tuner.deciding import arguments
from tuner.store.schema import MEASUREMENTS

GRID = (1,)


def add_one(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, mask=offsets < n, other=0) + 1, mask=offsets < n)


def add_both(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    v = tl.load(x + offsets, mask=offsets < n, other=0)
    w = tl.load(y + offsets, mask=offsets < n, other=0)
    tl.store(x + offsets, v + 1, mask=offsets < n)
    tl.store(y + offsets, w + 10, mask=offsets < n)


@pytest.fixture
def thrice(bench):
    found = bench()
    found.repeats = 3
    return found


@pytest.fixture
def kernel(interpreted, config, thrice):
    return tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=thrice
    )(interpreted(add_one))


def test_dc1_an_in_place_kernel_adds_once_on_the_first_call_and_on_later_ones(kernel, thrice):
    # Stock 3.6.0: the first call adds 7, the second 1.
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    assert thrice.calls == 2
    assert (x == 1).all()
    kernel[GRID](x, 32)
    assert (x == 2).all()


def test_dc1_stock_really_adds_seven(interpreted, config, thrice):
    stock = triton.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=thrice
    )(interpreted(add_one))
    x = torch.zeros(32)
    stock[GRID](x, 32)
    assert (x == 7).all()


def test_dc1_two_arguments_in_place(interpreted, config, thrice):
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=thrice
    )(interpreted(add_both))
    x, y = torch.zeros(32), torch.zeros(32)
    kernel[GRID](x, y, 32)
    assert (x == 1).all()
    assert (y == 10).all()


def test_dc1_overlapping_views_come_back_as_they_were(interpreted, config, thrice):
    kernel = tuner.autotune(
        [config({"BLOCK": 16}), config({"BLOCK": 32})], key=["n"], do_bench=thrice
    )(interpreted(add_both))
    base, expected = torch.arange(40.0), torch.arange(40.0)
    kernel[GRID](base[4:20], base[8:24], 16)  # written through both names
    x, y = expected[4:20].clone(), expected[8:24].clone()
    expected[4:20] = x + 1
    expected[8:24] = y + 10
    assert torch.equal(base, expected)


def test_dc1_a_view_does_not_touch_its_neighbours(kernel):
    base = torch.zeros(4, 32)
    kernel[GRID](base[1], 32)
    assert (base[1] == 1).all()
    assert base.sum() == 32


def test_dc1_a_failing_config_in_the_middle_leaves_the_data_alone(interpreted, config):
    out_of_resources = type("OutOfResources", (Exception,), {})
    count = 0

    def do_bench(call, quantiles):
        nonlocal count
        count += 1
        call()
        if count == 2:
            raise out_of_resources("Required: 200000, Hardware limit: 100000")
        return [1.0, 1.0, 1.0]

    kernel = tuner.autotune(
        [config({"BLOCK": size}) for size in (32, 64, 128)], key=["n"], do_bench=do_bench
    )(interpreted(add_one))
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    assert (x == 1).all()


def test_dc1_the_users_own_error_leaves_the_data_alone(interpreted, config):
    def do_bench(call, quantiles):
        call()
        raise ZeroDivisionError("in the user's timer")

    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=do_bench
    )(interpreted(add_one))
    x = torch.zeros(32)
    with pytest.raises(ZeroDivisionError):
        kernel[GRID](x, 32)
    assert (x == 0).all()


def test_dc1_nothing_is_launched_twice_under_the_model(interpreted, config, thrice):
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=thrice, policy="model"
    )(interpreted(add_one))
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    assert thrice.calls == 0
    assert (x == 1).all()


def test_dc1_a_copy_that_does_not_fit_leaves_it_to_the_model(kernel, thrice, monkeypatch):
    monkeypatch.setattr(arguments, "free_bytes", lambda device: 64)
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    assert thrice.calls == 0
    assert (x == 1).all()
    assert "128 bytes" in str(kernel.explain(x, 32))


def test_dc1_an_allocation_that_fails_leaves_it_to_the_model(kernel, thrice, monkeypatch):
    def no_memory(self, **_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    x = torch.zeros(32)
    monkeypatch.setattr(torch.Tensor, "clone", no_memory)
    kernel[GRID](x, 32)
    assert thrice.calls == 0
    assert (x == 1).all()


def test_dc1_restore_value_is_honoured_too(interpreted, config, thrice):
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], restore_value=["x"],
        do_bench=thrice,
    )(interpreted(add_one))  # fmt: skip
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    kernel[GRID](x, 32)
    assert (x == 2).all()


@pytest.mark.parametrize("count", [1, 2])
def test_dc2_reset_to_zero_holds_for_first_and_later_calls_alike(
    interpreted, config, thrice, count
):
    # Stock 3.6.0: from 5.0 the first call gives 1.0 and the second 2.0.
    kernel = tuner.autotune(
        [config({"BLOCK": 32 * (i + 1)}) for i in range(count)], key=["n"], reset_to_zero=["x"],
        do_bench=thrice,
    )(interpreted(add_one))  # fmt: skip
    x = torch.full((32,), 5.0)
    for _ in range(3):
        kernel[GRID](x, 32)
        assert (x == 1).all()


def test_dc5_a_config_with_a_wrong_result_never_wins(interpreted, config):
    def add_small_blocks(x, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        if BLOCK < 64:
            v = tl.load(x + offsets, mask=offsets < n, other=0)
            tl.store(x + offsets, v + 1, mask=offsets < n)

    order = []

    def do_bench(call, quantiles):
        call()
        order.append(1)
        return [2.0] if len(order) == 1 else [1.0]

    def check(arguments):
        return None if (arguments["x"] == 1).all() else "it is not 1"

    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=do_bench, check=check
    )(interpreted(add_small_blocks))
    x = torch.zeros(32)
    kernel[GRID](x, 32)
    assert (x == 1).all()
    row = kernel.explain(x, 32).rows[1]
    assert (str(row.fate), row.reason) == ("failed", "it is not 1")
    outcomes = {v["outcome"] for v in kernel.memory().rows(MEASUREMENTS)}
    assert outcomes == {"ok", "wrong_result"}


def test_dc4_hooks_are_refused_not_dropped_under_torch_compile(config):
    # Dynamo reads these attributes of an Autotuner and refuses a kernel that has hooks.
    def plain(x, n, BLOCK: tl.constexpr):
        pass

    hooked = tuner.autotune(
        [config({"BLOCK": 32})], key=["n"], pre_hook=lambda arguments, reset_only=False: None
    )(triton.jit(plain))
    assert hooked.user_defined_pre_hook is True
    unhooked = tuner.autotune([config({"BLOCK": 32})], key=["n"], reset_to_zero=["x"])(
        triton.jit(plain)
    )
    assert unhooked.user_defined_pre_hook is False
    assert unhooked.reset_to_zero == ["x"]


def test_all_configs_failing_says_so_and_keeps_nothing(interpreted, config):
    """HW1: stock 3.6.0 reports no error and installs the first config as the best."""
    out_of_resources = type("OutOfResources", (Exception,), {})

    def do_bench(call, quantiles):
        raise out_of_resources(
            "out of resource: shared memory, Required: 131074, Hardware limit: 101376."
        )

    kernel = tuner.autotune(
        [config({"BLOCK": 64}, num_stages=4), config({"BLOCK": 128}, num_stages=1)], key=["n"],
        do_bench=do_bench,
    )(interpreted(add_one))  # fmt: skip
    x = torch.zeros(32)
    with pytest.raises(NoUsableConfigError) as caught:
        kernel[GRID](x, 32)
    message = str(caught.value)
    assert message.count("Required: 131074") == 2
    assert "lower num_stages from 4 to 3" in message  # HW3: what to lower, and to what
    assert "lower BLOCK from 128 to 64" in message
    assert not kernel.cache
    assert (x == 0).all()
