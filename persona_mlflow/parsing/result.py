"""What parsing a reply gives."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Status = Literal[
    "ok",
    "empty",
    "refusal",
    "ambiguous",
    "out_of_range",
    "truncated",
    "unclosed_thinking",
    "no_answer",
]

STATUSES: tuple[Status, ...] = get_args(Status)
"""Every status, ``ok`` first. All but ``ok`` mean that the reply gives no letter."""


class ParsedAnswer(NamedTuple):
    """The answer that a reply commits to.

    Attributes:
        letter: The option's letter, or ``None`` for every status but ``ok``.
        status: ``ok``; ``empty`` (nothing written); ``refusal`` (declines or does not know);
            ``ambiguous`` (several options, or a letter with another option's text); ``out_of_range``
            (a letter that no option has); ``truncated`` (cut by the token limit before it committed);
            ``unclosed_thinking`` (a reasoning trace that never ends); ``no_answer`` (anything else).
        span: Half-open character range of the accepted letter or option text in the reply, or ``None``.
    """

    letter: str | None
    status: Status
    span: tuple[int, int] | None
