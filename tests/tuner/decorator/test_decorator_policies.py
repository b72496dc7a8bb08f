"""How much is measured: TT1, TT2, TT3, TT4, TT5, TT8, NO2, NO4, NO14, ES1, HW10, the policies."""

# Arguments and names are those of kernels: constants in capitals, as Triton writes them.
# ruff: noqa: N803
from __future__ import annotations

import logging
import random
import warnings

import pytest
import torch

import tuner
from perfmodel import Gemm, Predictor
from perfmodel.errors import DataError, TuningWarning, UnknownNameError, UnknownShapeError
from tuner.deciding import telling
from tuner.deciding.accounting import Fate
from tuner.store import Store

GPU = "h100-sxm5"


@pytest.fixture
def timed_gemm(gemm_stub, gemm_configs, bench):
    """A matrix product on a stubbed launch whose time falls with its block_m."""

    def make(**options):
        timer = bench(gemm_stub, lambda launch: 100.0 / launch["BLOCK_M"] + launch["BLOCK_K"])
        made = tuner.autotune(
            gemm_configs, key=["M", "N", "K"], family="gemm", gpu=GPU, do_bench=timer, **options
        )(gemm_stub)
        return made, timer

    return make


def model_pick(kernel, call):
    args, _ = call
    problem = kernel.binding.problem(dict(zip(kernel.arg_names, args, strict=False)), None)
    tiles = kernel.tile_set.table(tuple(range(len(kernel.configs))), {})[0]
    return kernel.configs[Predictor().decide(problem, GPU, tiles)]


@pytest.mark.parametrize("policy", ["off", "model", "verify", "full"])
def test_tt1_the_environment_decides_for_the_whole_process(
    timed_gemm, gemm_call, monkeypatch, policy
):
    monkeypatch.setenv("PERFMODEL_AUTOTUNE", policy)
    kernel, timer = timed_gemm(policy="full" if policy != "full" else "off", k=3)
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    best = model_pick(kernel, (args, kwargs))
    if policy == "off":
        assert timer.calls == 0
        assert kernel.best_config is kernel.configs[0]
    elif policy == "model":
        assert timer.calls == 0
        assert kernel.best_config is best
    elif policy == "verify":
        timed = {(s["BLOCK_M"], s["BLOCK_N"], s["BLOCK_K"]) for s in timer.seen}
        assert len(timed) <= 4
        assert tuple(best.kwargs[n] for n in ("BLOCK_M", "BLOCK_N", "BLOCK_K")) in timed
        assert (
            tuple(kernel.configs[0].kwargs[n] for n in ("BLOCK_M", "BLOCK_N", "BLOCK_K")) in timed
        )
    else:
        assert len({(s["BLOCK_M"], s["BLOCK_N"], s["BLOCK_K"]) for s in timer.seen}) == 8


def test_tt1_an_unknown_policy_is_named(timed_gemm, gemm_call, monkeypatch):
    monkeypatch.setenv("PERFMODEL_AUTOTUNE", "modle")
    kernel, _ = timed_gemm()
    args, kwargs = gemm_call(4096)
    with pytest.raises(UnknownNameError, match="did you mean 'model'"):
        kernel.run(*args, **kwargs)


def test_verify_is_the_default_where_the_model_knows_the_problem(timed_gemm, gemm_call):
    kernel, timer = timed_gemm()
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    timed = {(s["BLOCK_M"], s["BLOCK_N"], s["BLOCK_K"]) for s in timer.seen}
    assert 2 <= len(timed) <= 4
    assert kernel.explain(*args, **kwargs).policy == "verify"


def test_full_is_the_default_where_it_does_not(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub, lambda launch: float(launch["BLOCK"]))
    kernel = tuner.autotune(
        [config({"BLOCK": size}) for size in (256, 64, 128)], key=["n"], do_bench=timer
    )(stub)
    kernel.run(0, 5, grid=(1,), warmup=False)
    assert timer.calls == 3
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_tt2_two_hundred_lengths_are_a_handful_of_tunings(timed_gemm, gemm_call):
    # Stock 3.6.0 tunes 200 times.
    kernel, timer = timed_gemm()
    tunings = 0
    lengths = random.Random(0).sample(range(8000, 72000), 200)
    for m in lengths:
        before = timer.calls
        args, kwargs = gemm_call(m)
        kernel.run(*args, **kwargs)
        tunings += timer.calls > before
    assert 1 <= tunings <= 12
    account = kernel.explain(*args, **kwargs)
    assert account.bucket is not None
    assert account.bucket.startswith("M from ")


def test_tt2_buckets_on_request(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub)
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=timer,
        buckets={"n": "pow2"},
    )(stub)  # fmt: skip
    for n in range(8193, 16385, 100):
        kernel.run(0, n, grid=(1,), warmup=False)
    assert timer.calls == 2
    assert kernel.explain(0, 9000, grid=(1,)).bucket == "as asked: n"


def test_buckets_of_other_names_are_errors(make_stub, config):
    with pytest.raises(UnknownNameError, match=r"its key: n"):
        tuner.autotune([config({"BLOCK": 32})], key=["n"], buckets={"nn": "pow2"})(make_stub())


def test_tt4_warmed_shapes_neither_decide_nor_time(timed_gemm, gemm_call):
    kernel, timer = timed_gemm(policy="verify")
    kernel.warm([{"M": m, "N": 1024, "K": 1024, "dtype": "fp16"} for m in (512, 4096)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for m in (512, 4096):
            args, kwargs = gemm_call(m)
            kernel.run(*args, **kwargs)
    assert timer.calls == 0
    assert kernel.late_decisions == 0


def test_tt4_an_unlisted_shape_warns_once_and_is_counted(timed_gemm, gemm_call):
    kernel, _ = timed_gemm(policy="model")
    kernel.warm([{"M": 512, "N": 1024, "K": 1024, "dtype": "fp16"}])
    args, kwargs = gemm_call(640)
    with pytest.warns(TuningWarning, match="was not among"):
        kernel.run(*args, **kwargs)
    args, kwargs = gemm_call(768)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.run(*args, **kwargs)
    assert kernel.late_decisions == 2


def test_tune_ahead_times_with_real_arguments(timed_gemm, gemm_call):
    kernel, timer = timed_gemm(policy="full")
    kernel.tune([{"M": 512}], inputs=lambda shape: gemm_call(shape["M"]))
    timed = timer.calls
    assert timed >= 8
    args, kwargs = gemm_call(512)
    kernel.run(*args, **kwargs)
    assert timer.calls == timed


@pytest.mark.parametrize(
    ("shape", "match"), [({"M": 1, "N": 2}, "lacks K"), ({"MM": 1, "N": 2, "K": 3}, "MM")]
)
def test_shapes_that_do_not_fit_are_named(timed_gemm, shape, match):
    kernel, _ = timed_gemm()
    with pytest.raises(UnknownShapeError, match=match):
        kernel.warm([shape])


def test_tt5_a_pin_is_used_verbatim(timed_gemm, gemm_call, gemm_stub):
    kernel, timer = timed_gemm(policy="full")
    kernel.pin({"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 4, "num_warps": 2})
    args, kwargs = gemm_call(512)
    kernel.run(*args, **kwargs)
    assert timer.calls == 0
    assert gemm_stub.last["BLOCK_M"] == 16
    assert gemm_stub.last["num_warps"] == 2
    kernel.pin(None)
    kernel.run(*args, **kwargs)
    assert timer.calls >= 8


@pytest.mark.parametrize("kind", ["inline", "json", "toml"])
def test_tt5_a_pin_from_outside(make_stub, config, bench, monkeypatch, tmp_path, kind):
    stub = make_stub()
    text = '{"kernel_3": {"BLOCK": 8, "num_warps": 1}}'
    if kind == "toml":
        text = "[kernel_3]\nBLOCK = 8\nnum_warps = 1\n"
    if kind != "inline":
        path = tmp_path / f"pins.{kind}"
        path.write_text(text)
        text = str(path)
    monkeypatch.setenv("PERFMODEL_PINS", text)
    timer = bench(stub)
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=timer
    )(stub)
    kernel.run(0, 1, grid=(1,), warmup=False)
    assert timer.calls == 0
    assert (stub.last["BLOCK"], stub.last["num_warps"]) == (8, 1)


@pytest.mark.parametrize(
    ("pin", "match"),
    [({"BLOK": 8}, "did you mean 'BLOCK'"), ({"num_warps": 4}, "lacks BLOCK")],
)
def test_tt5_unknown_and_missing_keys_of_a_pin_are_errors(make_stub, config, pin, match):
    kernel = tuner.autotune([config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"])(make_stub())
    with pytest.raises(UnknownNameError, match=match):
        kernel.pin(pin)


def test_tt5_a_pin_file_that_cannot_be_read_is_an_error(make_stub, config, monkeypatch):
    monkeypatch.setenv("PERFMODEL_PINS", "/nowhere/pins.json")
    kernel = tuner.autotune([config({"BLOCK": 32})], key=["n"])(make_stub())
    with pytest.raises(DataError, match="nowhere"):
        kernel.run(0, 1, grid=(1,), warmup=False)


def test_tt8_one_survivor_is_launched_without_timing(make_stub, config, bench):
    # Stock 3.6.0 benchmarks the one that is left.
    stub = make_stub()
    timer = bench(stub)
    kernel = tuner.autotune(
        [config({"BLOCK": size}) for size in (32, 64, 128)], key=["n"], do_bench=timer,
        prune_configs_by={"perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 1},
    )(stub)  # fmt: skip
    kernel.run(0, 1, grid=(1,), warmup=False)
    assert timer.calls == 0
    assert stub.last["BLOCK"] == 128


def test_no2_deterministic_never_times(timed_gemm, gemm_call, monkeypatch):
    monkeypatch.setenv("PERFMODEL_AUTOTUNE", "full")
    kernel, timer = timed_gemm(deterministic=True)
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    assert timer.calls == 0
    assert kernel.best_config is model_pick(kernel, (args, kwargs))


def test_no2_noise_does_not_decide_between_near_ties(make_stub, config, bench, monkeypatch):
    chosen = set()
    for seed in range(100):
        noise = random.Random(seed)
        base = {32: 1.0, 64: 1.004, 128: 0.997, 256: 2.0}
        stub = make_stub()
        timer = bench(stub, lambda it, n=noise, b=base: b[it["BLOCK"]] * (1 + 0.03 * n.gauss(0, 1)))
        kernel = tuner.autotune(
            [config({"BLOCK": size}) for size in base], key=["n"], do_bench=timer
        )(stub)
        monkeypatch.setattr(kernel, "memory", Store.in_memory)
        kernel.run(0, 1, grid=(1,), warmup=False)
        chosen.add(stub.last["BLOCK"])
    assert chosen == {32}


@pytest.mark.parametrize("invalid", [0.0, float("nan"), -1.0, float("inf"), None, []])
def test_no4_what_is_no_time_never_wins(make_stub, config, bench, invalid):
    # Stock 3.6.0 picks config 0 for 0.0 and NaN.
    stub = make_stub()
    timer = bench(stub, lambda launch: invalid if launch["BLOCK"] == 32 else 1.0)
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64}), config({"BLOCK": 128})], key=["n"],
        do_bench=timer,
    )(stub)  # fmt: skip
    kernel.run(0, 1, grid=(1,), warmup=False)
    assert stub.last["BLOCK"] == 64
    assert kernel.explain(0, 1, grid=(1,)).rows[0].fate in (Fate.INVALID, Fate.FAILED)


def test_no14_the_users_first_config_stays_unless_something_is_faster(make_stub, config, bench):
    stub = make_stub()
    times = {32: 1.0, 64: 0.999, 128: 3.0}
    timer = bench(stub, lambda launch: times[launch["BLOCK"]])
    kernel = tuner.autotune([config({"BLOCK": size}) for size in times], key=["n"], do_bench=timer)(
        stub
    )
    kernel.run(0, 1, grid=(1,), warmup=False)
    assert stub.last["BLOCK"] == 32
    assert "first config stays" in str(kernel.explain(0, 1, grid=(1,)))


@pytest.mark.parametrize("m", [0])
def test_es1_no_work_is_launched_untuned_and_not_kept(timed_gemm, gemm_call, gemm_stub, m):
    kernel, timer = timed_gemm(policy="full")
    args, kwargs = gemm_call(m)
    kernel.run(*args, **kwargs)
    assert timer.calls == 0
    assert len(gemm_stub.launches) == 1
    assert not kernel.cache


def test_es1_an_empty_tensor_is_launched_untuned_and_not_kept(make_stub, config, bench):
    stub = make_stub()
    timer = bench(stub)
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=timer
    )(stub)
    kernel.run(torch.empty(0), 0, grid=(0,), warmup=False)
    assert timer.calls == 0
    assert len(stub.launches) == 1
    assert not kernel.cache


def test_configs_are_made_for_the_device_where_the_user_gives_none(gemm_stub, gemm_call):
    kernel = tuner.autotune(family="gemm", gpu=GPU, policy="model")(gemm_stub)
    args, kwargs = gemm_call(4096, 4096, 4096)
    kernel.run(*args, **kwargs)
    best = Predictor().rank(Gemm(4096, 4096, 4096, a_dtype="fp16"), GPU, top=5)
    chosen = (gemm_stub.last["BLOCK_M"], gemm_stub.last["BLOCK_N"], gemm_stub.last["BLOCK_K"])
    assert chosen in {
        (c.config.block_m, c.config.block_n, c.config.block_k) for c in best.candidates
    }
    assert gemm_stub.last["GROUP_M"] >= 1


def test_two_layouts_are_two_decisions(timed_gemm, gemm_call):
    kernel, _ = timed_gemm(policy="model")
    (a, b, c, m, n, k, *_), kwargs = gemm_call(2048)
    kernel.run(a, b, c, m, n, k, k, 1, n, 1, **kwargs)
    kernel.run(a, b, c, m, n, k, k, 1, 1, k, **kwargs)
    assert len(kernel.cache) == 2


def test_positional_and_named_arguments_share_a_decision(timed_gemm, gemm_call):
    kernel, _ = timed_gemm(policy="model")
    args, kwargs = gemm_call(2048)
    kernel.run(*args, **kwargs)
    named = dict(zip(kernel.arg_names, args, strict=False))
    kernel.run(**dict(reversed(named.items())), **kwargs)
    assert len(kernel.cache) == 1


def test_tt3_a_long_tuning_says_how_far_it_is(make_stub, config, bench, monkeypatch, caplog):
    monkeypatch.setattr(telling, "FIRST_WORD_S", 0.0)
    stub = make_stub()
    kernel = tuner.autotune(
        [config({"BLOCK": 32}), config({"BLOCK": 64})], key=["n"], do_bench=bench(stub)
    )(stub)
    with caplog.at_level(logging.WARNING, logger="tuner"):
        kernel.run(0, 1, grid=(1,), warmup=False)
    assert "1 of 2 configs" in caplog.text


def test_hw10_expected_skips_are_one_line_and_no_error(make_stub, config, bench, caplog):
    out_of_resources = type("OutOfResources", (Exception,), {})

    def time(launch):
        if launch["BLOCK"] > 1000:
            raise out_of_resources("shared memory, Required: 200000, Hardware limit: 101376.")
        return float(launch["BLOCK"])

    stub = make_stub()
    kernel = tuner.autotune(
        [config({"BLOCK": 32 * (i + 1)}) for i in range(16)]
        + [config({"BLOCK": 2048}), config({"BLOCK": 4096})],
        key=["n"], do_bench=bench(stub, time),
    )(stub)  # fmt: skip
    with caplog.at_level(logging.DEBUG, logger="tuner"):
        kernel.run(0, 1, grid=(1,), warmup=False)
    lines = [r for r in caplog.records if r.name == "tuner"]
    assert [r.levelno for r in lines] == [logging.INFO]
    assert "2 skipped" in lines[0].getMessage()


def test_a_look_up_does_not_keep_a_call_from_being_verified(timed_gemm, gemm_call):
    kernel, timer = timed_gemm()
    config = tuner.config_for(kernel, M=4096, N=1024, K=1024, dtype="fp16")
    args, kwargs = gemm_call(4096)
    assert config is model_pick(kernel, (args, kwargs))
    kernel.run(*args, **kwargs)
    assert timer.calls > 0


def test_explain_never_shows_a_better_time_than_the_models_pick(timed_gemm, gemm_call):
    kernel, _ = timed_gemm(policy="model")
    args, kwargs = gemm_call(4096)
    account = kernel.explain(*args, **kwargs)
    assert account.chosen.predicted_us == min(row.predicted_us for row in account.rows)
