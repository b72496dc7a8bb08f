"""The plain timer, a user's do_bench, checks, and whose fault an exception is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems.gemm import Gemm
from tuner.measure.check import CheckedDevice, floor_us, mismatch
from tuner.measure.device import Trial
from tuner.measure.do_bench import QUANTILES, DoBenchDevice, samples_of
from tuner.measure.failures import classify, failure_of, reason_of
from tuner.measure.fake import FAKE, FakeDevice, Fault
from tuner.measure.timer import TimerDevice, WallClock
from tuner.search.search import search


class Scripted:
    """A stopwatch whose launches take what they return, in seconds on a clock of its own."""

    protocol = "scripted-1"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.launched = 0
        monkeypatch.setattr("tuner.measure.timer.time.monotonic", lambda: self.now)

    def warm(self, launch: Callable[[], Any]) -> None:
        self._run(launch)

    def samples_us(self, launch: Callable[[], Any], count: int) -> list[float]:
        return [1e6 * self._run(launch) for _ in range(count)]

    def close(self) -> None:
        pass

    def _run(self, launch: Callable[[], Any]) -> float:
        self.launched += 1
        seconds = float(launch())
        self.now += seconds
        return seconds


def test_a_trial_is_warmed_up_once_and_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Scripted(monkeypatch)
    device = TimerDevice(clock, FAKE)
    trial = Trial("c", launch=lambda: 0.001)
    assert device.time(trial, samples=4, limit_s=9.0).samples_us == (1000.0,) * 4
    device.time(trial, samples=1, limit_s=9.0)
    assert clock.launched == 6


def test_a_slow_trial_is_not_launched_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Scripted(monkeypatch)
    found = TimerDevice(clock, FAKE).time(Trial("c", launch=lambda: 1.0), samples=50, limit_s=5.0)
    assert found.outcome is Outcome.OK
    assert len(found.samples_us) == 4
    slow = TimerDevice(clock, FAKE).time(Trial("d", launch=lambda: 9.0), samples=5, limit_s=5.0)
    assert slow.outcome is Outcome.TIMEOUT


def test_the_hosts_clock_times_calls() -> None:
    found = TimerDevice(WallClock(), FAKE).time(Trial("c", launch=lambda: 0), samples=3, limit_s=9)
    assert len(found.samples_us) == 3
    assert all(0 < us < 1e6 for us in found.samples_us)


def test_after_a_poisoned_context_nothing_more_is_timed_and_nobody_else_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def poison() -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device = TimerDevice(Scripted(monkeypatch), FAKE)
    trials = [Trial(f"c{i}", launch=lambda: 1e-3) for i in range(3)]
    trials[1] = Trial("c1", launch=poison)
    result = search(device, trials)
    assert result.best == "c0"
    assert set(result.quarantine) == {"c1"}
    assert "context was lost" in (result.stopped or "")
    with pytest.raises(DeviceLostError):
        device.time(trials[0], samples=1, limit_s=1.0)


def test_do_bench_is_called_as_triton_calls_it() -> None:
    seen: list[Any] = []

    def do_bench(call: Any, quantiles: Any) -> list[float]:
        seen.append((call, quantiles))
        return [2.0, 1.0, 3.0]

    trial = Trial("c", launch=lambda: None)
    found = DoBenchDevice(do_bench, FAKE).time(trial, samples=9, limit_s=9.0)
    assert seen == [(trial.launch, QUANTILES)]
    assert found.median_us == 2000.0


@pytest.mark.parametrize(
    ("returned", "samples"),
    [
        (2.0, (2000.0,)),
        ([2.0, 1.0, 3.0], (2000.0, 1000.0, 3000.0)),
        ((2.0, 2.0, 2.0), (2000.0,)),
        ([], ()),
        (None, ()),
        ([None, None], ()),
        ("soon", ()),
        ([0.0], (0.0,)),
        (object(), ()),
    ],
    ids=lambda value: "object" if type(value) is object else repr(value),
)
def test_whatever_do_bench_returns_becomes_samples(
    returned: Any, samples: tuple[float, ...]
) -> None:
    assert samples_of(returned) == samples


def test_what_do_bench_returns_may_be_an_array_or_no_number() -> None:
    numpy = pytest.importorskip("numpy")
    assert samples_of(numpy.array([2.0, 1.0, 3.0])) == (2000.0, 1000.0, 3000.0)
    assert samples_of(numpy.float64(2.0)) == (2000.0,)
    assert math.isnan(samples_of(math.nan)[0])


def error_from(module: str, error: BaseException) -> BaseException:
    """An error as raised by code of the named module."""
    scope: dict[str, Any] = {"__name__": module, "error": error}
    exec("def f():\n    raise error", scope)
    try:
        scope["f"]()
    except BaseException as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("PassManager::run failed"), Outcome.COMPILE_FAILED),
        (RuntimeError("`ptxas` failed with error code 255"), Outcome.COMPILE_FAILED),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access"), Outcome.CRASHED),
        (RuntimeError("CUDA error: device-side assert triggered"), Outcome.CRASHED),
        (RuntimeError("CUDA out of memory. Tried to allocate"), Outcome.OUT_OF_RESOURCES),
        (MemoryError(), Outcome.OUT_OF_RESOURCES),
        (error_from("triton.compiler.code_generator", IndexError("x")), Outcome.COMPILE_FAILED),
        (error_from("triton.backends.nvidia.compiler", ValueError("x")), Outcome.COMPILE_FAILED),
        (error_from("triton.runtime.jit", TypeError("missing argument")), None),
        (error_from("users.module", RuntimeError("shapes do not match")), None),
        (TypeError("unsupported operand"), None),
        (KeyboardInterrupt(), None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_whose_fault_an_exception_is(error: BaseException, outcome: Outcome | None) -> None:
    found = classify(error)
    assert (found.outcome if found else None) is outcome


def test_a_name_that_a_kernel_does_not_know_is_the_users_error() -> None:
    compiling = type("CompilationError", (Exception,), {})("at 3:4: x = undefined")
    compiling.__cause__ = NameError("undefined is not defined")
    assert classify(compiling) is None


def test_a_failure_keeps_text_and_no_exception() -> None:
    found = failure_of(error_from("triton.compiler.x", ValueError("bad tile")), "p-1")
    assert found is not None
    assert found.reason == "ValueError: bad tile"
    assert "Traceback" in (found.traceback or "")


def test_dc5_a_wrong_result_is_rejected_and_not_run_again() -> None:
    asked: list[str] = []

    def verify(trial: Trial) -> str | None:
        asked.append(trial.config)
        return "all zeros" if trial.config == "c1" else None

    device = CheckedDevice(FakeDevice({"c0": 2.0, "c1": 1.0}), verify)
    result = search(device, [Trial("c0"), Trial("c1")])
    assert result.best == "c0"
    assert result.entry("c1").outcome is Outcome.WRONG_RESULT
    assert result.entry("c1").reason == "all zeros"
    assert asked == ["c0", "c1"]


def test_what_does_not_run_is_not_compared() -> None:
    fake = FakeDevice({}, faults={"c0": Fault(outcome=Outcome.CRASHED)})
    device = CheckedDevice(fake, lambda _trial: pytest.fail("it crashed"))
    assert device.time(Trial("c0"), samples=1, limit_s=1.0).outcome is Outcome.CRASHED


def test_no6_the_floor_is_the_devices_own() -> None:
    problem = Gemm(2048, 4096, 4096, a_dtype="fp16")  # type: ignore[arg-type]
    a100 = floor_us(problem, load_gpu("a100-sxm4-80gb"))
    assert a100 > 1.0  # 1 us would be 220 times the peak
    assert a100 == pytest.approx(2 * 2048 * 4096 * 4096 / 312e6, rel=0.1)
    assert floor_us(problem, load_gpu("h100-sxm5")) < a100
    assert floor_us(Gemm(0, 4, 4), load_gpu("a100-sxm4-80gb")) == 0.0


def test_results_are_compared_by_their_typical_size() -> None:
    torch = pytest.importorskip("torch")
    right = torch.tensor([100.0, -100.0, 0.0, math.inf, math.nan])
    close = torch.tensor([100.5, -100.5, 0.4, math.inf, math.nan])
    assert mismatch(close, right) is None
    assert mismatch(right[:2], right) is not None
    for wrong in (
        [0.0] * 5,
        [100.0, -100.0, 9.0, math.inf, math.nan],
        [100.0, -100.0, 0.0, 1.0, 1.0],
    ):
        found = mismatch(torch.tensor(wrong), right)
        assert found is not None
        assert "differ from the reference" in found
    assert mismatch(torch.empty(0), torch.empty(0)) is None


def test_the_reason_of_a_compiler_error_is_its_last_cause() -> None:
    outer, inner = (
        type("CompilationError", (Exception,), {})(f"at {i}:4:\n  x\n  ^") for i in "12"
    )
    inner.__cause__ = AssertionError("K >= 16 is required")
    outer.__cause__ = inner
    assert reason_of(outer) == "CompilationError: K >= 16 is required"
    assert reason_of(ValueError("")) == "ValueError: no message"
    assert reason_of(RuntimeError("ptxas fatal : bad\nRepro command: x")).endswith("fatal : bad")
