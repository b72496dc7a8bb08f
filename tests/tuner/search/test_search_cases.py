"""Reported troubles of autotuners, theme by theme, with what stock Triton 3.6.0 does beside."""

from __future__ import annotations

import gc
import math
import tracemalloc
import weakref
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import NoUsableConfigError
from tuner.measure.device import Timing, Trial
from tuner.measure.do_bench import DoBenchDevice
from tuner.measure.fake import FAKE, FakeDevice, Fault
from tuner.search.result import Status
from tuner.search.search import search
from tuner.search.tunables import ONE_CALL, Tunables

INVALID = [0.0, -1.0, math.nan, math.inf, None, [], [math.nan] * 3, [0.0, 0.0, 0.0], "fast"]


def trials(count: int) -> list[Trial]:
    return [Trial(f"c{i}") for i in range(count)]


def bench(answers: dict[str, Any]) -> DoBenchDevice:
    """A device whose do_bench answers by configuration; exceptions are raised."""

    def do_bench(launch: Any, quantiles: Any) -> Any:
        answer = answers[launch()]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return DoBenchDevice(do_bench, FAKE)


def called(count: int) -> list[Trial]:
    return [Trial(f"c{i}", launch=lambda i=i: f"c{i}") for i in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("tunables", [Tunables(), ONE_CALL], ids=["samples", "one call"])
def test_no2_noise_never_decides_between_near_ties(tunables: Tunables) -> None:
    # Stock 3.6.0 takes the least time: with these, a different winner in most runs.
    near = {f"c{i}": 100.0 * (1.0 + 0.001 * ((7 * i) % 5)) for i in range(8)}
    slow = {f"c{i}": 125.0 + i for i in range(8, 18)}
    for seed in range(100):
        device = FakeDevice(near | slow, seed=seed, noise=0.03)
        result = search(device, trials(18), baseline=17, tunables=tunables)
        assert result.best == "c0"


@pytest.mark.parametrize("invalid", INVALID, ids=repr)
def test_no4_an_invalid_time_never_wins(invalid: Any) -> None:
    # Stock 3.6.0 picks config 0 for 0.0 and for NaN.
    result = search(bench({"c0": invalid, "c1": 1.0}), called(2), tunables=ONE_CALL)
    assert result.best == "c1"
    entry = result.entry("c0")
    assert entry.status is Status.IMPLAUSIBLE
    assert entry.outcome is Outcome.IMPLAUSIBLE
    assert entry.median_us is None
    assert entry.reason


def test_no4_an_invalid_time_is_retried_once_with_more_launches() -> None:
    device = FakeDevice({"c0": 5.0, "c1": 9.0}, faults={"c0": Fault(raw_us=(0.0,), times=1)})
    result = search(device, trials(2))
    assert result.best == "c0"
    (_, first), (_, second) = [call for call in device.calls if call[0] == "c0"][:2]
    assert second > first


def test_no6_a_time_faster_than_physics_never_wins() -> None:
    device = FakeDevice({"c0": 50.0, "c1": 0.01})
    result = search(device, trials(2), floor_us=12.0)
    assert result.best == "c0"
    assert "faster than the device can be" in (result.entry("c1").reason or "")


def test_no9_a_drifting_clock_does_not_decide() -> None:
    # Sequential timing, as stock 3.6.0 does it, prefers what is timed first by 1 % a sample.
    true = {f"c{i}": 100.0 - 1.5 * i for i in range(6)}
    sequential = FakeDevice(true, drift=0.01)
    in_turn = [sorted(sequential.time(t, samples=6, limit_s=9.0).samples_us)[3] for t in trials(6)]
    assert in_turn.index(min(in_turn)) != 5
    result = search(FakeDevice(true, drift=0.01), trials(6))
    assert result.best == "c5"


def test_no9_an_idle_clock_does_not_make_the_first_candidates_lose() -> None:
    result = search(FakeDevice({"c0": 10.0, "c1": 10.6, "c2": 11.2}, warmup=0.4), trials(3))
    assert result.best == "c0"


def test_no14_what_is_not_better_than_the_baseline_beyond_noise_does_not_replace_it() -> None:
    # Stock 3.6.0 knows no baseline.
    for seed in range(30):
        device = FakeDevice({"c0": 99.8, "c1": 100.0, "c2": 130.0}, seed=seed, noise=0.02)
        result = search(device, trials(3), baseline=1)
        assert result.best == "c1"


def test_no14_a_baseline_that_the_model_ranks_last_is_timed_all_the_same() -> None:
    ranked = [Trial("c0", expected_us=1.0), Trial("c1", expected_us=99.0)]
    result = search(FakeDevice({"c0": 20.0, "c1": 10.0}), ranked, baseline=1)
    assert result.best == "c1"


def test_tt10_a_hopeless_configuration_is_dropped_after_its_first_sample() -> None:
    # Stock 3.6.0 runs do_bench in full: 5 estimates and 100 ms of repeats, 60 s each at least.
    device = FakeDevice({"c0": 1e3, "c1": 60e6, "c2": 0.9e3})
    result = search(device, trials(3), tunables=Tunables(limit_s=100.0), clock=device.clock)
    assert device.calls.count(("c1", 1)) == 1
    assert device.count("c1") == 1
    assert result.entry("c1").status is Status.DROPPED
    assert result.best == "c2"


def test_tt10_the_model_knows_a_hopeless_baseline_before_anything_else_is_timed() -> None:
    ranked = [Trial("c0", expected_us=1e3), Trial("c1", expected_us=1e3)]
    device = FakeDevice({"c0": 60e6, "c1": 1e3})
    search(device, ranked, tunables=Tunables(limit_s=100.0), clock=device.clock)
    assert device.count("c0") == 1


def raised_by(name: str, message: str = "no reason") -> BaseException:
    """An error of a class that Triton has under this name in some version or other."""
    return type(name, (Exception,), {"__module__": "triton.somewhere"})(message)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (raised_by("OutOfResources"), Outcome.OUT_OF_RESOURCES),
        (raised_by("PTXASError"), Outcome.COMPILE_FAILED),
        (raised_by("CompileTimeAssertionFailure"), Outcome.COMPILE_FAILED),
        (RuntimeError("PassManager::run failed"), Outcome.COMPILE_FAILED),
        (RuntimeError("Triton Error [CUDA]: out of resources"), Outcome.OUT_OF_RESOURCES),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_bc3_bc4_a_compiler_error_costs_its_configuration(
    error: BaseException, outcome: Outcome
) -> None:
    # Stock 3.6.0 lets "PassManager::run failed" end the run.
    result = search(bench({"c0": error, "c1": 1.0}), called(2), tunables=ONE_CALL)
    assert result.best == "c1"
    assert result.entry("c0").outcome is outcome
    assert result.entry("c0").reason


@pytest.mark.parametrize(
    "error", [TypeError("missing 1 required argument"), ValueError("bad shape"), KeyError("x")]
)
def test_bc4_the_users_own_error_propagates(error: Exception) -> None:
    with pytest.raises(type(error)):
        search(bench({"c0": error, "c1": 1.0}), called(2), tunables=ONE_CALL)


def test_bc4_the_same_error_everywhere_is_raised_with_the_first_traceback() -> None:
    failed = RuntimeError("PassManager::run failed")
    result = search(bench({"c0": failed, "c1": failed}), called(2), tunables=ONE_CALL)
    with pytest.raises(NoUsableConfigError, match="PassManager::run failed") as raised:
        result.require_best()
    assert any("Traceback" in note and "do_bench" in note for note in raised.value.__notes__)


def test_bc5_failures_mix_with_quantiles_and_with_single_numbers() -> None:
    answers = {
        "c0": [3.0, 2.9, 3.1], "c1": raised_by("OutOfResources"), "c2": 2.0,
        "c3": (1.0, 0.9, 1.2), "c4": None,
    }  # fmt: skip
    result = search(bench(answers), called(5), tunables=ONE_CALL)
    assert result.best == "c3"
    assert result.best_us == pytest.approx(1000.0)


def test_bc8_five_hundred_configurations_need_no_memory_that_grows() -> None:
    values = {f"c{i}": 100.0 + i for i in range(500)}

    def peak(count: int) -> int:
        device = FakeDevice(values)
        tracemalloc.start()
        result = search(device, trials(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.best == "c0"
        return found

    peak(10)
    assert peak(500) < 1_500_000


def test_bc8_no_exception_and_no_argument_outlives_the_search() -> None:
    class Argument:
        pass

    argument = Argument()
    gone = weakref.ref(argument)

    def failing(launch: Any, quantiles: Any) -> Any:
        return launch()

    def make(held: Argument) -> list[Trial]:
        def launch() -> float:
            assert held is not None
            raise RuntimeError("PassManager::run failed")

        return [Trial("c0", launch=launch), Trial("c1", launch=lambda: 1.0)]

    result = search(DoBenchDevice(failing, FAKE), make(argument), tunables=ONE_CALL)
    del argument
    gc.collect()
    assert gone() is None
    assert result.best == "c1"


def test_bc9_every_configuration_is_in_the_account() -> None:
    faults = {
        "c1": Fault(outcome=Outcome.OUT_OF_RESOURCES), "c2": Fault(hang_s=99.0),
        "c3": Fault(raw_us=(0.0,)), "c4": Fault(outcome=Outcome.CRASHED),
        "c5": Fault(outcome=Outcome.WRONG_RESULT),
    }  # fmt: skip
    values = {f"c{i}": 100.0 for i in range(9)} | {"c6": 900.0}
    device = FakeDevice(values, faults=faults)
    result = search(
        device, trials(9), order=range(8), quarantine={"c7": "hung"}, clock=device.clock
    )
    assert [e.status for e in result.entries] == [
        Status.TIMED, Status.FAILED, Status.TIMED_OUT, Status.IMPLAUSIBLE, Status.FAILED,
        Status.FAILED, Status.DROPPED, Status.QUARANTINED, Status.RANKED_OUT,
    ]  # fmt: skip
    assert sum(result.counts().values()) == 9


def test_one_outlier_among_the_samples_does_not_decide() -> None:
    class Stalls(FakeDevice):
        def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
            found = super().time(trial, samples=samples, limit_s=limit_s)
            if trial.config == "c1" and len(self.calls) % 7 == 0:
                slow = (found.samples_us[0] * 30.0, *found.samples_us[1:])
                return Timing(found.outcome, found.protocol, slow)
            return found

    wins = sum(
        search(Stalls({"c0": 110.0, "c1": 100.0}, seed=s, noise=0.005), trials(2)).best == "c1"
        for s in range(20)
    )
    assert wins == 20
