"""Shape-level sources on the published files, where a mirror of them is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import store
from perfmodel.dataset.distinct import as_objects
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.pull import fetch, pull
from perfmodel.dataset.quality import SUSPECT_TABLE, apply_gates
from perfmodel.dataset.registry import find
from perfmodel.dataset.sources import pipeweave
from perfmodel.dataset.table_gates import TableGates

ROOT = Path(__file__).resolve().parents[2]
MIRROR = Path(os.environ.get("PERFMODEL_DATA_MIRROR") or ROOT.parent / "shared" / "data" / "mirror")

pytestmark = pytest.mark.skipif(
    not (MIRROR / "github.com").is_dir(),
    reason=f"the published files are not here: no mirror at {MIRROR} (PERFMODEL_DATA_MIRROR)",
)


def pulled(name: str, cache: Path) -> pd.DataFrame:
    report = pull(name, mirror=MIRROR, cache=cache).report
    assert report is not None
    assert sum(report.rows_dropped.values()) == 0
    return store.load(name, cache)


def test_pipeweave_fp8_keeps_its_split_and_two_gpus_unseen(tmp_path: Path) -> None:
    table = pulled("pipeweave-fp8", tmp_path)
    file = table["source_file"].str.rsplit("/", n=1).str[-1]
    seen = table.groupby(file)["gpu"].unique()
    assert set(seen["gemm_fp8_train.csv"]) == {"h20", "h800"}
    assert set(seen["gemm_fp8_test.csv"]) == {"h20", "h800", "h100-sxm5", "h200-sxm"}
    shapes = [set(map(tuple, part[["m", "n", "k"]].to_numpy())) for _, part in table.groupby(file)]
    assert not shapes[0] & shapes[1]


def test_pipeweave_moe_has_the_same_problems_on_seven_gpus(tmp_path: Path) -> None:
    table = pulled("pipeweave-moe", tmp_path)
    assert set(table["gpu"].value_counts()) == {3_024}
    assert table["gpu"].nunique() == 7


def test_near_best_configs_lie_within_a_hundredth_of_the_best(tmp_path: Path) -> None:
    table = pulled("pipeweave-moe-near-best", tmp_path)
    problem = ["gpu", "tokens", "experts", "top_k", "hidden_size", "intermediate_size"]
    groups = table.groupby(problem)["latency_us"]
    assert len(groups) == 3 * 288
    assert (groups.min() >= 0.98999 * groups.max()).all()


def test_llmservingsim_is_possible_in_every_row(tmp_path: Path) -> None:
    table = pulled("llmservingsim", tmp_path)  # a wrong unit or length would be refused
    assert set(table["gpu"]) == {"h100-sxm5", "rtx-pro-6000-server"}
    assert set(table["phase"]) == {"prefill", "decode", "mixed"}
    mixed = table[table["phase"] == "mixed"].iloc[0]
    assert len(mixed["q_lens"]) == len(mixed["kv_lens"]) == mixed["batch"]


def test_tokamax_and_dejavu_hold_winners(tmp_path: Path) -> None:
    tokamax = pulled("tokamax", tmp_path)
    forward = tokamax[tokamax["kernel"].str.startswith("pallas_triton_flash_attention")]
    forward = forward[forward["direction"] == "forward"]
    assert len(forward) == 210  # 204 problems, six with two winners
    assert (forward["distinct_repeats"] <= 5).all()
    dejavu = pulled("dejavu", tmp_path)
    assert dejavu["kernel"].value_counts().to_dict() == {
        "kernel_unified_attention_2d": 89, "attn_fwd": 15,
    }  # fmt: skip
    assert set(dejavu["selection"]) | set(tokamax["selection"]) == {"winner"}


def test_a_corrupted_copy_of_real_timings_is_found_out() -> None:
    dataset = find("pipeweave-fp8")
    paths = [fetch(file, mirror=MIRROR) for file in dataset.files]
    frame = pipeweave.read(dataset, paths, lambda _: None)
    sound = apply_gates(frame)[0]
    assert (sound["outcome"] == Outcome.OK.value).all()
    # A tenth of one file in milliseconds, as if nobody had looked at the unit.
    train = frame["source_file"].str.endswith("train.csv").to_numpy()
    wrong = train & (np.arange(len(frame)) % 10 == 0)
    values = [np.asarray(v, dtype=np.float64) for v in frame["distinct_us"]]
    changed = [v / 1e3 if hit else v for v, hit in zip(values, wrong, strict=True)]
    frame["distinct_us"] = as_objects(changed)
    gated, report = apply_gates(frame)
    dropped = (gated["outcome"] == Outcome.IMPLAUSIBLE.value).to_numpy()
    assert dropped[wrong].mean() > 0.95
    assert not dropped[~wrong].any()
    assert sum(report.rows_dropped.values()) >= dropped.sum()
    gates = TableGates()
    gates.add(gated)
    (flags,), _ = gates.flags()
    assert (flags[SUSPECT_TABLE] == train).all()
