"""Findings laid out as tables: which labels go where, and how a number is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.analyses.entry import Entry, Finding

UNDEFINED = "–"
NO_REASON = "undefined; the analysis gives no reason"
ITSELF = "not compared with itself"

METRIC_NAMES = {
    "accuracy": "I_A accuracy instability",
    "outcome": "I_O outcome instability",
    "question": "I_Q question instability",
    "auc": "AUC",
    "pair_auc": "Pair-AUC",
    "group_accuracy": "group accuracy",
}
"""Label on the dim ``metric`` → what a reader sees."""


@dataclass(frozen=True)
class Cell:
    """One cell: the value, its interval (``[low, high]`` or empty), the letter of its note, and a remark."""

    text: str
    interval: str = ""
    note: str = ""
    extra: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.text, self.interval, self.note and f"({self.note})") if part)


@dataclass(frozen=True)
class Table:
    """A table to be shown.

    Attributes:
        key: Of the analysis.
        title: Its headline.
        row_names: Headings of the label columns.
        rows: One tuple of labels per row.
        columns: One tuple of labels per column, the outermost first.
        cells: Row by row.
        notes: Letter → why a value is undefined, or what is special about it.
    """

    key: str
    title: str
    row_names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[Cell, ...], ...]
    notes: Mapping[str, str]

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.rows) * len(self.columns)


# ---------------------------------------------------------------------------------------- labels and numbers


def label(value: Any, dim: str = "") -> str:
    """What a reader sees of a coordinate: one line, and nothing that XML forbids."""
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    text = str(value)
    if dim == "metric":
        text = METRIC_NAMES.get(text, text)
    return printable(text) or "(blank)"


def printable(text: str) -> str:
    """The text without line breaks, and with � for control characters and lone surrogates."""
    text = " ".join(text.split())
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "�", text)


def heading(name: str) -> str:
    """What a reader sees of the name of a dim or a variable."""
    return printable(name.replace("_", " "))


def format_value(value: Any, unit: str = "fraction", name: str = "value") -> str:
    """A number as the display tables show it.

    Args:
        value: A number, a text, a boolean or None.
        unit: Fractions and shares get four decimals, percents and ranks two, counts none.
        name: The variable; one called ``p``, ``p_…`` or ``…_p`` is a p-value.
    """
    if value is None:
        return UNDEFINED
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(value).replace("-", "−")
    if not isinstance(value, float | np.floating):
        return printable(str(value))
    number = float(value)
    if not math.isfinite(number):
        return UNDEFINED
    if name == "p" or name.startswith("p_") or name.endswith("_p"):
        return "< 0.001" if number < 0.001 else f"{number:.3f}"
    if unit == "count":
        return f"{number:.0f}".replace("-", "−")
    decimals = 2 if unit in ("percent", "ranks", "%") or name.endswith(("rank", "score")) else 4
    if decimals == 4 and abs(number) >= 1000:
        decimals = 1
    text = f"{number:.{decimals}f}"
    if not text.strip("-0."):  # no negative zero
        text = text.lstrip("-")
    return text.replace("-", "−")


# ----------------------------------------------------------------------------------------------- arrangement


def arrange(entry: Entry, data: xr.Dataset) -> tuple[list[str], list[str]]:
    """The dims of the rows and of the columns, the outermost first.

    ``model`` goes before the rows unless the entry places it, and so does a dim that the entry leaves out. A
    single model is no level of its own, unless there is no other row.
    """
    dims = [str(dim) for dim in data["value"].dims]
    columns = [dim for dim in entry.columns if dim in dims]
    rows = [dim for dim in entry.rows if dim in dims and dim not in columns]
    placed = {*rows, *columns}
    rows = [dim for dim in dims if dim not in placed and dim != "model"] + rows
    if "model" in dims and "model" not in placed:
        rows = ["model", *rows]
    if "model" in dims and data.sizes["model"] == 1:
        columns = [dim for dim in columns if dim != "model"]
        rows = [dim for dim in rows if dim != "model"] or ["model"]
    return rows, columns


def labels(data: xr.Dataset, dims: list[str]) -> list[tuple[str, ...]]:
    """The labels of all combinations of some dims, the last dim the fastest.

    A dim whose index has several levels gives as many labels, those of `level_names`.
    """
    found: list[tuple[str, ...]] = [()]
    for dim in dims:
        values = data[dim].values.tolist() if dim in data.coords else range(data.sizes[dim])
        names = level_names(data, dim)
        parts = [value if isinstance(value, tuple) else (value,) for value in values]
        texts = [tuple(label(v, name) for name, v in zip(names, part, strict=True)) for part in parts]
        found = [(*before, *text) for before in found for text in texts]
    return found


def level_names(data: xr.Dataset, dim: str) -> list[str]:
    """The names of a dim's labels: its own, or those of the levels of its index."""
    names = data.indexes[dim].names if dim in data.indexes else [dim]
    return [str(name) for name in names] if len(names) > 1 else [dim]


def matrix(data: xr.Dataset, name: str, rows: list[str], columns: list[str]) -> np.ndarray:
    """A variable as rows × columns; one that lacks a dim of the value repeats along it."""
    value, found = data["value"], data[name]
    single = [dim for dim in value.dims if dim not in (*rows, *columns)]  # a lone model, or a panel's
    missing = {dim: value.sizes[dim] for dim in value.dims if dim not in found.dims}
    found = found.expand_dims(missing).isel(dict.fromkeys(single, 0)).transpose(*rows, *columns)
    height = math.prod(data.sizes[dim] for dim in rows)
    return np.asarray(found.values).reshape(height, -1)


def shown_variables(entry: Entry, data: xr.Dataset) -> dict[str, str]:
    """Variable → heading: the value, where the analysis has one, and what the entry shows beside it."""
    dims = set(data["value"].dims)
    beside = {
        name: text for name, text in entry.show.items() if name in data and set(data[name].dims) <= dims
    }
    if not np.isfinite(data["value"].values).any() and beside and "reason" not in data:
        return beside
    interval = all(name in data for name in ("low", "high")) and bool(np.isfinite(data["low"].values).any())
    name = entry.unit or "value"
    return {"value": f"{name} [interval]" if interval else name, **beside}


def build_table(finding: Finding) -> Table:
    """Lay a finding out as its entry says.

    Raises:
        ValueError: No model allows the analysis; there is nothing to lay out.
    """
    entry, data = finding.entry, finding.data
    if data is None:
        raise ValueError(f"{entry.key}: no model allows this analysis")
    rows, columns = arrange(entry, data)
    variables = shown_variables(entry, data)
    row_labels, column_labels = labels(data, rows), labels(data, columns)
    notes: dict[str, str] = {}
    blocks = [_cells(entry, data, name, rows, columns, notes) for name in variables]
    if len(variables) > 1 or not columns:
        column_labels = [(*outer, printable(text)) for outer in column_labels for text in variables.values()]
    cells = tuple(
        tuple(block[i][j] for j in range(len(blocks[0][i])) for block in blocks)
        for i in range(len(row_labels))
    )
    return Table(
        entry.key,
        printable(entry.title),
        tuple(heading(name) for dim in rows for name in level_names(data, dim)),
        tuple(row_labels),
        tuple(column_labels),
        cells,
        {letter: reason for reason, letter in notes.items()},
    )


def _cells(
    entry: Entry, data: xr.Dataset, name: str, rows: list[str], columns: list[str], notes: dict[str, str]
) -> list[list[Cell]]:
    unit = _unit(entry, data, name)
    values = matrix(data, name, rows, columns)
    prefix = "" if name == "value" else f"{name}_"
    ends = [matrix(data, prefix + end, rows, columns) for end in ("low", "high") if prefix + end in data]
    reasons = (
        matrix(data, "reason", rows, columns)
        if name == "value"
        and "reason" in data
        and "reason" not in entry.show
        and set(data["reason"].dims) <= set(data["value"].dims)
        else None
    )
    row_labels, column_labels = labels(data, rows), labels(data, columns)
    # A matrix of things against themselves.
    square = bool(rows and columns) and {r[-1] for r in row_labels} == {c[-1] for c in column_labels}
    found = []
    for i in range(values.shape[0]):
        line = []
        for j in range(values.shape[1]):
            text = format_value(_plain(values[i, j]), unit, name)
            interval = ""
            if len(ends) == 2 and text != UNDEFINED:
                low, high = (format_value(_plain(end[i, j]), unit) for end in ends)
                interval = f"[{low}, {high}]" if UNDEFINED not in (low, high) else ""
            reason = _reason(reasons[i, j]) if reasons is not None else ""
            if name == "value" and text == UNDEFINED and not reason and "reason" not in entry.show:
                reason = ITSELF if square and row_labels[i][-1] == column_labels[j][-1] else NO_REASON
            line.append(Cell(text, interval, notes.setdefault(reason, _letter(len(notes))) if reason else ""))
        found.append(line)
    return found


def _unit(entry: Entry, data: xr.Dataset, name: str) -> str:
    """The unit of a variable: its own, the entry's for the value, ``count`` for whole numbers."""
    array = data[name]
    if name == "value" or "unit" in array.attrs:
        return str(array.attrs.get("unit", entry.unit))
    if array.dtype.kind != "f":
        return ""
    finite = array.values[np.isfinite(array.values)]
    return "count" if finite.size and (finite == np.round(finite)).all() and np.abs(finite).max() > 1 else ""


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _reason(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _letter(index: int) -> str:
    """A, b, … z, aa, ab …: the letters of the notes."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("a") + rest) + text
    return text


def spans(labels: tuple[tuple[str, ...], ...], level: int) -> list[tuple[str, int]]:
    """The runs of equal labels at a level, within equal labels of the levels above: text and length."""
    found: list[tuple[str, int]] = []
    before: tuple[str, ...] | None = None
    for here in labels:
        if before is not None and here[: level + 1] == before[: level + 1] and level < len(here) - 1:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((here[level], 1))
        before = here
    return found
