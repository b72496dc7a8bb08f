"""Feeding the model's ranking into ``torch.compile(mode="max-autotune")``.

Every private name of torch's Inductor that this project uses is in this file, and a test asks of
each whether it still exists. ``with ranked_max_autotune(gpu="h100-sxm5", top=3): compiled(x)``
leaves Inductor the three best tiles of each matrix product to compile and time, beside its
libraries' kernels; without a GPU, `lookup_table` answers from a table of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

from perfmodel.errors import InvalidConfigError, PerfmodelError, TuningWarning
from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor, as_gpu
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.config import ConfigTable, TileConfig

TEMPLATES = ("triton::mm", "triton::bmm")
"""Inductor's templates whose tiles the model knows; choices of others are left as they are."""

_TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")


class RankedChoices(InductorChoices):
    """Inductor's choices, those of a matrix product cut to the model's best few, best first.

    Args:
        gpu: who will run the products; by default torch's current device.
        top: how many tiles of each template stay.
        predictor: who predicts; by default the shipped model.

    Raises:
        InvalidConfigError: ``top`` is no whole number of at least 1.
        UnknownGpuError, AmbiguousGpuError: from the name of ``gpu``.
    """

    def __init__(
        self, gpu: Gpu | str | Path | None = None, top: int = 3, predictor: Predictor | None = None
    ) -> None:
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:
            raise InvalidConfigError(f"top is {top!r}; use a whole number of at least 1")
        self.top = top
        self.gpu = None if gpu is None else as_gpu(gpu)
        self.predictor = predictor or Predictor()
        self._warned: set[str] = set()

    def uuid(self) -> str:
        """Return what Inductor's caches tell these choices from others by."""
        model = self.predictor.model
        version = "analytic" if model is None else model.version
        device = "current" if self.gpu is None else self.gpu.name
        return f"perfmodel {version} {device} top{self.top}"

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Any],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[Any]:
        choices = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, kwarg_overrides
        )
        try:
            return self.ranked(choices, kernel_inputs)
        except PerfmodelError as error:  # an unknown device, a type that it lacks, no legal tile
            self._warn(f"Inductor's own choices stand for {op_name}: {error}")
            return choices

    def ranked(self, choices: Sequence[Any], kernel_inputs: Any) -> list[Any]:
        """Return choices without the tiles that the model leaves out.

        Raises:
            PerfmodelError: the model cannot say; the message has the reason.
        """
        problem = problem_of(kernel_inputs)
        tiles = [at for at, choice in enumerate(choices) if _is_tile(choice)]
        if problem is None or len(tiles) <= 1:
            return list(choices)
        configs = ConfigTable.of([config_of(choices[at].params.to_kwargs()) for at in tiles])
        scores = self.predictor.scores(problem, self._device(kernel_inputs), configs)
        best = [i for i in np.argsort(scores, kind="stable")[: self.top] if np.isfinite(scores[i])]
        others = [choice for choice in choices if not _is_tile(choice)]
        return [*others, *(choices[tiles[i]] for i in best)]

    def _device(self, kernel_inputs: Any) -> Gpu:
        if self.gpu is not None:
            return self.gpu
        return as_gpu(torch.cuda.get_device_name(kernel_inputs.device()))

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, TuningWarning, stacklevel=2)


@contextmanager
def ranked_max_autotune(
    gpu: Gpu | str | Path | None = None, top: int = 3, predictor: Predictor | None = None
) -> Iterator[RankedChoices]:
    """Let Inductor time only the model's ``top`` tiles of what is compiled inside.

    Raises: as `RankedChoices`.
    """
    choices = RankedChoices(gpu, top, predictor)
    with (
        inductor_config.patch(inductor_choices_class=lambda: choices),
        V.set_choices_handler(choices),
    ):
        yield choices


@contextmanager
def lookup_table(table: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[LookupTableChoices]:
    """Let Inductor take its tiles of what is compiled inside from ``table``.

    Args:
        table: what ``perfmodel tune gemm --export inductor`` wrote.
    """
    plain = {key: [dict(entry) for entry in entries] for key, entries in table.items()}
    choices = LookupTableChoices()
    with inductor_config.patch({"lookup_table.table": plain}), V.set_choices_handler(choices):
        yield choices


def problem_of(kernel_inputs: Any) -> Gemm | None:
    """Return the matrix product of Inductor's inputs, ``None`` for one that the model knows not."""
    if not isinstance(kernel_inputs, MMKernelInputs):
        return None
    mats = kernel_inputs.mat1mat2()
    types = {_TYPES.get(mat.get_dtype()) for mat in mats}
    if len(types) != 1 or None in types:
        return None
    m, n, k = kernel_inputs.mnk_hinted()
    strides = kernel_inputs.strides_hinted()
    a = _layout(strides[kernel_inputs._mat1_idx], k, m)
    b = _layout(strides[kernel_inputs._mat2_idx], n, k)
    if a is None or b is None:
        return None
    (kind,) = types
    if kind == "fp32" and torch.get_float32_matmul_precision() != "highest":
        kind = "tf32"
    return Gemm(
        m, n, k, kernel_inputs.batch_hinted(), a_dtype=kind or "", a_layout=a[0], b_layout=b[0],
        lda=a[1], ldb=b[1],
    )  # fmt: skip


def config_of(kwargs: Mapping[str, Any]) -> TileConfig:
    """Return the tile of a template's parameters; those of no tile are left out."""
    return TileConfig.from_mapping({name: kwargs[name] for name in _TILE if name in kwargs})


_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
}


def _layout(strides: Sequence[int], row: int, column: int) -> tuple[Any, int] | None:
    """Which index is contiguous, and the other's stride; ``None`` if neither is."""
    outer, inner = int(strides[-2]), int(strides[-1])
    if inner == 1 and outer >= row:
        return "row", outer
    if outer == 1 and inner >= column:
        return "col", inner
    return None


def _is_tile(choice: Any) -> bool:
    return getattr(choice.template, "uid", None) in TEMPLATES
