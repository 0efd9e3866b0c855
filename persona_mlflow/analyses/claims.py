"""What the paper states, held against these results: each trend holds, fails, or is undecided.

A trend becomes a *margin* that is positive if it is true, e.g. the instability of the next most stable
temperature less that of temperature 0. It holds if the margin's bootstrap interval lies above 0, fails if it
lies below, and is undecided if 0 is in it or the grid does not allow the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.entry import Entry
from persona_mlflow.analyses.factors import require
from persona_mlflow.analyses.selections import STABLE, UNSTABLE, available
from persona_mlflow.analyses.study import METRICS, NotAllowed, Study, level_label

if TYPE_CHECKING:
    import xarray as xr

SYMBOLS = {"accuracy": "I_A", "outcome": "I_O", "question": "I_Q"}

LEAST_STABLE = ("Math", "Commonsense Reasoning/Social Awareness")
MOST_STABLE = ("History", "Cultural Awareness and Understanding")

HARDLY = 0.25
"""Persona group "hardly matters" where instability differs between groups by less than this share of it."""

_EMBEDDED = {"smollm2": "SmolLM2-135M-Instruct"}  # whose id in the catalogue does not tell its size

Margin = Callable[..., "xr.DataArray"]


def check_claims(studies: Mapping[str, Study]) -> xr.Dataset:
    """Hold the paper's statements against the results of one or several models.

    Returns:
        Over model × claim: ``value``, ``low``, ``high``, the margin, which is positive where the claim is
        true; ``verdict``, ``holds``, ``fails`` or ``undecided``; ``reason``, why there is no margin. The
        claim on the size of models speaks of all models together, and stands at each.
    """
    import xarray as xr

    together = {metric: _larger_models(studies, metric) for metric in METRICS}
    columns = []
    for study in studies.values():
        rows = {name: _row(study, compute) for name, compute in _claims()}
        for metric, row in together.items():
            rows[f"Larger models are more stable ({SYMBOLS[metric]}, per tenfold size)"] = row
        names = xr.Variable("claim", list(rows))
        columns.append(xr.concat(rows.values(), dim=names))
    return xr.concat(columns, dim=xr.Variable("model", list(studies)))


def _claims() -> Iterator[tuple[str, Callable[[Study], xr.DataArray]]]:
    """Each claim about one model: its text, and its margin in every draw."""
    from functools import partial

    for text, margin, metrics in _PER_METRIC:
        for metric in metrics:
            yield f"{text} ({SYMBOLS[metric]})", partial(margin, metric=metric)
    yield "Stable settings are more accurate (mean accuracy)", _stable_settings


def _row(study: Study, compute: Callable[[Study], xr.DataArray]) -> xr.Dataset:
    try:
        margin = compute(study)
    except NotAllowed as error:
        return _verdict(None, str(error))
    if np.isnan(margin.values[0]):
        return _verdict(None, "an instability that it compares is undefined")
    return _verdict(study.interval(margin))


def _verdict(margin: xr.Dataset | None, reason: str = "") -> xr.Dataset:
    import xarray as xr

    if margin is None:
        margin = xr.Dataset(dict.fromkeys(("value", "low", "high"), np.nan))
    low, high = float(margin["low"]), float(margin["high"])
    verdict = "holds" if low > 0 else "fails" if high < 0 else "undecided"
    if not reason and np.isnan(low):
        reason = "no bootstrap interval: there are too few questions, or no draws"
    return margin.assign(verdict=verdict, reason=reason)


def _levels_apart(study: Study, metric: str, factor: str, first: Callable[[Any], bool]) -> xr.DataArray:
    """The lowest instability among the other levels less the highest among the first ones (P1 Fig. 3)."""
    from persona_mlflow.analyses.factors import one_at_a_time

    require(study, 2)
    values = {
        level: one_at_a_time(study, metric, {factor: [level]})
        for level in (study.levels(factor) if factor in study.varied else [])
    }
    inside = [value for level, value in values.items() if first(level)]
    outside = [value for level, value in values.items() if not first(level)]
    if not inside or not outside:
        have = ", ".join(level_label(factor, level) for level in values) or f"one {factor}"
        raise NotAllowed(f"takes levels of {factor} on both sides; here: {have}")
    return _extreme(outside, "min") - _extreme(inside, "max")


def _greedy(study: Study, metric: str) -> xr.DataArray:
    return _levels_apart(study, metric, "temperature", lambda level: level == 0)


def _barebones(study: Study, metric: str) -> xr.DataArray:
    return _levels_apart(study, metric, "ppf", lambda level: level == "barebones")


def _explaining(study: Study, metric: str) -> xr.DataArray:
    return _levels_apart(study, metric, "tpf", lambda level: not str(level).startswith("explain"))


def _task_format(study: Study, metric: str) -> xr.DataArray:
    others = [factor for factor in study.varied if factor != "tpf"]
    if "tpf" not in study.varied or not others:
        raise NotAllowed(f"takes tpf and another factor; varied here: {', '.join(study.varied) or 'none'}")
    return study.average(metric, "tpf") - _extreme([study.average(metric, f) for f in others], "max")


def _least_stable(study: Study, metric: str) -> xr.DataArray:
    inside, outside = _categories(study, metric, LEAST_STABLE)
    return _extreme(inside, "min") - _extreme(outside, "max")


def _most_stable(study: Study, metric: str) -> xr.DataArray:
    inside, outside = _categories(study, metric, MOST_STABLE)
    return _extreme(outside, "min") - _extreme(inside, "max")


def _categories(study: Study, metric: str, names: Sequence[str]) -> tuple[list[Any], list[Any]]:
    require(study, 1)
    missing = [name for name in names if name not in study.categories]
    if missing or len(study.categories) == len(names):
        raise NotAllowed(f"takes the category {missing[0]}" if missing else "takes further categories")
    values = {name: study.average(metric, category=name) for name in study.categories}
    return [values[name] for name in names], [v for name, v in values.items() if name not in names]


def _groups(study: Study, metric: str) -> xr.DataArray:
    require(study, 1)
    groups = [name for name in study.groups if name not in study.subgroups]
    if len(groups) < 2:
        raise NotAllowed("takes personas of at least two groups")
    values = [study.average(metric, group=name) for name in groups]
    whole = study.average(metric)
    return HARDLY - (_extreme(values, "max") - _extreme(values, "min")) / whole.where(whole != 0)


def _stable_settings(study: Study) -> xr.DataArray:
    accuracy = study.accuracy()
    means = []
    for name, wanted in (("stable", STABLE), ("unstable", UNSTABLE)):
        settings, _ = available(study, wanted, f"the {name} set of P1 Table 4")
        part = accuracy.sel({factor: list(levels) for factor, levels in settings.items()})
        means.append(part.mean([dim for dim in part.dims if dim != "draw"]))
    return means[0] - means[1]


def _larger_models(studies: Mapping[str, Study], metric: str) -> xr.Dataset:
    """How far an instability falls per tenfold number of parameters: least squares over the models."""
    import xarray as xr

    sizes = {name: model_size(str(study.dataset.attrs.get("model", name))) for name, study in studies.items()}
    known = {name: size for name, size in sizes.items() if size}
    if len(set(known.values())) < 2:
        return _verdict(None, "takes at least two models of different and known size")
    draws = [studies[name].average(metric).values for name in known]
    if len({len(values) for values in draws}) > 1 or any(np.isnan(values[0]) for values in draws):
        return _verdict(None, "an instability that it compares is undefined")
    x = np.log10(list(known.values()))
    x -= x.mean()
    slope = x @ np.stack(draws) / (x @ x)
    study = next(iter(studies.values()))
    return _verdict(study.interval(xr.DataArray(-slope, dims="draw")))


def model_size(name: str) -> float | None:
    """Number of parameters in billions, as the model's name or its id in the catalogue tells it."""
    from persona_mlflow.catalog import load_catalogue

    models = load_catalogue().models
    for text in (name, models[name].id if name in models else "", _EMBEDDED.get(name, "")):
        found = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z])", text.rpartition("/")[2], re.I)
        if found:
            return float(found[1]) / (1 if found[2].lower() == "b" else 1000)
    return None


def _extreme(values: Sequence[xr.DataArray], which: str) -> xr.DataArray:
    import xarray as xr

    stacked = xr.concat(values, dim="compared")
    # An undefined part leaves the comparison undefined.
    return stacked.min("compared", skipna=False) if which == "min" else stacked.max("compared", skipna=False)


_PER_METRIC: tuple[tuple[str, Margin, tuple[str, ...]], ...] = (
    ("Temperature 0 is the most stable", _greedy, METRICS),
    ("barebones is the most stable persona prompt format", _barebones, METRICS),
    ("Explaining task prompt formats are the least stable", _explaining, METRICS),
    ("The task prompt format is the most influential factor", _task_format, METRICS),
    ("Math and commonsense are the least stable domains", _least_stable, METRICS),
    ("History and culture are the most stable domains", _most_stable, METRICS),
    # Ranks among few personas move less, so I_O differs between groups by their size alone.
    ("Persona group hardly matters", _groups, ("accuracy", "question")),
)

ENTRY = Entry(
    key="claims",
    reference="P1 §5",
    title="Does the paper's picture hold here?",
    caption=(
        "Each trend that the paper states, as a margin that is positive if it is true, with its interval. "
        "It holds if the interval lies above 0, fails if it lies below, and is undecided otherwise."
    ),
    compute=lambda study: check_claims({"": study}).isel(model=0, drop=True),
    rows=("claim",),
    columns=("model",),
    show={"verdict": "verdict"},
    unit="margin",
)
