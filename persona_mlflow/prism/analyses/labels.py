"""What PRISM's evaluators do with the labels: their mass, and how far their order decides (beyond P2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from persona_mlflow.prism.analyses.collection import Collection, NotThere, stack
from persona_mlflow.prism.analyses.entries import Result

QUANTITIES = {
    "label mass": "label_mass",
    "spread of e over orders": "spread",
    "sd of e over orders": "deviation",
    "likeliest state changes": "flips",
}
LETTERS = ("A", "B", "C")


def label_use(collection: Collection) -> Result:
    """The mean mass on the three labels, and the order sensitivity of a sample of the cases."""
    import xarray as xr

    entrants = [entrant for entrant in collection.entrants if entrant.run.method == "prism"]
    there = {entrant.benchmark for entrant in entrants}
    reasons = {name: "PRISM was not run" for name in collection.benchmarks if name not in there}
    if not entrants:
        raise NotThere(reasons)
    names = [*QUANTITIES, *(f"mean probability of {letter}" for letter in LETTERS)]
    values = np.full((len(entrants), len(names)), np.nan)
    why = np.full(values.shape, "", dtype=object)
    for i, entrant in enumerate(entrants):
        numbers, missing = _numbers(entrant.run.facts)
        for j, number in enumerate(numbers):
            if number is None:
                why[i, j] = missing if j else "its record has no label mass"
            else:
                values[i, j] = number
    data = xr.Dataset(
        {"value": (("run", "quantity"), values), "reason": (("run", "quantity"), why)},
        coords={
            **stack([entrant.key for entrant in entrants], ("benchmark", "evaluator", "method")),
            "quantity": names,
        },
    )
    return Result(data, reasons)


def _numbers(facts: Mapping[str, Any]) -> tuple[list[float | None], str]:
    """The quantities in order, and why those of the order are missing."""
    order = facts.get("order_sensitivity")
    letters: Any = {}
    missing = "the order of the labels was not varied; persona-mlflow prism bench --order-cases N does"
    if isinstance(order, Mapping):
        letters = order.get("letters")
        missing = "no case was scored in several orders"
    else:
        order = {}
    letters = letters if isinstance(letters, Mapping) else {}
    found = {
        "label_mass": facts.get("label_mass"),
        **{k: order.get(k) for k in ("spread", "deviation", "flips")},
    }
    numbers = [_number(found[key]) for key in QUANTITIES.values()]
    return [*numbers, *(_number(letters.get(letter)) for letter in LETTERS)], missing


def _number(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
    return float(value) if known else None
