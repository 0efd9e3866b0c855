"""What moves accuracy: the shares of its variance over runs that factors, persona and interactions take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

HIGHER = "higher interactions"


def variance_shares(accuracy: np.ndarray, names: Sequence[str]) -> xr.DataArray:
    """Share of the variance of accuracy over runs that each term of an analysis of variance takes.

    Beyond the paper (P1 §4 has the grid). The grid is complete and has one accuracy per run, so the terms
    are orthogonal and the decomposition by means is exact: a main effect is the mean at each level less the
    grand mean, a two-way interaction the mean at each pair of levels less both main effects and the grand
    mean, and `HIGHER` what remains. It is the sequential (type I) analysis of variance of
    ``accuracy ~ (a + b + …)**2``, in which the order of the terms does not matter here. One accuracy per
    run leaves no replicate: what sampling the questions adds to a run counts towards all the terms.

    Args:
        accuracy: Accuracy of each run (or a count of correct answers), shaped (persona, *factors, draw).
        names: The names of all axes but draw, in order: ``("persona", *factors)``.

    Returns:
        Shares in [0, 1] over ``term`` and ``draw``; they sum to 1. The terms are the main effects in the
        order of ``names``, the two-way interactions ("persona × tpf"), then `HIGHER` where at least three
        axes have two or more levels. An axis with one level is in no term. A draw in which all runs are
        equally accurate has NaN; `variance_undefined` and ``attrs["reason"]`` say why for draw 0.

    Raises:
        ValueError: If ``names`` does not name every axis but the last.
    """
    import xarray as xr

    if len(names) != accuracy.ndim - 1:
        raise ValueError(f"{len(names)} names for an array of {accuracy.ndim - 1} axes and draw")
    axes = range(accuracy.ndim - 1)
    varied = [axis for axis in axes if accuracy.shape[axis] > 1]
    draws = accuracy.shape[-1]
    squares: dict[str, np.ndarray] = {}
    if varied and accuracy.size:
        runs = accuracy.size // draws
        # Less the first run, equal accuracies are exactly 0 and stay so, free of rounding.
        shifted = accuracy - accuracy[(slice(0, 1),) * len(axes)]
        centred = shifted - shifted.mean(axis=tuple(axes), keepdims=True)
        main = {
            axis: centred.mean(axis=tuple(a for a in axes if a != axis), keepdims=True) for axis in varied
        }
        pairs = {
            (a, b): centred.mean(axis=tuple(c for c in axes if c not in (a, b)), keepdims=True)
            - main[a]
            - main[b]
            for a, b in combinations(varied, 2)
        }
        effects = {names[axis]: effect for axis, effect in main.items()}
        effects |= {f"{names[a]} × {names[b]}": effect for (a, b), effect in pairs.items()}
        if len(varied) > 2:
            for effect in (*main.values(), *pairs.values()):
                centred -= effect
            effects[HIGHER] = centred
        squares = {
            term: np.square(effect).sum(axis=tuple(axes)) * (runs // (effect.size // draws))
            for term, effect in effects.items()
        }
    values = np.array([*squares.values()]).reshape(len(squares), draws)
    total = values.sum(axis=0)
    shares = np.divide(values, total, out=np.full(values.shape, np.nan), where=total > 0)
    reason = variance_undefined(accuracy)
    return xr.DataArray(
        shares,
        dims=("term", "draw"),
        coords={"term": list(squares)},
        name="share",
        attrs={"reason": reason} if reason else {},
    )


def variance_undefined(accuracy: np.ndarray) -> str | None:
    """Why the runs of draw 0 have no variance to share out; ``None`` if they have.

    Args:
        accuracy: As `variance_shares`.
    """
    runs = accuracy[..., :1].ravel()
    if runs.size < 2:
        return f"{'one run' if runs.size else 'no runs'}: variance over runs needs at least two"
    if (runs == runs[0]).all():
        return "every run is equally accurate: there is no variance to share out"
    return None
