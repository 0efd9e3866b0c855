"""The benchmarks (P2 Table 1), the main table (P2 Table 2), and tests between its methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.prism.analyses.collection import (
    MAIN_POINTS,
    Collection,
    Entrant,
    NotThere,
    by_metric,
    columns_of,
    stack,
)
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.ranking import METRICS

if TYPE_CHECKING:
    import pandas as pd

_NO_MAIN = f"no method run is greedy and, where it has a rubric, of {MAIN_POINTS} points"


def composition(collection: Collection) -> Result:
    """Groups, positives and negatives of each benchmark (P2 Table 1)."""
    import xarray as xr

    rows = [_composition(collection.frames(collection.of(name)[0])[0]) for name in collection.benchmarks]
    dtypes = {name: object if isinstance(value, str) else int for name, value in rows[0].items()}
    variables = {
        name: ("benchmark", np.array([row[name] for row in rows], dtype=dtype))
        for name, dtype in dtypes.items()
    }
    return Result(xr.Dataset(variables, coords={"benchmark": list(collection.benchmarks)}))


def main_table(collection: Collection) -> Result:
    """The three metrics of every greedy method, at five points where it has a rubric (P2 Table 2).

    ``chance`` is what scores drawn at random, without ties, would give.
    """
    entrants, reasons = main_runs(collection)
    found = [
        {**columns_of(collection.measured(entrant)), "chance": by_chance(collection, entrant)}
        for entrant in entrants
    ]
    rows = stack([entrant.key for entrant in entrants], ("benchmark", "evaluator", "method"))
    return Result(by_metric(found, rows), reasons, _unscored_notes(entrants))


def main_runs(collection: Collection) -> tuple[list[Entrant], dict[str, str]]:
    """The runs of the main table, and why a benchmark has none.

    Raises:
        NotThere: No benchmark has any.
    """
    entrants = [entrant for entrant in collection.entrants if entrant.is_main]
    there = {entrant.benchmark for entrant in entrants}
    reasons = {name: _NO_MAIN for name in collection.benchmarks if name not in there}
    if not entrants:
        raise NotThere(reasons)
    return entrants, reasons


def by_chance(collection: Collection, entrant: Entrant) -> np.ndarray:
    """What random scores without ties would give, shaped (metric): a half, a half, and 1 / C(n, p).

    The last is the mean over groups of n examples, p of which are positives.
    """
    frame = collection.frames(entrant)[0]
    positives = frame.groupby("group", sort=False)["positive"]
    shares = [
        1 / comb(int(n), int(p)) for n, p in zip(positives.size(), positives.sum(), strict=True) if 0 < p < n
    ]
    return np.array([0.5 if entrant.run.comparable else np.nan, 0.5, np.mean(shares) if shares else np.nan])


def paired_tests(collection: Collection) -> Result:
    """Each two methods of the main table, on the examples that both scored (beyond P2, which has no tests).

    Within each benchmark and evaluator; judges that are a model of their own are set beside every evaluator.
    P-values are adjusted after Holm within each metric.
    """
    entrants, reasons = main_runs(collection)
    reasons = dict(reasons)
    labels: list[tuple[str, str, str, str]] = []
    found: list[dict[str, Any]] = []
    for benchmark in collection.benchmarks:
        if benchmark in reasons:
            continue
        here = [entrant for entrant in entrants if entrant.benchmark == benchmark]
        families = {name: methods for name, methods in _families(here).items() if len(methods) > 1}
        if not collection.draws:
            reasons[benchmark] = "paired tests take bootstrap draws, and there are none"
        elif not families:
            reasons[benchmark] = "no evaluator has two methods to compare"
        for evaluator, methods in families.items() if collection.draws else ():
            for names, row in _compare(collection, methods):
                labels.append((benchmark, evaluator, *names))
                found.append(row)
    if not found:
        raise NotThere(reasons)
    rows = stack(labels, ("benchmark", "evaluator", "first", "second"), "pair")
    return Result(by_metric(found, rows, "pair"), reasons)


def _families(entrants: Sequence[Entrant]) -> dict[str, dict[str, Entrant]]:
    """Evaluator → the methods to compare with it, by name."""
    own = [entrant for entrant in entrants if entrant.own_model]
    shared = [entrant for entrant in entrants if not entrant.own_model]
    found = {}
    for evaluator in dict.fromkeys(entrant.evaluator for entrant in shared) or ("own models",):
        here = [entrant for entrant in shared if entrant.evaluator == evaluator] + own
        often = Counter(entrant.method for entrant in here)
        found[evaluator] = {
            e.method if often[e.method] == 1 else f"{e.method} ({e.evaluator})": e for e in here
        }
    return found


def _compare(
    collection: Collection, methods: Mapping[str, Entrant]
) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    from persona_mlflow.prism.ranking_comparison import compare_methods

    frames = {}
    for name, entrant in methods.items():
        frames[name] = entrant.run.averaged()
        frames[name].attrs = {"comparable": entrant.run.comparable}
    table = compare_methods(frames, draws=collection.draws, seed=collection.seed, alpha=collection.alpha)
    found = []
    for (first, second), part in table.groupby(["first", "second"], sort=False):
        bootstrap = part[part["test"] == "bootstrap"].set_index("metric").loc[list(METRICS)]
        exact = part[part["test"] == "mcnemar"].set_index("metric").reindex(list(METRICS))
        found.append(((str(first), str(second)), _pair(bootstrap, exact)))
    return found


def _pair(bootstrap: pd.DataFrame, exact: pd.DataFrame) -> dict[str, Any]:
    taken = {"value": "difference", "low": "low", "high": "high", "p": "p_adjusted", "p_raw": "p"}
    taken |= {name: name for name in ("value_first", "value_second", "groups", "unpaired")}
    numbers = {name: bootstrap[column].to_numpy(float) for name, column in taken.items()}
    return {
        **numbers,
        "p_mcnemar": exact["p_adjusted"].to_numpy(float),
        "reason": bootstrap["reason"].tolist(),
    }


def _composition(frame: pd.DataFrame) -> dict[str, Any]:
    positives = int(frame["positive"].sum())
    negatives = len(frame) - positives
    kinds = frame.loc[~frame["positive"], "kind"].value_counts(sort=False)
    return {
        "value": int(frame["group"].nunique()),
        "positives": positives,
        "negatives": negatives,
        "ratio": f"1 : {negatives / positives:.3g}" if positives else "no positive",
        "profiles": int(frame.loc[frame["positive"], "profile"].nunique()),
        "kinds": "; ".join(f"{kind}: {count:,}" for kind, count in kinds.items()) or "none",
    }


def _unscored_notes(entrants: Sequence[Entrant]) -> dict[str, str]:
    """Benchmark → the methods that left examples unscored: their metrics are of the others alone."""
    found: dict[str, list[str]] = {}
    for entrant in entrants:
        missing = int(entrant.run.frame["score"].isna().sum())
        if missing:
            share = missing / len(entrant.run.frame)
            text = f"{entrant.evaluator}, {entrant.method}: {missing:,} ({share:.1%})"
            found.setdefault(entrant.benchmark, []).append(text)
    return {
        name: f"Examples without a score are left out of a method's metrics. {'; '.join(texts)}."
        for name, texts in found.items()
    }
