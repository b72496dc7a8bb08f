"""The reference kernel behind each planned measurement: its launches, its inputs, its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfmodel.tiling.config import TileConfig
from tuner.collect import table_columns
from tuner.collect.plan_file import Item, PlannedConfig, PlannedProblem
from tuner.compile import specialize
from tuner.kernel_source import kernel_hash
from tuner.kernels import catalog
from tuner.kernels.launch import Launch, Plan

if TYPE_CHECKING:
    from tuner.kernels.execution import Tensors


@dataclass(frozen=True)
class Case:
    """A kernel on a problem, whether or not the measurement table could hold it."""

    kernel: str
    problem: Any
    config: TileConfig


Launched = Item | Case
"""What names launches: an item of a plan, or a case."""

L = TypeVar("L", Item, Case)


@dataclass(frozen=True)
class Variant(Generic[L]):
    """A binary that an item launches: launch ``number`` of its plan; equal texts, equal binary."""

    item: L
    number: int
    text: str


def launches_of(item: Launched) -> Plan:
    """Return what runs to measure an item.

    Raises:
        InvalidProblemError: the kernel does not compute such problems.
        NotInstalledError: Triton is absent.
    """
    if isinstance(item, Case):
        return catalog.find(item.kernel).planned(item.problem, item.config)
    kernel = catalog.find(item.problem.kernel)
    return kernel.planned(problem_of(item.problem), config_of(item.config))


def inputs_of(problem: PlannedProblem, device: str, seed: int = 0) -> Tensors:
    """Return random inputs of a problem on a torch device."""
    return catalog.find(problem.kernel).inputs(problem_of(problem), seed, device)


def problem_of(planned: PlannedProblem) -> Any:
    """Return the problem itself."""
    return table_columns.problem_of(planned.family, planned.values)


def config_of(planned: PlannedConfig) -> TileConfig:
    """Return the configuration itself."""
    return TileConfig(**planned.values, extras=tuple(sorted(planned.extras.items())))


def variants_of(items: Iterable[L]) -> Sequence[Variant[L]]:
    """Return the binaries that items launch, each once, in order of first use.

    An item that launches nothing needs none.
    """
    found: dict[str, Variant[L]] = {}
    for item in items:
        for variant in binaries_of(item):
            found.setdefault(variant.text, variant)
    return list(found.values())


def binaries_of(item: L) -> list[Variant[L]]:
    """Return the binaries that one item launches, in order."""
    return [
        Variant(item, number, _text(launch))
        for number, launch in enumerate(launches_of(item).launches)
        if launch.programs
    ]


def source_hashes(items: Iterable[Item]) -> dict[str, str]:
    """Return the hash of the sources behind each kernel's name, callees included."""
    found: dict[str, set[str]] = {}
    # A kernel's problems may differ in what they launch: one of each will do.
    for item in {id(i.problem): i for i in items}.values():
        for launch in launches_of(item).launches:
            found.setdefault(item.problem.kernel, set()).add(kernel_hash(launch.kernel))
    return {name: "+".join(sorted(hashes)) for name, hashes in sorted(found.items())}


def compiler_name() -> str:
    """Return the compiler and its version."""
    import triton  # noqa: PLC0415 - optional extra

    return f"triton {triton.__version__}"


def _text(launch: Launch) -> str:
    """What a binary depends on, canonically; the device and the compiler aside."""
    found = specialize(
        launch.kernel.arg_names, launch.pointers, launch.integers, launch.constexprs, launch.floats
    )
    return repr((
        launch.kernel.cache_key,
        sorted(found.signature.items()),
        sorted((name, str(value)) for name, value in found.constexprs.items()),
        sorted(found.attrs.items()),
        sorted(launch.options.items()),
    ))  # fmt: skip
