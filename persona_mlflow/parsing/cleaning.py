"""Take off what decorates a reply, and remember where each remaining character came from."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass

# Reasoning traces: <think>, <thinking>, <thought>, [THINK] (Magistral), ◁think▷ (Kimi).
_TRACE = re.compile(r"[<\[◁](/?)(?:think(?:ing)?|thought)[>\]▷]", re.IGNORECASE)

_INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f\x80-\x84\x86-\x9f\u00ad\u061c\u180e\u200b-\u200f"
    "\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff"
)

# One leading character class, so that the scan skips plain text at full speed; what may follow each
# leading character is told by a look-behind. All repetition is possessive or bounded: linear time.
_DECORATION = re.compile(
    rf"[*`$\\~<_{_INVISIBLE}]"
    r"(?:"
    rf"(?<=[*`${_INVISIBLE}])[*`${_INVISIBLE}]*+"
    r"|(?<=\\)(?:(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|emph|underline|left|right"
    r"|q?quad|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])|[()\[\]*_`$#,;:! ])"
    r"|(?<=~)~[^~\n]{0,200}~~"
    r"|(?<=<)(?:/?(?:b|i|u|s|em|strong|code|p|br|span|div|mark|sub|sup|pre|font|center|h[1-6])"
    r"(?: [^<>\n]{0,60})?/?"
    r"|\|[^<>|\n]{1,40}\||eos|pad|end_of_turn)>"
    r"|(?<=_)(?:(?<![^\W_]_)_*+|_*+(?![^\W_]))"
    r")"
)


def _one_to_one() -> dict[int, str]:
    """Map typographic variants to ASCII, one character to one character."""
    table = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    for code in (*range(0x24B6, 0x24EA), *range(0x1D400, 0x1D7FF)):  # Ⓑ, mathematical bold B
        plain = unicodedata.normalize("NFKC", chr(code))
        if len(plain) == 1 and plain.isascii():
            table[code] = plain
    for code in range(26):  # 🄰 🅐 🅰
        for base in (0x1F130, 0x1F150, 0x1F170):
            table[base + code] = chr(65 + code)
    for characters, plain in (
        (
            "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t",
            " ",
        ),
        ("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "\n"),
        ("“”„‟«»″", '"'),
        ("‘’‚‛ʼ′", "'"),
        ("‐‑‒–—―−", "-"),
        ("。．｡", "."),
        ("、", ","),
        ("…", "."),
        ("【「『〔〈《［", "["),
        ("】」』〕〉》］", "]"),
        ("∶ː", ":"),
        ("İ", "I"),
    ):
        table.update(dict.fromkeys(map(ord, characters), plain))
    return table


_PLAIN = _one_to_one()


@dataclass(frozen=True, slots=True)
class Clean:
    """A reply without decoration.

    Attributes:
        text: The characters that remain, typographic variants made ASCII.
        lower: The same in lower case, character by character.
        starts: Offsets in `text` at which a piece starts that was contiguous in the reply.
        origins: The offset of each such piece in the reply.
    """

    text: str
    lower: str
    starts: tuple[int, ...]
    origins: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Translate a non-empty half-open range of `text` to the reply's."""
        return self._origin(start), self._origin(end - 1) + 1

    def _origin(self, index: int) -> int:
        piece = bisect_right(self.starts, index) - 1
        return self.origins[piece] + index - self.starts[piece]


def reply_start(text: str) -> int | None:
    """Find where the reply proper starts: after the last closed reasoning trace.

    Args:
        text: The assistant's whole turn, any pre-filled opening tag included.

    Returns:
        The offset, 0 where there is no trace, or ``None`` where a trace was opened and not closed.
    """
    tags = list(_TRACE.finditer(text))
    last = tags[-1] if tags else None
    if last is None:
        return 0
    return last.end() if last[1] else None


def clean(text: str, start: int = 0) -> Clean:
    """Strip decoration from ``text[start:]``.

    Removed are Markdown emphasis and code marks, struck-out text, LaTeX font and math marks, HTML
    formatting tags, left-over special tokens, control and zero-width characters. Full-width and circled
    letters, typographic quotes and dashes become their ASCII forms.
    """
    if not text.isascii() or "\t" in text or "\x0b" in text or "\x0c" in text:
        plain = text.translate(_PLAIN)
    else:
        plain = text
    if "\r" in plain:
        plain = plain.replace("\r\n", " \n").replace("\r", "\n")  # keeps the length
    pieces: list[str] = []
    starts: list[int] = []
    origins: list[int] = []
    length = 0
    at = start
    for match in _DECORATION.finditer(plain, start):
        begin, end = match.span()
        if begin > at:
            pieces.append(plain[at:begin])
            starts.append(length)
            origins.append(at)
            length += begin - at
        at = end
    if at < len(plain) or not pieces:
        pieces.append(plain[at:])
        starts.append(length)
        origins.append(at)
    joined = "".join(pieces)
    lower = joined.lower()
    if len(lower) != len(joined):
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in joined)
    return Clean(joined, lower, tuple(starts), tuple(origins))
