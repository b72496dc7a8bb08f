from __future__ import annotations

import json

import pytest

from perfmodel.cli.app import main
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig

SIZES = ["--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16"]

pytestmark = pytest.mark.usefixtures("shipped")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["explain", "gemm", *SIZES, "--gpu", "a100-sxm4-80gb", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_explanation_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--config", "block_m=32,block_n=32,block_k=32")
    assert (code, err) == (0, "")
    for text in (
        "each resource by itself", "tensor", "16,384 CTAs of 128 threads, 128 trips each",
        "waves", "on 108 SMs", "limited by", "shared mem", "registers", "no spilling",
        "from DRAM", "moved most by", "f0", "x 1.350", "bound", "what to change first",
        "x faster",
    ):  # fmt: skip
        assert text in out
    assert max(map(len, out.splitlines())) <= 80
    assert out.isascii()


def test_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "perfmodel.explanation/1"
    assert {
        "latency_us", "interval_us", "limiter", "basis", "config", "breakdown_us", "schedule",
        "resources", "traffic", "analytic_us", "correction", "moved", "floor_us", "ceiling",
        "changes",
    } <= set(found)  # fmt: skip
    assert set(found["schedule"]) == {
        "ctas", "sm_count", "occupancy", "occupancy_limiter", "waves", "full_waves", "tail_ctas",
        "tail_fill", "iterations",
    }  # fmt: skip
    assert found["moved"][0] == {
        "feature": "f0", "value": pytest.approx(found["moved"][0]["value"]),
        "factor": pytest.approx(1.34986, rel=1e-4),
    }  # fmt: skip


def test_waves_and_tail_add_up(correction: object) -> None:
    found = Predictor(correction).explain(
        Gemm(4096, 4096, 4096), "a100-sxm4-80gb", TileConfig(128, 128, 64, num_warps=8)
    )
    s = found.schedule
    assert s.ctas == 1024
    assert s.full_waves * s.sm_count * s.occupancy + s.tail_ctas == s.ctas
    assert s.waves == pytest.approx(s.full_waves + s.tail_fill)
    assert s.iterations == 64
    assert found.floor_us <= found.prediction.latency_us
    assert found.correction == pytest.approx(found.prediction.latency_us / found.analytic_us)


@pytest.mark.parametrize(
    ("config", "limiter"),
    [
        (TileConfig(256, 128, 64, num_warps=8, num_stages=4), "shared memory"),
        (TileConfig(16, 16, 16, num_warps=16, num_stages=2), "warps per SM"),
        (TileConfig(16, 16, 16, num_warps=1, num_stages=2), "blocks per SM"),
        (TileConfig(128, 128, 32, num_warps=4, num_stages=2), "registers"),
    ],
)
def test_what_limits_the_occupancy(correction: object, config: TileConfig, limiter: str) -> None:
    found = Predictor(correction).explain(Gemm(4096, 4096, 4096), "a100-sxm4-80gb", config)
    assert found.schedule.occupancy_limiter == limiter


def test_changes_are_what_they_promise(correction: object) -> None:
    predictor, problem = Predictor(correction), Gemm(4096, 4096, 4096)
    config = TileConfig(32, 32, 32, num_warps=4, num_stages=2)
    found = predictor.explain(problem, "a100-sxm4-80gb", config)
    assert found.changes
    assert [c.latency_us for c in found.changes] == sorted(c.latency_us for c in found.changes)
    for change in found.changes:
        typed = dict(part.split("=") for part in change.what.split(","))
        values = config.to_dict() | {name: int(value) for name, value in typed.items()}
        then = predictor.predict(problem, "a100-sxm4-80gb", TileConfig.from_mapping(values))
        assert then.latency_us == pytest.approx(change.latency_us)
        assert change.speedup == pytest.approx(found.prediction.latency_us / change.latency_us)
    best = predictor.predict(problem, "a100-sxm4-80gb")
    assert found.changes[0].latency_us <= best.latency_us * (1 + 1e-9)


def test_padding_is_offered_where_loads_are_narrow(correction: object) -> None:
    predictor, gpu = Predictor(correction), "a100-sxm4-80gb"
    narrow, wide = (Gemm(4096, 4096, k, a_dtype="fp16") for k in (4095, 4096))
    config = TileConfig(128, 128, 64, num_warps=4, num_stages=3)
    changes = {c.what: c for c in predictor.explain(narrow, gpu, config).changes}
    padding = changes["pad k to 4096, lda to 4096"]
    assert padding.latency_us == predictor.predict(wide, gpu, config).latency_us
    assert padding.speedup > 1.5
    assert not any("pad" in c.what for c in predictor.explain(wide, gpu, config).changes)


class WithCeiling:
    """A correction that knows how fast the best of a kind run."""

    ceiling_quantile = 0.95

    def __init__(self, fake: object) -> None:
        self.fake = fake

    def __getattr__(self, name: str) -> object:
        return getattr(self.fake, name)

    def for_device(self, gpu_name: str) -> WithCeiling:
        return self

    def log_ceiling(self, features: object) -> list[float]:
        return [-0.1]


def test_the_ceiling_is_shown_where_the_model_knows_it(
    correction: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perfmodel.predictor._shipped", lambda: WithCeiling(correction))
    config = "block_m=64,block_n=64,block_k=32"
    found = json.loads(run(capsys, "--config", config, "--json")[1])
    assert found["ceiling"]["quantile"] == 0.95
    assert found["floor_us"] <= found["ceiling"]["latency_us"] < found["latency_us"]
    out = run(capsys, "--config", config)[1]
    assert "what the best 5.0 % of known ones" in out
