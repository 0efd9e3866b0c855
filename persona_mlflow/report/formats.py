"""Tables as files: tidy CSV with every digit, and display tables for Markdown, LaTeX and the page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.report.tables import Cell, Table, level_names, matrix, printable, spans

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

VERDICTS = ("holds", "fails", "undecided")
LONG_LABEL = 24
"""A row label of more letters than this gets room for them, however many columns follow."""
LONG_TABLE = 40
"""From this many rows on, the LaTeX table breaks across pages."""


def tidy_lines(data: xr.Dataset) -> Iterator[list[str]]:
    """The header and one line per entry: its labels, value, low, high, and all else of the same dims.

    Floats are written as ``repr`` does, so that they read back to the same bits; undefined is empty.
    """
    dims = [str(dim) for dim in data["value"].dims]
    first = [name for name in ("value", "low", "high") if name in data]
    others = [str(name) for name in data.data_vars if name not in first and set(data[name].dims) <= set(dims)]
    names = first + others
    yield [*(name for dim in dims for name in level_names(data, dim)), *names]
    coordinates = [
        data[dim].values.tolist() if dim in data.coords else list(range(data.sizes[dim])) for dim in dims
    ]
    columns = [matrix(data, name, dims, []).ravel().tolist() for name in names]
    for position, index in enumerate(np.ndindex(*(len(values) for values in coordinates))):
        places = [values[i] for values, i in zip(coordinates, index, strict=True)]
        where = [str(v) for place in places for v in (place if isinstance(place, tuple) else (place,))]
        yield [*where, *(_exact(column[position]) for column in columns)]


def _exact(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def to_csv(data: xr.Dataset) -> str:
    """The tidy CSV (RFC 4180, but for its line ends) of a finding's data."""
    return "".join(",".join(map(_field, line)) + "\n" for line in tidy_lines(data))


def _field(text: str) -> str:
    # The csv module leaves a lone carriage return bare, which then ends the line when it is read.
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def to_frame(table: Table) -> pd.DataFrame:
    """The display table as a frame of texts, with its labels as index and columns."""
    import pandas as pd

    index = pd.MultiIndex.from_tuples(table.rows, names=table.row_names)
    columns = pd.MultiIndex.from_tuples(table.columns)
    frame = pd.DataFrame([[str(cell) for cell in line] for line in table.cells], index, columns)
    if columns.nlevels == 1:
        frame.columns = columns.get_level_values(0)
    return frame


def to_markdown(table: Table, caption: str) -> str:
    """The display table in GitHub's Markdown, with its title, caption and notes."""
    from tabulate import tabulate

    header = [*table.row_names, *(" · ".join(column) for column in table.columns)]
    body = [[*row, *(str(cell) for cell in line)] for row, line in zip(table.rows, table.cells, strict=True)]
    grid = tabulate(
        [[escape_markdown(text) for text in line] for line in body],
        [escape_markdown(text) for text in header],
        tablefmt="github",
        disable_numparse=True,
    )
    notes = [f"({letter}) {escape_markdown(reason)}" for letter, reason in table.notes.items()]
    parts = [f"## {escape_markdown(table.title)}", escape_markdown(printable(caption)), grid, *notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#$~])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # else an option of the \\ before it
    "]": "{]}",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "τ": r"$\tau$",
    "κ": r"$\kappa$",
    "η": r"$\eta$",
    "Δ": r"$\Delta$",
    "…": r"\ldots{}",
}


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is; letters beyond these need LuaLaTeX or XeLaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def to_latex(table: Table, caption: str) -> str:
    """The display table for LaTeX with booktabs; a long one breaks across pages."""
    long = len(table.rows) > LONG_TABLE
    layout = "l" * len(table.row_names) + "r" * len(table.columns)
    head = "\n".join(_latex_head(table))
    lines = []
    before: tuple[str, ...] = ()
    for row, cells in zip(table.rows, table.cells, strict=True):
        # An outer label stands once, in the first row that it holds for.
        same = next((i for i, text in enumerate(row[:-1]) if row[i] != (before[i : i + 1] or ("",))[0]), None)
        same = len(row) - 1 if before and same is None else same or 0
        names = ["" if i < same else escape_latex(text) for i, text in enumerate(row)]
        lines.append(" & ".join([*names, *(escape_latex(str(cell)) for cell in cells)]) + r" \\")
        before = row
    notes = "".join(
        f"\n\\par\\noindent ({letter}) {escape_latex(reason)}" for letter, reason in table.notes.items()
    )
    text = f"\\caption{{{escape_latex(table.title)}. {escape_latex(printable(caption))}}}"
    mark = f"\\label{{tab:{table.key}}}"
    body = "\n".join(lines)
    if long:
        return (
            "% needs \\usepackage{booktabs, longtable}\n"
            f"\\begin{{longtable}}{{{layout}}}\n{text}{mark}\\\\\n\\toprule\n{head}\n\\midrule\n\\endhead\n"
            f"{body}\n\\bottomrule\n\\end{{longtable}}{notes}\n"
        )
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{table}}\n\\centering\n{text}\n{mark}\n\\begin{{tabular}}{{{layout}}}\n\\toprule\n{head}\n"
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}{notes}\n\\end{{table}}\n"
    )


def _latex_head(table: Table) -> Iterator[str]:
    width = len(table.row_names)
    depth = len(table.columns[0])
    for level in range(depth):
        last = level == depth - 1
        names = [escape_latex(name) if last else "" for name in table.row_names]
        parts, rules, start = [], [], width + 1
        for text, span in spans(table.columns, level):
            parts.append(
                escape_latex(text) if span == 1 else f"\\multicolumn{{{span}}}{{c}}{{{escape_latex(text)}}}"
            )
            rules.append(f"\\cmidrule(lr){{{start}-{start + span - 1}}}")
            start += span
        yield " & ".join([*names, *parts]) + r" \\" + ("" if last else " ".join(rules))


def to_html(table: Table, caption: str = "") -> str:
    """The display table as a ``<table>`` with scoped headings; every text is escaped."""
    from markupsafe import escape

    depth = len(table.columns[0])
    words = [_holds_words(table, column) for column in range(len(table.columns))]
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{escape(caption)}</caption>")
    parts.append("<thead>")
    for level in range(depth):
        parts.append("<tr>")
        if level == 0:
            parts += [f'<th scope="col" rowspan="{depth}">{escape(name)}</th>' for name in table.row_names]
        start = 0
        for text, span in spans(table.columns, level):
            scope = f'scope="colgroup" colspan="{span}"' if span > 1 else 'scope="col"'
            kind = ' class="words"' if level == depth - 1 and words[start] else ""
            parts.append(f"<th {scope}{kind}>{escape(text)}</th>")
            start += span
        parts.append("</tr>")
    parts.append("</thead><tbody>")
    starts: list[dict[int, int]] = []
    for level in range(len(table.row_names)):
        first, position = {}, 0
        for _, span in spans(table.rows, level):
            first[position] = span
            position += span
        starts.append(first)
    for i, (row, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        parts.append("<tr>")
        for level, text in enumerate(row):
            rows = starts[level].get(i)
            if rows is not None:
                scope = f'scope="rowgroup" rowspan="{rows}"' if rows > 1 else 'scope="row"'
                kind = ' class="long"' if len(text) > LONG_LABEL else ""
                parts.append(f"<th {scope}{kind}>{escape(text)}</th>")
        parts += [_html_cell(cell, left) for cell, left in zip(cells, words, strict=True)]
        parts.append("</tr>")
    parts.append("</tbody></table>")
    return "".join(parts)


def _html_cell(cell: Cell, words: bool) -> str:
    from markupsafe import escape

    interval = f' <span class="interval">{escape(cell.interval)}</span>' if cell.interval else ""
    note = f"<sup>{cell.note}</sup>" if cell.note else ""
    kind = ' class="words"' if words else ""
    if cell.text in VERDICTS:
        kind = f' class="{cell.text}"'
    text = f'<span class="value">{escape(cell.text)}</span>'
    extra = f'<br><span class="interval">{escape(cell.extra)}</span>' if cell.extra else ""
    return f"<td{kind}>{text}{interval}{note}{extra}</td>"


def _holds_words(table: Table, column: int) -> bool:
    """Whether a column is of sentences, which begin at its left edge."""
    texts = [line[column].text for line in table.cells]
    return any(" " in text and not text[-1].isdigit() for text in texts)
