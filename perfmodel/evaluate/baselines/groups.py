"""Small least-squares fits, one a group of rows, all at once."""

from __future__ import annotations

import numpy as np

from perfmodel.evaluate.metrics import Floats, Indices, Mask


def fit_groups(
    group: Indices, columns: Floats, target: Floats, groups: int, ridge: float = 1e-6
) -> tuple[Floats, Indices]:
    """Solve min |columns x - target|^2 within each group.

    Args:
        group: number of each row's group, 0 to ``groups`` - 1, shape (N,).
        columns: (N, C); scaled by the caller so that rows weigh alike.
        target: (N,).
        groups: how many groups there are.
        ridge: added to the diagonal, relative to its mean, for groups that do not fix all unknowns.

    Returns:
        Coefficients (groups, C), 0 for a group without rows, and rows per group (groups,).
    """
    width = columns.shape[1]
    square = np.zeros((groups, width, width))
    right = np.zeros((groups, width))
    for i in range(width):
        right[:, i] = np.bincount(group, columns[:, i] * target, minlength=groups)
        for j in range(i, width):
            sums = np.bincount(group, columns[:, i] * columns[:, j], minlength=groups)
            square[:, i, j] = square[:, j, i] = sums
    # Unknowns differ by orders of magnitude: each is scaled to a unit diagonal before the ridge.
    scale = np.sqrt(np.maximum(np.einsum("gii->gi", square), 1e-300))
    square = square / (scale[:, :, None] * scale[:, None, :]) + ridge * np.eye(width)
    solved = np.linalg.solve(square, (right / scale)[:, :, None])[:, :, 0] / scale
    return solved, np.bincount(group, minlength=groups)


def dense(*keys: Indices) -> tuple[Indices, int]:
    """Return a number per row that is equal where all ``keys`` are, and how many there are."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        values, part = np.unique(key, return_inverse=True)
        code = np.unique(code * len(values) + part.reshape(-1), return_inverse=True)[1].reshape(-1)
    return code, int(code.max(initial=-1)) + 1


def enough(rows: Indices, group: Indices, least: int) -> Mask:
    """Return which rows belong to a group with at least ``least`` training rows."""
    return np.asarray(rows[group] >= least)


def extremes(group: Indices, values: Floats, groups: int) -> tuple[Floats, Floats]:
    """Return least and largest value of each group, infinite for an empty one, (groups,)."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    return low, high
