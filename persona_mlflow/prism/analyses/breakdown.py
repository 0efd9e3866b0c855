"""Pair-AUC by kind of negative and by profile, and what was left unscored (beyond P2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.prism.analyses.collection import Collection, Entrant, NotThere, stack
from persona_mlflow.prism.analyses.entries import Result
from persona_mlflow.prism.analyses.main_table import main_runs
from persona_mlflow.prism.cases import LEVELS, TRAITS
from persona_mlflow.prism.ranking import METRICS

if TYPE_CHECKING:
    import pandas as pd

MOST_PROFILES = 24
"""With more profiles than this a benchmark's groups are too few for each."""
NO_REASON = "no reason on record"

_LABELS = ("benchmark", "evaluator", "method")
_PAIR = METRICS.index("pair_auc")
_BIG5 = [f"{level} {trait}" for trait in TRAITS for level in LEVELS]


def by_kind(collection: Collection) -> Result:
    """Pair-AUC of the positives against each kind of negative."""
    entrants, reasons = main_runs(collection)
    kinds = {name: _kinds(collection.of(name)[0].run.frame) for name in collection.benchmarks}

    def part(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
        return frame[frame["positive"] | (frame["kind"] == kind)]

    return _table(collection, entrants, kinds, part, "kind", "the benchmark has no such negatives", reasons)


def by_profile(collection: Collection) -> Result:
    """Pair-AUC over the groups whose positive is of each profile, such as a trait and level."""
    entrants, reasons = main_runs(collection)
    reasons = dict(reasons)
    profiles = {}
    for name in collection.benchmarks:
        found = _profiles(collection.of(name)[0].run.frame)
        if 2 <= len(found) <= MOST_PROFILES:
            profiles[name] = found
        elif name not in reasons:
            reasons[name] = (
                f"its positives are of {len(found):,} profiles; {MOST_PROFILES} at most are set side by side"
                if found[1:]
                else f"all its positives are of one profile ({found[0] if found else 'none'})"
            )
    entrants = [entrant for entrant in entrants if entrant.benchmark in profiles]
    if not entrants:
        raise NotThere(reasons)

    def part(frame: pd.DataFrame, profile: str) -> pd.DataFrame:
        positives = frame[frame["positive"]].drop_duplicates("group").set_index("group")["profile"]
        return frame[frame["group"].map(positives) == profile]

    return _table(
        collection, entrants, profiles, part, "profile", "the benchmark lacks this profile", reasons
    )


def unscored(collection: Collection) -> Result:
    """The share of examples × seeds without a score, in all and by reason, of every method run."""
    import xarray as xr

    entrants = collection.entrants
    counts = []
    for entrant in entrants:
        missing = entrant.run.frame[entrant.run.frame["score"].isna()]
        why = missing["reason"].fillna("").astype(str).replace("", NO_REASON).value_counts(sort=False)
        counts.append({str(reason).replace("_", " "): int(count) for reason, count in why.items()})
    names = list(dict.fromkeys(reason for row in counts for reason in row))
    totals = np.array([len(entrant.run.frame) for entrant in entrants])
    table = np.array([[sum(row.values()), *(row.get(name, 0) for name in names)] for row in counts])
    data = xr.Dataset(
        {
            "value": (("run", "why"), table / totals[:, None]),
            "count": (("run", "why"), table),
            "scores": ("run", totals),
        },
        coords={**stack([entrant.key for entrant in entrants], _LABELS), "why": ["all", *names]},
    )
    return Result(data)


def _table(
    collection: Collection,
    entrants: Sequence[Entrant],
    labels: dict[str, list[str]],
    part: Callable[[pd.DataFrame, str], pd.DataFrame],
    dim: str,
    lacking: str,
    reasons: dict[str, str],
) -> Result:
    """Pair-AUC of parts of each run's examples, with the pairs that it is of."""
    import xarray as xr

    columns = list(dict.fromkeys(label for name in collection.benchmarks for label in labels.get(name, ())))
    if dim == "profile":
        columns.sort(key=lambda label: _BIG5.index(label) if label in _BIG5 else len(_BIG5))
    shape = len(entrants), len(columns)
    numbers = {name: np.full(shape, np.nan) for name in ("value", "low", "high", "groups")}
    why = np.full(shape, lacking, dtype=object)
    for i, entrant in enumerate(entrants):
        frames = collection.frames(entrant)
        for j, label in enumerate(columns):
            if label not in labels[entrant.benchmark]:
                continue
            found = collection.measure_frames([part(frame, label) for frame in frames])
            cell: dict[str, Any] = {name: getattr(found, name)[_PAIR] for name in ("value", "low", "high")}
            for name, number in {**cell, "groups": found.used[_PAIR]}.items():
                numbers[name][i, j] = number
            why[i, j] = found.reasons.get("pair_auc", "")
    variables = {name: (("run", dim), values) for name, values in {**numbers, "reason": why}.items()}
    rows = stack([entrant.key for entrant in entrants], _LABELS)
    return Result(xr.Dataset(variables, coords={**rows, dim: columns}), reasons)


def _kinds(frame: pd.DataFrame) -> list[str]:
    return [str(kind) for kind in frame.loc[~frame["positive"], "kind"].unique()]


def _profiles(frame: pd.DataFrame) -> list[str]:
    return [str(profile) for profile in frame.loc[frame["positive"], "profile"].unique()]
