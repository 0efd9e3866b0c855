"""Which factor causes the instability, and at which level (P1 Fig. 3, 4 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from persona_mlflow.analyses.study import METRICS, NotAllowed, Settings, Study

if TYPE_CHECKING:
    import xarray as xr


NO_VALUE = "no pair of settings, or no question that is right in any setting"
NOTHING_TO_COMPARE = "the baseline is 0: there is no instability to compare with"


def single_factor(study: Study, category: str | None = None, group: str | None = None) -> xr.Dataset:
    """Instability when one factor varies and the others are fixed (P1 Fig. 4).

    For each combination of the fixed factors' levels the metric over the varied one's; then the mean over
    the combinations. The baseline varies all factors jointly (P1 Table 1).

    Args:
        study: The experiment.
        category: Only the questions of one category (P1 Fig. 11).
        group: Only the personas of one group, ranked among themselves (P1 Fig. 11).

    Returns:
        As `deltas` gives it, over metric × factor.

    Raises:
        NotAllowed: No factor is varied.
    """
    require(study, 1)
    return deltas(
        study,
        "factor",
        study.varied,
        lambda metric, factor: study.average(metric, factor, category=category, group=group),
        lambda metric: study.average(metric, category=category, group=group),
    )


def levels(study: Study, reading: Literal["one at a time", "all at once"] = "one at a time") -> xr.Dataset:
    """Instability within each level of each factor (P1 Fig. 3).

    Args:
        study: The experiment.
        reading: The paper can be read in two ways. ``one at a time``: in the settings with that level, vary
            one other factor with the rest fixed, and average over the fixed combinations and over which
            factor is varied. ``all at once``: vary all settings that have that level jointly.

    Returns:
        As `deltas` gives it, over metric × level (``temperature 0``, ``ppf barebones`` …).

    Raises:
        NotAllowed: Fewer than two factors are varied: fixing a level then leaves one setting.
    """
    require(study, 2)
    sets = study.level_sets()

    def within(metric: str, label: str) -> xr.DataArray:
        if reading == "all at once":
            return study.average(metric, settings=sets[label])
        return one_at_a_time(study, metric, sets[label])

    return deltas(study, "level", list(sets), within, study.average)


def all_at_once(study: Study) -> xr.Dataset:
    """P1 Fig. 3 in its second reading; see `levels`."""
    return levels(study, "all at once")


def outcome_forms(study: Study) -> xr.Dataset:
    """I_O weighted or not, normalised or not, and the normalisation alone (P1 Fig. 10).

    Returns:
        Over form × level: ``value``, ``low``, ``high``, the relative delta of each form when the settings are
        restricted to those with one level of a factor, so that forms in different units compare; and
        ``absolute``, the form's own value (a fraction, or ranks where it is not normalised).

    Raises:
        NotAllowed: As `levels`.
    """
    import xarray as xr

    require(study, 2)
    sets: dict[str, Settings] = {"all settings": {}, **study.level_sets()}
    forms: dict[str, list[xr.DataArray]] = {}
    for settings in sets.values():
        for weighted in (True, False):
            for normalized in (True, False):
                name = f"{'' if weighted else 'un'}weighted, {'normalised' if normalized else 'in ranks'}"
                value, normaliser = study.outcome_form(weighted, normalized, settings)
                forms.setdefault(name, []).append(value)
        forms.setdefault("normalisation alone", []).append(normaliser)
    level = xr.Variable("level", list(sets))
    absolute = xr.concat(
        [xr.concat(values, dim=level) for values in forms.values()], dim=xr.Variable("form", list(forms))
    )
    base = absolute.sel(level="all settings", drop=True)
    found = study.interval(relative(base, absolute))
    first = absolute.isel(draw=0, drop=True)
    because = _because(first, xr.where(base.isel(draw=0, drop=True) == 0, NOTHING_TO_COMPARE, ""))
    return found.assign(absolute=first, reason=because.where(found["value"].isnull(), ""))


def deltas(
    study: Study,
    dim: str,
    labels: Sequence[str],
    new: Callable[[str, str], xr.DataArray],
    baseline: Callable[[str], xr.DataArray],
) -> xr.Dataset:
    """Compare instabilities with their baseline: delta = baseline − new, so positive is more stable.

    Args:
        study: The experiment.
        dim: What the compared things are, e.g. ``factor``.
        labels: Their names.
        new: From a metric's name and a label to the metric's values along ``draw``.
        baseline: From a metric's name to the baseline's.

    Returns:
        Over metric × ``dim``: ``value``, ``low``, ``high`` of the relative delta (a share of the baseline:
        P1 Fig. 4), ``delta`` with ``delta_low`` and ``delta_high``, ``instability`` with its bounds, and
        ``baseline`` (over metric).
    """
    import xarray as xr

    metric = xr.Variable("metric", list(METRICS))
    names = xr.Variable(dim, list(labels))
    values = xr.concat(
        [xr.concat([new(name, label) for label in labels], dim=names) for name in METRICS], dim=metric
    )
    base = xr.concat([baseline(name) for name in METRICS], dim=metric)
    found = study.interval(relative(base, values))
    for name, part in (
        ("delta", study.interval(base - values)),
        ("instability", study.metric_interval(values)),
    ):
        found[name], found[f"{name}_low"], found[f"{name}_high"] = part["value"], part["low"], part["high"]
    first = base.isel(draw=0, drop=True)
    because = _because(found["instability"], xr.where(first == 0, NOTHING_TO_COMPARE, ""))
    return found.assign(baseline=first, reason=because.where(found["value"].isnull(), ""))


def _because(values: xr.DataArray, otherwise: xr.DataArray) -> xr.DataArray:
    """Why values are undefined; ``otherwise`` where they are defined."""
    return otherwise.where(values.notnull(), NO_VALUE)


def relative(baseline: xr.DataArray, new: xr.DataArray) -> xr.DataArray:
    """(baseline − new) / baseline; undefined where the baseline is 0."""
    return (baseline - new) / baseline.where(baseline != 0)


def require(study: Study, factors: int) -> None:
    """Raise `NotAllowed` unless so many factors are varied."""
    if len(study.varied) < factors:
        varied = ", ".join(study.varied) or "none"
        need = "at least one factor with two levels" if factors == 1 else f"{factors} factors with two levels"
        raise NotAllowed(f"takes {need} or more; varied here: {varied}")


def one_at_a_time(study: Study, metric: str, settings: Settings) -> xr.DataArray:
    """Instability within one level, one other factor varied at a time: along ``draw``; see `levels`."""
    import xarray as xr

    (fixed,) = settings
    others = [factor for factor in study.varied if factor != fixed]
    # The very lines of Fig. 4, those with this level.
    lines = [study.metric(metric, factor).sel({fixed: settings[fixed]}) for factor in others]
    means = [line.mean([dim for dim in line.dims if dim != "draw"], skipna=True) for line in lines]
    return xr.concat(means, dim="varied").mean("varied")
