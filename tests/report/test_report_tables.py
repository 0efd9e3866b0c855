"""The tables of the report: what is written reads back, and no label can break out of its cell."""

from __future__ import annotations

import csv
import io
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import HOSTILE, METRICS, array, finding

from persona_mlflow.report.formats import escape_latex, to_csv, to_frame, to_html, to_latex, to_markdown
from persona_mlflow.report.tables import NO_REASON, build_table, format_value, printable

LABELS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # numpy drops a last NUL


class Reader(HTMLParser):
    """The cells of an HTML table with their tags, and every tag that was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[tuple[str, dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("th", "td"):
            self.cells.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cells:
            tag, attrs, text = self.cells[-1]
            self.cells[-1] = (tag, attrs, text + data)


@pytest.mark.parametrize(
    ("value", "unit", "name", "shown"),
    [
        (0.012345, "fraction", "value", "0.0123"),
        (-0.5, "share", "value", "−0.5000"),
        (-0.00001, "fraction", "value", "0.0000"),
        (12.345, "percent", "value", "12.35"),
        (3.14159, "ranks", "value", "3.14"),
        (0.0004, "fraction", "p", "< 0.001"),
        (0.04, "", "p_adjusted", "0.040"),
        (1.0, "", "p", "1.000"),
        (7, "", "beats", "7"),
        (7.0, "count", "beats", "7"),
        (True, "", "recommended", "yes"),
        ("holds", "", "verdict", "holds"),
        (math.nan, "fraction", "value", "–"),
        (math.inf, "fraction", "value", "–"),
        (None, "fraction", "value", "–"),
    ],
)
def test_numbers_are_shown_as_their_unit_asks(value: object, unit: str, name: str, shown: str) -> None:
    assert format_value(value, unit, name) == shown


@given(
    values=st.lists(st.floats(allow_infinity=False, width=64), min_size=6, max_size=6),
    names=st.lists(st.text(LABELS, max_size=12), min_size=3, max_size=3, unique=True),
)
def test_the_csv_reads_back_to_the_same_bits(values: list[float], names: list[str]) -> None:
    data = array({"model": ["a", "b"], "persona": names})
    data["value"] = data["value"].dims, np.array(values).reshape(2, 3)
    data = data.assign(floor=("model", [0.1, 0.2]))
    rows = list(csv.DictReader(io.StringIO(to_csv(data), newline="")))
    assert [(row["model"], row["persona"]) for row in rows] == [(m, n) for m in "ab" for n in names]
    for row, value in zip(rows, values, strict=True):
        if math.isnan(value):
            assert row["value"] == ""
        else:
            assert np.float64(row["value"]).tobytes() == np.float64(value).tobytes()
        assert float(row["floor"]) == (0.1 if row["model"] == "a" else 0.2)


def test_rows_and_columns_are_where_the_entry_puts_them() -> None:
    data = array({"model": ["a", "b"], "metric": METRICS, "factor": ["ppf", "tpf"]})
    table = build_table(finding("f", data, columns=("factor",)))
    frame = to_frame(table)
    assert frame.shape == (6, 2)
    value, low, high = (
        float(data[name].sel(model="b", metric="question", factor="tpf")) for name in ("value", "low", "high")
    )
    shown = f"{value:.4f} [{low:.4f}, {high:.4f}]".replace("-", "−")
    assert frame.loc[("b", "I_Q question instability"), "tpf"] == shown
    across = build_table(finding("f", data, rows=("metric",), columns=("model", "factor")))
    assert across.columns == (("a", "ppf"), ("a", "tpf"), ("b", "ppf"), ("b", "tpf"))
    assert str(across.cells[2][3]) == shown


def test_a_single_model_is_no_level_of_the_table() -> None:
    data = array({"model": ["a"], "metric": METRICS})
    table = build_table(finding("f", data, rows=("metric",), columns=("model",), unit="share"))
    assert (table.row_names, table.columns) == (("metric",), (("share [interval]",),))
    alone = build_table(finding("f", data, columns=("metric",)))
    assert (alone.row_names, alone.rows) == (("model",), (("a",),))


def test_further_variables_stand_beside_the_value() -> None:
    data = array({"model": ["a"], "part": ["x", "y"]})
    data = data.assign(p=(("model", "part"), [[0.0001, 0.5]]), wins=("part", [3.0, 4.0]))
    table = build_table(
        finding("f", data, rows=("part",), show={"p": "p", "wins": "wins", "absent": "absent"})
    )
    assert [column[-1] for column in table.columns] == ["fraction [interval]", "p", "wins"]
    assert [[cell.text for cell in line[1:]] for line in table.cells] == [["< 0.001", "3"], ["0.500", "4"]]


def test_an_undefined_value_has_a_note_with_its_reason() -> None:
    data = array({"model": ["a"], "part": ["x", "y", "z"]})
    data["value"][0, :2] = np.nan
    data["reason"] = ("model", "part"), [["one setting gives no pairs", "", ""]]
    table = build_table(finding("f", data, rows=("part",)))
    assert [str(line[0])[:5] for line in table.cells[:2]] == ["– (a)", "– (b)"]
    assert table.notes == {"a": "one setting gives no pairs", "b": NO_REASON}
    assert "(a) one setting gives no pairs" in to_markdown(table, "")
    assert "(a) one setting gives no pairs" in to_latex(table, "")


def test_html_headings_have_a_scope_and_span_what_they_head() -> None:
    data = array({"model": ["a", "b"], "metric": METRICS, "factor": ["ppf", "tpf"]})
    reader = Reader()
    reader.feed(to_html(build_table(finding("f", data, rows=("metric",), columns=("model", "factor"))), "c"))
    heads = [(attrs, text) for tag, attrs, text in reader.cells if tag == "th"]
    assert all("scope" in attrs for attrs, _ in heads)
    assert {"scope": "colgroup", "colspan": "2"} in [attrs for attrs, text in heads if text == "b"]
    assert reader.tags.count("tr") == 2 + len(METRICS)
    assert reader.tags.count("td") == len(METRICS) * 4


def hostile_table() -> object:
    data = array({"model": ["m"], "persona": HOSTILE})
    return build_table(finding("f", data, rows=("persona",), title=HOSTILE[0], caption=HOSTILE[2]))


def test_no_label_breaks_out_of_html() -> None:
    reader = Reader()
    reader.feed(to_html(hostile_table(), HOSTILE[0]))
    assert set(reader.tags) == {"table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
    shown = [text for tag, attrs, text in reader.cells if attrs.get("scope") == "row"]
    assert shown == [printable(name) or "(blank)" for name in HOSTILE]


def test_no_label_breaks_out_of_markdown() -> None:
    text = to_markdown(hostile_table(), HOSTILE[0])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(HOSTILE)
    # A cell ends at a bar that is not escaped: as many in each line as in the head.
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert "<" not in text
    assert r"\*\[link\](http://example.org)\*\`" in text


def test_no_label_breaks_out_of_latex() -> None:
    text = to_latex(hostile_table(), HOSTILE[1])
    rows = text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    assert len(rows) == len(HOSTILE)
    assert all(len(re.findall(r"(?<!\\)&", row)) == 1 and row.endswith(r" \\") for row in rows)
    body = re.sub(r"\\[&%$#_{}]|\$-\$|^% needs.*\n", "", text)
    assert not set("%#_$~^") & set(re.sub(r"\\label\{[^}]*\}", "", body))
    assert body.count("{") == body.count("}")


def test_latex_escapes_each_special_character() -> None:
    assert escape_latex(r"a_b%c$d#e{f}g&h~i^j\k") == (
        r"a\_b\%c\$d\#e\{f\}g\&h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k"
    )
    assert escape_latex("τ −1 × 2 … <") == r"$\tau$ $-$1 $\times$ 2 \ldots{} \textless{}"


def test_an_outer_label_stands_once_in_latex_and_long_tables_break() -> None:
    data = array({"model": ["a", "b"], "part": [f"part {i}" for i in range(30)]})
    text = to_latex(build_table(finding("f", data, rows=("part",))), "")
    assert "\\begin{longtable}" in text
    starts = [line.split(" & ")[0] for line in text.splitlines() if re.search(r"& part \d", line)]
    assert starts == ["a", *[""] * 29, "b", *[""] * 29]
