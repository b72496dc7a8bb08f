"""For kernels that keep ``triton.autotune``: pruning, and what ``triton.ops`` used to have.

``triton.ops.matmul_perf_model`` was removed from Triton. `early_config_prune` and
`estimate_matmul_time` take the arguments that its functions took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import UnknownGpuError
from perfmodel.families import family_of
from perfmodel.hardware.gpu import Gpu
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner import devices
from tuner.deciding.binding import NotKnown, bind
from tuner.deciding.decide import shipped_predictor
from tuner.deciding.tiles import TileNames, TileSet
from tuner.measure.device import DeviceIdentity

Pruner = Callable[..., list[Any]]


def pruner(
    *,
    top: int | None = None,
    gpu: Gpu | str | Path | None = None,
    names: Mapping[str, str] | None = None,
) -> Pruner:
    """Return a function for ``prune_configs_by={"early_config_prune": ...}`` of matrix products.

    It keeps what the device can run and, with ``top``, so many of the fastest by the model and the
    first of the list. Where the model knows neither problem nor device, nothing is left out.

    Args:
        top: how many to keep; by default all that can run.
        gpu: the device to think of; by default the current one.
        names: this kernel's names for roles, as in `tuner.autotune`.
    """

    def prune(configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        arguments = {**named_args, **kwargs}
        device = devices.gpu_for_model(gpu, _identity())
        binding = bind("kernel", list(arguments), family="gemm", problem=None, names=names, key=())
        assert binding is not None
        problem = binding.problem(arguments, device)
        if isinstance(problem, NotKnown) or device is None:
            return list(configs)
        tiles = TileSet(TileNames("kernel", list(arguments), configs, names or {}), configs)
        table, kept, _ = tiles.table(tuple(range(len(configs))), arguments)
        if top is None:
            broken = family_of(problem).check(problem, table, device)
            legal = [configs[i] for i, reasons in zip(kept, broken, strict=True) if not reasons]
            return legal or list(configs)
        scores = shipped_predictor().scores(problem, device, table)
        order = [kept[i] for i in scores.argsort(kind="stable")[:top] if scores[i] < float("inf")]
        first = kept[int((scores < float("inf")).argmax())]
        return [configs[i] for i in dict.fromkeys([first, *order])]

    return prune


def early_config_prune(
    configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
) -> list[Any]:
    """Return the configurations of a matrix product that the current device can run.

    In place of ``triton.ops.matmul_perf_model.early_config_prune``.
    """
    return pruner()(configs, named_args, **kwargs)


def estimate_matmul_time(
    num_warps: int,
    num_stages: int,
    A: Any,  # noqa: N803 - the removed function's own names
    B: Any,  # noqa: N803 - as above
    C: Any,  # noqa: N803 - as above
    M: int,  # noqa: N803 - as above
    N: int,  # noqa: N803 - as above
    K: int,  # noqa: N803 - as above
    BLOCK_M: int,  # noqa: N803 - as above
    BLOCK_N: int,  # noqa: N803 - as above
    BLOCK_K: int,  # noqa: N803 - as above
    SPLIT_K: int = 1,  # noqa: N803 - as above
    debug: bool = False,
    *,
    gpu: Gpu | str | Path | None = None,
    **kwargs: Any,
) -> float:
    """Return the predicted time of one launch in milliseconds, ``inf`` where it cannot run.

    In place of ``triton.ops.matmul_perf_model.estimate_matmul_time``, for use as ``perf_model``;
    A, B and C are tensors, and ``debug`` prints where the time goes.

    Raises:
        UnknownGpuError: the current device is unknown, and ``gpu`` or ``PERFMODEL_GPU`` names none.
        InvalidProblemError, UnsupportedDtypeError: the model does not know the problem.
    """
    identity = _identity()
    device = devices.gpu_for_model(gpu, identity)
    if device is None:
        raise UnknownGpuError(
            f"no time can be estimated for {identity.name!r}; name a device with gpu= or "
            f"{devices.VARIABLE} (see: perfmodel gpus)"
        )
    arguments = {"A": A, "B": B, "C": C, "M": M, "N": N, "K": K, **kwargs}
    binding = bind("kernel", list(arguments), family="gemm", problem=None, names=None, key=())
    assert binding is not None
    problem = binding.problem(arguments, device)
    if isinstance(problem, NotKnown):
        from perfmodel.errors import InvalidProblemError  # noqa: PLC0415 - rare

        raise InvalidProblemError(f"the model does not know this product: {problem.reason}")
    assert isinstance(problem, Gemm)
    tile = TileConfig(
        BLOCK_M, BLOCK_N, BLOCK_K, group_m=int(kwargs.get("GROUP_M", 1)), num_warps=num_warps,
        num_stages=num_stages, split_k=SPLIT_K,
    )  # fmt: skip
    from perfmodel.tiling.config import ConfigTable  # noqa: PLC0415 - as above

    time_us = float(shipped_predictor().latency_us(problem, device, ConfigTable.of([tile]))[0])
    if debug and time_us < float("inf"):
        answer = shipped_predictor().predict(problem, device, tile)
        parts = ", ".join(f"{name} {us:.1f} us" for name, us in answer.breakdown_us.items())
        print(f"{problem} {tile}: {time_us:.1f} us, limited by {answer.limiter} ({parts})")
    return time_us / 1e3


def _identity() -> DeviceIdentity:
    return devices.identity_of_current(None)
