"""The tables of the store, and rows that vouch for themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

APPLICATION = 0x70666D64  # "pfmd"
VERSION = 1


@dataclass(frozen=True)
class Table:
    """One table: its columns, the first ``keys`` of which say what a row is about."""

    name: str
    columns: tuple[str, ...]
    keys: int
    real: tuple[str, ...] = ()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that two rows about the same thing share."""
        return self.columns[: self.keys]

    @property
    def create(self) -> str:
        """The statement that makes it."""
        kinds = ", ".join(
            f"{c} REAL" if c in self.real else f"{c} TEXT NOT NULL" for c in self.columns
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self.name} ({kinds}, checksum TEXT NOT NULL, "
            f"PRIMARY KEY ({', '.join(self.key_columns)})) WITHOUT ROWID"
        )

    @property
    def replace(self) -> str:
        """The statement that writes a row, the newer instead of the older."""
        return self._insert("REPLACE")

    @property
    def keep(self) -> str:
        """The statement that writes a row unless there is one about the same thing."""
        return self._insert("IGNORE")

    @property
    def select(self) -> str:
        """The statement that reads whole rows; conditions follow."""
        return f"SELECT {', '.join(self.columns)}, checksum FROM {self.name}"

    def _insert(self, on_conflict: str) -> str:
        marks = ", ".join("?" * (len(self.columns) + 1))
        return (
            f"INSERT OR {on_conflict} INTO {self.name} ({', '.join(self.columns)}, checksum) "
            f"VALUES ({marks})"
        )

    def row(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return ``values`` in the order of the columns, checksum last."""
        ordered = tuple(values[c] for c in self.columns)
        return (*ordered, checksum(ordered))

    def values(self, row: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return a row's values by column, ``None`` for a row that does not vouch for itself."""
        if len(row) != len(self.columns) + 1 or checksum(row[:-1]) != row[-1]:
            return None
        return dict(zip(self.columns, row, strict=False))


MEASUREMENTS = Table(
    "measurements",
    (
        "kernel", "arguments", "device", "protocol", "config", "triton", "ptxas",
        "driver", "outcome", "samples_us", "reason", "recorded_at",
    ),
    keys=7,
    real=("recorded_at",),
)  # fmt: skip

DECISIONS = Table(
    "decisions",
    (
        "kernel", "arguments", "device", "policy", "space", "triton", "ptxas",
        "driver", "config", "expected_loss", "timed", "why", "recorded_at",
    ),
    keys=7,
    real=("expected_loss", "timed", "recorded_at"),
)  # fmt: skip

QUARANTINE = Table(
    "quarantine",
    ("kernel", "arguments", "device", "config", "triton", "ptxas", "reason", "recorded_at"),
    keys=6,
    real=("recorded_at",),
)

TABLES = (MEASUREMENTS, DECISIONS, QUARANTINE)


def checksum(values: tuple[Any, ...]) -> str:
    """Return what a torn or edited row would not match."""
    # A whole number comes back from a REAL column as a float.
    same = [float(v) if isinstance(v, int) else v for v in values]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]
