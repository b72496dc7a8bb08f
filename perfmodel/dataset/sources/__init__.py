"""One importer per published source.

An importer is a module with ``VERSION`` (raised whenever the same file would import differently)
and ``read(dataset, paths, advance)``. ``paths`` holds one verified local file per
``dataset.files``, in order; ``advance(n)`` reports that many bytes of them as done. It returns a
frame of schema columns, one row per (device, problem, config, source file), with ``distinct_us``
ascending and not yet gated; `perfmodel.dataset.quality` gates it and fills in the label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pandas as pd

from perfmodel.dataset.registry import Dataset
from perfmodel.errors import DataError

NAMES = ("autoheuristic", "triton_grid")


class Importer(Protocol):
    """What every module of this folder offers."""

    VERSION: int

    def read(
        self, dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]
    ) -> pd.DataFrame:
        """Read verified local files into a frame of schema columns."""
        ...


def importer(name: str) -> Importer:
    """Return the importer module called ``name``; raises `DataError` for an unknown one."""
    if name not in NAMES:
        raise DataError(f"no importer is called {name!r}; there are: {', '.join(NAMES)}")
    return cast(Importer, import_module(f"{__name__}.{name}"))
