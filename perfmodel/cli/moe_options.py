"""The options that describe a mixture-of-experts layer, shared by the commands that take one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import Backend, takes, whole

if TYPE_CHECKING:
    from perfmodel.problems.grouped_gemm import GroupedGemm


def read_moe(
    tokens: Annotated[str, typer.Option(metavar="INT", help="Tokens that were routed.")],
    experts: Annotated[str, typer.Option(metavar="INT", help="Experts of the whole layer.")],
    top_k: Annotated[str, typer.Option(metavar="INT", help="Experts that each token goes to.")],
    hidden: Annotated[str, typer.Option(metavar="INT", help="Size of the model.")],
    intermediate: Annotated[str, typer.Option(metavar="INT", help="Size of one expert.")],
    dtype: Annotated[str, typer.Option(help="Of the tokens: bf16, fp16, fp8_e4m3, ...")],
    ep: Annotated[str, typer.Option(metavar="INT", help="Expert-parallel ranks.")] = "1",
    tp: Annotated[str, typer.Option(metavar="INT", help="Tensor-parallel ranks.")] = "1",
    routing: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="balanced, uniform, zipf:1.2, power-law:1.2, or a file with each expert's tokens.",
        ),
    ] = "uniform",
    projection: Annotated[
        str, typer.Option(help="both, up (gate and up side by side) or down.")
    ] = "both",
    gated: Annotated[
        bool, typer.Option("--gated/--no-gated", help="Whether up has a gate beside it.")
    ] = True,
    weight_dtype: Annotated[
        str | None, typer.Option(help="Of the weights. Default: dtype.")
    ] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Of the result. Default: dtype (8 bits: bf16).")
    ] = None,
    backend: Backend = None,
) -> GroupedGemm:
    """Build the problem from the options."""
    from perfmodel.problems.grouped_gemm import GroupedGemm  # noqa: PLC0415 - start-up time

    return GroupedGemm(
        tokens=whole("tokens", tokens),
        experts=whole("experts", experts),
        top_k=whole("top_k", top_k),
        hidden=whole("hidden", hidden),
        intermediate=whole("intermediate", intermediate),
        ep=whole("ep", ep),
        tp=whole("tp", tp),
        routing=read_histogram(Path(routing)) if _is_file(routing) else routing,
        projection=projection,  # type: ignore[arg-type]  # GroupedGemm checks it
        gated=gated,
        dtype=dtype,
        weight_dtype=weight_dtype,
        out_dtype=out_dtype,
        backend=backend,
    )


def read_histogram(path: Path) -> list[int]:
    """Read the tokens of each expert: a JSON list, or numbers apart by commas, spaces or lines.

    Raises:
        DataError: the file cannot be read, or holds something else; the message says where.
    """
    from perfmodel.errors import DataError  # noqa: PLC0415 - start-up time

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"routing file {path} cannot be read: {error}; check the path") from None
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"routing file {path}: line {error.lineno} is not JSON ({error.msg}); "
                "use a list of whole numbers"
            ) from None
        parts = [(1, value) for value in values]
    else:
        lines = enumerate(text.splitlines(), start=1)
        parts = [(at, v) for at, line in lines for v in line.replace(",", " ").split()]
    found = []
    for line, value in parts:
        try:
            found.append(int(value))
        except (TypeError, ValueError):
            raise DataError(
                f"routing file {path}: line {line} has {value!r}; use whole numbers, one an expert"
            ) from None
    return found


def _is_file(routing: str) -> bool:
    """A path by its look: a distribution's name has neither a dot before letters nor a slash."""
    return Path(routing).suffix in (".json", ".csv", ".txt") or "/" in routing


takes_moe = takes(read_moe)
