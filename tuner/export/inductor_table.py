"""Picks as the look-up table of torch's Inductor (``config.lookup_table.table``).

Keys are the types, sizes and strides of the operands and the operation, without a device: the
table is for one device, and torch's own name for it is unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.errors import InvalidProblemError
from perfmodel.problems.dtypes import DType
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import TileConfig
from tuner.export.pick import Pick

TORCH_TYPES: Mapping[str, str] = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "tf32": "torch.float32",
}
"""Types that a plain ``mm`` or ``bmm`` multiplies in Inductor's Triton template."""


def takes(config: TileConfig) -> bool:
    """Whether Inductor's template can be given ``config``."""
    plain = config.split_k == 1 and config.num_ctas == 1 and config.maxnreg is None
    return plain and not config.extras


def lookup_key(problem: Gemm) -> str:
    """Return the key under which Inductor looks for ``problem``.

    Raises:
        InvalidProblemError: the product is no ``mm`` or ``bmm`` of one floating-point type.
    """
    types = {_torch_type(problem.a_dtype), _torch_type(problem.b_dtype or problem.a_dtype)}
    if len(types) != 1 or None in types:
        raise InvalidProblemError(
            f"operands of {problem.a_dtype} and {problem.b_dtype} are no plain mm in Inductor; use "
            f"one of {', '.join(TORCH_TYPES)} for both, or export as json or triton"
        )
    (kind,) = types
    a = _operand(problem.batch, problem.m, problem.k, problem.a_layout, problem.lda or 0)
    b = _operand(problem.batch, problem.k, problem.n, problem.b_layout, problem.ldb or 0)
    operands = ", ".join(f"({kind}, {sizes}, {strides})" for sizes, strides in (a, b))
    return f"({operands})+{operation(problem)}"


def operation(problem: Gemm) -> str:
    """Return torch's name of the product."""
    return "mm" if problem.batch == 1 else "bmm"


def lookup_entry(problem: Gemm, config: TileConfig) -> dict[str, Any]:
    """Return what the table says of one product."""
    return {
        "template_id": f"triton::{operation(problem)}",
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        # Inductor fills in its own first configuration's where this is left out.
        "EVEN_K": problem.k % config.block_k == 0,
    }


def to_inductor(picks: Sequence[Pick]) -> dict[str, list[dict[str, Any]]]:
    """Return the table of ``picks``.

    Raises:
        InvalidProblemError: one is no matrix product, or none that Inductor knows.
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for found in picks:
        if not isinstance(found.problem, Gemm):
            raise InvalidProblemError(
                f"Inductor's look-up table is of matrix products, not of {found.problem.family}; "
                "export as json or triton"
            )
        table[lookup_key(found.problem)] = [lookup_entry(found.problem, found.config)]
    return table


def _torch_type(dtype: DType) -> str | None:
    return TORCH_TYPES.get(dtype.name)


def _operand(
    batch: int, rows: int, columns: int, layout: str, leading: int
) -> tuple[list[int], list[int]]:
    sizes, strides = [rows, columns], [leading, 1] if layout == "row" else [1, leading]
    if batch == 1:
        return sizes, strides
    between = leading * (rows if layout == "row" else columns)
    return [batch, *sizes], [between, *strides]
