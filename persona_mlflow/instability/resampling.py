"""The questions drawn again: how often each counts in each draw, and what is right in it.

A draw is a vector of weights over the questions. Draw 0 is the experiment itself (every question once); the
others are bootstrap resamples, or random subsets. What an instability needs of a draw is linear in the
weights (the number of right answers, of questions always right and of questions ever right), so all draws
together are one matrix product per category.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def bootstrap_weights(strata: Sequence[np.ndarray], draws: int, seed: int) -> np.ndarray:
    """Resample the questions with replacement, as many from each stratum as it has.

    Args:
        strata: Per stratum (category) the positions of its questions; together they are all questions.
        draws: Number of resamples.
        seed: Each stratum's resamples depend on it and on the stratum's place alone.

    Returns:
        How often each question counts, float32, question × (1 + draws); the first draw is all ones.
    """
    total = sum(len(positions) for positions in strata)
    weights = np.ones((total, 1 + draws), dtype=np.float32)
    for place, positions in enumerate(strata):
        rng = np.random.default_rng([seed, place])
        n = len(positions)
        for draw in range(1, 1 + draws):
            weights[positions, draw] = np.bincount(rng.integers(n, size=n), minlength=n)
    return weights


def subset_weights(strata: Sequence[np.ndarray], share: float, draws: int, seed: int) -> np.ndarray:
    """Take random subsets of the questions, the same share of each stratum (P1 Table 9).

    Args:
        strata: As for `bootstrap_weights`.
        share: The part of each stratum's questions to keep, in (0, 1]; rounded, and at least one question.
        draws: Number of subsets.
        seed: As for `bootstrap_weights`.

    Returns:
        0 or 1 for each question, float32, question × draws.
    """
    total = sum(len(positions) for positions in strata)
    weights = np.zeros((total, draws), dtype=np.float32)
    for place, positions in enumerate(strata):
        rng = np.random.default_rng([seed, place])
        keep = max(1, round(share * len(positions)))
        for draw in range(draws):
            weights[rng.permutation(positions)[:keep], draw] = 1
    return weights


def weighted_counts(right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many questions are right in each draw.

    Args:
        right: Boolean, any leading axes × question.
        weights: question × draw.

    Returns:
        int32, the leading axes × draw. Exact: a count is far below the 2^24 that float32 holds.
    """
    rows = right.reshape(-1, right.shape[-1])
    out = np.empty((len(rows), weights.shape[1]), dtype=np.int32)
    # In blocks, so that the float copy of the rows stays small beside the rows.
    for start in range(0, len(rows), 1024):
        block = rows[start : start + 1024].astype(np.float32)
        out[start : start + 1024] = np.rint(block @ weights)
    return out.reshape(*right.shape[:-1], weights.shape[1])


def interval(
    values: xr.DataArray, level: float = 0.95, bounds: tuple[float, float] | None = None
) -> xr.Dataset:
    """A value and its bootstrap interval.

    The interval covers what the same experiment gives on average on other questions of the same kind, as
    many as here. An instability of few questions is larger than one of many, since noise adds to every
    difference; a resample adds noise once more, so the resamples' values lie above the experiment's. The
    interval is therefore their percentiles, moved so that their mean falls on the value: it tells how far
    the number moves with the questions, and `persona_mlflow.instability.chance` how much of it is noise.

    Args:
        values: Along a dim ``draw``, of which the first entry is the value and the rest are resamples.
        level: Share of the resamples that the interval covers.
        bounds: The range that the metric can have; the interval is cut to it.

    Returns:
        ``value``, ``low`` and ``high`` without the dim ``draw``. NaN where the value is undefined; the
        bounds are NaN, too, where there are no resamples, or where more than a tenth of them is undefined.
    """
    import xarray as xr

    array = values.transpose(..., "draw").values.astype(float)
    value, resampled = array[..., 0], array[..., 1:]
    low = np.full(value.shape, np.nan)
    high = low.copy()
    if resampled.shape[-1]:
        gaps = np.isnan(resampled)
        usable = (gaps.mean(axis=-1) <= 0.1) & ~np.isnan(value)
        for chosen, percentile, mean in (
            (usable & ~gaps.any(axis=-1), np.percentile, np.mean),
            (usable & gaps.any(axis=-1), np.nanpercentile, np.nanmean),
        ):
            if chosen.any():
                part = resampled[chosen]
                shift = value[chosen] - mean(part, axis=-1)
                tails = percentile(part, [50 * (1 - level), 50 * (1 + level)], axis=-1)
                low[chosen], high[chosen] = tails + shift
        # Where every resample gives the value, rounding must not move the bounds off it.
        same = usable & (np.nanmax(resampled, axis=-1, initial=-np.inf) == value)
        same &= np.nanmin(resampled, axis=-1, initial=np.inf) == value
        low[same] = high[same] = value[same]
        if bounds is not None:
            low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    first = values.isel(draw=0, drop=True)
    dims = values.transpose(..., "draw").dims[:-1]
    return xr.Dataset({"value": (dims, value), "low": (dims, low), "high": (dims, high)}, coords=first.coords)
