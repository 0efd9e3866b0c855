"""The instability metrics of "Persona Non Grata" (P1 §3): of accuracy, of the ranking, of the questions.

Each takes ``correct``, boolean over persona × question × factors, and the dims to vary. Accuracies are
fractions in [0, 1], and every standard deviation has ddof 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from persona_mlflow.instability.accuracy import accuracy_instability
from persona_mlflow.instability.outcome import OutcomeInstability, outcome_instability
from persona_mlflow.instability.question import QuestionInstability, question_instability
from persona_mlflow.instability.result import Grid, Instability

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Instability",
    "OutcomeInstability",
    "QuestionInstability",
    "SummaryMetrics",
    "accuracy_instability",
    "outcome_instability",
    "question_instability",
    "summary_metrics",
]


class SummaryMetrics(TypedDict):
    """One model's row of P1's Table 1.

    Keys:
        metrics: ``accuracy/mean``, ``accuracy/std``, ``instability/accuracy``, ``instability/outcome`` and
            ``instability/question``: a float, or ``None`` where it is undefined.
        reasons: Why, for exactly the metrics that are ``None``.
        left_out: Personas that are never right, and so have no part in ``instability/question``.
    """

    metrics: dict[str, float | None]
    reasons: dict[str, str]
    left_out: list[str]


def summary_metrics(correct: xr.DataArray, over: str | Sequence[str] | None = None) -> SummaryMetrics:
    """Accuracy over the runs and the three instabilities (P1 Table 1), named as they are logged.

    A run is one persona in one setting. Where ``over`` leaves dims, the instabilities are averaged over
    their levels (P1 Fig. 4); where it contains persona, outcome instability is undefined (P1 Fig. 7).

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary; by default every dim but persona and question.

    Raises:
        UserError: As `accuracy_instability`.
    """
    grid = Grid.check(correct, over)
    accuracy = accuracy_instability(correct, over)
    question = question_instability(correct, over)
    metrics: dict[str, float | None] = {
        "accuracy/mean": None,
        "accuracy/std": None,
        "instability/accuracy": accuracy.average,
        "instability/outcome": None,
        "instability/question": question.average,
    }
    reasons = {"instability/accuracy": accuracy.reason, "instability/question": question.reason}
    if grid.unit:
        outcome = outcome_instability(correct, over)
        metrics["instability/outcome"], reasons["instability/outcome"] = outcome.average, outcome.reason
    else:
        reasons["instability/outcome"] = "persona is varied: its ranks are not defined across personas"
    if correct.size:
        counts = grid.counts().values
        metrics["accuracy/mean"] = float(counts.mean() / grid.questions)
        metrics["accuracy/std"] = float(counts.std() / grid.questions)
    else:
        reason = "no answers: " + ", ".join(f"dim {d!r} is empty" for d, n in correct.sizes.items() if not n)
        reasons["accuracy/mean"] = reasons["accuracy/std"] = reason
    return {
        "metrics": metrics,
        "reasons": {name: str(reasons[name]) for name, value in metrics.items() if value is None},
        "left_out": [str(name) for name in question.left_out_personas],
    }
