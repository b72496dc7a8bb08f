"""The order of tiles that autotuning winners taught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import ModelFileError, SchemaMismatchError
from perfmodel.families.tile_model import shipped_tile_preference
from perfmodel.hardware.catalog import load_gpu
from perfmodel.learned.tile_preference import (
    PlaceRule,
    TilePreference,
    load_tile_preference,
    places,
    save_tile_preference,
)
from perfmodel.predictor import Predictor
from perfmodel.problems.attention import Attention
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig

PREFILL = Attention(batch=4, q_len=4096, kv_len=4096, q_heads=32, kv_heads=8, head_dim=128)
DECODE = Attention(batch=8, q_len=1, kv_len=4096, q_heads=32, kv_heads=8, head_dim=128)
MIXTRAL = GroupedGemm(tokens=64, experts=8, top_k=2, hidden=4096, intermediate=14336)


@pytest.fixture(params=["attention", "moe"])
def shipped(request: pytest.FixtureRequest) -> TilePreference:
    found = shipped_tile_preference(request.param)
    assert found is not None, f"perfmodel/models has no tiles-{request.param} that loads"
    return found


@given(st.lists(st.sampled_from([16, 32, 64]), min_size=1, max_size=40), st.integers(1, 3))
def test_no_tile_takes_more_than_its_share_of_the_first_places(
    blocks: list[int], most: int
) -> None:
    configs = ConfigTable.of(
        TileConfig(m, 64, 64, num_stages=1 + i % 7) for i, m in enumerate(blocks)
    )
    disliked = np.arange(len(blocks), dtype=np.float64)
    place = places(disliked, np.zeros(len(blocks)), configs, PlaceRule(per_tile=most))
    order = np.argsort(place)
    assert sorted(order) == list(range(len(blocks)))
    room = sum(min(blocks.count(kind), most) for kind in set(blocks))
    for first in range(1, room + 1):
        taken = [blocks[i] for i in order[:first]]
        assert max(taken.count(kind) for kind in set(taken)) <= most


def test_what_physics_calls_far_slower_comes_after_the_rest() -> None:
    configs = ConfigTable.of(
        [TileConfig(16, 16, 16), TileConfig(32, 16, 16), TileConfig(64, 16, 16)]
    )
    disliked, over_best = np.array([0.0, 2.0, 1.0]), np.array([0.5, 0.1, 0.0])
    assert list(np.argsort(places(disliked, over_best, configs, PlaceRule(reach=0.2)))) == [2, 1, 0]
    assert list(np.argsort(places(disliked, over_best, configs, PlaceRule()))) == [0, 2, 1]


def test_the_pair_of_files_gives_the_trees_back(shipped: TilePreference, tmp_path: Path) -> None:
    save_tile_preference(shipped, tmp_path / "mine.json")
    found = load_tile_preference(shipped.manifest.family, tmp_path / "mine.json")
    assert found.manifest == shipped.manifest
    features = np.random.default_rng(0).normal(size=(50, found.trees.features)).astype(np.float32)
    np.testing.assert_array_equal(found.trees.predict(features), shipped.trees.predict(features))


def test_files_of_something_else_are_named(shipped: TilePreference, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_tile_preference(shipped, path)
    other = "moe" if shipped.manifest.family == "attention" else "attention"
    with pytest.raises(ModelFileError, match=f"not a tile-preference of {other}"):
        load_tile_preference(other, path)
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text | {"schema": "tiles-0"}))
    with pytest.raises(
        SchemaMismatchError, match=f"perfmodel train tiles {shipped.manifest.family}"
    ):
        load_tile_preference(shipped.manifest.family, path)
    path.write_text(json.dumps({**text, "features": text["features"][1:]}))
    with pytest.raises(ModelFileError, match="features"):
        load_tile_preference(shipped.manifest.family, path)


def test_the_shipped_trees_say_how_often_held_out_winners_are_among_the_first(
    shipped: TilePreference,
) -> None:
    hits = {int(k): share for k, share in shipped.manifest.accuracy["hit"].items()}
    assert list(hits.values()) == sorted(hits.values())
    assert hits[1] > 0.5
    leaders = shipped.leaders(shipped.manifest.gpus[0])
    assert hits[leaders] >= 0.9
    assert all(hits[k] < 0.9 for k in hits if k < leaders)
    assert shipped.leaders("rtx-4090") == max(hits)


@pytest.mark.parametrize(
    ("problem", "gpu"),
    [
        (PREFILL, "h100-sxm5"),
        (PREFILL, "h200-sxm"),
        (MIXTRAL, "a100-sxm4-80gb"),
        (MIXTRAL, "h20"),
        (MIXTRAL, "b200"),
        (MIXTRAL, "rtx-4090"),
    ],
)
def test_a_ranking_in_the_order_of_winners_says_so_and_times_are_the_estimates(
    problem: Attention | GroupedGemm, gpu: str
) -> None:
    ranking = Predictor().rank(problem, gpu)
    assert any("winners on" in note for note in ranking.notes)
    for candidate in ranking.candidates[:3]:
        alone = Predictor().predict(problem, gpu, candidate.config)
        assert candidate.latency_us == pytest.approx(alone.latency_us)
    assert ranking.unsure <= 20
    predicted = Predictor().predict(problem, gpu)
    assert predicted.config == ranking.best
    assert any("winners on" in note for note in predicted.notes)


@pytest.mark.parametrize(
    ("problem", "gpu"),
    [
        (PREFILL, "b200"),  # no winners on such a device
        (MIXTRAL, "mi300x"),
        (PREFILL, "a100-sxm4-80gb"),
        (DECODE, "h100-sxm5"),
        (
            Attention(
                batch=4, q_len=512, kv_len=512, q_heads=8, kv_heads=8, head_dim=64, backward=True
            ),
            "h100-sxm5",
        ),
        (
            GroupedGemm(
                tokens=64, experts=8, top_k=2, hidden=4096, intermediate=14336, dtype="fp8_e4m3"
            ),
            "h20",
        ),
        (
            GroupedGemm(
                tokens=64, experts=8, top_k=2, hidden=4096, intermediate=14336, projection="down"
            ),
            "h20",
        ),
    ],
)  # fmt: skip
def test_where_no_winner_is_alike_the_estimate_orders(
    problem: Attention | GroupedGemm, gpu: str
) -> None:
    ranking = Predictor().rank(problem, gpu)
    assert not any("winners on" in note for note in ranking.notes)
    assert ranking.best == Predictor(analytic_only=True).rank(problem, gpu).best


def test_without_the_learned_part_nothing_is_learned() -> None:
    notes = Predictor(analytic_only=True).rank(PREFILL, "h100-sxm5").notes
    assert not any("winners" in note for note in notes)


def test_no_work_has_an_order_too() -> None:
    nothing = GroupedGemm(tokens=0, experts=8, top_k=2, hidden=4096, intermediate=14336)
    assert Predictor().rank(nothing, "h20").candidates
    assert (
        Predictor()
        .rank(
            Attention(batch=1, q_len=0, kv_len=0, q_heads=8, kv_heads=8, head_dim=64), "h100-sxm5"
        )
        .candidates
    )


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_beyond_the_learned_sizes_a_pick_stays_near_the_least_estimate(tokens: int) -> None:
    """Mixtral's experts are five times those of any tuned table that was learned from."""
    problem = replace(MIXTRAL, tokens=tokens)
    learned = Predictor().rank(problem, "h100-sxm5").candidates[0].latency_us
    least = Predictor(analytic_only=True).rank(problem, "h100-sxm5").candidates[0].latency_us
    model = shipped_tile_preference("moe")
    assert model is not None
    assert learned <= least * np.exp(1.2 * model.manifest.rule.reach)


def test_a_mixture_of_experts_is_offered_the_depths_and_orders_of_tuned_tables() -> None:
    configs = [c.config for c in Predictor().rank(MIXTRAL, "h100-sxm5").candidates]
    assert {c.block_k for c in configs} >= {64, 128, 256}
    assert {c.group_m for c in configs} == {1, 16, 64}
    assert (
        load_gpu("h100-sxm5").architecture in shipped_tile_preference("moe").manifest.architectures
    )  # type: ignore[union-attr]  # asserted above
