"""The three instabilities straight from P1's formulas, in plain Python, off the children's Parquet files.

Nothing of the package is used: this is what `summarize` is checked against.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
from mlflow import MlflowClient


def read_children(tracking_uri: str, parent_id: str, factors: list[str], folder: Path) -> dict:
    """Persona → setting → set of the ids answered right, and what else the checks need."""
    client = MlflowClient(tracking_uri)
    experiment = client.get_run(parent_id).info.experiment_id
    runs = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent_id}'", max_results=50_000)
    right: dict[str, dict[tuple, set[str]]] = defaultdict(dict)
    asked, unparsed = set(), 0
    for run in runs:
        path = client.download_artifacts(run.info.run_id, "generations.parquet", str(folder))
        rows = pq.read_table(path).to_pylist()
        setting = tuple(run.data.params[name] for name in factors)
        right[run.data.params["persona"]][setting] = {
            r["question_id"] for r in rows if r["letter"] == r["gold"]
        }
        asked |= {r["question_id"] for r in rows}
        unparsed += sum(r["letter"] is None for r in rows)
    return {"right": right, "n": len(asked), "unparsed": unparsed, "runs": len(runs)}


def metrics(found: Mapping) -> dict[str, float]:
    """Accuracy and the instabilities; 0 < n and at least two settings are taken for granted."""
    right, n = found["right"], found["n"]
    personas = list(right)
    settings = list(right[personas[0]])
    acc = {(p, s): len(right[p][s]) / n for p in personas for s in settings}
    mean = sum(acc.values()) / len(acc)
    pairs = list(itertools.combinations(settings, 2))
    i_a = sum(sum(abs(acc[p, a] - acc[p, b]) for a, b in pairs) / len(pairs) for p in personas) / len(
        personas
    )

    def sd(values: list[float], weights: list[float]) -> float:
        total = sum(weights)
        centre = sum(w * v for w, v in zip(weights, values, strict=True)) / total
        return math.sqrt(sum(w * (v - centre) ** 2 for w, v in zip(weights, values, strict=True)) / total)

    def rank(p: str, s: tuple) -> float:
        counts = {q: len(right[q][s]) for q in personas}
        above = sum(counts[q] > counts[p] for q in personas)
        level = sum(counts[q] == counts[p] for q in personas)
        return above + (level + 1) / 2

    w = {s: sd([acc[p, s] for p in personas], [1.0] * len(personas)) for s in settings}
    if any(w.values()):
        per_persona = [sd([rank(p, s) for s in settings], [w[s] for s in settings]) for p in personas]
        i_o = sum(per_persona) / len(per_persona) * (sum(w.values()) / len(w))
    else:
        i_o = 0.0
    shares = []
    for p in personas:
        union = set().union(*(right[p][s] for s in settings))
        if union:
            shares.append(len(set.intersection(*(right[p][s] for s in settings))) / len(union))
    return {
        "accuracy/mean": mean,
        "accuracy/std": sd(list(acc.values()), [1.0] * len(acc)),
        "instability/accuracy": i_a,
        "instability/outcome": i_o,
        "instability/question": 1 - sum(shares) / len(shares),
        "parse_errors/rate": found["unparsed"] / (found["runs"] * n),
    }
