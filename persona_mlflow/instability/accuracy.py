"""I_A, performance instability: how far accuracy moves between settings (P1 §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.instability.result import Grid, Instability

if TYPE_CHECKING:
    import xarray as xr


def accuracy_instability(correct: xr.DataArray, over: str | Sequence[str] | None = None) -> Instability:
    """Mean absolute difference of accuracy between two settings, averaged over personas (P1 §3, I_A).

    ``I_A(p)`` = mean over unordered pairs of settings of ``|Acc(p;si) − Acc(p;sj)|``; ``I_A`` = mean over
    personas. With ``over="persona"`` the pairs are pairs of personas within each setting (P1 Fig. 7), and
    `Instability.average` is their mean over settings.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary jointly; by default every dim but persona and question. Any further dim is
            kept: the result has one value per level of it.

    Returns:
        The instability as a fraction of the questions, in [0, 1]. Undefined with one setting (it gives no
        pairs), without questions, and without personas.

    Raises:
        UserError: If a dim is missing, ``correct`` is not boolean, or ``over`` names no dim to vary.
    """
    grid = Grid.check(correct, over)
    if reason := grid.undefined():
        return Instability(**grid.undefined_result("accuracy", reason))
    values = mean_pairwise_difference(grid.flat(grid.counts())) / grid.questions
    return Instability(
        metric="accuracy",
        over=grid.over,
        value=grid.shaped(values.mean(axis=0) if grid.unit else values, "accuracy"),
        per_persona=grid.array(values, (*grid.unit, *grid.kept), "accuracy"),
    )


def mean_pairwise_difference(counts: np.ndarray) -> np.ndarray:
    """Gini's mean difference along the last axis, in O(n log n).

    The i-th smallest of n values (from 0) is the larger one of i pairs and the smaller one of n − 1 − i, so
    the sum over pairs is Σ (2i − n + 1) x_(i). On integers that sum is exact: equal counts give exactly 0.

    Args:
        counts: Integer counts, the last axis being what is compared, at least 2 long.

    Returns:
        The mean over unordered pairs of the absolute difference, without the last axis.
    """
    n = counts.shape[-1]
    pairs = n * (n - 1) // 2
    return np.sort(counts, axis=-1) @ np.arange(1 - n, n, 2) / pairs
