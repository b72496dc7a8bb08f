from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from perfmodel.analytic.rates import DeviceRates, device_rates
from perfmodel.errors import UnsupportedDtypeError
from perfmodel.hardware.catalog import gpu_names, load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import ConfigTable, TileConfig
from perfmodel.tiling.work import Work, gemm_work


def work_on(gpu: Gpu, dtype: str) -> Work:
    problem = GemmTable.of(Gemm(64, 64, 64, a_dtype=dtype))
    return gemm_work(problem, ConfigTable.of([TileConfig()]), gpu)


@pytest.mark.parametrize("name", gpu_names())
def test_rates_are_those_of_the_data_sheet_or_less(name: str) -> None:
    gpu = load_gpu(name)
    for dtype in {*gpu.tensor_tflops, *gpu.plain_tflops} - {"fp4", "fp6", "int4"}:
        rates = device_rates(gpu, work_on(gpu, dtype))
        for item in fields(DeviceRates):
            value = np.asarray(getattr(rates, item.name))
            assert np.isfinite(value).all(), item.name
            assert (value > 0).all(), item.name
        assert rates.dram_bytes_per_s < gpu.dram_bandwidth_gb_per_s * 1e9
        peak = gpu.tensor_tflops.get(dtype, 0.0) * 1e12
        assert rates.tensor_flops_per_s_per_sm[0] * gpu.sm_count <= max(peak, 1.0) * (1 + 1e-12)


def test_a_known_l2_bandwidth_is_used_and_an_unknown_one_assumed() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    work = work_on(gpu, "fp16")
    assert gpu.l2_bandwidth_gb_per_s is not None
    rates = device_rates(gpu, work)
    total = rates.l2_bytes_per_s_per_sm * gpu.sm_count
    assert total == pytest.approx(gpu.l2_bandwidth_gb_per_s * 1e9)
    unknown = device_rates(replace(gpu, l2_bandwidth_gb_per_s=None), work)
    assert 0.2 * total < unknown.l2_bytes_per_s_per_sm * gpu.sm_count < 5 * total


def test_a_type_without_arithmetic_is_refused_by_name() -> None:
    gpu = load_gpu("v100-sxm2-32gb")
    with pytest.raises(UnsupportedDtypeError, match="v100-sxm2-32gb has no arithmetic for bf16"):
        device_rates(gpu, work_on(gpu, "bf16"))
