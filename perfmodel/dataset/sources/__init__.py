"""One importer per published source.

An importer is a module with ``VERSION`` (raised whenever the same file would import differently)
and ``read(dataset, paths, advance)``. ``paths`` holds one verified local file per
``dataset.files``, in order; ``advance(n)`` reports that many bytes of them as done. It returns a
frame of schema columns, one row per (device, problem, config, source file), with ``distinct_us``
ascending and not yet gated; `perfmodel.dataset.quality` gates it and fills in the label.

A source of several tables has ``read_tables`` instead: it yields the name of a table, one of
``dataset.tables``, and a part of its rows, as often as it likes; no part need fit beside another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import pandas as pd

from perfmodel.dataset.registry import Dataset
from perfmodel.errors import DataError

NAMES = (
    "aiconfigurator", "autoheuristic", "collected", "dejavu", "llmservingsim", "pipeweave",
    "tokamax", "triton_grid",
)  # fmt: skip


class Importer(Protocol):
    """What every module of this folder offers."""

    VERSION: int

    def read(
        self, dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]
    ) -> pd.DataFrame:
        """Read verified local files into a frame of schema columns."""
        ...


@runtime_checkable
class ManyTables(Protocol):
    """What a module offers whose source makes several tables."""

    VERSION: int

    def read_tables(
        self, dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]
    ) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield tables' names and parts of their rows."""
        ...


def importer(name: str) -> Importer | ManyTables:
    """Return the importer module called ``name``; raises `DataError` for an unknown one."""
    if name not in NAMES:
        raise DataError(f"no importer is called {name!r}; there are: {', '.join(NAMES)}")
    return cast("Importer | ManyTables", import_module(f"{__name__}.{name}"))
