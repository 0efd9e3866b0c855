"""Distributions: over personas a box, a point each, the best and the worst by name; of scores, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.report.drawing import (
    EMPTY,
    INK,
    LABEL,
    MUTED,
    PAGE,
    SERIES,
    SMALL,
    TITLE,
    Canvas,
    short_number,
    text_width,
    wrap,
)
from persona_mlflow.report.intervals import MARGIN, Axis
from persona_mlflow.report.layout import GAP, RowLabels, draw_title, lines_height, panels_per_line
from persona_mlflow.report.tables import arrange, heading, label, labels, matrix

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding

SAMPLE = "persona"
ROW = 96.0
NARROW, WIDE = 340.0, 620.0
BEST, WORST = SERIES[2], SERIES[1]
BIN, SIDE = "bin", "side"
HISTOGRAM = 46.0


def draw_distribution(finding: Finding) -> Canvas:
    """Draw how the values of the personas are distributed, a row per setting, all on one axis.

    The sample is the dim ``persona``; where a finding has none, the last of its columns. A finding with the
    dim ``bin`` is drawn as histograms.
    """
    entry, data = finding.entry, finding.data
    assert data is not None
    dims = [str(dim) for dim in data["value"].dims]
    if BIN in dims:
        return _draw_histograms(finding)
    rows, columns = arrange(entry, data)
    sample = SAMPLE if SAMPLE in dims else (columns or rows)[-1]
    facet = entry.panels if entry.panels in dims and entry.panels != sample else None
    if facet is None and "model" in dims and data.sizes["model"] > 1:
        facet = "model"
    lines = [dim for dim in (*rows, *columns) if dim not in (sample, facet)]
    names = [text for (text,) in labels(data, [sample])]
    row_labels = labels(data, lines) if lines else [("",)]
    parts = [("", data)]
    if facet is not None:
        parts = [(label(v, facet), data.isel({facet: i})) for i, v in enumerate(data[facet].values.tolist())]
    unit = str(data["value"].attrs.get("unit", entry.unit))
    values = [matrix(part, "value", lines, [sample]) for _, part in parts]

    labelled = RowLabels.measure(row_labels, ROW)
    per_line = panels_per_line(len(parts), labelled.width, NARROW)
    slot = min(WIDE, (PAGE - MARGIN - labelled.width + GAP) / per_line - GAP)
    titles = [wrap(title, slot, TITLE, bold=True) if title else [] for title, _ in parts]
    top = max((lines_height(len(text), TITLE) for text in titles), default=0.0) + 8
    body = labelled.height * len(row_labels)
    line_height = top + body + 40 + GAP
    width = max(labelled.width + per_line * (slot + GAP) - GAP + MARGIN, 560.0)
    count = -(-len(parts) // per_line)
    canvas = Canvas(width, count * line_height - GAP + 24)
    words = [f"Distributions over {heading(sample)}, unit {unit}."]
    everything = np.concatenate([block.ravel() for block in values])
    for i, block in enumerate(values):
        x, y = labelled.width + (i % per_line) * (slot + GAP), (i // per_line) * line_height + 2
        if i % per_line == 0:
            labelled.draw(canvas, 0, y + top, labelled.height, width - MARGIN)
        draw_title(canvas, x, y, titles[i], TITLE)
        axis = Axis(everything, x + 8, slot - 16, nought=False)
        _draw_frame(canvas, axis, (x, y + top, slot, body), unit)
        for j, line in enumerate(block):
            where = " · ".join(filter(None, (parts[i][0], *row_labels[j])))
            words.append(
                _draw_row(canvas, axis, line, names, (x, y + top + j * labelled.height, slot), where)
            )
    canvas.text(
        0,
        canvas.height - 11,
        f"A point is a {heading(sample)}; the box spans the quartiles, its line is the median, the whiskers "
        "reach to the ends.",
        size=SMALL,
        colour=MUTED,
    )
    canvas.alt = " ".join(words)
    return canvas


def _draw_frame(canvas: Canvas, axis: Axis, place: tuple[float, float, float, float], unit: str) -> None:
    x, y, width, height = place
    at = axis(axis.ticks)
    canvas.segments(np.stack([at, np.full_like(at, y)], 1), np.stack([at, np.full_like(at, y + height)], 1))
    for position, text in zip(at, axis.texts, strict=True):
        canvas.text(float(position), y + height + 11, text, size=SMALL, align="center")
    canvas.text(x + width / 2, y + height + 26, unit, size=SMALL, colour=MUTED, align="center")


def _draw_row(
    canvas: Canvas,
    axis: Axis,
    values: np.ndarray,
    names: list[str],
    place: tuple[float, float, float],
    where: str,
) -> str:
    """Draw one distribution; says in words what it shows."""
    x, y, width = place
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        canvas.text(x + width / 2, y + ROW / 2, "undefined", colour=MUTED, align="center")
        return f"{where}: undefined."
    here = values[known]
    ends = {}
    for word, top in (("worst", here.min()), ("best", here.max())):
        tied = [names[i] for i in known if values[i] == top]
        more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        ends[word] = f"{word} {short_number(float(top), '.3f')}: {tied[0]}{more}"
    # The two names stand at the two ends of a line of their own, so they cannot meet each other or a point.
    half = width / 2 - 22
    for word, align, colour, marker in (("worst", "left", WORST, "v"), ("best", "right", BEST, "^")):
        lines = wrap(ends[word], half, LABEL, 2)
        sign = x + 6 if align == "left" else x + width - 6
        canvas.points(sign, y + 16, colour, marker)
        canvas.text(sign + (10 if align == "left" else -10), y + 16, lines, align=align)
    quartiles = np.quantile(here, (0.0, 0.25, 0.5, 0.75, 1.0))
    low, first, middle, third, high = (float(at) for at in axis(quartiles))
    box = y + 44
    for start, end in ((low, first), (third, high)):
        canvas.segments(np.array([start, box]), np.array([end, box]), colour=INK, width=1.2)
    canvas.rectangle(first, box - 8, max(third - first, 1.0), 16, EMPTY, edge=INK)
    canvas.segments(
        np.array([middle, box - 8]), np.array([middle, box + 8]), colour=INK, width=2.0, order=2.5
    )
    # Heights by the golden section keep neighbours apart, and are the same at every call.
    order = np.argsort(here, kind="stable")
    heights = np.empty(here.size)
    heights[order] = (np.arange(here.size) * 0.6180339887) % 1.0
    points = axis(here), y + 62 + 22 * heights
    canvas.points(*points, colour=SERIES[0], size=6, alpha=0.75)
    for index, colour, marker in ((int(here.argmin()), WORST, "v"), (int(here.argmax()), BEST, "^")):
        canvas.points(points[0][index], points[1][index], colour, marker, size=9, edge=INK)
    median = short_number(float(quartiles[2]), ".3f")
    return f"{where + ': ' if where else ''}median {median}; {ends['best']}; {ends['worst']}."


def _draw_histograms(finding: Finding) -> Canvas:
    """Draw the shares of the bins, a row per label: the first side upwards, the second downwards.

    The sides are the labels of the dim ``side``. Bins are named by their lower ends, and are equally wide.
    """
    entry, data = finding.entry, finding.data
    assert data is not None
    rows, columns = arrange(entry, data)
    lines = [dim for dim in (*rows, *columns) if dim not in (BIN, SIDE)]
    row_labels = labels(data, lines) if lines else [("",)]
    sides = [text for (text,) in labels(data, [SIDE])]
    shares = np.stack(
        [matrix(data.isel({SIDE: i}), "value", lines, [BIN]) for i in range(len(sides))], axis=1
    )
    starts = np.asarray(data[BIN].values, dtype=float)
    edges = np.append(starts, starts[-1] + (starts[-1] - starts[0]) / max(len(starts) - 1, 1))
    unit = heading(str(data[BIN].attrs.get("long_name", "score")))

    labelled = RowLabels.measure(row_labels, HISTOGRAM)
    slot = min(WIDE, PAGE - MARGIN - labelled.width)
    body = labelled.height * len(row_labels)
    canvas = Canvas(max(labelled.width + slot + MARGIN, 560.0), body + 78)
    x, y = labelled.width, 6.0
    labelled.draw(canvas, 0, y, labelled.height, canvas.width - MARGIN)
    axis = Axis(edges, x + 8, slot - 16, nought=False)
    _draw_frame(canvas, axis, (x, y, slot, body), unit)
    words = [f"Histograms of {' and '.join(sides)}, {unit}."]
    for i, row in enumerate(shares):
        middle = y + (i + 0.5) * labelled.height
        canvas.segments(np.array([x, middle]), np.array([x + slot, middle]), width=0.75)
        if not np.isfinite(row).any():
            canvas.text(x + slot / 2, middle, "undefined", colour=MUTED, align="center")
        else:
            _draw_bars(canvas, axis(edges), row, middle, labelled.height / 2 - 3)
        words.append(_highest(" · ".join(filter(None, row_labels[i])), sides, row, edges))
    at = 0.0
    for text, colour, way in zip(sides, SERIES, ("upwards", "downwards"), strict=False):
        canvas.rectangle(at, canvas.height - 17, 14, 10, colour)
        said = f"{text}, {way}"
        canvas.text(at + 20, canvas.height - 12, said)
        at += text_width(said, LABEL) + 44
    note = "Each row has its own height."
    canvas.text(at, canvas.height - 12, note, size=SMALL, colour=MUTED)
    canvas.alt = " ".join(words)
    return canvas


def _draw_bars(canvas: Canvas, edges: np.ndarray, shares: np.ndarray, middle: float, height: float) -> None:
    """Draw two rows of bars on both sides of a line, as high as the highest of them allows."""
    from matplotlib.collections import PolyCollection

    scale = height / max(float(np.nanmax(shares)), 1e-12)
    for side, colour, way in zip(shares, SERIES, (-1.0, 1.0), strict=False):
        bars = []
        for left, right, share in zip(edges[:-1], edges[1:], side, strict=True):
            if share > 0:
                end = middle + way * scale * float(share)
                bars.append([(left, middle), (right, middle), (right, end), (left, end)])
        if bars:
            canvas.axes.add_collection(
                PolyCollection(bars, facecolors=colour, edgecolors="none", zorder=2), autolim=False
            )


def _highest(where: str, sides: Sequence[str], shares: np.ndarray, edges: np.ndarray) -> str:
    """A row's histograms in words: where each has its highest bar."""
    parts = []
    for side, values in zip(sides, shares, strict=True):
        if np.isfinite(values).any():
            k = int(np.nanargmax(values))
            parts.append(f"{side} mostly {edges[k]:.2f} to {edges[k + 1]:.2f} ({values[k]:.0%})")
    return f"{where}: {'; '.join(parts) or 'undefined'}."
