"""How much the metrics depend on the evaluator (P2 Fig. 4, 12)."""

from __future__ import annotations

from collections.abc import Mapping
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
from persona_mlflow.prism.analyses.main_table import main_runs
from persona_mlflow.prism.ranking import METRICS, percentile_interval


def by_evaluator(collection: Collection) -> Result:
    """The metrics of each method of the main table with each evaluator (P2 Fig. 4, 12)."""
    groups, reasons = _groups(collection)
    evaluators = list(dict.fromkeys(name for group in groups.values() for name in group))
    cells = [
        {name: columns_of(collection.measured(entrant)) for name, entrant in group.items()}
        for group in groups.values()
    ]
    data = spread_out(cells, evaluators, "evaluator", undefined(NOT_RUN))
    return Result(data.assign_coords(stack(list(groups), ("benchmark", "method"))), reasons)


def evaluator_spread(collection: Collection) -> Result:
    """The range of each metric over the evaluators, its mean and standard deviation (n − 1)."""
    groups, reasons = _groups(collection)
    found = [_spread(collection, group) for group in groups.values()]
    return Result(by_metric(found, stack(list(groups), ("benchmark", "method"))), reasons)


def _groups(
    collection: Collection,
) -> tuple[dict[tuple[str, str], dict[str, Entrant]], dict[str, str]]:
    """Benchmark and method → evaluator → run, of methods with two evaluators or more."""
    entrants, reasons = main_runs(collection)
    reasons = dict(reasons)
    found: dict[tuple[str, str], dict[str, Entrant]] = {}
    for entrant in entrants:
        if not entrant.own_model:
            found.setdefault((entrant.benchmark, entrant.method), {})[entrant.evaluator] = entrant
    kept = {key: group for key, group in found.items() if len(group) > 1}
    for name in collection.benchmarks:
        if name in reasons or any(key[0] == name for key in kept):
            continue
        there = list(dict.fromkeys(e for key, group in found.items() if key[0] == name for e in group))
        reasons[name] = (
            f"no method was run with two evaluators ({', '.join(there) or 'judges of their own model'} "
            "alone); run one with --evaluator A,B"
        )
    if not kept:
        raise NotThere(reasons)
    return kept, reasons


def _spread(collection: Collection, group: Mapping[str, Entrant]) -> dict[str, Any]:
    names = list(group)
    measured = [collection.measured(entrant) for entrant in group.values()]
    values = np.array([found.value for found in measured])
    row: dict[str, Any] = {
        **undefined(""),
        **{name: np.full(len(METRICS), np.nan) for name in ("mean", "sd")},
        "lowest": ["–"] * len(METRICS),
        "highest": ["–"] * len(METRICS),
    }
    for i, metric in enumerate(METRICS):
        known = np.flatnonzero(~np.isnan(values[:, i]))
        if len(known) < 2:
            why = next((m.reasons[metric] for m in measured if metric in m.reasons), "undefined")
            row["reason"][i] = f"fewer than two evaluators have this metric: {why}"
            continue
        here = values[known, i]
        row["value"][i], row["mean"][i], row["sd"][i] = np.ptp(here), here.mean(), here.std(ddof=1)
        row["lowest"][i], row["highest"][i] = names[known[here.argmin()]], names[known[here.argmax()]]
        sampled = np.array([measured[k].sampled[:, i] for k in known])
        bounds, row["reason"][i] = percentile_interval(
            np.ptp(sampled, axis=0), min(int(measured[k].used[i]) for k in known), collection.alpha
        )
        if bounds is not None:
            row["low"][i], row["high"][i] = bounds
    return row
