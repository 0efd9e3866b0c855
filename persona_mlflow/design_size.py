"""What a smaller design would cost, and how wide its intervals would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.estimate import Family, find_families

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.factors import Level
    from persona_mlflow.grid import Cell
    from persona_mlflow.plan import Plan

SHARES = (1.0, 0.5, 0.25)
"""Shares of the questions that are compared."""

DRAWS = 200
SIMULATED_QUESTIONS = 500
SIMULATED_ACCURACY = 0.6

Levels = Mapping[str, Sequence["Level"]]


@dataclass(frozen=True)
class Design:
    """A part of an experiment.

    Attributes:
        name: The settings that it has.
        share: The share of the questions that it has.
        settings: How many settings.
        questions: How many questions.
        families: Its runs by family.
        run: Half-width of the 95 % interval of one run's accuracy, a fraction.
        accuracy: The same of the mean accuracy over all runs; None where it is undefined.
        instability: The same of I_A; None where there is one setting only.
    """

    name: str
    share: float
    settings: int
    questions: int
    families: Sequence[Family]
    run: float
    accuracy: float | None
    instability: float | None

    @property
    def answers(self) -> int:
        """How many answers."""
        return round(sum(family.answers for family in self.families))


@dataclass(frozen=True)
class Precision:
    """What the widths of intervals are taken from.

    Attributes:
        dataset: Outcomes of the experiment's grid, or of one like it.
        source: Where they come from, in a sentence.
    """

    dataset: xr.Dataset
    source: str


def find_designs(plan: Plan, subsets: Mapping[str, Levels], precision: Precision) -> list[Design]:
    """Smaller designs of an experiment, the whole first.

    Args:
        plan: The experiment.
        subsets: Name → the levels that a smaller set of settings has; a factor that it does not name stays
            whole. One that leaves none of the experiment's settings, or all, is left out.
        precision: What the widths are taken from.
    """
    designs: list[Design] = []
    total = len(plan.questions.questions)
    for name, cells, levels in _settings(plan, subsets):
        families = find_families(plan, cells)
        settings = len({tuple(cell.setting.levels.items()) for cell in cells})
        mean, accuracy, instability, asked = _widths(precision.dataset, levels)
        for share in SHARES:
            questions = max(1, round(share * total))
            if any(d.name == name and d.questions == questions for d in designs):
                continue
            # Questions are drawn independently, so a width goes with one over the root of their number.
            scale = sqrt(asked / questions)
            designs.append(
                Design(
                    name,
                    share,
                    settings,
                    questions,
                    [family.scaled(questions / total) for family in families],
                    1.96 * sqrt(mean * (1 - mean) / questions),
                    None if accuracy is None else min(1.0, accuracy * scale),
                    None if instability is None else min(1.0, instability * scale),
                )
            )
    return designs


def _settings(plan: Plan, subsets: Mapping[str, Levels]) -> list[tuple[str, list[Cell], Levels]]:
    found: list[tuple[str, list[Cell], Levels]] = [("all settings", list(plan.grid.cells), {})]
    for name, wanted in subsets.items():
        levels = {
            f: [v for v in plan.grid.factors[f] if v in wanted[f]] for f in wanted if f in plan.grid.factors
        }
        cells = [c for c in plan.grid.cells if all(c.setting.levels[f] in levels[f] for f in levels)]
        if 0 < len(cells) < len(plan.grid):
            found.append((name, cells, levels))
    return found


def _widths(dataset: xr.Dataset, levels: Levels) -> tuple[float, float | None, float | None, int]:
    """Mean accuracy, the half-widths of its interval and of I_A's, and the questions that they go with."""
    from persona_mlflow.analyses.study import Study

    part = dataset.sel({factor: list(values) for factor, values in levels.items()})
    study = Study(part, draws=DRAWS, permutations=0)
    accuracy = study.accuracy()
    mean = study.interval(accuracy.mean([dim for dim in accuracy.dims if dim != "draw"]))
    instability = study.interval(study.average("accuracy"))
    return float(mean["value"]), _half(mean), _half(instability), int(part.sizes["question"])


def _half(interval: xr.Dataset) -> float | None:
    half = float(interval["high"] - interval["low"]) / 2
    return half if half == half else None


def find_precision(plan: Plan, folder: Path, like: str | None, tracking_uri: str | None = None) -> Precision:
    """Outcomes to take the widths of intervals from: an earlier result, or a simulation.

    Args:
        plan: The experiment.
        folder: Its ledger; used where it holds a finished experiment of the same settings.
        like: A finished experiment to use in its place, as `persona_mlflow.outcomes.load_outcomes` takes it.
        tracking_uri: The store of `like`.

    Raises:
        UserError: `like` cannot be read, or lacks settings of the plan.
    """
    from persona_mlflow.outcomes import PLAN, load_outcomes

    if like is not None:
        dataset = load_outcomes(like, tracking_uri=tracking_uri)
        lacking = _lacking(plan, dataset)
        if lacking:
            raise UserError(f"--like {like}: has not {lacking}, which this experiment varies; name another")
        return Precision(dataset, f"from the answers of {like}")
    if (folder / PLAN).is_file():
        with suppress(UserError):  # not finished yet
            dataset = load_outcomes(folder)
            if not _lacking(plan, dataset):
                return Precision(dataset, f"from the answers on record in {folder}")
    return Precision(_simulate(plan), _SIMULATED)


_SIMULATED = (
    f"assumed: simulated answers with the paper's effects, accuracy {SIMULATED_ACCURACY:g}; --like takes "
    "a finished experiment in their place"
)


def _lacking(plan: Plan, dataset: xr.Dataset) -> str:
    """The first level of the plan that a dataset lacks."""
    for factor, levels in plan.grid.factors.items():
        there: list[Any] = dataset[factor].values.tolist() if factor in dataset.dims else []
        for level in levels:
            if level not in there:
                return f"{factor} {level}"
    return ""


def _simulate(plan: Plan) -> xr.Dataset:
    from persona_mlflow.catalog import load_catalogue
    from persona_mlflow.simulate import simulate_dataset

    personas = min(len(plan.grid.personas), len(load_catalogue().personas))
    return simulate_dataset(
        personas,
        plan.grid.factors,
        SIMULATED_QUESTIONS,
        accuracy=SIMULATED_ACCURACY,
    )
