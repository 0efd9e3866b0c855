"""One experiment in a few numbers, and several beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persona_mlflow.instability import summary_metrics
from persona_mlflow.outcomes import status_rates

if TYPE_CHECKING:
    import xarray as xr
    from mlflow.entities import Run

    from persona_mlflow.analyses import Finding

METRICS = {
    "accuracy/mean": "accuracy, mean",
    "accuracy/std": "accuracy, sd over runs",
    "instability/accuracy": "I_A accuracy instability",
    "instability/outcome": "I_O outcome instability",
    "instability/question": "I_Q question instability",
    "parse_errors/rate": "unparsed rate",
}
"""Metric on the parent run → what a table calls it."""

PRISM_METRICS = {
    "prism/fidelity": "PRISM fidelity",
    "prism/instability/accuracy": "I_A of fidelity",
    "prism/instability/outcome": "I_O of fidelity",
}
"""The same for experiments whose generations were scored; shown where there is one."""

SPREAD_WARNING = 0.1
"""From this difference in unparsed rates on, parsing itself could pass for instability."""


def parent_summary(dataset: xr.Dataset) -> dict[str, Any]:
    """What the parent run reports of an experiment.

    Args:
        dataset: As `persona_mlflow.outcomes.load_outcomes` gives it.

    Returns:
        ``metrics`` (name → value: accuracy mean and population sd over runs, I_A, I_O, I_Q of P1 §3, the
        unparsed rate, its lowest and highest over runs, and each status's rate, all in [0, 1]), ``undefined``
        (name → reason), ``runs``, ``questions`` and ``warnings``.
    """
    rates = status_rates(dataset)
    unparsed = (dataset["status"] != 0).mean("question")
    found = summary_metrics(dataset["correct"])
    low, high = float(unparsed.min()), float(unparsed.max())
    metrics: dict[str, float] = {
        "parse_errors/rate": float(unparsed.mean()),
        "parse_errors/min": low,
        "parse_errors/max": high,
        **{f"status/{name}": float(rate) for name, rate in rates.items()},
    }
    metrics.update({name: value for name, value in found["metrics"].items() if value is not None})
    warnings = []
    if high - low > SPREAD_WARNING:
        warnings.append(
            f"the unparsed rate runs from {low:.1%} to {high:.1%} between runs: part of the instability may "
            "be in the form of the answers, not in the answers"
        )
    if found["left_out"]:
        warnings.append(f"never right, and so no part of I_Q: {', '.join(found['left_out'])}")
    return {
        "runs": int(unparsed.size),
        "questions": int(dataset.sizes["question"]),
        "metrics": metrics,
        "undefined": found["reasons"],
        "warnings": warnings,
    }


def run_summary(run: Run) -> dict[str, Any]:
    """What `summarize` says of a parent run, from what the run carries: no generation is read.

    Args:
        run: A parent run of MLflow.
    """
    metrics = {name: run.data.metrics.get(name) for name in METRICS}
    prefix = "metric_undefined."
    if "prism/unscored_rate" in run.data.metrics:
        # An earlier evaluator may have left a number where the last one gives none.
        metrics |= {
            name: run.data.metrics.get(name) if f"{prefix}{name}" not in run.data.tags else None
            for name in PRISM_METRICS
        }
    return {
        "experiment": run.data.params.get("resolved.experiment"),
        "model": run.data.params.get("model") or run.data.params.get("resolved.model"),
        "run_id": run.info.run_id,
        "status": run.info.status,
        "runs": int(run.data.tags.get("persona_mlflow.children", 0)),
        "runs_planned": int(run.data.params.get("runs", 0)),
        "questions": int(run.data.params.get("questions_count", 0)),
        **metrics,
        "undefined": {
            key.removeprefix(prefix): value for key, value in run.data.tags.items() if key.startswith(prefix)
        },
    }


def parent_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each parent run, no two alike: its model, with the experiment where they differ.

    Args:
        rows: As `run_summary` gives them.
    """
    experiments = {row["experiment"] for row in rows}
    names = []
    for row in rows:
        # A model by its path would fill the line.
        model = str(row["model"]).rstrip("/").rpartition("/")[2]
        names.append(model if len(experiments) < 2 else f"{row['experiment']} · {model}")
    return [
        name if names.count(name) == 1 else f"{name} ({row['run_id'][:8]})"
        for name, row in zip(names, rows, strict=True)
    ]


def number(value: float | None) -> str:
    """A fraction with four decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.4f}"


def summary_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Lay summaries out for the terminal: a column per parent run, a line per number."""
    from rich.table import Table

    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    table.add_column("")
    for row in rows:
        # A model by its path would fill the line.
        model = str(row["model"]).rstrip("/").rpartition("/")[2]
        table.add_column(f"{row['experiment']}\n{model}", justify="right", overflow="fold")
    table.add_row("runs", *(_runs(row) for row in rows))
    table.add_row("questions", *(f"{row['questions']:,}" for row in rows))
    for name, heading in shown_metrics(rows).items():
        table.add_row(heading, *(number(row.get(name)) for row in rows))
    return table


def shown_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Metric → heading: `METRICS`, and those of `PRISM_METRICS` that one of the parents has."""
    return METRICS | {
        name: heading for name, heading in PRISM_METRICS.items() if any(name in row for row in rows)
    }


def _runs(row: Mapping[str, Any]) -> str:
    done, planned = row["runs"], row["runs_planned"]
    return f"{done:,}" if done == planned else f"{done:,} of {planned:,}"


def summary_finding(rows: Sequence[Mapping[str, Any]]) -> Finding:
    """The numbers that the parent runs carry, laid out as a table for CSV, Markdown or LaTeX.

    Args:
        rows: As `run_summary` gives them, with a ``label``.
    """
    import numpy as np
    import xarray as xr

    from persona_mlflow.analyses import Finding, breakdown

    names = list(shown_metrics(rows))
    values = [[np.nan if row.get(name) is None else row[name] for name in names] for row in rows]
    reasons = [[row["undefined"].get(name, _why_not(name)) for name in names] for row in rows]
    dims = ("model", "quantity")
    data = xr.Dataset(
        {"value": (dims, values), "reason": (dims, np.where(np.isnan(values), reasons, ""))},
        coords={"model": [row["label"] for row in rows], "quantity": names},
    )
    return Finding(breakdown.entry(None, None), data)


def _why_not(name: str) -> str:
    return "not scored: run it with --prism EVALUATOR" if name in PRISM_METRICS else "not logged yet"
