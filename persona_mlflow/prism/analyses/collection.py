"""Method runs of one or several benchmarks, put in order, with what several analyses need of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError
from persona_mlflow.prism.analyses.metrics import Measured, measure, seed_frames
from persona_mlflow.prism.bench_spec import METHODS, OWN_MODEL
from persona_mlflow.prism.ranking import METRICS

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from persona_mlflow.prism.results import MethodRun

BENCHMARKS = ("big5-easy", "big5-hard", "social")
MAIN_POINTS = 5
"""The rubric of P2's main table."""
NOT_RUN = "not run"


@dataclass(frozen=True, eq=False)
class Entrant:
    """A method run under the names that tables use.

    Attributes:
        benchmark: The benchmark's name, with what tells it from another of this name.
        evaluator: The model's short name; ``none`` where the method needs none.
        method: The method with its rubric and temperature.
        run: The method run, its examples in the order of all runs on this benchmark.
    """

    benchmark: str
    evaluator: str
    method: str
    run: MethodRun

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, evaluator and method."""
        return self.benchmark, self.evaluator, self.method

    @property
    def base(self) -> str:
        """The method without rubric and temperature, such as ``vanilla``."""
        return replace(self.run, points=None, temperature=0.0).label

    @property
    def is_main(self) -> bool:
        """Whether P2's main table has it: greedy, and of five points where it has a rubric."""
        return self.run.temperature == 0 and self.run.points in (None, MAIN_POINTS)

    @property
    def own_model(self) -> bool:
        """Whether the method is a model of its own, so that no other evaluator can take its place."""
        return self.run.method in OWN_MODEL or not self.run.evaluator


class NotThere(Exception):
    """A benchmark's method runs do not allow an analysis.

    Args:
        reasons: Benchmark → why, and what it needs.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)


class Collection:
    """Method runs, and their metrics with draws that are the same in all runs on one benchmark.

    Args:
        runs: The method runs; no two of the same benchmark, evaluator and method.
        draws: Bootstrap draws over groups; 0 gives no intervals.
        seed: Seed of the draws.
        alpha: The intervals cover the share 1 − alpha of the draws.

    Raises:
        UserError: No run, two of the same benchmark, evaluator and method, or runs on one benchmark that do
            not have the same examples.
    """

    def __init__(
        self, runs: Iterable[MethodRun], *, draws: int = 1000, seed: int = 0, alpha: float = 0.05
    ) -> None:
        listed = list(runs)
        if not listed:
            raise UserError("there is no method run to report; persona-mlflow prism bench makes them")
        self.draws, self.seed, self.alpha = draws, seed, alpha
        names = _benchmark_names(listed)
        first: dict[str, MethodRun] = {}
        entrants = []
        for run in listed:
            benchmark = names[run.fingerprint]
            aligned = _aligned(run, first.setdefault(run.fingerprint, run))
            entrants.append(Entrant(benchmark, run.evaluator or "none", run.label, aligned))
        keys = [entrant.key for entrant in entrants]
        for key in keys:
            if keys.count(key) > 1:
                raise UserError(f"{' · '.join(key)}: two method runs of this name; leave one out")
        self.entrants: tuple[Entrant, ...] = tuple(sorted(entrants, key=_order))
        self._measured: dict[tuple[int, str], Measured] = {}

    @cached_property
    def benchmarks(self) -> tuple[str, ...]:
        """The benchmarks, in the order of the tables."""
        return tuple(dict.fromkeys(entrant.benchmark for entrant in self.entrants))

    def of(self, benchmark: str) -> tuple[Entrant, ...]:
        """The runs on one benchmark."""
        return tuple(entrant for entrant in self.entrants if entrant.benchmark == benchmark)

    def frames(self, entrant: Entrant) -> list[pd.DataFrame]:
        """The scores of each seed of a run, all with the same examples in the same order."""
        return seed_frames(entrant.run)

    def measured(self, entrant: Entrant) -> Measured:
        """The three metrics of a run."""
        return self.measure(entrant, "score")

    def measure(self, entrant: Entrant, column: str) -> Measured:
        """The three metrics of a run with another column in place of its score; kept for the next call."""
        key = (id(entrant), column)
        if key not in self._measured:
            frames = [f.assign(score=f[column].astype(float)) for f in self.frames(entrant)]
            self._measured[key] = self.measure_frames(frames, entrant.run.comparable)
        return self._measured[key]

    def measure_frames(self, frames: Sequence[pd.DataFrame], comparable: bool = True) -> Measured:
        """The three metrics of frames of scores, one per seed, with this collection's draws."""
        return measure(frames, comparable=comparable, draws=self.draws, seed=self.seed, alpha=self.alpha)


# ------------------------------------------------------------------------------------- results as data sets


def stack(rows: Sequence[tuple[Hashable, ...]], names: Sequence[str], dim: str = "run") -> xr.Coordinates:
    """Coordinates of a dim whose every entry has several labels, such as benchmark, evaluator and method."""
    import pandas as pd
    import xarray as xr

    index = pd.MultiIndex.from_tuples(list(rows), names=list(names))
    return xr.Coordinates.from_pandas_multiindex(index, dim)


def by_metric(
    found: Sequence[Mapping[str, Any]], coordinates: xr.Coordinates, dim: str = "run"
) -> xr.Dataset:
    """Results of rows × metric.

    Args:
        found: For each row, variable → its numbers or texts by metric, each shaped (metric).
        coordinates: Of the rows, as `stack` gives them.
        dim: The rows' dim.
    """
    import xarray as xr

    variables = {
        name: ((dim, "metric"), np.array([row[name] for row in found], dtype=_dtype(found[0][name])))
        for name in found[0]
    }
    return xr.Dataset(variables, coords=coordinates).assign_coords(metric=list(METRICS))


def columns_of(measured: Measured) -> dict[str, Any]:
    """Value, low, high and reason by metric."""
    return {
        "value": measured.value,
        "low": measured.low,
        "high": measured.high,
        "reason": [measured.reasons.get(name, "") for name in METRICS],
    }


def undefined(reason: str) -> dict[str, Any]:
    """Value, low, high and reason by metric where there is nothing."""
    nothing: dict[str, Any] = {name: np.full(len(METRICS), np.nan) for name in ("value", "low", "high")}
    return {**nothing, "reason": [reason] * len(METRICS)}


def _dtype(values: Any) -> Any:
    return object if isinstance(values[0], str) else float


# ------------------------------------------------------------------------------------------ order and names


def _benchmark_names(runs: Sequence[MethodRun]) -> dict[str, str]:
    """Fingerprint → name; benchmarks of one name are told apart by their size, or by their fingerprint."""
    by_name: dict[str, dict[str, int]] = {}
    for run in runs:
        groups = int(run.frame["group"].nunique())
        by_name.setdefault(run.benchmark, {}).setdefault(run.fingerprint, groups)
    names = {}
    for name, sizes in by_name.items():
        counts = list(sizes.values())
        for fingerprint, groups in sizes.items():
            plain = f"{groups:,} groups" if counts.count(groups) == 1 else fingerprint[:8]
            names[fingerprint] = name if len(sizes) == 1 else f"{name} · {plain}"
    return names


def _aligned(run: MethodRun, first: MethodRun) -> MethodRun:
    """The run with its examples in the order of the first run on this benchmark."""
    wanted = first.of_seed(first.seeds[0])["id"].tolist()
    place = {identifier: i for i, identifier in enumerate(wanted)}
    for seed in run.seeds:
        ids = run.frame.loc[run.frame["seed"] == seed, "id"].tolist()
        if len(ids) != len(wanted) or set(ids) != set(wanted):
            raise UserError(
                f"{run.benchmark}, {run.evaluator}, {run.label}: its examples are not those of "
                f"{first.evaluator}, {first.label}, though both are of the benchmark {run.fingerprint}; "
                "one of them is damaged: give its persona-mlflow prism bench command again"
            )
    frame = run.frame.assign(_place=run.frame["id"].map(place))
    frame = frame.sort_values(["seed", "_place"], kind="stable").drop(columns="_place")
    return replace(run, frame=frame.reset_index(drop=True))


def _order(entrant: Entrant) -> tuple[Any, ...]:
    """Sorts runs alike wherever they come from; judges of their own model come after what all models do."""
    run = entrant.run
    known = BENCHMARKS.index(run.benchmark) if run.benchmark in BENCHMARKS else len(BENCHMARKS)
    method = METHODS.index(run.method) if run.method in METHODS else len(METHODS)
    own = method if entrant.own_model else 0
    return (
        *(known, entrant.benchmark, entrant.own_model, own, entrant.evaluator.casefold(), entrant.evaluator),
        *(method, entrant.base, run.temperature, run.points or 0),
    )
