"""What the figures share: their colours, the measuring and wrapping of text, and a canvas in pixels.

A figure is laid out in CSS pixels and shown at that size, so a text of 11 px is read at 11 px; a figure wider
than the screen scrolls. Widths are measured with the font's own advances, so labels are known to fit before
anything is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

PAGE = 1140.0
"""Width in px that the page gives a figure."""
TITLE, LABEL, SMALL = 13.0, 11.0, 10.0
"""Sizes of text in px."""
LEADING = 1.25
HINTING = 1.03
"""Fitting letters to pixels makes small text so much wider than its font says."""

# Each colour is used for one thing only, so that the page can put its own in its place.
INK, MUTED, LINE, PAPER, EMPTY = "#1b1c1f", "#56585e", "#c9cbd0", "#fffffe", "#ecedf0"
SERIES = ("#1f5f9a", "#b3470e", "#1e7b57", "#8a3f83", "#6b6100", "#44525f")
MARKERS = ("o", "s", "^", "D", "v", "P")
FLOOR = "#a81f3a"
THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PAPER: "var(--paper)",
    EMPTY: "var(--empty)",
    FLOOR: "var(--floor)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES)},
}
"""Colour in the files → what the page's own copy says instead."""

DPI = 200
MOST_PIXELS = 4e7
FONTS = ["DejaVu Sans", "Verdana"]
_RC = {
    "font.family": ["sans-serif"],
    "font.sans-serif": FONTS,
    "svg.fonttype": "none",
    "svg.hashsalt": "persona-mlflow",
    "axes.unicode_minus": True,
    "text.usetex": False,
    "text.parse_math": False,
    "path.simplify": False,
}


def style() -> AbstractContextManager[None]:
    """Matplotlib's defaults and ours, for as long as a figure is drawn; what the caller had set returns."""
    import matplotlib.style

    return matplotlib.style.context(["default", _RC])


# ------------------------------------------------------------------------------------------------------ text


@lru_cache(maxsize=4)
def _font(bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
    font.set_size(100, 72)
    return font


@lru_cache(maxsize=8192)
def _advance(sign: str, bold: bool) -> float:
    font = _font(bold)
    if not font.get_char_index(ord(sign)):
        return 1.2  # from another font: as wide as an emoji
    return float(font.load_char(ord(sign)).linearHoriAdvance) / 65536 / 100


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of one line in px, at a text size in px."""
    return HINTING * size * sum(_advance(sign, bold) for sign in text)


def wrap(text: str, width: float, size: float, lines: int = 3, bold: bool = False) -> list[str]:
    """Break a label into lines that fit a width: behind ``·``, else at spaces and behind ``/ - _ ,``.

    A word that is wider than that breaks where it must.

    Args:
        text: One line.
        width: In px.
        size: Of the text, in px.
        lines: The most lines; a text that needs more ends in an ellipsis.
        bold: Whether it is set in bold.
    """
    pieces: list[str] = []
    for part in re.findall(r"[^·]+·?\s*|·\s*", text):
        fits = text_width(part.rstrip(), size, bold) <= width
        pieces += [part] if fits else filter(None, re.findall(r"[^\s/\-_,]*[/\-_,]?\s*", part))
    found, line = [], ""
    for piece in pieces:
        while text_width((line + piece).rstrip(), size, bold) > width:
            if line.strip():
                found.append(line.strip())
                line = ""
                continue
            fit = next((n for n in range(len(piece), 0, -1) if text_width(piece[:n], size, bold) <= width), 1)
            if fit >= len(piece.rstrip()):
                break
            found.append(piece[:fit])
            piece = piece[fit:]
        line += piece
    if line.strip() or not found:
        found.append(line.strip())
    if len(found) > lines:
        last = found[lines - 1]
        while last and text_width(last + "…", size, bold) > width:
            last = last[:-1]
        found = [*found[: lines - 1], last.rstrip() + "…"]
    return found


def widest(lines: Sequence[str], size: float, bold: bool = False) -> float:
    """Width in px of the widest line."""
    return max((text_width(line, size, bold) for line in lines), default=0.0)


def number_format(values: np.ndarray, unit: str = "") -> str:
    """The format that shows the largest of some values with about three digits."""
    finite = np.abs(values[np.isfinite(values)])
    top = float(finite.max()) if finite.size else 1.0
    if unit in ("percent", "%"):
        return ".1f"
    if unit == "count":
        return ".0f"
    if top >= 100:
        return ".0f"
    if top >= 10:
        return ".1f"
    if top >= 1:
        return ".2f"
    return ".3f" if top >= 0.1 else ".4f"


def short_number(value: float, spec: str) -> str:
    """A number as a cell or an axis shows it; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:{spec}}"
    return (text if text.strip("-0.") else text.lstrip("-")).replace("-", "−")


# ---------------------------------------------------------------------------------------------------- canvas


class Canvas:
    """A figure with one coordinate system: CSS pixels, from the top left corner.

    Args:
        width: In px.
        height: In px.
        alt: The figure in a sentence, for whoever cannot see it.
    """

    def __init__(self, width: float, height: float, alt: str = "") -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height, self.alt = float(np.ceil(width)), float(np.ceil(height)), alt
        self.figure: Figure = Figure((self.width / 96, self.height / 96), dpi=96, facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1), facecolor="none", frameon=False)
        self.axes.set(xlim=(0, self.width), ylim=(self.height, 0), autoscale_on=False)
        self.axes.set_axis_off()
        self._svg_only: list[Artist] = []
        self._png_only: list[Artist] = []

    def either(self, svg: Artist, png: Artist) -> None:
        """Let one thing be drawn in two ways, as each format does it best."""
        self._svg_only.append(svg)
        self._png_only.append(png)

    def text(
        self,
        x: float,
        y: float,
        text: str | Sequence[str],
        *,
        size: float = LABEL,
        colour: str = INK,
        align: str = "left",
        bold: bool = False,
        upright: bool = False,
    ) -> None:
        """Write lines: `y` is the middle of the block, or where upright text ends.

        Args:
            x: Left end, middle or right end, as `align` says; the middle of upright text.
            y: As said.
            text: One line or several.
            size: In px.
            colour: Of the text.
            align: ``left``, ``center`` or ``right``.
            bold: Whether it is set in bold.
            upright: Read it from bottom to top.
        """
        lines = [text] if isinstance(text, str) else list(text)
        step = size * LEADING
        for i, line in enumerate(lines):
            shift = (i - (len(lines) - 1) / 2) * step
            if not line:
                continue
            self.axes.text(
                x + shift if upright else x,
                y if upright else y + shift,
                line,
                fontsize=size * 0.75,
                color=colour,
                fontweight="bold" if bold else "normal",
                ha="center" if upright else align,
                va="bottom" if upright else "center_baseline",
                rotation=90 if upright else 0,
                parse_math=False,
            )

    def segments(
        self, starts: np.ndarray, ends: np.ndarray, colour: str = LINE, width: float = 1.0, order: float = 1.0
    ) -> None:
        """Draw straight lines between points, each an n × 2 array in px."""
        from matplotlib.collections import LineCollection

        lines = np.stack([np.atleast_2d(starts), np.atleast_2d(ends)], axis=1)
        self.axes.add_collection(
            LineCollection(list(lines), colors=colour, linewidths=width * 0.75, zorder=order), autolim=False
        )

    def points(
        self,
        x: Any,
        y: Any,
        colour: str,
        marker: str = "o",
        size: float = 7.0,
        alpha: float = 1.0,
        edge: str = "none",
    ) -> None:
        """Draw markers of a size in px."""
        self.axes.plot(
            np.atleast_1d(x),
            np.atleast_1d(y),
            linestyle="none",
            marker=marker,
            markersize=size * 0.75,
            markerfacecolor=colour,
            markeredgecolor=edge,
            markeredgewidth=0.75,
            alpha=alpha,
            zorder=3,
        )

    def rectangle(
        self, x: float, y: float, width: float, height: float, colour: str, edge: str = "none"
    ) -> None:
        """Fill a rectangle."""
        from matplotlib.patches import Rectangle

        self.axes.add_patch(
            Rectangle((x, y), width, height, facecolor=colour, edgecolor=edge, linewidth=0.75, zorder=2)
        )

    def _save(self, sink: Any, **options: Any) -> None:
        import warnings

        for svg, png in zip(self._svg_only, self._png_only, strict=True):
            svg.set_visible(options["format"] == "svg")
            png.set_visible(options["format"] == "png")
        with style(), warnings.catch_warnings():
            # A browser has fonts for the characters that ours lacks.
            warnings.filterwarnings("ignore", message="Glyph")
            self.figure.savefig(sink, facecolor=PAPER, **options)

    def svg(self) -> str:
        """The figure as an SVG document."""
        sink = io.StringIO()
        self._save(sink, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"

    def png(self) -> bytes:
        """The figure as a PNG of 200 dots per inch; fewer where that would be over 40 million pixels."""
        area = self.width * self.height / 96**2
        dpi = min(DPI, int((MOST_PIXELS / area) ** 0.5))
        sink = io.BytesIO()
        self._save(
            sink,
            format="png",
            dpi=dpi,
            metadata={"Software": "persona-mlflow"},
            pil_kwargs={"compress_level": 4},
        )
        return sink.getvalue()
