from __future__ import annotations

import pickle
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import perfmodel
from perfmodel.analytic.model import EVENT_TIMING_LAUNCH_S, LIMITERS
from perfmodel.errors import (
    AmbiguousGpuError,
    IllegalConfigError,
    InvalidConfigError,
    ModelFileError,
    ModelUnavailableWarning,
    RunFailedError,
    SchemaMismatchError,
    UnknownGpuError,
    UnsupportedDtypeError,
)
from perfmodel.hardware.catalog import load_gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.space import candidate_configs

H100 = "h100-sxm5"
FLOOR_US = EVENT_TIMING_LAUNCH_S * 1e6
SQUARE = Gemm(4096, 4096, 4096)
TILE = TileConfig(128, 128, 64, num_warps=4, num_stages=3)


@pytest.fixture
def analytic() -> Predictor:
    return Predictor(analytic_only=True)


@pytest.fixture
def learned(correction: object) -> Predictor:
    return Predictor(correction)


# --- one answer


def test_an_answer_is_consistent_in_itself(learned: Predictor) -> None:
    found = learned.predict(SQUARE, H100, TILE)
    low, high = found.interval_us
    assert FLOOR_US <= low < found.latency_us < high
    assert found.coverage == 0.9
    assert found.tflops == pytest.approx(SQUARE.flops / found.latency_us / 1e6)
    assert found.share_of_peak == pytest.approx(found.tflops / 989.4)
    assert 0.1 < found.share_of_peak <= 1
    assert found.limiter == max(found.breakdown_us, key=found.breakdown_us.__getitem__)
    assert set(found.breakdown_us) == set(LIMITERS)
    assert max(found.breakdown_us.values()) <= found.latency_us * 1.0001
    assert found.waves == pytest.approx(1024 / (132 * found.occupancy))
    assert (found.gpu, found.config, found.notes) == (H100, TILE, ())


def test_without_a_config_the_best_of_the_ranking_is_taken(learned: Predictor) -> None:
    found = learned.predict(SQUARE, H100)
    ranking = learned.rank(SQUARE, H100)
    space = candidate_configs(SQUARE, load_gpu(H100))
    assert found.config == ranking.best == space.configs[learned.decide(SQUARE, H100, space)]
    assert found.latency_us == pytest.approx(ranking.candidates[0].latency_us)


def test_the_learned_part_multiplies_the_estimate(correction: object, analytic: Predictor) -> None:
    before = analytic.predict(SQUARE, H100, TILE).latency_us
    correction.log_factor = np.log(1.25)
    after = Predictor(correction).predict(SQUARE, H100, TILE).latency_us
    assert after == pytest.approx(1.25 * before)


def test_a_wild_correction_cannot_beat_physics(correction: object) -> None:
    correction.log_factor = -20.0
    found = Predictor(correction).predict(SQUARE, H100)
    assert found.share_of_peak == pytest.approx(1.0)
    small = Predictor(correction).predict(Gemm(16, 16, 16), H100)
    assert small.latency_us >= FLOOR_US * 0.9999
    streamed = Gemm(1, 65536, 8192)
    bytes_per_s = (
        streamed.compulsory_bytes / Predictor(correction).predict(streamed, H100).latency_us
    )
    assert bytes_per_s * 1e-3 <= 3352 * 1.001


def test_the_same_question_gets_the_same_answer(learned: Predictor) -> None:
    assert learned.predict(SQUARE, H100) == learned.predict(SQUARE, H100)
    assert learned.rank(SQUARE, H100) == learned.rank(SQUARE, H100)


def test_answers_survive_a_worker_process(learned: Predictor) -> None:
    for answer in (learned.predict(SQUARE, H100), learned.rank(SQUARE, H100, top=3)):
        assert pickle.loads(pickle.dumps(answer)) == answer
    explanation = learned.explain(SQUARE, H100)
    assert pickle.loads(pickle.dumps(explanation)) == explanation


def test_module_functions_use_the_shipped_model(shipped: object) -> None:
    assert perfmodel.predict(SQUARE, gpu=H100).model == "fake-1"
    assert perfmodel.rank(SQUARE, gpu=H100, configs=[TILE]).model == "fake-1"
    assert perfmodel.explain(SQUARE, gpu=H100).prediction.model == "fake-1"


# --- sizes


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (0, 0, 0), (64, 64, 64, 0)])
def test_no_work_takes_the_launch_overhead(learned: Predictor, sizes: tuple[int, ...]) -> None:
    found = learned.predict(Gemm(*sizes), H100)
    assert found.latency_us == pytest.approx(FLOOR_US, rel=1e-3)
    assert (found.tflops, found.share_of_peak, found.waves) == (0, 0, 0)
    assert (found.limiter, found.basis) == ("launch", "analytic")
    assert "no work" in found.notes[0]
    assert learned.rank(Gemm(*sizes), H100).candidates


def test_without_products_zeros_are_still_written(learned: Predictor) -> None:
    small, large = (learned.predict(Gemm(m, 8192, 0), H100).latency_us for m in (16, 65536))
    assert large > 320  # us for 1 GiB of zeros at 3352 GB/s
    assert small > FLOOR_US
    assert "writes zeros" in learned.predict(Gemm(16, 16, 0), H100).notes[0]


def test_huge_work_is_exact(learned: Predictor) -> None:
    problem = Gemm(65536, 65536, 65536)
    found = learned.predict(problem, H100)
    assert problem.flops == 2 * 65536**3
    assert 0.284 < found.latency_us * 1e-6 < 1.5  # s; 0.284 at the dense peak
    assert found.notes[0].startswith("A, B and C have more than 2^31 elements")
    explained = learned.explain(problem, H100)
    assert explained.traffic.flops == 562949953421312
    assert explained.traffic.compulsory_bytes == 3 * 2 * 65536**2
    assert np.prod([explained.schedule.ctas, found.config.block_m, found.config.block_n]) == 2**32


@pytest.mark.parametrize("problem", [Gemm(1, 4096, 4096), Gemm(4096, 1, 4096), Gemm(1, 1, 1)])
def test_vectors_and_scalars(learned: Predictor, problem: Gemm) -> None:
    found = learned.predict(problem, H100)
    assert found.latency_us < 40
    assert found.limiter in ("dram", "l2", "latency", "launch", "smem", "issue")


def test_odd_strides_are_slower_and_say_so(learned: Predictor) -> None:
    packed = learned.predict(SQUARE, "a100-sxm4-80gb", TILE)
    odd = learned.predict(Gemm(4096, 4096, 4096, lda=4097), "a100-sxm4-80gb", TILE)
    assert odd.latency_us >= packed.latency_us
    assert "A is read 2 bytes at a time" in odd.notes[0]
    assert not packed.notes


def test_operands_larger_than_the_memory_are_noted(learned: Predictor) -> None:
    found = learned.predict(Gemm(262144, 262144, 4096), "a10")
    assert any("GiB of a10" in note for note in found.notes)


# GB3: trees are flat outside their data; the estimate carries the answer on.
def test_time_keeps_growing_far_outside_the_data(learned: Predictor) -> None:
    times = [learned.predict(Gemm(2**e, 4096, 4096), H100, TILE).latency_us for e in range(7, 24)]
    growth = np.array(times[1:]) / times[:-1]
    assert (growth >= 1 - 1e-9).all()
    assert growth[-8:] == pytest.approx(2, rel=0.05)


# PR11: no grid of shapes to fall off, and never under the floor.
@pytest.mark.parametrize("m", [1, 3, 17, 127, 1000, 4097])
def test_any_shape_is_answered(learned: Predictor, m: int) -> None:
    found = learned.predict(Gemm(m, 1234, 777, a_dtype="fp16"), H100)
    assert found.interval_us[0] >= FLOOR_US
    assert np.isfinite(found.latency_us)


# PR4: unequal sizes are neither averaged nor rounded.
def test_a_list_of_unequal_problems(learned: Predictor) -> None:
    problems = [Gemm(m, 4096, 4096) for m in (1, 17, 300, 4001)]
    times = learned.latency_us(problems, H100, TILE)
    assert times == pytest.approx([learned.predict(p, H100, TILE).latency_us for p in problems])
    mean = learned.predict(Gemm(sum(p.m for p in problems) // 4, 4096, 4096), H100, TILE)
    assert times.sum() != pytest.approx(4 * mean.latency_us, rel=0.01)


# --- many at once


def test_arrays_in_arrays_out(learned: Predictor) -> None:
    configs = ConfigTable.of([TILE, replace(TILE, block_m=64), replace(TILE, num_stages=2)])
    one = learned.latency_us(SQUARE, H100, configs)
    assert one == pytest.approx(
        [learned.predict(SQUARE, H100, c).latency_us for c in configs.configs]
    )
    table = GemmTable.of_problems([SQUARE, Gemm(64, 64, 64), Gemm(1, 4096, 4096)])
    paired = learned.latency_us(table, H100, configs)
    assert paired[0] == one[0]
    assert learned.latency_us(table, H100, TILE).shape == (3,)
    best = learned.latency_us([SQUARE, Gemm(64, 64, 64)], H100)
    assert best[0] == learned.predict(SQUARE, H100).latency_us


def test_problems_of_several_types_at_once(learned: Predictor) -> None:
    problems = [SQUARE, replace_dtype(SQUARE, "fp8_e4m3"), SQUARE, replace_dtype(SQUARE, "fp32")]
    times = learned.latency_us(problems, H100, TILE)
    assert times[0] == times[2]
    assert len(set(times)) == 3
    assert max(times) == times[3]
    paired = learned.latency_us(problems, H100, ConfigTable.of([TILE] * 4))
    assert paired == pytest.approx(times)


def replace_dtype(problem: Gemm, dtype: str) -> Gemm:
    return Gemm(problem.m, problem.n, problem.k, a_dtype=dtype)


def test_what_cannot_run_takes_for_ever(learned: Predictor) -> None:
    configs = ConfigTable.of([TILE, TileConfig(256, 256, 128, num_stages=5)])
    assert np.isinf(learned.latency_us(SQUARE, H100, configs)).tolist() == [False, True]


def test_numbers_that_do_not_pair_up(learned: Predictor) -> None:
    with pytest.raises(InvalidConfigError, match="2 problems and 3 configs"):
        learned.latency_us([SQUARE, SQUARE], H100, ConfigTable.of([TILE] * 3))


def test_a_decision_builds_no_objects(learned: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = load_gpu(H100)
    space = candidate_configs(SQUARE, gpu)
    learned.decide(SQUARE, gpu, space)

    def refuse(config: TileConfig) -> None:
        raise AssertionError("a TileConfig was built")

    monkeypatch.setattr(TileConfig, "__post_init__", refuse)
    assert 0 <= learned.decide(SQUARE, gpu, space) < len(space)


# --- basis


def test_measured_devices_are_interpolated(learned: Predictor) -> None:
    found = learned.predict(SQUARE, H100, TILE)
    assert (found.basis, found.model) == ("interpolated", "fake-1")
    assert found.expected_error == 0.04  # of this GPU and type
    fp16 = learned.predict(replace_dtype(SQUARE, "fp16"), H100, TILE)
    assert fp16.expected_error == 0.05  # of the GPU


@pytest.mark.parametrize(
    ("gpu", "dtype", "note"),
    [
        ("l40s", "bf16", "l40s was never measured"),
        (H100, "fp8_e4m3", "fp8_e4m3 was never measured on h100-sxm5"),
    ],
)
def test_others_are_extrapolated_with_a_wider_interval(
    learned: Predictor, gpu: str, dtype: str, note: str
) -> None:
    found = learned.predict(replace_dtype(SQUARE, dtype), gpu)
    seen = learned.predict(SQUARE, H100)
    assert (found.basis, found.expected_error) == ("extrapolated", None)
    assert note in found.notes[0]
    assert found.interval_us[1] / found.latency_us > 1.2 * seen.interval_us[1] / seen.latency_us


def test_a_launch_outside_what_was_measured_is_flagged(correction: object) -> None:
    correction.covered = False
    found = Predictor(correction).predict(SQUARE, H100, TILE)
    assert found.basis == "extrapolated"
    assert "outside what was measured" in found.notes[0]


def test_without_a_model_the_answer_is_analytic(analytic: Predictor) -> None:
    found = analytic.predict(SQUARE, H100, TILE)
    assert (found.basis, found.model, found.expected_error) == ("analytic", None, None)
    assert found.interval_us[1] / found.interval_us[0] > 1.3


class Table:
    """A measured table of one configuration."""

    def find(self, problem: Gemm, config: TileConfig, gpu: str) -> float | None:
        return 223.0 if (problem, config, gpu) == (SQUARE, TILE, H100) else None


def test_a_measured_time_is_preferred(correction: object) -> None:
    predictor = Predictor(correction, measured=Table())
    found = predictor.predict(SQUARE, H100, TILE)
    assert (found.latency_us, found.basis, found.expected_error) == (223.0, "measured", None)
    assert found.interval_us == pytest.approx((223 * 0.98, 223 * 1.02), rel=1e-3)
    other = predictor.predict(SQUARE, H100, replace(TILE, num_warps=8))
    assert other.basis == "interpolated"
    slower = replace(TILE, block_m=32)
    ranking = predictor.rank(SQUARE, H100, [slower, TILE])
    assert [c.basis for c in ranking.candidates] == ["measured", "interpolated"]
    assert ranking.candidates[0].latency_us == pytest.approx(223.0)
    assert predictor.decide(SQUARE, H100, ConfigTable.of([slower, TILE])) == 1


# --- models that cannot be loaded (GB2)


def test_a_missing_shipped_model_means_one_warning(no_shipped: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [Predictor().predict(SQUARE, H100) for _ in range(3)]
    assert [w.category for w in caught] == [ModelUnavailableWarning]
    assert "answers are analytic" in str(caught[0].message)
    assert {a.basis for a in answers} == {"analytic"}


@pytest.mark.parametrize("what", ["truncated", "no engine"])
def test_a_shipped_model_that_cannot_answer_means_one_warning(
    no_shipped: None, model_file: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".json", ".npz"):
        part = model_file.with_suffix(suffix)
        target = model_file.parent / "models" / f"gemm{suffix}"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(part.read_bytes().replace(b'"tiny.npz"', b'"gemm.npz"'))
    if what == "truncated":
        target.write_bytes(target.read_bytes()[:-100])
    else:
        monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.warns(ModelUnavailableWarning) as caught:
        found = Predictor().predict(SQUARE, H100)
    assert (len(caught), found.basis) == (1, "analytic")


def test_a_model_of_the_user_s_is_used(model_file: Path, analytic: Predictor) -> None:
    found = Predictor(model_file).predict(SQUARE, H100, TILE)
    assert (found.model, found.basis) == ("tiny-1", "interpolated")
    before = analytic.predict(SQUARE, H100, TILE).latency_us
    assert found.latency_us == pytest.approx(before * np.exp(0.1), rel=1e-4)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_truncated_model_of_the_user_s_is_an_error(
    model_file: Path, suffix: str, keep: float
) -> None:
    part = model_file.with_suffix(suffix)
    whole = part.read_bytes()
    part.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(ModelFileError, match="tiny"):
        Predictor(model_file)


def test_a_missing_or_foreign_model_of_the_user_s_is_an_error(
    model_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.json"):
        Predictor(tmp_path / "absent.json")
    text = model_file.read_text()
    model_file.write_text(text.replace('"schema": "gemm-', '"schema": "other-'))
    with pytest.raises(SchemaMismatchError, match="other-"):
        Predictor(str(model_file))


# GB4: trees answer for NaN and infinity too, so features are checked.
def test_features_that_are_not_finite_are_refused(learned: Predictor) -> None:
    gpu = replace(load_gpu(H100), l2_bytes=float("nan"))
    with pytest.raises(RunFailedError, match="footprint_over_l2"):
        learned.predict(SQUARE, gpu, TILE)


# --- devices


# PR10: no silent substitute, no part of a name taken for the whole.
def test_devices_are_what_they_are_called(learned: Predictor) -> None:
    for name in ("RTX 3070 Ti", "unknown", "h1000"):
        with pytest.raises(UnknownGpuError):
            learned.predict(SQUARE, name)
    with pytest.raises(AmbiguousGpuError, match="h100-pcie"):
        learned.predict(SQUARE, "H100")
    names = {n: learned.predict(SQUARE, n) for n in ("a10", "a100-sxm4-80gb", "b300", "h100-pcie")}
    assert [p.gpu for p in names.values()] == list(names)
    assert names["a10"].latency_us > 1.5 * names["a100-sxm4-80gb"].latency_us
    assert all(p.share_of_peak <= 1 for p in names.values())
    assert names["h100-pcie"].latency_us > learned.predict(SQUARE, H100).latency_us


def test_a_type_that_the_device_lacks(learned: Predictor) -> None:
    with pytest.raises(UnsupportedDtypeError, match="t4 has no arithmetic for bf16; it has: fp16"):
        learned.predict(SQUARE, "t4")


# HW13: no cut-off by the number of SMs, and the real number counts.
@pytest.mark.parametrize("sm_count", [1, 16, 48])
def test_small_devices_work(learned: Predictor, sm_count: int) -> None:
    gpu = replace(load_gpu("rtx-3090"), name="small", sm_count=sm_count)
    found = learned.predict(SQUARE, gpu, TILE)
    assert found.waves == pytest.approx(1024 / (sm_count * found.occupancy))
    whole = learned.predict(SQUARE, "rtx-3090", TILE)
    assert found.latency_us > whole.latency_us
    assert learned.rank(SQUARE, gpu).candidates


# HW3, HW4, HW9: the exact device decides; the message names what to lower and what fits.
def test_an_illegal_config_is_refused_with_one_that_fits(learned: Predictor) -> None:
    config = TileConfig(128, 256, 64, num_warps=8, num_stages=4)
    learned.predict(SQUARE, "a100-sxm4-80gb", config)
    with pytest.raises(IllegalConfigError) as refused:
        learned.predict(SQUARE, "rtx-5090", config)
    text = str(refused.value)
    for part in ("rtx-5090", "147,456", "101,376", "num_stages", "block_k", "nearest that fits"):
        assert part in text
    change = text.split("nearest that fits: ")[1]
    learned.predict(SQUARE, "rtx-5090", TileConfig.from_mapping(config.to_dict() | {
        name: int(value) for name, value in (p.split("=") for p in change.split(","))
    }))  # fmt: skip


def test_the_textbook_formula_would_reject_what_fits(learned: Predictor) -> None:
    config = TileConfig(128, 256, 64, num_warps=8, num_stages=3)  # 3 stages of 49,152 B: 147,456
    ranking = learned.rank(SQUARE, "rtx-5090", [config, replace(config, num_stages=4)])
    assert [c.config for c in ranking.candidates] == [config]
    assert ranking.rejected[0].position == 1
    assert ranking.rejected[0].reasons[0].available == 101376


def test_what_is_remembered_of_configs_belongs_to_one_device(learned: Predictor) -> None:
    configs = ConfigTable.of([TILE])
    times = {}
    for name in (H100, "a100-sxm4-80gb", "rtx-4090", H100):
        for dtype in ("fp16", "fp8_e4m3" if name != "a100-sxm4-80gb" else "fp16", "fp32"):
            problem = replace_dtype(SQUARE, dtype)
            fresh = learned.latency_us(problem, name, ConfigTable.of([TILE]))
            assert learned.latency_us(problem, name, configs) == fresh
            times[name, dtype] = float(fresh[0])
    assert len(set(times.values())) == len(times)
    moved = pickle.loads(pickle.dumps(configs))
    assert learned.latency_us(SQUARE, H100, moved) == learned.latency_us(SQUARE, H100, configs)


def test_what_a_config_costs_elsewhere_is_noted(learned: Predictor) -> None:
    slow = TileConfig(64, 64, 128, num_warps=1, num_stages=4)
    spilled = TileConfig(128, 256, 32, num_warps=4)
    for config, text in ((slow, "slow to compile"), (spilled, "registers spill")):
        notes = learned.predict(SQUARE, "a100-sxm4-80gb", config).notes
        assert any(text in note for note in notes)
