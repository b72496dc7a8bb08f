"""NVIDIA's nvMatmulHeuristics with its Triton target, where it is installed.

https://docs.nvidia.com/cuda/nvidia-matmul-heuristics: an analytic library that proposes a short
ranked list of tiles for a problem, device and target. Its first proposal decides: an offered
configuration scores by the place of the same tile, warps and stages in that list, or half a place
behind one of the same tile; the rest come last, in no particular order. Proposals that split the
reduction are left out, since no candidate does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from perfmodel.errors import NotInstalledError
from perfmodel.evaluate.answers import Answer
from perfmodel.evaluate.rows import GemmRows

PROPOSALS = 64

_GPUS = {"a100-sxm4-80gb": "A100_SXM_80GB", "h100-sxm5": "H100_SXM"}
_PRECISIONS = {"fp16": "HSH", "bf16": "TST", "fp32": "SSS", "tf32": "SFS"}
"""Letters for operands, accumulation and result, as its documentation has them."""

_LAYOUTS = {
    (True, True): "NN_ROW_MAJOR",
    (True, False): "NT_ROW_MAJOR",
    (False, True): "TN_ROW_MAJOR",
    (False, False): "TT_ROW_MAJOR",
}
"""By whether A and B are row-major as stored."""

_TILE = ["block_m", "block_n", "block_k", "num_warps", "num_stages"]


@dataclass(frozen=True)
class NvMatmulHeuristics:
    """Its list of proposals, matched to the configurations on offer."""

    name: str = "nv-matmul-heuristics"

    def answer(self, train: GemmRows, test: GemmRows) -> Answer | None:  # noqa: ARG002 - learns nothing
        """Return each row's place among the proposals for its problem.

        Raises:
            NotInstalledError: the package is missing.
        """
        if not set(test.gpu) <= set(_GPUS) or not set(test.dtype) <= set(_PRECISIONS):
            return None
        configs = test.labels[_TILE].to_numpy(dtype=np.int64)
        sizes = test.labels[["m", "n", "k"]].to_numpy(dtype=np.int64)
        row_major = (test.labels[["a_layout", "b_layout"]] == "row").to_numpy()
        score = np.full(len(test), np.inf)
        order = np.argsort(test.problem, kind="stable")
        starts = np.flatnonzero(np.diff(test.problem[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            first = rows[0]
            a_row, b_row = row_major[first].tolist()
            place = _places(
                str(test.gpu[first]), str(test.dtype[first]), a_row, b_row, *sizes[first].tolist()
            )
            for row in rows:
                config = tuple(configs[row].tolist())
                score[row] = place.get(config, place.get(config[:3], np.inf))
        return Answer(score=score)


@lru_cache(maxsize=20_000)
def _places(
    gpu: str, dtype: str, a_row: bool, b_row: bool, m: int, n: int, k: int
) -> dict[tuple[int, ...], float]:
    """Return the places of whole configurations, and half a place later of their tiles."""
    library, interface = _interface(gpu)
    layout = library.NvMatmulHeuristicsMatmulLayout[_LAYOUTS[a_row, b_row]]
    problem = interface.makeNvMatmulHeuristicsProblem(m, n, k, layout)
    places: dict[tuple[int, ...], float] = {}
    proposals = interface.get(problem, PROPOSALS, _PRECISIONS[dtype])
    for place, proposal in enumerate(proposals):
        kernel = proposal["kernel"]
        if kernel.split_k > 1:
            continue
        tile = (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k)
        warps = (tile[0] * tile[1]) // max(kernel.warp_tile_m * kernel.warp_tile_n, 1)
        places.setdefault((*tile, warps, kernel.stages), float(place))
        places.setdefault(tile, place + 0.5)
    return places


@lru_cache
def _interface(gpu: str) -> tuple[Any, Any]:
    try:
        library = import_module("nvMatmulHeuristics")
    except (ImportError, OSError) as error:
        raise NotInstalledError(
            f"the baseline nv-matmul-heuristics needs its package ({error}); "
            "install it with: pip install nvidia-matmul-heuristics"
        ) from error
    return library, library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget.TRITON,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[_GPUS[gpu]],
    )
