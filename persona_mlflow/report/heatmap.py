"""Heatmaps: a panel per metric, every cell with its number where there is room for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.report.drawing import (
    EMPTY,
    INK,
    LABEL,
    LINE,
    MUTED,
    PAGE,
    PAPER,
    SMALL,
    TITLE,
    Canvas,
    number_format,
    short_number,
    text_width,
    widest,
    wrap,
)
from persona_mlflow.report.layout import (
    GAP,
    LONG,
    MANY,
    Grid,
    RowLabels,
    draw_title,
    extremes,
    lines_height,
    panels_per_line,
    split,
)
from persona_mlflow.report.tables import spans

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding

COLOURS = "cividis"
MOST_NUMBERS = 16
"""The most columns whose cells carry numbers."""
DENSE = 900
"""From so many cells on, a panel is one image of a pixel per cell."""
BAR = 150.0
UPRIGHT = 170.0
WIDE_CELL = 104.0


@dataclass(frozen=True)
class _Head:
    """The labels above the columns, and how wide they make a cell."""

    upright: bool
    inner: list[list[str]]
    outer: list[tuple[list[str], int]]
    cell: float
    inner_height: float

    @property
    def outer_height(self) -> float:
        """Room for the outer labels and the line below them, in px."""
        return max((lines_height(len(lines)) + 12 for lines, _ in self.outer), default=0.0)


def draw_heatmap(finding: Finding) -> Canvas:
    """Draw a finding's values; each panel has its own scale, which stands below it."""
    entry, data = finding.entry, finding.data
    assert data is not None
    grid = split(entry, data, ("value",))
    unit = str(data["value"].attrs.get("unit", entry.unit))
    formats = [number_format(panel.values["value"], unit) for panel in grid.panels]
    numbers = len(grid.columns) <= MOST_NUMBERS and len(grid.rows) * len(grid.columns) <= DENSE
    rows = RowLabels.measure(grid.rows, 21.0 if numbers or len(grid.rows) < MANY else 15.0)
    head, per_line = _choose(grid, formats, rows.width, numbers)
    cell = head.cell
    slot = max(cell * len(grid.columns), BAR)
    titles = [wrap(panel.title, slot, TITLE, bold=True) if panel.title else [] for panel in grid.panels]
    title_height = max((lines_height(len(lines), TITLE) for lines in titles), default=0.0)
    top = title_height + (8 if title_height else 0) + head.outer_height + head.inner_height + 6
    body = rows.height * len(grid.rows)
    line_height = top + body + 44 + GAP
    lines = -(-len(grid.panels) // per_line)
    width = max(rows.width + per_line * (slot + GAP) - GAP, 360.0)
    canvas = Canvas(width + 2, lines * line_height - GAP + 28)
    canvas.alt = extremes(f"Heatmap of {_shape(grid)}, unit {unit}.", grid, formats)
    for i, panel in enumerate(grid.panels):
        x = rows.width + (i % per_line) * (slot + GAP)
        y = (i // per_line) * line_height + 2
        if i % per_line == 0:
            rows.draw(canvas, 0, y + top, rows.height, width)
        draw_title(canvas, x, y, titles[i], TITLE)
        _draw_head(canvas, head, x, y + top)
        scale = _scale(panel.values["value"])
        _draw_cells(
            canvas, panel.values["value"], (x, y + top, cell, rows.height), scale, formats[i], numbers
        )
        _draw_bar(canvas, x, y + top + body + 10, scale, formats[i], unit)
    words = f"Brighter: {entry.brighter}." if entry.brighter else "Brighter: higher."
    canvas.text(0, canvas.height - 12, words, colour=MUTED)
    return canvas


# ---------------------------------------------------------------------------------------------------- columns


def _choose(grid: Grid, formats: list[str], left: float, numbers: bool) -> tuple[_Head, int]:
    """Column labels that lie or that stand, whichever puts more panels side by side."""
    least = 16.0
    if numbers:
        texts = [
            short_number(value, spec)
            for panel, spec in zip(grid.panels, formats, strict=True)
            for value in panel.values["value"].ravel()
        ]
        least = max(text_width(text, SMALL) for text in texts) + 12
    count, panels = len(grid.columns), len(grid.panels)
    lying, standing = _lying(grid, least), _standing(grid, least)
    fits = [panels_per_line(panels, left, max(head.cell * count, BAR)) for head in (lying, standing)]
    wide = left + lying.cell * count > PAGE
    head, per_line = (standing, fits[1]) if fits[1] > fits[0] or wide else (lying, fits[0])
    # What is left of the line goes to the cells.
    spare = (PAGE - left + GAP) / per_line - GAP
    grown = min(spare / count, WIDE_CELL)
    if grown > head.cell and numbers:
        head = _standing(grid, grown) if head.upright else _lying(grid, grown)
    return head, per_line


def _inner_labels(grid: Grid) -> list[str]:
    return [" · ".join(column[1:] if len(column) > 1 else column) for column in grid.columns]


def _lying(grid: Grid, least: float) -> _Head:
    texts = _inner_labels(grid)
    longest = max(
        (text_width(word, LABEL) for text in texts for word in re.split(r"\s|(?<=[-/_])", text)), default=0.0
    )
    width = max(least - 8, min(longest, 96.0))
    inner = [wrap(text, width, LABEL, 4) for text in texts]
    cell = max(least, max(widest(lines, LABEL) for lines in inner) + 8)
    height = lines_height(max(map(len, inner))) if any(texts) else 0.0
    return _Head(False, inner, _outer_labels(grid, cell), cell, height)


def _standing(grid: Grid, least: float) -> _Head:
    width, lines = (LONG, 1) if len(grid.columns) >= MANY else (UPRIGHT, 2)
    inner = [wrap(text, width, LABEL, lines) for text in _inner_labels(grid)]
    cell = max(least, lines_height(max(map(len, inner))) + 3)
    height = max(widest(lines, LABEL) for lines in inner)
    return _Head(True, inner, _outer_labels(grid, cell), cell, height)


def _outer_labels(grid: Grid, cell: float) -> list[tuple[list[str], int]]:
    if len(grid.columns[0]) < 2:
        return []
    return [
        (wrap(text, span * cell - 6, LABEL, 3, bold=True), span)
        for text, span in spans(tuple(grid.columns), 0)
    ]


def _draw_head(canvas: Canvas, head: _Head, x: float, y: float) -> None:
    for j, lines in enumerate(head.inner):
        middle = x + (j + 0.5) * head.cell
        if head.upright:
            canvas.text(middle, y - 4, lines, upright=True)
        else:
            canvas.text(middle, y - 4 - lines_height(len(lines)) / 2, lines, align="center")
    start = x
    base = y - head.inner_height - 8
    for lines, span in head.outer:
        end = start + span * head.cell
        canvas.text(
            (start + end) / 2, base - lines_height(len(lines)) / 2 - 3, lines, align="center", bold=True
        )
        canvas.segments(np.array([start + 3, base]), np.array([end - 3, base]), LINE)
        start = end


# ------------------------------------------------------------------------------------------------------ cells


def _scale(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)


def _colours(values: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    from matplotlib import colormaps

    low, high = scale
    spread = high - low
    share = (values - low) / spread if spread > 0 else np.full(values.shape, 0.5)
    return np.asarray(colormaps[COLOURS](np.nan_to_num(share, nan=0.0)))


def _draw_cells(
    canvas: Canvas,
    values: np.ndarray,
    place: tuple[float, float, float, float],
    scale: tuple[float, float],
    spec: str,
    numbers: bool,
) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    x, y, width, height = place
    rows, columns = values.shape
    defined = np.isfinite(values)
    colours = _colours(values, scale)
    left = x + np.arange(columns) * width
    top = y + np.arange(rows) * height
    corners = np.stack(
        [
            np.stack(np.broadcast_arrays(left + dx, (top + dy)[:, None]), axis=-1)
            for dx, dy in ((0, 0), (width, 0), (width, height), (0, height))
        ],
        axis=2,
    ).reshape(-1, 4, 2)
    dense = values.size > DENSE
    colours[~defined] = to_rgba(EMPTY)
    cells = PolyCollection(
        list(corners),
        facecolors=colours.reshape(-1, 4),
        edgecolors="face" if dense else PAPER,
        linewidths=0.25 if dense else 0.75,
        zorder=1,
    )
    canvas.axes.add_collection(cells, autolim=False)
    if dense:
        colours[~defined] = 0  # the paper shows through
        image = canvas.axes.imshow(
            (colours * 255).round().astype(np.uint8),
            extent=(x, x + columns * width, y + rows * height, y),
            interpolation="none",
            aspect="auto",
            zorder=1,
        )
        canvas.axes.set(xlim=(0, canvas.width), ylim=(canvas.height, 0))
        canvas.either(svg=image, png=cells)
    if not numbers:
        return
    for i, j in np.ndindex(rows, columns):
        colour = _contrast(colours[i, j]) if defined[i, j] else INK
        text = short_number(float(values[i, j]), spec)
        canvas.text(
            x + (j + 0.5) * width, y + (i + 0.5) * height, text, size=SMALL, colour=colour, align="center"
        )


def _contrast(colour: np.ndarray) -> str:
    """Black or white, whichever stands out more (WCAG 2.2, relative luminance)."""
    parts = np.asarray(colour[:3])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ np.array([0.2126, 0.7152, 0.0722]))
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def _draw_bar(canvas: Canvas, x: float, y: float, scale: tuple[float, float], spec: str, unit: str) -> None:
    """The colour bar: dark at the lowest, bright at the highest value of the panel; its unit below."""
    from matplotlib.collections import PolyCollection

    low, high = scale
    if not np.isfinite(low):
        canvas.text(x, y + 8, "undefined throughout", size=SMALL, colour=MUTED)
        return
    steps = 48
    edges = np.linspace(x, x + BAR, steps + 1)
    corners = [[(a, y), (b, y), (b, y + 8), (a, y + 8)] for a, b in pairwise(edges)]
    if high > low:
        faces = _colours(np.linspace(0, 1, steps), (0.0, 1.0))
    else:
        faces = _colours(np.full(steps, low), scale)
    bar = PolyCollection(corners, facecolors=faces, edgecolors="face", linewidths=0.4, zorder=1)
    canvas.axes.add_collection(bar, autolim=False)
    ends = (short_number(low, spec), short_number(high, spec))
    if ends[0] != ends[1]:
        canvas.text(x, y + 17, ends[0], size=SMALL)
        canvas.text(x + BAR, y + 17, ends[1], size=SMALL, align="right")
    else:
        canvas.text(x + BAR / 2, y + 17, ends[0], size=SMALL, align="center")
    canvas.text(x + BAR / 2, y + 30, unit, size=SMALL, colour=MUTED, align="center")


def _shape(grid: Grid) -> str:
    names = " and ".join(grid.row_names), " and ".join(grid.column_names)
    return " by ".join(filter(None, names)) or "one value"
