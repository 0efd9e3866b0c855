"""``persona-mlflow summarize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import FEWEST_DRAWS, json_option, split_list, tracking_uri_option
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from persona_mlflow.analyses import Finding

FORMATS = ("table", "json", "csv", "markdown", "latex")


@click.command()
@click.argument("parents", nargs=-1, metavar="[PARENT]...")
@click.option(
    "--by", metavar="WHAT", help="Split by a factor (ppf, tpf, temperature …), category or persona-group."
)
@click.option(
    "--over",
    callback=split_list,
    metavar="A,B",
    help="Vary only these factors, or persona, and average over the others.  [all factors]",
)
@click.option("--intervals", is_flag=True, help="Show 95 % bootstrap intervals over the questions.")
@click.option("--claims", is_flag=True, help="Hold the paper's statements against these results.")
@click.option(
    "--draws", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Of the bootstrap."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the bootstrap."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of what --json prints, and exit.")
@tracking_uri_option
@json_option
def summarize(
    parents: tuple[str, ...],
    by: str | None,
    over: list[str] | None,
    intervals: bool,
    claims: bool,
    draws: int,
    seed: int,
    form: str,
    schema: bool,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Show experiments side by side: accuracy, the three instabilities, the unparsed rate.

    PARENT is a parent run's id or an MLflow experiment's name; without one, all experiments are shown.
    Accuracies and rates are fractions of 1; sd is the standard deviation of accuracy over runs.
    """
    from persona_mlflow import summary_json

    if schema:
        click.echo(summary_json.schema_text())
        return
    if as_json and form not in ("table", "json"):
        raise UserError(f"--json and --format {form}: give one of them")
    if draws < FEWEST_DRAWS:
        raise UserError(f"--draws {draws}: too few to tell anything; give {FEWEST_DRAWS} or more")
    if over == []:
        raise UserError("--over: is empty; name factors, or leave the option out")
    form = "json" if as_json else form
    rows = _find(parents, tracking_uri)
    findings: list[Finding] = []
    if rows and (by or over or intervals or claims):
        shown = {"by": by, "over": over, "intervals": intervals, "claims": claims}
        findings = _analyse(rows, shown, draws if intervals or claims else 0, seed, tracking_uri)
    if form == "json":
        click.echo(summary_json.document(rows, findings, by, over))
    elif not rows:
        click.echo("No experiment has been run in this store yet: persona-mlflow run")
    elif form == "table":
        _print(rows, findings)
    else:
        _write(rows, findings, form)


def _find(parents: Sequence[str], tracking_uri: str | None) -> list[dict[str, Any]]:
    """The parent runs' own numbers: no generation is read."""
    from persona_mlflow.store import connect, find_parents, resolve_tracking_uri, sqlite_path
    from persona_mlflow.summary import parent_labels, run_summary

    database = sqlite_path(resolve_tracking_uri(tracking_uri))
    runs = {}
    if database is None or database.exists() or parents:  # reading makes no store
        client = connect(tracking_uri)
        for source in parents or (None,):
            runs.update({run.info.run_id: run for run in find_parents(client, source)})
    rows = [run_summary(run) for run in runs.values()]
    return [{"label": label, **row} for label, row in zip(parent_labels(rows), rows, strict=True)]


def _analyse(
    rows: list[dict[str, Any]],
    shown: Mapping[str, Any],
    draws: int,
    seed: int,
    tracking_uri: str | None,
) -> list[Finding]:
    """The breakdown of all parents, and the claims if they are asked for; notes go to the rows."""
    from persona_mlflow.analyses import Finding, Study, breakdown, join_models
    from persona_mlflow.analyses import claims as claim_module
    from persona_mlflow.outcomes import complete_part, load_outcomes

    studies = {}
    for row in rows:
        dataset = load_outcomes(row["run_id"], tracking_uri=tracking_uri, allow_incomplete=True)
        part, note = complete_part(dataset)
        row["incomplete"] = note
        studies[row["label"]] = Study(part, draws=draws, permutations=0, seed=seed)
    notes = {row["label"]: row["incomplete"] for row in rows if row["incomplete"]}
    by, over = shown["by"], shown["over"]
    data = {name: breakdown.breakdown(study, by, over) for name, study in studies.items()}
    if not shown["intervals"]:
        data = {name: found.drop_vars(["low", "high"]) for name, found in data.items()}
    findings = [Finding(breakdown.entry(by, over), join_models(data), notes=notes)]
    if shown["claims"]:
        findings.append(Finding(claim_module.ENTRY, claim_module.check_claims(studies), notes=notes))
    return findings


def _print(rows: list[dict[str, Any]], findings: Sequence[Finding]) -> None:
    from rich.console import Console

    from persona_mlflow.summary import summary_table

    console = Console(highlight=False)
    if not findings:
        # A column per experiment, as many as fit: the rest in further tables.
        fit = max(1, (console.width - 26) // 16)
        for start in range(0, len(rows), fit):
            console.print(summary_table(rows[start : start + fit]))
            console.print()
    for finding in findings:
        _print_finding(console, finding)
    for row in rows:
        for name, reason in row["undefined"].items() if not findings else ():
            console.print(f"{row['experiment']} · {row['model']}: {name} is undefined, {reason}")
        if row["status"] != "FINISHED":
            console.print(f"{row['experiment']} · {row['model']}: {row['status'].lower()}, not finished")
        if row.get("incomplete"):
            console.print(f"{row['label']}: {row['incomplete']}")


def _print_finding(console: Any, finding: Finding) -> None:
    from rich.table import Table

    from persona_mlflow.analyses.breakdown import for_display
    from persona_mlflow.report.tables import build_table

    laid_out = build_table(for_display(finding))
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    for name in laid_out.row_names:
        table.add_column(name, overflow="fold")
    for labels in laid_out.columns:
        table.add_column("\n".join(labels), justify="right", overflow="fold")
    for labels, cells in zip(laid_out.rows, laid_out.cells, strict=True):
        table.add_row(*labels, *(str(cell) for cell in cells))
    console.print(table)
    for letter, reason in laid_out.notes.items():
        console.print(f"({letter}) {reason}")
    console.print()


def _write(rows: list[dict[str, Any]], findings: Sequence[Finding], form: str) -> None:
    """The tables as CSV, Markdown or LaTeX, one after the other."""
    from persona_mlflow.analyses.breakdown import for_display
    from persona_mlflow.report.formats import to_csv, to_latex, to_markdown
    from persona_mlflow.report.tables import build_table
    from persona_mlflow.summary import summary_finding

    for place, finding in enumerate(findings or [summary_finding(rows)]):
        if place:
            click.echo()
        if form == "csv":
            assert finding.data is not None
            click.echo(to_csv(finding.data), nl=False)
            continue
        render = to_markdown if form == "markdown" else to_latex
        click.echo(render(build_table(for_display(finding)), finding.entry.caption))
    for row in rows:
        _say(row)


def _say(row: Mapping[str, Any]) -> None:
    if row.get("incomplete"):
        click.echo(f"{row['label']}: {row['incomplete']}", err=True)
    elif row["status"] != "FINISHED":
        click.echo(f"{row['label']}: {row['status'].lower()}, not finished", err=True)
