"""In which domain, and for whom: question categories and persona groups (P1 Fig. 5, 8 and 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persona_mlflow.analyses.factors import deltas, require, single_factor
from persona_mlflow.analyses.study import METRICS, NotAllowed, Study

if TYPE_CHECKING:
    import xarray as xr


def by_category(study: Study) -> xr.Dataset:
    """Instability within each question category (P1 Fig. 5).

    Returns:
        As `persona_mlflow.analyses.factors.deltas` gives it, over metric × category, against all questions.

    Raises:
        NotAllowed: No factor is varied, or there is one category.
    """
    require(study, 1)
    _require_categories(study)
    return deltas(
        study,
        "category",
        study.categories,
        lambda metric, name: study.average(metric, category=name),
        study.average,
    )


def by_group(study: Study) -> xr.Dataset:
    """Instability within each persona group and sub-group (P1 Fig. 5).

    Ranks R(p;s) and weights w(s) are recomputed among the group's personas, so that I_O of groups of
    different sizes is on different scales: there are more ranks to move over in a large group.

    Returns:
        As `persona_mlflow.analyses.factors.deltas` gives it, over metric × group, against all personas.

    Raises:
        NotAllowed: No factor is varied, or there is one group.
    """
    require(study, 1)
    _require_groups(study)
    return deltas(
        study,
        "group",
        list(study.groups),
        lambda metric, name: study.average(metric, group=name),
        study.average,
    )


def factors_by_category(study: Study) -> xr.Dataset:
    """Single-factor instability within each question category (P1 Fig. 11): metric × category × factor.

    Each category's own baseline is what its deltas are taken from.

    Raises:
        NotAllowed: As `by_category`.
    """
    import xarray as xr

    require(study, 1)
    _require_categories(study)
    parts = [single_factor(study, category=name) for name in study.categories]
    return xr.concat(parts, dim=xr.Variable("category", list(study.categories)))


def factors_by_group(study: Study) -> xr.Dataset:
    """Single-factor instability within each persona group (P1 Fig. 11): metric × group × factor.

    Raises:
        NotAllowed: As `by_group`.
    """
    import xarray as xr

    require(study, 1)
    _require_groups(study)
    parts = [single_factor(study, group=name) for name in study.groups]
    return xr.concat(parts, dim=xr.Variable("group", list(study.groups)))


def subgroups_by_category(study: Study) -> xr.Dataset:
    """Instability of occupation sub-groups in each question category (P1 Fig. 8).

    Returns:
        Over metric × sub-group × category: the relative delta against the sub-group's instability over all
        questions.

    Raises:
        NotAllowed: There is no sub-group, one category, or no varied factor.
    """
    import xarray as xr

    require(study, 1)
    _require_categories(study)
    if not study.subgroups:
        raise NotAllowed("takes persona sub-groups, such as the occupations' in the shipped personas file")

    def one(group: str) -> xr.Dataset:
        return deltas(
            study,
            "category",
            study.categories,
            lambda metric, name: study.average(metric, category=name, group=group),
            lambda metric: study.average(metric, group=group),
        )

    parts = [one(group) for group in study.subgroups]
    names = [name.rpartition(" · ")[2] for name in study.subgroups]
    if len(set(names)) < len(names):  # sub-groups of two groups can be called alike
        names = list(study.subgroups)
    return xr.concat(parts, dim=xr.Variable("subgroup", names))


def across_personas(study: Study) -> xr.Dataset:
    """Instability across personas: persona varies within a setting; mean over settings (P1 Fig. 7).

    I_O ranks the personas, so there is none across them.

    Returns:
        Over metric (accuracy, question) × group (``all personas`` and each group): ``value``, ``low`` and
        ``high`` as fractions.

    Raises:
        NotAllowed: There is one persona.
    """
    import xarray as xr

    if len(study.personas) < 2:
        raise NotAllowed("takes at least two personas")
    names = {"all personas": None, **{name: name for name in study.groups if len(study.members(name)) > 1}}
    group = xr.Variable("group", list(names))
    metrics = [metric for metric in METRICS if metric != "outcome"]
    draws = [
        xr.concat([study.average(metric, "persona", group=name) for name in names.values()], dim=group)
        for metric in metrics
    ]
    found = study.interval(xr.concat(draws, dim=xr.Variable("metric", metrics)), (0.0, 1.0))
    return found.assign(reason=xr.where(found["value"].isnull(), "no question is right in any setting", ""))


def _require_categories(study: Study) -> None:
    if len(study.categories) < 2:
        raise NotAllowed(f"takes at least two question categories; here: {study.categories[0]}")


def _require_groups(study: Study) -> None:
    if len(study.groups) < 2:
        raise NotAllowed(f"takes personas of at least two groups; here: {next(iter(study.groups))}")
