"""What an analysis is to the report: its function, and how its result is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.analyses.study import Study

FigureKind = Literal["heatmap", "intervals", "distribution"]


@dataclass(frozen=True)
class Entry:
    """One analysis of the papers, or of ours.

    Attributes:
        key: Names its files and its place on the page, e.g. ``single-factor``.
        reference: Where it comes from: ``P1 Fig. 4``, or ``beyond the paper``.
        title: A headline in plain words.
        caption: What is shown, how it was computed, and in which unit.
        compute: The analysis. Returns ``value``, ``low`` and ``high`` and perhaps more over labelled dims.
        rows: The dims that become rows of the table and of the figure, the outermost first; ``model`` is put
            before them, or among the columns if `columns` names it.
        columns: The dims that become columns.
        figure: How it is drawn; None where the table says it all.
        brighter: What a brighter cell of a heatmap means, e.g. ``more stable``.
        unit: ``fraction``, ``share``, ``ranks``, ``percent`` … as the axis calls it.
        show: Further variables that the table shows beside the value, as variable → heading.
        panels: The dim that gives a figure its panels.
    """

    key: str
    reference: str
    title: str
    caption: str
    compute: Callable[[Study], xr.Dataset]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    figure: FigureKind | None = None
    brighter: str = ""
    unit: str = "fraction"
    show: Mapping[str, str] = field(default_factory=dict)
    panels: str = "metric"


@dataclass(frozen=True, eq=False)
class Finding:
    """What an analysis found in one or several models.

    Attributes:
        entry: The analysis.
        data: Its results along a first dim ``model``, of the models whose grids allow it; None if none does.
        reasons: Model → why its grid does not allow it.
        notes: Model → what a reader of its numbers must know, e.g. levels that the grid lacks.
    """

    entry: Entry
    data: xr.Dataset | None
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
