"""How much the metrics of direct judging depend on the temperature (P2 Fig. 16–18)."""

from __future__ import annotations

import numpy as np

from persona_mlflow.prism.analyses.collection import (
    NOT_RUN,
    Collection,
    Entrant,
    NotThere,
    columns_of,
    stack,
    undefined,
)
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.analyses.layout import spread_out
from persona_mlflow.prism.ranking import METRICS

_Key = tuple[str, str, str]


def by_temperature(collection: Collection) -> Result:
    """The metrics of each direct judge at each temperature, mean and standard deviation over its seeds.

    Greedy judging stands at 0. It has one seed, and so no standard deviation.
    """
    groups, reasons = _groups(collection)
    temperatures = sorted({value for group in groups.values() for value in group})
    cells = []
    for group in groups.values():
        row = {}
        for value, entrant in group.items():
            found = collection.measured(entrant)
            seeds = np.full(len(METRICS), float(len(found.by_seed)))
            row[value] = {**columns_of(found), "sd": found.sd, "seeds": seeds}
        cells.append(row)
    nothing = np.full(len(METRICS), np.nan)
    data = spread_out(
        cells, temperatures, "temperature", {**undefined(NOT_RUN), "sd": nothing, "seeds": nothing}
    )
    data = data.assign_coords(stack(list(groups), ("benchmark", "evaluator", "method")))
    return Result(data, reasons)


def _groups(collection: Collection) -> tuple[dict[_Key, dict[float, Entrant]], dict[str, str]]:
    """Benchmark, evaluator and method with its rubric → temperature → run, where there are two or more."""
    found: dict[_Key, dict[float, Entrant]] = {}
    for entrant in collection.entrants:
        if entrant.run.points is not None:
            method = f"{entrant.base}, {entrant.run.points} points"
            key = entrant.benchmark, entrant.evaluator, method
            found.setdefault(key, {})[entrant.run.temperature] = entrant
    kept = {key: dict(sorted(group.items())) for key, group in found.items() if len(group) > 1}
    reasons = {}
    for name in collection.benchmarks:
        if any(key[0] == name for key in kept):
            continue
        there = sorted({value for key, group in found.items() if key[0] == name for value in group})
        reasons[name] = (
            f"direct judges were run at temperature {there[0]:g} alone; run them with --temperature 0,0.5,1"
            if len(there) == 1
            else "no direct judge was run at two temperatures; run vanilla or cot with --temperature 0,0.5,1"
        )
    if not kept:
        raise NotThere(reasons)
    return kept, reasons
