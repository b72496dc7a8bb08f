"""Tables of our own collections, published as they were merged: parquet in our schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from perfmodel.dataset import schema
from perfmodel.dataset.distinct import as_objects
from perfmodel.dataset.registry import Dataset

VERSION = 1


def read(dataset: Dataset, paths: Sequence[Path], advance: Callable[[int], None]) -> pd.DataFrame:
    """Return the rows of all files; what was gated out before comes with no values to gate again.

    Raises:
        CorruptFileError, SchemaMismatchError: a file is no measurement table of this schema.
    """
    frames = []
    for file, path in zip(dataset.files, paths, strict=True):
        frame = schema.read(path)
        frame["distinct_us"] = as_objects(
            [[] if values is None else list(values) for values in frame["distinct_us"]]
        )
        frames.append(frame.assign(source=dataset.name, source_file=file.name,
                                   source_sha256=file.sha256))  # fmt: skip
        advance(file.size_bytes)
    return pd.concat(frames, ignore_index=True)
