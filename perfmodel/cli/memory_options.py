"""The options that describe a memory-bound kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import Backend, takes, whole

if TYPE_CHECKING:
    from perfmodel.problems.memory_bound import MemoryBound


def read_memory(
    kernel: Annotated[
        str,
        typer.Option(
            help="copy, add, scale, gelu, silu_mul, rms_norm, add_rms_norm, layer_norm, rotary or "
            "softmax."
        ),
    ],
    rows: Annotated[str, typer.Option(metavar="INT", help="Rows of the result.")],
    columns: Annotated[str, typer.Option(metavar="INT", help="Columns of the result.")],
    dtype: Annotated[str, typer.Option(help="Of what is read.")],
    out_dtype: Annotated[str | None, typer.Option(help="Of the result. Default: dtype.")] = None,
    backend: Backend = None,
) -> MemoryBound:
    """Build the problem from the options."""
    from perfmodel.problems.memory_bound import MemoryBound  # noqa: PLC0415 - start-up time

    return MemoryBound(
        kernel,
        whole("rows", rows),
        whole("columns", columns),
        dtype=dtype,
        out_dtype=out_dtype,
        backend=backend,
    )


takes_memory = takes(read_memory)
