"""Options that all commands on kernels share, and how a command takes a problem's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfmodel.predictor import Predictor
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
Configs = Annotated[
    Path | None,
    typer.Option(help="Your own configs: .json (a list), .jsonl or .csv, a name a column."),
]
KeepExtras = Annotated[
    bool, typer.Option("--keep-extras", help="Keep parameters that no formula knows.")
]
TOP = 10
Top = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"Show this many. Default: {TOP}; all with --json.", show_default=False
    ),
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show all.")]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Cache folder; else PERFMODEL_CACHE_DIR, else the user's own.",
        show_default=False,
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[/KERNEL][@VERSION]",
        help="A library's kernel, its tile unknown. Default: Triton's.",
    ),
]


def takes(reader: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give ``command(problem, ...)`` the options of ``reader`` in place of ``problem``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        # The annotations name types that only a type checker imports: those are never options.
        names = dict.fromkeys(("Gemm", "Attention", "GroupedGemm", "MemoryBound"), object)
        shared = list(inspect.signature(reader, eval_str=True, locals=names).parameters.values())
        signature = inspect.signature(command, eval_str=True, locals=names)
        own = [p for p in signature.parameters.values() if p.name != "problem"]
        options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*shared, *own]]

        def run(**given: Any) -> None:
            problem = reader(**{p.name: given.pop(p.name) for p in shared})
            command(problem, **given)

        run.__name__, run.__doc__, run.__module__ = (
            command.__name__,
            command.__doc__,
            command.__module__,
        )
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # for typer
        run.__annotations__ = {p.name: p.annotation for p in options}
        return run

    return wrap


def whole(name: str, text: str) -> int:
    """Return the whole number that was typed; typer's own message does not say what was typed."""
    from perfmodel.problems.sizes import parse_whole  # noqa: PLC0415 - start-up time

    return parse_whole(name, text)


def maybe_whole(name: str, text: str | None) -> int | None:
    """Return the whole number that was typed, ``None`` if none was."""
    return None if text is None else whole(name, text)


def lengths(name: str, text: str) -> int | list[int]:
    """Return one whole number, or a list of them: ``2048``, ``512,1,1`` or ``512,3x1``."""
    from perfmodel.problems.sizes import parse_lengths  # noqa: PLC0415 - start-up time

    return parse_lengths(name, text)


def parse_config(text: str | None) -> TileConfig | None:
    """Return the configuration that was typed, ``None`` if none was."""
    from perfmodel.tiling.config import TileConfig  # noqa: PLC0415 - start-up time

    return None if text is None else TileConfig.parse(text)


def make_predictor(model: Path | None) -> Predictor:
    """Return a predictor with the model of a file, or the shipped one."""
    from perfmodel.predictor import Predictor  # noqa: PLC0415 - start-up time

    return Predictor(model)
