"""The model in the package: there, small, and made for the features of this very code."""

from __future__ import annotations

from importlib.resources import files

import pytest

from perfmodel.learned.artifact import load_model
from perfmodel.learned.model import GemmModel
from perfmodel.learned.probes import probe_features, same_features


@pytest.fixture(scope="module")
def shipped() -> GemmModel:
    return load_model()


def test_it_was_trained_on_the_features_of_this_code(shipped: GemmModel) -> None:
    assert same_features(shipped.manifest.probes, probe_features()), (
        "physics or features changed since the shipped model was trained; "
        "run: perfmodel train gemm --out perfmodel/models/gemm.json"
    )


def test_it_is_at_most_10_mb() -> None:
    folder = files("perfmodel") / "models"
    size = sum(len((folder / f"gemm.{end}").read_bytes()) for end in ("json", "npz"))
    assert 0.1e6 < size < 10e6


def test_it_says_what_it_was_trained_on(shipped: GemmModel) -> None:
    manifest = shipped.manifest
    assert {s["name"] for s in manifest.sources} >= {"autoheuristic-mm"}
    for source in manifest.sources:
        assert source["files"], source
    assert shipped.knows("a100-sxm4-80gb", "fp16")
    assert shipped.knows("h100-sxm5", "bf16")
    assert not shipped.knows("h100-sxm5", "fp8_e4m3")
    assert not shipped.knows("b200", "bf16")
    for gpu in ("a100-sxm4-80gb", "h100-sxm5"):
        assert shipped.accuracy[gpu]["error_mean"] < 0.06
    assert "xgboost-cpu" in manifest.libraries or "xgboost" in manifest.libraries
