"""``persona-mlflow summarize``."""

from __future__ import annotations

import click

from persona_mlflow.cli.options import json_option, tracking_uri_option


@click.command()
@click.argument("parents", nargs=-1, metavar="[PARENT]...")
@tracking_uri_option
@json_option
def summarize(parents: tuple[str, ...], tracking_uri: str | None, as_json: bool) -> None:
    """Show experiments side by side: accuracy, the three instabilities, the unparsed rate.

    PARENT is a parent run's id or an MLflow experiment's name; without one, all experiments are shown.
    Accuracies and rates are fractions of 1; sd is the standard deviation of accuracy over runs.
    """
    import json

    from persona_mlflow.store import connect, find_parents, resolve_tracking_uri, sqlite_path
    from persona_mlflow.summary import run_summary, summary_table

    database = sqlite_path(resolve_tracking_uri(tracking_uri))
    runs = {}
    if database is None or database.exists() or parents:  # reading makes no store
        client = connect(tracking_uri)
        for source in parents or (None,):
            runs.update({run.info.run_id: run for run in find_parents(client, source)})
    rows = [run_summary(run) for run in runs.values()]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=1, allow_nan=False))
        return
    if not rows:
        click.echo("No experiment has been run in this store yet: persona-mlflow run")
        return
    from rich.console import Console

    console = Console(highlight=False)
    # A column per experiment, as many as fit: the rest in further tables.
    fit = max(1, (console.width - 26) // 16)
    for start in range(0, len(rows), fit):
        console.print(summary_table(rows[start : start + fit]))
        console.print()
    for row in rows:
        for name, reason in row["undefined"].items():
            console.print(f"{row['experiment']} · {row['model']}: {name} is undefined, {reason}")
        if row["status"] != "FINISHED":
            console.print(f"{row['experiment']} · {row['model']}: {row['status'].lower()}, not finished")
