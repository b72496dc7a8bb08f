"""What users get wrong, and the options that come from elsewhere."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import importlib
import json
import pickle
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tuner
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import (
    TuningWarning,
    UnknownNameError,
    UnknownOptionError,
    UnknownShapeError,
    UsageError,
)
from tuner.measure.device import DeviceIdentity, Timing

LAUNCH = {"grid": (1,), "warmup": False}


def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n, other=0) + 1, mask=at < n)


def blocks(config: Any, *sizes: int) -> list[Any]:
    return [config({"BLOCK": size}) for size in sizes]


def a_kernel() -> None:
    """A function in the place of configurations."""


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"budget_s": "a"}, "budget_s is 'a'"),
        ({"budget_s": True}, "budget_s is True"),
        ({"rank_timeout_s": float("nan")}, "rank_timeout_s is nan"),
        ({"deterministic": "no"}, "deterministic is 'no'; use True or False"),
        ({"buckets": 5}, "buckets is 5"),
        ({"buckets": ["n"]}, r"buckets is \['n'\]"),
        ({"device": "worker"}, "device is 'worker'; use an object that times trials"),
        ({"check": 5}, "check is 5; use a function"),
        ({"do_bench": "x"}, "do_bench is 'x'"),
        ({"pre_hook": 5}, "pre_hook is 5"),
        ({"post_hook": [1]}, r"post_hook is \[1\]"),
        ({"problem": 5}, "problem is 5"),
        ({"prune_configs_by": {"perf_model": 1}}, "perf_model is 1"),
        ({"prune_configs_by": {"early_config_prune": "f"}}, "early_config_prune is 'f'"),
        ({"names": {"m": "n"}}, "names is .* without a family"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_at_decoration(make_stub, config, option, match):
    with pytest.raises(UsageError, match=match):
        tuner.autotune(blocks(config, 16, 32), key=["n"], **option)(make_stub())


def test_something_else_in_the_place_of_the_configs_is_named(config):
    with pytest.raises(UsageError, match=r"configs is one Config; use a list: \[Config"):
        tuner.autotune(config({"BLOCK": 16}), key=["n"])
    with pytest.raises(UsageError, match=r"configs is the kernel a_kernel itself; write @"):
        tuner.autotune(a_kernel)
    with pytest.raises(UsageError, match="configs is 7"):
        tuner.autotune(7, key=["n"])
    with pytest.raises(UsageError, match=r"configs is \{'BLOCK': 16\}"):
        tuner.autotune({"BLOCK": 16}, key=["n"])


def test_configs_that_can_be_gone_through_once_serve_two_kernels(make_stub, config):
    decorate = tuner.autotune((c for c in blocks(config, 16, 32)), key=["n"])
    assert [len(decorate(make_stub()).configs) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("option", ["key", "reset_to_zero", "restore_value"])
def test_one_name_may_stand_without_a_list(make_stub, config, option):
    stub = make_stub("n_cols", "x", "BLOCK")
    given: dict[str, Any] = {"key": ["x"]} | {option: "n_cols"}
    kernel = tuner.autotune(blocks(config, 16), **given)(stub)
    assert {"key": kernel.keys}.get(option, getattr(kernel, option, None)) == ["n_cols"]
    with pytest.raises(UnknownNameError, match=r"'n_col'.*did you mean 'n_cols'"):
        tuner.autotune(blocks(config, 16), **given | {option: "n_col"})(stub)


def test_letters_stand_for_names_as_with_triton(gemm_stub, gemm_configs):
    assert tuner.autotune(gemm_configs, key="MNK")(gemm_stub).keys == ["M", "N", "K"]


def test_optional_tensors_of_one_type_are_two_decisions(make_stub, config, bench):
    timer = bench()
    stub = make_stub("x", "n", "bias", "residual", "BLOCK")
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"], do_bench=timer)(stub)
    x, extra = torch.zeros(4), torch.zeros(4)
    kernel.run(x, 4, extra, None, **LAUNCH)
    kernel.run(x, 4, None, extra, **LAUNCH)
    kernel.run(x, 4, bias=extra, residual=None, **LAUNCH)
    assert len(kernel.cache) == 2


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ({"M": "4096"}, "M='4096'; use a whole number"),
        ({"M": 4.5}, "M=4.5; use a whole number"),
        ({"M": -4}, "M=-4; use a whole number"),
        ({"M": None}, "M=None; use a whole number"),
        ({"dtype": None}, "lacks a_ptr and b_ptr; give tensors, their types, or dtype="),
    ],
)
def test_a_look_up_of_no_sound_shape_is_an_error(gemm_stub, gemm_configs, shape, match):
    kernel = tuner.autotune(gemm_configs, family="gemm", gpu="h100-sxm5")(gemm_stub)
    given = {"M": 4096, "N": 512, "K": 512, "dtype": "bf16"} | shape
    for look_up in (
        lambda: tuner.config_for(kernel, **given),
        lambda: kernel.warm([given]),
        lambda: kernel.tune([given]),
        lambda: kernel.explain(**given),
    ):
        with pytest.raises(UnknownShapeError, match=match):
            look_up()


@pytest.mark.parametrize("shapes", [{"M": 1, "N": 1, "K": 1}, [(1, 1, 1)], ["M"]])
def test_shapes_are_arguments_by_name(gemm_stub, gemm_configs, shapes):
    kernel = tuner.autotune(gemm_configs, family="gemm", gpu="h100-sxm5")(gemm_stub)
    for ahead in (kernel.warm, kernel.tune, lambda given: tuner.resolve(kernel, given)):
        with pytest.raises(UnknownShapeError, match="use a list of arguments by name"):
            ahead(shapes)


def test_a_look_up_finds_the_kernel_below_other_decorators(make_stub, config):
    below = tuner.autotune(blocks(config, 16), key=["n"], policy="off")(make_stub())
    above = triton.heuristics({"EVEN": lambda _: True})(below)
    assert tuner.config_for(above, n=4).kwargs == {"BLOCK": 16}
    for other in (a_kernel, make_stub(), None):
        with pytest.raises(UsageError, match=r"is no kernel that tuner\.autotune decorated"):
            tuner.config_for(other, n=4)


def test_explain_takes_a_call_or_a_shape_and_nothing_else(gemm_stub, gemm_configs, gemm_call):
    kernel = tuner.autotune(gemm_configs, family="gemm", gpu="h100-sxm5", policy="model")(gemm_stub)
    args, kwargs = gemm_call(512)
    by_call = str(kernel.explain(*args, **kwargs))
    by_shape = str(kernel.explain(M=512, N=1024, K=1024, dtype="fp16"))
    assert by_call == by_shape
    with pytest.raises(UnknownShapeError, match="has 'Z'"):
        kernel.explain(*args, Z=3)
    with pytest.raises(UnknownShapeError, match=r"has 'm'.*did you mean 'M'"):
        kernel.explain(m=3)
    with pytest.raises(UnknownShapeError, match="lacks M, N, K"):
        kernel.explain()
    with pytest.raises(UnknownShapeError, match="takes 14 arguments and was given 50"):
        kernel.explain(*range(50))


@pytest.mark.parametrize("how", ["code", "environment"])
def test_text_in_a_pin_where_configs_have_numbers(make_stub, config, monkeypatch, how):
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"])(make_stub())
    pin = {"BLOCK": "64"}
    if how == "environment":
        monkeypatch.setenv("PERFMODEL_PINS", json.dumps({kernel.name: pin}))
    use = {"code": lambda: kernel.pin(pin), "environment": lambda: kernel.run(0, 1, **LAUNCH)}[how]
    with pytest.raises(UnknownNameError, match="has BLOCK='64', which is text"):
        use()


def test_a_pin_that_is_no_config_or_of_another_kernel(make_stub, config):
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"])(make_stub())
    with pytest.raises(UsageError, match=r"pin\[0\] of kernel_3 is 5"):
        kernel.pin(5)
    with pytest.raises(UnknownOptionError, match=r"has 'BLOK'.*did you mean 'BLOCK'"):
        kernel.pin(config({"BLOK": 64}))


@pytest.mark.parametrize("invalid", [0.0, -1.0, float("nan"), float("inf"), None, [], [None] * 3])
def test_no4_a_timer_that_gives_no_time_costs_the_times_and_not_the_call(
    make_stub, config, bench, invalid
):
    """Stock Triton 3.6.0 takes the first for 0.0 and NaN, and fails for None and []."""
    stub = make_stub()
    timer = bench(stub, time=lambda _: invalid)
    if invalid is None:
        timer = lambda call, quantiles=None: call() and None  # noqa: E731 - a timer of one line
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"], do_bench=timer)(stub)
    with pytest.warns(TuningWarning, match="could not be timed"):
        assert kernel.run(0, 1, **LAUNCH) == "launched"
    assert stub.last["BLOCK"] == 16
    launches = len(stub.launches)
    kernel.run(0, 1, **LAUNCH)
    assert len(stub.launches) == launches + 1  # nothing is tried again in this process


def test_hw1_a_failure_beside_an_invalid_time_is_not_taken(make_stub, config, bench):
    stub = make_stub()

    def fail(launch: dict[str, Any]) -> None:
        if launch["BLOCK"] == 16:
            raise triton.runtime.errors.OutOfResources(2, 1, "shared memory")

    stub.on_launch = fail
    timer = bench(stub, time=lambda _: 0.0)
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"], do_bench=timer)(stub)
    with pytest.warns(TuningWarning, match="could not be timed"):
        kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] == 32


@pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph:DeprecationWarning")
@pytest.mark.parametrize("old", [{"warmup": 25}, {"rep": 100}, {"warmup": 5, "rep": 5}])
def test_im1_the_old_timing_options_need_no_driver_under_the_interpreter(interpreted, config, old):
    """Stock Triton 3.6.0 raises "0 active drivers" on the first call."""
    kernel = tuner.autotune(blocks(config, 16, 32), key=["n"], **old)(interpreted(add_one))
    x = torch.zeros(9)
    kernel[(1,)](x, 9)
    assert x.eq(1).all()


def test_tune_says_what_it_could_not_time(gemm_stub, gemm_configs, bench):
    timer = bench()
    kernel = tuner.autotune(
        gemm_configs, family="gemm", gpu="h100-sxm5", policy="verify", do_bench=timer
    )(gemm_stub)
    with pytest.warns(TuningWarning, match="1 of 1 shapes of .* give types for tensors"):
        kernel.tune([{"M": 512, "N": 512, "K": 512, "dtype": "fp16"}])
    assert timer.calls == 0


def test_tt10_a_hopeless_config_is_dropped_after_its_first_sample(make_stub, config):
    class Slow:
        identity = DeviceIdentity("fake", "sm_90")
        protocol = "slow-1"

        def __init__(self) -> None:
            self.samples: dict[str, int] = {}

        def time(self, trial: Any, *, samples: int, limit_s: float) -> Timing:
            time_us = 60e6 if '"BLOCK":64' in trial.config else 1e3
            self.samples[trial.config] = self.samples.get(trial.config, 0) + samples
            return Timing(Outcome.OK, self.protocol, (time_us,) * samples)

    device = Slow()
    kernel = tuner.autotune(blocks(config, 64, 16, 32), key=["n"], device=device)(make_stub())
    kernel.run(0, 1, **LAUNCH)
    taken = {json.loads(text)["kwargs"]["BLOCK"]: n for text, n in device.samples.items()}
    assert taken[64] == 1
    assert taken[16] > 1


def test_a_kernel_below_heuristics_is_pickled_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "module_with_heuristics.py").write_text(
        "import triton, triton.language as tl, tuner\n"
        "@triton.heuristics({'EVEN': lambda a: True})\n"
        "@tuner.autotune([triton.Config({'BLOCK': 16})], key=['n'])\n"
        "@triton.jit\n"
        "def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tuned = importlib.import_module("module_with_heuristics").kernel.fn
    assert pickle.loads(pickle.dumps(tuned)) is tuned
