"""Print what a call costs under tuner.autotune and triton.autotune, launches stubbed, in turns.

Usage: python scripts/bench_decorator.py [--rounds N]. Needs Triton and torch, no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import triton

import tuner
from tuner.kernels.gemm import matmul_kernel

BLOCKS = [(m, n, k) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)]
CALLS = 2000


class StubbedKernel:
    """A kernel whose launch does nothing."""

    def __init__(self, kernel: Any) -> None:
        self.fn = kernel.fn
        self.arg_names = kernel.arg_names
        self.launched: list[Any] = []

    def run(self, *_args: Any, **_kwargs: Any) -> None:
        """Take a launch."""


def configs(count: int = 30) -> list[Any]:
    """Return so many configurations of the reference matrix product."""
    made = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8},
                      num_warps=warps, num_stages=stages)
        for m, n, k in BLOCKS
        for warps, stages in ((4, 3), (8, 3))
    ]  # fmt: skip
    return made[:count]


def arguments(m: int, n: int = 1024, k: int = 512) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call of the reference matrix product."""
    a, b, c = (torch.empty(1, dtype=torch.float16) for _ in range(3))
    strides = (k, 1, n, 1, n, 1)
    constants = {
        "EVEN_K": True, "ACC_DTYPE": "fp32", "INPUT_PRECISION": "ieee", "CAST_B": False,
        "WIDE_OFFSETS": False,
    }  # fmt: skip
    return (a, b, c, m, n, k, *strides), constants | {"grid": (1,), "warmup": False}


def seconds_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the mean time of one warm call."""
    run = kernel.run
    started = time.perf_counter()
    for _ in range(CALLS):
        run(*args, **kwargs)
    return (time.perf_counter() - started) / CALLS


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    stub = StubbedKernel(matmul_kernel)
    spaces = configs()
    stock = triton.autotune(
        spaces, key=["M", "N", "K"], do_bench=lambda _call, **_: [1.0, 1.0, 1.0]
    )(stub)
    ours = tuner.autotune(
        spaces, key=["M", "N", "K"], family="gemm", policy="model", gpu="h100-sxm5"
    )(stub)
    args, kwargs = arguments(4096)
    for kernel in (stock, ours):
        kernel.run(*args, **kwargs)
    pairs = []
    for i in range(rounds):
        order = (stock, ours) if i % 2 else (ours, stock)
        took = {kernel: seconds_of(kernel, args, kwargs) for kernel in order}
        pairs.append((took[stock], took[ours]))
    ratios = sorted(mine / theirs for theirs, mine in pairs)
    print(
        f"warm call: triton.autotune {1e6 * statistics.median(p[0] for p in pairs):.2f} us, "
        f"tuner.autotune {1e6 * statistics.median(p[1] for p in pairs):.2f} us, "
        f"ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} pairs)"
    )
    tell(f"cold decision of {len(spaces)} configs by the model", decisions(ours))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFMODEL_CACHE_DIR"] = folder
        for _ in range(2):  # the second time as a later process would, all timed before
            verified = tuner.autotune(
                spaces, key=["M", "N", "K"], family="gemm", policy="verify", gpu="h100-sxm5",
                buckets=False, do_bench=lambda _call, **_: [1.0, 1.0, 1.0],
            )(stub)  # fmt: skip
            stored = decisions(verified)
        tell(f"cold decision of {len(spaces)} configs timed before, from the store", stored)


def decisions(kernel: Any) -> list[float]:
    """Return the seconds of a hundred first calls, each of a new key, in order of size."""
    took = []
    for i in range(100):
        args, kwargs = arguments(512 + 16 * i)
        started = time.perf_counter()
        kernel.run(*args, **kwargs)
        took.append(time.perf_counter() - started)
    return sorted(took)


def tell(what: str, took: list[float]) -> None:
    """Print one line of figures."""
    print(
        f"{what}: median {1e3 * took[50]:.2f} ms, least {1e3 * took[0]:.2f} ms, "
        f"90th {1e3 * took[90]:.2f} ms"
    )


if __name__ == "__main__":
    main()
