from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfmodel.dataset import schema, store
from perfmodel.dataset.registry import find_table, load_registry
from perfmodel.dataset.schema import COLUMNS
from perfmodel.errors import DataError
from perfmodel.evaluate.selection import TEST, TRAIN, Selection, selection, selections
from perfmodel.hardware.catalog import load_gpu

PROTOCOLS = ["shape-sites", "shape-logo", "fp8-pipeweave", "moe-near-best", "attention-winners"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_set_names_a_table_columns_and_gpus_that_exist(protocol: str) -> None:
    for rows in selections(protocol):
        assert rows.table in find_table(rows.table, load_registry()).table_names
        assert set(rows.where) | set(rows.folds) <= set(COLUMNS)
        for gpu in [*rows.where.get("gpu", []), *(rows.versions or {})]:
            assert gpu == "default" or load_gpu(gpu).name == gpu


def test_a_set_is_found_by_family_and_dtype() -> None:
    assert selection("shape-sites", "decode").folds == (
        "batch", "q_heads", "kv_heads", "head_dim",
    )  # fmt: skip
    with pytest.raises(DataError, match="2 sets of moe bf16"):
        selection("moe-near-best", "moe")
    with pytest.raises(DataError, match=r"no rows for 'nonesuch'.*shape-sites"):
        selections("nonesuch")


def row(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "family": "gemm", "m": 1, "gpu": "b200", "library": "vllm", "library_version": "2",
        "backend": "cublas", "config_known": False, "is_library": True, "selection": "full",
        "outcome": "ok", "latency_us": 1.0, "source": "s", "a_dtype": "bf16", "gates": None,
    }  # fmt: skip
    return base | more


def test_versions_outcomes_and_marks_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    rows = [
        row(m=1),
        row(m=2, library_version="1"),
        row(m=3, a_dtype="fp16"),
        row(m=4, outcome="implausible", latency_us=None, gates="above_peak,suspect_table"),
        row(m=5, gates="siblings_disagree"),
        row(m=6, gates="suspect_table"),
        row(m=7, gpu="l40s", library_version="1"),
    ]
    schema.write(pd.DataFrame(rows), path, schema.TableInfo("s", {}, "i", 1))
    monkeypatch.setattr(
        store, "load", lambda _table, _cache, columns, filters: schema.read(path, columns, filters)
    )
    chosen = Selection(
        "p", "gemm", "t", "bf16", {"a_dtype": ["bf16"]},
        {"default": {"vllm": ["2"]}, "l40s": {"vllm": ["1"]}},
        gates={"train": ["suspect_table", "siblings_disagree"], "test": ["suspect_table"]},
    )  # fmt: skip
    frame, dropped = chosen.load(["m", "latency_us"])
    assert list(frame["m"]) == [1, 5, 6, 7]
    assert dropped == {"above_peak": 1}
    assert list(chosen.usable(frame, TRAIN)) == [True, False, False, True]
    assert list(chosen.usable(frame, TEST)) == [True, True, False, True]
