"""What a search promises, shown on a device that misbehaves on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError, InvalidConfigError, NoUsableConfigError
from tuner.measure.device import Timing, Trial
from tuner.measure.fake import FAKE, FakeDevice, Fault
from tuner.measure.replay import ReplayDevice
from tuner.search.result import Entry, SearchResult, Status
from tuner.search.search import search
from tuner.search.tunables import ONE_CALL, Budget, Tunables


def trials(count: int, expected: Mapping[int, float] | None = None) -> list[Trial]:
    return [Trial(f"c{i}", expected_us=(expected or {}).get(i)) for i in range(count)]


def times(values: Sequence[float]) -> dict[str, float]:
    return {f"c{i}": value for i, value in enumerate(values)}


def statuses(result: SearchResult) -> list[Status]:
    return [e.status for e in result.entries]


def test_the_fastest_wins_and_every_configuration_is_accounted_for() -> None:
    device = FakeDevice(times([30, 20, 10, 40]), noise=0.01)
    result = search(device, trials(4))
    assert result.best == "c2"
    assert result.best_us == pytest.approx(10, rel=0.02)
    assert result.baseline == "c0"
    assert sum(result.counts().values()) == 4
    assert result.timed == 4


def test_the_baseline_is_timed_first_and_then_the_models_order() -> None:
    device = FakeDevice(times([5, 5, 5, 5]))
    search(device, trials(4, {0: 3.0, 1: 1.0, 3: 2.0}), baseline=2, tunables=ONE_CALL)
    assert [config for config, _ in device.calls] == ["c2", "c1", "c3", "c0"]


def test_an_order_given_by_the_caller_counts_and_what_it_leaves_out_is_ranked_out() -> None:
    device = FakeDevice(times([9, 8, 7, 6]))
    result = search(device, trials(4), order=[3, 1], tunables=ONE_CALL)
    assert [config for config, _ in device.calls] == ["c0", "c3", "c1"]
    assert result.entry("c2").status is Status.RANKED_OUT
    assert result.best == "c3"


def test_a_budget_of_trials_counts_what_ran_and_not_what_failed() -> None:
    faults = {"c1": Fault(outcome=Outcome.OUT_OF_RESOURCES)}
    device = FakeDevice(times([9, 8, 7, 6, 5]), faults=faults)
    result = search(device, trials(5), budget=Budget(trials=3))
    assert result.timed == 3
    assert statuses(result) == [
        Status.TIMED, Status.FAILED, Status.TIMED, Status.TIMED, Status.RANKED_OUT,
    ]  # fmt: skip
    assert result.best == "c3"
    assert result.stopped == "3 configurations were timed"


def test_a_budget_of_seconds_ends_the_search_and_the_best_so_far_is_returned() -> None:
    device = FakeDevice(times([9e6, 3e6, 1e6, 1e6]))  # seconds each
    result = search(device, trials(4), budget=Budget(seconds=13.0), clock=device.clock)
    assert result.best == "c2"
    assert result.entry("c3").status is Status.OUT_OF_TIME
    assert device.clock() <= 13.0
    assert result.stopped == "the budget of 13.0 s was spent"


def test_what_the_budget_cuts_off_is_no_fault_of_the_configuration() -> None:
    device = FakeDevice(times([1e6, 20e6]))
    result = search(device, trials(2), budget=Budget(seconds=10.0), clock=device.clock)
    assert result.entry("c1").status is Status.OUT_OF_TIME
    assert result.quarantine == {}


def test_a_hang_of_a_minute_costs_one_configuration_and_its_limit() -> None:
    device = FakeDevice(times([3, 2, 1]), faults={"c1": Fault(hang_s=60.0)})
    result = search(device, trials(3), tunables=Tunables(limit_s=5.0), clock=device.clock)
    assert result.best == "c2"
    assert result.entry("c1").status is Status.TIMED_OUT
    assert device.count("c1") == 1
    assert device.clock() < 6.0
    assert set(result.quarantine) == {"c1"}


def test_a_quarantined_configuration_is_not_tried_again() -> None:
    device = FakeDevice(times([3, 2, 1]))
    result = search(device, trials(3), quarantine={"c2": "hung for 30 s"})
    assert device.count("c2") == 0
    assert result.entry("c2").status is Status.QUARANTINED
    assert result.entry("c2").reason == "hung for 30 s"
    assert result.best == "c1"


def test_a_crash_costs_one_configuration_and_is_remembered() -> None:
    device = FakeDevice(times([3, 2, 1]), faults={"c2": Fault(outcome=Outcome.CRASHED)})
    result = search(device, trials(3))
    assert result.best == "c1"
    assert "c2" in result.quarantine


def test_a_configuration_that_fails_in_the_finals_cannot_win() -> None:
    class Late(FakeDevice):
        def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
            if trial.config == "c1" and self.count("c1") > 3:
                return Timing(Outcome.CRASHED, self.protocol, reason="an illegal address")
            return super().time(trial, samples=samples, limit_s=limit_s)

    result = search(Late(times([10.2, 10, 10.1]), noise=0.01), trials(3))
    assert result.best in ("c0", "c2")
    assert result.entry("c1").status is Status.FAILED


def test_a_lost_device_ends_the_search_with_the_best_so_far() -> None:
    class Lost(FakeDevice):
        def time(self, trial: Trial, *, samples: int, limit_s: float) -> Timing:
            if trial.config == "c2":
                raise DeviceLostError("the worker does not come back")
            return super().time(trial, samples=samples, limit_s=limit_s)

    result = search(Lost(times([3, 2, 1, 1])), trials(4))
    assert result.best == "c1"
    assert statuses(result)[2:] == [Status.OUT_OF_TIME, Status.OUT_OF_TIME]
    assert result.stopped == "the worker does not come back"


def test_the_users_own_error_propagates() -> None:
    device = FakeDevice({}, faults={"c1": Fault(raises=lambda: TypeError("missing argument 'n'"))})
    with pytest.raises(TypeError, match="missing argument"):
        search(device, trials(3))


def test_stored_measurements_are_used_instead_of_timing_and_are_never_counted() -> None:
    device = FakeDevice(times([10, 14, 13]))
    stored = {
        "c0": Timing(Outcome.OK, device.protocol, (10.0,)),
        "c1": Timing(Outcome.OK, device.protocol, (14.0,)),
    }
    result = search(device, trials(3), stored=stored, tunables=ONE_CALL)
    assert [config for config, _ in device.calls] == ["c2"]
    assert result.best == "c0"
    assert statuses(result) == [Status.STORED, Status.STORED, Status.TIMED]
    assert result.timed == 1


def test_times_of_another_protocol_are_not_compared() -> None:
    device = FakeDevice(times([10, 20]))
    stored = {"c1": Timing(Outcome.OK, "other-1", (1.0,))}
    result = search(device, trials(2), stored=stored)
    assert result.best == "c0"
    assert device.count("c1") > 0


def test_near_ties_that_are_all_stored_are_decided_without_timing() -> None:
    device = FakeDevice({})
    stored = {
        f"c{i}": Timing(Outcome.OK, device.protocol, (t,)) for i, t in enumerate([10.3, 10.1, 10.0])
    }
    result = search(device, trials(3), stored=stored)
    assert device.calls == []
    assert result.best == "c2"


def test_without_a_single_success_the_error_lists_every_reason() -> None:
    faults = {
        "c0": Fault(outcome=Outcome.OUT_OF_RESOURCES),
        "c1": Fault(outcome=Outcome.COMPILE_FAILED),
    }
    result = search(FakeDevice({}, faults=faults), trials(2))
    assert result.best is None
    with pytest.raises(NoUsableConfigError, match=r"c0: .*out_of_resources\n.*c1: .*compile_f"):
        result.require_best()


def test_bad_arguments_are_named() -> None:
    device = FakeDevice({})
    with pytest.raises(InvalidConfigError, match="no configuration to time"):
        search(device, [])
    with pytest.raises(InvalidConfigError, match="c0 is given twice"):
        search(device, [Trial("c0"), Trial("c0")])
    with pytest.raises(InvalidConfigError, match="baseline is 2; use the index"):
        search(device, trials(2), baseline=2)
    with pytest.raises(InvalidConfigError, match="order is -1"):
        search(device, trials(2), order=[0, -1])


def test_progress_tells_every_measurement_and_ends_with_all() -> None:
    seen: list[tuple[str, int, int]] = []

    def tell(entry: Entry, done: int, total: int) -> None:
        seen.append((entry.config, done, total))

    search(FakeDevice(times([30, 20, 10])), trials(3), tunables=ONE_CALL, tell=tell)
    assert seen == [("c0", 1, 3), ("c1", 2, 3), ("c2", 3, 3)]


def test_nothing_of_the_call_is_kept_in_the_result() -> None:
    def launch() -> None:
        raise AssertionError

    result = search(FakeDevice({}), [Trial("c0", launch=launch), Trial("c1", launch=launch)])
    assert "launch" not in repr(result)


def test_a_recorded_table_is_replayed_without_feigning_repeats() -> None:
    device = ReplayDevice({"c0": 10.0, "c1": 9.0, "c2": Outcome.COMPILE_FAILED}, FAKE)
    result = search(device, trials(4))
    assert result.best == "c1"
    assert result.entry("c2").outcome is Outcome.COMPILE_FAILED
    assert result.entry("c3").reason == "not in the table"
    assert result.noise == Tunables().final_floor


@given(
    st.lists(st.floats(1.0, 1e4), min_size=1, max_size=12),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_winner_is_never_slower_than_the_baseline_whatever_fails(
    values: list[float], data: Any
) -> None:
    faulty = st.sampled_from(
        [
            Fault(outcome=Outcome.COMPILE_FAILED),
            Fault(hang_s=100.0),
            Fault(raw_us=(math.nan,)),
            Fault(raw_us=(0.0, 1.0)),
            Fault(raw_us=()),
        ]
    )
    faults = data.draw(st.dictionaries(st.sampled_from(list(times(values))), faulty))
    baseline = data.draw(st.integers(0, len(values) - 1))
    device = FakeDevice(times(values), faults=faults)
    result = search(device, trials(len(values)), baseline=baseline, clock=device.clock)
    assert [e.config for e in result.entries] == list(times(values))
    good = [i for i in range(len(values)) if f"c{i}" not in faults]
    if not good:
        assert result.best is None
        return
    assert result.best is not None
    assert result.best not in faults
    won = times(values)[result.best]
    assert won <= min(values[i] for i in good) * 1.0051
    if baseline in good:
        assert won <= values[baseline]
