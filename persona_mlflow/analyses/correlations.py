"""Do the instabilities go with what they should go with? (P1 Table 8)"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.analyses.factors import require
from persona_mlflow.analyses.study import NotAllowed, Settings, Study

if TYPE_CHECKING:
    import xarray as xr

PAIRS = (
    "I_A and the spread of accuracy over settings",
    "I_O in ranks and the number of different best personas",
    "I_Q's delta and Fleiss' kappa",
)


def correlations(study: Study) -> xr.Dataset:
    """Pearson's r over the sets with one level held static (P1 Table 8).

    Each level of each factor gives one set: the settings that have it. Over the sets correlate

    - I_A with the spread of accuracy: the highest less the lowest, over settings, mean over personas;
    - I_O without its normalisation with the number of different best personas of the settings (of tied ones
      the first in the catalogue);
    - I_Q's delta (all settings − the set) with Fleiss' kappa, the questions being the subjects, the settings
      the raters and right or wrong the ratings, averaged over the personas for whom it is defined.

    Returns:
        Along ``pair``: ``value`` (r), ``low``, ``high`` (bootstrap), ``p`` (two-sided, of the point values)
        and ``reason`` where r is undefined.

    Raises:
        NotAllowed: There are fewer than three sets, or only one factor is varied.
    """
    import xarray as xr

    require(study, 2)
    sets = study.level_sets()
    if len(sets) < 3:
        raise NotAllowed(f"takes at least three levels to hold static; here: {', '.join(sets)}")
    base = study.average("question").values
    columns = [_set_values(study, settings, base) for settings in sets.values()]
    x = np.stack([[column[i] for column in columns] for i in (0, 2, 4)])
    y = np.stack([[column[i] for column in columns] for i in (1, 3, 5)])
    r = pearson(x, y)  # pair × draw
    found = study.interval(xr.DataArray(r, {"pair": list(PAIRS)}, ("pair", "draw")), (-1.0, 1.0))
    p, reasons = [], []
    for i in range(len(PAIRS)):
        p.append(_p_value(x[i, :, 0], y[i, :, 0]))
        reasons.append("" if np.isfinite(r[i, 0]) else _why(x[i, :, 0], y[i, :, 0]))
    return found.assign(p=("pair", p), reason=("pair", reasons))


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's r along the axis before the last; NaN where a side is constant or undefined."""
    dx, dy = x - x.mean(axis=-2, keepdims=True), y - y.mean(axis=-2, keepdims=True)
    scale = np.sqrt((dx**2).sum(axis=-2) * (dy**2).sum(axis=-2))
    # Equal values leave rounding behind, which must not pass for variation.
    size = np.abs(x).max(axis=-2) * np.abs(y).max(axis=-2) * x.shape[-2]
    varied = scale > 1e-12 * np.where(np.isfinite(size), size, np.inf)
    return np.divide((dx * dy).sum(axis=-2), scale, out=np.full(scale.shape, np.nan), where=varied)


def set_kappa(study: Study, settings: Settings) -> np.ndarray:
    """Fleiss' kappa among the settings of a set, averaged over personas where defined: along draws.

    For two ratings P̄ − 1 = −2 Σ n(k − n) / (N k (k − 1)), with n of k settings right on a question, and
    P̄e − 1 = −2 p(1 − p), with p the share of right answers; so kappa = 1 − (1 − P̄) / (1 − P̄e) (Fleiss 1971).
    Both sums are linear in the questions' weights.
    """
    part = study.correct.sel({name: list(levels) for name, levels in settings.items()})
    axes = tuple(range(1, part.ndim - 1))
    raters = int(np.prod(part.shape[1:-1]))
    right = part.values.sum(axis=axes)
    total = study.weights.sum(axis=0)
    disagreement = (right * (raters - right)).astype(np.float64) @ study.weights.astype(np.float64)
    share = (right @ study.weights.astype(np.float64)) / (raters * total)
    expected = 2 * share * (1 - share)
    observed = 2 * disagreement / (total * raters * (raters - 1))
    kappa = 1 - np.divide(observed, expected, out=np.full(expected.shape, np.nan), where=expected > 0)
    defined = (~np.isnan(kappa)).sum(axis=0)
    return np.divide(np.nansum(kappa, axis=0), defined, out=np.full(defined.shape, np.nan), where=defined > 0)


def _set_values(study: Study, settings: Settings, base: np.ndarray) -> list[np.ndarray]:
    """The six numbers of one set, along draws."""
    accuracy = study.accuracy()
    counts = accuracy.copy(data=study.counts())
    chosen = {name: list(levels) for name, levels in settings.items()}
    mean = accuracy.sel(chosen).mean("persona")
    dims = [dim for dim in mean.dims if dim != "draw"]
    best = counts.sel(chosen).argmax("persona").transpose("draw", *dims).values
    best = best.reshape(len(best), -1)
    ordered = np.sort(best, axis=1)
    different = 1 + (np.diff(ordered, axis=1) > 0).sum(axis=1)
    return [
        study.average("accuracy", settings=settings).values,
        (mean.max(dims) - mean.min(dims)).values,
        study.outcome_form(weighted=True, normalized=False, settings=settings)[0].values,
        different.astype(float),
        base - study.average("question", settings=settings).values,
        set_kappa(study, settings),
    ]


def _p_value(x: np.ndarray, y: np.ndarray) -> float:
    from scipy.stats import pearsonr

    if _why(x, y):
        return float("nan")
    return float(pearsonr(x, y).pvalue)


def _why(x: np.ndarray, y: np.ndarray) -> str:
    """Why two columns have no correlation; empty if they have one."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return "undefined in one of the sets: agreement without variation, or no question right"
    if np.isnan(pearson(x[:, None], y[:, None])[0]):
        return "one of the two is the same in all sets"
    return ""
