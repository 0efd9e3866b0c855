"""Does the text fit the persona, and is that as unstable as accuracy? Beyond both papers.

What is shown comes from PRISM's scores of the explaining runs (`persona_mlflow.fidelity`), which
``persona-mlflow run --prism EVALUATOR`` logs on the parent run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.study import NotAllowed, Study, level_label
from persona_mlflow.fidelity_analysis import correlations, factor_names, instability, run_scores
from persona_mlflow.instability.levels import level_instability
from persona_mlflow.instability.resampling import bootstrap_weights

if TYPE_CHECKING:
    import xarray as xr

ALL = "all explaining runs"

INSTABILITY_OF = ("fidelity", "accuracy", "accuracy on the scored questions")
"""What has an I_A and an I_O: S, accuracy over all questions, and over the scored questions alone."""

CORRELATIONS = {
    "accuracy": "r of the I_A over personas",
    "outcome": "r of the I_O over personas",
    "runs": "r over runs",
}

_Part = tuple[np.ndarray, ...]


def fidelity(study: Study) -> xr.Dataset:
    """S and the three e_d, as means over runs: of all explaining runs, each persona group, each level.

    Returns:
        Over part × quantity (fidelity, then the dimensions): ``value``, ``low``, ``high`` (bootstrap over
        the scored questions), and ``reason`` where a value is undefined.

    Raises:
        NotAllowed: The generations have not been scored.
    """
    scores = _Scores.of(study)
    parts = scores.parts()
    draws = np.stack(
        [[_mean_over_runs(values[part]) for values in scores.values.values()] for part in parts.values()]
    )
    reasons = np.where(np.isnan(draws[..., 0]), "no answer is scored", "")
    names = [name.replace("_", " ") for name in scores.values]
    found = scores.intervals(list(parts), names, draws, (0.0, 1.0))
    return found.assign(reason=(("part", "quantity"), reasons))


def fidelity_instability(study: Study) -> xr.Dataset:
    """I_A and I_O (P1 §3) of fidelity beside those of accuracy over the same runs, and their correlations.

    The mean S of each run stands in place of its accuracy. Accuracy is taken over all questions, as it is
    logged, and over the scored questions alone, which hold as much noise of sampling as S does. Ranks and
    weights are recomputed within each part. Pearson's r relates accuracy over all questions to fidelity: over
    personas between their instabilities (I_O(p) in ranks), and over runs between their means.

    Returns:
        Over part × quantity (I_A of each of `INSTABILITY_OF`, I_O of each, `CORRELATIONS`): ``value``;
        ``low``, ``high``, of a bootstrap over the questions that the quantity is of, none for r; ``reason``.

    Raises:
        NotAllowed: The generations have not been scored.
    """
    scores = _Scores.of(study)
    levels = dict(
        zip(
            INSTABILITY_OF,
            (scores.values["fidelity"], scores.accuracy(), scores.accuracy_on_sample()),
            strict=True,
        )
    )
    parts = scores.parts()
    draws = np.full((len(parts), 2 * len(levels) + len(CORRELATIONS), 1 + study.draws), np.nan)
    reasons = np.full(draws.shape[:2], "", dtype=object)
    for i, part in enumerate(parts.values()):
        for j, runs in enumerate(levels.values()):
            pair, reason = _instabilities(runs[part])
            for place, values in zip((j, len(levels) + j), pair, strict=True):
                draws[i, place, : len(values)], reasons[i, place] = values, reason
        of_fidelity, of_accuracy = (levels[name][part][..., 0] for name in INSTABILITY_OF[:2])
        for j, (value, reason) in enumerate(correlations(of_accuracy, of_fidelity).values()):
            place = 2 * len(levels) + j
            draws[i, place, 0] = np.nan if value is None else value
            reasons[i, place] = reason
    names = [f"{symbol} of {name}" for symbol in ("I_A", "I_O") for name in levels]
    found = scores.intervals(list(parts), [*names, *CORRELATIONS.values()], draws, (0.0, np.inf))
    bounded = found["quantity"].str.startswith("I_A")
    found["high"] = found["high"].where(~bounded | found["high"].isnull(), np.minimum(found["high"], 1.0))
    return found.assign(reason=(("part", "quantity"), reasons.astype(str)))


@dataclass(frozen=True, eq=False)
class _Scores:
    """The scores of an experiment's explaining runs in every draw of the scored questions.

    Attributes:
        study: The experiment.
        data: As `persona_mlflow.fidelity_analysis.label_fidelity`, of the personas and levels of the study.
        weights: How often each scored question counts in each draw; a single draw where they are too few.
    """

    study: Study
    data: xr.Dataset
    weights: np.ndarray

    @classmethod
    def of(cls, study: Study) -> _Scores:
        data = study.fidelity
        if data is None:
            raise NotAllowed(
                "takes PRISM's scores of the answers: give the experiment's persona-mlflow run command again "
                "with --prism EVALUATOR; nothing is generated anew"
            )
        dims = ["persona", *factor_names(data), "question"]
        known = {dim: set(study.correct[dim].values.tolist()) for dim in dims if dim in study.correct.coords}
        part = {
            dim: [i for i, label in enumerate(data[dim].values.tolist()) if label in known.get(dim, ())]
            for dim in dims
        }
        if not all(part.values()):
            raise NotAllowed("takes scored answers, and none is left of the complete part of this experiment")
        chosen = data.isel(part)
        return cls(study, chosen, _draws(study, chosen["category"].values.tolist()))

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Fidelity and the dimensions: persona × setting × draw."""
        return run_scores(self.data, self.weights)

    def accuracy(self) -> np.ndarray:
        """Accuracy over all questions, in the study's own draws: persona × setting × draw."""
        names = factor_names(self.data)
        found = self.study.accuracy().sel(persona=self.data["persona"].values)
        found = found.sel({name: self.data[name].values.tolist() for name in names})
        return self._flat(found.transpose("persona", *names, "draw").values)

    def accuracy_on_sample(self) -> np.ndarray:
        """Accuracy over the scored questions, in the draws of the scores: persona × setting × draw."""
        names = factor_names(self.data)
        chosen = {name: self.data[name].values.tolist() for name in ("persona", *names, "question")}
        right = self.study.correct.sel(chosen).transpose("persona", *names, "question").values
        weights = self.weights.astype(float)
        return self._flat(right.astype(float) @ weights / weights.sum(axis=0))

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(len(values), -1, values.shape[-1])

    def parts(self) -> dict[str, _Part]:
        """The parts of a table: what they are called → which personas and settings are theirs."""
        names = factor_names(self.data)
        grid = np.indices([self.data.sizes[name] for name in names]).reshape(len(names), -1)
        settings = np.arange(grid.shape[1])
        everyone = np.arange(self.data.sizes["persona"])
        found = {ALL: np.ix_(everyone, settings)}
        group, subgroup = (self.data[f"persona_{kind}"].values for kind in ("group", "subgroup"))
        for name in dict.fromkeys(group.tolist()):
            found[name] = np.ix_(everyone[group == name], settings)
            for part in dict.fromkeys(subgroup[group == name].tolist()):
                if part:
                    members = everyone[(group == name) & (subgroup == part)]
                    found[f"{name} · {part}"] = np.ix_(members, settings)
        for axis, name in enumerate(names):
            levels = self.data[name].values.tolist()
            for place, level in enumerate(levels if len(levels) > 1 else ()):
                found[level_label(name, level)] = np.ix_(everyone, settings[grid[axis] == place])
        return found

    def intervals(
        self, parts: list[str], quantities: list[str], draws: np.ndarray, bounds: tuple[float, float]
    ) -> xr.Dataset:
        """Values with intervals over part × quantity, and the note that says what the scores are of."""
        import xarray as xr

        coords: dict[str, Any] = {"part": parts, "quantity": quantities}
        found = self.study.interval(xr.DataArray(draws, coords, ("part", "quantity", "draw")), bounds)
        facts = self.data.attrs
        scored = int(self.data["e"].notnull().all("dimension").sum())
        cases = self.data["e"].size // self.data.sizes["dimension"]
        return found.assign_attrs(
            note=f"Evaluator: {facts.get('evaluator', 'unknown')}, layout {facts.get('layout', 'unknown')}; "
            f"{self.data.sizes['question']} questions of each of {self.data['accuracy'].size:,} runs, "
            f"{cases - scored:,} of {cases:,} answers unscored."
        )


def _draws(study: Study, categories: list[str]) -> np.ndarray:
    """The bootstrap of the scored questions, stratified as the study's: small categories together."""
    places: dict[str, list[int]] = {}
    for i, category in enumerate(categories):
        places.setdefault(category, []).append(i)
    if len(categories) < study.few:
        return np.ones((len(categories), 1))
    strata = [np.array(found) for found in places.values() if len(found) >= study.few]
    rest = [i for found in places.values() if len(found) < study.few for i in found]
    return bootstrap_weights([*strata, *([np.array(rest)] if rest else [])], study.draws, study.seed)


def _mean_over_runs(values: np.ndarray) -> np.ndarray:
    """Mean over the runs that have a value, in each draw."""
    runs = values.reshape(-1, values.shape[-1])
    defined = (~np.isnan(runs)).sum(axis=0)
    total = np.nansum(runs, axis=0)
    return np.divide(total, defined, out=np.full(total.shape, np.nan), where=defined > 0)


def _instabilities(values: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """I_A and I_O in each draw of persona × setting × draw, and why there are none."""
    _, reason = instability(values[..., 0])
    if reason:
        return (np.full(1, np.nan), np.full(1, np.nan)), reason
    found = level_instability(np.moveaxis(values, -1, 1))
    return (found.accuracy, found.outcome), ""
