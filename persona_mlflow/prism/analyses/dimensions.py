"""PRISM's dimensions, each alone, against their mean (P2 Fig. 6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from persona_mlflow.prism.analyses.collection import (
    Collection,
    Entrant,
    NotThere,
    columns_of,
    stack,
    undefined,
)
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.analyses.layout import spread_out
from persona_mlflow.prism.analyses.rubric import difference
from persona_mlflow.prism.dimensions import DIMENSIONS
from persona_mlflow.prism.ranking import METRICS

HOLISTIC = "S, their mean"


def single_dimensions(collection: Collection) -> Result:
    """The metrics of e_d for each dimension d by itself, and of S (P2 Fig. 6).

    All are of the examples whose S is defined. ``gain`` is S less the dimension, on the same resamples.
    """
    entrants = [entrant for entrant in collection.entrants if entrant.run.method == "prism"]
    usable = [e for e in entrants if set(DIMENSIONS) <= set(e.run.frame.columns)]
    there = {entrant.benchmark for entrant in usable}
    reasons = {}
    for name in collection.benchmarks:
        if name not in there:
            ran = any(entrant.benchmark == name for entrant in entrants)
            reasons[name] = "PRISM's scores lack its dimensions" if ran else "PRISM was not run"
    if not usable:
        raise NotThere(reasons)
    labels = [dimension.replace("_", " ") for dimension in DIMENSIONS]
    data = spread_out(
        [_row(collection, entrant, labels) for entrant in usable],
        [*labels, HOLISTIC],
        "score",
        {**undefined(""), **_gain(undefined(""))},
    )
    rows = stack([entrant.key for entrant in usable], ("benchmark", "evaluator", "method"))
    return Result(data.assign_coords(rows), reasons)


def _row(collection: Collection, entrant: Entrant, labels: list[str]) -> dict[str, dict[str, Any]]:
    holistic = collection.measured(entrant)
    row = {}
    for label, dimension in zip(labels, DIMENSIONS, strict=True):
        frames = [
            frame.assign(score=frame[dimension].astype(float).where(frame["score"].notna()))
            for frame in collection.frames(entrant)
        ]
        alone = collection.measure_frames(frames)
        row[label] = {**columns_of(alone), **_gain(difference(holistic, alone))}
    return {**row, HOLISTIC: {**columns_of(holistic), **_gain(undefined(""))}}


def _gain(found: dict[str, Any]) -> dict[str, np.ndarray]:
    assert len(found["value"]) == len(METRICS)
    return {"gain": found["value"], "gain_low": found["low"], "gain_high": found["high"]}
