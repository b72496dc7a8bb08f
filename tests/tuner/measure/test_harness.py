"""The harness on a device that misbehaves: truth comes out, and each fault by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, RunFailedError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems.grouped_gemm import GroupedGemm
from tuner.collect.table_columns import of_grouped_gemm
from tuner.measure import measurement as flags
from tuner.measure import trust
from tuner.measure.check import CheckedDevice, row_floor_us
from tuner.measure.device import Timing, Trial
from tuner.measure.fake import FAKE, FakeDevice, Fault, Throttle
from tuner.measure.harness import Harness
from tuner.measure.interleave import race
from tuner.measure.measurement import Measurement
from tuner.measure.protocol import TimingProtocol
from tuner.measure.timer import TimerDevice, WallClock

C = Trial("c")
REFERENCE = Trial("reference")


def harness(fake: FakeDevice, protocol: TimingProtocol | None = None, **more: Any) -> Harness:
    return Harness(
        fake, protocol or TimingProtocol(), fake, REFERENCE, clock=fake.clock, wait=fake.wait,
        **more,
    )  # fmt: skip


def measure(fake: FakeDevice, protocol: TimingProtocol | None = None) -> Measurement:
    return harness(fake, protocol).measure(C, limit_s=30.0)


def test_known_times_come_out_within_one_per_cent_and_the_best_is_found() -> None:
    """`scripts/harness_accuracy.py` is the same with hundreds of seeds."""
    found = trust.trust(range(40), range(3))
    assert found.within(0.01) >= 0.95
    assert found.errors[-1] < 0.015
    assert found.found == 3


def test_a_comparison_withstands_a_ramp_of_one_per_cent_a_sample() -> None:
    assert all(trust.best_is_found(seed, drift=trust.RAMP, configs=40) for seed in range(5))


def test_no9_timed_one_after_the_other_a_ramp_decides_and_by_turns_it_does_not() -> None:
    true = {f"c{i}": 102.0 - 0.2 * i for i in range(10)}
    trials = [Trial(name) for name in true]
    one_after_the_other = FakeDevice(true, drift=0.01)
    medians = {
        t.config: one_after_the_other.time(t, samples=9, limit_s=9).median_us for t in trials
    }
    assert min(medians, key=lambda name: medians[name] or math.inf) == "c0"  # the slowest
    found = race(FakeDevice(true, drift=0.01), trials, limit_s=1e9)
    assert found.best == "c9"


def test_no9_an_idle_clock_is_warmed_up_before_anything_counts() -> None:
    fake = FakeDevice({"c": 50.0}, warmup=1.0)
    found = measure(fake)
    assert found.latency_us == pytest.approx(50.0, rel=1e-3)
    assert found.flags == ()


FAULTS: Mapping[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "noise": ({"noise": 0.01}, set()),
    "too much noise": ({"noise": 0.3}, {flags.WIDE_INTERVAL}),
    "stalls": ({"stalls": 0.06}, {flags.STALLS}),
    "others' work": ({"stalls": 0.3}, {flags.CONTENDED}),
    "another process": ({"sharing": 2}, {flags.SHARED}),
    "alone": ({"sharing": 1}, set()),
    "drift": ({"drift": 1e-4}, {flags.DRIFTED}),
    "heat": ({"throttles": [Throttle(0.0, 1e9)]}, {flags.THROTTLED}),
    "power": ({"throttles": [Throttle(0.0, 1e9, 1.1, "power_cap")]}, {flags.POWER_CAPPED}),
    "a new reason": ({"throttles": [Throttle(0, 1e9, 1.1, "unknown_0x800")]}, {flags.THROTTLED}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_flagged_as_what_it_is(name: str) -> None:
    faults, expected = FAULTS[name]
    fake = FakeDevice({"c": 100.0, "reference": 80.0}, seed=7, **faults)
    found = measure(fake, TimingProtocol(samples_max=300))
    assert expected <= set(found.flags)
    extra = set(found.flags) - expected - ({flags.WIDE_INTERVAL} if expected else set())
    assert not extra
    assert found.outcome is Outcome.OK
    assert found.latency_us is not None
    assert all(flag in flags.FLAGS for flag in found.flags)


def test_a_warm_up_that_does_not_end_is_cut_off_and_told() -> None:
    fake = FakeDevice({"c": 100.0}, drift=0.05)
    short = TimingProtocol(warm_up_s=0.02, samples_max=50)
    found = Harness(fake, short, clock=fake.clock, wait=fake.wait).measure(C)
    assert flags.NOT_STEADY in found.flags
    assert 0.02 <= found.warm_up_s < 0.1


def test_a_throttled_measurement_is_taken_again_when_the_device_has_cooled_down() -> None:
    fake = FakeDevice({"c": 100.0}, noise=0.005, throttles=[Throttle(0.0, 0.4)])
    found = measure(fake)
    assert found.attempts == 2
    assert found.flags == ()
    assert found.latency_us == pytest.approx(100.0, rel=0.01)


def test_one_that_stays_throttled_is_kept_with_its_flag_after_so_many_times() -> None:
    fake = FakeDevice({"c": 100.0}, throttles=[Throttle(0.0, 1e9, 1.3)])
    found = measure(fake)
    assert found.attempts == 3
    assert found.flags == (flags.THROTTLED,)
    assert found.latency_us == pytest.approx(130.0)
    assert found.clocks["throttle_after"] == "hw_thermal"
    assert found.clocks["sm_clock_before_mhz"] == pytest.approx(1980 / 1.3)


def test_a_device_that_stays_hot_costs_no_more_retries_until_it_has_cooled_down() -> None:
    fake = FakeDevice({"c": 100.0}, throttles=[Throttle(0.0, 8.0)])
    rig = harness(fake)
    attempts = [rig.measure(C).attempts for _ in range(4)]
    assert attempts == [3, 3, 1, 1]
    fake.wait(8.0)
    assert rig.measure(C).flags == ()


def test_no13_whatever_can_be_called_may_be_measured() -> None:
    calls: list[int] = []
    device = TimerDevice(WallClock(), FAKE)
    found = Harness(device, TimingProtocol(samples_max=20, warm_up_s=0.01)).measure(
        Trial("mine", launch=lambda: calls.append(sum(range(1000))))
    )
    assert found.outcome is Outcome.OK
    assert found.latency_us
    assert len(calls) > 20


def test_a_power_limit_is_how_the_device_runs_and_no_reason_to_wait() -> None:
    fake = FakeDevice({"c": 100.0}, throttles=[Throttle(0.0, 1e9, 1.3, "power_cap")])
    assert measure(fake).attempts == 1


def test_a_drift_is_taken_out_and_told() -> None:
    fake = FakeDevice({"c": 100.0, "reference": 80.0}, noise=0.01, drift=1e-4)
    rig = harness(fake)
    found = rig.measure(C)
    slower = rig.drift.checks[0].median_us / 80.0
    assert found.latency_us == pytest.approx(100.0 * slower, rel=0.005)
    assert found.drift is not None
    assert found.drift > 0.05
    assert min(found.timing.samples_us) > min(found.corrected_us)


def test_without_a_reference_there_is_no_word_of_drift() -> None:
    fake = FakeDevice({"c": 100.0}, drift=1e-5)
    found = Harness(fake, clock=fake.clock, wait=fake.wait).measure(C)
    assert found.drift is None
    assert found.corrected_us == ()


def test_a_reference_that_does_not_run_stops_the_session() -> None:
    fake = FakeDevice({}, faults={"reference": Fault(outcome=Outcome.CRASHED)})
    with pytest.raises(RunFailedError, match="reference kernel cannot be timed: fake crashed"):
        measure(fake)


@pytest.mark.parametrize("raw", [0.0, -1.0, math.nan, math.inf], ids=str)
def test_no4_what_is_no_time_is_tried_again_and_then_implausible(raw: float) -> None:
    fake = FakeDevice({"c": 100.0}, faults={"c": Fault(raw_us=(raw,) * 10)})
    found = measure(fake)
    assert found.outcome is Outcome.IMPLAUSIBLE
    assert found.latency_us is None
    assert f"{raw:g} us, which is no time" in (found.timing.reason or "")
    assert found.attempts == 3
    once = FakeDevice({"c": 100.0}, faults={"c": Fault(raw_us=(raw,) * 10, times=2)})
    assert measure(once).latency_us == pytest.approx(100.0)


def test_no12_a_kernel_that_skips_its_work_is_below_the_floor_and_no_time() -> None:
    """Random offsets made a grouped product skip nearly all of it."""
    layer = GroupedGemm(4096, 8, 2, 4096, 14336)
    gpu = load_gpu("h100-sxm5")
    least = row_floor_us("grouped_gemm", of_grouped_gemm(layer), gpu)
    assert least > 1000.0  # 2.9e12 operations at 989e12 a second
    fake = FakeDevice({"c": 6.0}, noise=0.01)
    found = harness(fake).measure(C, floor_us=least)
    assert found.outcome is Outcome.IMPLAUSIBLE
    assert "the device allows" in (found.timing.reason or "")
    assert found.interval_us is None


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(outcome=Outcome.COMPILE_FAILED), Outcome.COMPILE_FAILED),
        (Fault(outcome=Outcome.OUT_OF_RESOURCES), Outcome.OUT_OF_RESOURCES),
        (Fault(outcome=Outcome.CRASHED), Outcome.CRASHED),
        (Fault(hang_s=1e6), Outcome.TIMEOUT),
    ],
)
def test_a_failure_is_its_outcome_and_is_not_taken_again(fault: Fault, outcome: Outcome) -> None:
    fake = FakeDevice({}, faults={"c": fault})
    found = measure(fake)
    assert found.outcome is outcome
    assert found.timing.reason
    assert found.attempts == 1
    assert fake.count("c") == 1


def test_a_sticky_error_is_the_configurations_and_then_the_devices() -> None:
    fake = FakeDevice({}, faults={"c": Fault(sticky=True, times=1)})
    rig = Harness(fake, clock=fake.clock, wait=fake.wait)
    assert rig.measure(C).outcome is Outcome.CRASHED
    with pytest.raises(DeviceLostError, match="sticky error of c"):
        rig.measure(Trial("d"))
    fake.restart()
    assert rig.measure(Trial("d")).outcome is Outcome.OK


def test_a_wrong_result_is_no_time_however_fast() -> None:
    fake = FakeDevice({"c": 1.0}, faults={"c": Fault(wrong="all zeros")})
    rig = Harness(CheckedDevice(fake, fake.verify), clock=fake.clock, wait=fake.wait)
    found = rig.measure(C)
    assert found.outcome is Outcome.WRONG_RESULT
    assert found.timing.reason == "all zeros"
    assert found.latency_us is None


def test_a_slow_kernel_takes_few_samples_and_says_that_they_are_few() -> None:
    fake = FakeDevice({"c": 2e6}, noise=0.001)  # 2 s
    found = Harness(fake, clock=fake.clock, wait=fake.wait).measure(C, limit_s=20.0)
    assert found.outcome is Outcome.TIMEOUT or flags.WIDE_INTERVAL in found.flags
    assert fake.clock() <= 60.0


def test_a_number_is_never_bare() -> None:
    fake = FakeDevice({"c": 100.0}, noise=0.01, locked=False, sharing=1)
    found = measure(fake).to_dict()
    assert found["protocol"]["name"] == "steady-cold-1"
    assert found["protocol"]["version"] == 1
    assert found["protocol"]["l2"] == "cold"
    assert found["interval_us"][0] <= found["latency_us"] <= found["interval_us"][1]
    assert found["samples"] >= 10
    assert found["clocks"]["locked"] is False
    assert found["clocks"]["before"]["sm_clock_mhz"] == 1980.0
    assert found["clocks"]["after"]["temperature_c"] is None  # nobody said


def test_as_a_device_it_takes_no_more_than_it_is_asked_for() -> None:
    fake = FakeDevice({"c": 100.0}, noise=0.05)
    rig = harness(fake)
    found = rig.time(C, samples=7, limit_s=10.0)
    assert isinstance(found, Timing)
    assert len(found.samples_us) == 7
    assert fake.count("reference") == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"l2": "lukewarm"}, "l2 is 'lukewarm'; use cold or warm"),
        ({"samples_min": 0}, "samples are 0 to 1500"),
        ({"interval": 0.0}, "interval is 0.0; use a share"),
        ({"confidence": 1.0}, "confidence is 1.0; use a share"),
    ],
)
def test_a_protocol_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TimingProtocol(**given)


def test_what_fails_in_a_race_is_listed_last_with_its_reason_and_no_time() -> None:
    faults = {"c0": Fault(outcome=Outcome.CRASHED), "c3": Fault(raw_us=(0.0,) * 5)}
    fake = FakeDevice({"c1": 10.0, "c2": 9.0}, faults=faults, noise=0.01)
    found = race(fake, [Trial(f"c{i}") for i in range(4)], clock=fake.clock)
    assert found.best == "c2"
    assert [s.config for s in found.standings] == ["c2", "c1", "c0", "c3"]
    assert found.standings[1].behind == pytest.approx(1 / 9, rel=0.05)
    for failed in found.standings[2:]:
        assert failed.median_us is failed.behind is None
        assert failed.reason
    assert fake.count("c0") == 1
    nothing = race(FakeDevice({}, faults=faults), [Trial("c0")])
    assert (nothing.best, nothing.unsure) == (None, 0)
    with pytest.raises(UsageError, match="none twice"):
        race(fake, [])


def test_equal_configurations_are_not_told_apart() -> None:
    fake = FakeDevice({"c0": 10.0, "c1": 10.0}, noise=0.01)
    found = race(fake, [Trial("c0"), Trial("c1")], clock=fake.clock, laps_max=12)
    assert found.unsure == 2
    assert found.standings[1].error is not None
    assert abs(found.standings[1].behind or 0.0) <= 4 * found.standings[1].error
