"""How much the metrics of direct judging depend on the rubric (P2 Fig. 5, 13)."""

from __future__ import annotations

from typing import Any

import numpy as np

from persona_mlflow.prism.analyses.collection import (
    NOT_RUN,
    Collection,
    Entrant,
    NotThere,
    by_metric,
    columns_of,
    stack,
    undefined,
)
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.analyses.layout import spread_out
from persona_mlflow.prism.analyses.metrics import Measured
from persona_mlflow.prism.ranking import METRICS, percentile_interval

_LABELS = ("benchmark", "evaluator", "method")
_Key = tuple[str, str, str]


def by_points(collection: Collection) -> Result:
    """The metrics of each direct judge with each rubric (P2 Fig. 5, 13)."""
    groups, reasons = _groups(collection)
    points = sorted({number for group in groups.values() for number in group})
    cells = [
        {number: columns_of(collection.measured(entrant)) for number, entrant in group.items()}
        for group in groups.values()
    ]
    data = spread_out(cells, points, "points", undefined(NOT_RUN))
    return Result(data.assign_coords(stack(list(groups), _LABELS)), reasons)


def points_delta(collection: Collection) -> Result:
    """The finest rubric less the coarsest, resampled on the same groups: above 0 the finer ranks better."""
    groups, reasons = _groups(collection)
    found = [_delta(collection, group) for group in groups.values()]
    return Result(by_metric(found, stack(list(groups), _LABELS)), reasons)


def difference(first: Measured, second: Measured) -> dict[str, Any]:
    """The first less the second, whose draws are of the same groups: value, low, high, reason by metric."""
    out = undefined("")
    out["value"] = first.value - second.value
    gaps = first.sampled - second.sampled
    for i, metric in enumerate(METRICS):
        if np.isnan(out["value"][i]):
            out["reason"][i] = next(m.reasons[metric] for m in (first, second) if np.isnan(m.value[i]))
            continue
        used = int(min(first.used[i], second.used[i]))
        bounds, out["reason"][i] = percentile_interval(gaps[:, i], used, first.alpha)
        if bounds is not None:
            out["low"][i], out["high"][i] = bounds
    return out


def _delta(collection: Collection, group: dict[int, Entrant]) -> dict[str, Any]:
    coarse, fine = (collection.measured(group[end(group)]) for end in (min, max))
    return {**difference(fine, coarse), "coarse": coarse.value, "fine": fine.value}


def _groups(collection: Collection) -> tuple[dict[_Key, dict[int, Entrant]], dict[str, str]]:
    """Benchmark, evaluator and method with its temperature → points → run, where there are two rubrics."""
    found: dict[_Key, dict[int, Entrant]] = {}
    for entrant in collection.entrants:
        run = entrant.run
        if run.points is not None:
            method = f"{entrant.base}, T {run.temperature:g}" if run.temperature else entrant.base
            found.setdefault((entrant.benchmark, entrant.evaluator, method), {})[run.points] = entrant
    kept = {key: dict(sorted(group.items())) for key, group in found.items() if len(group) > 1}
    reasons = {}
    for name in collection.benchmarks:
        if any(key[0] == name for key in kept):
            continue
        there = sorted({points for key, group in found.items() if key[0] == name for points in group})
        reasons[name] = (
            f"direct judges were run with {there[0]} points alone; run them with --points 5,7"
            if len(there) == 1
            else "no direct judge was run with two rubrics; run vanilla or cot with --points 5,7"
        )
    if not kept:
        raise NotThere(reasons)
    return kept, reasons
