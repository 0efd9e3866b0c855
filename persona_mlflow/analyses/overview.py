"""The numbers of an experiment as a whole: accuracy and the three instabilities (P1 Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persona_mlflow.analyses.study import METRICS, Study

if TYPE_CHECKING:
    import xarray as xr

QUANTITIES = {
    "accuracy, mean": (0.0, 1.0),
    "accuracy, sd over runs": (0.0, 0.5),
    "I_A accuracy": (0.0, 1.0),
    "I_O outcome": (0.0, float("inf")),
    "I_Q question": (0.0, 1.0),
}
"""What P1's Table 1 lists, with the range that each can have."""


def overview(study: Study) -> xr.Dataset:
    """Mean and standard deviation of accuracy over runs, I_A, I_O, I_Q (P1 Table 1).

    Returns:
        Along ``quantity``: ``value``, ``low``, ``high`` as fractions, and ``reason`` (str) where undefined.
    """
    import xarray as xr

    accuracy = study.accuracy()
    runs = [dim for dim in accuracy.dims if dim != "draw"]
    draws = [accuracy.mean(runs), accuracy.std(runs), *(study.average(metric) for metric in METRICS)]
    parts = [
        study.interval(values, bounds) for values, bounds in zip(draws, QUANTITIES.values(), strict=True)
    ]
    found = xr.concat(parts, dim=xr.Variable("quantity", list(QUANTITIES)))
    reasons = ["", "", *(study.undefined(metric) for metric in METRICS)]
    found["reason"] = ("quantity", reasons)
    return found.assign(reason=found["reason"].where(found["value"].isnull(), ""))
