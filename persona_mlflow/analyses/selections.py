"""Parts of the grid that the paper compares: sets of settings, subsets of questions (P1 Tables 4, 9, 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persona_mlflow.analyses.factors import NO_VALUE, relative, require
from persona_mlflow.analyses.study import METRICS, NotAllowed, Settings, Study
from persona_mlflow.instability.resampling import subset_weights

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

STABLE: Settings = {
    "temperature": (0.0,),
    "tpf": ("justanswer", "justanswer-persona"),
    "ppf": ("barebones", "youare"),
}
UNSTABLE: Settings = {**STABLE, "temperature": (1.0,)}
"""P1 Table 4's two sets, which as printed differ in temperature alone."""

SUBSETS: Mapping[str, Settings] = {
    "A (27 settings)": {
        "ppf": ("barebones", "youareknowledge", "identitynature"),
        "tpf": ("justanswer", "explain", "explain-persona"),
    },
    "B (12 settings)": {
        "ppf": ("barebones", "identitynature"),
        "tpf": ("justanswer", "explain-persona"),
    },
}
"""P1 Table 10's two sets, over all temperatures."""

FIRST: Mapping[str, Any] = {"temperature": 0.0, "ppf": "barebones", "tpf": "justanswer"}
LAST: Mapping[str, Any] = {"temperature": 1.0, "ppf": "identitynature", "tpf": "explain-persona"}
"""P1 Fig. 6's two settings."""

SHARES = (0.75, 0.5)
"""P1 Table 9's shares of the questions."""


def stable_and_unstable(study: Study) -> xr.Dataset:
    """Accuracy in the stable and in the unstable settings (P1 Table 4).

    Returns:
        Over set (``stable``, ``unstable``, ``stable − unstable``) × statistic (``mean accuracy``, ``maximal
        accuracy``, the highest of a run): ``value``, ``low``, ``high`` as fractions.

    Raises:
        NotAllowed: The grid lacks temperature 0 or 1, or every level of one of the sets' factors.
    """
    import xarray as xr

    sets, notes = {}, set()
    for name, wanted in (("stable", STABLE), ("unstable", UNSTABLE)):
        sets[name], note = available(study, wanted, f"the {name} set of P1 Table 4")
        notes.add(note)
    accuracy = study.accuracy()
    statistics = {}
    for name, settings in sets.items():
        part = accuracy.sel({factor: list(levels) for factor, levels in settings.items()})
        runs = [dim for dim in part.dims if dim != "draw"]
        statistic = xr.Variable("statistic", ["mean accuracy", "maximal accuracy"])
        statistics[name] = xr.concat([part.mean(runs), part.max(runs)], dim=statistic)
    statistics["stable − unstable"] = statistics["stable"] - statistics["unstable"]
    found = study.interval(xr.concat(statistics.values(), dim=xr.Variable("set", list(statistics))))
    note = " ".join(sorted(filter(None, notes)))
    return found.assign_attrs(note=note) if note else found


def setting_subsets(study: Study) -> xr.Dataset:
    """The instabilities in two subsets of the settings (P1 Table 10).

    Returns:
        Over subset (``all settings``, A, B) × metric: the instability (``value``, ``low``, ``high``) and its
        relative delta against all settings (``relative``).

    Raises:
        NotAllowed: The grid lacks a level of both subsets.
    """
    import xarray as xr

    require(study, 1)
    chosen: dict[str, Settings] = {"all settings": {}}
    missing = []
    for name, wanted in SUBSETS.items():
        lacking = _lacking(study, wanted)
        if lacking:
            missing.append(f"subset {name} takes {', '.join(lacking)}")
        else:
            chosen[name] = wanted
    if len(chosen) == 1:
        raise NotAllowed("; ".join(missing) + ": not in this grid")
    metric = xr.Variable("metric", list(METRICS))
    draws = xr.concat(
        [
            xr.concat([study.average(name, settings=settings) for name in METRICS], dim=metric)
            for settings in chosen.values()
        ],
        dim=xr.Variable("subset", list(chosen)),
    )
    found = study.metric_interval(draws)
    change = relative(draws.isel(subset=0), draws).isel(draw=0, drop=True)
    found["reason"] = xr.where(found["value"].isnull(), NO_VALUE, "")
    return found.assign(relative=change).assign_attrs({"note": "; ".join(missing)} if missing else {})


def question_subsets(study: Study, seeds: int = 20) -> xr.Dataset:
    """The instabilities on 75 % and 50 % of the questions, balanced by category (P1 Table 9).

    Args:
        study: The experiment.
        seeds: How many random subsets of each share.

    Returns:
        Over share (``all questions``, ``75 %``, ``50 %``) × metric: ``value`` the mean over the subsets,
        ``low`` and ``high`` the lowest and the highest of them, ``sd`` their standard deviation.

    Raises:
        NotAllowed: No factor is varied.
    """
    import numpy as np
    import xarray as xr

    require(study, 1)
    strata = list(study.positions.values())
    blocks = [np.ones((study.questions(), 1), dtype=np.float32)]
    blocks += [subset_weights(strata, share, seeds, study.seed + i) for i, share in enumerate(SHARES, 1)]
    metric = xr.Variable("metric", list(METRICS))
    parts = []
    for weights in blocks:
        values = _on_subsets(study, weights)
        array = xr.concat([values[name] for name in METRICS], dim=metric)
        # A subset in which no question is right has no I_Q: it counts towards none of these.
        parts.append(
            xr.Dataset(
                {
                    "value": array.mean("draw"),
                    "low": array.min("draw"),
                    "high": array.max("draw"),
                    "sd": array.std("draw"),
                }
            )
        )
    names = ["all questions", *(f"{share:.0%} of the questions" for share in SHARES)]
    found = xr.concat(parts, dim=xr.Variable("share", names))
    return found.assign(reason=xr.where(found["value"].isnull(), NO_VALUE, ""))


def contrast(study: Study) -> xr.Dataset:
    """Persona accuracies in the plainest and in the most elaborate setting (P1 Fig. 6 and 12).

    The paper's pair is (0, barebones, justanswer) and (1, identitynature, explain-persona). A grid without
    it shows the setting of every factor's first level against that of every factor's last.

    Returns:
        Over setting × persona: accuracy (``value``, ``low``, ``high``) and ``rank`` within the setting, 1
        the best, ties sharing the mean of their ranks.

    Raises:
        NotAllowed: There is one setting, or one persona.
    """
    import xarray as xr

    if study.settings < 2 or len(study.personas) < 2:
        raise NotAllowed("takes at least two settings and two personas")
    levels = {name: study.levels(name) for name in study.factors}
    pair = [{name: values[place] for name, values in levels.items()} for place in (0, -1)]
    note = (
        "The paper's pair of settings is not in this grid: shown are the setting of every factor's "
        "first level and that of every factor's last."
    )
    wanted = [*FIRST.items(), *LAST.items()]
    if all(name in levels and level in levels[name] for name, level in wanted):
        pair = [{name: chosen.get(name, pair[0][name]) for name in levels} for chosen in (FIRST, LAST)]
        note = ""
    accuracy = study.accuracy()
    ranks, _ = study.ranks(None, None)
    rank = xr.DataArray(ranks[..., 0], dims=("persona", *study.factors), coords=accuracy.isel(draw=0).coords)
    names = xr.Variable("setting", [setting_name(setting) for setting in pair])
    found = xr.concat(
        [study.interval(accuracy.sel(setting, drop=True), (0.0, 1.0)) for setting in pair], dim=names
    )
    found["rank"] = xr.concat([rank.sel(setting, drop=True) for setting in pair], dim=names)
    return found.assign_attrs(note=note) if note else found


def setting_name(levels: Mapping[str, Any]) -> str:
    """A setting in words: its levels, the temperature as τ."""
    words = {"temperature": "τ {:g}", "repeat": "repeat {}"}
    return " · ".join(words.get(name, "{}").format(level) for name, level in levels.items())


def available(study: Study, wanted: Settings, what: str) -> tuple[dict[str, Sequence[Any]], str]:
    """The part of a set of settings that the grid has, and what to say of the rest.

    Raises:
        NotAllowed: A factor has none of the wanted levels.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, levels in wanted.items():
        here = study.levels(name) if name in study.factors else []
        found[name] = [level for level in levels if level in here]
        if not found[name]:
            raise NotAllowed(f"{what} takes {name} {' or '.join(map(_text, levels))}, which this grid lacks")
    lacking = _lacking(study, wanted)
    return found, f"Of {what} the grid lacks {', '.join(lacking)}." if lacking else ""


def _lacking(study: Study, wanted: Settings) -> list[str]:
    return [
        f"{name} {_text(level)}"
        for name, levels in wanted.items()
        for level in levels
        if name not in study.factors or level not in study.levels(name)
    ]


def _text(level: Any) -> str:
    return f"{level:g}" if isinstance(level, float) else str(level)


def _on_subsets(study: Study, weights: np.ndarray) -> dict[str, xr.DataArray]:
    """The metrics over all settings where each draw is a subset of the questions."""
    sizes = weights.sum(axis=0)
    part = Study(study.dataset, weights=weights, permutations=0)
    scale = study.questions() / sizes
    # A subset's accuracy is its count over its own size: I_A and w(s) are linear in that, I_Q is a ratio.
    values = {name: part.average(name) for name in METRICS}
    for name in ("accuracy", "outcome"):
        values[name] = values[name] * scale
    return values
