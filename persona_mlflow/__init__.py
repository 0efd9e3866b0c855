"""persona-mlflow: how far can an LLM's persona-driven behaviour be trusted?

The names below are imported on first use, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persona_mlflow import prism as prism
    from persona_mlflow.analyses import Study as Study
    from persona_mlflow.analyses import run_analyses as run_analyses
    from persona_mlflow.errors import UserError as UserError
    from persona_mlflow.instability import accuracy_instability as accuracy_instability
    from persona_mlflow.instability import outcome_instability as outcome_instability
    from persona_mlflow.instability import question_instability as question_instability
    from persona_mlflow.outcomes import load_outcomes as load_outcomes
    from persona_mlflow.parsing import parse_answer as parse_answer
    from persona_mlflow.prism import load_benchmark as load_benchmark
    from persona_mlflow.prism import load_evaluator as load_evaluator
    from persona_mlflow.prism import prism_scorer as prism_scorer
    from persona_mlflow.prism import ranking_metrics as ranking_metrics
    from persona_mlflow.prism import score_cases as score_cases
    from persona_mlflow.questions import load_questions as load_questions
    from persona_mlflow.spec import load_spec as load_spec

__version__ = "0.1.0"

_HOME = {
    "Study": "analyses",
    "UserError": "errors",
    "accuracy_instability": "instability",
    "load_benchmark": "prism",
    "load_evaluator": "prism",
    "load_outcomes": "outcomes",
    "load_questions": "questions",
    "load_spec": "spec",
    "outcome_instability": "instability",
    "parse_answer": "parsing",
    "prism_scorer": "prism",
    "question_instability": "instability",
    "ranking_metrics": "prism",
    "run_analyses": "analyses",
    "score_cases": "prism",
}

__all__ = ["__version__", "prism", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "prism":
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
