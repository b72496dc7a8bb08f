"""Threads, captures and ranks: CO1, CO3, CO4, CO5."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import triton

import tuner
from tuner import devices, keys
from tuner.deciding import ranks
from tuner.deciding.decision import Call

LAUNCH = {"grid": (1,), "warmup": False}


def two(config):
    return [config({"BLOCK": 32}), config({"BLOCK": 64})]


def run_threads(count, target, stagger=0.0):
    errors = []

    def guarded(i):
        time.sleep(i * stagger)
        try:
            target(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return errors


def slow(call, quantiles):
    call()
    time.sleep(0.05)
    return [1.0, 1.0, 1.0]


def test_co3_four_threads_at_a_cold_kernel(make_stub, config):
    # Stock 3.6.0: three of four raise TypeError.
    stub = make_stub()
    kernel = tuner.autotune(two(config), key=["n"], do_bench=slow)(stub)
    assert run_threads(4, lambda i: kernel.run(0, 1, **LAUNCH), stagger=0.02) == []
    assert len(stub.launches) == 2 + 4


def test_co3_stock_really_raises(make_stub, config):
    if not triton.__version__.startswith("3.6."):
        pytest.skip("the fault was reproduced with Triton 3.6.0")
    kernel = triton.autotune(two(config), key=["n"], do_bench=slow)(make_stub())
    errors = run_threads(4, lambda i: kernel.run(0, 1, **LAUNCH), stagger=0.02)
    assert any(isinstance(error, TypeError) for error in errors)


def test_co3_benches_never_overlap(make_stub, config):
    running, overlaps = [], []

    def watched(call, quantiles):
        running.append(1)
        overlaps.append(len(running))
        time.sleep(0.01)
        running.pop()
        return [1.0]

    kernel = tuner.autotune(two(config), key=["n"], do_bench=watched)(make_stub())
    assert run_threads(4, lambda i: kernel.run(0, i, **LAUNCH)) == []
    assert max(overlaps) == 1


@pytest.mark.parametrize("where", ["pre_hook", "perf_model", "do_bench"])
def test_co3_a_kernel_called_while_it_is_decided(make_stub, config, bench, where):
    stub = make_stub()
    kernel = None
    depth = 0

    def again(*_, **__):
        nonlocal depth
        if depth == 0:
            depth += 1
            kernel.run(0, 1, **LAUNCH)
            depth -= 1
        return 1.0

    options = {"do_bench": bench(stub)}
    if where == "pre_hook":
        options["pre_hook"] = again
    elif where == "perf_model":
        options["prune_configs_by"] = {"perf_model": again}
    else:
        options["do_bench"] = lambda call, quantiles: [again()]
    kernel = tuner.autotune(two(config), key=["n"], **options)(stub)
    errors = run_threads(1, lambda i: kernel.run(0, 1, **LAUNCH))
    assert errors == []
    assert len(kernel.cache) == 1


def test_co3_an_error_in_one_thread_does_not_spoil_the_next_call(make_stub, config):
    broken = [True]

    def once(call, quantiles):
        if broken:
            broken.pop()
            raise ZeroDivisionError
        return [1.0]

    kernel = tuner.autotune(two(config), key=["n"], do_bench=once)(make_stub())
    assert len(run_threads(1, lambda i: kernel.run(0, 1, **LAUNCH))) == 1
    kernel.run(0, 1, **LAUNCH)
    assert kernel.nargs is None
    assert len(kernel.cache) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_during_a_decision_is_not_stuck(make_stub, config):
    stub = make_stub()
    kernel = tuner.autotune(two(config), key=["n"], do_bench=slow)(stub)
    results = []

    def fork_in_the_middle(call, quantiles):
        child = multiprocessing.get_context("fork").Process(
            target=lambda: kernel.run(0, 1, **LAUNCH)
        )
        child.start()
        child.join(20)
        results.append(child.exitcode)
        return [1.0]

    first = tuner.autotune(two(config), key=["n"], do_bench=fork_in_the_middle)(make_stub())
    thread = threading.Thread(target=first.run, args=(0, 1), kwargs=LAUNCH)
    thread.start()
    thread.join(60)
    assert results == [0, 0]


def test_co4_nothing_is_timed_while_a_graph_is_captured(make_stub, config, bench, monkeypatch):
    stub = make_stub()
    timer = bench(stub, lambda launch: 100.0 / launch["BLOCK"])
    kernel = tuner.autotune(two(config), key=["n"], do_bench=timer)(stub)
    capturing = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("synchronised"))
    for _ in range(2):
        kernel.run(0, 1, **LAUNCH)
    assert timer.calls == 0
    assert len(stub.launches) == 2
    assert "captured" in str(kernel.explain(0, 1))
    capturing = False
    kernel.run(0, 1, **LAUNCH)
    assert timer.calls == 2
    assert stub.last["BLOCK"] == 64


def test_two_devices_have_two_decisions(make_stub, config, bench, monkeypatch):
    """CA14: in stock Triton both share one entry."""
    device = [0]
    monkeypatch.setattr(devices, "current_index", lambda: device[0])
    stub = make_stub()
    timer = bench(stub)
    kernel = tuner.autotune(two(config), key=["n"], do_bench=timer)(stub)
    for device[0] in (0, 1, 0):
        kernel.run(0, 1, **LAUNCH)
    assert len(kernel.cache) == 2


RANK = textwrap.dedent("""
    import os, random, sys
    import torch.distributed as dist
    import tuner

    rank, size, crash = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4] == "crash"
    os.environ["PERFMODEL_CACHE_DIR"] = f"{sys.argv[3]}-cache-{rank}"
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank,
                            world_size=size)
    if crash and rank == 0:
        os._exit(3)
    noise = random.Random(rank)

    class Stub:
        arg_names = ["x", "n", "BLOCK"]
        def __init__(self, f): self.fn = f
        def run(self, *a, **k): self.last = k["BLOCK"]

    def do_bench(call, quantiles):
        call()
        return [1.0 + noise.random()]

    @Stub
    def kernel_body(x, n, BLOCK): pass

    kernel = tuner.autotune(
        [tuner.Config({"BLOCK": b}) for b in (1, 2, 4, 8, 16)], key=["n"], do_bench=do_bench,
        rank_timeout_s=3.0,
    )(kernel_body)
    for n in range(3):
        kernel.run(0, n, grid=(1,), warmup=False)
        print(kernel_body.last, end=" ")
    print()
    sys.stdout.flush()
    os._exit(0)
""")


@pytest.mark.parametrize("ending", ["all", "crash"])
def test_co1_ranks_end_with_the_same_configs(tmp_path, ending):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(i), "3", str(tmp_path / "rendezvous"), ending],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(3)
    ]  # fmt: skip
    told = [process.communicate(timeout=120) for process in processes]
    alive = told[1:] if ending == "crash" else told
    assert len({out for out, _ in alive}) == 1, told
    assert len(alive[0][0].split()) == 3, told
    assert time.monotonic() - started < 100


class SharedStore:
    """A job's store, in one process."""

    def __init__(self):
        self.values = {}

    def compare_set(self, key, expected, desired):
        return self.values.setdefault(key, desired.encode())

    def wait(self, keys, timeout):
        if any(key not in self.values for key in keys):
            raise TimeoutError

    def get(self, key):
        return self.values[key]


def test_co1_a_rank_that_could_not_wait_binds_rank_zero():
    store = SharedStore()
    late = ranks.Ranks(1, 2, store).agree("key", lambda: "timed", lambda: "model", 0.01)
    first = ranks.Ranks(0, 2, store).agree("key", lambda: "timed", lambda: "model", 0.01)
    assert late.config == first.config == "model"
    assert "did not answer" in late.decided_by


def test_co1_an_error_on_rank_zero_leaves_the_others_the_model():
    store = SharedStore()

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ranks.Ranks(0, 2, store).agree("key", fail, lambda: "model")
    assert ranks.Ranks(1, 2, store).agree("key", fail, lambda: "model").config == "model"


def test_co5_a_compiled_model_asks_for_each_shape(gemm_stub, gemm_configs, gemm_call):
    kernel = tuner.autotune(gemm_configs, key=["M", "N", "K"], family="gemm", gpu="h100-sxm5")(
        gemm_stub
    )
    asked = []

    @torch.library.custom_op("perfmodel_test::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[1]
        config = tuner.config_for(kernel, M=m, N=n, K=k, dtype=a.dtype)
        asked.append((m, config))
        return a @ b

    @product.register_fake
    def _(a, b):
        return a.new_empty(a.shape[0], b.shape[1])

    compiled = torch.compile(product, backend="eager", fullgraph=True)
    for m in (16, 4096):
        compiled(torch.empty(m, 64), torch.empty(64, 64))
    assert [m for m, _ in asked] == [16, 4096]
    assert all(config in kernel.configs for _, config in asked)


@pytest.mark.parametrize("options", [{"policy": "model"}, {"deterministic": True}])
def test_co1_ranks_whose_stores_differ_choose_the_same(
    gemm_stub, gemm_configs, gemm_call, tmp_path, monkeypatch, options
):
    args, kwargs = gemm_call(4096)

    def rank(number):
        monkeypatch.setenv("PERFMODEL_CACHE_DIR", str(tmp_path / f"rank{number}"))
        return tuner.autotune(
            gemm_configs, key=["M", "N", "K"], family="gemm", gpu="h100-sxm5", **options
        )(gemm_stub)

    first = rank(0)
    first.run(*args, **kwargs)
    second = rank(1)
    call = Call.of(second.arg_names, args, kwargs)
    key = keys.store_key(second, call, devices.NOWHERE)
    second.memory().quarantine(key, keys.config_text(first.best_config), "hung on this rank")
    monkeypatch.setattr(ranks.Ranks, "of_process", classmethod(lambda cls: cls(1, 2, None)))
    second.run(*args, **kwargs)
    assert second.best_config is first.best_config
    monkeypatch.undo()
    if "policy" in options:  # alone, it does not launch what hung
        monkeypatch.setenv("PERFMODEL_CACHE_DIR", str(tmp_path / "rank1"))
        alone = rank(1)
        alone.run(*args, **kwargs)
        assert alone.best_config is not first.best_config
