"""Unparsed and incorrect answers per factor level (P1 Tables 11 and 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persona_mlflow.analyses.study import Study, level_label

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr


def unparsed_by_level(study: Study) -> xr.Dataset:
    """Percent of the answers from which no letter could be read, per factor level (P1 Table 11)."""
    return _percent_by_level(study, study.unparsed)


def incorrect_by_level(study: Study) -> xr.Dataset:
    """Percent of the answers that are not right, the unparsed among them, per factor level (P1 Table 12)."""
    return _percent_by_level(study, ~study.correct.values)


def _percent_by_level(study: Study, happened: np.ndarray) -> xr.Dataset:
    """Along ``level`` (``all answers``, then each level of each factor, varied or not): percent."""
    import xarray as xr

    shares = {"all answers": study.share(happened)}
    for factor in study.factors:
        for level in study.levels(factor):
            part = study.share(happened, settings={factor: [level]})
            shares[level_label(factor, level)] = part
    draws = xr.concat(shares.values(), dim=xr.Variable("level", list(shares)))
    return study.interval(100 * draws, (0.0, 100.0))
