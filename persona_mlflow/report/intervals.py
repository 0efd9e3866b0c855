"""Points with their intervals: a row per label, a panel per metric, a tick for what chance would give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.report.drawing import (
    FLOOR,
    INK,
    LABEL,
    MARKERS,
    MUTED,
    PAGE,
    SERIES,
    SMALL,
    TITLE,
    Canvas,
    number_format,
    short_number,
    text_width,
    wrap,
)
from persona_mlflow.report.layout import (
    GAP,
    Grid,
    RowLabels,
    draw_title,
    extremes,
    lines_height,
    panels_per_line,
    split,
)

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding

NARROW, WIDE = 230.0, 420.0
"""The least and the most px of a panel."""
AXIS = 38.0
MARGIN = 14.0
"""Right of the last panel, for the half of its last number."""
CHANCE = ("floor", "chance", "expected")
"""The variables that a tick stands for, the first that is there."""


class Axis:
    """A linear axis: round numbers as ticks, as many as have room.

    Args:
        values: All that is to be shown; undefined ones count for nothing.
        start: Where the axis begins, in px.
        width: In px.
        nought: Begin at 0 where the lowest value is not far from it.
    """

    def __init__(self, values: np.ndarray, start: float, width: float, nought: bool = True) -> None:
        from matplotlib.ticker import MaxNLocator

        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if high - low < 1e-9 * max(1.0, abs(high)):
            low, high = low - 0.05 * max(abs(low), 0.1), high + 0.05 * max(abs(high), 0.1)
        if nought and 0 < low < 0.4 * high:
            low = 0.0  # so near to nought that leaving it out would mislead
        margin = 0.04 * (high - low)
        low, high = (low if low == 0 else low - margin), high + margin
        for most in range(max(2, int(width // 55)), 0, -1):
            ticks = [
                t
                for t in MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
                if low <= t <= high
            ]
            self.texts = _tick_texts(ticks)
            room = width / max(len(ticks), 1)
            if all(text_width(text, SMALL) + 8 < room for text in self.texts):
                break
        self._low, self._scale, self._start = low, width / (high - low), start
        self.ticks = np.asarray(ticks)

    def __call__(self, values: np.ndarray | float) -> np.ndarray:
        """Where values are, in px."""
        return np.asarray(self._start + (np.asarray(values) - self._low) * self._scale)


def _tick_texts(ticks: list[float]) -> list[str]:
    step = min(np.diff(ticks), default=1.0)
    decimals = next((n for n in range(7) if abs(round(step, n) - step) < 1e-9 * max(step, 1e-9)), 7)
    return [short_number(float(tick), f".{decimals}f") for tick in ticks]


def draw_intervals(finding: Finding) -> Canvas:
    """Draw each value as a point with its interval; several columns become series of the same row."""
    entry, data = finding.entry, finding.data
    assert data is not None
    grid = split(entry, data, ("value", "low", "high", *CHANCE))
    if len(grid.columns) > len(SERIES):
        grid = _stack(grid)
    unit = str(data["value"].attrs.get("unit", entry.unit))
    series = len(grid.columns)
    rows = RowLabels.measure(grid.rows, 22.0 if series == 1 else 8.0 + 11.0 * series)
    per_line = panels_per_line(len(grid.panels), rows.width, NARROW)
    slot = min(WIDE if per_line > 1 else 720.0, (PAGE - MARGIN - rows.width + GAP) / per_line - GAP)
    titles = [wrap(panel.title, slot, TITLE, bold=True) if panel.title else [] for panel in grid.panels]
    top = max((lines_height(len(lines), TITLE) for lines in titles), default=0.0) + 8
    body = rows.height * len(grid.rows)
    line_height = top + body + AXIS + GAP
    lines = -(-len(grid.panels) // per_line)
    width = max(rows.width + per_line * (slot + GAP) - GAP + MARGIN, 420.0)
    legend = _legend_items(grid)
    legend_lines = _flow([text for *_, text in legend], width)
    canvas = Canvas(width, lines * line_height - GAP + 20 * (1 + max(legend_lines[1:], default=0)), "")
    words = f"Points with intervals, a row per {' and '.join(grid.row_names) or 'value'}, unit {unit}."
    canvas.alt = extremes(words, grid, [number_format(panel.values["value"], unit) for panel in grid.panels])
    for i, panel in enumerate(grid.panels):
        x, y = rows.width + (i % per_line) * (slot + GAP), (i // per_line) * line_height + 2
        if i % per_line == 0:
            rows.draw(canvas, 0, y + top, rows.height, width - MARGIN)
        draw_title(canvas, x, y, titles[i], TITLE)
        axis = Axis(np.concatenate([v.ravel() for v in panel.values.values()]), x + 6, slot - 12)
        _draw_frame(canvas, axis, (x, y + top, slot, body), len(grid.rows), unit)
        pitch = rows.height / (series + 1)
        for j in range(series):
            centres = y + top + np.arange(len(grid.rows)) * rows.height + (j + 1) * pitch
            _draw_series(
                canvas,
                axis,
                {k: v[:, j] for k, v in panel.values.items()},
                centres,
                j,
                slot,
                rows.height / (series + 1),
            )
    _draw_legend(canvas, legend, legend_lines)
    return canvas


def _stack(grid: Grid) -> Grid:
    """Too many series to tell apart: each becomes a row."""
    from persona_mlflow.report.layout import Panel

    rows = [tuple(text for text in (*row, *column) if text) for row in grid.rows for column in grid.columns]
    panels = [
        Panel(panel.title, {name: values.reshape(-1, 1) for name, values in panel.values.items()})
        for panel in grid.panels
    ]
    return Grid(rows, [("",)], grid.row_names + grid.column_names, [], panels)


def _draw_frame(
    canvas: Canvas, axis: Axis, place: tuple[float, float, float, float], rows: int, unit: str
) -> None:
    x, y, width, height = place
    at = axis(axis.ticks)
    canvas.segments(np.stack([at, np.full_like(at, y)], 1), np.stack([at, np.full_like(at, y + height)], 1))
    lines = y + np.arange(rows + 1) * height / rows
    canvas.segments(
        np.stack([np.full_like(lines, x), lines], 1),
        np.stack([np.full_like(lines, x + width), lines], 1),
        width=0.5,
    )
    for position, text in zip(at, axis.texts, strict=True):
        canvas.text(float(position), y + height + 11, text, size=SMALL, align="center")
    canvas.text(x + width / 2, y + height + 26, unit, size=SMALL, colour=MUTED, align="center")


def _draw_series(
    canvas: Canvas,
    axis: Axis,
    values: dict[str, np.ndarray],
    centres: np.ndarray,
    index: int,
    width: float,
    pitch: float,
) -> None:
    known = np.isfinite(values["value"])
    if "low" in values and "high" in values:
        bounded = known & np.isfinite(values["low"]) & np.isfinite(values["high"])
        if bounded.any():
            ends = [np.stack([axis(values[end][bounded]), centres[bounded]], 1) for end in ("low", "high")]
            canvas.segments(ends[0], ends[1], colour=SERIES[index], width=2.0, order=2.0)
    if known.any():
        canvas.points(axis(values["value"][known]), centres[known], SERIES[index], MARKERS[index])
    chance = next((values[name] for name in CHANCE if name in values), None)
    if chance is not None and np.isfinite(chance).any():
        there = np.isfinite(chance)
        at, y = axis(chance[there]), centres[there]
        half = min(7.0, pitch / 2 - 1)
        ends = [np.stack([at, y - half], 1), np.stack([at, y + half], 1)]
        canvas.segments(ends[0], ends[1], colour=FLOOR, width=2.0, order=2.5)
    for y in centres[~known]:
        # In the middle of the panel, where no point can be meant.
        canvas.text(float(axis(axis.ticks[0])) + width * 0.4, float(y), "–", size=SMALL, colour=MUTED)


def _legend_items(grid: Grid) -> list[tuple[str, str, str]]:
    """Colour, marker (``|`` for a tick) and text of each entry."""
    items = []
    if len(grid.columns) > 1:
        texts = [" · ".join(column) for column in grid.columns]
        if all(re.fullmatch(r"[-−]?\d+(\.\d+)?", text) for text in texts):
            texts = [f"{grid.column_names[0]} {text}" for text in texts]  # a number alone says nothing
        items = [
            (SERIES[j], MARKERS[j], " · ".join(wrap(text, 300, LABEL, 1))) for j, text in enumerate(texts)
        ]
    has_interval = any(np.isfinite(panel.values.get("low", np.nan)).any() for panel in grid.panels)
    if not items:
        items.append((SERIES[0], "o", "value and interval" if has_interval else "value"))
    if any(name in panel.values for panel in grid.panels for name in CHANCE):
        items.append((FLOOR, "|", "by chance"))
    return items


def _flow(texts: list[str], width: float) -> list[int]:
    """On which line of the legend each entry stands."""
    found, line, x = [], 0, 0.0
    for text in texts:
        needed = text_width(text, LABEL) + 40
        if x and x + needed > width:
            line, x = line + 1, 0.0
        found.append(line)
        x += needed
    return found


def _draw_legend(canvas: Canvas, items: list[tuple[str, str, str]], lines: list[int]) -> None:
    x, before = 0.0, 0
    first = canvas.height - 20 * (1 + max(lines)) + 8
    for (colour, marker, text), line in zip(items, lines, strict=True):
        if line != before:
            x, before = 0.0, line
        y = first + 20 * line
        if marker == "|":
            canvas.segments(np.array([x + 10, y - 7]), np.array([x + 10, y + 7]), colour=colour, width=2.0)
        else:
            canvas.segments(np.array([x, y]), np.array([x + 20, y]), colour=colour, width=2.0)
            canvas.points(x + 10, y, colour, marker)
        canvas.text(x + 26, y, text, colour=INK)
        x += text_width(text, LABEL) + 40
