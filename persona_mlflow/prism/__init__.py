"""PRISM: does a response fit its persona (P2, arXiv 2608.26674)?

The names below are imported on first use, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persona_mlflow.prism.benchmarks import load_benchmark as load_benchmark
    from persona_mlflow.prism.cases import Benchmark as Benchmark
    from persona_mlflow.prism.cases import Case as Case
    from persona_mlflow.prism.cases import Example as Example
    from persona_mlflow.prism.cases import Profile as Profile
    from persona_mlflow.prism.evaluators import load_evaluator as load_evaluator
    from persona_mlflow.prism.evaluators import load_local as load_local
    from persona_mlflow.prism.genai import prism_scorer as prism_scorer
    from persona_mlflow.prism.judge_engine import load_judge_engine as load_judge_engine
    from persona_mlflow.prism.judges import judge_examples as judge_examples
    from persona_mlflow.prism.judges import load_judge as load_judge
    from persona_mlflow.prism.ranking import ranking_metrics as ranking_metrics
    from persona_mlflow.prism.ranking_comparison import compare_methods as compare_methods
    from persona_mlflow.prism.results import MethodRun as MethodRun
    from persona_mlflow.prism.results import find_method_runs as find_method_runs
    from persona_mlflow.prism.scoring import PrismScore as PrismScore
    from persona_mlflow.prism.scoring import order_sensitivity as order_sensitivity
    from persona_mlflow.prism.scoring import score as score
    from persona_mlflow.prism.scoring import score_cases as score_cases

_HOME = {
    "Benchmark": "cases",
    "Case": "cases",
    "Example": "cases",
    "MethodRun": "results",
    "PrismScore": "scoring",
    "Profile": "cases",
    "compare_methods": "ranking_comparison",
    "find_method_runs": "results",
    "judge_examples": "judges",
    "load_benchmark": "benchmarks",
    "load_evaluator": "evaluators",
    "load_judge": "judges",
    "load_judge_engine": "judge_engine",
    "load_local": "evaluators",
    "order_sensitivity": "scoring",
    "prism_scorer": "genai",
    "ranking_metrics": "ranking",
    "score": "scoring",
    "score_cases": "scoring",
}
# Modules that stand on their own, too: `persona_mlflow.prism.ranking.ranking_metrics`.
_MODULES = ("benchmarks", "genai", "judges", "ranking", "scoring")

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
