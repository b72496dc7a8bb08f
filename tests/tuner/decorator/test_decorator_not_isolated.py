"""What cannot be timed in a worker is timed here, and says why; what is asked for is checked."""

# ruff: noqa: N803 - compile-time arguments of kernels are in capitals, as in Triton's own
from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
import triton.language as tl

import tuner
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import TuningWarning, UnknownOptionError, UsageError
from tuner.autotuner.decorator import Autotuner
from tuner.deciding.accounting import Fate
from tuner.measure import isolation
from tuner.measure.device import Timing
from tuner.measure.isolation import Isolation

WORKER = Isolation(environment={"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"})
GRID = (1,)


@pytest.fixture(autouse=True, scope="module")
def _workers_end() -> Any:
    yield
    isolation.end_workers()


def add_one(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    if HOW == "slow":
        time.sleep(0.05)
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def kernel_of(interpreted, config, *ways, **options):
    configs = [config({"HOW": how, "BLOCK": 16}) for how in ways]
    options = {"isolate": WORKER} | options
    return tuner.autotune(configs, key=["n"], **options)(interpreted(add_one))


OUTSIDE = object()


def reads_an_object(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    if OUTSIDE is None:
        return
    tl.store(x, 1.0)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("hook", "its hooks are functions of this process"),
        ("check", "its check is a function of this process"),
        ("object", "OUTSIDE"),
        ("overlap", "share memory"),
        ("memory", "for inputs of its own"),
        ("grid", "its grid raised KeyError"),
        ("start", "no worker can be had"),
    ],
)
def test_what_cannot_be_isolated_is_timed_here_and_says_why(
    interpreted, config, monkeypatch, what, reason
):
    options: dict[str, Any] = {"isolate": WORKER}
    function, n, grid = add_one, 10, GRID
    x = torch.zeros(10)
    if what == "hook":
        options["pre_hook"] = lambda _arguments, reset_only=False: None
    if what == "check":
        options["check"] = lambda _arguments: None
    if what == "object":
        function = reads_an_object
    if what == "overlap":
        n = x[:5]
        function = two_tensors
    if what == "memory":
        monkeypatch.setattr("tuner.deciding.isolated.free_bytes", lambda _device: 100)
    if what == "grid":
        grid = _grid_that_fails_once()
    if what == "start":
        options["isolate"] = Isolation(command=(sys.executable, "-c", "raise SystemExit(9)"))
    configs = [config({"HOW": how, "BLOCK": 16}) for how in ("good", "slow")]
    monkeypatch.setattr(
        "tuner.deciding.trials.device_here", lambda kernel, identity: _Here(identity)
    )
    kernel = tuner.autotune(configs, key=[], **options)(interpreted(function))
    with pytest.warns(TuningWarning, match=reason):
        kernel[grid](x, n)
    account = kernel.explain(x, n, grid=grid)
    assert any(reason in note for note in account.notes)
    assert account.rows[0].fate is Fate.TIMED


def two_tensors(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x, 1.0)


def _grid_that_fails_once():
    asked = []

    def grid(meta):
        asked.append(meta)
        if len(asked) == 1:
            raise KeyError("BLOCKS")
        return (1,)

    return grid


class _Here:
    """A timer of this process."""

    protocol = "here-1"

    def __init__(self, identity):
        self.identity = identity

    def time(self, trial, *, samples, limit_s):
        trial.launch()
        return Timing(Outcome.OK, self.protocol, (1.0,) * samples)


def test_a_worker_that_cannot_be_had_is_asked_for_once_a_process(interpreted, config, monkeypatch):
    isolate = Isolation(command=(sys.executable, "-c", "raise SystemExit(7)"))
    monkeypatch.setattr(
        "tuner.deciding.trials.device_here", lambda kernel, identity: _Here(identity)
    )
    kernel = kernel_of(interpreted, config, "good", "slow", isolate=isolate)
    with pytest.warns(TuningWarning, match="exited with code 7"):
        kernel[GRID](torch.zeros(10), 10)
    monkeypatch.setattr("tuner.deciding.isolated.borrowed", None)
    kernel[GRID](torch.zeros(10), 9)
    assert any("exited with code 7" in note for note in kernel.explain(torch.zeros(10), 9).notes)


@pytest.mark.parametrize("refused", ["folder", "process", "frozen"])
def test_a_system_that_starts_no_process_costs_no_call(interpreted, config, monkeypatch, refused):
    def refuse(*_args, **_options):
        raise OSError(24, "Too many open files")

    isolation.end_workers()
    if refused == "frozen":  # an application with Python built in would run itself again
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    where = "tempfile.TemporaryFile" if refused == "folder" else "subprocess.Popen"
    monkeypatch.setattr(f"tuner.compiling.worker_process.{where}", refuse)
    monkeypatch.setattr(
        "tuner.deciding.trials.device_here", lambda kernel, identity: _Here(identity)
    )
    kernel = kernel_of(interpreted, config, "good", "slow")
    x = torch.zeros(10)
    with pytest.warns(TuningWarning, match="Too many open files|no Python interpreter"):
        kernel[GRID](x, 10)
    assert x.tolist() == [1.0] * 10


def test_the_users_own_error_is_raised_here_with_its_traceback(interpreted, config, monkeypatch):
    def wrong(x, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
        tl.store(x, undefined_name)  # noqa: F821 - the user's mistake

    monkeypatch.setattr(
        "tuner.deciding.trials.device_here", lambda kernel, identity: _Here(identity)
    )
    configs = [config({"HOW": how, "BLOCK": 16}) for how in ("good", "slow")]
    kernel = tuner.autotune(configs, key=["n"], isolate=WORKER)(interpreted(wrong))
    with pytest.raises(Exception, match="undefined_name") as raised, pytest.warns(TuningWarning):
        kernel[GRID](torch.zeros(4), 4)
    assert type(raised.value).__name__ == "InterpreterError" or isinstance(raised.value, NameError)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"isolate": "yes"}, "isolate is 'yes'"),
        ({"isolate": True, "do_bench": lambda *_a, **_k: 1.0}, "do_bench"),
        ({"limit_s": 0}, "limit_s is 0"),
        ({"limit_s": None}, "limit_s is None"),
    ],
)
def test_what_cannot_be_meant_is_an_error_at_decoration_of_isolation(
    interpreted, config, options, match
):
    with pytest.raises(UsageError, match=match):
        tuner.autotune([config({"BLOCK": 16})], key=[], **options)(interpreted(add_one))


@pytest.mark.parametrize(
    ("isolate", "forced", "isolated"),
    [
        (None, None, True), (None, "0", False), (None, "1", True), (False, None, False),
        (False, "1", True), (True, "off", False),
    ],
)  # fmt: skip
def test_where_our_own_timer_would_be_used_isolation_is_the_default(
    interpreted, config, monkeypatch, isolate, forced, isolated
):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if forced is not None:
        monkeypatch.setenv("PERFMODEL_ISOLATE", forced)
    monkeypatch.setattr("tuner.deciding.trials._has_timer", lambda *_: True)
    monkeypatch.setattr(Autotuner, "can_time", lambda *_args, **_options: True)
    monkeypatch.setattr(
        "tuner.deciding.trials.device_here", lambda kernel, identity: _Here(identity)
    )
    kernel = kernel_of(interpreted, config, "good", "slow", isolate=isolate)
    kernel[GRID](torch.zeros(10), 10)
    account = kernel.explain(torch.zeros(10), 10)
    assert ("in a worker" in account.decided_by) == isolated
    assert account.notes == ()


def test_a_variable_that_is_neither_on_nor_off_is_an_error(interpreted, config, monkeypatch):
    monkeypatch.setenv("PERFMODEL_ISOLATE", "maybe")
    monkeypatch.setattr(Autotuner, "can_time", lambda *_args, **_options: True)
    kernel = kernel_of(interpreted, config, "good", "slow", isolate=None)
    with pytest.raises(UnknownOptionError, match="PERFMODEL_ISOLATE is 'maybe'; use 1 or 0"):
        kernel[GRID](torch.zeros(10), 10)
