"""Timing in a process of its own, end to end under Triton's interpreter: TT10, BC1, DC1."""

# ruff: noqa: N803 - compile-time arguments of kernels are in capitals, as in Triton's own
from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl

import tuner
from perfmodel.errors import (
    NoUsableConfigError,
    TuningWarning,
)
from tuner.deciding.accounting import Fate
from tuner.measure import isolation
from tuner.measure.isolation import Isolation

WORKER = Isolation(environment={"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
GRID = (1,)


@pytest.fixture(autouse=True, scope="module")
def _workers_end() -> Any:
    yield
    isolation.end_workers()


def add_one(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    if HOW == "hang":
        while True:
            time.sleep(0.01)
    if HOW == "abort":
        os.abort()
    if HOW == "slow":
        time.sleep(0.2)
    if HOW == "refuse":
        raise MemoryError("no room")
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def kernel_of(interpreted, config, *ways, **options):
    options = {"isolate": WORKER, "limit_s": 3.0} | options
    configs = [config({"HOW": how, "BLOCK": 16}) for how in ways]
    return tuner.autotune(configs, key=["n"], **options)(interpreted(add_one))


def fates(kernel, *args):
    return [row.fate for row in kernel.explain(*args, grid=GRID).rows]


def test_a_config_that_never_ends_is_cut_off_and_the_best_other_wins(interpreted, config):
    # Stock Triton 3.6.0 times in the caller's process, which never returns.
    kernel = kernel_of(interpreted, config, "slow", "hang", "abort", "good")
    x = torch.zeros(10)
    started = time.monotonic()
    kernel[GRID](x, 10)
    assert time.monotonic() - started < 60.0
    assert x.tolist() == [1.0] * 10  # DC1: nothing was launched on the caller's own
    assert kernel.best_config.kwargs["HOW"] == "good"
    assert fates(kernel, x, 10) == [Fate.TIMED, Fate.TIMED_OUT, Fate.FAILED, Fate.TIMED]
    reasons = [row.reason or "" for row in kernel.explain(x, 10).rows]
    assert "cut off after 3 s" in reasons[1]
    assert "signal 6" in reasons[2]
    # Another kernel object, as another process would have: nothing of it is tried again.
    again = kernel_of(interpreted, config, "slow", "hang", "abort", "good")
    started = time.monotonic()
    again[GRID](x, 10)
    assert time.monotonic() - started < 3.0
    assert again.best_config.kwargs["HOW"] == "good"
    assert fates(again, x, 10) == [Fate.STORED, Fate.QUARANTINED, Fate.QUARANTINED, Fate.STORED]


SCRIPT = """
import json, os, sys, time
import torch, triton, triton.language as tl
import tuner
from tuner.measure.isolation import Isolation

@triton.jit
def add_one(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    if HOW == "hang":
        while True:
            time.sleep(0.01)
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

if __name__ != "__main__":
    raise SystemExit("the user's script was run again")
configs = [tuner.Config({"HOW": how, "BLOCK": 16}) for how in ("hang", "good", "slow")]
kernel = tuner.autotune(configs, key=["n"], isolate=Isolation(), limit_s=2.0)(add_one)
x = torch.zeros(10)
started = time.monotonic()
kernel[(1,)](x, 10)
account = kernel.explain(x, 10)
print(json.dumps({"sum": float(x.sum()), "fates": [r.fate for r in account.rows],
                  "seconds": time.monotonic() - started}))
"""


def test_the_next_process_skips_what_hung(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip

    def run() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    first, second = run(), run()
    assert first["fates"] == ["timed out", "timed", "timed"]
    assert second["fates"] == ["quarantined", "timed before", "timed before"]
    assert first["sum"] == second["sum"] == 10.0
    assert second["seconds"] < 2.0


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    # Killed in the middle of a hang, nobody is left to close it.
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("limit_s=2.0", "limit_s=600.0"))
    mark = f"perfmodel-{os.getpid()}-{tmp_path.name}"
    environment = os.environ | {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path),
        "MARK": mark,
    }  # fmt: skip
    child = subprocess.Popen([sys.executable, str(script)], env=environment)
    try:
        until = time.monotonic() + 90.0
        while not [pid for pid in _with_mark(mark) if pid != child.pid]:
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(1.0)
    finally:
        child.kill()
        child.wait()
    until = time.monotonic() + 10.0
    while _with_mark(mark):
        assert time.monotonic() < until, "the worker outlived its parent"
        time.sleep(0.1)


def _with_mark(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_one_budget_holds_for_all_and_a_hang_takes_a_quarter_at_most(interpreted, config):
    kernel = kernel_of(interpreted, config, "hang", "good", "slow", limit_s=30.0, budget_s=12.0)
    x = torch.zeros(10)
    started = time.monotonic()
    kernel[GRID](x, 10)
    assert time.monotonic() - started < 60.0
    assert kernel.best_config.kwargs["HOW"] == "good"
    assert fates(kernel, x, 10)[0] is Fate.TIMED_OUT


def test_tune_ahead_of_time_is_isolated_too(interpreted, config):
    kernel = kernel_of(interpreted, config, "hang", "good")
    x = torch.zeros(10)
    found = kernel.tune([{"x": x, "n": 10, "grid": GRID}])
    assert found[0].kwargs["HOW"] == "good"
    assert x.sum() == 0.0
    kernel[GRID](x, 10)
    assert x.tolist() == [1.0] * 10


def idle_worker():
    return isolation._idle[repr((None, sorted(WORKER.environment.items())))][0]


def test_the_worker_is_kept_for_the_next_decision(interpreted, config):
    kernel = kernel_of(interpreted, config, "good", "slow")
    x = torch.zeros(10)
    kernel[GRID](x, 10)
    worker = idle_worker()
    starts = worker.starts
    kernel[GRID](x, 9)
    assert idle_worker() is worker
    assert worker.starts == starts


def test_an_interrupt_while_the_worker_answers_spoils_no_later_decision(interpreted, config):
    kernel = kernel_of(interpreted, config, "good", "hang", limit_s=60.0)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        kernel_of(interpreted, config, "good", "slow")[GRID](torch.zeros(10), 8)  # it is running
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        with pytest.raises(KeyboardInterrupt):
            kernel[GRID](torch.zeros(10), 7)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    again = kernel_of(interpreted, config, "good", "slow")
    x = torch.zeros(10)
    again[GRID](x, 9)
    assert fates(again, x, 9) == [Fate.TIMED, Fate.TIMED]
    assert again.best_config.kwargs["HOW"] == "good"


def test_a_copy_of_a_module_holds_the_same_kernel(interpreted, config):
    kernel = kernel_of(interpreted, config, "good")
    held = {"kernel": kernel, "list": [kernel]}
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy(held)["list"][0] is kernel


def test_a_fork_leaves_the_parent_its_worker(interpreted, config):
    kernel = kernel_of(interpreted, config, "good", "slow")
    x = torch.zeros(10)
    kernel[GRID](x, 10)
    worker = idle_worker()
    child = os.fork()
    if child == 0:
        try:
            worker.close()
            os._exit(0 if not worker.running else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.running
    assert worker.ask({"unload": True}, 10.0) == {"unloaded": True}


def test_what_a_launch_reads_back_is_the_same_before_each(interpreted, config):
    # A counter that must be zero: without being put back the second launch would hang.
    def count(x, n, BLOCK: tl.constexpr):
        while tl.load(x) != 0.0:
            time.sleep(0.01)
        tl.store(x, 1.0)

    kernel = tuner.autotune(
        [config({"BLOCK": size}) for size in (16, 32)], key=["n"], isolate=WORKER, limit_s=5.0
    )(interpreted(count))
    x = torch.zeros(4)
    kernel[GRID](x, 4)
    assert fates(kernel, x, 4) == [Fate.TIMED, Fate.TIMED]


def test_reset_to_zero_holds_in_the_worker(interpreted, config):
    def spin_unless_zero(x, n, BLOCK: tl.constexpr):
        while tl.load(x) != 0.0:
            time.sleep(0.01)
        tl.store(x, 1.0)

    kernel = tuner.autotune(
        [config({"BLOCK": size}) for size in (16, 32)], key=["n"], reset_to_zero=["x"],
        isolate=WORKER, limit_s=5.0,
    )(interpreted(spin_unless_zero))  # fmt: skip
    x = torch.ones(4)
    kernel[GRID](x, 4)
    assert fates(kernel, x, 4) == [Fate.TIMED, Fate.TIMED]


def test_where_all_of_the_models_first_fail_the_next_are_timed(
    gemm_stub, gemm_configs, gemm_call, bench
):
    tried = []

    def timing(launch):
        tried.append(launch)
        if len({str(sorted((k, v) for k, v in t.items() if k.isupper())) for t in tried}) <= 4:
            raise type("OutOfResources", (Exception,), {})("no")
        return 1.0

    kernel = tuner.autotune(
        gemm_configs, key=["M", "N", "K"], family="gemm", gpu="h100-sxm5", policy="verify",
        do_bench=bench(gemm_stub, timing),
    )(gemm_stub)  # fmt: skip
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    counts = kernel.explain(*args, **kwargs).counts()
    assert counts[Fate.FAILED] == 4
    assert counts[Fate.TIMED] >= 1


def test_where_time_runs_out_before_any_was_timed_the_model_decides(
    gemm_stub, gemm_configs, gemm_call, bench
):
    kernel = tuner.autotune(
        gemm_configs, key=["M", "N", "K"], family="gemm", gpu="h100-sxm5", budget_s=1e-9,
        do_bench=bench(gemm_stub),
    )(gemm_stub)  # fmt: skip
    args, kwargs = gemm_call(4096)
    with pytest.warns(TuningWarning, match="time ran out"):
        kernel.run(*args, **kwargs)
    assert Fate.OUT_OF_TIME in kernel.explain(*args, **kwargs).counts()


def test_all_quarantined_says_so(interpreted, config):
    configs = [config({"HOW": "abort", "BLOCK": size}) for size in (16, 32)]
    function = interpreted(add_one)
    for policy in ("full", "full", "model"):
        kernel = tuner.autotune(configs, key=["n"], isolate=WORKER, policy=policy)(function)
        with pytest.raises(NoUsableConfigError, match="signal 6") as raised:
            kernel[GRID](torch.zeros(4), 4)
    assert "perfmodel cache release" in str(raised.value)


def test_what_hung_is_not_launched_by_a_policy_that_times_nothing(interpreted, config):
    kernel_of(interpreted, config, "abort", "good")[GRID](torch.zeros(4), 4)
    kernel = kernel_of(interpreted, config, "abort", "good", policy="model")
    x = torch.zeros(4)
    kernel[GRID](x, 4)
    assert x.tolist() == [1.0] * 4
    assert fates(kernel, x, 4)[0] is Fate.QUARANTINED


def test_without_a_timer_here_what_crashed_there_is_not_launched(interpreted, config):
    # The worker raises what is no configuration's fault, and this process has no device.
    kernel = kernel_of(interpreted, config, "abort", "good", "refuse")
    x = torch.zeros(4)
    with pytest.warns(TuningWarning, match="no room"):
        kernel[GRID](x, 4)
    assert kernel.best_config.kwargs["HOW"] == "good"
    assert x.tolist() == [1.0] * 4
