"""The figures of the report, measured with matplotlib's own renderer and read back from their files."""

from __future__ import annotations

import struct
import warnings
from itertools import combinations
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from report_cases import CATEGORIES, FACTORS, HOSTILE, LEVELS, METRICS, array, finding

from persona_mlflow.analyses.entry import Finding
from persona_mlflow.report.drawing import PAGE, SMALL, THEME, Canvas, style, text_width, wrap
from persona_mlflow.report.figures import draw, inline_svg, render
from persona_mlflow.report.heatmap import COLOURS

SETTINGS = tuple(f"barebones · justanswer-persona · τ {i / 8}" for i in range(32))


def cases() -> dict[str, Finding]:
    """Each kind of figure, in the shapes that are hard to lay out."""
    two = {"model": ["llama8b", "meta-llama/Llama-3.2-1B-Instruct"]}
    metric = {"metric": METRICS}
    chance = array({**two, **metric, "part": CATEGORIES[:4]}, scale=0.01, offset=0.1)
    chance = chance.assign(floor=chance["value"] * 0.7)
    undefined = array({"model": ["m"], **metric, "category": CATEGORIES[:3]})
    undefined["value"][0, 0, :] = np.nan
    undefined["value"][0, 1, 1] = np.nan
    constant = array({"model": ["m"], "term": ["a", "b"]}) * 0 + 0.5
    heatmap = {"figure": "heatmap", "brighter": "more stable"}
    return {
        "one row": finding(
            "f", array({"model": ["m"], **metric, "factor": FACTORS}), columns=("factor",), **heatmap
        ),
        "many columns": finding(
            "f", array({**two, **metric, "level": LEVELS}), columns=("level",), **heatmap
        ),
        "two levels of columns": finding(
            "f",
            array({**two, **metric, "category": CATEGORIES, "factor": FACTORS}),
            rows=("category",),
            columns=("model", "factor"),
            **heatmap,
        ),
        "two levels of rows": finding(
            "f", array({**two, **metric, "category": CATEGORIES}), rows=("model", "category"), **heatmap
        ),
        "dense": finding(
            "f",
            array({"model": ["m"], "setting": SETTINGS, "other": SETTINGS}),
            rows=("setting",),
            columns=("other",),
            **heatmap,
        ),
        "undefined": finding("f", undefined, rows=("category",), **heatmap),
        "constant": finding("f", constant, rows=("term",), **heatmap),
        "hostile": finding(
            "f", array({**two, **metric, "persona": HOSTILE}), columns=("persona",), **heatmap
        ),
        "intervals": finding("f", chance, rows=("part",), columns=("metric",), figure="intervals"),
        "series": finding(
            "f", chance, rows=("metric", "part"), columns=("model",), figure="intervals", panels=""
        ),
        "intervals, undefined": finding("f", undefined, rows=("category",), figure="intervals"),
        "intervals, constant": finding("f", constant, rows=("term",), figure="intervals"),
        "intervals, hostile": finding(
            "f", array({**two, **metric, "persona": HOSTILE}), rows=("persona",), figure="intervals"
        ),
        "distribution": finding(
            "f",
            array({**two, "setting": SETTINGS[:2], "persona": HOSTILE}),
            rows=("persona",),
            columns=("model", "setting"),
            figure="distribution",
        ),
        "distribution, tied": finding(
            "f",
            array({"model": ["m"], "setting": ["s"], "persona": ["a", "b"]}) * 0,
            rows=("persona",),
            columns=("setting",),
            figure="distribution",
        ),
    }


CASES = cases()
every_case = pytest.mark.parametrize("name", CASES)


def canvas_of(name: str) -> Canvas:
    canvas = draw(CASES[name])
    assert canvas is not None
    return canvas


@every_case
def test_no_text_is_small_overlaps_another_or_leaves_the_figure(name: str) -> None:
    canvas = canvas_of(name)
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        renderer = canvas.figure.canvas.get_renderer()
        texts = [text for text in canvas.axes.texts if text.get_text().strip()]
        boxes = [text.get_window_extent(renderer) for text in texts]
    assert min(text.get_fontsize() / 0.75 for text in texts) >= 9
    for text, box in zip(texts, boxes, strict=True):
        where = (text.get_text(), box)
        assert box.x0 > -1, where
        assert box.y0 > -1, where
        assert box.x1 < canvas.width + 1, where
        assert box.y1 < canvas.height + 1, where
    for (a, first), (b, second) in combinations(zip(texts, boxes, strict=True), 2):
        # Lines of one label may touch; the boxes hold room for letters that these lines do not have.
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        along = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert across < 1 or along < 3, (a.get_text(), b.get_text())


@every_case
def test_two_drawings_are_the_same_bytes_without_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = render(CASES[name]), render(CASES[name])
    assert first == second
    assert first is not None
    assert first.alt
    assert b"Date" not in first.png
    width, height = struct.unpack(">II", first.png[16:24])
    assert (width, height) == (int(first.width / 96 * 200), int(first.height / 96 * 200))


@every_case
def test_the_inline_figure_takes_its_colours_from_the_page_and_its_ids_are_its_own(name: str) -> None:
    figure = render(CASES[name])
    assert figure is not None
    inline = inline_svg(figure.svg, "first", "a <b> & 'c' \"d\"")
    root = ElementTree.fromstring(inline)
    assert (root.get("role"), root.get("aria-label")) == ("img", "a <b> & 'c' \"d\"")
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("first-") for name in ids)
    for element in root.iter():
        assert element.tag not in ("style", "metadata", "script", "foreignObject")
        target = element.get("href", "")
        assert not target or target.startswith("data:image/png;base64,") or target[1:] in ids
    used = {colour for colour in THEME if colour in figure.svg}
    assert used
    assert not any(colour in inline for colour in THEME)


def test_the_file_is_text_in_fonts_that_others_have() -> None:
    figure = render(CASES["intervals"])
    assert figure is not None
    root = ElementTree.fromstring(figure.svg)
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert {"I_A accuracy instability", "by chance", "fraction"} <= {element.text for element in texts}
    assert "'DejaVu Sans', 'Verdana', sans-serif" in texts[0].get("style", "")


def test_cells_carry_their_values_and_the_scale_says_what_brighter_means() -> None:
    data = CASES["one row"].data
    assert data is not None
    canvas = canvas_of("one row")
    texts = [text.get_text() for text in canvas.axes.texts]
    assert "Brighter: more stable." in texts
    for value in data["value"].sel(metric="question").values.ravel():
        assert any(text.replace("−", "-") in (f"{value:.3f}", f"{value:.4f}") for text in texts)
    assert texts.count("fraction") == len(METRICS)


def test_the_brightest_cell_is_the_highest() -> None:
    canvas = canvas_of("one row")
    data = CASES["one row"].data
    assert data is not None
    cells = canvas.axes.collections[0]
    luminance = cells.get_facecolor()[:, :3] @ np.array([0.2126, 0.7152, 0.0722])
    values = data["value"].isel(model=0, metric=0).values
    assert np.argsort(luminance).tolist() == np.argsort(values).tolist()
    ends = np.array([matplotlib.colormaps[COLOURS](x) for x in (0.0, 1.0)])
    assert np.allclose(cells.get_facecolor()[[values.argmin(), values.argmax()]], ends)


def test_numbers_stand_out_from_their_cells() -> None:
    from persona_mlflow.report.heatmap import _contrast

    def luminance(colour: np.ndarray) -> float:
        parts = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(parts @ np.array([0.2126, 0.7152, 0.0722]))

    for share in np.linspace(0, 1, 101):
        colour = np.array(matplotlib.colormaps[COLOURS](share))
        light, dark = (
            (1.0, luminance(colour[:3])) if _contrast(colour) == "#ffffff" else (luminance(colour[:3]), 0.0)
        )
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_points_and_intervals_are_where_the_axis_says() -> None:
    data = CASES["intervals, constant"].data
    assert data is not None
    finding_ = finding(
        "f", array({"model": ["m"], "term": ["a", "b", "c"]}, scale=0.3), rows=("term",), figure="intervals"
    )
    canvas = draw(finding_)
    assert canvas is not None
    assert finding_.data is not None
    shown = {}
    for text in canvas.axes.texts:
        try:
            shown[float(text.get_text().replace("−", "-"))] = text.get_position()[0]
        except ValueError:
            continue
    slope, start = np.polyfit(list(shown), list(shown.values()), 1)
    (points,) = [line for line in canvas.axes.lines if len(line.get_xdata()) == 3]
    assert np.allclose(points.get_xdata(), start + slope * finding_.data["value"].values.ravel(), atol=0.01)
    (bars,) = [
        c
        for c in canvas.axes.collections
        if np.allclose(c.get_linewidths(), 1.5) and len(c.get_segments()) == 3
    ]
    for segment, low, high in zip(
        bars.get_segments(),
        finding_.data["low"].values.ravel(),
        finding_.data["high"].values.ravel(),
        strict=True,
    ):
        assert np.allclose(segment[:, 0], [start + slope * low, start + slope * high], atol=0.01)


def test_best_and_worst_are_named_and_ties_are_said() -> None:
    data = array({"model": ["m"], "setting": ["s"], "persona": ["a", "b", "c"]})
    data["value"] = data["value"].dims, [[[0.25, 0.75, 0.5]]]
    case = {"rows": ("persona",), "columns": ("setting",), "figure": "distribution"}
    canvas = draw(finding("f", data, **case))
    assert canvas is not None
    texts = [text.get_text() for text in canvas.axes.texts]
    assert {"best 0.750: b", "worst 0.250: a"} <= set(texts)
    assert "median 0.500" in canvas.alt
    assert "best 0.000: a and 1 more" in [
        text.get_text() for text in canvas_of("distribution, tied").axes.texts
    ]


def test_nothing_of_the_callers_settings_is_used_or_changed() -> None:
    expected = render(CASES["one row"])
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert render(CASES["one row"]) == expected
        assert dict(matplotlib.rcParams) == before


def test_a_wide_figure_keeps_to_the_page_where_its_cells_allow_it() -> None:
    widths = {name: canvas_of(name).width for name in CASES}
    assert max(widths.values()) <= PAGE + 10, widths


def test_labels_wrap_where_a_reader_would() -> None:
    lines = wrap("youareknowledge · justanswer-persona · τ 0.5", 160, SMALL)
    assert lines == ["youareknowledge ·", "justanswer-persona · τ 0.5"]
    assert wrap("short", 160, SMALL) == ["short"]
    long = wrap("x" * 200, 100, SMALL, 2)
    assert len(long) == 2
    assert long[-1].endswith("…")
    assert max(text_width(line, SMALL) for line in long) <= 100


def test_there_is_no_figure_without_data_or_kind() -> None:
    assert render(finding("f", None, figure="heatmap")) is None
    assert render(finding("f", array({"model": ["m"]}))) is None
