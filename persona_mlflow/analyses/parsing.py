"""Unparsed and incorrect answers per factor level (P1 Tables 11 and 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.analyses.study import Study, level_label

if TYPE_CHECKING:
    import xarray as xr


def unparsed_by_level(study: Study) -> xr.Dataset:
    """Percent of the answers from which no letter could be read, per factor level (P1 Table 11)."""
    return _percent_by_level(study, (study.dataset["status"] != 0).values)


def incorrect_by_level(study: Study) -> xr.Dataset:
    """Percent of the answers that are not right, the unparsed among them, per factor level (P1 Table 12)."""
    return _percent_by_level(study, ~study.dataset["correct"].values)


def _percent_by_level(study: Study, happened: np.ndarray) -> xr.Dataset:
    """Along ``level`` (``all answers``, then each level of each factor, varied or not): percent."""
    import xarray as xr

    whole = xr.DataArray(happened, dims=study.dataset["correct"].dims, coords=study.correct.coords)
    shares = {"all answers": whole}
    for factor in study.factors:
        for level in study.levels(factor):
            shares[level_label(factor, level)] = whole.sel({factor: level})
    rows = np.stack(
        [part.mean([dim for dim in part.dims if dim != "question"]).values for part in shares.values()]
    )
    draws = 100 * (rows @ study.weights.astype(float)) / study.weights.sum(axis=0, dtype=float)
    labelled = xr.DataArray(draws, {"level": list(shares)}, ("level", "draw"))
    return study.interval(labelled, (0.0, 100.0))
