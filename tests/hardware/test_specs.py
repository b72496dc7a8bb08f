"""The shipped device files against the makers' figures and against each other."""

from __future__ import annotations

import json

import pytest

from perfmodel.hardware.catalog import INDEX, build_index, gpu_names, list_gpus, load_gpu
from perfmodel.hardware.fields import CAPABILITIES, FIELDS
from perfmodel.hardware.gpu import Gpu
from perfmodel.hardware.specfile import architecture_fields, architecture_names

GPUS = list_gpus()
KIB = 1024

each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)


def test_the_devices_promised_are_there() -> None:
    assert set(gpu_names()) == {
        "v100-sxm2-32gb", "t4", "a10", "a30", "a40", "a100-pcie-40gb", "a100-pcie-80gb",
        "a100-sxm4-40gb", "a100-sxm4-80gb", "rtx-3090", "rtx-a6000", "l4", "l20", "l40", "l40s",
        "rtx-4090", "rtx-6000-ada", "h20", "h100-pcie", "h100-nvl", "h100-sxm5", "h800", "gh200",
        "h200-sxm", "b200", "b300", "gb200", "gb300", "rtx-5090", "rtx-pro-6000-server",
        "rtx-pro-6000-workstation", "mi250x", "mi300x", "mi325x", "mi355x", "arc-pro-b60",
    }  # fmt: skip


@each_gpu
def test_tensor_peak_is_units_times_rate_times_clock(gpu: Gpu) -> None:
    checked = 0
    for dtype, peak in gpu.tensor_tflops.items():
        per_clock = gpu.tensor_flops_per_clock_per_sm.get(dtype)
        if per_clock is not None:
            assert peak == pytest.approx(
                gpu.sm_count * per_clock * gpu.boost_clock_mhz * 1e-6, rel=0.05
            ), dtype
            checked += 1
    assert checked >= 1


@each_gpu
def test_plain_peak_is_lanes_times_a_clock_of_the_device(gpu: Gpu) -> None:
    clocks = (gpu.boost_clock_mhz, gpu.max_clock_mhz or gpu.boost_clock_mhz)
    for dtype, per_clock in gpu.plain_flops_per_clock_per_sm.items():
        at = [gpu.sm_count * per_clock * clock * 1e-6 for clock in clocks]
        assert min(at) * 0.93 <= gpu.plain_tflops[dtype] <= max(at) * 1.07, dtype


@each_gpu
def test_bandwidth_is_bus_width_times_data_rate(gpu: Gpu) -> None:
    if gpu.memory_bus_bits and gpu.memory_clock_mhz:
        pins = gpu.memory_bus_bits / 8 * 2 * gpu.memory_clock_mhz * 1e-3
        assert gpu.dram_bandwidth_gb_per_s == pytest.approx(pins, rel=0.03)


@each_gpu
def test_every_number_has_a_source(gpu: Gpu) -> None:
    for item in FIELDS.values():
        value = getattr(gpu, item.name)
        if item.kind in ("int", "float") and value is not None:
            assert gpu.source_of(item.name), item.name
        if item.kind == "peaks":
            for dtype in value:
                assert gpu.source_of(f"{item.name}.{dtype}"), f"{item.name}.{dtype}"
        if item.kind == "flags":
            assert gpu.source_of(item.name), item.name


@each_gpu
def test_limits_agree_with_each_other(gpu: Gpu) -> None:
    assert gpu.smem_per_block_bytes <= gpu.smem_per_block_optin_bytes <= gpu.smem_per_sm_bytes
    assert gpu.threads_per_sm == gpu.warps_per_sm * gpu.warp_size
    assert gpu.threads_per_block_max <= gpu.threads_per_sm
    assert gpu.launch_overhead_us is None  # belongs to the timing protocol
    assert set(gpu.capabilities) == set(CAPABILITIES)
    assert gpu.capabilities["fp8"] == ("fp8_e4m3" in gpu.tensor_tflops)
    assert gpu.capabilities["fp4"] == ("fp4" in gpu.tensor_tflops)


# Dense peaks as the makers print them; sparse figures are twice these.
@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("v100-sxm2-32gb", "fp16", 125), ("t4", "fp16", 65), ("t4", "int8", 130),
        ("a100-sxm4-80gb", "bf16", 312), ("a100-sxm4-80gb", "tf32", 156), ("a30", "bf16", 165),
        ("a10", "bf16", 125), ("a40", "bf16", 149.7), ("rtx-a6000", "bf16", 154.8),
        ("rtx-3090", "fp16", 71), ("l4", "bf16", 121), ("l40", "bf16", 181), ("l40s", "bf16", 362),
        ("l20", "bf16", 119.5), ("rtx-4090", "bf16", 165.2), ("rtx-4090", "fp8_e4m3", 330.3),
        ("rtx-6000-ada", "bf16", 364.2), ("h100-sxm5", "bf16", 989.4),
        ("h100-sxm5", "fp8_e4m3", 1978.9), ("h100-pcie", "bf16", 756), ("h100-nvl", "bf16", 835.5),
        ("h800", "bf16", 989.4), ("h20", "bf16", 148), ("gh200", "bf16", 989.4),
        ("h200-sxm", "bf16", 989.4), ("b200", "bf16", 2250), ("b200", "fp4", 9000),
        ("gb200", "bf16", 2500), ("b300", "bf16", 2250), ("gb300", "fp4", 15000),
        ("rtx-5090", "bf16", 209.5), ("rtx-pro-6000-workstation", "bf16", 503.8),
        ("mi250x", "bf16", 191.5), ("mi300x", "bf16", 1307.4), ("mi325x", "fp8_e4m3", 2614.9),
        ("mi355x", "bf16", 2516.6), ("arc-pro-b60", "int8", 197),
    ],
)  # fmt: skip
def test_published_dense_peaks(name: str, dtype: str, tflops: float) -> None:
    assert load_gpu(name).tensor_tflops[dtype] == pytest.approx(tflops, rel=0.002)


# KiB of shared memory per SM, per block by default and on request; threads, warps, blocks per SM.
LIMITS = {
    "sm_70": (96, 48, 96, 2048, 64, 32),
    "sm_75": (64, 48, 64, 1024, 32, 16),
    "sm_80": (164, 48, 163, 2048, 64, 32),
    "sm_86": (100, 48, 99, 1536, 48, 16),
    "sm_89": (100, 48, 99, 1536, 48, 24),
    "sm_90": (228, 48, 227, 2048, 64, 32),
    "sm_100": (228, 48, 227, 2048, 64, 32),
    "sm_103": (228, 48, 227, 2048, 64, 32),
    "sm_120": (100, 48, 99, 1536, 48, 24),
    "sm_121": (100, 48, 99, 1536, 48, 24),
    "gfx90a": (64, 64, 64, 2048, 32, 32),
    "gfx942": (64, 64, 64, 2048, 32, 32),
    "gfx950": (160, 160, 160, 2048, 32, 32),
    "xe2": (128, 128, 128, 1024, 64, 64),
}


def test_the_table_of_limits_covers_every_architecture() -> None:
    assert set(LIMITS) == set(architecture_names())
    assert {gpu.architecture for gpu in GPUS} <= set(LIMITS)


@pytest.mark.parametrize("architecture", LIMITS)
def test_limits_by_architecture(architecture: str) -> None:
    limits = architecture_fields(architecture)
    per_sm, default, optin, threads, warps, blocks = LIMITS[architecture]
    assert limits["smem_per_sm_bytes"] == per_sm * KIB
    assert limits["smem_per_block_bytes"] == default * KIB
    assert limits["smem_per_block_optin_bytes"] == optin * KIB
    assert (limits["threads_per_sm"], limits["warps_per_sm"]) == (threads, warps)
    assert limits["blocks_per_sm"] == blocks
    nvidia = architecture.startswith("sm_")
    assert limits["registers_per_sm"] == (65_536 if nvidia else 131_072)
    assert limits["registers_per_thread_max"] == {"s": 255, "g": 512, "x": 256}[architecture[0]]
    if nvidia:
        reserved = 0 if architecture in ("sm_70", "sm_75") else KIB
        assert limits["smem_reserved_per_block_bytes"] == reserved
        assert (limits["grid_x_max"], limits["grid_y_max"]) == (2**31 - 1, 65_535)


@each_gpu
def test_a_device_has_the_limits_of_its_architecture(gpu: Gpu) -> None:
    assert gpu.smem_per_block_optin_bytes == LIMITS[gpu.architecture][2] * KIB


def test_consumer_blackwell_has_99_kib_whatever_its_number_says() -> None:
    gpu = load_gpu("rtx-5090")
    assert gpu.smem_per_block_optin_bytes == 101_376
    assert gpu.smem_per_block_optin_bytes < load_gpu("h100-sxm5").smem_per_block_optin_bytes


FEATURES = {
    #        cp_async tma    clusters wgmma  tmem   fp8    fp4
    "sm_70": (False, False, False, False, False, False, False),
    "sm_75": (False, False, False, False, False, False, False),
    "sm_80": (True, False, False, False, False, False, False),
    "sm_86": (True, False, False, False, False, False, False),
    "sm_89": (True, False, False, False, False, True, False),
    "sm_90": (True, True, True, True, False, True, False),
    "sm_100": (True, True, True, False, True, True, True),
    "sm_103": (True, True, True, False, True, True, True),
    "sm_120": (True, True, True, False, False, True, True),
    "sm_121": (True, True, True, False, False, True, True),
}


@pytest.mark.parametrize("architecture", FEATURES)
def test_capabilities_are_flags_not_generations(architecture: str) -> None:
    flags = architecture_fields(architecture)["capabilities"]
    names = ("cp_async", "tma", "clusters", "wgmma", "tmem", "fp8", "fp4")
    assert tuple(flags[name] for name in names) == FEATURES[architecture]


def test_consumer_blackwell_is_blackwell_without_tensor_memory() -> None:
    consumer, server = load_gpu("rtx-pro-6000-server"), load_gpu("b200")
    assert consumer.family == server.family == "blackwell"
    assert (consumer.can("tmem"), server.can("tmem")) == (False, True)
    assert (consumer.can("wgmma"), server.can("wgmma")) == (False, False)
    assert not consumer.can("no_such_capability")


def test_one_die_of_a_mi250x_is_the_device() -> None:
    gpu = load_gpu("mi250x")
    assert (gpu.sm_count, gpu.memory_bytes) == (110, 64 * 2**30)


def test_the_stored_index_equals_the_files() -> None:
    assert json.loads(INDEX.read_text(encoding="utf-8")) == build_index(), (
        "run scripts/build_gpu_index.py"
    )


def test_no_two_devices_share_a_driver_name() -> None:
    names = [name.lower() for gpu in GPUS for name in gpu.driver_names]
    assert len(names) == len(set(names))
