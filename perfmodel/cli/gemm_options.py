"""The options that describe a matrix product, shared by the commands that take one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfmodel.predictor import Predictor
    from perfmodel.problems.gemm import Gemm
    from perfmodel.tiling.config import TileConfig

Device = Annotated[
    str, typer.Option("--gpu", help="A name (perfmodel gpus) or a device file (FILE.toml).")
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE,...",
        help="Tile parameters, e.g. block_m=128,num_warps=8. Default: the best found.",
        show_default=False,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="A trained model's .json. Default: the shipped one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
        lda=None if lda is None else whole("lda", lda),
        ldb=None if ldb is None else whole("ldb", ldb),
    )


def whole(name: str, text: str) -> int:
    """Return the whole number that was typed; typer's own message does not say what was typed."""
    from perfmodel.errors import InvalidProblemError  # noqa: PLC0415 - start-up time

    try:
        return int(text)
    except ValueError:
        raise InvalidProblemError(f"{name} is {text!r}; use a whole number of at least 0") from None


def takes_gemm(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(problem, ...)`` the options of `read_gemm` in place of ``problem``."""
    # The annotations name types that only a type checker imports: those are never options.
    names = {"Gemm": object}
    shared = list(inspect.signature(read_gemm, eval_str=True, locals=names).parameters.values())
    signature = inspect.signature(command, eval_str=True, locals=names)
    own = [p for p in signature.parameters.values() if p.name != "problem"]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*shared, *own]]

    def run(**given: Any) -> None:
        problem = read_gemm(**{p.name: given.pop(p.name) for p in shared})
        command(problem, **given)

    run.__name__, run.__doc__, run.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {p.name: p.annotation for p in options}
    return run


def parse_config(text: str | None) -> TileConfig | None:
    """Return the configuration that was typed, ``None`` if none was."""
    from perfmodel.tiling.config import TileConfig  # noqa: PLC0415 - start-up time

    return None if text is None else TileConfig.parse(text)


def make_predictor(model: Path | None) -> Predictor:
    """Return a predictor with the model of a file, or the shipped one."""
    from perfmodel.predictor import Predictor  # noqa: PLC0415 - start-up time

    return Predictor(model)
