from __future__ import annotations

import json

import pytest
from rich.console import Console

from perfmodel.evaluate import records
from perfmodel.evaluate.records import Record


def cell(name: str, value: float, metric: str = "error_mean", who: str = "perfmodel") -> Record:
    return Record("gemm-kfold", who, metric, value, cell=name, n=10)


def test_json_is_one_list_of_records_with_the_documented_keys() -> None:
    text = records.to_json([cell("a100", 0.036), cell("h100", 0.047)])
    found = json.loads(text)
    assert found[0] == {
        "protocol": "gemm-kfold", "who": "perfmodel", "family": "gemm", "dtype": None,
        "cell": "a100", "k": None, "budget": None, "metric": "error_mean", "value": 0.036, "n": 10,
    }  # fmt: skip
    assert list(found[0]) == [
        "protocol", "who", "family", "dtype", "cell", "k", "budget", "metric", "value", "n",
    ]  # fmt: skip
    assert len(found) == 2


def test_no_record_is_an_empty_list() -> None:
    assert json.loads(records.to_json([])) == []


def test_all_is_the_unweighted_mean_of_the_cells() -> None:
    everything = records.with_all([cell("a", 0.1), cell("b", 0.3)])[-1]
    assert everything.cell == "all"
    assert everything.value == pytest.approx(0.2)
    assert everything.n == 20


def test_all_of_a_minimum_is_the_least_and_of_a_maximum_the_largest() -> None:
    found = records.with_all(
        [
            *(cell(c, v, "pick_min") for c, v in (("a", 0.4), ("b", 0.9))),
            *(cell(c, v, "trials99_max") for c, v in (("a", 3.0), ("b", 20.0))),
        ]
    )
    values = {r.metric: r.value for r in found if r.cell == "all"}
    assert values == {"pick_min": 0.4, "trials99_max": 20.0}


def test_a_contender_without_every_cell_has_no_all() -> None:
    found = records.with_all([cell("a", 1.0), cell("b", 1.0), cell("a", 1.0, who="wavetune")])
    assert {r.who for r in found if r.cell == "all"} == {"perfmodel"}


def test_one_cell_needs_no_all() -> None:
    assert len(records.with_all([cell("a", 1.0)])) == 1


def test_draws_are_averaged() -> None:
    (mean,) = records.averaged([[cell("a", 0.1)], [cell("a", 0.2)]])
    assert mean.value == pytest.approx(0.15)
    assert mean.n == 10


def test_gates_are_reported_per_table() -> None:
    report = {"rows": 100, "rows_dropped": {"above_peak": 3, "not_finite": 0}}
    found = records.gate_records("gemm-kfold", {"some-table": report})
    assert {(r.cell, r.metric, r.value, r.n) for r in found} == {
        ("some-table", "dropped_above_peak", 3.0, 100),
        ("some-table", "dropped_not_finite", 0.0, 100),
    }
    assert records.gate_lines(found) == [
        "some-table: 100 rows imported; dropped by gates: above_peak 3, not_finite 0"
    ]


def test_tables_show_every_cell_and_contender() -> None:
    found = records.with_all(
        [cell("a100", 0.0361), cell("h100", 0.05), cell("a100", 0.3, who="roofline")]
    )
    console = Console(width=120)
    with console.capture() as capture:
        for table in records.tables(found):
            console.print(table)
    text = capture.get()
    for expected in ("gemm-kfold", "a100", "h100", "roofline", "3.6 %", "30.0 %", "all"):
        assert expected in text
