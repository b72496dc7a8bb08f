"""The options that describe a matrix product, shared by the commands that take one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import AsJson, Backend, Device, maybe_whole, takes, whole

if TYPE_CHECKING:
    from perfmodel.problems.gemm import Gemm

__all__ = ["AsJson", "Device", "read_gemm", "takes_gemm", "whole"]


def read_gemm(
    m: Annotated[str, typer.Option("--m", "--M", metavar="INT", help="Rows of A and C.")],
    n: Annotated[str, typer.Option("--n", "--N", metavar="INT", help="Columns of B and C.")],
    k: Annotated[str, typer.Option("--k", "--K", metavar="INT", help="Columns of A, rows of B.")],
    dtype: Annotated[
        str, typer.Option(help="Of A and B: bf16, fp16, fp32, tf32, fp8_e4m3, fp8_e5m2, int8, ...")
    ],
    batch: Annotated[str, typer.Option(metavar="INT", help="Independent products.")] = "1",
    b_dtype: Annotated[
        str | None, typer.Option(help="Of B, if another: int8 or int4 weights.")
    ] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Of C. Default: the operands' (fp8: bf16, int8: int32).")
    ] = None,
    a_layout: Annotated[str, typer.Option(help="row: k is contiguous; col: m is.")] = "row",
    b_layout: Annotated[str, typer.Option(help="row: n is contiguous; col: k is.")] = "row",
    lda: Annotated[
        str | None,
        typer.Option(metavar="INT", help="Leading stride of A in elements. Default: packed."),
    ] = None,
    ldb: Annotated[
        str | None,
        typer.Option(metavar="INT", help="Leading stride of B in elements. Default: packed."),
    ] = None,
    backend: Backend = None,
) -> Gemm:
    """Build the problem from the options."""
    from perfmodel.problems.dtypes import parse_dtype  # noqa: PLC0415 - start-up time
    from perfmodel.problems.gemm import Gemm  # noqa: PLC0415 - start-up time

    return Gemm(
        whole("m", m),
        whole("n", n),
        whole("k", k),
        whole("batch", batch),
        a_dtype=parse_dtype(dtype),
        b_dtype=None if b_dtype is None else parse_dtype(b_dtype),
        out_dtype=None if out_dtype is None else parse_dtype(out_dtype),
        a_layout=a_layout,  # type: ignore[arg-type]  # Gemm checks it
        b_layout=b_layout,  # type: ignore[arg-type]  # as above
        lda=maybe_whole("lda", lda),
        ldb=maybe_whole("ldb", ldb),
        backend=backend,
    )


takes_gemm = takes(read_gemm)
