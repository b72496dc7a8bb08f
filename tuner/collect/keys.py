"""One function says which measurement a row is; plans, shards and recorded tables all use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from perfmodel.dataset.schema import CONFIG_COLUMNS, PROBLEM_COLUMNS

AS_THE_SOURCE_GIVES = frozenset({"a_stride_0", "a_stride_1", "b_stride_0", "b_stride_1"})
"""Columns that repeat what layout and leading strides say."""

KEY_DIGITS = 16

IDENTITY_COLUMNS: Mapping[str, tuple[str, ...]] = {
    family: tuple(c for c in columns if c not in AS_THE_SOURCE_GIVES)
    for family, columns in PROBLEM_COLUMNS.items()
}
"""Columns that tell one problem of a family from another."""


def measurement_text(
    family: str, row: Mapping[str, Any], extras: Mapping[str, Any] | None = None
) -> str:
    """Return the canonical text of a problem and a configuration.

    Args:
        family: the kernel family.
        row: values by column of `perfmodel.dataset.schema`; what is null or absent is left out.
        extras: parameters of the configuration that have no column.
    """
    problem = {c: row[c] for c in IDENTITY_COLUMNS[family] if row.get(c) is not None}
    config = {c: row[c] for c in CONFIG_COLUMNS if row.get(c) is not None}
    return json.dumps([family, problem, config | dict(extras or {})], separators=(",", ":"))


def measurement_key(text: str) -> str:
    """Return the short name of a measurement's canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
