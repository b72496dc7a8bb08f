from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import IllegalConfigError, InvalidConfigError, UnknownGpuError
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.space import candidate_configs

H100 = "h100-sxm5"
SQUARE = Gemm(4096, 4096, 4096)
TILE = TileConfig(128, 128, 64, num_warps=4, num_stages=3)
TOO_BIG = TileConfig(256, 256, 128, num_warps=8, num_stages=5)


@pytest.fixture
def learned(correction: object) -> Predictor:
    return Predictor(correction)


def test_all_candidates_in_order(learned: Predictor) -> None:
    ranking = learned.rank(SQUARE, H100)
    space = candidate_configs(SQUARE, load_gpu(H100))
    times = [c.latency_us for c in ranking.candidates]
    assert times == sorted(times)
    assert [c.rank for c in ranking.candidates] == list(range(1, len(space) + 1))
    assert {c.config for c in ranking.candidates} == set(space.configs)
    assert ranking.candidates[0].slowdown == 1
    for candidate in ranking.candidates[:50]:
        assert space.configs[candidate.position] == candidate.config
        assert candidate.slowdown == pytest.approx(candidate.latency_us / times[0])


def test_every_other_tile_is_rejected_with_a_reason(learned: Predictor) -> None:
    ranking = learned.rank(SQUARE, H100)
    chosen = {c.config for c in ranking.candidates}
    assert chosen.isdisjoint(r.config for r in ranking.rejected)
    assert len(chosen) + len(ranking.rejected) == 2000
    limits = {reason.limit for r in ranking.rejected for reason in r.reasons}
    assert {"shared memory per block in bytes", "spilled bytes per thread"} <= limits
    assert all(r.reasons for r in ranking.rejected)
    assert all(reason.needed > reason.available for r in ranking.rejected for reason in r.reasons)


def test_a_small_problem_rejects_tiles_larger_than_itself(learned: Predictor) -> None:
    ranking = learned.rank(Gemm(16, 4096, 4096), H100)
    assert {c.config.block_m for c in ranking.candidates} == {16}
    assert any("block_m for this problem" in r.limit for x in ranking.rejected for r in x.reasons)


def test_only_the_first_few_may_be_asked_for(learned: Predictor) -> None:
    whole, few = learned.rank(SQUARE, H100), learned.rank(SQUARE, H100, top=3)
    assert few.candidates == whole.candidates[:3]
    assert few.considered == whole.considered == len(whole.candidates)
    assert few.unsure == whole.unsure
    assert not learned.rank(SQUARE, H100, with_rejected=False).rejected


def test_the_users_own_list_keeps_its_positions(learned: Predictor) -> None:
    own = [TOO_BIG, TILE, replace(TILE, block_m=16, num_warps=1)]
    ranking = learned.rank(SQUARE, H100, own)
    assert [c.position for c in ranking.candidates] == [1, 2]
    assert [(r.position, r.config) for r in ranking.rejected] == [(0, TOO_BIG)]
    assert ranking.rejected[0].reasons[0].limit == "shared memory per block in bytes"
    assert learned.rank(SQUARE, H100, ConfigTable.of(own)).candidates == ranking.candidates


def test_a_config_listed_twice_is_ranked_twice(learned: Predictor) -> None:
    ranking = learned.rank(SQUARE, H100, [TILE, TILE])
    assert [(c.position, c.slowdown) for c in ranking.candidates] == [(0, 1), (1, 1)]


def test_unknown_parameters_stay_with_their_config(learned: Predictor) -> None:
    own = TileConfig.from_mapping({"BLOCK_M": 64, "USE_TMA": True}, keep_unknown=True)
    ranking = learned.rank(SQUARE, H100, [own])
    assert ranking.to_dict()["candidates"][0]["config"]["USE_TMA"] is True
    assert any("not modelled: USE_TMA" in note for note in ranking.notes)


def test_an_empty_list_is_an_error(learned: Predictor) -> None:
    with pytest.raises(InvalidConfigError, match="empty"):
        learned.rank(SQUARE, H100, [])
    with pytest.raises(InvalidConfigError, match="empty"):
        learned.decide(SQUARE, H100, ConfigTable.of([]))


# HW1: where nothing can run nothing is chosen, and each says why.
def test_where_nothing_can_run_each_reason_is_given(learned: Predictor) -> None:
    own = [TOO_BIG, replace(TOO_BIG, num_stages=4)]
    with pytest.raises(IllegalConfigError) as refused:
        learned.rank(SQUARE, "rtx-4090", own)
    text = str(refused.value)
    assert "no usable config" in text
    assert all(str(config) in text for config in own)
    assert text.count("limit 101,376") == 2
    with pytest.raises(IllegalConfigError):
        learned.decide(SQUARE, "rtx-4090", ConfigTable.of(own))


# HW4: on sm_120 the one of 106,496 B is out and the one of 98,304 B is chosen.
def test_the_config_that_fits_is_chosen(learned: Predictor) -> None:
    fits = TileConfig(128, 256, 64, num_warps=8, num_stages=3)
    does_not = TileConfig(16, 256, 64, num_warps=8, num_stages=4)  # 3 x 34,816 B
    table = ConfigTable.of([does_not, fits])
    assert learned.decide(SQUARE, "rtx-5090", table) == 1
    assert learned.decide(SQUARE, "rtx-5090", table.take(np.array([1]))) == 0


class Ordered:
    """A correction that makes the listed configurations this much slower than the estimate."""

    def __init__(self, fake: object, logs: Sequence[float]) -> None:
        self.fake, self.logs = fake, np.array(logs)

    def __getattr__(self, name: str) -> object:
        return getattr(self.fake, name)

    def for_device(self, gpu_name: str) -> Ordered:
        return self

    def log_correction(self, features: np.ndarray) -> np.ndarray:
        return self.logs[: len(features)] if len(features) > 1 else self.logs[:1] * 0

    def rough_correction(self, features: np.ndarray) -> np.ndarray:
        return self.log_correction(features)

    def remaining_correction(self, features: np.ndarray) -> np.ndarray:
        return np.zeros(len(features))

    def preference(self, features: np.ndarray) -> np.ndarray:
        return np.zeros(len(features))


# PR12: when the gap is within the model's error the answer is "unsure".
@pytest.mark.parametrize(
    ("gpu", "logs", "unsure"),
    [
        (H100, [0.0, 0.2, 0.3], 1),
        (H100, [0.0, 0.02, 0.3], 2),
        (H100, [0.3, 0.32, 0.3], 3),
        ("l40s", [0.0, 0.1, 0.15], 3),  # never measured: it abstains
    ],
)
def test_candidates_that_cannot_be_told_apart(
    correction: object, gpu: str, logs: list[float], unsure: int
) -> None:
    predictor = Predictor(Ordered(correction, logs))
    assert predictor.rank(SQUARE, gpu, [TILE, TILE, TILE]).unsure == unsure


def test_the_fastest_is_the_one_with_the_lowest_score(correction: object) -> None:
    predictor = Predictor(Ordered(correction, [0.15, 0.0, 0.1]))
    ranking = predictor.rank(SQUARE, H100, [TILE, TILE, TILE])
    assert [c.position for c in ranking.candidates] == [1, 2, 0]
    assert predictor.decide(SQUARE, H100, ConfigTable.of([TILE] * 3)) == 1


@pytest.mark.parametrize("config", [{"block_m": 64}, "block_m=64", None])
def test_what_is_no_config_is_named(learned: Predictor, config: object) -> None:
    with pytest.raises(InvalidConfigError, match="is not a TileConfig"):
        learned.rank(SQUARE, H100, [config])  # type: ignore[list-item] # on purpose


@pytest.mark.parametrize("gpu", [None, 90, ["h100-sxm5"]])
def test_what_is_no_device_is_named(learned: Predictor, gpu: object) -> None:
    with pytest.raises(UnknownGpuError, match="perfmodel gpus"):
        learned.predict(SQUARE, gpu)  # type: ignore[arg-type] # on purpose
