"""A few measured problems correct a model for one device; and how good the best known tiles are."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import DataError
from perfmodel.learned.adapt import Gain, adapt
from perfmodel.learned.booster import TrainSpec
from perfmodel.learned.feature_table import FeatureTable
from perfmodel.learned.model import GemmModel
from perfmodel.learned.training import fit_gemm

pytest.importorskip("xgboost")

NAMES = ("block", "warps", "stages", "roofline_share", "intensity_over_balance", "balance")
TINY = TrainSpec("tiny", 40, 20, depth=3, learning_rate=0.3)
CONFIGS = 12


def measured(gpu: str, problems: int, *, shift: float, first: int = 0) -> FeatureTable:
    """Configurations of problems: what they cost depends on the block, how much on the device."""
    rng = np.random.default_rng([first, problems])
    rows = problems * CONFIGS
    problem = np.repeat(np.arange(first, first + problems), CONFIGS)
    features = rng.uniform(0, 3, (rows, len(NAMES))).astype(np.float32)
    features[:, 3] = -rng.uniform(0, 2, rows)  # log2 of roofline over analytic
    features[:, 4] = np.repeat(rng.uniform(0, 3, problems), CONFIGS)
    features[:, 5] = shift
    analytic = np.exp(rng.uniform(-12, -8, problems))[problem - first]
    effect = 0.3 * features[:, 0] + shift * (features[:, 1] > 1.5) + shift
    return FeatureTable(
        features=features,
        names=NAMES,
        analytic_s=analytic,
        latency_s=analytic * np.exp(effect + rng.normal(scale=0.005, size=rows)),
        gpu=np.full(rows, gpu, dtype=object),
        dtype=np.full(rows, "fp16", dtype=object),
        problem=problem,
    )


@pytest.fixture(scope="module")
def base() -> GemmModel:
    table = measured("a100-sxm4-80gb", 40, shift=0.0)
    folds = [(table.problem % 2 != i, table.problem % 2 == i) for i in range(2)]
    return fit_gemm(table, folds, TINY)[0]


@pytest.fixture(scope="module")
def corrected(base: GemmModel) -> tuple[GemmModel, Gain]:
    model, gains = adapt(base, measured("b200", 12, shift=0.4, first=100))
    return model, gains["b200"]


def error(model: GemmModel, table: FeatureTable) -> float:
    return float(np.abs(model.log_correction(table.features) - table.target).mean())


def test_a_few_problems_correct_the_rest_of_a_new_device(
    base: GemmModel, corrected: tuple[GemmModel, Gain]
) -> None:
    new = measured("b200", 50, shift=0.4, first=500)
    model, gain = corrected
    assert error(model.for_device("b200"), new) < 0.4 * error(base, new)
    assert gain.error_after < gain.error_before
    assert (gain.problems, gain.rows) == (12, 12 * CONFIGS)
    assert model.for_device("b200").knows("b200", "fp16")
    assert model.for_device("b200").accuracy["b200"]["error_mean"] == gain.error_after


def test_other_devices_are_answered_as_before(
    base: GemmModel, corrected: tuple[GemmModel, Gain]
) -> None:
    rows = measured("a100-sxm4-80gb", 10, shift=0.0, first=900).features
    same = corrected[0].for_device("a100-sxm4-80gb")
    np.testing.assert_array_equal(same.log_correction(rows), base.log_correction(rows))
    np.testing.assert_array_equal(same.preference(rows), base.preference(rows))
    assert not same.knows("b200", "fp16")


def test_intervals_of_the_device_hold_afterwards(corrected: tuple[GemmModel, Gain]) -> None:
    model = corrected[0].for_device("b200")
    new = measured("b200", 60, shift=0.4, first=700)
    off = np.abs(new.target - model.log_correction(new.features))
    _, high = model.log_interval(new.features, known=True)
    assert (off <= high).mean() > 0.8


def test_the_name_of_the_model_says_what_was_added(
    base: GemmModel, corrected: tuple[GemmModel, Gain]
) -> None:
    assert corrected[0].version == f"{base.version}+b200"


def test_one_problem_is_too_few(base: GemmModel) -> None:
    with pytest.raises(DataError, match="1 measured problem of b200"):
        adapt(base, measured("b200", 1, shift=0.4))


def test_the_ceiling_is_what_the_best_known_launches_reach_whatever_the_tile(
    base: GemmModel,
) -> None:
    table = measured("a100-sxm4-80gb", 40, shift=0.0)
    ceiling_s = table.analytic_s * np.exp(base.log_ceiling(table.features))
    roofline_s = table.analytic_s * np.exp2(table.features[:, 3].astype(float))
    share = ceiling_s / roofline_s
    for problem in range(40):  # the tile does not enter
        rows = table.problem == problem
        assert np.ptp(share[rows]) < 1e-4 * share[rows].mean()
