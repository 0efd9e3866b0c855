"""Rows of small data sets in the published forms. All texts are our own."""

from __future__ import annotations

from collections.abc import Sequence

SOCIAL_QUESTIONS = {
    "wants": "What will {who} want to do next?",
    "reactions": "How would {who} feel afterwards?",
    "descriptions": "How would you describe {who}?",
    "motivations": "Why did {who} do this?",
    "needs": "What does {who} need to do before this?",
    "effects": "What will happen to {who}?",
    "misc.": "What did {who} say?",
}


def mmlu_rows(subject: str, n: int) -> list[list[str]]:
    """``n`` different rows of a made-up subject, the answers A, B, C, D in turn."""
    return [
        [f"{subject}: what is {i} + 1?", *(str(i + k) for k in (1, 2, 3, 4)), "A"]
        if i % 4 == 0
        else [f"{subject}: which number follows {i}?", "none", str(i + 1), "all", str(i), "B"]
        for i in range(n)
    ]


def social_rows(n: int, types: Sequence[str] = tuple(SOCIAL_QUESTIONS)) -> list[list[str]]:
    """``n`` different rows of each type, the labels 1, 2, 3 in turn."""
    return [
        [
            f"Mo mended {i} old bikes.",
            SOCIAL_QUESTIONS[t].format(who="Mo"),
            "ride",
            "rest",
            "wave",
            str(i % 3 + 1),
        ]
        for t in types
        for i in range(n)
    ]


def normad_rows(countries: Sequence[str], n: int) -> list[list[str]]:
    """``n`` different stories for each country, the gold labels in turn."""
    gold = ("yes", "no", "neutral")
    return [
        [country, f"Guest {i} left the shoes, and a note, at the door of {country}.", gold[i % 3]]
        for country in countries
        for i in range(n)
    ]
