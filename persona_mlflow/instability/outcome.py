"""I_O, outcome instability: how far the ranking of personas moves between settings (P1 §3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.result import Grid, Instability

if TYPE_CHECKING:
    import xarray as xr


_RANK_ENTRIES = 2**18  # ranked at a time: a few MiB, which a cache holds


@dataclass(frozen=True, eq=False, kw_only=True)
class OutcomeInstability(Instability):
    """I_O and its parts. `per_persona` is I_O(p), in ranks, before any normalisation.

    Attributes:
        raw: Mean over personas of I_O(p), in ranks; shaped as `value`.
        normaliser: Mean over settings of w(s), a fraction in [0, 0.5]; shaped as `value`. ``value`` is
            ``raw × normaliser``, or ``raw`` where normalisation was turned off.
        weights: w(s), the standard deviation over personas of accuracy, over every dim but persona and
            question.
        ranks: R(p;s), 1 the most accurate persona of a setting, over every dim but question. Like
            `weights` it is NaN throughout where the metric is undefined.
    """

    raw: float | xr.DataArray | None
    normaliser: float | xr.DataArray | None
    weights: xr.DataArray
    ranks: xr.DataArray


def outcome_instability(
    correct: xr.DataArray,
    over: str | Sequence[str] | None = None,
    *,
    ties: Literal["average", "ordinal"] = "average",
    weighted: bool = True,
    normalized: bool = True,
) -> OutcomeInstability:
    """Spread of each persona's rank over settings, averaged over personas (P1 §3, I_O).

    ``w(s)`` = standard deviation over personas of ``Acc(p;s)``; ``R(p;s)`` = rank of p by accuracy in s, 1
    the best; ``I_O(p)`` = standard deviation of ``R(p;·)`` weighted by ``w(·)``; ``I_O`` = mean over
    personas of ``I_O(p)``, times mean over settings of ``w(s)``. P1's Figure 10 turns the weights and the
    normalisation off in turn.

    The paper leaves these open. Every ddof is 0. Ranks are taken on integer counts of correct answers, so
    that ties are exact. All weights zero means that every persona ties in every setting, and I_O is 0; so
    is that of a single persona.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary jointly; by default every dim but persona and question. Any further dim is
            kept: the result has one value per level of it.
        ties: ``average`` gives tied personas the mean of their ranks; ``ordinal`` ranks them in the order
            of the persona dim (the catalogue's).
        weighted: Weight settings by w(s); otherwise all alike.
        normalized: Multiply by the mean of w(s); otherwise the value is in ranks.

    Returns:
        The instability. Undefined with one setting, without questions, and without personas.

    Raises:
        UserError: If a dim is missing, ``correct`` is not boolean, ``over`` names no dim to vary, or
            persona: ranks compare personas, so they cannot be varied here.
    """
    if ties not in ("average", "ordinal"):
        raise UserError(f"unknown ties {ties!r}: {choices(str(ties), ('average', 'ordinal'))}")
    grid = Grid.check(correct, over)
    if not grid.unit:
        factors = [dim for dim in correct.dims if dim not in ("persona", "question")]
        raise UserError(
            "over contains 'persona', but outcome instability ranks the personas within each setting and is "
            f"not defined across them: {choices('persona', factors)}"
        )
    factor_dims = (*grid.kept, *grid.over)
    if reason := grid.undefined():
        return OutcomeInstability(
            **grid.undefined_result("outcome", reason),
            raw=grid.blank("raw"),
            normaliser=grid.blank("normaliser"),
            weights=grid.array(np.nan, factor_dims, "weights"),
            ranks=grid.array(np.nan, ("persona", *factor_dims), "ranks"),
        )

    counts = grid.flat(grid.counts())
    # On counts, not on accuracies: the deviations of tied personas are then exactly 0.
    weights = counts.std(axis=0) / grid.questions
    ranks = rank_personas(counts, ties)
    spread = weighted_std(ranks, weights if weighted else np.ones_like(weights))
    raw = spread.mean(axis=0)
    normaliser = weights.mean(axis=-1)
    factor_shape = [correct.sizes[dim] for dim in factor_dims]
    return OutcomeInstability(
        metric="outcome",
        over=grid.over,
        value=grid.shaped(raw * normaliser if normalized else raw, "outcome"),
        per_persona=grid.array(spread, ("persona", *grid.kept), "outcome"),
        raw=grid.shaped(raw, "raw"),
        normaliser=grid.shaped(normaliser, "normaliser"),
        weights=grid.array(weights.reshape(factor_shape), factor_dims, "weights"),
        ranks=grid.array(ranks.reshape(-1, *factor_shape), ("persona", *factor_dims), "ranks"),
    )


def rank_personas(counts: np.ndarray, ties: Literal["average", "ordinal"] = "average") -> np.ndarray:
    """Rank along the first axis, 1 for the highest count.

    Args:
        counts: Integer counts of correct answers, the first axis being persona.
        ties: As in `outcome_instability`.

    Returns:
        Ranks as floats, in the shape of ``counts``.
    """
    personas = len(counts)
    if ties != "average" or not 0 < personas <= 127:
        from scipy.stats import rankdata

        return np.asarray(rankdata(-counts, method=ties, axis=0), dtype=float)
    flat = counts.reshape(personas, -1)
    ranks = np.empty(flat.shape)
    size = _RANK_ENTRIES // personas
    for start in range(0, flat.shape[1], size):
        part = ranks[:, start : start + size]
        np.multiply(doubled_ranks(flat[:, start : start + size]), 0.5, out=part)
        part += (personas + 1) / 2
    return ranks.reshape(counts.shape)


def doubled_ranks(counts: np.ndarray) -> np.ndarray:
    """Twice the rank, less persona count + 1: how many personas are better minus how many are worse.

    For at most 127 personas, so that int8 holds it: comparing all pairs is then faster than sorting.
    """
    narrow = counts.astype(np.int16) if counts.size and counts.max() < 2**15 else counts
    doubled = np.zeros(counts.shape, np.int8)
    for i in range(len(counts) - 1):
        better = np.greater(narrow[i], narrow[i + 1 :]).view(np.int8)
        better -= np.less(narrow[i], narrow[i + 1 :]).view(np.int8)
        doubled[i + 1 :] += better
        doubled[i] -= better.sum(axis=0, dtype=np.int8)
    return doubled


def weighted_std(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted standard deviation along the last axis, ddof 0, as statsmodels' ``DescrStatsW(...).std``.

    Differs from it in two cases: weights that are all zero give 0, not NaN, and values that are equal
    wherever the weight is positive give exactly 0.

    Args:
        values: Any shape.
        weights: Not negative; broadcasts against ``values``.

    Returns:
        The standard deviations, without the last axis.
    """
    total = weights.sum(axis=-1, keepdims=True)
    share = np.divide(weights, total, out=np.zeros_like(weights, dtype=float), where=total > 0)
    # Shifted by a value that has weight, equal values become 0 and stay so, free of rounding.
    heaviest = np.broadcast_to(weights.argmax(axis=-1)[..., None], (*values.shape[:-1], 1))
    shifted = values - np.take_along_axis(values, heaviest, axis=-1)
    mean = (share * shifted).sum(axis=-1, keepdims=True)
    return np.sqrt((share * (shifted - mean) ** 2).sum(axis=-1))
