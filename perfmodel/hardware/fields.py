"""What a device file may say: every field, its unit, and the values that make sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "int", "float", "names", "peaks", "flags", "sources"]
Group = Literal["identity", "compute", "memory", "limits", "other"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a device file; ``low`` and ``high`` are inclusive."""

    name: str
    kind: Kind
    group: Group
    about: str
    unit: str = ""
    low: float = 0.0
    high: float = 0.0
    required: bool = True


_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def _text(name: str, about: str, *, required: bool = True) -> Field:
    return Field(name, "text", "identity", about, required=required)


_ALL = (
    _text("product", "name on the maker's data sheet", required=False),
    _text("vendor", "nvidia, amd or intel"),
    _text("architecture", "compiler target: sm_90, gfx942, xe2"),
    _text("family", "marketing generation", required=False),
    Field("driver_names", "names", "identity", "names that drivers report", required=False),
    Field("aliases", "names", "identity", "other names that people use", required=False),
    Field("sm_count", "int", "compute", "SMs, CUs or Xe cores", "", 1, 4096),
    Field("warp_size", "int", "compute", "threads that run in lock step", "", 8, 128),
    Field("base_clock_mhz", "float", "compute", "guaranteed clock", "MHz", 50, 10_000, False),
    Field("boost_clock_mhz", "float", "compute", "clock of the tensor peaks", "MHz", 50, 10_000),
    Field("max_clock_mhz", "float", "compute", "highest clock", "MHz", 50, 10_000, False),
    Field("tensor_tflops", "peaks", "compute", "dense tensor peak", "TFLOP/s", 1e-3, 1e6, False),
    Field("plain_tflops", "peaks", "compute", "ordinary lanes", "TFLOP/s", 1e-3, 1e6, False),
    Field(
        "tensor_flops_per_clock_per_sm", "peaks", "compute", "dense tensor operations",
        "FLOP/clock/SM", 1, 1e6, False,
    ),
    Field(
        "plain_flops_per_clock_per_sm", "peaks", "compute", "operations of ordinary lanes",
        "FLOP/clock/SM", 1, 1e5, False,
    ),
    Field(
        "sfu_ops_per_clock_per_sm", "float", "compute", "exp2, log2, rsqrt, sin ...",
        "op/clock/SM", 1, 4096, False,
    ),
    Field("memory_bytes", "int", "memory", "device memory", "B", 64 * _MIB, 16_384 * _GIB),
    Field("memory_bus_bits", "int", "memory", "width of the memory bus", "bit", 16, 65_536, False),
    Field(
        "memory_clock_mhz", "float", "memory", "as drivers report it: half the data rate",
        "MHz", 50, 50_000, False,
    ),
    Field("dram_bandwidth_gb_per_s", "float", "memory", "peak memory bandwidth", "GB/s", 1, 1e6),
    Field("l2_bytes", "int", "memory", "L2 cache of the whole device", "B", _KIB, 64 * _GIB),
    Field("l2_bandwidth_gb_per_s", "float", "memory", "peak L2 reads", "GB/s", 1, 1e7, False),
    Field("last_level_cache_bytes", "int", "memory", "behind L2", "B", _KIB, 64 * _GIB, False),
    Field("smem_per_sm_bytes", "int", "limits", "shared memory of an SM", "B", _KIB, 64 * _MIB),
    Field("smem_per_block_bytes", "int", "limits", "default limit", "B", _KIB, 64 * _MIB),
    Field("smem_per_block_optin_bytes", "int", "limits", "opt-in limit", "B", _KIB, 64 * _MIB),
    Field(
        "smem_reserved_per_block_bytes", "int", "limits", "taken by the system per block",
        "B", 0, _MIB, False,
    ),
    Field("registers_per_sm", "int", "limits", "32-bit registers of an SM", "", 256, 1 << 26),
    Field("registers_per_thread_max", "int", "limits", "32-bit registers", "", 16, 65_536),
    Field("threads_per_sm", "int", "limits", "resident threads", "", 8, 1 << 20),
    Field("threads_per_block_max", "int", "limits", "threads of a block", "", 8, 1 << 20),
    Field("warps_per_sm", "int", "limits", "resident warps", "", 1, 4096),
    Field("blocks_per_sm", "int", "limits", "resident blocks", "", 1, 4096),
    Field("grid_x_max", "int", "limits", "blocks along x", "", 1, (1 << 32) - 1),
    Field("grid_y_max", "int", "limits", "blocks along y", "", 1, (1 << 32) - 1),
    Field("grid_z_max", "int", "limits", "blocks along z", "", 1, (1 << 32) - 1),
    Field("tdp_watts", "float", "other", "board power limit", "W", 1, 100_000, False),
    Field("launch_overhead_us", "float", "other", "host cost of a launch", "us", 1e-3, 1e4, False),
    Field("capabilities", "flags", "other", "what the device can do", required=False),
    Field("sources", "sources", "other", "citation = the fields it covers", required=False),
)  # fmt: skip

FIELDS: dict[str, Field] = {item.name: item for item in _ALL}

VENDORS = ("nvidia", "amd", "intel")

CAPABILITIES: dict[str, str] = {
    "tensor_cores": "matrix units",
    "cp_async": "asynchronous copies from global to shared memory",
    "tma": "bulk tensor copies by a copy engine of the SM",
    "clusters": "thread block clusters with distributed shared memory",
    "wgmma": "matrix instructions issued by a warp group (Hopper)",
    "tmem": "tensor memory: accumulators outside the registers (data-centre Blackwell)",
    "fp8": "8-bit floating point on the matrix units",
    "fp4": "4-bit floating point on the matrix units",
}
