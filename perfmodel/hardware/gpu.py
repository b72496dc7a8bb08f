"""The frozen description of one exact device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn


class ReadOnlyMap(dict[str, Any]):
    """A dict that cannot be changed: hashable, and it survives copying and worker processes."""

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("a Gpu is frozen; use dataclasses.replace to make another")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none, since it changes
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[ReadOnlyMap], tuple[dict[str, Any]]]:
        return ReadOnlyMap, (dict(self),)


@dataclass(frozen=True)
class Gpu:
    """One exact device: units in the names, dense peaks only, ``None`` where no source says.

    ``tensor_tflops`` maps a dtype's short name to the dense peak of the tensor (matrix) units at
    ``boost_clock_mhz``, accumulating in 32 bits; ``plain_tflops`` the peak of the ordinary lanes as
    its maker states it, a fused multiply-add counting as two. An absent dtype is one the device has
    no arithmetic for.

    ``boost_clock_mhz`` is the clock behind the stated tensor peaks. Some makers let other work run
    faster: an H100 SXM5's tensor peaks are stated at 1830 MHz and its FP32 peak at 1980 MHz, so
    ``max_clock_mhz`` is the ceiling for anything that must never be exceeded.

    ``sources`` maps a field name, or ``field.key`` for one entry of a table, to where its number
    comes from; ask through `source_of`.
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
    memory_clock_mhz: float | None  # as drivers report it: half the data rate of HBM and GDDR6
    dram_bandwidth_gb_per_s: float
    l2_bytes: int
    l2_bandwidth_gb_per_s: float | None
    # limits per SM and per block
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    smem_per_block_optin_bytes: int
    registers_per_sm: int  # 32-bit
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
    family: str | None = None  # marketing generation; ask `capabilities` what the device can do
    max_clock_mhz: float | None = None
    plain_flops_per_clock_per_sm: Mapping[str, float] = field(default_factory=dict)
    memory_bus_bits: int | None = None
    last_level_cache_bytes: int | None = None  # a cache behind L2 (AMD Infinity Cache)
    smem_reserved_per_block_bytes: int | None = None  # taken by the system from smem_per_sm_bytes

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping) and not isinstance(value, ReadOnlyMap):
                object.__setattr__(self, item.name, ReadOnlyMap(value))

    def source_of(self, name: str) -> str | None:
        """Return where the number ``name`` (``sm_count``, ``tensor_tflops.bf16``) comes from."""
        return self.sources.get(name) or self.sources.get(name.partition(".")[0])

    def can(self, capability: str) -> bool:
        """Return whether the device has ``capability`` (``wgmma``, ``tma``, ``tmem`` ...)."""
        return self.capabilities.get(capability, False)
