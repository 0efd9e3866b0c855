"""P2's analyses of method runs, and what it lacks: intervals, paired tests, chance, what was left unscored.

An analysis is a function from a `Collection` of method runs to labelled results; `catalogue.CATALOGUE` lists
them in the order of a report. `run_analyses` runs them, `method_metrics` gives the metrics of one method run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from persona_mlflow.prism.analyses.collection import Collection, Entrant, NotThere
from persona_mlflow.prism.analyses.metrics import MethodMetrics, method_metrics

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding
    from persona_mlflow.prism.analyses.entries import Analysis

__all__ = ["Collection", "Entrant", "MethodMetrics", "NotThere", "method_metrics", "run_analyses"]


def run_analyses(
    collection: Collection,
    *,
    analyses: Sequence[Analysis] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Run the analyses on method runs of one or several benchmarks.

    Args:
        collection: The method runs.
        analyses: Which; all of the catalogue by default.
        progress: Called with each analysis' title before it starts.

    Returns:
        A finding for each analysis, in order. Where a benchmark's runs do not allow one, the finding says
        why, by the benchmark's name; its data have no dim ``model``.
    """
    from persona_mlflow.prism.analyses.catalogue import CATALOGUE

    findings = []
    for analysis in CATALOGUE if analyses is None else analyses:
        if progress:
            progress(analysis.entry.title)
        findings.append(analysis.run(collection))
    return findings
