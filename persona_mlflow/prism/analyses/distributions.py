"""How the scores of positives and negatives are distributed (P2 Fig. 7, 14, 15)."""

from __future__ import annotations

import numpy as np

from persona_mlflow.prism.analyses.collection import Collection, stack
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.analyses.main_table import main_runs

SIDES = ("positives", "negatives")
QUANTILES = {
    "lowest": 0.0,
    "5 %": 0.05,
    "25 %": 0.25,
    "median": 0.5,
    "75 %": 0.75,
    "95 %": 0.95,
    "highest": 1.0,
}
BINS = 20

_LABELS = ("benchmark", "evaluator", "method")


def histograms(collection: Collection) -> Result:
    """The share of positives, and of negatives, whose score falls into each of 20 equal bins.

    A bin is named by its lower end, and holds it; the last one holds its upper end too. The bins span 0 to 1,
    or all scores where some lie outside.
    """
    import xarray as xr

    scores, rows, reasons = _scores(collection)
    everything = np.concatenate([*(part for sides in scores for part in sides), [0.0, 1.0]])
    edges = np.linspace(everything.min(), everything.max(), BINS + 1)
    shares = np.full((len(scores), len(SIDES), BINS), np.nan)
    for i, sides in enumerate(scores):
        for j, part in enumerate(sides):
            if len(part):
                # 0.6 / 0.05 falls short of 12: a score on an edge belongs to the bin that it begins.
                place = np.floor((part - edges[0]) / (edges[1] - edges[0]) + 1e-9).astype(int)
                shares[i, j] = np.bincount(np.clip(place, 0, BINS - 1), minlength=BINS) / len(part)
    data = xr.Dataset(
        {"value": (("run", "side", "bin"), shares), "reason": (("run", "side", "bin"), _reasons(shares))},
        coords={**stack(rows, _LABELS), "side": list(SIDES), "bin": edges[:-1].round(12)},
    )
    return Result(data, reasons)


def quantiles(collection: Collection) -> Result:
    """Mean, standard deviation (n − 1) and quantiles of the scores of positives and of negatives."""
    import xarray as xr

    scores, rows, reasons = _scores(collection)
    names = ["mean", "sd", *QUANTILES]
    values = np.full((len(scores), len(SIDES), len(names)), np.nan)
    for i, sides in enumerate(scores):
        for j, part in enumerate(sides):
            if len(part):
                sd = part.std(ddof=1) if len(part) > 1 else np.nan
                values[i, j] = [part.mean(), sd, *np.quantile(part, list(QUANTILES.values()))]
    data = xr.Dataset(
        {
            "value": (("run", "side", "statistic"), values),
            "reason": (("run", "side", "statistic"), _reasons(values)),
        },
        coords={**stack(rows, _LABELS), "side": list(SIDES), "statistic": names},
    )
    return Result(data, reasons)


def _scores(
    collection: Collection,
) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[tuple[str, str, str]], dict[str, str]]:
    """The scores of positives and of negatives, of every run of the main table."""
    entrants, reasons = main_runs(collection)
    found = []
    for entrant in entrants:
        frame = entrant.run.frame
        scored = frame[frame["score"].notna()]
        positive = scored["positive"].to_numpy(bool)
        score = scored["score"].to_numpy(float)
        found.append((score[positive], score[~positive]))
    return found, [entrant.key for entrant in entrants], reasons


def _reasons(values: np.ndarray) -> np.ndarray:
    out = np.full(values.shape, "", dtype=object)
    for j, side in enumerate(SIDES):
        empty = np.isnan(values[:, j]).all(axis=-1)
        out[empty, j] = f"no scored {side.removesuffix('s')}"
    lone = np.isnan(values) & (out == "")
    out[lone] = "a single score has no standard deviation"
    return out
