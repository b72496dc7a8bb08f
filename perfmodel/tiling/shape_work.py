"""What a kernel of unknown tile does: its exact work, and the ways in which it may be cut up.

A library picks its tile by rules of its own. A few plausible tilings, each with its CTAs and what
the mean and the longest of them do, bracket what it can have picked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm_table import GemmTable

Array = NDArray[np.float64]

SPLIT_PARTIAL_BYTES = 4.0
"""Partial sums of a split reduction are kept in fp32."""


@dataclass(frozen=True)
class Tiling:
    """One way to cut problems up, arrays (N,); per CTA, padding of tiles included.

    ``mean_*`` times ``ctas`` is the whole; ``longest_share`` is the longest CTA's work over the
    mean's. ``occupancy`` CTAs share an SM. ``partial_bytes`` are written and read again where a
    reduction is split, by ``extra_launches`` further launches.
    """

    name: str
    ctas: Array
    mean_flops: Array
    mean_sfu_ops: Array
    mean_fma_flops: Array
    mean_load_bytes: Array
    longest_share: Array
    occupancy: float
    partial_bytes: Array
    extra_launches: Array


@dataclass(frozen=True)
class ShapeWork:
    """One problem a row: exact operations and compulsory bytes, arrays (N,), and tilings.

    ``sfu_ops`` counts exponentials and the like, ``fma_flops`` what ordinary lanes do beside the
    products. ``footprint_bytes`` is the memory that the problem touches, ``launches`` how many
    kernels it takes at least (0 without work).
    """

    compute_dtype: str
    flops: Array
    sfu_ops: Array
    fma_flops: Array
    read_bytes: Array
    write_bytes: Array
    footprint_bytes: Array
    launches: Array
    tilings: tuple[Tiling, ...]

    @property
    def compulsory_bytes(self) -> Array:
        """Bytes that any implementation must move, (N,)."""
        return self.read_bytes + self.write_bytes


GEMM_TILES = (
    (128, 128), (256, 128), (128, 256), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
    (64, 16), (16, 64),
)  # fmt: skip
"""Tiles that libraries ship for every device: block_m x block_n, the last ones for thin matrices
(an instruction's smallest side is 8 or 16, its largest at least 64, and operands may be swapped).
"""

PAIRED_TILE_MIN = 128 * 128
"""From this tile up, libraries let pairs of CTAs share an operand where the device has clusters."""

SPLIT_DEPTH_MIN = 256.0
"""A part of a split reduction is at least this deep: less costs more to add up than it saves."""


def gemm_shape_work(p: GemmTable, gpu: Gpu) -> ShapeWork:
    """Describe matrix products whose tile is unknown, one problem a row."""
    m, n, k, batch = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, np.float64)) for v in (p.m, p.n, p.k, p.batch))
    )
    some = (m * n * batch > 0).astype(np.float64)  # without a result nothing is read either
    read = some * batch * (m * k * p.a_dtype.bytes + k * n * p.b_dtype.bytes)
    write = batch * m * n * p.out_dtype.bytes
    tilings = []
    for block_m, block_n in GEMM_TILES:
        tiles = np.ceil(m / block_m) * np.ceil(n / block_n) * batch
        fill = np.floor(gpu.sm_count / np.maximum(tiles, 1.0))
        fill = np.clip(np.minimum(fill, np.floor(k / SPLIT_DEPTH_MIN)), 1.0, None)
        for name, split in (("", np.ones_like(tiles)), ("split", fill)):
            depth = np.ceil(k / split)
            edge_m, edge_n = np.minimum(block_m, m), np.minimum(block_n, n)
            if gpu.can("clusters") and block_m * block_n >= PAIRED_TILE_MIN:
                # Two CTAs with the same columns each fetch half of B and share it.
                edge_n = np.where(np.ceil(m / block_m) > 1, edge_n / 2.0, edge_n)
            loads = depth * (edge_m * p.a_dtype.bytes + edge_n * p.b_dtype.bytes)
            tilings.append(
                Tiling(
                    name=f"{block_m}x{block_n}{name}",
                    ctas=tiles * split,
                    mean_flops=2.0 * block_m * block_n * depth,
                    mean_sfu_ops=np.zeros_like(tiles),
                    mean_fma_flops=np.zeros_like(tiles),
                    mean_load_bytes=loads,
                    longest_share=np.ones_like(tiles),
                    occupancy=max(1.0, min(4.0, 128.0 * 128.0 / (block_m * block_n))),
                    partial_bytes=np.where(
                        split > 1, 2.0 * split * m * n * batch * SPLIT_PARTIAL_BYTES, 0.0
                    ),
                    extra_launches=(split > 1).astype(np.float64),
                )
            )
    zero = np.zeros_like(some)
    return ShapeWork(
        compute_dtype=p.compute_dtype.name,
        flops=2.0 * m * n * k * batch,
        sfu_ops=zero,
        fma_flops=zero,
        read_bytes=read,
        write_bytes=write,
        footprint_bytes=read + write,
        launches=some,
        tilings=tuple(tilings),
    )
