"""From a direct judge's reply to its rating, or to a named reason for none (P2 §4).

Strict by design. A score counts where the reply states it as its score: ``Score: 4``, ``4/5``, a number that
stands alone, ``{"score": 4}``. The last such statement wins. Scores that are merely mentioned (``a score of
5 would need …``), several that differ, and anything off the scale leave the case unscored.
"""

# ruff: noqa: E501 (patterns)

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from persona_mlflow.parsing.cleaning import clean, reply_start
from persona_mlflow.parsing.refusals import is_refusal

LABELS = ("score", "rating", "grade")

_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: n for n, word in enumerate(_NAMES)}
_NUMBER = (
    rf"(?P<number>[-+]?\d+(?:[.,]\d+)?|{'|'.join(_WORDS)})(?![\w])"
    r"(?P<range>\ ?(?:-|to|or|and)\ ?\d(?![\w]))?"
    r"(?:\s*(?:/|\bout\ of\b|\bof\b)\s*(?P<points>\d+(?:\.\d+)?)(?![\w]))?"
    r"(?P<percent>\ ?%)?"
)
# What may stand between the label's colon and the number.
_OPEN = r"[\s\"'(\[{<]*"
_LEAD = (
    r"(?:(?:so|thus|therefore|hence|in\ conclusion|conclusion|answer|final|overall|total|my|the|own"
    r"|numeric(?:al)?|fit|persona|judge's?|assigned|this\ is|it\ is)[\s,:-]{1,4}){0,5}"
)
_ASIDE = r"(?:\ ?\([^()\n]{0,60}\)|\ ?\[[^\[\]\n]{0,40}\])?"
# A claim about some other case: conditions, negations, comparisons; and what a score would mean.
_NOT_THIS = re.compile(
    r"(?:(?:\bnot\b|n't\b|\bcannot\b|\bnever\b|\bneither\b|\brather\ than\b|\binstead\ of\b|\bthan\b|\babove\b"
    r"|\bat\ (?:least|most)\b|\bbelow\b|\bcould\b|\bmight\b|\bwhether\b|\bwhy\b)[^.,;:!?\n]{0,40}"
    r"|(?:\bif\b|\bunless\b)[^.!?\n]{0,80})\Z",
    re.VERBOSE,
)
_MEANING = re.compile(
    r"[\s)\"'\]]{0,3}(?:would|could|might|means?\b|meaning\b|indicat|represent|stands?\ for|correspond|requires?\b"
    r"|is\ (?:for|reserved|given|when)\b|if\b|when\b|=)",
    re.VERBOSE,
)
_SCALE = re.compile(
    r"(?:\b(?:on|from|of|to|a|the|scale|range|between|using)\ ){0,5}\(?\b1\ ?(?:-|to|and|through)\ ?(?:5|7|10|100)\b"
    r"(?:[\ -](?:point\ )?(?:scale|rubric|range))?\)?",
    re.VERBOSE,
)
_NEW_CASE = re.compile(
    r"^\W{0,4}(?:<(?:persona|context|reply)>|(?:persona|context|reply)\s*:|###)", re.MULTILINE
)
_NUMBER_LED = re.compile(r"^[\W_]{0,4}\d+(?:\.\d+)?\s*(?:[-:=.)]|means?\b|is\b)", re.MULTILINE)
_ALONE = re.compile(rf"^[\W]{{0,4}}(?<![-+]){_NUMBER}[\s)\]\"'.!]*$", re.MULTILINE | re.VERBOSE)
_STARTS = re.compile(rf"\A\W{{0,4}}(?<![-+]){_NUMBER}\s*(?:[-:,(]|\bbecause\b|\bsince\b)\s*\D", re.VERBOSE)
_RATED = re.compile(
    r"\b(?:rate|rated|give|assign|award|score|scored|say|deserves?|merits?|earns?|gets?|receives?|choose|select|pick"
    r"|settle\ on|go\ with)\b[^.!?;:\n\d]{0,60}?(?:(?<=\s)|(?<=[(\"']))"
    rf"{_NUMBER}(?=\s*(?:$|[.,;:!)\n\"']|\bon\ (?:the|a|this)\b|\b(?:because|for|since|as|in)\b))",
    re.VERBOSE | re.MULTILINE,
)
_DECLINED = re.compile(
    r"(?:\bi(?:'m|\ am)?|\bwe(?:'re|\ are)?)\s(?:\w+\s)?(?:can(?:no|')t|can\ not|won't|will\ not|unable\ to|not\ able\ to|decline\ to|refuse\ to"
    r"|must\ decline\ to|not\ comfortable)\s(?:\w+\s)?(?:rat|evaluat|judg|assess|scor|rank|grad|provid)(?:e|ing|ed)?\b",
    re.VERBOSE,
)
_FRACTION = re.compile(
    r"(?<![\w./-])(?P<number>[-+]?\d+(?:[.,]\d+)?)(?P<range>(?!x)x)?\s*(?:/|\bout\ of\b)\s*"
    r"(?P<points>\d+(?:\.\d+)?)(?![\w/])(?P<percent>(?!x)x)?",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Rating:
    """A direct judge's rating.

    Attributes:
        value: A whole number from 1 to the rubric's points; None where there is none.
        reason: Key of `persona_mlflow.prism.judges.base.REASONS` where there is none, otherwise empty.
    """

    value: int | None
    reason: str = ""


def parse_rating(
    reply: str,
    points: int,
    *,
    finished: bool = True,
    reasons_first: bool = False,
    labels: Sequence[str] = LABELS,
    labelled_only: bool = False,
) -> Rating:
    """Read the rating that a reply states.

    Args:
        reply: The judge's whole turn.
        points: The scale's maximum, 5 or 7; its minimum is 1.
        finished: Whether the judge ended its turn; False where a limit cut it.
        reasons_first: Whether the score was asked for at the end: then a cut reply has none.
        labels: What the score is called.
        labelled_only: Whether only ``label: number`` counts.

    Returns:
        The rating, or the reason for none.
    """
    start = reply_start(reply)
    if start is None:
        return Rating(None, "unclosed_thinking")
    text = clean(reply, start).lower.strip()
    if not text:
        return Rating(None, "empty" if finished else "truncated")
    if not finished and reasons_first:
        return Rating(None, "truncated")
    text = _SCALE.sub(_blank, text)
    stated, mentioned = _label_patterns(tuple(labels))
    final = _claims(stated, text)
    if final:
        # A model that goes on inventing cases scores those too.
        own = _NEW_CASE.search(text, final[0].end())
        final = [match for match in final if own is None or match.start() < own.start()]
        found = final[-1:]
    elif labelled_only:
        found = []
    else:
        own = _NEW_CASE.search(text)
        text = text[: own.start()] if own and own.start() else text
        found = _lone(text, finished) or [
            match for pattern in (mentioned, _RATED, _FRACTION) for match in _claims(pattern, text)
        ]
    if not finished:
        # The next token may have gone on with the number: "4" of "4.5".
        found = [match for match in found if match.end() < len(text)]
    ratings = {_value(match, points) for match in found}
    if not ratings:
        return Rating(None, _why_none(text, finished))
    if len(ratings) > 1:
        return Rating(None, "ambiguous")
    return ratings.pop()


def _label_patterns(labels: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What states the score, and what mentions one: both take the labels."""
    label = rf"(?:{'|'.join(map(re.escape, labels))})"
    stated = re.compile(
        rf"(?:^[^\w\n]{{0,8}}(?:\d{{1,2}}[.)]\ )?{_LEAD}|(?<=[.!?])\ {_LEAD}|(?<=[\"'{{]){_LEAD}|\b(?:final|overall)\ )"
        rf"{label}[\"']?{_ASIDE}\s*(?:[:=]|->|\bis\b(?:\s*:)?){_OPEN}{_NUMBER}",
        re.VERBOSE | re.MULTILINE,
    )
    mentioned = re.compile(
        rf"\b{label}\b[\"']?{_ASIDE}(?:\s+(?:as|at|of|is|to\ be|an?|would\ be|should\ be|here|it|this))*\s*[:=]?"
        rf"{_OPEN}{_NUMBER}",
        re.VERBOSE | re.MULTILINE,
    )
    return stated, mentioned


def _claims(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The matches that claim a score for this case."""
    return [
        match
        for match in pattern.finditer(text)
        if not _NOT_THIS.search(text, max(0, match.start() - 100), match.start())
        and not _NOT_THIS.search(text, match.start(), match.start("number"))
        and not _MEANING.match(text, match.end())
    ]


def _lone(text: str, finished: bool) -> list[re.Match[str]]:
    """A number that is the whole reply, its first line or its last, or that opens it."""
    lines = list(_ALONE.finditer(text))
    whole = [m for m in lines if not text[: m.start()].strip() and not text[m.end() :].strip()]
    if whole:
        return whole
    # "1." on a line of its own is the head of a list, not a score.
    lines = [m for m in lines if "." not in m.group()[m.end("number") - m.start() :]]
    edges = [m for m in lines if not text[: m.start()].strip() or (finished and not text[m.end() :].strip())]
    if edges:
        return edges if len(lines) == len(edges) else lines
    opening = _STARTS.match(text)
    return [opening] if opening and len(_NUMBER_LED.findall(text)) <= 1 else []


def _value(match: re.Match[str], points: int) -> Rating:
    if match["range"]:
        return Rating(None, "ambiguous")
    number = match["number"].replace(",", ".")
    value = float(_WORDS.get(number, number))
    scale = match["points"]
    if match["percent"] or (scale and float(scale) != points) or not value.is_integer():
        return Rating(None, "off_scale")
    return Rating(int(value)) if 1 <= value <= points else Rating(None, "off_scale")


def _why_none(text: str, finished: bool) -> str:
    if is_refusal(text) or _DECLINED.search(text[:300]):
        return "refusal"
    return "no_score" if finished else "truncated"


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())
