"""Loading is quick and light, and a Gpu is a value."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import statistics
import time
import tomllib

import pytest

from perfmodel.hardware import catalog, specfile
from perfmodel.hardware.catalog import gpu_names, load_gpu


@pytest.fixture
def cold() -> None:
    for cache in (
        catalog._canonical, catalog._index, catalog._load_known,
        specfile.architecture_fields, specfile.architecture_names,
    ):  # fmt: skip
        cache.cache_clear()


@pytest.mark.parametrize("name", ["h100-sxm5", "NVIDIA A100-SXM4-80GB"])
def test_loading_one_device_reads_its_file_and_its_architecture(
    cold, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parsed: list[str] = []
    loads = tomllib.loads

    def counting(text: str) -> dict[str, object]:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(specfile.tomllib, "loads", counting)
    load_gpu(name)
    assert len(parsed) == 2


def test_loading_one_device_takes_milliseconds() -> None:
    times = []
    for _ in range(9):
        for cache in (catalog._canonical, catalog._load_known, specfile.architecture_fields):
            cache.cache_clear()
        start = time.perf_counter()
        load_gpu("h100-sxm5")
        times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.010  # 1.5 ms on an idle core; slack for a busy one


def test_a_gpu_is_frozen() -> None:
    gpu = load_gpu("h100-sxm5")
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.sm_count = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):
        gpu.tensor_tflops["bf16"] = 1.0  # type: ignore[index]
    with pytest.raises(TypeError, match="frozen"):
        gpu.capabilities.update(tmem=True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_survives_copying_and_worker_processes(name: str) -> None:
    gpu = load_gpu(name)
    for twin in (pickle.loads(pickle.dumps(gpu)), copy.deepcopy(gpu), copy.copy(gpu)):
        assert twin == gpu
        assert hash(twin) == hash(gpu)
    fewer = dataclasses.replace(gpu, sm_count=1)
    assert fewer != gpu
    assert fewer.tensor_tflops == gpu.tensor_tflops
