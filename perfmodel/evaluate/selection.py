"""Which rows a protocol takes: `rows.toml` read, and applied to an imported table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.dataset import store
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.quality import GATES
from perfmodel.errors import DataError

ROWS = Path(__file__).with_name("rows.toml")

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Selection:
    """One set of rows. ``versions`` maps GPU (or ``default``) and framework to versions; None: all.

    ``folds`` names the columns that training and test must not share.
    """

    protocol: str
    family: str
    table: str
    dtype: str
    where: Mapping[str, Sequence[Any]]
    versions: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    folds: tuple[str, ...] = ()
    gates: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def load(
        self, columns: Sequence[str], cache_dir: str | Path | None = None
    ) -> tuple[pd.DataFrame, dict[str, int]]:
        """Return the rows that ran, and how many the gates dropped, by gate.

        ``columns`` come in the order given; ``gates`` is always among them. What may be trained on
        and tested by is told by `usable`.
        """
        extra = [
            "gates",
            "outcome",
            *(["gpu", "library", "library_version"] if self.versions else []),
        ]
        filters = [(name, "in", list(values)) for name, values in self.where.items()]
        wanted = list(dict.fromkeys([*columns, *extra]))
        frame = store.load(self.table, cache_dir, wanted, filters or None)
        if self.versions is not None:
            frame = frame[_of_version(frame, self.versions)]
        ran = (frame["outcome"] == Outcome.OK.value).to_numpy()
        marks = frame.loc[~ran, "gates"].dropna().str.split(",").explode()
        dropped = marks[marks.isin(list(GATES))].value_counts()
        kept = frame.loc[ran, list(dict.fromkeys([*columns, "gates"]))].reset_index(drop=True)
        return kept, {str(gate): int(rows) for gate, rows in dropped.items()}

    def usable(self, frame: pd.DataFrame, purpose: str) -> NDArray[np.bool_]:
        """Return which rows may serve ``purpose``, ``train`` or ``test``, by their marks."""
        refused = self.gates.get(purpose, ())
        marks = frame["gates"].fillna("").astype("category")
        sound = [not set(mark.split(",")) & set(refused) for mark in marks.cat.categories]
        return np.array([*sound, True], dtype=np.bool_)[marks.cat.codes.to_numpy()]


def selections(protocol: str) -> tuple[Selection, ...]:
    """Return the sets of rows of ``protocol``.

    Raises:
        DataError: rows.toml has no such protocol.
    """
    content = _content()
    found = content.get(protocol)
    if not isinstance(found, list):
        known = ", ".join(name for name, value in content.items() if isinstance(value, list))
        raise DataError(f"{ROWS.name} names no rows for {protocol!r}; it has: {known}")
    made = []
    for entry in found:
        versions = entry.get("versions")
        made.append(
            Selection(
                protocol=protocol,
                family=entry["family"],
                table=entry["table"],
                dtype=entry["dtype"],
                where=entry["where"],
                versions=None if versions is None else content["versions"][versions],
                folds=tuple(entry.get("folds", ())),
                gates=content["gates"],
            )
        )
    return tuple(made)


def selection(protocol: str, family: str, dtype: str = "bf16") -> Selection:
    """Return the one set of rows of ``protocol`` for ``family`` (gemm, prefill ...) and ``dtype``.

    Raises:
        DataError: there is none, or more than one.
    """
    found = [s for s in selections(protocol) if (s.family, s.dtype) == (family, dtype)]
    if len(found) != 1:
        have = ", ".join(f"{s.family} {s.dtype} ({s.table})" for s in selections(protocol))
        raise DataError(f"{protocol} has {len(found)} sets of {family} {dtype}; it has: {have}")
    return found[0]


def _of_version(
    frame: pd.DataFrame, versions: Mapping[str, Mapping[str, Sequence[str]]]
) -> NDArray[np.bool_]:
    names = ["gpu", "library", "library_version"]
    groups = frame[names].astype("category")
    codes = groups.groupby(names, observed=True, dropna=False, sort=False).ngroup().to_numpy()
    _, first = np.unique(codes, return_index=True)
    wanted = [
        version in versions.get(gpu, versions["default"]).get(library, ())
        for gpu, library, version in frame[names].iloc[first].itertuples(index=False)
    ]
    return np.array(wanted, dtype=np.bool_)[codes]


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(ROWS.read_text(encoding="utf-8"))
