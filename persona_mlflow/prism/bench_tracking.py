"""A benchmark run in MLflow: parent per benchmark, child per evaluator, method, rubric and temperature."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.prism.bench import BENCHMARK, EXAMPLES, PROBABILITIES, composition
from persona_mlflow.prism.results import FACTS, SCORES, MethodRun
from persona_mlflow.records import TABLE_ROWS
from persona_mlflow.spec import digest
from persona_mlflow.tracking import Child, Tracker

if TYPE_CHECKING:
    from persona_mlflow.prism.analyses.metrics import MethodMetrics
    from persona_mlflow.prism.bench_spec import BenchSpec
    from persona_mlflow.prism.cases import Benchmark

PARENT_ROLE, CHILD_ROLE = "benchmark", "method"
TABLE = "examples.json"
COUNT = "persona_mlflow.methods"
"""Tag of the parent: how many method runs it has."""


def open_parent(
    tracking_uri: str | None, experiment: str, spec: BenchSpec, benchmark: Benchmark, ledger: str
) -> Tracker:
    """Find or make the parent run of a benchmark, and log what the benchmark is.

    Args:
        tracking_uri: The store.
        experiment: Experiment name; not used under ``mlflow run``.
        spec: What is compared.
        benchmark: The examples.
        ledger: Id of the output folder: an earlier parent of this benchmark and folder is continued.
    """
    report = benchmark.report
    identity = {"benchmark": benchmark.fingerprint, "name": spec.title}
    tracker = Tracker.open(
        tracking_uri,
        experiment,
        run_name=f"PRISM · {benchmark.name}",
        spec_hash=digest(identity, 32),
        params={
            "benchmark": benchmark.name,
            "resolved.experiment": spec.title,
            "resolved.data": report.source or spec.data or "",
            "dataset_fingerprint": benchmark.fingerprint,
            "seed": spec.seed,
            **({"swap": spec.swap} if benchmark.name == "big5-easy" else {}),
            **({"size": spec.size} if spec.size else {}),
            **composition(benchmark),
        },
        ledger=ledger,
        description=spec.description,
        role=PARENT_ROLE,
    )
    tracker.reopen()
    profile = json.loads(json.dumps(report.as_dict(), default=str))
    tracker.log_dataset(benchmark.name, benchmark.fingerprint, report.source or str(spec.data), profile)
    return tracker


def log_method(
    tracker: Tracker, run: MethodRun, metrics: MethodMetrics, benchmark: Benchmark, folder: Path
) -> None:
    """Log a finished method as a child; one that is logged already stays as it is.

    Args:
        tracker: The parent.
        run: The method run.
        metrics: Its ranking metrics.
        benchmark: The examples.
        folder: Where the method run is kept.
    """
    key = str(run.facts["key"])
    children = tracker.children()
    if key in children and children[key].info.status == "FINISHED":
        return
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        for file in (SCORES, FACTS, PROBABILITIES):
            if (folder / file).exists():
                shutil.copyfile(folder / file, files / file)
        text = json.dumps(metrics.as_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        (files / "metrics.json").write_text(text, encoding="utf-8")
        _write_table(run, benchmark, files / TABLE)
        child = Child(
            cell=key,
            name=f"{run.evaluator} · {run.label}",
            params=_params(run),
            metrics=method_values(run, metrics),
            files=files,
            tables=(TABLE,),
            start=float(run.facts["started"]),
            end=float(run.facts["ended"]),
            role=CHILD_ROLE,
            tags={f"metric_undefined.{name}": reason for name, reason in _undefined(metrics).items()},
        )
        tracker.log_child(child, unfinished=children.get(key))


def close_parent(
    tracker: Tracker, runs: Sequence[MethodRun], metrics: Sequence[MethodMetrics], output: Path
) -> None:
    """Log the comparison on the parent, and finish it."""
    from persona_mlflow.prism.ranking import METRICS

    values: dict[str, float] = {}
    for run, found in zip(runs, metrics, strict=True):
        for name in METRICS:
            value = found[name]
            if value is not None:
                values[f"{name}/{_metric_name(run)}"] = value
    children = [c for c in tracker.children().values() if c.info.status == "FINISHED"]
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        for file in (BENCHMARK, EXAMPLES):
            shutil.copyfile(output / file, files / file)
        tracker.log_parent(metrics=values, tags={COUNT: len(children)}, files=files)
    tracker.close("FINISHED")


def method_values(run: MethodRun, metrics: MethodMetrics) -> dict[str, float | None]:
    """The metrics of a method's MLflow run: the three of P2 with their bounds, and what else tells a run."""
    from persona_mlflow.prism.ranking import METRICS

    values: dict[str, float | None] = {}
    for name in METRICS:
        values[name] = metrics[name]
        bounds = metrics.intervals.get(name)
        if bounds is not None:
            values[f"{name}/low"], values[f"{name}/high"] = bounds
    scored = run.frame["score"].notna()
    values["unscored_rate"] = float(1 - scored.mean())
    for side, positive in (("positives", True), ("negatives", False)):
        part = run.frame.loc[scored & (run.frame["positive"] == positive), "score"]
        values[f"score/{side}"] = float(part.mean()) if len(part) else None
    values["label_mass"] = run.facts.get("label_mass")
    order = run.facts.get("order_sensitivity") or {}
    values["order/spread"], values["order/flips"] = order.get("spread"), order.get("flips")
    if "completion_tokens" in run.frame:
        values["tokens/prompt"] = float(run.frame["prompt_tokens"].sum())
        values["tokens/completion"] = float(run.frame["completion_tokens"].sum())
    values["cost"] = run.facts.get("cost")
    return values


def _metric_name(run: MethodRun) -> str:
    from persona_mlflow.records import metric_name

    return f"{metric_name(run.evaluator)}/{run.slug}"


def _params(run: MethodRun) -> Mapping[str, Any]:
    model = run.facts.get("model", {})
    found = {
        "benchmark": run.benchmark,
        "dataset_fingerprint": run.fingerprint,
        "evaluator": run.evaluator,
        "method": run.method,
        "points": run.points,
        "temperature": run.temperature,
        "layout": run.layout,
        "seed": run.facts.get("seed"),
        "seeds": len(run.seeds),
        "resolved.evaluator": run.facts.get("reference"),
        **{f"resolved.{key}": model.get(key) for key in ("revision", "dtype", "device", "quantization")},
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def _undefined(metrics: MethodMetrics) -> dict[str, str]:
    from persona_mlflow.prism.ranking import METRICS

    return {name: metrics.reasons[name] for name in METRICS if metrics[name] is None}


def _write_table(run: MethodRun, benchmark: Benchmark, path: Path) -> None:
    """The examples with their scores, for the evaluation view of the MLflow UI."""
    texts = {example.case.id: example.case for example in benchmark}
    columns = ["response", "score", "positive", "kind", "profile", "reason", "group", "seed", "context", "id"]
    frame = run.frame.head(TABLE_ROWS)
    rows = []
    for record in frame.to_dict("records"):
        case = texts[record["id"]]
        score = record["score"]
        rows.append(
            {
                **{
                    name: record[name]
                    for name in ("positive", "kind", "profile", "reason", "group", "seed", "id")
                },
                "score": None if score != score else score,
                "response": record.get("reply") or case.response,
                "context": case.context,
            }
        )
    content = {"columns": columns, "data": [[row[name] for name in columns] for row in rows]}
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    path.write_text(text, encoding="utf-8", errors="replace")
