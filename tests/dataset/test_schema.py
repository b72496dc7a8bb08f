from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfmodel.dataset import schema
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.schema import COLUMNS, CONFIG_COLUMNS, TableInfo, arrow_schema, conform
from perfmodel.errors import CorruptFileError, MissingDataError, SchemaMismatchError
from perfmodel.tiling.config import PARAMETERS

INFO = TableInfo(source="test", files={"f": "0" * 64}, importer="none", importer_version=1)

SMALLEST: dict[str, Any] = {
    "family": "gemm", "config_known": False, "backend": "cublas", "is_library": True,
    "selection": "full", "outcome": "ok", "source": "test",
}  # fmt: skip


def frame(**values: Any) -> pd.DataFrame:
    return pd.DataFrame([SMALLEST | values])


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        [
            SMALLEST | {"m": 0, "n": 2**33, "k": 7, "latency_us": 1.5, "distinct_us": [1.5, 2.5]},
            SMALLEST
            | {
                "family": "attention", "q_lens": [5, 900], "causal": True, "window_size": 128,
                "config_extras": {"WAVES_PER_EU": "2", "mode": '"fast"'}, "config_known": True,
                "block_m": 128, "verified": False, "throttle_after": "sw_power_cap",
            },
            SMALLEST
            | {"family": "grouped_gemm", "routing_histogram": [3, 0, 5], "outcome": "timeout"},
        ]
    )  # fmt: skip
    schema.write(rows, tmp_path / "t.parquet", INFO)
    back = schema.read(tmp_path / "t.parquet")
    assert list(back.columns) == list(COLUMNS)
    assert back.attrs["info"] == INFO
    for at, row in enumerate(rows.to_dict("records")):
        for name, value in row.items():
            found = back[name][at]
            if isinstance(value, list):
                assert list(found) == value
            elif isinstance(value, dict):
                assert dict(found) == value
            elif pd.isna(value):
                assert pd.isna(found), name
            else:
                assert found == value, name


def test_a_column_for_every_tile_parameter() -> None:
    assert CONFIG_COLUMNS == PARAMETERS


@pytest.mark.parametrize("words", ["driver", "clock", "temperature", "power", "throttle"])
def test_device_state_before_and_after_has_a_place(words: str) -> None:
    assert any(words in name for name in COLUMNS)


def test_silence_of_a_source_is_null_not_a_guess(tmp_path: Path) -> None:
    schema.write(frame(), tmp_path / "t.parquet", INFO)
    back = schema.read(tmp_path / "t.parquet")
    silent = [name for name in COLUMNS if name not in SMALLEST]
    assert back[silent].isna().all(axis=None)


def test_an_unknown_column_is_refused_with_the_closest_name() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'latency_ms'.*did you mean 'latency_us'"):
        conform(frame(latency_ms=1.0))


@pytest.mark.parametrize("name", [c.name for c in COLUMNS.values() if c.required])
def test_a_required_column_may_not_be_missing(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=name):
        conform(frame().drop(columns=name))


@pytest.mark.parametrize(
    ("name", "value"),
    [("outcome", "fine"), ("family", "conv"), ("selection", "some"), ("a_layout", "T")],
)
def test_a_value_outside_the_allowed_ones_is_refused(name: str, value: str) -> None:
    with pytest.raises(SchemaMismatchError, match=value):
        conform(frame(**{name: value}))


@pytest.mark.parametrize(("name", "value"), [("m", 1.5), ("m", "many"), ("latency_us", "fast")])
def test_a_value_of_another_type_is_refused_by_column(name: str, value: object) -> None:
    with pytest.raises(SchemaMismatchError, match=name):
        conform(frame(**{name: value}))


def test_every_outcome_of_the_design_is_allowed() -> None:
    expected = {
        "ok", "compile_failed", "out_of_resources", "timeout", "crashed", "wrong_result",
        "implausible",
    }  # fmt: skip
    assert {o.value for o in Outcome} == expected
    assert [o for o in Outcome if o.ran] == [Outcome.OK]


def test_a_foreign_version_is_refused_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    newer = TableInfo(**{**vars(INFO), "schema_version": 2})
    schema.write(frame(), path, newer)
    with pytest.raises(SchemaMismatchError, match="version 2; this perfmodel reads version 1"):
        schema.read(path)


def test_parquet_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"m": [1]}), path)
    with pytest.raises(SchemaMismatchError, match="not a perfmodel measurement table"):
        schema.read(path)


def test_a_table_with_other_columns_than_its_version_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    schema.write(frame(), path, INFO)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["latency_us"]), path)
    with pytest.raises(SchemaMismatchError, match="latency_us"):
        schema.read(path)
    pq.write_table(table.append_column("speed", pa.array([1.0])), path)
    with pytest.raises(SchemaMismatchError, match="speed"):
        schema.read(path)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_table_is_corrupt(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "t.parquet"
    schema.write(frame(), path, INFO)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CorruptFileError, match=r"t\.parquet"):
        schema.read(path)


def test_a_missing_table_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"absent\.parquet"):
        schema.read(tmp_path / "absent.parquet")


def test_the_columns_named_at_the_top_of_the_module_exist() -> None:
    described = (schema.__doc__ or "").split("- what:")[1].split("\n\n")[0]
    words = described.replace(":", " ").split()
    listed = {word for word in words if "_" in word}
    assert listed - set(COLUMNS) == set()


def test_arrow_schema_lists_every_column_once() -> None:
    names = arrow_schema().names
    assert len(names) == len(set(names)) == len(COLUMNS)
