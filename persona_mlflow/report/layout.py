"""How a figure's rows, columns and panels are placed: label columns, wrapped headings, panels on lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.report.drawing import INK, LABEL, LEADING, LINE, PAGE, Canvas, short_number, widest, wrap
from persona_mlflow.report.tables import arrange, heading, label, labels, level_names, matrix, spans

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.analyses.entry import Entry

GAP = 24.0
"""Between panels, in px."""
PAD = 8.0
OUTER, INNER = 130.0, 230.0
"""The most px that an outer and an inner row label may take."""
MANY, LONG = 30, 290.0
"""From so many rows or columns on, their labels are one line, which may be so long."""


@dataclass(frozen=True)
class Panel:
    """One panel: its title, and the variables as rows × columns."""

    title: str
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Grid:
    """What a figure shows: equal rows and columns in one panel or several."""

    rows: list[tuple[str, ...]]
    columns: list[tuple[str, ...]]
    row_names: list[str]
    column_names: list[str]
    panels: list[Panel]


def split(entry: Entry, data: xr.Dataset, variables: Sequence[str]) -> Grid:
    """Split a finding's data into panels.

    Args:
        entry: Says which dims become rows and columns, and which one the panels.
        data: The finding's data.
        variables: Those that the figure needs; the ones that the data lacks are left out.
    """
    names = [name for name in variables if name in data and set(data[name].dims) <= set(data["value"].dims)]
    rows, columns = arrange(entry, data)
    dim = entry.panels if entry.panels in data["value"].dims else None
    if dim is None:
        parts = [("", data)]
    else:
        coordinates = data[dim].values.tolist() if dim in data.coords else list(range(data.sizes[dim]))
        parts = [(label(value, dim), data.isel({dim: i})) for i, value in enumerate(coordinates)]
    rows = [name for name in rows if name != dim]
    columns = [name for name in columns if name != dim]
    if not rows and not columns and dim != "model" and "model" in data["value"].dims:
        rows = ["model"]  # a lone number is the model's
    nothing: list[tuple[str, ...]] = [("",)]
    row_labels = labels(data, rows) if rows else nothing
    column_labels = labels(data, columns) if columns else nothing
    panels = [
        Panel(title, {name: matrix(part, name, rows, columns) for name in names}) for title, part in parts
    ]
    row_names, column_names = (
        [heading(name) for dim in dims for name in level_names(data, dim)] for dims in (rows, columns)
    )
    return Grid(row_labels, column_labels, row_names, column_names, panels)


def lines_height(lines: int, size: float = LABEL) -> float:
    """Height in px of so many lines of text."""
    return lines * size * LEADING


@dataclass(frozen=True)
class RowLabels:
    """The labels left of a figure's rows: the outermost level once per block, the others joined.

    Attributes:
        outer: Label and number of rows of each block; empty where rows have one level.
        inner: The wrapped label of each row.
        outer_width: In px, with its padding.
        inner_width: In px, with its padding.
        height: The least height of a row in px.
    """

    outer: list[tuple[str, int]]
    inner: list[list[str]]
    outer_width: float
    inner_width: float
    height: float

    @classmethod
    def measure(cls, rows: Sequence[tuple[str, ...]], least: float = 21.0) -> RowLabels:
        """Wrap the labels and see how much room they take."""
        outer = spans(tuple(rows), 0) if len(rows[0]) > 1 else []
        span = max((count for _, count in outer), default=len(rows))
        width, lines = (LONG, 1) if span >= MANY else (INNER, 2)
        inner = [wrap(" · ".join(row[1:] if outer else row), width, LABEL, lines) for row in rows]
        height = max(least, lines_height(max(map(len, inner))) + (6 if lines > 1 else 1))
        outer_width = 0.0
        if outer:
            wrapped = [wrap(text, OUTER, LABEL, _fit(span, height), bold=True) for text, span in outer]
            outer_width = max(widest(lines, LABEL, bold=True) for lines in wrapped) + 2 * PAD
        inner_width = max(widest(lines, LABEL) for lines in inner) + PAD + 2
        return cls(outer, inner, outer_width, inner_width if inner_width > PAD + 2 else 0.0, height)

    @property
    def width(self) -> float:
        """All of it, in px."""
        return self.outer_width + self.inner_width

    def draw(self, canvas: Canvas, x: float, y: float, height: float, right: float) -> None:
        """Write the labels, the rows beginning at a height; a line to `right` parts the blocks."""
        for i, lines in enumerate(self.inner):
            canvas.text(x + self.width - PAD, y + (i + 0.5) * height, lines, align="right")
        top = y
        for i, (text, span) in enumerate(self.outer):
            bottom = top + span * height
            lines = wrap(text, self.outer_width - 2 * PAD + 0.5, LABEL, _fit(span, height), bold=True)
            canvas.text(x, (top + bottom) / 2, lines, bold=True)
            if i:
                canvas.segments(np.array([x, top]), np.array([right, top]), LINE)
            top = bottom


def _fit(span: int, height: float) -> int:
    return max(1, int(span * height // (LABEL * LEADING)))


def panels_per_line(panels: int, left: float, width: float) -> int:
    """How many panels of a width stand side by side on the page, right of the row labels; at least one."""
    fit = int((PAGE - left + GAP) // (width + GAP))
    return max(1, min(panels, fit))


def draw_title(canvas: Canvas, x: float, y: float, lines: Sequence[str], size: float) -> None:
    """Write a panel's title, its block beginning at a height."""
    canvas.text(x, y + lines_height(len(lines), size) / 2, lines, size=size, bold=True, colour=INK)


def extremes(words: str, grid: Grid, formats: Sequence[str]) -> str:
    """A figure in words, for whoever cannot see it: an opening, and each panel's highest and lowest value."""
    parts = [words]
    for panel, spec in zip(grid.panels, formats, strict=True):
        values = panel.values["value"]
        opening = f"{panel.title}: " if panel.title else ""
        if not np.isfinite(values).any():
            parts.append(f"{opening}undefined throughout.")
            continue
        ends = []
        for word, position in (("highest", np.nanargmax(values)), ("lowest", np.nanargmin(values))):
            i, j = np.unravel_index(int(position), values.shape)
            where = ", ".join(filter(None, (*grid.rows[i], *grid.columns[j])))
            number = short_number(float(values[i, j]), spec)
            ends.append(f"{word} {number} at {where}" if where else f"{word} {number}")
        parts.append(f"{opening}{'; '.join(ends)}.")
    return " ".join(parts)
