"""Judges to compare PRISM with (P2 §4): direct judging, Selene, PandaLM, AlignScore.

`load_judge` makes one by name, `judge_examples` runs one over a benchmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    from persona_mlflow.prism.judges.base import ScoringJudge, TextJudge

JUDGES = ("vanilla", "cot", "selene", "pandalm", "alignscore")
"""The methods that `load_judge` knows."""

_EXPORTS = {
    "REASONS": "base",
    "Query": "base",
    "ScoringJudge": "base",
    "TextJudge": "base",
    "Verdict": "base",
    "judge_decoding": "base",
    "POINTS": "direct",
    "TEMPERATURES": "direct",
    "DirectJudge": "direct",
    "SeleneJudge": "selene",
    "PandaLMJudge": "pandalm",
    "AlignScoreJudge": "alignscore",
    "JudgeLog": "run",
    "judge_examples": "run",
    "parse_rating": "ratings",
}

__all__ = ["JUDGES", "load_judge", *_EXPORTS]


def load_judge(name: str, **options: Any) -> TextJudge | ScoringJudge:
    """Make a judge by name (P2 §4).

    Args:
        name: One of `JUDGES`.
        **options: Arguments of its class, e.g. ``points=7`` for vanilla and cot, ``checkpoint=…`` for
            alignscore.

    Raises:
        UserError: An unknown name, or options that the judge does not take.
    """
    from persona_mlflow.prism.judges.alignscore import AlignScoreJudge
    from persona_mlflow.prism.judges.direct import DirectJudge
    from persona_mlflow.prism.judges.pandalm import PandaLMJudge
    from persona_mlflow.prism.judges.selene import SeleneJudge

    if name not in JUDGES:
        raise UserError(f"judge: unknown name {name!r}; {choices(str(name), JUDGES)}")
    kinds: dict[str, Any] = {"selene": SeleneJudge, "pandalm": PandaLMJudge, "alignscore": AlignScoreJudge}
    try:
        judge: TextJudge | ScoringJudge = (
            kinds[name](**options) if name in kinds else DirectJudge(name, **options)
        )
    except TypeError as error:
        raise UserError(f"judge {name}: {error}") from error
    return judge


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
