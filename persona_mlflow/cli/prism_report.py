"""``persona-mlflow prism report``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import check_draws, json_option, tracking_uri_option

if TYPE_CHECKING:
    from persona_mlflow.analyses import Finding
    from persona_mlflow.prism.analyses import Collection
    from persona_mlflow.report.page import Wording

FOOTER = (
    "PRISM, AUC, Pair-AUC and group accuracy are those of “Do LLMs Understand Personality?” (P2, "
    "arXiv 2608.26674); higher is better. Over several seeds a metric is the mean of the seeds' metrics."
)


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the report.  [reports/prism-BENCHMARK, or reports/prism-N-benchmarks]",
)
@click.option(
    "--draws",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Bootstrap resamples of the groups; 0 for no intervals.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of the resamples."
)
@click.option("--no-log", is_flag=True, help="Do not log the report on the benchmark runs.")
@tracking_uri_option
@json_option
def report(
    sources: tuple[str, ...],
    output: Path | None,
    draws: int,
    seed: int,
    no_log: bool,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Write every table and figure of benchmark runs as one HTML page.

    SOURCE is the --output folder of prism bench, a benchmark run's id or an MLflow experiment's name; without
    one, all benchmark runs of the store are reported. Of several method runs with the same benchmark,
    evaluator and method the newest finished one is taken. Figures (SVG, PNG) and tables (CSV, Markdown,
    LaTeX) lie beside the page, and all of it is logged on the benchmark runs under report/.
    """
    import json

    from persona_mlflow.cli.report import end_on_sigterm, log_report, to_stderr
    from persona_mlflow.prism.analyses import Collection, run_analyses
    from persona_mlflow.prism.report_sources import describe, find_collections
    from persona_mlflow.report.write import check_output, report_files, write_report

    check_draws("--draws", draws)
    end_on_sigterm()
    say: Callable[[str], None] = (lambda text: None) if as_json else to_stderr
    if output is not None:
        check_output(output)
    say("Reading …")
    collected = find_collections(sources, tracking_uri)
    for text in collected.left_out:
        say(f"Note: {text}.")
    collection = Collection(collected.runs, draws=draws, seed=seed)
    folder = output or _default_output(collection)
    check_output(folder)
    findings = run_analyses(collection, progress=say)
    say("Drawing and writing …")
    wording = _wording(collection, findings, collected.left_out)
    page = write_report(findings, describe(collection, collected), folder, wording=wording)
    logged = bool(collected.parents) and not no_log
    if logged:
        say(f"Logging on {len(collected.parents)} benchmark run{'s' if len(collected.parents) > 1 else ''} …")
        log_report(page, list(collected.parents), tracking_uri)
    if not as_json:
        click.echo(str(page))
        return
    result = {
        "page": str(page),
        "benchmarks": {name: _methods(collection, name) for name in collection.benchmarks},
        "parents": list(collected.parents),
        "logged": logged,
        "left_out": list(collected.left_out),
        "analyses": [_summary(finding) for finding in findings],
        "files": [path.relative_to(page.parent).as_posix() for path in report_files(page)],
    }
    click.echo(json.dumps(result, ensure_ascii=False, indent=1, allow_nan=False))


def _wording(collection: Collection, findings: Sequence[Finding], left_out: Sequence[str]) -> Wording:
    """What the page says beside the findings; the main table stands at the top where there is room for it."""
    from persona_mlflow.prism.analyses.catalogue import MAIN
    from persona_mlflow.prism.report_sources import FACT_HEADINGS
    from persona_mlflow.report.page import FOLD_ALONE, Wording

    main = next(finding for finding in findings if finding.entry.key == MAIN)
    small = main.data is not None and main.data["value"].size <= FOLD_ALONE
    lead = "How well PRISM and other judges tell responses that fit a persona from those that do not."
    if collection.draws:
        level = f"{(1 - collection.alpha) * 100:g} %"
        lead += f" Brackets hold {level} intervals from {collection.draws:,} resamples of the groups."
    return Wording(
        title=f"Persona fidelity: {', '.join(collection.benchmarks)}",
        lead=lead,
        facts=FACT_HEADINGS,
        everything="All benchmarks",
        headline=MAIN if small else None,
        not_possible="Not possible with these runs",
        footer=FOOTER,
        warnings=tuple(left_out),
    )


def _default_output(collection: Collection) -> Path:
    (first, *others) = collection.benchmarks
    name = f"prism-{len(others) + 1}-benchmarks" if others else f"prism-{first}"
    return Path("reports") / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "prism")


def _methods(collection: Collection, benchmark: str) -> list[dict[str, Any]]:
    """The method runs of a benchmark with their metrics."""
    from persona_mlflow.prism.analyses.metrics import as_method_metrics

    found = []
    for entrant in collection.of(benchmark):
        run = entrant.run
        what = {name: getattr(run, name) for name in ("evaluator", "method", "points", "temperature")}
        metrics = as_method_metrics(run, collection.measured(entrant), collection.draws)
        found.append({**what, "layout": run.layout or None, **metrics.as_dict()})
    return found


def _summary(finding: Finding) -> dict[str, Any]:
    return {
        "key": finding.entry.key,
        "reference": finding.entry.reference,
        "title": finding.entry.title,
        "found": finding.data is not None,
        "reasons": dict(finding.reasons),
    }
