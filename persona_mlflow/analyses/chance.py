"""Is it more than chance? Each instability beside what it would be if the settings did not differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.factors import require
from persona_mlflow.analyses.study import METRICS, NotAllowed, Settings, Study, level_label

if TYPE_CHECKING:
    import xarray as xr


def by_chance(study: Study) -> xr.Dataset:
    """The instabilities of all settings, of each factor alone, of each category and group, by chance.

    Beyond the paper. For I_A and I_O the *floor* is their mean when each persona's right answers to a
    question are permuted over the settings that are compared, and p the share of such permutations that
    give as much. The permutation leaves I_Q as it is: for it, ``independent`` is its value if which
    questions are right were independent between settings, and ``share`` how much of that it has.

    Where the grid has a ``repeat`` factor, its instability alone is that of sampling with nothing else
    changed, and is given at each temperature, too.

    Returns:
        Over metric × part: ``value``, ``low``, ``high``; ``floor``, ``excess`` and ``p`` (accuracy and
        outcome); ``p_adjusted``, after Holm over the parts; ``independent`` and ``share`` (question).

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
    found = study.interval(values, (0.0, float("inf")))
    for name in ("floor", "excess", "p", "independent", "share"):
        stacked = np.stack([column[name] for column in columns.values()], axis=1)
        found[name] = (("metric", "part"), stacked)
    return found.assign(p_adjusted=(("metric", "part"), _holm(found["p"].values)))


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
            yield group, {"over": study.factors, "where": {"group": group}}


def _chance_levels(
    study: Study, part: Mapping[str, Any], name: str, place: int
) -> dict[str, dict[str, np.ndarray]]:
    from persona_mlflow.instability.chance import floor, independent_draws

    where, over = part["where"], part["over"]
    key = (over, where.get("category"), tuple(where.get("settings", {})), where.get("settings") and name)
    observed, permuted = study.cached(
        ("permuted", key),
        lambda: _permute(study, over, where.get("category"), where.get("settings"), place),
    )
    members = study.members(where.get("group"))
    questions = study.questions(where.get("category"))
    levels = [floor(observed, permuted, questions, metric, members) for metric in ("accuracy", "outcome")]
    independent = float(independent_draws(observed[members][..., None], questions)[0])
    question = float(study.average("question", over, **where).values[0])
    share = question / independent if independent > 0 else np.nan

    def row(attribute: str) -> np.ndarray:
        numbers = [getattr(level, attribute) for level in levels]
        return np.array([np.nan if number is None else number for number in [*numbers, None]])

    return {
        name: {
            **{attribute: row(attribute) for attribute in ("floor", "excess", "p")},
            "independent": np.array([np.nan, np.nan, independent]),
            "share": np.array([np.nan, np.nan, share]),
        }
    }


def _permute(
    study: Study, over: Sequence[str], category: str | None, settings: Settings | None, place: int
) -> tuple[np.ndarray, np.ndarray]:
    from persona_mlflow.instability.chance import line_answers, permuted_counts, right_histogram

    correct = study.select(settings or {})
    if category is not None:
        correct = correct.isel(question=study.positions[category])
    answers = line_answers(correct, over)
    size = answers.shape[2]
    histogram = right_histogram(answers.sum(axis=2, dtype=np.int64), size)
    rng = np.random.default_rng([study.seed, 1, place])
    permuted = permuted_counts(histogram, study.permutations, rng, threads=2)
    return answers.sum(axis=3, dtype=np.int64), permuted


def _holm(p: np.ndarray) -> np.ndarray:
    """Adjust each row's p-values after Holm; NaN stays."""
    from statsmodels.stats.multitest import multipletests

    adjusted = np.full(p.shape, np.nan)
    for i, row in enumerate(p):
        known = ~np.isnan(row)
        if known.any():
            adjusted[i, known] = multipletests(row[known], method="holm")[1]
    return adjusted
