"""Is it more than chance? Each instability beside what it would be if the settings did not differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.factors import NO_VALUE, require
from persona_mlflow.analyses.study import METRICS, NotAllowed, Settings, Study, level_label

if TYPE_CHECKING:
    import xarray as xr


def by_chance(study: Study) -> xr.Dataset:
    """The instabilities of all settings, of each factor alone, of each category and group, by chance.

    Beyond the paper. For I_A and I_O the *floor* is their mean when each persona's right answers to a
    question are permuted over the settings that are compared, and p the share of such permutations that
    give as much. That takes personas to be independent given the question. Where a setting breaks the same
    questions for all of them it finds too much in I_A and too little in I_O, so the permutation is also done
    for all personas together, and the adjusted p comes from there.

    The permutation leaves I_Q as it is: for it, ``independent`` is its value if which questions are right
    were independent between settings, and ``share`` how much of that it has.

    Where the grid has a ``repeat`` factor, its instability alone is that of sampling with nothing else
    changed, and is given at each temperature, too.

    Returns:
        Over metric × part: ``value``, ``low``, ``high``; for accuracy and outcome ``floor``, ``excess`` and
        ``p``, for all personas together ``floor_together``, ``p_together`` and ``p_adjusted``, after Holm
        over the parts; for question ``independent`` and ``share``; ``reason``.

    Raises:
        NotAllowed: No factor is varied, or the study has no permutations.
    """
    import xarray as xr

    require(study, 1)
    if not study.permutations:
        raise NotAllowed("takes permutations: --permutations 1000")
    columns: dict[str, dict[str, np.ndarray]] = {}
    draws: dict[str, list[xr.DataArray]] = {metric: [] for metric in METRICS}
    for place, (name, part) in enumerate(_parts(study)):
        for metric in METRICS:
            draws[metric].append(study.average(metric, part["over"], **part["where"]))
        columns |= _chance_levels(study, part, name, place)
    label = xr.Variable("part", list(columns))
    rows = [xr.concat(draws[name], dim=label) for name in METRICS]
    values = xr.concat(rows, dim=xr.Variable("metric", list(METRICS)))
    found = study.metric_interval(values)
    for name in ("floor", "excess", "p", "floor_together", "p_together", "independent", "share"):
        stacked = np.stack([column[name] for column in columns.values()], axis=1)
        found[name] = (("metric", "part"), stacked)
    found["p_adjusted"] = (("metric", "part"), _holm(found["p_together"].values))
    return found.assign(reason=xr.where(found["value"].isnull(), NO_VALUE, ""))


def _parts(study: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is compared: a name, the varied factors, and which part of the experiment."""
    yield "all settings", {"over": study.factors, "where": {}}
    if len(study.varied) > 1:
        for factor in study.varied:
            yield f"{factor} alone", {"over": (factor,), "where": {}}
    if "repeat" in study.varied and "temperature" in study.varied:
        for level in study.levels("temperature"):
            name = f"repeat alone, {level_label('temperature', level)}"
            yield name, {"over": ("repeat",), "where": {"settings": {"temperature": [level]}}}
    if len(study.categories) > 1:
        for category in study.categories:
            yield category, {"over": study.factors, "where": {"category": category}}
    if len(study.groups) > 1:
        for group in study.groups:
            # The user's groups can be called as the categories are.
            name = f"{group} (personas)" if group in study.categories else group
            yield name, {"over": study.factors, "where": {"group": group}}


def _chance_levels(
    study: Study, part: Mapping[str, Any], name: str, place: int
) -> dict[str, dict[str, np.ndarray]]:
    """The part's name → what each number is by chance, over metric."""
    from persona_mlflow.instability.chance import floor, independent_draws

    over, where = part["over"], part["where"]
    category, settings = where.get("category"), where.get("settings")
    # The groups are parts of the same permuted experiment.
    key = ("permuted", over, category, name if settings else None)
    observed, apart, together = study.cached(key, lambda: _permute(study, over, category, settings, place))
    members, questions = study.members(where.get("group")), study.questions(category)

    def row(permuted: np.ndarray, attribute: str) -> np.ndarray:
        levels = [floor(observed, permuted, questions, metric, members) for metric in ("accuracy", "outcome")]
        numbers = [getattr(level, attribute) for level in levels]
        return np.array([np.nan if number is None else number for number in [*numbers, None]])

    independent = float(independent_draws(observed[members][..., None], questions)[0])
    question = float(study.average("question", over, **where).values[0])
    share = question / independent if independent > 0 else np.nan
    return {
        name: {
            **{attribute: row(apart, attribute) for attribute in ("floor", "excess", "p")},
            "floor_together": row(together, "floor"),
            "p_together": row(together, "p"),
            "independent": np.array([np.nan, np.nan, independent]),
            "share": np.array([np.nan, np.nan, share]),
        }
    }


def _permute(
    study: Study, over: Sequence[str], category: str | None, settings: Settings | None, place: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts as they are, permuted for each persona apart, and permuted for all together."""
    from persona_mlflow.instability.permutation import (
        line_answers,
        permuted_counts,
        permuted_together,
        right_histogram,
    )

    correct = study.select(settings or {})
    if category is not None:
        correct = correct.isel(question=study.positions[category])
    answers = line_answers(correct, over)
    histogram = right_histogram(answers.sum(axis=2, dtype=np.int64), answers.shape[2])
    apart, together = (np.random.default_rng([study.seed, way, place]) for way in (1, 2))
    return (
        answers.sum(axis=3, dtype=np.int64),
        permuted_counts(histogram, study.permutations, apart, threads=2),
        permuted_together(answers, study.permutations, together, threads=2),
    )


def _holm(p: np.ndarray) -> np.ndarray:
    """Adjust each row's p-values after Holm; NaN stays."""
    from statsmodels.stats.multitest import multipletests

    adjusted = np.full(p.shape, np.nan)
    for i, row in enumerate(p):
        known = ~np.isnan(row)
        if known.any():
            adjusted[i, known] = multipletests(row[known], method="holm")[1]
    return adjusted
