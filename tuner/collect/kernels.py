"""The reference kernel behind each planned measurement: its launches, its inputs, its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.tiling.config import TileConfig
from tuner.collect.families import family_of
from tuner.collect.plan_file import Item, PlannedConfig, PlannedProblem
from tuner.kernels import catalog
from tuner.kernels.launch import Launch, Plan

if TYPE_CHECKING:
    from tuner.kernels.execution import Tensors


@dataclass(frozen=True)
class Variant:
    """One kernel to compile, as Triton's launcher would ask for it; equal where its binary is."""

    name: str  # of the item's kernel
    launch: Launch
    text: str


def launches_of(item: Item) -> Plan:
    """Return what runs to measure an item.

    Raises:
        InvalidProblemError: the kernel does not compute such problems.
        NotInstalledError: Triton is absent.
    """
    problem, config = problem_of(item.problem), config_of(item.config)
    return catalog.find(item.problem.kernel).planned(problem, config)


def inputs_of(problem: PlannedProblem, device: str, seed: int = 0) -> Tensors:
    """Return random inputs of a problem on a torch device."""
    return catalog.find(problem.kernel).inputs(problem_of(problem), seed, device)


def problem_of(planned: PlannedProblem) -> Any:
    """Return the problem itself."""
    return family_of(planned.family).problem(planned.values)


def config_of(planned: PlannedConfig) -> TileConfig:
    """Return the configuration itself."""
    return TileConfig(**planned.values, extras=tuple(sorted(planned.extras.items())))


def variants_of(item: Item) -> Sequence[Variant]:
    """Return the kernels that an item launches, those without a program left out."""
    found = []
    for launch in launches_of(item).launches:
        if launch.programs:
            found.append(Variant(item.problem.kernel, launch, _text(launch)))
    return found


def source_hashes(names: Sequence[str], launches: Sequence[Launch]) -> dict[str, str]:
    """Return the hash of the sources behind each kernel name, callees included."""
    found: dict[str, set[str]] = {}
    for name, launch in zip(names, launches, strict=True):
        found.setdefault(name, set()).add(str(launch.kernel.cache_key))
    return {name: "+".join(sorted(keys)) for name, keys in sorted(found.items())}


def compiler_name() -> str:
    """Return the compiler and its version."""
    import triton  # noqa: PLC0415 - optional extra

    return f"triton {triton.__version__}"


def _text(launch: Launch) -> str:
    """What the binary depends on, canonically."""
    from tuner.compile import specialize  # noqa: PLC0415 - loads Triton

    special = specialize(
        launch.kernel.arg_names, launch.pointers, launch.integers,
        {**launch.constexprs, **launch.floats},
    )  # fmt: skip
    return repr((
        launch.kernel.cache_key, sorted(special.signature.items()),
        sorted((k, str(v)) for k, v in special.constexprs.items()),
        sorted(special.attrs.items()), sorted(launch.options.items()),
    ))  # fmt: skip
