"""The numbers of an experiment by factor level, category or persona group: what `summarize --by` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from persona_mlflow.analyses.entry import Entry, Finding
from persona_mlflow.analyses.overview import overview
from persona_mlflow.analyses.study import METRICS, Study, level_label
from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import xarray as xr

QUANTITIES = (
    "accuracy/mean",
    "accuracy/std",
    "instability/accuracy",
    "instability/outcome",
    "instability/question",
    "parse_errors/rate",
)
"""As they are logged on a parent run."""

SHORT = dict(zip(QUANTITIES, ("accuracy", "sd over runs", "I_A", "I_O", "I_Q", "unparsed"), strict=True))
"""What the head of a table calls them."""


def breakdown(study: Study, by: str | None = None, over: Sequence[str] | None = None) -> xr.Dataset:
    """Accuracy, the instabilities and the unparsed rate, by what ``by`` names.

    Args:
        study: The experiment.
        by: A factor (the settings with each of its levels), ``category``, ``persona-group``, or None for the
            whole experiment.
        over: The factors to vary, or ``persona``; by default all factors but ``by``. The instabilities are
            averaged over the levels of the others.

    Returns:
        Over level × quantity (`QUANTITIES`): ``value``, ``low``, ``high`` as fractions, ``reason`` where a
        value is undefined; and ``questions`` and ``runs`` over level.

    Raises:
        UserError: ``by`` or ``over`` names nothing that the grid has, or both name the same.
    """
    import xarray as xr

    parts = _parts(study, by)
    varied = _varied(study, by, over)
    columns = []
    for where in parts.values():
        accuracy = study.accuracy(where.get("category")).isel(persona=study.members(where.get("group")))
        accuracy = accuracy.sel({name: list(levels) for name, levels in where.get("settings", {}).items()})
        runs = [dim for dim in accuracy.dims if dim != "draw"]
        draws = [
            accuracy.mean(runs),
            accuracy.std(runs),
            *(study.average(metric, varied, **where) for metric in METRICS),
            study.share(study.unparsed, **where),
        ]
        found = xr.concat(
            [
                study.interval(values, (0.0, float("inf") if name == "instability/outcome" else 1.0))
                for name, values in zip(QUANTITIES, draws, strict=True)
            ],
            dim=xr.Variable("quantity", list(QUANTITIES)),
        )
        because = ["", "", *(study.undefined(m, varied, where.get("settings")) for m in METRICS), ""]
        reason = xr.DataArray(because, dims="quantity").where(found["value"].isnull(), "")
        count = accuracy.isel(draw=0).size
        columns.append(
            found.assign(reason=reason, questions=study.questions(where.get("category")), runs=count)
        )
    return xr.concat(columns, dim=xr.Variable("level", list(parts)))


def entry(by: str | None, over: Sequence[str] | None) -> Entry:
    """How a breakdown is laid out as a table."""
    what = f"by {by}" if by else "of the whole experiment"
    varied = f"; varied: {', '.join(over)}, averaged over the other factors" if over else ""
    return Entry(
        key="summary",
        reference="P1 §3",
        title="Accuracy and instability",
        caption=f"Accuracy, the instabilities and the unparsed rate {what}, as fractions of 1{varied}.",
        compute=overview,
        rows=("model", "level") if by else ("model",),
        columns=("quantity",),
    )


def for_display(finding: Finding) -> Finding:
    """The finding with the short names of the quantities."""
    data = finding.data
    if data is None or "quantity" not in data.dims:
        return finding
    names = [SHORT.get(name, name) for name in data["quantity"].values.tolist()]
    return replace(finding, data=data.assign_coords(quantity=names))


def _parts(study: Study, by: str | None) -> dict[str, dict[str, Any]]:
    if by is None:
        return {"all": {}}
    if by == "category":
        return {name: {"category": name} for name in study.categories}
    if by == "persona-group":
        return {name: {"group": name} for name in study.groups}
    if by not in study.factors:
        raise UserError(f"--by {by}: {choices(by, (*study.factors, 'category', 'persona-group'))}")
    return {level_label(by, level): {"settings": {by: [level]}} for level in study.levels(by)}


def _varied(study: Study, by: str | None, over: Sequence[str] | None) -> tuple[str, ...]:
    if over is None:
        return tuple(name for name in study.factors if name != by)
    for name in over:
        if name == by:
            raise UserError(f"--over {name}: is held fixed by --by {by}; vary another factor")
        if name not in (*study.factors, "persona"):
            raise UserError(f"--over {name}: {choices(name, (*study.factors, 'persona'))}")
    return tuple(name for name in ("persona", *study.factors) if name in over)
