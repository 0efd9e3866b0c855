"""``persona-mlflow report``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import check_draws, json_option, tracking_uri_option
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from persona_mlflow.analyses import Finding
    from persona_mlflow.report.sources import Source


@click.command()
@click.argument("parents", nargs=-1, metavar="[PARENT]...")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the report.  [reports/EXPERIMENT-MODEL, or reports/N-models]",
)
@click.option(
    "--draws",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Bootstrap resamples of the questions; 0 for no intervals.",
)
@click.option(
    "--permutations",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Draws of what the numbers would be by chance.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of both."
)
@click.option("--no-log", is_flag=True, help="Do not log the report on the parent runs.")
@tracking_uri_option
@json_option
def report(
    parents: tuple[str, ...],
    output: Path | None,
    draws: int,
    permutations: int,
    seed: int,
    no_log: bool,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Write every table and figure of an experiment as one HTML page.

    PARENT is a parent run's id, an MLflow experiment's name (the newest run of each of its models) or a
    ledger folder; several are set side by side, model by model. Without one, the store's only experiment
    is reported. Figures (SVG, PNG) and tables (CSV, Markdown, LaTeX) lie beside the page, and all of it is
    logged on the parent runs under report/.
    """
    import json

    from persona_mlflow.report.sources import find_sources
    from persona_mlflow.report.write import check_output, report_files, write_report

    check_draws("--draws", draws)
    check_draws("--permutations", permutations)
    end_on_sigterm()
    say = (lambda text: None) if as_json else to_stderr
    sources = find_sources(parents, tracking_uri)
    folder = output or _default_output(sources)
    check_output(folder)
    findings, about = _analyse(sources, tracking_uri, say, draws=draws, permutations=permutations, seed=seed)
    say("Drawing and writing …")
    page = write_report(findings, about, folder)
    run_ids = [source.run_id for source in sources.values() if source.run_id is not None]
    if run_ids and not no_log:
        say(f"Logging on {len(run_ids)} parent run{'s' if len(run_ids) > 1 else ''} …")
        log_report(page, run_ids, tracking_uri)
    if not as_json:
        click.echo(str(page))
        return
    result = {
        "page": str(page),
        "models": list(sources),
        "parents": run_ids,
        "logged": bool(run_ids) and not no_log,
        "analyses": [_summary(finding) for finding in findings],
        "files": [path.relative_to(page.parent).as_posix() for path in report_files(page)],
    }
    click.echo(json.dumps(result, ensure_ascii=False, indent=1, allow_nan=False))


def _analyse(
    sources: Mapping[str, Source], tracking_uri: str | None, say: Callable[[str], None], **options: Any
) -> tuple[list[Finding], dict[str, dict[str, Any]]]:
    from persona_mlflow.analyses import Study, run_analyses
    from persona_mlflow.outcomes import complete_part, load_outcomes
    from persona_mlflow.report.sources import describe, load_fidelity, load_predictions

    studies, about = {}, {}
    for name, source in sources.items():
        say(f"Reading {name} ({source.where}) …")
        dataset = load_outcomes(source.where, tracking_uri=tracking_uri, allow_incomplete=True)
        dataset, warning = complete_part(dataset)
        studies[name] = Study(
            dataset,
            predictions=load_predictions(source, tracking_uri),
            fidelity=load_fidelity(source, tracking_uri),
            **options,
        )
        about[name] = describe(source, studies[name], [warning] if warning else [])
    return run_analyses(studies, progress=say), about


def _summary(finding: Finding) -> dict[str, Any]:
    return {
        "key": finding.entry.key,
        "reference": finding.entry.reference,
        "title": finding.entry.title,
        "models": [str(name) for name in finding.data["model"].values] if finding.data is not None else [],
        "reasons": dict(finding.reasons),
    }


def _default_output(sources: Mapping[str, Source]) -> Path:
    import re

    (first, *others) = sources.values()
    name = f"{len(sources)}-models" if others else f"{first.experiment}-{first.model}"
    return Path("reports") / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "report")


def log_report(page: Path, run_ids: list[str], tracking_uri: str | None) -> None:
    """Log the report's files, and nothing else that lies in its folder."""
    import shutil
    import tempfile

    from mlflow.exceptions import MlflowException

    from persona_mlflow.report.write import report_files
    from persona_mlflow.store import connect

    client = connect(tracking_uri)
    with tempfile.TemporaryDirectory() as folder:
        for path in report_files(page):
            target = Path(folder) / path.relative_to(page.parent)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        for run_id in run_ids:
            try:
                client.log_artifacts(run_id, folder, "report")
            except (MlflowException, OSError) as error:
                raise UserError(
                    f"{page} is written, but could not be logged on run {run_id} "
                    f"({str(error).splitlines()[0]}); --no-log leaves that out"
                ) from error


def to_stderr(text: str) -> None:
    """Say it where it is not taken for the result."""
    click.echo(text, err=True)


def end_on_sigterm() -> None:
    """Let SIGTERM unwind like Ctrl-C, so that no half report stays behind."""

    def on_signal(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_signal)
