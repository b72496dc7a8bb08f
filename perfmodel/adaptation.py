"""From a table of measurements to a model that knows the devices in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.dataset.splits import candidates, label_table, problem_ids
from perfmodel.errors import DataError, ModelFileError
from perfmodel.learned.adapt import Gain, adapt
from perfmodel.learned.correction import Correction
from perfmodel.learned.feature_table import gemm_feature_table
from perfmodel.learned.model import GemmModel

if TYPE_CHECKING:
    import pandas as pd


def adapt_to_table(
    model: Correction | None, table: pd.DataFrame
) -> tuple[GemmModel, Mapping[str, Gain]]:
    """Correct ``model`` by the measured GEMM rows of ``table``; see `Predictor.adapt`.

    Raises:
        DataError: no row can be used, or a device has fewer than two problems.
        ModelFileError: there is no model of ours to adapt.
    """
    if not isinstance(model, GemmModel):
        raise ModelFileError(
            "there is no trained model to adapt; give one with --model FILE, or train it first: "
            "perfmodel train gemm"
        )
    gemm = table[table["family"] == "gemm"]
    labels = label_table(gemm) if len(gemm) else gemm
    usable = labels[candidates(labels)] if len(labels) else labels
    if not len(usable):
        raise DataError(
            f"none of the {len(table)} rows is a GEMM that ran with a known configuration; "
            "measure some, or name another table"
        )
    usable = usable.reset_index(drop=True)
    return adapt(model, gemm_feature_table(usable, problem_ids(usable)))
