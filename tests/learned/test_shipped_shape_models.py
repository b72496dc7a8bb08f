"""The shape-level models in the package: all there, small together, made for this code."""

from __future__ import annotations

from importlib.resources import files

import pytest

from perfmodel.learned.probes import same_features
from perfmodel.learned.shape_artifact import load_shape_model
from perfmodel.learned.shape_probes import shape_probes

FAMILIES = ("gemm", "gemm-fp8", "prefill", "decode", "moe", "moe-fp8")
SIZE_MAX = 30e6


@pytest.mark.parametrize("family", FAMILIES)
def test_it_was_trained_on_the_features_of_this_code(family: str) -> None:
    model = load_shape_model(family)
    assert same_features(model.manifest.probes, shape_probes(family)), (
        "physics or features changed since the model was trained; "
        f"run: perfmodel train shape {family} --out perfmodel/models/shape-{family}.json"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_probes_have_every_feature_and_tell_devices_apart(family: str) -> None:
    probes = shape_probes(family)
    assert {len(row) for row in probes} == {len(load_shape_model(family).manifest.features)}
    assert len(set(probes)) == len(probes)


def test_all_models_take_at_most_30_mb() -> None:
    folder = files("perfmodel") / "models"
    sizes = [len(f.read_bytes()) for f in folder.iterdir() if f.name.endswith((".json", ".npz"))]
    assert 1e6 < sum(sizes) <= SIZE_MAX
