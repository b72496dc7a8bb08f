"""vLLM's tuned tables of its fused MoE kernel: the chosen tile by number of tokens, no times.

A file is called ``E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json``: E experts of
width N (this device's share), the device in the driver's words, the quantisation and the block of
its scales where there is one. It maps numbers of tokens to launch parameters. There is nothing to
measure by in it, so it is read as configs and never imported as measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfmodel.dataset.vllm_key import MoeTableKey
from perfmodel.errors import CorruptFileError

_TILE = {
    "BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_N": "block_n", "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m", "SPLIT_K": "split_k", "num_warps": "num_warps",
    "num_stages": "num_stages",
}  # fmt: skip


@dataclass(frozen=True)
class MoeTable:
    """One tuned table. ``configs`` maps tokens to parameters in our names; unknown ones are kept
    under their own.
    """

    experts: int
    intermediate_size: int
    device: str  # in the driver's words
    quantisation: str | None  # fp8_w8a8, int8_w8a16 ...; None for 16-bit
    block_shape: tuple[int, int] | None
    configs: Mapping[int, Mapping[str, int]]


def read_moe_table(path: Path) -> MoeTable:
    """Read one table; its name is part of its content.

    Raises:
        CorruptFileError: the name or the content is not of the known form.
    """
    key = MoeTableKey.parse(path.name)
    try:
        content = json.loads(path.read_bytes())
        configs = {
            int(tokens): {_TILE.get(key, key): int(value) for key, value in config.items()}
            for tokens, config in content.items()
            if tokens != "triton_version"
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is not a table of configs by tokens: {error}") from error
    return MoeTable(
        key.experts, key.width, key.device, key.quantisation, key.block_shape,
        dict(sorted(configs.items())),
    )  # fmt: skip
