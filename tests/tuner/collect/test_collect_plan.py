"""Plans: the same for the same seed, within the budget, real shapes beside space-filling ones."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import (
    CorruptFileError,
    MissingDataError,
    SchemaMismatchError,
    UnsupportedDtypeError,
    UsageError,
)
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.tiling.config import TileConfig
from tuner.collect.families import family_of
from tuner.collect.gemm_shapes import alternate_gemms
from tuner.collect.models import models
from tuner.collect.plan import Budget, counts, make_plan
from tuner.collect.plan_file import Plan, Settings, load_plan, parse_shard
from tuner.collect.table_columns import problem_of

from .conftest import altered, make_small_plan

GEMM = family_of("gemm")


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert make_small_plan(seed=3).digest == make_small_plan(seed=3).digest
    assert make_small_plan(seed=3).digest != make_small_plan(seed=4).digest


def test_a_plan_is_one_file_that_reads_back_as_it_was(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert [item.key for item in again.items] == [item.key for item in plan.items]
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_every_measurement_of_a_plan_has_a_key_of_its_own(plan: Plan) -> None:
    assert len({item.key for item in plan.items}) == len(plan.items)


def test_half_of_the_problems_are_real_and_fill_the_budget_alone(shipped: object) -> None:
    plan = make_plan(load_gpu("h100-sxm5"), [GEMM], ["bf16"], budget=Budget(2.0, None, 30))
    found = counts(plan)
    assert abs(found["origin"]["known models"] - found["origin"]["space-filling"]) <= 1
    assert 110 <= plan.seconds <= 120
    assert found["why"]["model"] > 0
    assert found["why"]["uncertain"] > 0
    assert found["why"]["stratum"] > found["why"]["model"]


def test_without_a_learned_model_the_estimates_that_rest_on_overlap_are_the_uncertain() -> None:
    plan, gpu = make_small_plan(problems=3, configs=24), load_gpu("h100-sxm5")
    assert plan.model is None
    for planned in plan.problems:
        problem = problem_of("gemm", planned.values)
        table = GEMM.configs(problem, gpu)
        scored = GEMM.score(problem, gpu, table, Predictor(analytic_only=True))
        rows = {tuple(c.to_dict().items()): row for row, c in enumerate(table.configs)}
        uncertain = [c for c in planned.configs if c.why == "uncertain"]
        assert len(uncertain) == 4
        widths = [scored.log_width[rows[tuple(TileConfig(**c.values).to_dict().items())]]
                  for c in uncertain]  # fmt: skip
        assert min(widths) >= np.median(scored.log_width)
        assert max(c.expected_us for c in uncertain) <= 2 * scored.latency_us.min() * 1.0001


def test_strata_reach_every_warp_count_where_there_is_room() -> None:
    plan = make_small_plan(problems=1, configs=60)
    table = GEMM.configs(problem_of("gemm", plan.problems[0].values), load_gpu("h100-sxm5"))
    planned = {c.values["num_warps"] for c in plan.problems[0].configs}
    assert planned == {int(w) for w in table.num_warps}


def test_the_models_best_configuration_is_measured() -> None:
    plan, gpu = make_small_plan(configs=3), load_gpu("h100-sxm5")
    predictor = Predictor(analytic_only=True)
    for planned in plan.problems:
        problem = problem_of("gemm", planned.values)
        best = predictor.rank(problem, gpu, top=1, with_rejected=False).best
        assert any(c.values["block_m"] == best.block_m and c.values["num_warps"] == best.num_warps
                   for c in planned.configs)  # fmt: skip


def test_space_filling_points_cover_small_and_large_aligned_and_odd() -> None:
    found = [p for origin, p in islice(alternate_gemms(["bf16"], 0, 80 << 30), 400)
             if origin.startswith("space")]  # fmt: skip
    for name in ("m", "n", "k"):
        sizes = np.log2([getattr(p, name) for p in found])
        assert np.ptp(sizes) > 8
        quarters = np.histogram(sizes, bins=4)[0]
        assert quarters.min() > 0.08 * len(found)
    assert {p.a_vector_bytes for p in found} >= {2, 16}
    assert len({(p.a_layout, p.b_layout) for p in found}) == 3


def test_known_models_name_the_source_of_their_dimensions() -> None:
    assert len(models()) >= 8
    for model in models():
        assert model.source.startswith("https://")
        assert model.heads % model.kv_heads == 0
        assert model.name in {m.name for m in models()}
    assert Counter(m.name for m in models()).most_common(1)[0][1] == 1


def test_types_take_turns_and_one_that_the_device_lacks_is_an_error() -> None:
    plan = make_plan(
        load_gpu("h100-sxm5"), [GEMM], ["bf16", "fp8_e4m3"], budget=Budget(None, 8, 4),
        predictor=Predictor(analytic_only=True),
    )  # fmt: skip
    assert {p.values["a_dtype"] for p in plan.problems} == {"bf16", "fp8_e4m3"}
    with pytest.raises(UnsupportedDtypeError):
        make_plan(load_gpu("a100-sxm4-80gb"), [GEMM], ["fp8_e4m3"], budget=Budget(1.0))


@given(st.integers(1, 7))
def test_shards_share_a_plan_out_without_rest_and_keep_problems_whole(count: int) -> None:
    plan = make_small_plan()
    shards = [plan.shard(i + 1, count) for i in range(count)]
    numbers = sorted(item.number for shard in shards for item in shard)
    assert numbers == list(range(len(plan.items)))
    for problem in plan.problems:
        assert sum(any(i.problem == problem for i in shard) for shard in shards) == 1


@pytest.mark.parametrize(("index", "count"), [(0, 4), (5, 4), (1, 0)])
def test_a_shard_out_of_range_is_an_error(plan: Plan, index: int, count: int) -> None:
    with pytest.raises(UsageError, match=rf"shard {index}/{count} does not exist; give i/n"):
        plan.shard(index, count)


@pytest.mark.parametrize("text", ["3", "a/b", "1-4", "/", "1/4/2", "-1/4"])
def test_a_shard_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"give i/n, e.g. 1/4"):
        parse_shard(text)
    assert parse_shard("2/4") == (2, 4)


def test_a_plan_of_another_version_names_both(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    altered(tmp_path / "plan.json", perfmodel_plan=7)
    with pytest.raises(SchemaMismatchError, match="version 7, and this perfmodel reads version 1"):
        load_plan(tmp_path / "plan.json")


def test_an_altered_or_truncated_or_foreign_file_is_no_plan(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(MissingDataError, match="perfmodel collect plan"):
        load_plan(path)
    plan.save(path)
    whole = path.read_text(encoding="utf-8")
    altered(path, seed=99)
    with pytest.raises(CorruptFileError, match="was altered"):
        load_plan(path)
    path.write_text(whole[: len(whole) // 2], encoding="utf-8")
    with pytest.raises(CorruptFileError, match="cut short"):
        load_plan(path)
    for other in ("[1]", "{}", '{"perfmodel_plan": 1}'):
        path.write_text(other, encoding="utf-8")
        with pytest.raises(CorruptFileError, match="not a"):
            load_plan(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget(0.0),
        lambda: Budget(float("nan")),
        lambda: Budget(1.0, configs=0),
        lambda: Budget(1.0, problems=0),
        lambda: Budget(None, None),
        lambda: Settings(samples=0),
        lambda: Settings(limit_s=-1.0),
    ],
)
def test_impossible_budgets_and_settings_are_errors(make: object) -> None:
    with pytest.raises(UsageError, match=r"use|give"):
        make()  # type: ignore[operator]


def test_a_budget_too_small_for_one_problem_says_how_much_one_takes(shipped: object) -> None:
    with pytest.raises(UsageError, match=r"too few for one problem, which takes about 0.1"):
        make_plan(load_gpu("h100-sxm5"), [GEMM], ["bf16"], budget=Budget(0.01))


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(UsageError, match="did you mean 'gemm'"):
        family_of("gem")
