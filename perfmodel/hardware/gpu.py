"""The frozen description of one exact device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One exact device: units in the names, dense peaks only, ``None`` where no source says.

    ``tensor_tflops`` and ``plain_tflops`` map a dtype's short name to the dense peak at
    ``boost_clock_mhz``, on tensor (matrix) units and on ordinary lanes; an absent dtype is one the
    device has no arithmetic for. ``sources`` maps a field name to where its number comes from.
    """

    name: str
    vendor: str  # nvidia, amd, intel
    product: str
    architecture: str  # sm_90, gfx942, xe2
    # compute
    sm_count: int  # SMs, CUs or Xe cores
    warp_size: int
    base_clock_mhz: float | None
    boost_clock_mhz: float
    tensor_tflops: Mapping[str, float]
    plain_tflops: Mapping[str, float]
    tensor_flops_per_clock_per_sm: Mapping[str, float]
    sfu_ops_per_clock_per_sm: float | None
    # memory
    memory_bytes: int
    memory_clock_mhz: float | None
    dram_bandwidth_gb_per_s: float
    l2_bytes: int
    l2_bandwidth_gb_per_s: float | None
    # limits per SM and per block
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    smem_per_block_optin_bytes: int
    registers_per_sm: int
    registers_per_thread_max: int
    threads_per_sm: int
    threads_per_block_max: int
    warps_per_sm: int
    blocks_per_sm: int
    grid_x_max: int
    grid_y_max: int
    grid_z_max: int
    # what it can do
    capabilities: Mapping[str, bool]
    launch_overhead_us: float | None
    tdp_watts: float | None = None
    driver_names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
