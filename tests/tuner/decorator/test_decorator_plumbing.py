"""Triton's own surface: CA5, PM1, PM2, PM4, PM6, IM4, hooks, and what other libraries read."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import inspect
import pickle

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner as StockAutotuner

import tuner
from perfmodel import Gemm
from perfmodel.errors import UnknownNameError, UnknownOptionError, UsageError

LAUNCH = {"grid": (1,), "warmup": False}


def blocks(config, *sizes):
    return [config({"BLOCK": size}) for size in sizes]


def test_every_argument_of_tritons_decorator_is_taken_in_its_place():
    theirs = list(inspect.signature(triton.autotune).parameters)
    mine = list(inspect.signature(tuner.autotune).parameters)
    assert mine[: len(theirs)] == theirs


def test_it_is_tritons_autotuner(make_stub, config):
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"])(make_stub())
    assert isinstance(kernel, StockAutotuner)
    stock = triton.autotune(blocks(config, 32, 64), key=["n"])(make_stub())
    for name in vars(stock):
        assert hasattr(kernel, name), name
    assert kernel.keys == ["n"]
    assert kernel.nargs is None


@pytest.mark.parametrize("option", ["key", "reset_to_zero", "restore_value"])
def test_ca5_a_misspelt_name_is_an_error_with_the_closest_one(make_stub, config, option):
    # Stock 3.6.0 drops it in silence and never tunes again.
    given = {"key": ["n"], option: ["blok"]}
    with pytest.raises(UnknownNameError, match="did you mean 'BLOCK'"):
        tuner.autotune(blocks(config, 32), **given)(make_stub())
    with pytest.raises(ValueError, match="no argument"):  # as the newest Triton raises
        tuner.autotune(blocks(config, 32), **given)(make_stub())


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [(0.3, 1), (0.5, 3), (1.0, 6), (0, 1), (0.0, 1), (1, 1), (True, 1), (4, 4), (99, 6)],
)
def test_pm1_pm2_top_k_is_a_share_of_the_survivors_and_keeps_one(
    make_stub, config, bench, top_k, kept
):
    # Stock 3.6.0: 0.5 of 10 configs keeps 5 of 6 survivors, and 0.05 crashes in min().
    stub = make_stub()
    timer = bench(stub, lambda launch: float(launch["BLOCK"]))
    sizes = [32 * (i + 1) for i in range(10)]
    kernel = tuner.autotune(
        blocks(config, *sizes), key=["n"], do_bench=timer,
        prune_configs_by={
            "early_config_prune": lambda configs, named_args, **kwargs: configs[:6],
            "perf_model": lambda BLOCK, **_: BLOCK,
            "top_k": top_k,
        },
    )(stub)  # fmt: skip
    kernel.run(0, 1, **LAUNCH)
    timed = {launch["BLOCK"] for launch in timer.seen}
    # The share is truncated to a whole count; one is never timed.
    expected = {0.3: 1, 0.5: 3}.get(top_k, kept)
    assert len(timed) == (0 if expected == 1 else expected)
    assert stub.last["BLOCK"] == 32


@pytest.mark.parametrize("top_k", [2.5, "3", None, -1])
def test_pm1_another_top_k_is_an_error_at_decoration(make_stub, config, top_k):
    with pytest.raises(TypeError, match="top_k"):
        tuner.autotune(
            blocks(config, 32), key=["n"],
            prune_configs_by={"perf_model": lambda **_: 1.0, "top_k": top_k},
        )(make_stub())  # fmt: skip


def test_pm4_no_keyword_arguments_single_and_doubled_configs(make_stub, config, bench):
    for configs in (
        [config({}, num_warps=4)],
        [config({}, num_warps=4), config({}, num_warps=8)],
        [config({}, num_warps=4), config({}, num_warps=4)],
    ):
        stub = make_stub("x", "n")
        kernel = tuner.autotune(configs, key=["n"], do_bench=bench(stub))(stub)
        kernel.run(0, 1, **LAUNCH)
        kernel.run(0, 1, **LAUNCH)
        assert stub.last["num_warps"] == 4


def test_pm4_a_doubled_config_is_timed_once_and_accounted_for(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub, lambda launch: float(launch["BLOCK"]))
    kernel = tuner.autotune(blocks(config, 64, 32, 64), key=["n"], do_bench=timer)(stub)
    kernel.run(0, 1, **LAUNCH)
    assert timer.calls == 2
    rows = kernel.explain(0, 1).rows
    assert [str(row.fate) for row in rows] == ["timed", "timed", "duplicate"]


def test_pm4_heuristics_above_and_below(interpreted, config, bench):
    def scale(x, n, BLOCK: tl.constexpr, FACTOR: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(x + offsets, tl.load(x + offsets, mask=mask, other=0) * FACTOR, mask=mask)

    values = {"FACTOR": lambda args: 3 if args["n"] > 16 else 2}
    above = triton.heuristics(values)(
        tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=bench())(interpreted(scale))
    )
    below = tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=bench())(
        triton.heuristics(values)(interpreted(scale))
    )
    for kernel in (above, below):
        for _ in range(2):
            x = torch.ones(32)
            kernel[(1,)](x, 32)
            assert (x == 3).all()


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"num_warps": 8}, "triton.Config"),
        ({"top_k": 3}, "prune_configs_by"),
        ({"polcy": "model"}, "did you mean 'policy'"),
    ],
)
def test_pm6_an_option_in_the_wrong_place_is_told_the_right_one(option, match):
    with pytest.raises(UnknownOptionError, match=match):
        tuner.autotune([], key=["n"], **option)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"BLOCK": 1, "warmup": 3}, "option of autotune"),
        ({"BLOKC": 1}, "did you mean 'BLOCK'"),
        ({"BLOCK": 1, "num_warp": 3}, "did you mean 'num_warps'"),
    ],
)
def test_pm6_a_key_of_a_config_that_nobody_takes(make_stub, config, kwargs, match):
    with pytest.raises(UnknownOptionError, match=match):
        tuner.autotune([config(kwargs)], key=["n"])(make_stub())


def test_pm6_options_of_a_backend_are_taken(make_stub, config):
    kernel = tuner.autotune([config({"BLOCK": 1, "waves_per_eu": 2})], key=["n"])(make_stub())
    assert kernel.configs[0].kwargs == {"BLOCK": 1, "waves_per_eu": 2}


def test_pm6_what_is_no_config(make_stub):
    with pytest.raises(UsageError, match=r"triton.Config"):
        tuner.autotune([{"BLOCK": 1}], key=["n"])(make_stub())


def test_unknown_keys_of_prune_configs_by_are_errors(make_stub, config):
    with pytest.raises(UnknownOptionError, match="did you mean 'perf_model'"):
        tuner.autotune(
            blocks(config, 1), key=["n"], prune_configs_by={"perf_modle": lambda **_: 1}
        )(make_stub())


@pytest.mark.parametrize(
    ("names", "match"),
    [({"m": "MM"}, "did you mean 'M'"), ({"rows": "M"}, "roles"), ({"block_m": "BLK"}, "BLK")],
)
def test_a_family_checks_names_at_decoration(gemm_stub, gemm_configs, names, match):
    with pytest.raises(UnknownNameError, match=match):
        tuner.autotune(gemm_configs, key=["M"], family="gemm", names=names)(gemm_stub)


def test_a_family_needs_its_arguments_and_blocks(make_stub, config):
    with pytest.raises(UnknownNameError, match="needs an argument for k"):
        tuner.autotune(blocks(config, 1), key=[], family="gemm")(
            make_stub("a_ptr", "b_ptr", "M", "N", "BLOCK")
        )
    with pytest.raises(UnknownNameError, match="block_m"):
        tuner.autotune(blocks(config, 1), key=[], family="gemm")(
            make_stub("a_ptr", "b_ptr", "M", "N", "K", "BLOCK")
        )
    with pytest.raises(UnknownNameError, match="did you mean 'gemm'"):
        tuner.autotune(blocks(config, 1), key=[], family="gem")(make_stub())


def test_a_problem_function_is_checked_at_decoration(gemm_stub, gemm_configs):
    with pytest.raises(UnknownNameError, match="MM"):
        tuner.autotune(gemm_configs, key=["M"], problem=lambda MM, N: None)(gemm_stub)


@pytest.mark.parametrize("form", ["names", "mapping", "open"])
def test_a_problem_function_in_each_form(gemm_stub, gemm_configs, gemm_call, bench, form):
    function = {
        "names": lambda M, N, K: Gemm(M, N, K, a_dtype="fp16"),
        "mapping": lambda a: Gemm(a["M"], a["N"], a["K"], a_dtype="fp16"),
        "open": lambda M, N, K, **_: Gemm(M, N, K, a_dtype="fp16"),
    }[form]
    kernel = tuner.autotune(
        gemm_configs, key=["M", "N", "K"], problem=function, policy="model", gpu="h100-sxm5"
    )(gemm_stub)
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    assert kernel.explain(*args, **kwargs).basis is not None


def test_conflicting_parameters_are_an_error_under_every_policy(make_stub, config):
    kernel = tuner.autotune(blocks(config, 1, 2), key=["n"], policy="model")(make_stub())
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel.run(0, 1, BLOCK=3, **LAUNCH)


@pytest.mark.parametrize(
    "hook",
    [
        lambda seen: lambda arguments: seen.append(arguments["BLOCK"]),
        lambda seen: lambda arguments, reset_only=False: seen.append(arguments["BLOCK"]),
        lambda seen: lambda arguments, reset: seen.append(arguments["BLOCK"]),
        lambda seen: lambda arguments, **_: seen.append(arguments["BLOCK"]),
    ],
)
def test_im4_old_and_new_pre_hooks_run_on_every_launch(make_stub, config, bench, hook):
    seen = []
    stub = make_stub()
    kernel = tuner.autotune(
        blocks(config, 32, 64), key=["n"], do_bench=bench(stub), pre_hook=hook(seen)
    )(stub)
    for _ in range(3):
        kernel.run(0, 1, **LAUNCH)
    assert len(seen) == len(stub.launches) == 5


@pytest.mark.parametrize(
    "hook",
    [
        lambda seen: lambda arguments: seen.append(None),
        lambda seen: lambda arguments, exception: seen.append(exception),
        lambda seen: lambda arguments, exception=None: seen.append(exception),
    ],
)
def test_im4_old_and_new_post_hooks_follow_every_timed_launch(make_stub, config, bench, hook):
    seen = []
    stub = make_stub()
    kernel = tuner.autotune(
        blocks(config, 32, 64), key=["n"], do_bench=bench(stub), post_hook=hook(seen)
    )(stub)
    kernel.run(0, 1, **LAUNCH)
    assert seen == [None, None]


def test_im4_reset_only_tells_real_launches_from_timed_ones(make_stub, config, bench):
    seen = []
    stub = make_stub()
    kernel = tuner.autotune(
        blocks(config, 32, 64), key=["n"], do_bench=bench(stub),
        pre_hook=lambda arguments, reset_only=False: seen.append(reset_only),
    )(stub)  # fmt: skip
    for _ in range(2):
        kernel.run(0, 1, **LAUNCH)
    assert seen == [False, False, True, True]


def test_hooks_of_a_config_run_on_first_and_later_calls(make_stub, bench):
    seen = []
    stub = make_stub()
    configs = [
        tuner.Config({"BLOCK": b}, pre_hook=lambda arguments: seen.append(arguments["BLOCK"]))
        for b in (32, 64)
    ]
    kernel = tuner.autotune(configs, key=["n"], do_bench=bench(stub))(stub)
    for _ in range(2):
        kernel.run(0, 1, **LAUNCH)
    assert seen == [launch["BLOCK"] for launch in stub.launches]


def test_im4_a_subclass_that_overrides_prune_configs_is_still_asked(make_stub, config, bench):
    class Last(tuner.Autotuner):
        def prune_configs(self, kwargs):
            assert self.nargs == {"x": 0, "n": 1}
            return [self.configs[-1]]

    stub = make_stub()
    kernel = Last(stub, stub.arg_names, blocks(config, 32, 64), ["n"], None, None)
    kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] == 64


def test_early_prune_may_bring_in_other_configs(make_stub, config, bench):
    stub = make_stub()
    kernel = tuner.autotune(
        blocks(config, 32, 64), key=["n"], do_bench=bench(stub),
        prune_configs_by={"early_config_prune": lambda configs, args, **_: [config({"BLOCK": 7})]},
    )(stub)  # fmt: skip
    kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] == 7


def test_early_prune_that_keeps_none_is_tritons_error(make_stub, config):
    kernel = tuner.autotune(
        blocks(config, 32, 64), key=["n"],
        prune_configs_by={"early_config_prune": lambda configs, args, **_: []},
    )(make_stub())  # fmt: skip
    with pytest.raises(triton.runtime.errors.AutotunerError, match="at least one"):
        kernel.run(0, 1, **LAUNCH)


def test_what_others_put_into_the_cache_is_used(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub)
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=timer)(stub)
    kernel.cache[(1, "torch.float32")] = kernel.configs[1]
    kernel.run(torch.ones(4), 1, **LAUNCH)
    assert timer.calls == 0
    assert stub.last["BLOCK"] == 64


def test_a_cleared_cache_is_decided_again(make_stub, config, bench):
    stub = make_stub()
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=bench(stub))(stub)
    kernel.run(0, 1, **LAUNCH)
    kernel.cache.clear()
    kernel.configs = blocks(config, 128, 256)
    kernel.run(0, 1, **LAUNCH)
    assert stub.last["BLOCK"] in (128, 256)


def test_timings_are_left_where_triton_leaves_them(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub, lambda launch: [launch["BLOCK"], launch["BLOCK"] - 1, launch["BLOCK"] + 1])
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=timer)(stub)
    kernel.run(0, 1, **LAUNCH)
    assert kernel.configs_timings[kernel.configs[0]][0] == pytest.approx(32)
    assert kernel.bench_time >= 0
    assert kernel.best_config is kernel.configs[0]


def test_the_listener_hears_of_it(make_stub, config, bench, monkeypatch):
    heard = []
    knobs = triton.knobs.autotuning
    if not hasattr(knobs, "listener"):
        pytest.skip("this Triton has no listener")
    monkeypatch.setattr(knobs, "listener", lambda **told: heard.append(told))
    stub = make_stub()
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"], do_bench=bench(stub))(stub)
    kernel.run(0, 1, **LAUNCH)
    assert set(heard[0]) == {
        "fn", "key", "best_config", "configs_timings", "duration", "cache_hit",
    }  # fmt: skip


def test_a_benchmark_with_old_arguments_is_honoured(make_stub, config, monkeypatch):
    calls = []
    monkeypatch.setattr(
        triton.testing, "do_bench", lambda call, **how: calls.append(how) or [1.0, 1.0, 1.0]
    )
    with pytest.warns(DeprecationWarning, match="deprecated"):
        kernel = tuner.autotune(blocks(config, 32, 64), key=["n"], warmup=1, rep=2)(make_stub())
    kernel.run(0, 1, **LAUNCH)
    assert calls[0]["rep"] == 2


def test_ca12_a_kernel_of_a_module_keeps_its_decisions_through_a_pickle(tmp_path, monkeypatch):
    (tmp_path / "module_with_kernel.py").write_text(
        "import tuner\n"
        "class Stub:\n"
        "    arg_names = ['x', 'n', 'BLOCK']\n"
        "    def __init__(self, f): self.fn = f\n"
        "    def run(self, *a, **k): return k['BLOCK']\n"
        "@tuner.autotune([tuner.Config({'BLOCK': 1}), tuner.Config({'BLOCK': 2})], key=['n'],\n"
        "                do_bench=lambda call, quantiles: [1.0])\n"
        "@Stub\n"
        "def kernel(x, n, BLOCK): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import module_with_kernel  # noqa: PLC0415 - written just now

    module_with_kernel.kernel.run(0, 1, **LAUNCH)
    decided = dict(module_with_kernel.kernel.cache)
    sent = pickle.dumps(module_with_kernel.kernel)
    module_with_kernel.kernel.cache.clear()  # as in another process
    again = pickle.loads(sent)
    assert again is module_with_kernel.kernel
    assert again.cache == decided


def test_a_local_kernel_says_how_to_be_pickled(make_stub, config):
    kernel = tuner.autotune(blocks(config, 1, 2), key=["n"])(make_stub())
    with pytest.raises(TypeError, match="top level"):
        pickle.dumps(kernel)


def test_warmup_compiles_what_is_left_as_in_triton(make_stub, config):
    stub = make_stub()
    stub.warmup = lambda *args, **kwargs: kwargs["BLOCK"]
    kernel = tuner.autotune(blocks(config, 32, 64), key=["n"])(stub)
    assert kernel.warmup(0, 1, grid=(1,)) == [32, 64]
    assert kernel.nargs is None
