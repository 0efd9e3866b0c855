"""Findings as figures: PNG and SVG files, and an SVG that lives in the page and follows its colours."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from persona_mlflow.report.drawing import THEME, Canvas, style

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding


@dataclass(frozen=True)
class Figure:
    """A drawn figure.

    Attributes:
        svg: The file, complete.
        png: The file, of 200 dots per inch.
        inline: The ``<svg>`` element for the page.
        alt: The figure in words.
        width: At which it is shown, in px.
        height: Likewise.
    """

    svg: str
    png: bytes
    inline: str
    alt: str
    width: float
    height: float


def draw(finding: Finding) -> Canvas | None:
    """Lay a finding out as its entry's kind of figure; None where it has none, or no data.

    The canvas gives access to matplotlib's figure; `render` makes files of it.
    """
    from persona_mlflow.report.distribution import draw_distribution
    from persona_mlflow.report.heatmap import draw_heatmap
    from persona_mlflow.report.intervals import draw_intervals

    kinds: dict[str, Callable[[Finding], Canvas]] = {
        "heatmap": draw_heatmap,
        "intervals": draw_intervals,
        "distribution": draw_distribution,
    }
    kind = finding.entry.figure
    if kind is None or finding.data is None or not finding.data["value"].size:
        return None
    with style():
        return kinds[kind](finding)


def render(finding: Finding) -> Figure | None:
    """Draw a finding and make its files; None where there is nothing to draw."""
    canvas = draw(finding)
    if canvas is None:
        return None
    svg = canvas.svg()
    return Figure(
        svg,
        canvas.png(),
        inline_svg(svg, finding.entry.key, canvas.alt),
        canvas.alt,
        canvas.width,
        canvas.height,
    )


def inline_svg(document: str, key: str, alt: str) -> str:
    """Make an SVG document part of an HTML page.

    Its ids get a prefix, since those of several figures would meet; its own colours become the page's
    variables; its style sheet and metadata go, since they would speak for the whole page.

    Args:
        document: As matplotlib writes it.
        key: The prefix.
        alt: What a screen reader says instead.
    """
    root = ElementTree.fromstring(document)
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        for name in list(element.attrib):
            value = element.attrib.pop(name)
            element.set(_local(name), _page_value(_local(name), value, key))
        if element.tag in ("g", "svg") and (element.text or "").strip() == "":
            element.text = None
        if (element.tail or "").strip() == "":
            element.tail = "\n"
    for name in ("version",):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _page_value(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == "href":
        return f"#{key}-{value[1:]}" if value.startswith("#") else value
    if name == "clip-path":
        return re.sub(r"url\(#", f"url(#{key}-", value)
    if name in ("style", "fill", "stroke"):
        for colour, variable in THEME.items():
            value = value.replace(colour, variable)
        return re.sub(r"url\(#", f"url(#{key}-", value)
    return value
