"""Launches on memory of their own: the same work on the same values, and nothing shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="copies are of torch's tensors")

from tuner.measure.copies import Copyable, TensorLaunch, copied  # noqa: E402 - needs torch


def cache() -> dict[str, Any]:
    """Latent attention's: values are a part of the keys."""
    k = torch.arange(24.0).reshape(3, 8).to(torch.bfloat16)
    return {
        "k": k,
        "v": k[:, :5],
        "b": torch.arange(12).reshape(3, 4).t(),
        "scale": torch.rand(3, 4).to(torch.float8_e4m3fn),
    }


def test_copies_have_the_same_values_strides_and_views() -> None:
    given = cache()
    found = copied(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].stride() == tensor.stride()
        assert torch.equal(found[name].float(), tensor.float())
        assert found[name].untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    found["k"][0, 0] = 99.0
    assert found["v"][0, 0] == 99.0
    assert given["v"][0, 0] == 0.0


def test_each_copy_runs_on_its_own_and_the_first_on_what_was_given() -> None:
    def run(tensors: Mapping[str, Any]) -> None:
        tensors["out"].add_(tensors["a"])
        seen.append(tensors["out"].data_ptr())

    seen: list[int] = []
    tensors = {"a": torch.ones(4), "out": torch.zeros(4)}
    launch = TensorLaunch(run, tensors)
    assert isinstance(launch, Copyable)
    assert launch.bytes_each == 32
    for each in launch.copies(3):
        each()
    assert len(set(seen)) == 3
    assert seen[0] == tensors["out"].data_ptr()
    assert tensors["out"].tolist() == [1.0] * 4


def test_memory_that_tensors_share_counts_once() -> None:
    launch = TensorLaunch(lambda _: None, cache())
    assert launch.bytes_each == 24 * 2 + 12 * 8 + 12
