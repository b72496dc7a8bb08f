"""``perfmodel gpus``: the known devices, and every number of one of them with its source."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfmodel.hardware.fields import Field
    from perfmodel.hardware.gpu import Gpu

app = typer.Typer(help="List the known GPUs, or show one of them.", no_args_is_help=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_WIDTH_WHEN_PIPED = 160
_GROUPS = {
    "identity": "Names",
    "compute": "Compute",
    "memory": "Memory",
    "limits": "Limits",
    "other": "Other",
}


@app.callback(invoke_without_command=True)
def list_all(context: typer.Context, as_json: Json = False) -> None:
    """List the known GPUs with their dense peaks."""
    if context.invoked_subcommand is not None:
        return
    from perfmodel.hardware.catalog import list_gpus  # noqa: PLC0415 - start-up time

    gpus = list_gpus()
    if as_json:
        typer.echo(json.dumps([_as_dict(gpu) for gpu in gpus], indent=2))
    else:
        _print_list(gpus)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name (h100-sxm5), or a device file (FILE.toml).")],
    as_json: Json = False,
) -> None:
    """Show every field of one GPU with its unit and source."""
    from perfmodel.hardware.catalog import load_gpu  # noqa: PLC0415 - start-up time

    gpu = load_gpu(name)
    if as_json:
        typer.echo(json.dumps(_as_dict(gpu, with_units=True), indent=2))
    else:
        _print_one(gpu)


def _as_dict(gpu: Gpu, *, with_units: bool = False) -> dict[str, Any]:
    values = asdict(gpu)
    if with_units:
        from perfmodel.hardware.fields import FIELDS  # noqa: PLC0415 - start-up time

        values["units"] = {name: item.unit for name, item in FIELDS.items() if item.unit}
    return values


def _console() -> Any:
    from rich.console import Console  # noqa: PLC0415 - start-up time

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WHEN_PIPED)


def _print_list(gpus: list[Gpu]) -> None:
    from rich.table import Table  # noqa: PLC0415 - start-up time

    table = Table(title="Known GPUs (dense peaks)", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("arch", no_wrap=True)
    for head in ("SMs", "memory\nGiB", "DRAM\nGB/s", "L2\nMiB", "smem/block\nKiB"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("FP32", "FP16", "BF16", "FP8"):
        table.add_column(f"{head}\nTFLOP/s", justify="right", no_wrap=True)
    for gpu in gpus:
        tensor = gpu.tensor_tflops
        table.add_row(
            gpu.name,
            gpu.architecture,
            str(gpu.sm_count),
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.dram_bandwidth_gb_per_s:.0f}",
            f"{gpu.l2_bytes / 2**20:.0f}",
            f"{gpu.smem_per_block_optin_bytes / 2**10:.0f}",
            _short(gpu.plain_tflops.get("fp32")),
            _short(tensor.get("fp16")),
            _short(tensor.get("bf16")),
            _short(tensor.get("fp8_e4m3")),
        )
    console = _console()
    console.print(table)
    console.print("FP32 on ordinary lanes, the rest on tensor cores. perfmodel gpus show NAME")


def _print_one(gpu: Gpu) -> None:
    from rich.table import Table  # noqa: PLC0415 - start-up time

    from perfmodel.hardware.fields import FIELDS  # noqa: PLC0415 - start-up time

    console = _console()
    console.print(f"[bold]{gpu.name}[/bold]", highlight=False)
    for group, title in _GROUPS.items():
        table = Table(title=title, title_justify="left", show_edge=False)
        table.add_column("field", no_wrap=True)
        table.add_column("value", justify="right")
        if group != "identity":  # numbers have a unit and a source, names need none
            table.add_column("unit", no_wrap=True)
            table.add_column("source", overflow="fold")
        for item in FIELDS.values():
            if item.group == group and item.kind != "sources":
                for row in _rows(gpu, item):
                    table.add_row(*row[: len(table.columns)])
        console.print(table, highlight=False)
        console.print()


def _rows(gpu: Gpu, item: Field) -> list[tuple[str, str, str, str]]:
    value = getattr(gpu, item.name)
    if isinstance(value, dict):
        return [
            (
                f"{item.name}.{key}",
                _plain(entry),
                item.unit,
                gpu.source_of(f"{item.name}.{key}") or "",
            )
            for key, entry in value.items()
        ]
    return [(item.name, _plain(value), item.unit, gpu.source_of(item.name) or "")]


def _plain(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else value
    )


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
