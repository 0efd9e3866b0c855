"""The recommended settings: the most stable ones at no loss of accuracy."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.instability.outcome import rank_personas
from persona_mlflow.instability.pairwise import (
    adjust,
    check_alpha,
    flat_settings,
    needs,
    paired_p,
    paired_sums,
    setting_label,
)

if TYPE_CHECKING:
    import xarray as xr

METRICS = ("accuracy_instability", "outcome_instability", "question_instability")


def recommend_settings(correct: xr.DataArray, alpha: float = 0.05) -> xr.Dataset:
    """Recommend the settings whose results change least with a further step, at no loss of accuracy.

    Beyond the paper. The instability of P1 §3 belongs to a set of settings. That of one setting is here its
    *local* instability: for each neighbour (a setting that differs from it in exactly one factor) the metric
    of the two settings alone, averaged over the neighbours. The loss of a setting is how far its accuracy,
    averaged over personas, falls below that of the most accurate setting; the one-sided test is paired by
    question (`paired_p`) and corrected after Holm over all other settings. A setting is without loss where
    the test does not reject: with few questions that is true of most. The most accurate setting is chosen on
    the same answers, so its lead is overstated and the choice errs on the side of accuracy.

    Recommended are the settings without loss that no other setting without loss betters: none is at least as
    stable in all three metrics and more stable in one. `score` ranks them.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        alpha: Level of the test of loss, after correction.

    Returns:
        Over ``setting``, with a coordinate for each factor: ``accuracy``; the local ``accuracy_instability``,
        ``outcome_instability`` and ``question_instability``, each NaN where it is undefined for every
        neighbour, and ``reason`` then says why; ``loss`` of accuracy (a fraction); ``p_loss``, adjusted (1
        for the most accurate setting); ``no_loss``; ``score``, the mean over the metrics of the setting's
        rank by local instability among all settings, 1 the most stable (undefined ranks last); and
        ``recommended``. ``attrs["best"]`` is the recommended setting of the lowest score, by accuracy and
        then by order among equals; ``attrs["most_accurate"]`` the one that the others are tested against.

    Raises:
        UserError: If an argument is not of that form.
        NotAllowed: With fewer than two settings or questions, or no personas.
    """
    import xarray as xr
    from scipy.stats import rankdata

    check_alpha(alpha)
    answers, levels, factors = flat_settings(correct)
    needs(answers, personas=1, settings=2, questions=2, what="recommending settings")
    personas, settings, n = answers.shape
    local = _local_instabilities(answers, _neighbours([correct.sizes[factor] for factor in factors]))
    # Rounded, equal instabilities rank alike whatever the order of their sums.
    ordered = np.nan_to_num(local.round(12), nan=np.inf)
    score = rankdata(ordered, axis=1).mean(axis=0)

    counts = answers.sum(axis=(0, 2), dtype=np.int64)
    best = int(counts.argmax())
    total, squares = (sums[best] for sums in paired_sums(answers))
    others = np.arange(settings) != best
    p_loss = np.where((squares == 0) | ~others, 1.0, paired_p(total, squares, n) / 2)
    p_loss[others] = adjust(p_loss[others], "holm")
    no_loss = p_loss > alpha

    at_least = (ordered[:, :, None] <= ordered[:, None]).all(axis=0)
    dominates = at_least & ~at_least.T & no_loss[:, None]
    recommended = no_loss & ~dominates.any(axis=0)
    candidates = np.flatnonzero(recommended)
    first = candidates[np.lexsort((-counts[candidates], score[candidates]))[0]]

    labels = [setting_label(level) for level in levels]
    columns = {
        "accuracy": counts / (personas * n),
        **dict(zip(METRICS, local, strict=True)),
        "loss": total / (personas * n),
        "p_loss": p_loss,
        "no_loss": no_loss,
        "score": score,
        "recommended": recommended,
        "reason": np.where(
            np.isnan(local[2]), "no question is right in this setting or any of its neighbours", ""
        ),
    }
    return xr.Dataset(
        {name: ("setting", values) for name, values in columns.items()},
        coords={
            "setting": labels,
            **{factor: ("setting", [level[i] for level in levels]) for i, factor in enumerate(factors)},
        },
        attrs={"alpha": alpha, "best": labels[first], "most_accurate": labels[best]},
    )


def _neighbours(sizes: list[int]) -> np.ndarray:
    """Which settings differ in exactly one factor, as a boolean matrix over settings."""
    levels = np.array([*product(*(range(size) for size in sizes))])
    return (levels[:, None] != levels).sum(axis=-1) == 1


def _local_instabilities(answers: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    """Mean over neighbours of the instabilities of two settings, shaped (metric, setting).

    Between two settings I_A is the mean over personas of |ΔAcc|. The standard deviation of two ranks under
    the weights v and w is √(v w)/(v + w) · |ΔR|, and their normalisation (v + w)/2, so that I_O is √(v w)/2
    times the mean over personas of |ΔR|.
    """
    personas, settings, n = answers.shape
    counts = answers.sum(axis=-1)
    ranks = rank_personas(counts)
    weights = counts.std(axis=0) / n
    gap, step, shared, members = (np.zeros((settings, settings)) for _ in range(4))
    for persona in range(personas):
        mine, rank = counts[persona], ranks[persona]
        gap += np.abs(mine[:, None] - mine)
        step += np.abs(rank[:, None] - rank)
        right = answers[persona].astype(np.float32)
        both = np.rint(right @ right.T)
        ever = mine[:, None] + mine - both
        shared += np.divide(both, ever, out=np.zeros(ever.shape), where=ever > 0)
        members += ever > 0
    overlap = np.divide(shared, members, out=np.zeros(shared.shape), where=members > 0)
    outcome = np.sqrt(weights[:, None] * weights) / 2 * step / personas
    pairs = [
        (gap / (personas * n), neighbours),
        (outcome, neighbours),
        (1 - overlap, neighbours & (members > 0)),
    ]
    return np.array(
        [
            np.divide(
                np.where(used, values, 0).sum(axis=1),
                used.sum(axis=1),
                out=np.full(settings, np.nan),
                where=used.any(axis=1),
            )
            for values, used in pairs
        ]
    )
