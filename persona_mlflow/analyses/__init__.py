"""Every table and figure of P1, and what it lacks: intervals, chance, shares of variance, recommendations.

An analysis is a function from a `Study` to a labelled dataset; `catalogue.CATALOGUE` lists them in the order
of a report, with what a table or figure of them needs. `run_analyses` runs them on one or several models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from persona_mlflow.analyses.entry import Entry, Finding
from persona_mlflow.analyses.study import NotAllowed, Study

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Entry", "Finding", "NotAllowed", "Study", "run_analyses"]


def run_analyses(
    studies: Mapping[str, Study],
    *,
    entries: Sequence[Entry] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Run the analyses on one or several models.

    Args:
        studies: Model → its study.
        entries: The analyses; all of the catalogue by default.
        progress: Called with each analysis' title, after the model's name where there are several, before
            it starts.

    Returns:
        A finding for each analysis, in order. Where a model's grid does not allow one, the finding says why.
    """
    from persona_mlflow.analyses.catalogue import CATALOGUE
    from persona_mlflow.analyses.claims import ENTRY, check_claims

    wanted = CATALOGUE if entries is None else entries
    results: list[dict[str, xr.Dataset | NotAllowed]] = [{} for _ in wanted]
    # Model by model, so that the draws of one at a time are in memory.
    for model, study in studies.items():
        for entry, result in zip(wanted, results, strict=True):
            if progress:
                progress(f"{model}: {entry.title}" if len(studies) > 1 else entry.title)
            try:
                result[model] = entry.compute(study)
            except NotAllowed as error:
                result[model] = error
        study.release()
    findings = [_finding(entry, result) for entry, result in zip(wanted, results, strict=True)]
    if entries is None:
        if progress:
            progress(ENTRY.title)
        findings.insert(1, Finding(ENTRY, check_claims(studies)))
    return findings


def _finding(entry: Entry, results: Mapping[str, xr.Dataset | NotAllowed]) -> Finding:
    found = {model: data for model, data in results.items() if not isinstance(data, NotAllowed)}
    reasons = {model: str(error) for model, error in results.items() if isinstance(error, NotAllowed)}
    notes = {model: data.attrs["note"] for model, data in found.items() if data.attrs.get("note")}
    return Finding(entry, join_models(found), reasons, notes)


def join_models(found: Mapping[str, xr.Dataset]) -> xr.Dataset | None:
    """Put results of several models along a first dim ``model``; labels that a model lacks are NaN there.

    Labels keep the order of the first model that has them, as an outer join by xarray would not.
    """
    if not found:
        return None
    import xarray as xr

    labels: dict[str, list[object]] = {}
    for data in found.values():
        for dim in data.dims:
            known = labels.setdefault(str(dim), [])
            known += [label for label in data[dim].values.tolist() if label not in known]
    uneven = any(data.sizes[dim] < len(known) for data in found.values() for dim, known in labels.items())
    aligned = [_reindexed(data, labels, uneven) for data in found.values()]
    return xr.concat(aligned, dim=xr.Variable("model", list(found)), join="exact")


def _reindexed(data: xr.Dataset, labels: Mapping[str, list[object]], reasons: bool) -> xr.Dataset:
    """A result over all labels in their order: where it has none, no number, and the reason for that."""
    import xarray as xr

    if reasons and "reason" not in data:
        data = data.assign(reason=xr.full_like(data["value"], "", dtype=object))
    if all(data[dim].values.tolist() == known for dim, known in labels.items()):
        return data.drop_attrs()
    empty: dict[str, object] = {"U": "", "O": "", "b": False}
    fill = {str(name): empty.get(array.dtype.kind, float("nan")) for name, array in data.data_vars.items()}
    return data.reindex(labels, fill_value={**fill, "reason": "not in this model's grid"}).drop_attrs()
