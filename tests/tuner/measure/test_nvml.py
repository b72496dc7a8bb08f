"""NVML: whatever one query does, the others are answered, and the missing one has its reason."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.errors import NoDeviceError
from tuner.measure.device import Trial
from tuner.measure.fake import FakeDevice
from tuner.measure.gauges import NvmlGauges
from tuner.measure.harness import Harness
from tuner.measure.nvml import Nvml, connected, throttle_names


class NotSupportedError(Exception):
    """As the binding raises it."""

    def __str__(self) -> str:
        return "Not Supported"


class TornError(Exception):
    """An error whose own message cannot be had, as where the library went away."""

    def __str__(self) -> str:
        raise OSError("library not found")


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
    "nvmlDeviceGetName": lambda handle: b"NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetUUID": lambda handle: "GPU-1234",
    "nvmlSystemGetDriverVersion": lambda: "570.86.15",
    "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=85899345920),
    "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
    "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    "nvmlDeviceGetEccMode": lambda handle: (1, 1),
    "nvmlDeviceGetMigMode": lambda handle: (0, 0),
    "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1410,
    "nvmlDeviceGetDefaultApplicationsClock": lambda handle, kind: 1980,
    "nvmlDeviceGetClockInfo": lambda handle, kind: 1755,
    "nvmlDeviceGetTemperature": lambda handle, kind: 41,
    "nvmlDeviceGetPowerUsage": lambda handle: 123_456,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x1,
    "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 0,
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=1)],
}

FIELDS = {
    "nvmlDeviceGetName": "name", "nvmlDeviceGetUUID": "uuid",
    "nvmlSystemGetDriverVersion": "driver",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes", "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetEccMode": "ecc", "nvmlDeviceGetMigMode": "mig_enabled",
    "nvmlDeviceGetApplicationsClock": "clocks_locked",
}  # fmt: skip

READINGS = {
    "nvmlDeviceGetTemperature": "temperature_c", "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttle",
}  # fmt: skip


def library(**changes: Callable[..., Any] | None) -> Any:
    given = {**ANSWERS, **changes}
    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(**constants, **{k: v for k, v in given.items() if v is not None})


def refusing(error: Exception) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_facts_and_readings_are_as_the_driver_gives_them() -> None:
    with connected(library()) as nvml:
        facts, reading = nvml.facts(0), nvml.reading(0)
    assert facts.name == "NVIDIA H100 80GB HBM3"
    assert facts.compute_capability == (9, 0)
    assert facts.power_limit_w == 700.0
    assert (facts.mig_enabled, facts.clocks_locked, facts.missing) == (False, True, {})
    assert reading.columns("before") == {
        "sm_clock_before_mhz": 1755.0, "memory_clock_before_mhz": 1755.0,
        "temperature_before_c": 41.0, "power_before_w": 123.456, "throttle_before": "power_cap",
    }  # fmt: skip


@pytest.mark.parametrize("error", [NotSupportedError(), TornError(), TypeError("torn answer")])
@pytest.mark.parametrize("query", FIELDS)
def test_a_refused_query_leaves_one_field_null_with_its_reason(
    query: str, error: Exception
) -> None:
    facts = Nvml(library(**{query: refusing(error)})).facts(0).to_dict()
    missing = {name for name, value in facts.items() if value is None}
    assert missing == {FIELDS[query]}
    assert set(facts["missing"]) == {FIELDS[query]}
    assert type(error).__name__ in facts["missing"][FIELDS[query]]


@pytest.mark.parametrize("query", READINGS)
def test_a_reading_that_is_not_supported_is_left_out(query: str) -> None:
    reading = Nvml(library(**{query: refusing(NotSupportedError())})).reading(0)
    assert getattr(reading, READINGS[query]) is None
    assert reading.missing == {READINGS[query]: "NotSupportedError: Not Supported"}
    assert len(reading.columns("after")) == 4


def test_a_function_that_an_old_binding_lacks_is_a_missing_field() -> None:
    facts = Nvml(library(nvmlDeviceGetMigMode=None)).facts(0)
    assert facts.mig_enabled is None
    assert "AttributeError" in facts.missing["mig_enabled"]


def test_a_device_that_does_not_answer_at_all_is_all_null() -> None:
    nvml = Nvml(library(nvmlDeviceGetHandleByIndex=refusing(NotSupportedError())))
    assert nvml.facts(3).missing == {"handle": "NotSupportedError: Not Supported"}
    assert nvml.reading(3).columns("before") == {}
    assert nvml.slices(3) == ()


def test_no_driver_says_what_needs_one_and_what_does_not() -> None:
    with pytest.raises(NoDeviceError, match="no NVIDIA driver to measure on; `collect plan`"):
        Nvml(library(nvmlInit=refusing(TornError())))
    with pytest.raises(NoDeviceError, match="does not list"):
        Nvml(library(nvmlDeviceGetCount=refusing(NotSupportedError()))).count()


def test_closing_fails_silently() -> None:
    with connected(library(nvmlShutdown=refusing(TornError()))) as nvml:
        assert nvml.count() == 1


def test_idle_is_no_throttling_and_unknown_bits_are_kept() -> None:
    assert throttle_names(0) == throttle_names(0x1) == ""
    assert throttle_names(0x8 | 0x40) == "hw_slowdown,hw_thermal"
    assert throttle_names(0x1000) == "unknown_0x1000"


EVERY_QUERY = [name for name in ANSWERS if name not in ("nvmlInit", "nvmlShutdown")]


def measured_with(binding: Any) -> dict[str, Any]:
    fake = FakeDevice({"c": 100.0})
    gauges = NvmlGauges(Nvml(binding), 0)
    harness = Harness(fake, gauges=gauges, clock=fake.clock, wait=fake.wait)
    return harness.measure(Trial("c")).to_dict()


@pytest.mark.parametrize("error", [NotSupportedError(), TornError()], ids=["refused", "torn"])
@pytest.mark.parametrize("query", EVERY_QUERY)
def test_dv2_dv4_any_query_may_be_refused_and_the_time_is_measured_all_the_same(
    query: str, error: Exception
) -> None:
    found = measured_with(library(**{query: refusing(error)}))
    assert found["outcome"] == "ok"
    assert found["latency_us"] == 100.0
    whole = measured_with(library())
    assert set(found["clocks"]["before"]) == set(whole["clocks"]["before"])
    assert 0.0 not in found["clocks"]["before"].values()  # null where nobody says


def test_dv5_clocks_are_never_changed_and_unlocked_ones_are_recorded() -> None:
    """The library has no function that changes anything: calling one would fail the test."""
    unlocked = library(nvmlDeviceGetApplicationsClock=lambda handle, kind: 1980)
    assert not [name for name in vars(unlocked) if "Set" in name or "Reset" in name]
    assert measured_with(unlocked)["clocks"]["locked"] is False
    assert measured_with(library())["clocks"]["locked"] is True
    no_permission = library(nvmlDeviceGetApplicationsClock=refusing(NotSupportedError()))
    assert measured_with(no_permission)["clocks"]["locked"] is None


def test_another_process_on_the_device_is_seen() -> None:
    two = library(nvmlDeviceGetComputeRunningProcesses=lambda handle: [1, 2])
    assert measured_with(two)["flags"] == ["power_capped", "shared"]
    assert measured_with(library())["flags"] == ["power_capped"]
    assert Nvml(library(nvmlDeviceGetHandleByIndex=refusing(TornError()))).processes(0) is None
