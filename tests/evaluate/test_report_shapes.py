"""The report's sections on library kernels: what a fifth of the sites held out shows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from perfmodel.report.shapes import covered, shape_section

pytest.importorskip("matplotlib")


def panel(error: float, half: float, count: int = 200) -> tuple[np.ndarray, ...]:
    measured = np.geomspace(5e-6, 5e-3, count)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    return measured, measured * np.exp(error * sign), np.full(count, half)


def test_a_family_has_three_pictures_and_a_row_a_device() -> None:
    panels = {"h100-sxm5": panel(0.05, 0.1), "b200": panel(0.2, 0.1)}
    section = shape_section("moe-bf16", "Experts", panels, 0.9)  # type: ignore[arg-type]
    assert [p.name for p in section.pictures] == [
        "scatter-moe-bf16", "error-moe-bf16", "coverage-moe-bf16",
    ]  # fmt: skip
    assert all(p.png.startswith(b"\x89PNG") for p in section.pictures)
    first, second = section.tables[0].rows
    assert (first[0], first[3], first[5]) == ("h100-sxm5", "100.0 %", "200")
    assert (second[0], second[3]) == ("b200", "0.0 %")
    assert float(re.sub(" %", "", first[1])) == pytest.approx(5.0, abs=0.2)
    assert float(re.sub(" %", "", first[4])) == pytest.approx(20.0, abs=0.2)


def test_inside_counts_both_sides_and_the_edge() -> None:
    measured = np.array([1.0, 1.0, 1.0])
    predicted = np.exp(np.array([0.1, -0.1, 0.11]))
    half = np.full(3, 0.1 + 1e-12)
    assert covered((measured, predicted, half)).tolist() == [True, True, False]
