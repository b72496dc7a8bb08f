from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.bounds import ABOVE_BANDWIDTH, ABOVE_PEAK
from perfmodel.dataset.quality import (
    NOT_FINITE,
    NOT_POSITIVE,
    apply_gates,
    physical_bounds_us,
    violations,
)
from perfmodel.hardware.catalog import load_gpu

A100 = load_gpu("a100-sxm4-80gb")


def row(values_us: list[float], **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "family": "gemm", "m": 2048, "n": 4096, "k": 4096, "batch": 1,
        "a_dtype": "fp16", "b_dtype": "fp16", "out_dtype": "fp16", "gpu": "a100-sxm4-80gb",
        "outcome": "ok", "outcome_reason": None, "raw_rows": len(values_us),
        "source_file": "f", "l2_state": None, "distinct_us": values_us,
    }  # fmt: skip
    return base | more


def gate(*rows: dict[str, Any]) -> tuple[pd.DataFrame, Any]:
    return apply_gates(pd.DataFrame(list(rows)))


def test_no_sync_timing_is_caught() -> None:
    # 2048 x 4096 x 4096 in 1 us would be 69,000 TFLOP/s on a device with 312.
    table, report = gate(row([1.0]))
    assert table["outcome"][0] == "implausible"
    assert ABOVE_PEAK in table["gates"][0]
    assert "peak" in table["outcome_reason"][0]
    assert pd.isna(table["latency_us"][0])
    assert report.rows_dropped[ABOVE_PEAK] == 1
    assert report.by_file["f"]["rows_dropped"] == 1


def test_a_sound_time_passes_with_no_flag() -> None:
    table, report = gate(row([280.0, 290.0]))
    assert (table["outcome"][0], table["gates"][0]) == ("ok", None)
    assert table["latency_us"][0] == 285.0
    assert sum(report.values_dropped.values()) == 0


def test_exactly_the_bound_passes_and_just_below_does_not() -> None:
    bound = max(b[0] for b in physical_bounds_us(pd.DataFrame([row([1.0])]))[0].values())
    table, _ = gate(row([bound]), row([bound * 0.999]))
    assert list(table["outcome"]) == ["ok", "implausible"]


def test_one_impossible_value_goes_and_the_rest_stay() -> None:
    table, report = gate(row([1.0, 280.0, 290.0]))
    assert table["outcome"][0] == "ok"
    assert ABOVE_PEAK in table["gates"][0].split(",")
    assert table["latency_us"][0] == 285.0
    assert table["distinct_repeats"][0] == 2
    assert (report.values_dropped[ABOVE_PEAK], report.rows_dropped[ABOVE_PEAK]) == (1, 0)


@pytest.mark.parametrize(
    ("value", "name"),
    [(np.nan, NOT_FINITE), (np.inf, NOT_FINITE), (-np.inf, NOT_FINITE), (0.0, NOT_POSITIVE),
     (-5.0, NOT_POSITIVE)],
)  # fmt: skip
def test_what_is_not_a_time_is_dropped(value: float, name: str) -> None:
    table, report = gate(row([value]), row([300.0]))
    assert list(table["outcome"]) == ["implausible", "ok"]
    assert table["gates"][0] == name
    assert report.rows_dropped[name] == 1


def test_repeats_of_a_cached_number_are_counted() -> None:
    _, report = gate(row([300.0, 310.0], raw_rows=375))
    assert (report.raw_rows, report.repeats_dropped) == (375, 373)


def test_a_failure_without_times_is_not_the_gates_business() -> None:
    table, report = gate(row([], outcome="timeout", raw_rows=1))
    assert table["outcome"][0] == "timeout"
    assert table["gates"][0] is None
    assert sum(report.rows_dropped.values()) == 0


def test_traffic_beyond_the_l2_goes_through_dram() -> None:
    # One row times a large matrix: 2 x 16384 x 16384 bytes at 2039 GB/s take 263 us.
    wide = {"m": 1, "n": 16384, "k": 16384}
    bytes_moved = 2 * (16384 * 16384 + 2 * 16384)
    cold = bytes_moved / (A100.dram_bandwidth_gb_per_s * 1e3)
    table, _ = gate(row([cold * 0.98], l2_state="cold", **wide), row([cold * 1.02], **wide))
    assert list(table["outcome"]) == ["implausible", "ok"]
    assert table["gates"][0] == ABOVE_BANDWIDTH


def test_what_fits_the_l2_may_beat_dram_when_it_is_warm() -> None:
    small = {"m": 16, "n": 2048, "k": 2048}  # 8 MB: 4 us through DRAM
    table, _ = gate(
        row([2.0], l2_state="warm", **small),
        row([2.0], **small),
        row([2.0], l2_state="cold", **small),
    )
    assert list(table["outcome"]) == ["ok", "ok", "implausible"]


def test_peaks_are_those_of_the_type() -> None:
    at_fp16_peak = 2 * 2048 * 4096 * 4096 / 312e6 * 1.01
    slow = {"a_dtype": "fp32", "b_dtype": "fp32", "out_dtype": "fp32"}
    tf32 = {"a_dtype": "tf32", "b_dtype": "tf32", "out_dtype": "fp32"}
    mixed = {"b_dtype": "int8"}  # weights are widened: multiplied as fp16
    table, _ = gate(*(row([at_fp16_peak], **kind) for kind in ({}, slow, tf32, mixed)))
    assert list(table["outcome"]) == ["ok", "implausible", "implausible", "ok"]


def test_what_cannot_be_checked_is_reported_not_passed_over() -> None:
    _, report = gate(row([300.0], gpu=None), row([300.0], gpu="no-such-gpu"), row([300.0]))
    reasons = report.unchecked_rows
    assert sum(reasons.values()) == 2
    assert reasons["device not known"] == 1
    assert any("no-such-gpu" in reason for reason in reasons)


def test_a_dtype_the_device_has_no_arithmetic_for_is_reported() -> None:
    fp8 = {"a_dtype": "fp8_e4m3", "b_dtype": "fp8_e4m3"}
    _, report = gate(row([300.0], **fp8))
    assert any("dtype" in reason for reason in report.unchecked_rows)


def test_zero_work_has_no_bound() -> None:
    table, _ = gate(row([3.0], m=0), row([3.0], k=0))
    assert list(table["outcome"]) == ["ok", "ok"]


def test_an_altered_table_is_found_out() -> None:
    table, _ = gate(row([280.0]), row([290.0]))
    assert sum(violations(table).values()) == 0
    table["latency_us"] /= 100
    assert violations(table)[ABOVE_PEAK] == 2


def test_an_empty_table_passes() -> None:
    table, report = apply_gates(pd.DataFrame([row([1.0])]).iloc[:0])
    assert len(table) == report.rows == 0


@given(
    st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000),
    st.sampled_from(["fp16", "bf16", "fp32", "tf32"]), st.sampled_from(["cold", "warm", None]),
)  # fmt: skip
def test_bounds_are_finite_and_never_above_the_roofline(
    m: int, n: int, k: int, dtype: str, l2_state: str | None
) -> None:
    out = "fp32" if dtype == "tf32" else dtype
    types = {"a_dtype": dtype, "b_dtype": dtype, "out_dtype": out}
    frame = pd.DataFrame([row([1.0], m=m, n=n, k=k, l2_state=l2_state, **types)])
    bounds, unchecked = physical_bounds_us(frame)
    size = 4 if out == "fp32" else 2
    bytes_moved = size * (m * k + k * n + m * n)
    roof = bytes_moved / (A100.dram_bandwidth_gb_per_s * 1e3)
    assert not unchecked
    assert 0 <= bounds[ABOVE_BANDWIDTH][0] <= roof * (1 + 1e-12)
    assert 0 < bounds[ABOVE_PEAK][0] < np.inf
