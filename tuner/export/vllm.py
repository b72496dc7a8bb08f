"""vLLM's tuned tables of its fused MoE kernel: written, and read as vLLM reads them."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.dataset.vllm_default import vllm_default
from perfmodel.dataset.vllm_key import MoeTableKey
from perfmodel.errors import (
    CorruptFileError,
    InvalidConfigError,
    InvalidProblemError,
    TuningWarning,
    UsageError,
)
from perfmodel.families import family_of
from perfmodel.files import atomic_path
from perfmodel.hardware.gpu import Gpu
from perfmodel.predictor import Predictor
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.tiling.config import ConfigTable, TileConfig
from tuner.export.pick import Pick, pick
from tuner.export.shapes import Shape

PARAMETERS: Mapping[str, str] = {
    "BLOCK_SIZE_M": "block_m",
    "BLOCK_SIZE_N": "block_n",
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
"""vLLM's names of what a table gives its kernel, and ours."""

_IGNORED = frozenset({"triton_version"})


@dataclass(frozen=True)
class Entry:
    """One line of a table: what was picked, and what vLLM would have taken without it."""

    pick: Pick
    default: TileConfig | None  # None: vLLM's default there is another kernel, without such tiles
    default_us: float | None  # None: no default, or one that the device cannot run

    @property
    def gain(self) -> float | None:
        """By how much the default is expected to be slower: 0.06 for 6 %."""
        return None if self.default_us is None else self.default_us / self.pick.latency_us - 1.0


@dataclass(frozen=True)
class Table:
    """One file: entries by number of tokens."""

    key: MoeTableKey
    entries: Mapping[int, Entry]

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the file's content."""
        return {str(m): to_vllm(e.pick.config) for m, e in sorted(self.entries.items())}


def make_tables(
    shapes: Sequence[Shape], gpu: Gpu, device: str, predictor: Predictor
) -> list[Table]:
    """Return the tables of ``shapes``, one for each file; a pick is never slower than the default.

    Args:
        shapes: mixture-of-experts layers; those that share a file differ in ``tokens``.
        gpu, predictor: who runs them, and who predicts.
        device: the driver's name for the device, by which vLLM looks tables up.

    Raises:
        InvalidProblemError: vLLM has no table for a shape, or two shapes of one file ask for the
            same number of tokens.
        IllegalConfigError, UnsupportedDtypeError: as `pick`.
    """
    found: dict[MoeTableKey, dict[int, Entry]] = {}
    for shape in shapes:
        problem = shape.problem
        if not isinstance(problem, GroupedGemm) or problem.projection != "both":
            raise InvalidProblemError(
                f"vLLM's tables are of whole mixture-of-experts layers, not of {problem}; "
                "leave projection out, or export as json or triton"
            )
        key = MoeTableKey.of(problem, device, shape.block_shape)
        rows = found.setdefault(key, {})
        if problem.tokens in rows:
            raise InvalidProblemError(
                f"two shapes are for {problem.tokens} tokens in {key.file_name}: vLLM tells layers "
                "of other hidden sizes or top_k not apart; tune them into folders of their own"
            )
        rows[problem.tokens] = entry(problem, gpu, predictor, shape.block_shape)
    return [Table(key, rows) for key, rows in found.items()]


def entry(
    problem: GroupedGemm, gpu: Gpu, predictor: Predictor, block_shape: tuple[int, int] | None = None
) -> Entry:
    """Return the pick for one number of tokens beside vLLM's default.

    Raises: as `make_tables`.
    """
    default = vllm_default(problem, gpu, block_shape)

    def keep(config: TileConfig) -> bool:
        return is_searched(config) and takes(config, block_shape)

    # The default competes: a table changes nothing where the model cannot tell the two apart.
    chosen = pick(problem, gpu, predictor, keep=keep, prefer=default)
    if default is None:
        return Entry(chosen, None, None)
    if not is_legal(problem, default, gpu):
        return Entry(chosen, default, None)
    default_us = float(predictor.latency_us(problem, gpu, default)[0])
    return Entry(chosen, default, max(default_us, chosen.latency_us))


def takes(config: TileConfig, block_shape: tuple[int, int] | None = None) -> bool:
    """Whether vLLM's kernel can be given ``config``.

    It has no split_k, CTA clusters or register limit, and a step along k lies in one block of
    scales (weight-only kernels, whose blocks have no n, look each scale up).
    """
    if config.split_k != 1 or config.num_ctas != 1 or config.maxnreg is not None or config.extras:
        return False
    if block_shape is None or not all(block_shape):
        return True
    return config.block_k <= min(block_shape) and block_shape[1] % config.block_k == 0


def is_searched(config: TileConfig) -> bool:
    """Whether ``config`` is among those that vLLM's own tuner times (``benchmark_moe.py``)."""
    return config.num_warps in (4, 8) and config.block_k >= 64 and 2 <= config.num_stages <= 5


def is_legal(problem: GroupedGemm, config: TileConfig, gpu: Gpu) -> bool:
    """Whether the device can launch ``config``."""
    return not family_of(problem).check(problem, ConfigTable.of([config]), gpu)[0]


def to_vllm(config: TileConfig) -> dict[str, int]:
    """Return a configuration in vLLM's names."""
    return {theirs: getattr(config, ours) for theirs, ours in PARAMETERS.items()}


def write_tables(tables: Sequence[Table], folder: Path, *, replace: bool = False) -> list[Path]:
    """Write each table as a file of ``folder``; return their paths.

    Raises:
        UsageError: a file is there already, perhaps of measured entries, and not to be replaced;
            then none is written.
        CacheFolderError: the folder cannot be written.
    """
    paths = [folder / table.key.file_name for table in tables]
    present = [path for path in paths if path.exists()]
    if present and not replace:
        raise UsageError(
            f"{present[0]} exists, and what it holds may have been measured; give --replace to "
            "write over it, or another --out"
        )
    for path, table in zip(paths, tables, strict=True):
        with atomic_path(path, "--out DIR") as partial:
            partial.write_text(json.dumps(table.to_dict(), indent=4) + "\n", encoding="utf-8")
    return paths


def read_table(
    path: Path, problem: GroupedGemm, gpu: Gpu, block_shape: tuple[int, int] | None = None
) -> dict[int, TileConfig]:
    """Return the entries of a table that ``gpu`` can run, by tokens.

    Others (too much shared memory, parameters that the kernel no longer takes) are left out with
    one warning, and never launched.

    Raises:
        CorruptFileError: the file is no table.
    """
    try:
        content = json.loads(path.read_bytes())
        rows = {int(m): dict(row) for m, row in content.items() if m not in _IGNORED}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is not a table of configs by tokens: {error}") from None
    found: dict[int, TileConfig] = {}
    refused: list[str] = []
    for tokens, row in sorted(rows.items()):
        try:
            config = TileConfig.from_mapping(row)
        except InvalidConfigError as error:
            refused.append(f"{tokens} tokens: {error}")
            continue
        reasons = family_of(problem).check(problem, ConfigTable.of([config]), gpu)[0]
        if reasons or not takes(config, block_shape):
            why = "; ".join(map(str, reasons)) or "vLLM's kernel does not take it"
            refused.append(f"{tokens} tokens: config {config}: {why}")
        else:
            found[tokens] = config
    if refused:
        warnings.warn(
            f"{path}: {len(refused)} of {len(rows)} entries cannot run on {gpu.name} and are "
            f"ignored ({refused[0]}); tune again with perfmodel tune moe --replace",
            TuningWarning,
            stacklevel=2,
        )
    return found


def look_up(
    folder: Path,
    problem: GroupedGemm,
    gpu: Gpu,
    device: str,
    *,
    block_shape: tuple[int, int] | None = None,
    predictor: Predictor | None = None,
) -> TileConfig | None:
    """Return what vLLM takes from ``folder`` for a call: the entry of the nearest tokens.

    Without a table, ``None``, and one warning that says what vLLM's default is expected to lose
    and how to write the table.

    Raises:
        CorruptFileError: the file is no table.
        InvalidProblemError: vLLM has no table for such operands.
    """
    key = MoeTableKey.of(problem, device, block_shape)
    path = folder / key.file_name
    if path.exists():
        entries = read_table(path, problem, gpu, block_shape)
        if entries:
            tokens = np.array(list(entries))
            return entries[int(tokens[np.abs(tokens - problem.tokens).argmin()])]
    else:
        warnings.warn(
            missing_message(path, entry(problem, gpu, predictor or Predictor(), block_shape)),
            TuningWarning,
            stacklevel=2,
        )
    return None


def missing_message(path: Path, found: Entry) -> str:
    """Say that a table is missing, what that is expected to cost, and the command to make it."""
    name = found.pick.gpu
    if found.gain is None:
        cost = "what vLLM takes instead cannot be compared"
    else:
        cost = f"vLLM's default is expected to be about {100 * found.gain:.0f} % slower"
    return (
        f"no table {path}: {cost} than {found.pick.config}; write one: perfmodel tune moe "
        f"--shapes SHAPES.csv --gpu {name} --export vllm --out {shlex.quote(str(path.parent))}"
    )


def table_report(table: Table) -> list[dict[str, Any]]:
    """Return a row for each number of tokens: the pick, and its expected gain over the default."""
    return [
        {
            "tokens": tokens,
            "config": str(found.pick.config),
            "latency_us": found.pick.latency_us,
            "default": None if found.default is None else str(found.default),
            "default_us": found.default_us,
            "gain": found.gain,
        }
        for tokens, found in sorted(table.entries.items())
    ]
