"""Compare a reply's words with the option texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from persona_mlflow.errors import UserError
from persona_mlflow.parsing.cleaning import clean
from persona_mlflow.parsing.rules import COMPILED

# Words, numbers and the symbols that carry meaning; other punctuation is skipped. A hyphen between two
# letters is no more than a space, a minus sign is kept.
_TOKEN = re.compile(
    r"\.?\d+(?:[.,]\d+)*|[^\W\d_](?:[^\W_]|[\u0300-\u036f])*"
    r"|(?<![^\W\d_])-(?=\S)|-(?=\d)|[+/^=<>%°±×÷√≤≥≠≈∞∪∩|&#@¬∧∨→¹²³⁴⁵⁶⁷⁸⁹⁰]"
)
_ANSWER_WORDING = COMPILED["cue_lower"]
_CJK_WORDING = COMPILED["cue_cjk"]
_ARTICLES = frozenset({"a", "an", "the"})

# What may follow an option's text for the text to be all that is said: the end of the line or sentence,
# a closing quote or bracket, or the start of a reason.
_TEXT_END = re.compile(
    r"[\"')\]}]*+(?:\s*+$|[^\S\n]*+\n|[.!?;]++(?!\w)|\s*+</"
    r"|,?\s++(?:because|since)\b|,\s++(?:as|it|it's|this|that|they|he|she|which|not|rather)\b"
    r"|\s++\(|\s*+[-:]\s)|[\"')\]}]"
)


@lru_cache(maxsize=4096)
def _folded(token: str) -> str:
    token = token.lower() if token.isascii() else unicodedata.normalize("NFC", token).casefold()
    return token.replace(",", "") if "," in token else token


class Words:
    """The tokens of a text from an offset on, read only as far as asked.

    Args:
        text: The text, cleaned.
        start: Offset to read from.
        end: Offset to stop at.
    """

    def __init__(self, text: str, start: int, end: int) -> None:
        self.raw: list[str] = []
        self.folded: list[str] = []
        self.ends: list[int] = []
        self._more = _TOKEN.finditer(text, start, end)

    def read(self, count: int) -> int:
        """Read on until ``count`` tokens are known, and return how many are."""
        while len(self.raw) < count:
            match = next(self._more, None)
            if match is None:
                break
            self.raw.append(match[0])
            self.folded.append(_folded(match[0]))
            self.ends.append(match.end())
        return len(self.raw)

    def skips(self, text: str) -> tuple[int, ...]:
        """How many leading words may be left out: an article before a word, "A)" is none."""
        end = self.ends[0]
        article = (
            self.folded[0] in _ARTICLES and text[end : end + 1] == " " and text[end + 1 : end + 2].isalnum()
        )
        return (0, 1) if article else (0,)


def _tokens(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All tokens as written, and folded with a leading article left out."""
    words = Words(text, 0, len(text))
    count = words.read(len(text) + 1)
    article = count > 1 and words.folded[0] in _ARTICLES
    return tuple(words.raw), tuple(words.folded[article:])


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of one question, prepared for comparison.

    Attributes:
        letters: The valid letters in order.
        texts: Option texts, cleaned; empty where only letters are known.
        raw: Tokens of each option text as written.
        folded: The same, case and thousands separators folded, a leading article left out.
        heads: The first tokens of the option texts, a leading article left out.
        longest: Most tokens of any option text.
        lower: Those option texts, in lower case, that hold the wording of an answer themselves.
    """

    letters: tuple[str, ...]
    texts: tuple[str, ...]
    raw: tuple[tuple[str, ...], ...]
    folded: tuple[tuple[str, ...], ...]
    heads: frozenset[str]
    longest: int
    lower: tuple[str, ...]

    def _may_start(self, text: str, start: int) -> bool:
        """Whether the first token from an offset on is one that an option text starts with."""
        if not self.texts:
            return False
        token = _TOKEN.search(text, start)
        if token is None:
            return False
        first = _folded(token[0])
        if first not in _ARTICLES or first in self.heads:
            return first in self.heads
        token = _TOKEN.search(text, token.end())
        return token is not None and _folded(token[0]) in self.heads

    def match(self, text: str, start: int, *, whole: bool = False) -> tuple[str, int]:
        """Find the option whose text stands at an offset.

        Args:
            text: The reply, cleaned.
            start: Where the option's text would start.
            whole: Whether the option's text must reach the end of the reply.

        Returns:
            The letters of the options that match there over the most words (several where option texts
            are duplicates, empty where none match), and where the match ends.
        """
        if not self._may_start(text, start):
            return "", start
        words = Words(text, start, len(text))
        if not words.read(1):
            return "", start
        best: list[int] = []
        end, size = start, 0
        skips = words.skips(text)
        for index, tokens in enumerate(self.folded):
            for skip in skips if tokens else ():
                need = skip + len(tokens)
                if words.read(skip + 1) == skip or words.folded[skip] != tokens[0]:
                    continue
                if words.read(need) < need or tuple(words.folded[skip:need]) != tokens:
                    continue
                if len(tokens) == len(tokens[0]) == 1 and words.raw[skip] != self.raw[index][-1]:
                    continue  # a one-character option must match in case: "e" is not the letter E
                if words.read(need + 1) > need if whole else not _TEXT_END.match(text, words.ends[need - 1]):
                    continue
                if need > size:
                    best, end, size = [index], words.ends[need - 1], need
                elif need == size:
                    best.append(index)
                break
        if len(best) > 1:  # options that differ only in case, as genotypes do, or in the article
            said = words.raw[:size]
            best = [i for i in best if said == list(self.raw[i])] or best
        return "".join(self.letters[i] for i in best), end

    def prefix(self, text: str, start: int, end: int) -> str:
        """Return the letters of the options whose text begins with the words of ``text[start:end]``."""
        if not self._may_start(text, start):
            return ""
        words = Words(text, start, end)
        if not words.read(1):
            return ""
        words.read(self.longest + 2)
        said = tuple(words.folded)
        if said[0] in _ARTICLES and len(said) > 1:
            said = said[1:]
        return "".join(
            letter
            for letter, tokens in zip(self.letters, self.folded, strict=True)
            if tokens[: len(said)] == said
        )

    def text_tokens_at(self, text: str, start: int, letter: str) -> int:
        """Return where the words of one option's text end, ``start`` where they do not stand there."""
        if not self._may_start(text, start):
            return start
        tokens = self.folded[self.letters.index(letter)]
        words = Words(text, start, len(text))
        if not tokens or not words.read(1):
            return start
        for skip in words.skips(text):
            need = skip + len(tokens)
            if words.read(need) == need and tuple(words.folded[skip:need]) == tokens:
                return words.ends[need - 1]
        return start

    def covers(self, lower: str, start: int) -> bool:
        """Whether the reply, at an offset, is quoting an option text that itself looks like an answer."""
        for option in self.lower:
            at = lower.rfind(option, max(0, start - len(option)), start + len(option))
            if 0 <= at <= start < at + len(option):
                return True
        return False


def option_table(options: Mapping[str, str] | Sequence[str]) -> OptionTable:
    """Prepare a question's options, once per question.

    Args:
        options: The valid letters (a list or a string), or a mapping letter → option text.

    Returns:
        The table.

    Raises:
        UserError: A letter is not one of A–Z, occurs twice, or there is none.
    """
    if isinstance(options, Mapping):
        return _table(tuple(options), tuple(options.values()))
    return _table(tuple(options), ())


@lru_cache(maxsize=16384)
def _table(letters: tuple[str, ...], texts: tuple[str, ...]) -> OptionTable:
    wrong = [x for x in letters if not (isinstance(x, str) and len(x) == 1 and "A" <= x <= "Z")]
    if wrong or not letters or len(set(letters)) != len(letters):
        what = (
            f"{wrong[0]!r} is no option letter" if wrong else f"the letters {letters!r} are empty or repeat"
        )
        raise UserError(f"options: {what}; give distinct capital letters, e.g. 'ABCD' or {{'A': 'text', …}}")
    not_text = [x for x, text in zip(letters, texts, strict=bool(texts)) if not isinstance(text, str)]
    if not_text:
        raise UserError(f"options: the text of {not_text[0]!r} is not a string; quote it where it is defined")
    cleaned = tuple(clean(text).text.strip() for text in texts)
    pairs = [_tokens(text) for text in cleaned]
    return OptionTable(
        letters=letters,
        texts=cleaned,
        raw=tuple(raw for raw, _ in pairs),
        folded=tuple(folded for _, folded in pairs),
        heads=frozenset(folded[0] for _, folded in pairs if folded),
        longest=max((len(folded) for _, folded in pairs), default=0),
        lower=tuple(
            text.lower()
            for text in cleaned
            if _ANSWER_WORDING.search(text.lower()) or _CJK_WORDING.search(text.lower())
        ),
    )
