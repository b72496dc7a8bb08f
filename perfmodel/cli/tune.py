"""``perfmodel tune``: the model's picks for a list of shapes, in the form of other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import Device, Model, make_predictor

if TYPE_CHECKING:
    from perfmodel.hardware.gpu import Gpu
    from perfmodel.predictor import Predictor
    from tuner.export.pick import Pick
    from tuner.export.shapes import Shape
    from tuner.export.vllm import Table

app = typer.Typer(
    no_args_is_help=True,
    help="Pick configurations for a list of shapes, for other programs to use.",
)


class Export(StrEnum):
    """The programs that the picks can be written for."""

    VLLM = "vllm"
    INDUCTOR = "inductor"
    TRITON = "triton"
    JSON = "json"


FAMILIES = {
    Export.VLLM: ("moe",),
    Export.INDUCTOR: ("gemm",),
    Export.TRITON: ("gemm", "moe", "attention"),
    Export.JSON: ("gemm", "moe", "attention"),
}
"""The families that each form is for."""

Shapes = Annotated[
    Path, typer.Option(help="A .csv or .jsonl with a field for each argument of the problem.")
]
Form = Annotated[Export, typer.Option(help="The program that will read the picks.")]
Out = Annotated[
    Path | None,
    typer.Option(help="File to write (vllm: folder). Default: print it (vllm: here).",
                 show_default=False),
]  # fmt: skip
DeviceName = Annotated[
    str | None,
    typer.Option(
        help="The driver's name for the device, by which vLLM finds tables. Default: known.",
        show_default=False,
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Write over tables that exist.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; say what would be.")]


@app.command()
def gemm(
    shapes: Shapes,
    gpu: Device,
    export: Form = Export.JSON,
    out: Out = None,
    model: Model = None,
    dry_run: DryRun = False,
) -> None:
    """Pick tiles of matrix products (fields m, n, k, dtype, ...); nothing is timed."""
    _tune("gemm", shapes, gpu, export, out, model, dry_run)


@app.command()
def attention(
    shapes: Shapes,
    gpu: Device,
    export: Form = Export.JSON,
    out: Out = None,
    model: Model = None,
    dry_run: DryRun = False,
) -> None:
    """Pick tiles of attention (fields q_len, q_heads, head_dim, dtype, ...); nothing is timed."""
    _tune("attention", shapes, gpu, export, out, model, dry_run)


@app.command()
def moe(
    shapes: Shapes,
    gpu: Device,
    export: Form = Export.JSON,
    out: Out = None,
    model: Model = None,
    dry_run: DryRun = False,
    device_name: DeviceName = None,
    replace: Replace = False,
) -> None:
    """Pick tiles of mixture-of-experts layers (fields tokens, experts, top_k, hidden, ...).

    Nothing is timed. tokens may list several numbers.
    """
    if export is not Export.VLLM:
        _tune("moe", shapes, gpu, export, out, model, dry_run)
        return
    from tuner.export.vllm import make_tables, write_tables  # noqa: PLC0415 - start-up time

    device, wanted, predictor = _start("moe", shapes, gpu, export, model)
    name = device_name or _driver_name(device)
    tables = make_tables(wanted, device, name, predictor)
    for table in tables:
        typer.echo(table_text(table, device.name))
    folder = out or Path()
    if dry_run:
        typer.echo("dry run: nothing was written")
        return
    for path in write_tables(tables, folder, replace=replace):
        typer.echo(f"written: {path}")


def _tune(
    family: str,
    shapes: Path,
    gpu: str,
    export: Export,
    out: Path | None,
    model: Path | None,
    dry_run: bool,
) -> None:
    from tuner.export import inductor_table  # noqa: PLC0415 - start-up time
    from tuner.export.pick import pick, to_json  # noqa: PLC0415 - as above
    from tuner.export.triton_configs import to_triton  # noqa: PLC0415 - as above

    device, wanted, predictor = _start(family, shapes, gpu, export, model)
    keep = inductor_table.takes if export is Export.INDUCTOR else None
    picks = [pick(shape.problem, device, predictor, keep=keep) for shape in wanted]
    content: Any = {
        Export.JSON: to_json,
        Export.TRITON: to_triton,
        Export.INDUCTOR: inductor_table.to_inductor,
    }[export](picks)
    text = json.dumps(content, indent=2)
    if out is None and not dry_run:
        typer.echo(text)
        return
    typer.echo(picks_text(picks), err=out is None)
    if dry_run or out is None:
        typer.echo("dry run: nothing was written")
        return
    from perfmodel.files import atomic_path  # noqa: PLC0415 - start-up time

    with atomic_path(out, "--out FILE") as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"written: {out}")


def _start(
    family: str, shapes: Path, gpu: str, export: Export, model: Path | None
) -> tuple[Gpu, list[Shape], Predictor]:
    """Check what was asked, and say what has no table before anything is computed."""
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time
    from perfmodel.predictor import as_gpu  # noqa: PLC0415 - as above
    from tuner.export.shapes import read_shapes  # noqa: PLC0415 - as above

    if family not in FAMILIES[export]:
        forms = [form.value for form, families in FAMILIES.items() if family in families]
        raise UsageError(
            f"--export {export.value} is for {', '.join(FAMILIES[export])}, not for {family}; use "
            f"{' or '.join(forms)}"
        )
    return as_gpu(gpu), read_shapes(shapes, family), make_predictor(model)


def _driver_name(gpu: Gpu) -> str:
    """The first name that drivers give the device; others are said, for vLLM compares whole names.

    Raises:
        UsageError: none is known.
    """
    from perfmodel.errors import UsageError  # noqa: PLC0415 - start-up time

    if not gpu.driver_names:
        raise UsageError(
            f"what the driver calls {gpu.name} is unknown; give --device-name, as "
            "torch.cuda.get_device_name() prints it"
        )
    if len(gpu.driver_names) > 1:
        others = ", ".join(gpu.driver_names[1:])
        typer.echo(
            f"note: tables are named for {gpu.driver_names[0]!r}; for a driver that says {others}, "
            "give --device-name",
            err=True,
        )
    return gpu.driver_names[0]


def table_text(table: Table, gpu: str) -> str:
    """Return a table's picks in words, and what each is expected to gain over vLLM's default."""
    rows = sorted(table.entries.items())
    bases = ", ".join(sorted({found.pick.basis for _, found in rows}))
    lines = [f"{table.key.file_name} (picked for {gpu} by the model, {bases}; nothing was timed)"]
    lines.append(f"{'tokens':>7}  {'time us':>9}  {'default':>9}  {'gain':>6}  config")
    for tokens, found in rows:
        default = "-" if found.default_us is None else f"{found.default_us:.1f}"
        gain = "-" if found.gain is None else f"{100 * found.gain:.0f} %"
        lines.append(
            f"{tokens:>7}  {found.pick.latency_us:>9.1f}  {default:>9}  {gain:>6}  "
            f"{found.pick.config}"
        )
    kept = sum(found.pick.config == found.default for _, found in rows)
    if kept:
        lines.append(
            f"{kept} of {len(rows)} keep vLLM's default: the model cannot tell it from its best"
        )
    told = _order_text([found.pick for _, found in rows])
    if told:
        lines.append(f"{told}: a small gain of estimated time says little")
    return "\n".join(lines)


def picks_text(picks: Sequence[Pick]) -> str:
    """Return the picks in words, one a line."""
    lines = [f"{'time us':>9}  {'unsure':>6}  config (picked by the model; nothing was timed)"]
    lines += [f"{p.latency_us:>9.1f}  {p.unsure:>6}  {p.config}" for p in picks]
    told = _order_text(picks)
    if told:
        lines.append(f"{told}; the times are estimates")
    return "\n".join(lines)


def _order_text(picks: Sequence[Pick]) -> str:
    """What chose, where that was trees that learned from recorded winners; empty for none."""
    ordered = sorted({p.ordered_by for p in picks if p.ordered_by})
    if not ordered:
        return ""
    return f"chosen in the order of {', '.join(ordered)}, which knows which tiles won and no times"
