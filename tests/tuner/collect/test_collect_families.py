"""Every family of kernels: planned alike, measured alike, and told apart in the table."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.dataset import schema
from perfmodel.dataset.registry import load_registry
from perfmodel.errors import InvalidProblemError, UnsupportedDtypeError, UsageError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.problems import Attention, Gemm, GroupedGemm
from tuner.collect import table_columns
from tuner.collect.bench import replay_bench
from tuner.collect.check import check
from tuner.collect.families import FAMILIES, family_of
from tuner.collect.kernels import launches_of, source_hashes
from tuner.collect.merge import gather, table_of
from tuner.collect.models import models
from tuner.collect.output import Output
from tuner.collect.plan import Budget, counts, make_plan
from tuner.collect.plan_file import load_plan
from tuner.collect.publish import Entry, publish
from tuner.collect.run import run_shard
from tuner.collect.shard import read_shard
from tuner.collect.table_columns import problem_of
from tuner.kernels import catalog
from tuner.kernels.language import INSTALLED

from .made_up import family_plan, made_up_table

H100 = load_gpu("h100-sxm5")
needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
every_family = pytest.mark.parametrize("name", list(FAMILIES))


def listed(name: str, count: int, dtype: str = "bf16", seed: int = 0) -> list[tuple[str, Any]]:
    return list(islice(family_of(name).problems(H100, [dtype], seed), count))


TYPES = [
    (name, dtype)
    for name in FAMILIES
    for dtype in ("bf16", "fp8_e4m3")
    if (name, dtype) != ("attention-backward", "fp8_e4m3")
]


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_problems_are_real_and_space_filling_by_turns_and_their_kernel_takes_them(
    name: str, dtype: str
) -> None:
    family, found = family_of(name), listed(name, 120, dtype)
    origins = [origin for origin, _ in found]
    assert all(o.startswith("space-filling") for o in origins[1::2])
    real = {o.split(",")[0].split()[0] for o in origins[::2]}
    assert real <= {m.name for m in models()}
    assert len(real) >= (3 if name == "moe" else 6)
    assert len({problem for _, problem in found}) == len(found)
    for _, problem in found:
        assert catalog.find(family.kernel_of(problem)).refuses(problem) is None


@every_family
def test_the_order_depends_on_the_seed_alone(name: str) -> None:
    assert listed(name, 30, seed=3) == listed(name, 30, seed=3)
    assert listed(name, 30, seed=3) != listed(name, 30, seed=4)


@every_family
def test_columns_describe_a_problem_wholly(name: str) -> None:
    family = family_of(name)
    for dtype in ("bf16", "fp8_e4m3"):
        for _, problem in listed(name, 80, dtype):
            columns = family.columns(problem)
            assert set(columns) - {"backend"} <= set(schema.COLUMNS)
            assert problem_of(family.table, columns) == problem


def test_what_the_table_cannot_tell_apart_is_refused() -> None:
    latent = Attention(1, 1, 64, 16, 1, 576, 512, shared_kv=True, page_size=64)
    with pytest.raises(InvalidProblemError, match="shared_kv"):
        table_columns.of_attention(latent)
    with pytest.raises(InvalidProblemError, match="no gate"):
        table_columns.of_grouped_gemm(GroupedGemm(8, 4, 2, 64, 64, gated=False))
    with pytest.raises(InvalidProblemError, match="named routing"):
        table_columns.of_grouped_gemm(GroupedGemm(2, 4, 1, 64, 64, ep=2, routing=[2, 0, 0, 0]))
    with pytest.raises(UsageError, match="rows of family 'elementwise'"):
        problem_of("elementwise", {})


def test_counted_loads_and_unequal_lengths_have_columns_of_their_own() -> None:
    counted = GroupedGemm(6, 3, 1, 64, 64, routing=[4, 2, 0])
    assert table_columns.of_grouped_gemm(counted)["routing_histogram"] == [4, 2, 0]
    assert problem_of("grouped_gemm", table_columns.of_grouped_gemm(counted)) == counted
    ragged = Attention(q_len=[1, 7], kv_len=[9, 7], q_heads=4, head_dim=64)
    columns = table_columns.of_attention(ragged)
    assert (columns["phase"], columns["q_lens"], columns["kv_lens"]) == ("mixed", [1, 7], [9, 7])
    assert problem_of("attention", columns) == ragged


def test_space_filling_attention_spans_lengths_heads_masks_and_prefixes() -> None:
    found = [p for o, p in listed("attention", 600) if o.startswith("space")]
    assert np.ptp(np.log2([p.q_len for p in found])) > 9
    assert {p.head_dim for p in found} >= {32, 64, 96, 128, 192, 256}
    assert {p.group for p in found} >= {1, 2, 4, 8}
    assert 0.2 < np.mean([not p.causal for p in found]) < 0.5
    assert any(p.window for p in found)
    assert any(p.kv_len > p.q_len for p in found)
    steps = [p for o, p in listed("decode", 400) if o.startswith("space")]
    assert all(q == 1 for p in steps for q, _ in p.items)
    assert {p.page_size for p in steps} == {16, 64, None}
    assert any(not isinstance(p.kv_len, int) for p in steps)


def test_experts_get_even_and_uneven_loads_of_either_projection() -> None:
    found = [p for _, p in listed("moe", 200)]
    assert {p.routing for p in found} == {"uniform", "zipf:1", "balanced"}
    assert {p.projection for p in found} == {"both", "up", "down"}
    assert {p.experts for p in found} >= {8, 16, 32, 64, 128, 256}
    assert any(p.ep > 1 for p in found)
    assert any(p.tp > 1 for p in found)


def test_8_bit_products_are_those_of_the_scaled_kernel() -> None:
    plan = family_plan("gemm", problems=8, dtype="fp8_e4m3")
    assert {p.kernel for p in plan.problems} == {"gemm_row_scaled"}
    assert {(p.values["a_dtype"], p.values["out_dtype"]) for p in plan.problems} == {
        ("fp8_e4m3", "bf16")
    }
    assert {(p.values["a_layout"], p.values["b_layout"]) for p in plan.problems} == {("row", "col")}


def test_an_8_bit_cache_has_16_bit_queries() -> None:
    for _, problem in listed("decode", 30, "fp8_e4m3"):
        assert (str(problem.dtype), str(problem.kv_dtype)) == ("bf16", "fp8_e4m3")


@every_family
def test_a_type_without_arithmetic_is_an_error(name: str) -> None:
    with pytest.raises(UnsupportedDtypeError, match="fp8_e4m3"):
        next(family_of(name).problems(load_gpu("a100-sxm4-80gb"), ["fp8_e4m3"], 0))


@every_family
def test_all_configurations_worth_trying_can_be_planned(name: str) -> None:
    plan = family_plan(name, problems=2, configs=None)
    for planned in plan.problems:
        problem = problem_of(planned.family, planned.values)
        space = family_of(name).configs(problem, H100)
        assert len(planned.configs) == len(space)
    assert len({item.key for item in plan.items}) == len(plan.items)
    # The reasons take turns, so that the first few are of each.
    assert {c.why for c in plan.problems[0].configs[:3]} == {"model", "uncertain", "stratum"}


def test_a_type_that_a_kernel_does_not_take_is_an_error_with_the_reason() -> None:
    with pytest.raises(InvalidProblemError, match="gradients need types of at least 16 bits"):
        family_plan("attention-backward", dtype="fp8_e4m3")


def test_decode_reaches_every_split_where_there_is_room() -> None:
    plan = family_plan("decode", problems=4, configs=60)
    for planned in plan.problems:
        space = family_of("decode").configs(problem_of("attention", planned.values), H100)
        splits = {c.values["split_k"] for c in planned.configs}
        assert splits == {int(s) for s in space.split_k}


@needs_triton
@every_family
def test_a_configuration_holds_what_its_kernel_reads_and_nothing_else(name: str) -> None:
    plan = family_plan(name)
    for item in plan.items:
        assert launches_of(item).launches
        assert set(item.config.values) <= set(family_of(name).parameters)
    assert set(source_hashes(plan.items)) == {p.kernel for p in plan.problems}


@needs_triton
def test_the_hash_of_a_kernels_source_covers_all_that_its_problems_launch() -> None:
    plan = family_plan("moe", problems=12, configs=1)
    launched = {
        launch.kernel.fn.__name__
        for item in plan.items
        for launch in launches_of(item).launches
    }  # fmt: skip
    assert len(launched) == 3
    assert source_hashes(plan.items)["grouped_gemm"].count("+") == 2


def frames_equal(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | list):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return [[plain(v) for v in row] for row in one.itertuples(index=False)] == [
        [plain(v) for v in row] for row in other.itertuples(index=False)
    ]


@every_family
def test_a_run_that_was_killed_merges_to_the_table_of_one_that_was_not(
    name: str, tmp_path: Path
) -> None:
    plan = family_plan(name)
    plan.save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    recorded = made_up_table(plan, tmp_path / "made-up.parquet")
    calm, torn = Output(tmp_path / "calm"), Output(tmp_path / "torn")
    run_shard(plan, replay_bench(recorded, 0.0, plan.gpu), calm)
    run_shard(plan, replay_bench(recorded, 0.0, plan.gpu), torn)
    shard = tmp_path / "torn" / "shard-1-of-1.jsonl"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(len(whole) * 0.6)])  # what a kill leaves: cut within a line
    again = run_shard(plan, replay_bench(recorded, 0.0, plan.gpu), torn)
    assert 0 < again.resumed < again.total
    keys = [row.key for row in read_shard(shard).rows]
    assert len(keys) == len(set(keys)) == len(plan.items)
    one, _ = table_of(gather(plan, tmp_path / "calm"))
    two, info = table_of(gather(plan, tmp_path / "torn"))
    assert frames_equal(one, two)
    assert check(gather(plan, tmp_path / "torn")).sound

    schema.write(two, tmp_path / "table.parquet", info)
    rows = schema.read(tmp_path / "table.parquet")
    family = family_of(name)
    assert set(rows["family"]) == {family.table}
    assert set(rows["kernel"]) == {p.kernel for p in plan.problems}
    assert (rows["outcome"] == "out_of_resources").sum() == sum(
        item.number % 10 == 7 for item in plan.items
    )
    unread = set(schema.CONFIG_COLUMNS) - set(family.parameters)
    assert rows[sorted(unread)].isna().all(axis=None)
    entry = Entry(f"collected-{name}", "tiles", "https://github.com/OWNER/REPO", 40 * "0",
                  "datasets/collected/t.parquet", "Apache-2.0")  # fmt: skip
    registry = tmp_path / "registry.toml"
    registry.write_text("registry_version = 1\n", encoding="utf-8")
    publish(tmp_path / "table.parquet", str(tmp_path / "out"), entry=entry, registry=registry)
    assert load_registry(registry)[f"collected-{name}"].family == family.table
    # A merged table can be replayed: its rows name the same measurements.
    replayed = Output(tmp_path / "replayed")
    run_shard(plan, replay_bench(tmp_path / "table.parquet", 0.0, plan.gpu), replayed)
    three, _ = table_of(gather(plan, tmp_path / "replayed"))
    assert frames_equal(one[["latency_us", "outcome"]], three[["latency_us", "outcome"]])


def test_families_of_one_plan_take_turns_and_no_measurement_is_planned_twice() -> None:
    from perfmodel.predictor import Predictor  # noqa: PLC0415 - as above

    plan = make_plan(
        H100, [family_of(n) for n in ("gemm", "attention", "decode", "moe", "gemm")], ["bf16"],
        budget=Budget(None, 15, 3), predictor=Predictor(analytic_only=True),
    )  # fmt: skip
    assert set(counts(plan)["kernel"]) == {"gemm", "attention", "attention_decode", "grouped_gemm"}
    assert len({item.key for item in plan.items}) == len(plan.items)


def test_known_models_hold_together() -> None:
    for model in models():
        assert model.confirmed.startswith("https://")
        assert model.heads % model.kv_heads == 0
        assert (model.experts > 0) == (model.top_k > 0) == (model.expert_size > 0)
        assert model.intermediate_size or model.experts
    found = {m.name: m for m in models()}
    assert found["llama-3.1-8b"].layers["qkv"] == (6144, 4096)
    assert "qkv" not in found["deepseek-v3"].layers
    assert "up" not in found["mixtral-8x7b"].layers
    assert not found["gpt2"].takes(2048)
    assert Gemm(1, *found["llama-3.1-70b"].layers["up"]).n == 57344
