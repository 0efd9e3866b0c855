"""What makes a row of benchmark data doubtful: null cells, refusals, and responses that are all but equal.

The rules are ours. P2's groups hold responses that tell profiles apart; a text that two profiles share, or
that no character speaks, does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from persona_mlflow.errors import UserError, choices

NULL = "null"
REFUSED = "refused"
IDENTICAL = "identical"
NEAR_DUPLICATE = "near-duplicate"

DOUBTS = (NULL, REFUSED, IDENTICAL, NEAR_DUPLICATE)
"""The kinds of rows that are left out unless kept by name; a row has the first that applies."""

NEAR = 0.6
"""Jaccard similarity of the pairs of neighbouring words from which two responses are near-duplicates."""

_NULLS = frozenset({"", "null", "none", "nan", "n/a", "na", "nil", "undefined", "<na>", "#n/a"})

# A character may well say "sorry, I can't"; what gives a refusal away is the assistant speaking of itself, of
# the rules that it follows, or of its task.
_MODEL = r"(?:\w+ )?(?:ai|artificial intelligence|(?:large )?language model)\b"
_HUMAN = r"(?! (?:researcher|engineer|expert|scientist|specialist|student|developer))"
_CANNOT = r"(?:can(?:no|')t|can not|won't|will not|(?:am|'m) (?:not able|unable) to|must decline to)"
_DO = (
    r"(?:fulfil+|comply with|(?:assist|help)(?: you)? with|complete|create|generate|produce|provide|write"
    r"|engage (?:in|with)|continue|respond to|role-?play)"
)
_TASK = (
    r"(?:request|prompt|content|response|role-?play|material|explicit|harmful|scenario|instructions?"
    r"|conversation)"
)
_REFUSED = re.compile(
    rf"\b(?:as|i am|i'm) (?:just |only )?an? {_MODEL}{_HUMAN}"
    rf"|\bi ?{_CANNOT} (?:\w+ )?{_DO} (?:\w+ ){{0,3}}?{_TASK}\b"
    r"|\bsorry,? but i (?:can(?:no|')t|can not) (?:assist|help)(?: you)? with (?:that|this)\s*[.!]?\s*\Z"
    r"|\b(?:violates?|goes against|against) (?:my|the|our|openai's) (?:\w+ )?"
    r"(?:guidelines|policy|policies|programming)\b"
)
_WORD = re.compile(r"\w+(?:'\w+)?")


def check_keep(keep: Iterable[str]) -> frozenset[str]:
    """The kinds to keep, checked.

    Raises:
        UserError: A kind that is not one of `DOUBTS`.
    """
    kept = frozenset([keep] if isinstance(keep, str) else keep)
    for kind in sorted(kept, key=str):
        if kind not in DOUBTS:
            raise UserError(f"keep: unknown kind {kind!r}; {choices(str(kind), DOUBTS)}")
    return kept


def is_null(text: str) -> bool:
    """Whether a cell is empty or holds only a word for a missing value, such as ``None``."""
    return text.strip().casefold() in _NULLS


def is_refusal(text: str) -> bool:
    """Whether the model that wrote a response speaks as an assistant that declines, not as the character."""
    return bool(_REFUSED.search(" ".join(text.casefold().replace("’", "'").split())))


def doubt(context: str, response: str) -> str | None:
    """`NULL` where context or response is, `REFUSED` where the response is a refusal, else ``None``."""
    if is_null(context) or is_null(response):
        return NULL
    return REFUSED if is_refusal(response) else None


def alike(texts: Sequence[str]) -> list[str | None]:
    """Which of a few texts are, to a reader, the same as another of them.

    Args:
        texts: Texts that are compared with each other, such as all responses of one scenario.

    Returns:
        Per text `IDENTICAL` (as another but for case, punctuation and spaces), `NEAR_DUPLICATE` (at least
        `NEAR` similar to another), or ``None``.
    """
    words = [_WORD.findall(text.casefold().replace("’", "'")) for text in texts]
    pairs = [frozenset(pairwise(w)) for w in words]
    found: list[str | None] = [None] * len(texts)
    for i, j in combinations(range(len(texts)), 2):
        if words[i] == words[j] and (words[i] or texts[i].strip() == texts[j].strip()):
            found[i] = found[j] = IDENTICAL
            continue
        small, large = sorted((len(pairs[i]), len(pairs[j])))
        if not large or small < NEAR * large:
            continue
        shared = len(pairs[i] & pairs[j])
        if shared >= NEAR * (small + large - shared):
            found[i] = found[i] or NEAR_DUPLICATE
            found[j] = found[j] or NEAR_DUPLICATE
    return found


def same_wording(texts: Iterable[str]) -> bool:
    """Whether texts differ in nothing but spaces and the quotes around them."""
    return len({" ".join(text.split()).strip("\"'“”‘’ ") for text in texts}) <= 1
